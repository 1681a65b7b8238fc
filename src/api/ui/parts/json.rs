//! JSON values, indented and limited.

use maud::{Markup, html};
use serde_json::Value;

use super::visible;

/// Characters shown of a value; the rest is behind a link.
const MAX_CHARS: usize = 4_096;

/// Value as indented JSON. `all` is the URL of the whole value.
pub(in super::super) fn json_block(text: &str, all: Option<&str>) -> Markup {
    let text = indented(text);
    let end = text.char_indices().nth(MAX_CHARS).map(|(end, _)| end);
    let shown = end.map_or(text.as_str(), |end| &text[..end]);
    html! {
        pre.json tabindex="0" { code { (visible(shown)) @if end.is_some() { "…" } } }
        @if let (Some(_), Some(all)) = (end, all) {
            p { a href=(all) { "Show all " (super::count(text.len())) " bytes" } }
        }
    }
}

pub(in super::super) fn indented(text: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(value) => pretty(&value),
        Err(_) => text.to_owned(),
    }
}

pub(in super::super) fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_else(|_| value.to_string())
}
