//! Durations with units: `1500ms`, `30s`, `10m`, `2h`, `7d`, or whole milliseconds.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::time::MIN_SECONDS;

/// Duration in whole milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

impl Millis {
    /// Creates a duration from seconds.
    pub const fn secs(secs: u64) -> Self {
        Self(secs * 1_000)
    }

    /// Parses a duration such as `250ms`, `10s` or `2h`. A number without unit is one of milliseconds; one that may be
    /// a time is refused.
    ///
    /// # Errors
    /// A message for people with the allowed forms.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let factor = match unit.trim() {
            "" if number.parse::<u64>().is_ok_and(|ms| ms >= MIN_SECONDS) => {
                return Err(format!(
                    "`{number}` may be a time: write a duration of 18 days or more with its unit, such as 30d"
                ));
            }
            "" => Some(1),
            unit => UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor),
        };
        let millis = number.parse::<u64>().ok().zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
        millis.filter(|&ms| ms <= i64::MAX as u64).map(Self).ok_or_else(|| {
            format!(
                "`{}` is not a duration: write 1500ms, 30s, 10m, 2h, 7d, or whole milliseconds",
                crate::task::id::clip(text)
            )
        })
    }

    /// Parses an age: a duration with its unit, unlike times in epoch milliseconds.
    pub fn parse_age(text: &str) -> Option<Self> {
        let has_unit = text.trim_end().ends_with(|c: char| c.is_ascii_alphabetic());
        has_unit.then(|| Self::parse(text).ok()).flatten()
    }

    /// Duration in words, in the largest unit that divides it: `1 hour`, `90 minutes`.
    pub fn words(self) -> String {
        let (number, unit) = self.in_largest_unit();
        let name = match unit {
            "s" => "second",
            "m" => "minute",
            "h" => "hour",
            "d" => "day",
            _ => "millisecond",
        };
        format!("{number} {name}{}", if number == 1 { "" } else { "s" })
    }

    /// Number of the largest unit that divides the duration, and that unit.
    fn in_largest_unit(self) -> (u64, &'static str) {
        let divides = |(_, factor): &&(&str, u64)| self.0 >= *factor && self.0.is_multiple_of(*factor);
        let (unit, factor) = UNITS.iter().rev().find(divides).unwrap_or(&UNITS[0]);
        (self.0 / factor, unit)
    }

    /// Milliseconds as a signed number, at most its largest value.
    pub fn as_i64(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }
}

impl From<Millis> for Duration {
    fn from(millis: Millis) -> Duration {
        Duration::from_millis(millis.0)
    }
}

impl From<Duration> for Millis {
    fn from(duration: Duration) -> Millis {
        Millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Millis {
    /// Uses the largest unit that divides the duration, so that the text parses back to the same value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, unit) = self.in_largest_unit();
        write!(f, "{number}{unit}")
    }
}

/// Duration typed by a person, with its unit: a bare number is milliseconds in requests and records, but seconds in most
/// command-line tools.
impl std::str::FromStr for Millis {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim().parse::<u32>() {
            Ok(1..) => Err(format!("`{text}` has no unit: write, for example, `{text}s` or `{text}ms`")),
            _ => Self::parse(text),
        }
    }
}

impl Serialize for Millis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() { serializer.collect_str(self) } else { serializer.serialize_u64(self.0) }
    }
}

impl<'de> Deserialize<'de> for Millis {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return u64::deserialize(deserializer).map(Self);
        }
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a duration such as 1500ms, 30s, 10m, 2h, 7d, or whole milliseconds")]
        enum WrittenDuration {
            Number(u64),
            Text(String),
        }
        match WrittenDuration::deserialize(deserializer)? {
            WrittenDuration::Number(millis) => Self::parse(&millis.to_string()).map_err(serde::de::Error::custom),
            WrittenDuration::Text(text) => Self::parse(&text).map_err(serde::de::Error::custom),
        }
    }
}

impl schemars::JsonSchema for Millis {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A duration: `1500ms`, `30s`, `10m`, `2h`, `7d`, or whole milliseconds below 1577836800 (18 days).",
            "anyOf": [
                {"type": "integer", "minimum": 0, "exclusiveMaximum": MIN_SECONDS},
                {"type": "string", "pattern": "^[0-9]+ *(ms|s|m|h|d)?$"},
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_duration_needs_its_unit() {
        for (text, expected) in
            [("30s", Some(30_000)), ("0", Some(0)), ("250 ms", Some(250)), ("30", None), (" 1 ", None)]
        {
            assert_eq!(text.parse::<Millis>().ok(), expected.map(Millis), "{text}");
        }
        assert!("30".parse::<Millis>().unwrap_err().contains("`30s`"));
    }

    #[test]
    fn time_is_not_a_duration() {
        for text in ["1795853855000", "1795853855", "1577836800", "9223372036854775807"] {
            assert!(Millis::parse(text).unwrap_err().contains("may be a time"));
            for json in [text.to_owned(), format!("\"{text}\"")] {
                assert!(serde_json::from_str::<Millis>(&json).unwrap_err().to_string().contains("may be a time"));
            }
        }
        assert_eq!(Millis::parse("1577836799"), Ok(Millis(1_577_836_799)));
        assert_eq!(Millis::parse("1577836800ms"), Ok(Millis(1_577_836_800)));
    }

    #[test]
    fn text_forms_are_parsed_and_round_trip() {
        for (text, ms) in [
            ("0", 0),
            ("1500", 1500),
            ("1500ms", 1500),
            ("30s", 30_000),
            ("10m", 600_000),
            ("2h", 7_200_000),
            ("7d", 604_800_000),
        ] {
            assert_eq!(Millis::parse(text), Ok(Millis(ms)), "{text}");
            assert_eq!(Millis::parse(&Millis(ms).to_string()), Ok(Millis(ms)), "round trip of {text}");
        }
        for bad in ["", "s", "-1s", "1.5s", "3 weeks", "99999999999999999999", "9223372036854775807h", "1e3"] {
            assert!(Millis::parse(bad).unwrap_err().contains("is not a duration"), "{bad}");
        }
    }
}
