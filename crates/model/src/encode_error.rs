//! Failed encoding of events and records.

/// Reason why a value cannot be encoded.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    #[error("the value cannot be encoded as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the record cannot be encoded: {0}")]
    Binary(#[from] postcard::Error),
}
