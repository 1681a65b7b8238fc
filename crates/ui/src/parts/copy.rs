//! Buttons that copy a text. They need the script, and are hidden without it.

use maud::{Markup, html};

/// Element with a button that copies its text.
pub(in super::super) fn copied(element: Markup) -> Markup {
    html! { div.copied { (element) button.app type="button" data-copy { "Copy" } } }
}

/// Button that copies the texts of all elements of a selector, a line each.
pub(in super::super) fn copy_all(selector: &str, name: &str) -> Markup {
    html! { button.app type="button" data-copy=(selector) { (name) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn button_copies_the_element_before_it_or_those_that_it_names() {
        assert_eq!(
            copied(html! { code { "a" } }).into_string(),
            "<div class=\"copied\"><code>a</code><button class=\"app\" type=\"button\" data-copy>Copy</button></div>"
        );
        assert!(copy_all("ol.log code", "Copy lines").into_string().contains("data-copy=\"ol.log code\">Copy lines<"));
    }
}
