//! Reads the values of control records, whose version may be newer than this build.

use kafleet_model::json::short_reason;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::CONTROL_VERSION;

/// Reason why a control record is ignored.
#[derive(Debug, thiserror::Error)]
pub enum InvalidRecord {
    #[error("its key is not UTF-8")]
    KeyEncoding,
    /// Invalid name in the key.
    #[error("{0}")]
    Key(String),
    #[error("its key has no valid partition; expected a key such as `offsets/echo/3`")]
    NoPartition,
    #[error("its key has no request name after the schedule, or an invalid one")]
    NoRequest,
    #[error("{0}")]
    Json(String),
    #[error("it has version {0}, this build reads up to {CONTROL_VERSION}: upgrade this process")]
    Newer(u32),
    /// Invalid value of a field.
    #[error("{0}")]
    Value(String),
    #[error("the limit of {limit} {records} is reached")]
    TooMany { limit: usize, records: &'static str },
}

pub(super) fn read<T: DeserializeOwned>(value: &[u8]) -> Result<T, InvalidRecord> {
    #[derive(Deserialize)]
    struct RecordVersion {
        v: u32,
    }
    let decode_error = |error| InvalidRecord::Json(short_reason(&error));
    let RecordVersion { v } = serde_json::from_slice(value).map_err(decode_error)?;
    if v > CONTROL_VERSION {
        return Err(InvalidRecord::Newer(v));
    }
    serde_json::from_slice(value).map_err(decode_error)
}
