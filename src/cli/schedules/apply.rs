//! `schedules apply`: what the configuration says becomes what the fleet does.

use std::collections::BTreeMap;

use clap::Args;
use serde_json::json;

use crate::api::documents::ScheduleDocument;
use crate::cli::client::Client;
use crate::cli::exit::{Code, Outcome};
use crate::cli::globals::Globals;
use crate::cli::output::{Field, Output, Rows, tell};
use crate::cli::setup::{SetupOptions, load_config};
use crate::model::schedule::Spec;

#[derive(Debug, Args)]
pub struct ApplyArgs {
    /// Delete those that were applied before and are in the configuration no more
    #[arg(long)]
    pub prune: bool,
    /// Only say what would be done
    #[arg(long)]
    pub dry_run: bool,
}

/// Sections of the configuration that are of no concern here.
const UNUSED: &[&str] = &["kafka", "redis", "api", "types", "ops", "callbacks", "email"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Created,
    Changed,
    Unchanged,
    Deleted,
    /// Not in the configuration any more, and not asked to be deleted.
    Left,
}

impl Change {
    const fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
            Self::Deleted => "deleted",
            Self::Left => "left",
        }
    }
}

pub async fn apply(args: &ApplyArgs, globals: &Globals, client: &Client, screen: &Output) -> Outcome {
    let loaded = load_config(globals, &SetupOptions { unused: UNUSED, ..SetupOptions::default() })?;
    let wanted = loaded.config.schedules;
    let changes = changes(&wanted, &super::all(client).await?.schedules, args.prune);
    for (id, change) in changes.iter().filter(|_| !args.dry_run) {
        match (change, wanted.get(id)) {
            (Change::Created | Change::Changed, Some(spec)) => drop(super::put(client, id, spec, true).await?),
            (Change::Deleted, _) => drop(super::remove(client, id).await?),
            _ => {}
        }
    }
    show(screen, &changes)?;
    if changes.values().any(|change| *change == Change::Left) {
        tell("`left` are in the configuration no more, and go on; `--prune` deletes them");
    }
    Ok(Code::Ok)
}

/// Schedules that people have made by other means are nobody's here, unless they have the name of one in the file.
fn changes(wanted: &BTreeMap<String, Spec>, known: &[ScheduleDocument], prune: bool) -> BTreeMap<String, Change> {
    let known: BTreeMap<&str, &ScheduleDocument> = known.iter().map(|one| (one.id.as_str(), one)).collect();
    let gone = known.values().filter(|one| one.applied && !wanted.contains_key(&one.id));
    let gone = gone.map(|one| (one.id.clone(), if prune { Change::Deleted } else { Change::Left }));
    let there = wanted.iter().map(|(id, spec)| {
        let change = match known.get(id.as_str()) {
            None => Change::Created,
            Some(one) if one.spec == *spec && one.applied => Change::Unchanged,
            Some(_) => Change::Changed,
        };
        (id.clone(), change)
    });
    there.chain(gone).collect()
}

fn show(screen: &Output, changes: &BTreeMap<String, Change>) -> Result<(), crate::cli::exit::Failure> {
    if screen.is_json() {
        let document: Vec<_> = changes.iter().map(|(id, change)| json!({"id": id, "change": change.name()})).collect();
        return screen.json(&document);
    }
    let mut rows = Rows::new(["ID", "CHANGE"]);
    for (id, change) in changes {
        rows.add([Field::Text(id.clone()), Field::from(change.name())]);
    }
    screen.list(rows, "no schedules: `[schedules]` in the configuration has none, and nothing is to be deleted")
}
