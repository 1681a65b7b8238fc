//! `offsets move`: moves the commits of a type to another consumer group.

use clap::Args;
use kafleet_broker::{BrokerClient, Commit, Partition};
use kafleet_config::Names;
use kafleet_fleet::control::settings::{FleetSettings, read_control};
use kafleet_fleet::control::{self, MisplacedCommits};
use kafleet_model::task::id::check_type;
use serde::Serialize;

use super::failure;
use crate::cli::exit::{Code, Failure, Outcome};
use crate::cli::globals::Globals;
use crate::cli::output::{Field, Rows};
use crate::cli::setup::Setup;

#[derive(Debug, Args)]
pub(in crate::cli) struct MoveArgs {
    /// Task type
    #[arg(value_name = "TYPE", value_parser = type_name)]
    task_type: String,
    /// Configured group of the type: `[types.<name>] group`, the type's own name if it shares no group, or app-NAME for a
    /// type of an app
    #[arg(long, value_name = "GROUP")]
    to: String,
}

/// Committed offsets that were moved.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(in crate::cli) struct MovedOffsets {
    #[serde(rename = "type")]
    task_type: String,
    from: String,
    to: String,
    partitions: Vec<MovedCommit>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct MovedCommit {
    partition: i32,
    offset: i64,
}

fn type_name(text: &str) -> Result<String, String> {
    check_type(text).map(|()| text.to_owned())
}

pub(super) async fn run(args: MoveArgs, setup: &Setup, globals: &Globals) -> Outcome {
    let names = setup.names.clone().with_app_group(&args.task_type, &args.to);
    let moved = move_commits(&setup.kafka()?.client(), &names, &args.task_type, &args.to).await?;
    globals.output().json_or_list(&moved, rows, empty_message(&moved))?;
    Ok(Code::Ok)
}

fn empty_message(moved: &MovedOffsets) -> String {
    let MovedOffsets { task_type, from, to, .. } = moved;
    if from == to {
        format!("nothing was moved: the committed offsets of the type `{task_type}` are in the group `{to}` already")
    } else {
        format!("the type `{task_type}` is now in the group `{to}`; it had no committed offsets in `{from}`")
    }
}

/// Moves the committed offsets of a type, with their metadata, to its configured group. After an interruption, run it
/// again.
///
/// Neither group may have members; Kafka enforces this when offsets are written. First, the move is recorded on the
/// control topic: until the new group is recorded, workers do not start the type. A worker that starts meanwhile reads
/// that topic again after it has joined its group. So either it finds the record, or it joined before, and Kafka refuses
/// the write in [`GroupMove::copy`].
pub(in crate::cli) async fn move_commits(
    client: &BrokerClient,
    names: &Names,
    task_type: &str,
    to: &str,
) -> Result<MovedOffsets, Failure> {
    check_configured(names, task_type, to)?;
    let settings = read_control(client, names).await.map_err(|error| failure(error.into(), task_type, to))?;
    let from = settings.group_of(task_type).to_owned();
    let is_interrupted = settings.groups.moving_to(task_type).is_some();
    let groups = GroupMove { client, names, task_type, from: &from, to };
    if from == to && !is_interrupted {
        return Ok(groups.moved(&[]));
    }
    let producer = client.shared_producer(None).await.map_err(Failure::failed)?;
    let commits = if from == to {
        // Undoes an interrupted move: the committed offsets of this group were only copied, never removed.
        Vec::new()
    } else {
        groups.check_members(&settings).await?;
        control::record_group_move(&producer, names, task_type, &from, to).await.map_err(Failure::unavailable)?;
        match groups.copy(&settings).await {
            Ok(commits) => commits,
            Err(error) if is_interrupted => return Err(error),
            Err(error) => {
                control::record_group(&producer, names, task_type, &from).await.map_err(Failure::unavailable)?;
                return Err(error);
            }
        }
    };
    control::record_group(&producer, names, task_type, to).await.map_err(Failure::unavailable)?;
    Ok(groups.moved(&commits))
}

/// A move of a type's commits between two groups.
struct GroupMove<'a> {
    client: &'a BrokerClient,
    names: &'a Names,
    task_type: &'a str,
    from: &'a str,
    to: &'a str,
}

