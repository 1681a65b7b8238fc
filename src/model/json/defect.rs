//! Faults of a JSON text that every JSON parser accepts, but not every reader understands alike.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::number::check_number;
use super::scan::{Token, TokenKind, Tokens, decoded};
use crate::model::task::id::clip_to;

/// Maximum nesting of a value: enough for data, and within the stack of readers that recurse.
pub(crate) const MAX_LEVELS: usize = 10_000;
/// Names of an object that are compared one by one; those of a larger object are sorted.
const FEW_NAMES: usize = 16;
/// Maximum characters of the pointer of a fault.
const MAX_POINTER_CHARS: usize = 300;

pub(super) const EXPONENT: &str = "the exponent of a number is out of range: at most 9 digits are allowed";
pub(super) const SURROGATE: &str = "a string has half a surrogate pair as an escape, which is no character";

/// Fault of a JSON text: a name that occurs twice in an object, half a surrogate pair, or an exponent out of range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonDefect {
    /// JSON pointer to the value; empty for the whole value.
    pub pointer: String,
    /// Reason for people.
    pub reason: String,
}

impl std::fmt::Display for JsonDefect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.reason)?;
        if self.pointer.is_empty() { Ok(()) } else { write!(f, " (at `{}`)", self.pointer) }
    }
}

impl std::error::Error for JsonDefect {}

/// Finds the first fault of a valid text, in linear time except for sorting the names of large objects.
pub(super) fn check(text: &str) -> Result<(), JsonDefect> {
    let mut checker = Checker { names: SmallVec::new(), open: SmallVec::new() };
    Tokens::of(text).try_for_each(|token| checker.take(token))
}

/// Array or object that is not closed yet.
struct Container {
    is_object: bool,
    /// The next string is a name.
    expects_name: bool,
    /// Two names may be equal: to be decided at the end of the object.
    is_suspect: bool,
    /// Index of the current element of an array.
    index: u32,
    /// Number of names of the containers around it.
    first_name: usize,
    /// One bit per name that was seen, by its length and its ends.
    seen: u64,
}

struct Checker<'a> {
    /// Names of all open objects.
    names: SmallVec<[Cow<'a, str>; FEW_NAMES]>,
    open: SmallVec<[Container; 4]>,
}

impl<'a> Checker<'a> {
    #[inline]
    fn take(&mut self, token: Token<'a>) -> Result<(), JsonDefect> {
        match token.kind {
            TokenKind::Open => self.enter(token.opens_object()),
            TokenKind::Close => self.leave(),
            TokenKind::Comma => {
                if let Some(container) = self.open.last_mut() {
                    container.expects_name = container.is_object;
                    container.index = container.index.saturating_add(1);
                }
                Ok(())
            }
            TokenKind::Text => self.string(token.text),
            TokenKind::Number if token.text.len() > 9 => {
                check_number(token.text).map_err(|why| self.defect(why.to_owned()))
            }
            TokenKind::Number | TokenKind::Word | TokenKind::Colon => Ok(()),
        }
    }

    fn enter(&mut self, is_object: bool) -> Result<(), JsonDefect> {
        if self.open.len() >= MAX_LEVELS {
            return Err(self.defect(format!("it is nested more than {MAX_LEVELS} levels deep")));
        }
        self.open.push(Container {
            is_object,
            expects_name: is_object,
            is_suspect: false,
            index: 0,
            first_name: self.names.len(),
            seen: 0,
        });
        Ok(())
    }

