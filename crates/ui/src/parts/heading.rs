//! Heading of a page with a name that users have chosen.

use maud::{Markup, html};

use super::{first_line, visible};

/// Maximum length of a heading: three lines on a phone. The whole of a longer name opens below it.
const MAX_CHARS: usize = 96;

/// Heading, with the whole name on demand if it is long.
pub(in super::super) fn heading(name: &str) -> Markup {
    titled(None, name)
}

/// Heading with the kind of what has the name, such as `Worker`.
pub(in super::super) fn heading_of(kind: &str, name: &str) -> Markup {
    titled(Some(kind), name)
}

fn titled(kind: Option<&str>, name: &str) -> Markup {
    let shown = first_line(name, MAX_CHARS);
    let whole = visible(name);
    html! {
        h1 title=(whole) { @if let Some(kind) = kind { span.quiet { (kind) " " } } (shown) }
        @if shown != whole { details.more { summary { "Whole name" } p { (whole) } } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_name_is_cut_and_opens_below_the_heading() {
        assert_eq!(heading("a<b").into_string(), "<h1 title=\"a&lt;b\">a&lt;b</h1>");
        assert!(heading_of("Worker", "w-1").into_string().contains("<span class=\"quiet\">Worker </span>w-1</h1>"));
        let long = heading(&"x".repeat(512)).into_string();
        assert!(long.contains(&format!(">{}…</h1>", "x".repeat(MAX_CHARS))), "{long}");
        assert!(long.contains(&format!("<p>{}</p>", "x".repeat(512))), "{long}");
    }
}