impl GroupMove<'_> {
    /// Checks that the source group has no members, by rewriting its offsets unchanged. Done before the move is recorded,
    /// because the record keeps workers from starting.
    async fn check_members(&self, settings: &FleetSettings) -> Result<(), Failure> {
        let source = self.names.group_id(self.task_type, self.from);
        let commits = commits_of(self.client, self.names, self.task_type, &source, settings).await?;
        self.set(&source, &commits).await
    }

    /// Copies the committed offsets. First, those of the source are rewritten unchanged: Kafka refuses this while the
    /// group has members, which could still commit.
    async fn copy(&self, settings: &FleetSettings) -> Result<Vec<Commit>, Failure> {
        let [source, target] = [self.from, self.to].map(|group| self.names.group_id(self.task_type, group));
        let commits = commits_of(self.client, self.names, self.task_type, &source, settings).await?;
        self.set(&source, &commits).await?;
        self.set(&target, &commits).await?;
        Ok(commits)
    }

    async fn set(&self, group: &str, commits: &[Commit]) -> Result<(), Failure> {
        if commits.is_empty() {
            return Ok(());
        }
        let set = self.client.set_group_offsets(group, commits.to_vec()).await;
        set.map_err(|error| failure(error, self.task_type, group))
    }

    fn moved(&self, commits: &[Commit]) -> MovedOffsets {
        let moved =
            commits.iter().map(|commit| MovedCommit { partition: commit.partition.index, offset: commit.offset });
        MovedOffsets {
            task_type: self.task_type.to_owned(),
            from: self.from.to_owned(),
            to: self.to.to_owned(),
            partitions: moved.collect(),
        }
    }
}

/// Checks that `to` is the configured group of the type: workers do not run the type in any other.
fn check_configured(names: &Names, task_type: &str, to: &str) -> Result<(), Failure> {
    let configured = names.group_name(task_type);
    if configured == to {
        return Ok(());
    }
    let cure = if to == task_type {
        format!(
            "remove `group` from `[types.{task_type}]` and `[worker]`, or set `group = \"{to}\"` in `[types.{task_type}]`"
        )
    } else {
        format!("set `group = \"{to}\"` in `[types.{task_type}]`, or pass `--to {configured}`")
    };
    Err(Failure::usage(format_args!("`--to {to}`: the configured group of the type `{task_type}` is `{configured}`"))
        .hint(cure))
}

/// Returns the committed offsets of a type in a group. Fails if one is missing for a partition that has been consumed:
/// workers would then use an outdated one, left in the target group by an earlier move.
async fn commits_of(
    client: &BrokerClient,
    names: &Names,
    task_type: &str,
    group: &str,
    settings: &FleetSettings,
) -> Result<Vec<Commit>, Failure> {
    let partitions =
        super::partitions(client, &names.tasks(task_type), &super::OffsetsTarget::all_partitions(task_type)).await?;
    let committed =
        client.group_offsets(group, partitions.clone()).await.map_err(|error| failure(error, task_type, group))?;
    let mut commits: Vec<Commit> = Vec::new();
    for (partition, committed) in partitions.into_iter().zip(committed) {
        match committed {
            Some(committed) => {
                commits.push(Commit { partition, offset: committed.offset, metadata: committed.metadata });
            }
            None if settings.is_consumed(task_type, partition.index) => {
                return Err(lost_commit(task_type, group, &partition));
            }
            None => {}
        }
    }
    Ok(commits)
}

fn lost_commit(task_type: &str, group: &str, partition: &Partition) -> Failure {
    let target = format!("{task_type}/{}", partition.index);
    Failure::failed(format_args!(
        "the group `{group}` has no committed offset for {partition}, which has been consumed"
    ))
    .hint(format_args!(
        "choose where to start with `kafleet offsets init {target} --at earliest|OFFSET|TIME`, then run this again"
    ))
}

fn rows(moved: &MovedOffsets) -> Rows {
    let mut rows = Rows::new(["PARTITION", "OFFSET", "FROM", "TO"]);
    let number = |number: i64| Field::Number(u64::try_from(number).unwrap_or(0));
    for commit in &moved.partitions {
        rows.add([
            number(commit.partition.into()),
            number(commit.offset),
            Field::Text(moved.from.clone()),
            Field::Text(moved.to.clone()),
        ]);
    }
    rows
}

/// Returns what is wrong, and a hint, if the committed offsets of a type are not in its configured group. Workers of the
/// type do not start until it is mended.
pub(in crate::cli) fn misplaced_commits(
    names: &Names,
    settings: &FleetSettings,
    task_type: &str,
) -> Option<(String, String)> {
    match settings.groups.check(task_type, names.group_name(task_type)).err()? {
        MisplacedCommits::Moving { from, to, .. } => {
            let message = format!("a move of its committed offsets from the group `{from}` to `{to}` is not complete");
            Some((message, format!("run `kafleet offsets move {task_type} --to {to}` again if it was interrupted")))
        }
        MisplacedCommits::OtherGroup { recorded, configured, .. } => settings.is_type_consumed(task_type).then(|| {
            let message = format!(
                "its committed offsets are in the group `{recorded}`, and its configured group is `{configured}`"
            );
            let command = format!("kafleet offsets move {task_type} --to {configured}");
            (message, format!("stop the workers of both groups and run `{command}`"))
        }),
    }
}
