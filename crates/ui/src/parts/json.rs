//! JSON values, indented and limited. A whole one can be copied.

use kafleet_model::json::RawJson;
use maud::{Markup, html};

use super::copy::copied;
use super::visible;

/// Characters shown of a value; the rest is behind a link.
const MAX_CHARS: usize = 4_096;

/// Value as indented JSON. `all` is the URL of the whole value.
pub(in super::super) fn json_block(value: &RawJson, all: Option<&str>) -> Markup {
    let text = value.slice().pretty();
    let end = text.char_indices().nth(MAX_CHARS).map(|(end, _)| end);
    let shown = end.map_or(text.as_str(), |end| &text[..end]);
    html! {
        @let block = html! { pre.json tabindex="0" { code { (visible(shown)) @if end.is_some() { "…" } } } };
        @if end.is_some() { (block) } @else { (copied(block)) }
        @if let (Some(_), Some(all)) = (end, all) {
            p { a href=(all) { "Show all " (super::count(text.len())) " bytes" } }
        }
    }
}
