//! Small values that are kept with a task: a report, a picture, a diagnosis.

use data_encoding::BASE64;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::task::id::clip;

/// The largest one, in bytes.
pub const MAX_BYTES: usize = 64 << 10;
/// The most of one task.
pub const MAX_COUNT: usize = 16;
/// The longest name, and the longest media type, in characters.
pub const MAX_NAME_CHARS: usize = 128;
/// What one is that says nothing else.
pub const BYTES: &str = "application/octet-stream";

/// A value and its name, as an event carries it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Attachment {
    /// 1 to 128 characters `A-Z a-z 0-9 . _ ~ @ -`.
    pub name: String,
    /// Its media type.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub media: String,
    /// In base64.
    #[serde(default, with = "base64", skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "String")]
    pub data: Vec<u8>,
}

/// What a task's record says of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    pub name: String,
    pub media: String,
    pub bytes: u32,
    /// When it was put there, by the writer's clock.
    pub at_ms: i64,
}

impl Attachment {
    /// An error says what cannot be kept.
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
    if (1..=MAX_NAME_CHARS).contains(&name.len()) && name.bytes().all(allowed) {
        return Ok(());
    }
    Err(format!("`{}` is not a name: 1 to {MAX_NAME_CHARS} characters of A-Z a-z 0-9 . _ ~ @ -", clip(name)))
}

mod base64 {
    use super::*;

    pub fn serialize<S: Serializer>(data: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64.encode(data))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(from)?;
        BASE64.decode(text.as_bytes()).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_kept_is_told() {
        let told = |name: &str, media: &str, bytes: usize| Attachment::new(name, media, vec![0; bytes]).unwrap_err();
        assert!(Attachment::new("report-1.csv", "text/csv; charset=utf-8", vec![0; MAX_BYTES]).is_ok());
        assert!(told("", BYTES, 1).contains("is not a name"));
        assert!(told("a/b", BYTES, 1).contains("`a/b` is not a name"));
        assert!(told("a", "text", 1).contains("is not a media type"));
        assert!(told("a", "text/x\n", 1).contains("is not a media type"));
        assert_eq!(told("a", BYTES, MAX_BYTES + 1), "the attachment has 65537 bytes: at most 65536 are allowed");
    }

    #[test]
    fn bytes_travel_as_text() {
        let attachment = Attachment::new("a", BYTES, vec![0, 255, 7]).unwrap();
        let text = serde_json::to_string(&attachment).unwrap();
        assert!(text.contains(r#""data":"AP8H""#), "{text}");
        assert_eq!(serde_json::from_str::<Attachment>(&text).unwrap(), attachment);
        assert!(serde_json::from_str::<Attachment>(r#"{"name":"a","data":"?"}"#).is_err());
    }
}
