//! Numbers of tasks that failed by themselves, by type: the sizes of the groups of similar errors.

use std::collections::BTreeMap;

use kafleet_documents::OwnFailed;
use kafleet_store::ErrorLevel;

use super::failures::Groups;
use crate::http::problem::ApiError;
use crate::read::reads::Reads;

/// Counts the tasks of each type whose own state is failed or expired. Types without such tasks may be missing.
pub(crate) async fn own_failed(reads: &Reads) -> Result<BTreeMap<String, OwnFailed>, ApiError> {
    let merged = Groups::read(reads, None, ErrorLevel::Kind, 0).await?;
    let mut failed: BTreeMap<String, OwnFailed> = BTreeMap::new();
    for ((name, _), group) in &merged.groups {
        let of_type = failed.entry(name.to_string()).or_default();
        of_type.tasks += group.count;
        of_type.at_least = merged.cut_types.contains(name);
    }
    Ok(failed)
}
