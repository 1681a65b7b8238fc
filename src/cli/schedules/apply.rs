//! `schedules apply`: makes the fleet's schedules match the configuration.

use std::collections::BTreeMap;

use clap::Args;
use kafleet_documents::ScheduleDocument;
use kafleet_model::json::RawJson;
use kafleet_model::schedule::Spec;
use serde_json::json;

use crate::cli::client::Client;
use crate::cli::exit::{Code, Failure, Outcome};
use crate::cli::globals::Globals;
use crate::cli::output::{Field, Output, Rows, eprint_line};
use crate::cli::setup::{SetupOptions, load_config};

#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// Delete schedules that were applied before and are no longer in the configuration
    #[arg(long)]
    pub prune: bool,
    /// Only show the changes
    #[arg(long)]
    pub dry_run: bool,
}

/// Sections of the configuration that this verb does not use.
const UNUSED: &[&str] = &["kafka", "redis", "api", "apps", "types", "ops", "callbacks", "email"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScheduleChange {
    Created,
    Changed,
    Unchanged,
    Deleted,
    /// No longer in the configuration, and kept because `--prune` is not given.
    Kept,
}

impl ScheduleChange {
    const fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
            Self::Deleted => "deleted",
            Self::Kept => "kept",
        }
    }
}

pub(super) async fn apply(args: &ApplyArgs, globals: &Globals, client: &Client, output: &Output) -> Outcome {
    let loaded = load_config(globals, &SetupOptions { unused: UNUSED, ..SetupOptions::default() })?;
    if loaded.path.is_none() {
        // It would be taken for one without schedules, and `--prune` would delete all of them.
        return Err(Failure::usage("there is no configuration file with schedules to apply")
            .hint("name it with --config, or run this in its folder"));
    }
    let configured = loaded.config.schedules;
    let changes = changes(&configured, &super::all(client).await?.schedules, args.prune);
    for (id, change) in changes.iter().filter(|_| !args.dry_run) {
        match (change, configured.get(id)) {
            (ScheduleChange::Created | ScheduleChange::Changed, Some(spec)) => {
                drop(super::put(client, id, spec, true).await?);
            }
            (ScheduleChange::Deleted, _) => drop(super::remove(client, id).await?),
            _ => {}
        }
    }
    show(output, &changes)?;
    if changes.values().any(|change| *change == ScheduleChange::Kept) {
        eprint_line("schedules marked `kept` are not in the configuration but still fire; `--prune` deletes them");
    }
    Ok(Code::Ok)
}

/// Returns the change of each schedule. Schedules created by other means are ignored, unless the configuration has one
/// with the same id.
fn changes(
    configured: &BTreeMap<String, Spec>,
    existing: &[ScheduleDocument],
    prune: bool,
) -> BTreeMap<String, ScheduleChange> {
    let existing: BTreeMap<&str, &ScheduleDocument> =
        existing.iter().map(|schedule| (schedule.id.as_str(), schedule)).collect();
    let removed = existing.values().filter(|schedule| schedule.applied && !configured.contains_key(&schedule.id));
    let removed = removed
        .map(|schedule| (schedule.id.clone(), if prune { ScheduleChange::Deleted } else { ScheduleChange::Kept }));
    let listed = configured.iter().map(|(id, spec)| {
        let change = match existing.get(id.as_str()) {
            None => ScheduleChange::Created,
            Some(schedule) if schedule.applied && is_same(&schedule.spec, spec) => ScheduleChange::Unchanged,
            Some(_) => ScheduleChange::Changed,
        };
        (id.clone(), change)
    });
    listed.chain(removed).collect()
}

/// Compares values: an API keeps numbers and the order of names as they were written.
fn is_same(existing: &Spec, configured: &Spec) -> bool {
    let texts = RawJson::of(existing).and_then(|existing| Ok((existing, RawJson::of(configured)?)));
    texts.is_ok_and(|(existing, configured)| existing.is_same_value(&configured))
}

fn show(output: &Output, changes: &BTreeMap<String, ScheduleChange>) -> Result<(), Failure> {
    if output.is_json() {
        let document: Vec<_> = changes.iter().map(|(id, change)| json!({"id": id, "change": change.name()})).collect();
        return output.json(&document);
    }
    let mut rows = Rows::new(["ID", "CHANGE"]);
    for (id, change) in changes {
        rows.add([Field::Text(id.clone()), Field::from(change.name())]);
    }
    output.list(rows, "no schedules: `[schedules]` in the configuration is empty, and there is nothing to delete")
}