    fn leave(&mut self) -> Result<(), JsonDefect> {
        let Some(container) = self.open.last() else { return Ok(()) };
        let first = container.first_name;
        if container.is_suspect {
            let mut names: Vec<&str> = self.names[first..].iter().map(|name| &**name).collect();
            names.sort_unstable();
            if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
                return Err(self.doubled(pair[0]));
            }
        }
        self.names.truncate(first);
        self.open.pop();
        Ok(())
    }

    fn string(&mut self, quoted: &'a str) -> Result<(), JsonDefect> {
        let decoded = decoded(quoted).map_err(|why| self.defect(why.to_owned()))?;
        match self.open.last_mut() {
            Some(object) if object.expects_name => {
                object.expects_name = false;
                self.name(decoded)
            }
            _ => Ok(()),
        }
    }

    fn name(&mut self, name: Cow<'a, str>) -> Result<(), JsonDefect> {
        let Some(object) = self.open.last_mut() else { return Ok(()) };
        let bit = bit_of(name.as_bytes());
        if object.seen & bit != 0 {
            let others = &self.names[object.first_name..];
            if others.len() > FEW_NAMES {
                object.is_suspect = true;
            } else if others.contains(&name) {
                return Err(self.doubled(&name));
            }
        }
        object.seen |= bit;
        self.names.push(name);
        Ok(())
    }

    fn doubled(&self, name: &str) -> JsonDefect {
        let mut pointer = self.path(self.open.len().saturating_sub(1));
        push_segment(&mut pointer, name);
        let reason = format!("the name `{}` occurs twice in an object", clip_to(name, MAX_POINTER_CHARS));
        JsonDefect { pointer: clip_to(&pointer, MAX_POINTER_CHARS), reason }
    }

    fn defect(&self, reason: String) -> JsonDefect {
        JsonDefect { pointer: clip_to(&self.path(self.open.len()), MAX_POINTER_CHARS), reason }
    }

    /// Pointer to the current value of the innermost of the outer `levels` containers.
    fn path(&self, levels: usize) -> String {
        let mut pointer = String::new();
        for (level, container) in self.open.iter().enumerate().take(levels) {
            if pointer.len() > 4 * MAX_POINTER_CHARS {
                break;
            }
            let end = self.open.get(level + 1).map_or(self.names.len(), |inner| inner.first_name);
            if !container.is_object {
                push_segment(&mut pointer, itoa::Buffer::new().format(container.index));
            } else if !container.expects_name
                && let Some(name) = self.names[container.first_name..end].last()
            {
                push_segment(&mut pointer, name);
            }
        }
        pointer
    }
}

/// Bit of a name. Different names may share one.
fn bit_of(name: &[u8]) -> u64 {
    let end = |byte: Option<&u8>, weight: u8| byte.map_or(0, |byte| byte.wrapping_mul(weight));
    let mixed = end(name.first(), 31) ^ end(name.last(), 7) ^ (name.len() as u8).wrapping_mul(13);
    1 << (mixed & 63)
}

/// Appends a name or an index to a JSON pointer.
pub(super) fn push_segment(pointer: &mut String, segment: &str) {
    pointer.push('/');
    for c in segment.chars() {
        match c {
            '~' => pointer.push_str("~0"),
            '/' => pointer.push_str("~1"),
            c => pointer.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> (String, String) {
        let defect = check(text).unwrap_err();
        (defect.pointer, defect.reason)
    }

    #[test]
    fn doubled_name_is_found_with_its_pointer() {
        for (text, pointer) in [
            (r#"{"a":1,"a":1}"#, "/a"),
            (r#"{"a":1,"\u0061":2}"#, "/a"),
            (r#"{"b":[0,{"x":{},"c/d":{"~":1,"y":[],"~":2}}]}"#, "/b/1/c~1d/~0"),
            (r#"[[],[{"a":{"a":[{"a":1}]}},{"":1,"":2}]]"#, "/1/1/"),
        ] {
            let (at, reason) = found(text);
            assert_eq!(at, pointer, "{text}");
            assert!(reason.contains("occurs twice"), "{reason}");
        }
        let many: Vec<String> = (0..5_000).map(|n| format!("\"n{n}\":{n}")).collect();
        assert_eq!(check(&format!("{{{}}}", many.join(","))), Ok(()));
        assert_eq!(found(&format!("[{{{},\"n17\":0}}]", many.join(","))).0, "/0/n17");
        assert_eq!(check(r#"{"a":{"a":[{"a":1},{"a":1}]},"b":"a","c":"a"}"#), Ok(()));
    }

    #[test]
    fn half_a_surrogate_pair_is_found_with_its_pointer() {
        assert_eq!(found(r#"{"a":[1,"\ud800"]}"#).0, "/a/1");
        assert_eq!(found(r#""\udc00x""#).0, "");
        assert_eq!(found(r#"{"b":{"x\ud800":1}}"#).0, "/b");
        assert_eq!(check(r#"{"a":"\ud83d\ude00","b":"\\ud800","c":"\u0000"}"#), Ok(()));
    }

    #[test]
    fn exponent_out_of_range_is_found_with_its_pointer() {
        assert_eq!(found(r#"{"a":{"b":2},"n":[1e1000000000]}"#), ("/n/0".to_owned(), EXPONENT.to_owned()));
        assert_eq!(check("[1e400,-0,1e-999999999]"), Ok(()));
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert_eq!(check(&nested(MAX_LEVELS)), Ok(()));
        assert!(found(&nested(MAX_LEVELS + 1)).1.contains("more than 10000 levels"));
    }
}
