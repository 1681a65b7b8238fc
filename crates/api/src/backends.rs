//! Calls to the store and Kafka: each has a deadline, and each failure becomes an [`ApiError`].

use std::future::Future;
use std::time::Duration;

use kafleet_store::StoreError;

use super::http::problem::{ApiError, Code};

/// Deadline of a store call.
pub(super) const STORE_DEADLINE: Duration = Duration::from_secs(5);
/// Deadline of a Kafka call other than a publish.
pub(super) const KAFKA_DEADLINE: Duration = Duration::from_secs(5);

/// Applies the deadline to a store call.
pub(super) async fn stored<T>(call: impl Future<Output = Result<T, StoreError>>) -> Result<T, ApiError> {
    let late = |_| StoreError::Unavailable(format!("no answer within {} s", STORE_DEADLINE.as_secs()));
    Ok(tokio::time::timeout(STORE_DEADLINE, call).await.map_err(late)??)
}

/// Runs work that must not be cancelled halfway when the client disconnects, such as a record and its announcement.
pub(super) async fn detached<T: Send + 'static>(
    work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
) -> Result<T, ApiError> {
    kafleet_runtime::spawn(work).await.unwrap_or_else(|error| {
        tracing::error!(%error, "request task failed");
        Err(ApiError::internal())
    })
}

/// Returns a retryable error: the projection has not reached the offset yet.
pub(super) fn not_visible_yet(partition: u32, projected: i64, needed: i64) -> ApiError {
    let lag = needed.saturating_sub(projected).max(1);
    ApiError::new(
        Code::NotVisibleYet,
        format!(
            "events partition {partition} is projected up to offset {projected}; the request needs offset {needed} \
             ({lag} behind)"
        ),
    )
    .hint("retry; if it persists, check that a tracker is running")
}
