//! `schedules apply`: makes the fleet's schedules match the configuration and the code of apps.

use std::collections::BTreeMap;

use clap::Args;
use kafleet_documents::ScheduleDocument;
use kafleet_handlers::Registry;
use serde_json::json;

use super::declared::{DeclaredSchedule, DeclaredSchedules, declared, declared_by, is_same};
use crate::cli::app_target::TargetArgs;
use crate::cli::apps;
use crate::cli::client::Client;
use crate::cli::exit::{Code, Failure, Outcome};
use crate::cli::globals::Globals;
use crate::cli::output::{Field, Output, Rows, eprint_line};
use crate::cli::setup::{Setup, SetupOptions};

#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// Delete schedules that were applied before and are no longer in the configuration or the code
    #[arg(long)]
    pub prune: bool,
    /// Only show the changes
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub app: TargetArgs,
}

/// Sections of the configuration that this verb does not use.
const UNUSED: &[&str] = &["kafka", "redis", "outbox", "api", "types", "ops", "callbacks", "email"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScheduleChange {
    Created,
    Changed,
    Unchanged,
    Deleted,
    /// No longer in the configuration or the code, and kept because `--prune` is not given.
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

pub(super) async fn apply(
    args: &ApplyArgs,
    globals: &Globals,
    registry: Registry,
    client: &Client,
    output: &Output,
) -> Outcome {
    let target = args.app.app()?;
    let options = SetupOptions { unused: UNUSED, app: target.clone(), ..SetupOptions::default() };
    let mut setup = Setup::load(globals, registry, options)?;
    if !setup.has_config_file && target.is_none() {
        // It would be taken for one without schedules, and `--prune` would delete all of them.
        return Err(Failure::usage("there is no configuration file with schedules to apply").hint(
            "name it with --config, run this in its folder, or name an app: `kafleet schedules apply tasks.py`",
        ));
    }
    apps::check(&mut setup).await?;
    let (target_owner, declared) = match &target {
        Some(app) => declared_by(&app.section, &setup).map(|(owner, declared)| (Some(owner), declared))?,
        None => (None, declared(&setup)?),
    };
    let changes = changes(&declared, &super::all(client).await?.schedules, target_owner.as_deref(), args.prune);
    for (id, change) in changes.iter().filter(|_| !args.dry_run) {
        match (change, declared.get(id)) {
            (ScheduleChange::Created | ScheduleChange::Changed, Some(DeclaredSchedule { owner, spec })) => {
                drop(super::put(client, id, spec, Some(owner)).await?);
            }
            (ScheduleChange::Deleted, _) => drop(super::remove(client, id).await?),
            _ => {}
        }
    }
    show(output, &changes)?;
    if changes.values().any(|change| *change == ScheduleChange::Kept) {
        eprint_line("schedules marked `kept` are no longer declared but still fire; `--prune` deletes them");
    }
    Ok(Code::Ok)
}

/// Returns the change of each schedule. Schedules that people manage are ignored, unless one with the same id is
/// declared. `target_owner`: only schedules of this owner can be gone.
fn changes(
    declared: &DeclaredSchedules,
    existing: &[ScheduleDocument],
    target_owner: Option<&str>,
    prune: bool,
) -> BTreeMap<String, ScheduleChange> {
    let existing: BTreeMap<&str, &ScheduleDocument> =
        existing.iter().map(|schedule| (schedule.id.as_str(), schedule)).collect();
    let is_gone = |schedule: &&&ScheduleDocument| {
        let owner = schedule.owner.as_deref();
        owner.is_some()
            && target_owner.is_none_or(|target| owner == Some(target))
            && !declared.contains_key(&schedule.id)
    };
    let removed = existing
        .values()
        .filter(is_gone)
        .map(|schedule| (schedule.id.clone(), if prune { ScheduleChange::Deleted } else { ScheduleChange::Kept }));
    let listed = declared.iter().map(|(id, DeclaredSchedule { owner, spec })| {
        let change = match existing.get(id.as_str()) {
            None => ScheduleChange::Created,
            Some(schedule) if schedule.owner.as_ref() == Some(owner) && is_same(&schedule.spec, spec) => {
                ScheduleChange::Unchanged
            }
            Some(_) => ScheduleChange::Changed,
        };
        (id.clone(), change)
    });
    listed.chain(removed).collect()
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
    output.list(rows, "no schedules: neither the configuration nor an app declares one, and there is nothing to delete")
}
