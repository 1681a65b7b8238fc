//! Canonical text of a JSON value: two values are equal if and only if their canonical texts are.

use std::borrow::Cow;
use std::ops::Range;

use super::number::canonical_number;
use super::scan::{Token, TokenKind, Tokens, decoded};
use super::{JsonDefect, is_plain, plain_text};

/// Canonical text of a valid text: no white space, the names of an object sorted by bytes, strings as serde_json writes
/// them, numbers by their exact decimal value as RFC 8785 writes numbers. Takes linear time, apart from the sorting.
pub(super) fn canonical(text: &str) -> Result<String, JsonDefect> {
    let mut tree = JsonTree::default();
    for token in Tokens::of(text) {
        tree.add_token(token).map_err(|reason| JsonDefect { pointer: String::new(), reason: reason.to_owned() })?;
    }
    Ok(tree.write(text.len()))
}

/// Value with its name, if it is a member of an object.
struct Node<'a> {
    name: Option<Cow<'a, str>>,
    value: NodeValue<'a>,
}

enum NodeValue<'a> {
    Scalar(Cow<'a, str>),
    Array(Range<usize>),
    Object(Range<usize>),
}

/// Container that is not closed yet.
struct OpenContainer<'a> {
    name: Option<Cow<'a, str>>,
    is_object: bool,
    /// Number of values that wait for the containers around it.
    first: usize,
}

#[derive(Default)]
struct JsonTree<'a> {
    /// Name of the next value.
    name: Option<Cow<'a, str>>,
    open: Vec<OpenContainer<'a>>,
    /// Values of open containers.
    waiting: Vec<Node<'a>>,
    /// Values of closed containers, each container's in one range.
    closed: Vec<Node<'a>>,
}

impl<'a> JsonTree<'a> {
    fn add_token(&mut self, token: Token<'a>) -> Result<(), &'static str> {
        match token.kind {
            TokenKind::Open => {
                let first = self.waiting.len();
                self.open.push(OpenContainer { name: self.name.take(), is_object: token.opens_object(), first });
            }
            TokenKind::Close => self.close(),
            TokenKind::Text if self.name.is_none() && self.open.last().is_some_and(|open| open.is_object) => {
                self.name = Some(decoded(token.text)?);
            }
            TokenKind::Text if token.text.contains('\\') => self.add(plain_text(&decoded(token.text)?).into()),
            TokenKind::Text => self.add(token.text.into()),
            TokenKind::Number => self.add(canonical_number(token.text)?),
            TokenKind::Word => self.add(token.text.into()),
            TokenKind::Comma | TokenKind::Colon => {}
        }
        Ok(())
    }

    fn add(&mut self, text: Cow<'a, str>) {
        self.waiting.push(Node { name: self.name.take(), value: NodeValue::Scalar(text) });
    }

    fn close(&mut self) {
        let Some(OpenContainer { name, is_object, first }) = self.open.pop() else { return };
        let values = &mut self.waiting[first..];
        if is_object && !values.is_sorted_by(|a, b| name_of(a) <= name_of(b)) {
            values.sort_by(|a, b| name_of(a).cmp(&name_of(b)));
        }
        let start = self.closed.len();
        self.closed.extend(self.waiting.drain(first..));
        let range = start..self.closed.len();
        let value = if is_object { NodeValue::Object(range) } else { NodeValue::Array(range) };
        self.waiting.push(Node { name, value });
    }

    fn write(&self, size: usize) -> String {
        let mut out = String::with_capacity(size);
        let mut open = Vec::new();
        self.waiting.iter().for_each(|root| push_node(&mut out, root, &mut open));
        while let Some((range, close)) = open.last_mut() {
            match range.next().and_then(|at| self.closed.get(at)) {
                Some(node) => {
                    if !out.ends_with(['{', '[']) {
                        out.push(',');
                    }
                    push_node(&mut out, node, &mut open);
                }
                None => {
                    out.push(*close);
                    open.pop();
                }
            }
        }
        out
    }
}

fn name_of<'a>(node: &'a Node<'_>) -> Option<&'a str> {
    node.name.as_deref()
}

/// Writes a scalar, or the bracket of a container, whose values follow.
fn push_node(out: &mut String, node: &Node<'_>, open: &mut Vec<(Range<usize>, char)>) {
    if let Some(name) = &node.name {
        if is_plain(name) {
            out.extend(["\"", name, "\""]);
        } else {
            out.push_str(&plain_text(name));
        }
        out.push(':');
    }
    match &node.value {
        NodeValue::Scalar(text) => out.push_str(text),
        NodeValue::Array(range) => {
            out.push('[');
            open.push((range.clone(), ']'));
        }
        NodeValue::Object(range) => {
            out.push('{');
            open.push((range.clone(), '}'));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::json::tests::any_json;

    #[test]
    fn form_is_the_same_for_all_spellings() {
        for (text, expected) in [
            (" null ", "null"),
            ("[ 1.0 , 1e2,\t-0 , true,false ]", "[1,100,0,true,false]"),
            (r#"{"b":{"z":1,"a":[]},"a":{},"a!":2,"":3}"#, r#"{"":3,"a":{},"a!":2,"b":{"a":[],"z":1}}"#),
            (r#"{"\u00e9":"\/\u0041\n\u0001\u2028\"","e":1}"#, "{\"e\":1,\"é\":\"/A\\n\\u0001\u{2028}\\\"\"}"),
            (r#"{"\u0022":1,"!":[{}]}"#, r#"{"!":[{}],"\"":1}"#),
        ] {
            assert_eq!(canonical(text).as_deref(), Ok(expected), "{text}");
        }
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        assert_eq!(canonical(&deep), Ok(deep));
    }

    proptest! {
        /// serde_json sorts names too, and writes integers in this form.
        #[test]
        fn form_of_integers_and_texts_is_that_of_serde_json(value in any_json()) {
            let text = serde_json::to_string_pretty(&value).unwrap();
            let canonical = canonical(&text).unwrap();
            prop_assert_eq!(&canonical, &value.to_string());
            prop_assert_eq!(serde_json::from_str::<Value>(&canonical).unwrap(), value);
        }
    }
}
