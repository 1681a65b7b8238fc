//! Task ids: paths such as `order-42:fetch:3`, from which parent, root and depth can be read without a lookup.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Maximum length of an id, in bytes.
pub const MAX_ID_BYTES: usize = 512;
/// Maximum depth of a tree, in levels.
pub const MAX_LEVELS: usize = 64;
/// Maximum length of a segment, in characters.
pub const MAX_SEGMENT_CHARS: usize = 128;
/// Maximum length of a type name, in characters.
pub const MAX_TYPE_CHARS: usize = 64;

/// Valid task id. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(Arc<str>);

/// Reason why a text is not a task id. The message names the text and the allowed form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// No text.
    #[error("the id is empty: give 1 to {MAX_SEGMENT_CHARS} characters of A-Z a-z 0-9 . _ ~ @ -")]
    Empty,
    /// More bytes than allowed; their number.
    #[error("the id has {0} bytes: at most {MAX_ID_BYTES} are allowed")]
    TooLong(usize),
    /// More levels than allowed; their number.
    #[error("the id has {0} levels: at most {MAX_LEVELS} are allowed")]
    TooDeep(usize),
    /// Empty or too long segment, and its length in characters.
    #[error("segment `{0}` of the id has {1} characters: 1 to {MAX_SEGMENT_CHARS} are allowed")]
    SegmentLength(String, usize),
    /// Character that is not allowed, and the id.
    #[error("the id `{0}` has the character `{1}`: allowed are A-Z a-z 0-9 . _ ~ @ -, and `:` between segments")]
    Character(String, char),
    /// Segment that URLs would drop.
    #[error("`{0}` cannot be an id or a segment of one: URLs drop it; choose another name")]
    PathStep(String),
    /// Path given without its parent.
    #[error(
        "the id `{id}` is a path but no parent is named: name `{parent}` as its parent, or write the id without `:`"
    )]
    PathWithoutParent {
        /// Given id.
        id: String,
        /// Expected parent.
        parent: String,
    },
    /// Path outside the given parent.
    #[error(
        "the id `{id}` does not lie under its parent `{parent}`: it must be `{parent}:<segment>`, or a single segment"
    )]
    NotUnderParent {
        /// Given id.
        id: String,
        /// Expected parent.
        parent: String,
    },
}

impl TaskId {
    /// Parses a whole path.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        check(text)?;
        Ok(Self(text.into()))
    }

    /// Resolves the id of a record from outside: without a parent it is a root; with a parent it is the child's
    /// segment or the child's whole path. A path without its parent is refused, because ids such as `urn:uuid:…` must
    /// not create a tree.
    pub fn resolve(id: &str, parent: Option<&str>) -> Result<Self, IdError> {
        let Some(parent) = parent else {
            return match id.rsplit_once(':') {
                Some((prefix, _)) => Err(IdError::PathWithoutParent { id: clip(id), parent: clip(prefix) }),
                None => Self::parse(id),
            };
        };
        let parent = Self::parse(parent)?;
        match id.rsplit_once(':') {
            None => parent.child(id),
            Some((prefix, _)) if prefix == parent.as_str() => Self::parse(id),
            Some(_) => Err(IdError::NotUnderParent { id: clip(id), parent: parent.to_string() }),
        }
    }

    /// Id of a record without an id header: the same on every delivery of that record.
    pub fn from_position(task_type: &str, partition: i32, offset: i64, timestamp_ms: i64) -> String {
        format!("{task_type}-{partition}-{offset}-{}", base36(timestamp_ms.max(0) as u64))
    }

    /// Placeholder id of events that concern no task.
    pub fn of_tracker() -> Self {
        Self("kafleet".into())
    }

    /// Child of this task with the given segment.
    pub fn child(&self, segment: &str) -> Result<Self, IdError> {
        if segment.contains(':') {
            return Err(IdError::Character(clip(segment), ':'));
        }
        Self::parse(&format!("{}:{segment}", self.0))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Path of the parent; `None` for a root.
    pub fn parent(&self) -> Option<&str> {
        self.0.rsplit_once(':').map(|(parent, _)| parent)
    }

    /// Returns the id of the parent; `None` for a root.
    pub fn parent_id(&self) -> Option<TaskId> {
        self.parent().map(|parent| Self(parent.into()))
    }

    /// First segment: the root of the tree.
    pub fn root(&self) -> &str {
        root_of(&self.0)
    }

    /// Returns the last segment.
    pub fn segment(&self) -> &str {
        self.0.rsplit_once(':').map_or(&self.0, |(_, segment)| segment)
    }

    /// Returns whether the id has one segment.
    pub fn is_root(&self) -> bool {
        !self.0.contains(':')
    }

    /// Depth in the tree; 1 for a root.
    pub fn depth(&self) -> usize {
        self.0.bytes().filter(|&byte| byte == b':').count() + 1
    }

    /// Paths of all ancestors, nearest first.
    pub fn ancestors(&self) -> impl Iterator<Item = &str> {
        std::iter::successors(self.parent(), |path| path.rsplit_once(':').map(|(parent, _)| parent))
    }

    /// Returns true for the task `top` itself and its descendants.
    pub fn is_within(&self, top: &str) -> bool {
        self.0.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
    }
}

/// First segment of a path.
pub fn root_of(path: &str) -> &str {
    path.split_once(':').map_or(path, |(root, _)| root)
}

/// Prefix of the type names reserved for kafleet.
pub const RESERVED_TYPES: &str = "kafleet-";
/// Type of the external tasks that are bulk actions. Only the API itself creates them and reports on them.
pub const BULK_TYPE: &str = "kafleet-bulk";

