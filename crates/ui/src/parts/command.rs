//! Commands that do or show the same as a page.

use maud::{Markup, html};

use super::copy::copied;
use super::visible;

/// Shell commands, in a block that opens on demand. Empty: nothing.
pub(in super::super) fn commands(lines: &[String]) -> Markup {
    html! {
        @if !lines.is_empty() {
            details.commands {
                summary { "As a command" }
                @for line in lines { (copied(html! { pre { code { (visible(line)) } } })) }
            }
        }
    }
}

/// `curl` of a read of the API.
pub(in super::super) fn curl_get(path: &str) -> String {
    format!("curl -s -H \"authorization: Bearer $KAFLEET_TOKEN\" {}", quoted(&format!("$KAFLEET_API{path}")))
}

/// `curl` of an action of the API.
pub(in super::super) fn curl(method: &str, path: &str, body: Option<&str>) -> String {
    let data = body.map_or_else(String::new, |body| format!(" --json {}", quoted(body)));
    let url = quoted(&format!("$KAFLEET_API{path}"));
    format!("curl -s -X {method} -H \"authorization: Bearer $KAFLEET_TOKEN\"{data} {url}")
}

/// Quotes a word for a shell, if it needs that. `$KAFLEET_API` at its beginning stays a variable.
pub(in super::super) fn quoted(text: &str) -> String {
    if let Some(rest) = text.strip_prefix("$KAFLEET_API") {
        let rest = quoted(rest);
        return format!("\"$KAFLEET_API\"{}", if rest == "''" { "" } else { &rest });
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,~".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) && !text.starts_with('~') {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_the_shell() {
        assert_eq!(quoted("order-42:fetch"), "order-42:fetch");
        assert_eq!(quoted("it's; rm -rf /"), r"'it'\''s; rm -rf /'");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("$KAFLEET_API/v1/tasks?tag=a&x=1"), "\"$KAFLEET_API\"'/v1/tasks?tag=a&x=1'");
    }
}
