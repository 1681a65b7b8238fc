//! Ids of unique tasks: `<type>~<key>~~<suffix>`. What stands before `~~` is the tag, which alone chooses the events
//! partition of the tree, as a hash tag does in Redis Cluster. Must never change: ids are for ever.

use sha2::{Digest, Sha256};

use crate::task::id::{MAX_SEGMENT_CHARS, TaskId, root_of};

/// Separator between the tag of an id and the rest of its first segment.
pub const TAG_END: &str = "~~";
/// Length of a UUID as text: the suffix of ids that the publisher makes.
const UUID_CHARS: usize = 36;
/// Mark of a key that is written as a hash.
const HASHED: char = '@';
/// Length of the hash of a key, in characters: 120 bits.
const HASH_CHARS: usize = 24;

/// Tag of a path: what stands before the first `~~` of its first segment. `None` if there is nothing before or behind it.
pub fn tag_of(path: &str) -> Option<&str> {
    let (tag, suffix) = root_of(path).split_once(TAG_END)?;
    (!tag.is_empty() && !suffix.is_empty()).then_some(tag)
}

/// Part of a path that chooses the events partition: its tag, or its first segment.
pub fn partition_key_of(path: &str) -> &str {
    tag_of(path).unwrap_or_else(|| root_of(path))
}

/// Tag of the tasks of a type with a key: `<type>~<key>`. A key that is too long for an id, or has other characters, is
/// written as `@` and the first 120 bits of its SHA-256.
pub fn tag(task_type: &str, key: &str) -> String {
    let room = MAX_SEGMENT_CHARS.saturating_sub(task_type.len() + 1 + TAG_END.len() + UUID_CHARS);
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'@');
    if !key.is_empty() && key.len() <= room && !key.starts_with(HASHED) && key.bytes().all(allowed) {
        return format!("{task_type}~{key}");
    }
    let digest = Sha256::digest(key.as_bytes());
    let hash = data_encoding::BASE32_NOPAD.encode(&digest[..HASH_CHARS * 5 / 8]).to_ascii_lowercase();
    format!("{task_type}~{HASHED}{hash}")
}

/// Id of an ask: the tag and a suffix, as text that may be no valid id if the suffix is none.
pub fn ask_id(tag: &str, suffix: &str) -> String {
    format!("{tag}{TAG_END}{suffix}")
}

/// Returns true if a tag has the form of one of this type.
pub fn is_of_type(tag: &str, task_type: &str) -> bool {
    tag.strip_prefix(task_type).is_some_and(|rest| rest.starts_with('~'))
}

impl TaskId {
    /// Tag of the tree, if the id of its root has one.
    pub fn tag(&self) -> Option<&str> {
        tag_of(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_stands_before_the_first_double_tilde_of_the_root() {
        for (path, expected) in [
            ("refresh~customer-42~~0192", Some("refresh~customer-42")),
            ("refresh~customer-42~~0192:child", Some("refresh~customer-42")),
            ("a~~b~~c", Some("a")),
            ("a~~~b", Some("a")),
            ("~~b", None),
            ("a~~", None),
            ("a~b", None),
            ("a:b~~c", None),
        ] {
            assert_eq!(tag_of(path), expected, "{path}");
            assert_eq!(partition_key_of(path), expected.unwrap_or_else(|| root_of(path)), "{path}");
        }
    }

    #[test]
    fn every_key_has_a_valid_id() {
        let long_type = "t".repeat(64);
        let uuid = "0".repeat(UUID_CHARS);
        for task_type in ["refresh", &long_type] {
            for key in ["customer-42", "a b", "~", "x~~y", "@x", "ä", "", ".", &"k".repeat(512)] {
                let tag = tag(task_type, key);
                let id = TaskId::parse(&ask_id(&tag, &uuid)).unwrap();
                assert_eq!(id.tag(), Some(&*tag), "{task_type} {key}");
                assert!(is_of_type(&tag, task_type) && !is_of_type(&tag, "other"), "{tag}");
            }
        }
    }

    #[test]
    fn tags_never_change() {
        assert_eq!(tag("refresh", "customer-42"), "refresh~customer-42");
        assert_eq!(tag("refresh", "a b"), tag("refresh", "a b"));
        assert_eq!(tag("refresh", "a b").len(), "refresh~@".len() + HASH_CHARS);
        assert_ne!(tag("refresh", "a b"), tag("refresh", "a c"));
    }
}
