//! Sizes with units: `128MiB`, `64KiB`, `4MB`, or whole bytes.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

const UNITS: [(&str, u64); 7] = [
    ("B", 1),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
];

impl Bytes {
    /// Parses a size such as `512MiB`, `2GB` or `1000`.
    ///
    /// # Errors
    /// A message for people with the allowed forms.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let factor = match unit.trim() {
            "" => Some(1),
            unit => UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor),
        };
        let bytes = number.parse::<u64>().ok().zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
        bytes.map(Self).ok_or_else(|| format!("`{text}` is not a size: write 128MiB, 64KiB, 4MB, or whole bytes"))
    }

    /// Size in whole MiB, rounded down, for messages.
    pub fn whole_mib(bytes: u64) -> Self {
        Self((bytes >> 20) << 20)
    }

    /// Number of bytes, at most the largest of the platform.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, factor) = UNITS[4..]
            .iter()
            .rev()
            .find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor))
            .unwrap_or(&UNITS[0]);
        write!(f, "{}{unit}", self.0 / factor)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a size such as 128MiB, 64KiB, 4MB, or whole bytes")]
        enum WrittenBytes {
            Number(u64),
            Text(String),
        }
        match WrittenBytes::deserialize(deserializer)? {
            WrittenBytes::Number(bytes) => Ok(Self(bytes)),
            WrittenBytes::Text(text) => Self::parse(&text).map_err(serde::de::Error::custom),
        }
    }
}

impl schemars::JsonSchema for Bytes {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Bytes".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A size: `128MiB`, `64KiB`, `4MB`, or whole bytes.",
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": "^[0-9]+ *(B|KB|MB|GB|KiB|MiB|GiB)?$"},
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_forms_are_parsed_and_round_trip() {
        for (text, bytes) in
            [("0", 0), ("64KiB", 65_536), ("128MiB", 128 << 20), ("4MB", 4_000_000), ("1 GiB", 1 << 30)]
        {
            assert_eq!(Bytes::parse(text), Ok(Bytes(bytes)), "{text}");
            assert_eq!(Bytes::parse(&Bytes(bytes).to_string()), Ok(Bytes(bytes)), "round trip of {text}");
        }
        for bad in ["", "MiB", "-1", "1.5MiB", "1TiB", "99999999999999999999", "18446744073709551615KiB"] {
            assert!(Bytes::parse(bad).unwrap_err().contains("is not a size"), "{bad}");
        }
    }
}
