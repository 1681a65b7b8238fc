//! `schedules apply`: makes the fleet's schedules match the configuration.

use std::collections::BTreeMap;

use clap::Args;
use serde_json::json;

use crate::cli::client::Client;
use crate::cli::exit::{Code, Failure, Outcome};
use crate::cli::globals::Globals;
use crate::cli::output::{Field, Output, Rows, eprint_line};
use crate::cli::setup::{SetupOptions, load_config};
use crate::documents::ScheduleDocument;
use crate::model::json::RawJson;
use crate::model::schedule::Spec;

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
enum Change {
    Created,
    Changed,
    Unchanged,
    Deleted,
    /// No longer in the configuration, and kept because `--prune` is not given.
    Kept,
}

impl Change {
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
    let wanted = loaded.config.schedules;
    let changes = changes(&wanted, &super::all(client).await?.schedules, args.prune);
    for (id, change) in changes.iter().filter(|_| !args.dry_run) {
        match (change, wanted.get(id)) {
            (Change::Created | Change::Changed, Some(spec)) => drop(super::put(client, id, spec, true).await?),
            (Change::Deleted, _) => drop(super::remove(client, id).await?),
            _ => {}
        }
    }
    show(output, &changes)?;
    if changes.values().any(|change| *change == Change::Kept) {
        eprint_line("schedules marked `kept` are not in the configuration but still fire; `--prune` deletes them");
    }
    Ok(Code::Ok)
}

/// Returns the change of each schedule. Schedules created by other means are ignored, unless the configuration has one
/// with the same id.
fn changes(wanted: &BTreeMap<String, Spec>, known: &[ScheduleDocument], prune: bool) -> BTreeMap<String, Change> {
    let known: BTreeMap<&str, &ScheduleDocument> = known.iter().map(|one| (one.id.as_str(), one)).collect();
    let removed = known.values().filter(|one| one.applied && !wanted.contains_key(&one.id));
    let removed = removed.map(|one| (one.id.clone(), if prune { Change::Deleted } else { Change::Kept }));
    let listed = wanted.iter().map(|(id, spec)| {
        let change = match known.get(id.as_str()) {
            None => Change::Created,
            Some(one) if one.applied && is_same(&one.spec, spec) => Change::Unchanged,
            Some(_) => Change::Changed,
        };
        (id.clone(), change)
    });
    listed.chain(removed).collect()
}

/// Compares values: an API keeps numbers and the order of names as they were written.
fn is_same(known: &Spec, wanted: &Spec) -> bool {
    let texts = RawJson::of(known).and_then(|known| Ok((known, RawJson::of(wanted)?)));
    texts.is_ok_and(|(known, wanted)| known.is_same_value(&wanted))
}

fn show(output: &Output, changes: &BTreeMap<String, Change>) -> Result<(), Failure> {
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
