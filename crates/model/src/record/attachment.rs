//! Attachments: small values stored with a task, such as a report, an image or a diagnosis.

use data_encoding::BASE64;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::task::id::{clip, is_path_step};

/// Maximum size of one attachment, in bytes.
pub const MAX_BYTES: usize = 64 << 10;
/// Maximum number of attachments of one task.
pub const MAX_COUNT: usize = 16;
/// Maximum length of a name or media type, in characters.
pub const MAX_NAME_CHARS: usize = 128;
/// Default media type.
pub const BYTES: &str = "application/octet-stream";

/// Attachment with its data, as carried by events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Attachment {
    /// 1 to 128 characters `A-Z a-z 0-9 . _ ~ @ -`.
    pub name: String,
    /// Media type.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub media: String,
    /// Data, in base64.
    #[serde(default, with = "base64", skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "String")]
    pub data: Vec<u8>,
}

/// Attachment as listed in a task's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachmentEntry {
    pub name: String,
    pub media: String,
    pub bytes: u32,
    /// Time of attaching by the writer's clock, epoch milliseconds.
    pub at_ms: i64,
}

impl Attachment {
    /// Creates a valid attachment; the error describes the invalid field.
    pub fn new(name: impl Into<String>, media: impl Into<String>, data: impl Into<Vec<u8>>) -> Result<Self, String> {
        let attachment = Self { name: name.into(), media: media.into(), data: data.into() };
        attachment.check().map(|()| attachment)
    }

    pub fn check(&self) -> Result<(), String> {
        let Self { name, media, data } = self;
        check_name(name)?;
        let plain = media.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
        if !plain || media.len() > MAX_NAME_CHARS || !media.contains('/') {
            return Err(format!("`{}` is not a media type, such as text/plain", clip(media)));
        }
        if data.len() > MAX_BYTES {
            return Err(format!("the attachment has {} bytes: at most {MAX_BYTES} are allowed", data.len()));
        }
        Ok(())
    }
}

pub fn check_name(name: &str) -> Result<(), String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._~@-".contains(&byte);
    if (1..=MAX_NAME_CHARS).contains(&name.len()) && name.bytes().all(allowed) && !is_path_step(name) {
        return Ok(());
    }
    let form = format!("1 to {MAX_NAME_CHARS} characters of A-Z a-z 0-9 . _ ~ @ -");
    Err(format!("`{}` is not a name: {form}, and not `.` or `..`", clip(name)))
}

mod base64 {
    use super::*;

    pub(super) fn serialize<S: Serializer>(data: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64.encode(data))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(from)?;
        BASE64.decode(text.as_bytes()).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_attachments_are_refused_with_the_reason() {
        let refusal = |name: &str, media: &str, bytes: usize| Attachment::new(name, media, vec![0; bytes]).unwrap_err();
        assert!(Attachment::new("report-1.csv", "text/csv; charset=utf-8", vec![0; MAX_BYTES]).is_ok());
        assert!(refusal("", BYTES, 1).contains("is not a name"));
        assert!(refusal("..", BYTES, 1).contains("not `.` or `..`"));
        assert!(refusal("a/b", BYTES, 1).contains("`a/b` is not a name"));
        assert!(refusal("a", "text", 1).contains("is not a media type"));
        assert!(refusal("a", "text/x\n", 1).contains("is not a media type"));
        assert_eq!(refusal("a", BYTES, MAX_BYTES + 1), "the attachment has 65537 bytes: at most 65536 are allowed");
    }

    #[test]
    fn data_is_encoded_as_base64() {
        let attachment = Attachment::new("a", BYTES, vec![0, 255, 7]).unwrap();
        let text = serde_json::to_string(&attachment).unwrap();
        assert!(text.contains(r#""data":"AP8H""#), "{text}");
        assert_eq!(serde_json::from_str::<Attachment>(&text).unwrap(), attachment);
        assert!(serde_json::from_str::<Attachment>(r#"{"name":"a","data":"?"}"#).is_err());
    }
}
