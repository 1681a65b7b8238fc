//! Errors of the broker.

use kafleet_model::encode_error::EncodeError;

/// An error of a broker call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokerError {
    /// The local queue or the in-memory log is full. Nothing was sent; try again later.
    #[error("the queue or log is full: {0}")]
    Full(String),
    /// The record exceeds the limit of the topic or the client. Sending it again will fail again.
    #[error("the record is too large: {0}")]
    TooLarge(String),
    #[error("unknown topic or partition: {0}")]
    Unknown(String),
    /// Another producer or group member has taken over.
    #[error("fenced: {0}")]
    Fenced(String),
    /// The commit was made during a rebalance, or from outside a group that has members.
    #[error("refused: {0}")]
    Refused(String),
    /// The operation may or may not have taken effect.
    #[error("outcome unknown: {0}")]
    InDoubt(String),
    /// The record was discarded before it was sent, because its client was closed or failed.
    #[error("discarded before it was sent")]
    Purged,
    /// Timeout, or the broker cannot be reached. Worth a retry.
    #[error("{0}")]
    Unavailable(String),
    /// The client has failed for good and must be replaced.
    #[error("fatal: {0}")]
    Fatal(String),
    #[error("not allowed: {0}")]
    Denied(String),
    /// The request or the record itself is invalid. Repeating it will fail again.
    #[error("{0}")]
    Invalid(String),
    /// The record was rejected for a reason outside the record itself, such as the topic's configuration. A retry
    /// succeeds only after that has changed.
    #[error("refused: {0}")]
    Unexpected(String),
}

impl From<EncodeError> for BrokerError {
    fn from(error: EncodeError) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl BrokerError {
    /// True for errors worth a retry with the same client.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Full(_) | Self::Unavailable(_) | Self::InDoubt(_) | Self::Refused(_) | Self::Purged)
    }

    /// True for errors worth sending the record again, with the same client or its replacement.
    pub fn is_retryable(&self) -> bool {
        self.is_transient() || matches!(self, Self::Fatal(_))
    }
}
