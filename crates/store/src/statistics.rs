//! Decoding of stored statistics, common to all stores.

use std::sync::Arc;

use kafleet_model::projection::audit::AuditEntry;
use kafleet_model::statistics::Overview;
use kafleet_model::statistics::aggregate::Aggregate;
use kafleet_model::statistics::errors::ErrorSummary;

use super::StoreError;

fn unreadable(partition: u32, subject: &str) -> StoreError {
    StoreError::Invalid(format!(
        "{subject} of partition {partition} was written by another version and cannot be decoded\n\n\
         hint: empty the store; a tracker folds the partition again from the log"
    ))
}

pub(super) fn overview(partition: u32, bytes: &[u8]) -> Result<Overview, StoreError> {
    Overview::decode(bytes).ok_or_else(|| unreadable(partition, "the list of statistics"))
}

pub(super) fn aggregate(partition: u32, series: &Arc<str>, bytes: &[u8]) -> Result<Aggregate, StoreError> {
    Aggregate::decode(bytes).ok_or_else(|| unreadable(partition, &format!("an aggregate of the statistics `{series}`")))
}

pub(super) fn errors(partition: u32, task_type: &str, bytes: &[u8]) -> Result<ErrorSummary, StoreError> {
    ErrorSummary::decode(bytes).ok_or_else(|| unreadable(partition, &format!("the list of errors of `{task_type}`")))
}

pub(super) fn request(partition: u32, bytes: &[u8]) -> Result<AuditEntry, StoreError> {
    AuditEntry::decode(bytes).ok_or_else(|| unreadable(partition, "the list of requests"))
}
