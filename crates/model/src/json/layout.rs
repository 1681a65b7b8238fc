//! Layouts of JSON text that keep digits, escapes and the order of names.

use super::scan::{TokenKind, Tokens};

/// Maximum nesting that is indented: deeper text would grow with the square of its length.
const MAX_INDENTED_LEVELS: usize = 64;

/// Removes the white space between tokens.
pub(super) fn compact(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    out.extend(Tokens::of(text).map(|token| token.text));
    out
}

/// Writes each member and element on a line of its own, indented by 2. Values nested more than 64 levels deep
/// stay on one line.
pub(super) fn pretty(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    let mut level = 0_usize;
    for token in Tokens::of(text) {
        match token.kind {
            TokenKind::Close => {
                level = level.saturating_sub(1);
                if !out.ends_with(['{', '[']) {
                    break_line(&mut out, level, level);
                }
            }
            _ if out.ends_with(['{', '[']) && !out.is_empty() => break_line(&mut out, level, level - 1),
            _ => {}
        }
        out.push_str(token.text);
        match token.kind {
            TokenKind::Open => level += 1,
            TokenKind::Comma => break_line(&mut out, level, level.saturating_sub(1)),
            TokenKind::Colon => out.push(' '),
            _ => {}
        }
    }
    out
}

/// Begins a line for something in a container at this level.
fn break_line(out: &mut String, indent: usize, container: usize) {
    if container < MAX_INDENTED_LEVELS {
        out.push('\n');
        out.extend(std::iter::repeat_n("  ", indent));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::json::tests::any_json;

    #[test]
    fn digits_escapes_and_order_are_kept() {
        let text = " { \"b\" : [ 1.10 , 1e400 , -0 ] ,\n\"a [\" : { } , \"\\u0041\":\"x , y\" , \"e\": [ ] } ";
        assert_eq!(compact(text), r#"{"b":[1.10,1e400,-0],"a [":{},"\u0041":"x , y","e":[]}"#);
        let expected = r#"{
  "b": [
    1.10,
    1e400,
    -0
  ],
  "a [": {},
  "\u0041": "x , y",
  "e": []
}"#;
        assert_eq!(pretty(text), expected);
    }

    #[test]
    fn deep_values_stay_on_one_line() {
        let deep = "[".repeat(10_000) + &"]".repeat(10_000);
        let pretty = pretty(&deep);
        assert!(pretty.len() < 40_000 && pretty.lines().count() < 140, "{} bytes", pretty.len());
        assert_eq!(compact(&pretty), deep);
    }

    proptest! {
        #[test]
        fn layouts_are_those_of_serde_json(value in any_json()) {
            let text = serde_json::to_string_pretty(&value).unwrap();
            prop_assert_eq!(compact(&text), value.to_string());
            prop_assert_eq!(pretty(&value.to_string()), text);
        }
    }
}
