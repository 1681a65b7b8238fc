//! Faults of a JSON text that every JSON parser accepts, but not every reader understands in the same way.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::number::{MAX_EXPONENT_DIGITS, check_number};
use super::scan::{decoded, end_of_scalar, end_of_string, unescaped};
use crate::task::id::clip_to;

/// Maximum nesting of a value: enough for data, and within the stack of readers that recurse.
pub(crate) const MAX_LEVELS: usize = 10_000;
/// Names of an object that are compared one by one; those of a larger object are sorted.
const MAX_UNSORTED_NAMES: usize = 16;
/// Maximum characters of the pointer of a fault.
const MAX_POINTER_CHARS: usize = 200;
/// Maximum characters of a quoted name.
const MAX_NAME_CHARS: usize = 60;

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

/// Finds a fault of a valid text, in linear time except for sorting the names of large objects. This is on the path of
/// every record.
pub(super) fn check(text: &str) -> Result<(), JsonDefect> {
    let bytes = text.as_bytes();
    let (names, outer, current) = (SmallVec::new(), SmallVec::new(), Container::new(false, 0));
    let mut checker = Checker { text, names, outer, current };
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let end = match byte {
            b'"' => {
                let (end, has_escapes) = end_of_string(bytes, at + 1);
                checker.string(at, end, has_escapes)?;
                end
            }
            b'-' | b'0'..=b'9' => {
                let end = end_of_scalar(bytes, at + 1);
                checker.number(at, end)?;
                end
            }
            b',' => {
                checker.separate();
                at + 1
            }
            b'{' | b'[' => {
                checker.enter(*byte == b'{')?;
                at + 1
            }
            b'}' | b']' => {
                checker.leave()?;
                at + 1
            }
            // White space, a colon, or a letter of `true`, `false` or `null`.
            _ => at + 1,
        };
        at = end;
    }
    Ok(())
}

/// Array or object that is not closed yet, or the whole text.
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
    /// Set with a bit for each name that was seen, by its length and its ends.
    seen: u64,
}

impl Container {
    fn new(is_object: bool, first_name: usize) -> Self {
        Self { is_object, expects_name: is_object, is_suspect: false, index: 0, first_name, seen: 0 }
    }
}

struct Checker<'a> {
    text: &'a str,
    /// Names of all open objects, as written.
    names: SmallVec<[&'a str; MAX_UNSORTED_NAMES]>,
    /// The whole text, and the open containers around the current one.
    outer: SmallVec<[Container; 4]>,
    current: Container,
}

impl<'a> Checker<'a> {
    fn separate(&mut self) {
        self.current.expects_name = self.current.is_object;
        self.current.index = self.current.index.saturating_add(1);
    }

    fn number(&self, start: usize, end: usize) -> Result<(), JsonDefect> {
        if end - start <= MAX_EXPONENT_DIGITS {
            return Ok(());
        }
        let number = self.text.get(start..end).unwrap_or_default();
        check_number(number).map_err(|error| self.defect(error.to_owned()))
    }

    fn enter(&mut self, is_object: bool) -> Result<(), JsonDefect> {
        if self.outer.len() >= MAX_LEVELS {
            return Err(self.defect(format!("it is nested more than {MAX_LEVELS} levels deep")));
        }
        let inner = Container::new(is_object, self.names.len());
        self.outer.push(std::mem::replace(&mut self.current, inner));
        Ok(())
    }

