//! Texts of errors: a message with its hint (split by an empty line and `hint: `), an error with its sources, and the
//! message of a panic.

use std::any::Any;

/// Separator of message and hint.
const HINT: &str = "\n\nhint: ";

/// Splits an error text into its message and its hint, if it has one.
pub fn split_hint(text: &str) -> (&str, Option<&str>) {
    text.split_once(HINT).map_or((text, None), |(message, hint)| (message, Some(hint.trim_end())))
}

/// Joins message and hint into one line, for a field of a log record.
pub fn single_line(text: &str) -> String {
    text.replace("\n\n", "; ")
}

/// Message of an error and of its sources.
pub fn messages(error: &(dyn std::error::Error + 'static)) -> String {
    let messages = std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string);
    messages.collect::<Vec<_>>().join(": ")
}

/// Message of a panic.
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_of_an_error_text_is_separate_from_its_message() {
        let text = "no answer\n\nhint: start Redis\n";
        assert_eq!(split_hint(text), ("no answer", Some("start Redis")));
        assert_eq!(split_hint("no answer"), ("no answer", None));
        assert_eq!(single_line("no answer\n\nhint: start Redis"), "no answer; hint: start Redis");
    }
}
