//! JSON values that fold without a script: each list or object is a `details`. The text of a block is the value itself, also
//! for copies; the numbers of members and the marks of cuts are drawn by the style sheet.

use kafleet_model::json::{JsonKind, JsonSlice, RawJson, plain_text};
use maud::{Markup, html};

use super::copy::copied;
use super::{count, counted, visible};

/// Values shown of a block; the rest is behind a link.
const MAX_VALUES: usize = 2_000;
/// Bytes of the values shown.
const MAX_BYTES: usize = 64 << 10;
/// Levels that fold; deeper values are shown in one line.
const MAX_DEPTH: usize = 24;
/// Levels that are open at first, if they have at most so many members.
const OPEN_LEVELS: usize = 3;
const OPEN_MEMBERS: usize = 50;
/// Characters of a text that are shown without opening it.
const TEXT_CHARS: usize = 200;

/// Value as JSON that folds. `all` is the URL of the whole value.
pub(in super::super) fn json_block(value: &RawJson, all: Option<&str>) -> Markup {
    let mut budget = Budget { values: MAX_VALUES, bytes: MAX_BYTES, is_spent: false };
    let shown = line(&mut budget, value.slice(), &JsonPosition { name: None, depth: 0, is_last: true });
    let bytes = value.text().len();
    html! {
        @let block = html! { div.json tabindex="0" role="group" aria-label="JSON" { (shown) } };
        @if budget.is_spent {
            (block)
            @match all {
                Some(all) => { p { a href=(all) { "Show all " (count(bytes)) " bytes" } } }
                None => { p.quiet { "Cut: it has " (count(bytes)) " bytes." } }
            }
        } @else {
            (copied(block))
        }
    }
}

/// Values that may still be shown.
struct Budget {
    values: usize,
    bytes: usize,
    /// Something was left out.
    is_spent: bool,
}

impl Budget {
    /// Whether a value of this length is shown.
    fn take(&mut self, bytes: usize) -> bool {
        if self.values == 0 || bytes > self.bytes {
            self.is_spent = true;
            return false;
        }
        (self.values, self.bytes) = (self.values - 1, self.bytes - bytes);
        true
    }
}

/// Position of a value in its container.
struct JsonPosition<'a> {
    /// Name of a member of an object.
    name: Option<&'a str>,
    depth: usize,
    is_last: bool,
}

fn line(budget: &mut Budget, value: JsonSlice<'_>, position: &JsonPosition<'_>) -> Markup {
    let is_container = matches!(value.kind(), JsonKind::Object | JsonKind::Array);
    let has_members = is_container && size(value) > 0;
    if has_members && position.depth < MAX_DEPTH {
        return container(budget, value, position);
    }
    html! {
        @if budget.take(value.text().len()) {
            div { (name_of(position)) (scalar(value)) (comma(position)) }
        } @else { div.rest { } }
    }
}

fn name_of(position: &JsonPosition<'_>) -> Markup {
    html! { @if let Some(name) = position.name { span.member { (visible(&plain_text(name))) } ": " } }
}

fn comma(position: &JsonPosition<'_>) -> &'static str {
    if position.is_last { "" } else { "," }
}

/// Number of members of a container.
fn size(value: JsonSlice<'_>) -> usize {
    if value.kind() == JsonKind::Object { value.members().count() } else { value.elements().count() }
}

fn container(budget: &mut Budget, value: JsonSlice<'_>, position: &JsonPosition<'_>) -> Markup {
    let is_object = value.kind() == JsonKind::Object;
    let (begin, end) = if is_object { ("{", "}") } else { ("[", "]") };
    let size = size(value);
    let nouns = if is_object { ("member", "members") } else { ("element", "elements") };
    let is_open = position.depth < OPEN_LEVELS && size <= OPEN_MEMBERS;
    let folded = format!("{} {end}", counted(size as u64, nouns.0, nouns.1));
    if !budget.take(0) {
        return html! { div.rest {} };
    }
    html! {
        details open[is_open || position.depth == 0] {
            summary data-folded=(folded) { (name_of(position)) (begin) }
            div.members { (members(budget, value, size, position.depth + 1)) }
            div { (end) (comma(position)) }
        }
    }
}

/// Members of a container, as many as may be shown.
fn members(budget: &mut Budget, value: JsonSlice<'_>, size: usize, depth: usize) -> Markup {
    let mut lines = Vec::new();
    let named = value.members().map(|(name, value)| (Some(name), value));
    for (n, (name, value)) in named.chain(value.elements().map(|value| (None, value))).enumerate() {
        lines.push(line(budget, value, &JsonPosition { name: name.as_deref(), depth, is_last: n + 1 == size }));
        if budget.is_spent {
            break;
        }
    }
    html! { @for line in lines { (line) } }
}

/// Value in one line: digits, escapes and the order of names as they are stored.
fn scalar(value: JsonSlice<'_>) -> Markup {
    let text = value.text();
    let class = match value.kind() {
        JsonKind::String => "text",
        JsonKind::Number => "digits",
        JsonKind::Object | JsonKind::Array => "deep",
        _ => "word",
    };
    let end = text.char_indices().nth(TEXT_CHARS).map(|(end, _)| end);
    html! {
        @match end {
            Some(end) => {
                details.long { summary class=(class) { (visible(&text[..end])) } span class=(class) { (visible(&text[end..])) } }
            }
            None => { span class=(class) { (visible(text)) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(text: &str) -> String {
        json_block(&RawJson::parse(text.as_bytes()).unwrap(), Some("/all")).into_string()
    }

    /// Text of the value, without its tags and the button that copies it.
    fn text_of(markup: &str) -> String {
        let markup = markup.split("<button").next().unwrap_or_default();
        let text: String = markup.split('<').map(|part| part.split_once('>').map_or(part, |(_, text)| text)).collect();
        text.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    }

    #[test]
    fn text_of_a_block_is_the_value_as_it_is_stored() {
        let stored = r#"{"n":1.50e+03,"big":12345678901234567890,"s":"a\u0041<b>","l":[true,null,{}],"o":{"x":[]}}"#;
        let shown = block(stored);
        assert_eq!(RawJson::parse(text_of(&shown).as_bytes()).unwrap().slice().compact(), stored);
        assert!(shown.contains("<span class=\"digits\">12345678901234567890</span>"), "{shown}");
        assert!(shown.contains("data-folded=\"3 elements ]\""), "{shown}");
    }

    #[test]
    fn large_values_fold_and_are_cut() {
        let list = format!("[{}]", (0..5_000).map(|n| n.to_string()).collect::<Vec<_>>().join(","));
        let shown = block(&format!("{{\"list\":{list}}}"));
        assert_eq!(shown.matches("class=\"digits\"").count(), MAX_VALUES - 2, "the two containers count too");
        assert!(shown.contains("Show all ") && shown.contains("<details><summary data-folded=\"5,000 elements ]\">"));
        let long = block(&format!("\"{}\"", "x".repeat(1_000)));
        assert!(long.contains("<details class=\"long\">") && text_of(&long).contains(&"x".repeat(1_000)), "{long}");
        assert!(block(&format!("[\"{}\",1]", "x".repeat(MAX_BYTES))).contains("class=\"rest\""));
        let deep = block(&format!("{}{}", "[".repeat(30), "]".repeat(30)));
        assert_eq!(text_of(&deep).matches('[').count(), 30);
    }

    #[test]
    fn hidden_characters_of_texts_are_not_shown() {
        assert!(!block("{\"a\u{202e}\":\"\u{202e}evil\"}").contains('\u{202e}'));
    }
}