    fn leave(&mut self) -> Result<(), JsonDefect> {
        let first = self.current.first_name;
        if self.current.is_suspect {
            let names = self.names[first..].iter();
            let mut names: Vec<Cow<'_, str>> = names.map(|name| unescaped(name).unwrap_or_default()).collect();
            names.sort_unstable();
            if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
                return Err(self.doubled(&pair[0]));
            }
        }
        self.names.truncate(first);
        if let Some(outer) = self.outer.pop() {
            self.current = outer;
        }
        Ok(())
    }

    fn string(&mut self, start: usize, end: usize, has_escapes: bool) -> Result<(), JsonDefect> {
        let text = self.text;
        if has_escapes && decoded(text.get(start..end).unwrap_or_default()).is_err() {
            return Err(self.defect(SURROGATE.to_owned()));
        }
        if !self.current.expects_name {
            return Ok(());
        }
        self.current.expects_name = false;
        self.current.is_suspect |= has_escapes;
        self.name(text.get(start + 1..end - 1).unwrap_or_default())
    }

    fn name(&mut self, name: &'a str) -> Result<(), JsonDefect> {
        let bit = bit_of(name.as_bytes());
        if self.current.seen & bit != 0 {
            let others = &self.names[self.current.first_name..];
            if others.len() > MAX_UNSORTED_NAMES {
                self.current.is_suspect = true;
            } else if others.contains(&name) {
                return Err(self.doubled(&unescaped(name).unwrap_or_default()));
            }
        }
        self.current.seen |= bit;
        self.names.push(name);
        Ok(())
    }

    fn doubled(&self, name: &str) -> JsonDefect {
        let mut pointer = self.path(self.outer.iter());
        push_segment(&mut pointer, name);
        let reason = format!("the name `{}` occurs twice in an object", clip_to(name, MAX_NAME_CHARS));
        JsonDefect { pointer: clip_to(&pointer, MAX_POINTER_CHARS), reason }
    }

    fn defect(&self, reason: String) -> JsonDefect {
        let pointer = self.path(self.outer.iter().chain([&self.current]));
        JsonDefect { pointer: clip_to(&pointer, MAX_POINTER_CHARS), reason }
    }

    /// Pointer to the current value of the last of these containers.
    fn path<'b>(&'b self, containers: impl Iterator<Item = &'b Container>) -> String {
        let mut pointer = String::new();
        let inner = self.outer.iter().skip(1).chain([&self.current]).map(|inner| inner.first_name);
        let ends = inner.chain([self.names.len()]);
        // The first one is the whole text.
        for (container, end) in containers.zip(ends).skip(1) {
            if pointer.len() > 4 * MAX_POINTER_CHARS {
                break;
            }
            if !container.is_object {
                push_segment(&mut pointer, itoa::Buffer::new().format(container.index));
            } else if !container.expects_name
                && let Some(name) = self.names[container.first_name..end].last()
            {
                push_segment(&mut pointer, &unescaped(name).unwrap_or_default());
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

    fn defect_of(text: &str) -> (String, String) {
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
            let (at, reason) = defect_of(text);
            assert_eq!(at, pointer, "{text}");
            assert!(reason.contains("occurs twice"), "{reason}");
        }
        let many: Vec<String> = (0..5_000).map(|n| format!("\"n{n}\":{n}")).collect();
        assert_eq!(check(&format!("{{{}}}", many.join(","))), Ok(()));
        assert_eq!(defect_of(&format!("[{{{},\"n17\":0}}]", many.join(","))).0, "/0/n17");
        assert_eq!(check(r#"{"a":{"a":[{"a":1},{"a":1}]},"b":"a","c":"a"}"#), Ok(()));
    }

    #[test]
    fn half_a_surrogate_pair_is_found_with_its_pointer() {
        assert_eq!(defect_of(r#"{"a":[1,"\ud800"]}"#).0, "/a/1");
        assert_eq!(defect_of(r#""\udc00x""#).0, "");
        assert_eq!(defect_of(r#"{"b":{"x\ud800":1}}"#).0, "/b");
        assert_eq!(check(r#"{"a":"\ud83d\ude00","b":"\\ud800","c":"\u0000"}"#), Ok(()));
    }

    #[test]
    fn exponent_out_of_range_is_found_with_its_pointer() {
        assert_eq!(defect_of(r#"{"a":{"b":2},"n":[1e1000000000]}"#), ("/n/0".to_owned(), EXPONENT.to_owned()));
        assert_eq!(check("[1e400,-0,1e-999999999]"), Ok(()));
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert_eq!(check(&nested(MAX_LEVELS)), Ok(()));
        assert!(defect_of(&nested(MAX_LEVELS + 1)).1.contains("more than 10000 levels"));
    }
}