/// Checks the name of a type registered or configured by a user: a valid type name that is not reserved.
pub fn check_own_type(name: &str) -> Result<(), String> {
    check_type(name)?;
    if name.starts_with(RESERVED_TYPES) {
        return Err(format!(
            "`{name}` is reserved: task types whose names begin with `{RESERVED_TYPES}` belong to kafleet"
        ));
    }
    Ok(())
}

/// Returns whether URLs drop a path segment of this name, so that nothing named so can be reached.
pub fn is_path_step(name: &str) -> bool {
    matches!(name, "." | "..")
}

/// Checks a type name: `[a-z0-9-]{1,64}`.
pub fn check_type(name: &str) -> Result<(), String> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name.is_empty() || name.len() > MAX_TYPE_CHARS || !name.bytes().all(allowed) {
        return Err(format!("`{}` is not a type name: 1 to {MAX_TYPE_CHARS} characters of a-z 0-9 -", clip(name)));
    }
    Ok(())
}

fn check(text: &str) -> Result<(), IdError> {
    if text.is_empty() {
        return Err(IdError::Empty);
    }
    if text.len() > MAX_ID_BYTES {
        return Err(IdError::TooLong(text.len()));
    }
    let mut levels = 0;
    for segment in text.split(':') {
        levels += 1;
        if let Some(bad) = segment.chars().find(|&c| !is_id_char(c)) {
            return Err(IdError::Character(clip(text), bad));
        }
        if segment.is_empty() || segment.len() > MAX_SEGMENT_CHARS {
            return Err(IdError::SegmentLength(clip(segment), segment.len()));
        }
        if is_path_step(segment) {
            return Err(IdError::PathStep(segment.to_owned()));
        }
    }
    if levels > MAX_LEVELS {
        return Err(IdError::TooDeep(levels));
    }
    Ok(())
}

fn is_id_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '~' | '@' | '-')
}

/// Cuts a text of any length to 80 characters for a message.
pub fn clip(text: &str) -> String {
    clip_to(text, 80)
}

/// Cuts a text to the given number of characters and marks the cut with an ellipsis.
pub fn clip_to(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn base36(mut number: u64) -> String {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut digits = Vec::new();
    loop {
        digits.push(DIGITS[(number % 36) as usize] as char);
        number /= 36;
        if number == 0 {
            return digits.into_iter().rev().collect();
        }
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl Borrow<str> for TaskId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for TaskId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        Self::parse(text)
    }
}

impl Serialize for TaskId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for TaskId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

impl schemars::JsonSchema for TaskId {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "TaskId".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "A path of segments joined by `:`; at most 64 levels.",
            "maxLength": MAX_ID_BYTES,
            "pattern": "^[A-Za-z0-9._~@-]{1,128}(:[A-Za-z0-9._~@-]{1,128})*$",
            "not": {"pattern": "(^|:)[.]{1,2}(:|$)"},
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_accepted_or_refused_with_the_reason() {
        for good in ["a", "order-42", "order-42:fetch:3", "A.b_c~d@e-f", "...", ".a", "a..b:a.", &"x".repeat(128)] {
            assert_eq!(TaskId::parse(good).map(|id| id.to_string()), Ok(good.to_owned()));
        }
        let deep = vec!["a"; 65].join(":");
        let long = vec!["x".repeat(120); 5].join(":");
        for (bad, reason) in [
            ("", "empty"),
            ("a::b", "segment `` of the id"),
            (":a", "segment ``"),
            ("a b", "character ` `"),
            ("ä", "character `ä`"),
            (&"x".repeat(129), "129 characters"),
            (".", "URLs drop it"),
            ("..", "`..` cannot be an id"),
            ("a:.", "URLs drop it"),
            ("..:a", "URLs drop it"),
            (&deep, "65 levels"),
            (&long, "604 bytes"),
        ] {
            let error = TaskId::parse(bad).unwrap_err().to_string();
            assert!(error.contains(reason), "{bad:?} gave {error:?}");
        }
    }

    #[test]
    fn path_from_outside_requires_its_parent() {
        let resolve = |id, parent| TaskId::resolve(id, parent).map(|id| id.to_string());
        assert_eq!(resolve("a", None), Ok("a".into()));
        assert_eq!(resolve("b", Some("a")), Ok("a:b".into()));
        assert_eq!(resolve("a:b", Some("a")), Ok("a:b".into()));
        assert!(resolve("urn:uuid:1", None).unwrap_err().to_string().contains("name `urn:uuid` as its parent"));
        assert!(resolve("x:b", Some("a")).unwrap_err().to_string().contains("`a:<segment>`"));
        assert!(resolve("a:b:c", Some("a")).is_err());
    }

    #[test]
    fn parts_are_read_from_the_path() {
        let id = TaskId::parse("r:a:b").unwrap();
        assert_eq!((id.parent(), id.root(), id.segment(), id.depth()), (Some("r:a"), "r", "b", 3));
        assert_eq!(id.ancestors().collect::<Vec<_>>(), ["r:a", "r"]);
        assert!(id.is_within("r") && id.is_within("r:a") && id.is_within("r:a:b"));
        assert!(!id.is_within("r:a:b:c") && !id.is_within("r:") && !id.is_within("r:a:bb"));
        assert!(!TaskId::parse("rr").unwrap().is_within("r"));
    }

    #[test]
    fn record_without_an_id_gets_the_same_id_on_every_delivery() {
        assert_eq!(TaskId::from_position("echo", 3, 41, 1_700_000_000_000), "echo-3-41-loyw3v28");
        assert!(TaskId::parse(&TaskId::from_position(&"t".repeat(64), i32::MAX, i64::MAX, i64::MAX)).is_ok());
    }
}
