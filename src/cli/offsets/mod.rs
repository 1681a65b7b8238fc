//! `offsets init`: sets the offsets at which the workers of a type start. `offsets move`: see [`move_group`].

mod live;
mod move_group;

pub(super) use move_group::{misplaced_commits, move_commits};

use clap::{Args, Subcommand};
use kafleet_broker::{BrokerClient, BrokerError, Commit, Partition, Watermarks};
use kafleet_config::Names;
use kafleet_fleet::control::settings::{FleetSettings, FleetSettingsError, read_control};
use kafleet_handlers::Registry;
use kafleet_model::offsets::{CompletedOffsets, Mark, Metadata, PendingRetries};
use kafleet_model::task::parse_time;
use kafleet_model::units::duration::Millis;
use kafleet_runtime::now_ms;
use kafleet_telemetry::init_logs;
use serde::Serialize;

use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::output::{Field, Rows};
use super::setup::{Setup, SetupOptions};

#[derive(Debug, Subcommand)]
pub(super) enum OffsetsVerb {
    /// Set the offsets at which the workers of a type start
    Init(InitArgs),
    /// Move the committed offsets of a type to its configured consumer group
    Move(move_group::MoveArgs),
}

#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// The type, or one of its partitions, such as echo/3
    #[arg(value_name = "TYPE[/PARTITION]")]
    pub target: OffsetsTarget,
    /// earliest, latest, an offset, a time (RFC 3339), or an age such as 2h
    #[arg(long, value_name = "WHERE")]
    pub at: At,
}

/// A type, or one of its partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OffsetsTarget {
    task_type: String,
    partition: Option<i32>,
}

impl OffsetsTarget {
    /// All partitions of a type.
    fn all_partitions(task_type: &str) -> Self {
        Self { task_type: task_type.to_owned(), partition: None }
    }
}

impl std::str::FromStr for OffsetsTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, partition) = match text.split_once('/') {
            Some((name, partition)) => (name, Some(partition)),
            None => (text, None),
        };
        kafleet_model::task::id::check_type(name)?;
        let number = |text: &str| text.parse().ok().filter(|number| *number >= 0);
        let partition = match partition.map(|text| number(text).ok_or(text)).transpose() {
            Ok(partition) => partition,
            Err(text) => return Err(format!("`{text}` is not a partition number: write echo/3")),
        };
        Ok(Self { task_type: name.to_owned(), partition })
    }
}

/// Position to start at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    Earliest,
    Latest,
    Offset(i64),
    /// First record appended at or after this time (epoch milliseconds).
    Time(i64),
}

impl std::str::FromStr for At {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "earliest" => return Ok(Self::Earliest),
            "latest" => return Ok(Self::Latest),
            _ => {}
        }
        if let Ok(offset) = text.parse::<u32>().map(i64::from).or_else(|_| text.parse::<i64>()) {
            return if offset >= 0 { Ok(Self::Offset(offset)) } else { Err(format!("`{offset}` is negative")) };
        }
        if let Some(ago) = Millis::parse_age(text) {
            return Ok(Self::Time(now_ms().saturating_sub(ago.as_i64())));
        }
        parse_time(text).map(Self::Time).map_err(|_| {
            format!(
                "`{text}` is not an offset: write earliest, latest, an offset, an RFC 3339 time, or an age such as 2h"
            )
        })
    }
}

/// New committed offset of a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct OffsetChange {
    partition: i32,
    before: Option<i64>,
    now: i64,
    first: i64,
    end: i64,
}

pub(super) async fn offsets(verb: OffsetsVerb, globals: &Globals, registry: Registry) -> Outcome {
    init_logs("warn");
    let setup = Setup::load(
        globals,
        registry,
        SetupOptions {
            unused: &["redis", "outbox", "api", "apps", "types", "schedules", "callbacks", "email"],
            ..SetupOptions::default()
        },
    )?;
    match verb {
        OffsetsVerb::Init(args) => init(args, &setup, globals).await,
        OffsetsVerb::Move(args) => move_group::run(args, &setup, globals).await,
    }
}

async fn init(args: InitArgs, setup: &Setup, globals: &Globals) -> Outcome {
    let task_type = &args.target.task_type;
    let topic = setup.names.tasks(task_type);
    let client = setup.kafka()?.client();
    let group = current_group(&client, &setup.names, task_type).await?;
    let Plan { changes, commits } = plan(&client, &topic, &group, &args.target, args.at).await?;
    let changes = match client.set_group_offsets(&group, commits).await {
        Ok(()) => changes,
        Err(BrokerError::Refused(error)) => {
            let refused: Vec<OffsetChange> = changes.into_iter().filter(OffsetChange::is_invalid).collect();
            if refused.is_empty() {
                return Err(failure(BrokerError::Refused(error), task_type, &group));
            }
            live::apply(&client, &setup.names, task_type, &refused).await?;
            refused
        }
        Err(error) => return Err(failure(error, task_type, &group)),
    };
    globals.output().json_or_table(&changes, |changes| rows(changes))?;
    Ok(Code::Ok)
}

/// Returns the group that contains the commits of a type, which may differ from the configured one.
async fn current_group(client: &BrokerClient, names: &Names, task_type: &str) -> Result<String, Failure> {
    let settings = match read_control(client, names).await {
        Err(FleetSettingsError::Missing(_)) => FleetSettings::default(),
        read => read.map_err(|error| failure(error.into(), task_type, &names.control()))?,
    };
    Ok(names.group_id(task_type, settings.group_of(task_type)))
}

/// Offsets to commit.
struct Plan {
    changes: Vec<OffsetChange>,
    commits: Vec<Commit>,
}

impl OffsetChange {
    /// Returns whether workers refuse the partition: its committed offset is missing or past the end of the log.
    fn is_invalid(&self) -> bool {
        self.before.is_none_or(|before| before > self.end)
    }
}

async fn plan(
    client: &BrokerClient,
    topic: &str,
    group: &str,
    target: &OffsetsTarget,
    at: At,
) -> Result<Plan, Failure> {
    let partitions = partitions(client, topic, target).await?;
    let to_failure = |error: BrokerError| failure(error, &target.task_type, group);
    let committed = client.group_offsets(group, partitions.clone()).await.map_err(to_failure)?;
    let mut changes = Vec::new();
    for (partition, committed) in partitions.iter().zip(committed) {
        let watermarks = client.watermarks(partition).await.map_err(to_failure)?;
        let now = resolve_offset(client, partition, watermarks, at).await?;
        let before = committed.map(|committed| committed.offset);
        changes.push(OffsetChange {
            partition: partition.index,
            before,
            now,
            first: watermarks.low,
            end: watermarks.high,
        });
    }
    let commits =
        partitions.into_iter().zip(&changes).map(|(partition, changes)| commit(partition, changes.now)).collect();
    Ok(Plan { changes, commits })
}

/// Returns a commit that is marked clean, so that no crash of an earlier worker is suspected.
fn commit(partition: Partition, offset: i64) -> Commit {
    let completed = CompletedOffsets::starting_at(offset);
    let metadata = Metadata::encode(&completed, Mark::Clean, offset, 0, &PendingRetries::default());
    Commit { partition, offset, metadata }
}

async fn partitions(client: &BrokerClient, topic: &str, target: &OffsetsTarget) -> Result<Vec<Partition>, Failure> {
    let topics = client.topics(topic).await.map_err(|error| failure(error, &target.task_type, topic))?;
    let Some(info) = topics.into_iter().find(|info| info.name == topic) else {
        return Err(Failure::new(Code::NotFound, format_args!("there is no topic `{topic}`"))
            .hint("check the type's name, or run `kafleet topics apply`"));
    };
    let count = i32::try_from(info.partitions).unwrap_or(i32::MAX);
    match target.partition {
        None => Ok((0..count).map(|index| Partition::new(topic, index)).collect()),
        Some(index) if index < count => Ok(vec![Partition::new(topic, index)]),
        Some(index) => Err(Failure::new(Code::NotFound, format_args!("`{topic}` has no partition {index}"))
            .hint(format_args!("its partitions are 0 to {}", count - 1))),
    }
}

async fn resolve_offset(
    client: &BrokerClient,
    partition: &Partition,
    watermarks: Watermarks,
    at: At,
) -> Result<i64, Failure> {
    match at {
        At::Earliest => Ok(watermarks.low),
        At::Latest => Ok(watermarks.high),
        At::Offset(offset) if (watermarks.low..=watermarks.high).contains(&offset) => Ok(offset),
        At::Offset(offset) => Err(Failure::usage(format_args!("`{partition}` does not hold offset {offset}"))
            .hint(format_args!("it holds {} to {}", watermarks.low, watermarks.high))),
        At::Time(at_ms) => search(client, partition, watermarks, at_ms)
            .await
            .map_err(|error| failure(error, &partition.topic, &partition.topic)),
    }
}

/// Finds the first record at or after a time by binary search: append times are nearly ordered.
async fn search(
    client: &BrokerClient,
    partition: &Partition,
    watermarks: Watermarks,
    at_ms: i64,
) -> Result<i64, BrokerError> {
    let mut low = watermarks.low;
    let mut high = watermarks.high;
    while low < high {
        let middle = low + (high - low) / 2;
        match client.first_visible(partition, middle).await?.record {
            Some(record) if record.offset < high && record.timestamp_ms < at_ms => low = record.offset + 1,
            // The record is new enough, or there is none from the middle on.
            _ => high = middle,
        }
    }
    Ok(low)
}

fn failure(error: BrokerError, task_type: &str, group: &str) -> Failure {
    match error {
        BrokerError::Refused(error) => Failure::failed(format_args!(
            "the group `{group}` has members, and Kafka accepts no other commits until they leave: {error}"
        ))
        .hint(format_args!("stop {}, run this again, then start them", workers_of(task_type, group))),
        BrokerError::Unknown(_) => Failure::new(Code::NotFound, error),
        BrokerError::Denied(_) => Failure::new(Code::Denied, error).hint("check the rights of this user on Kafka"),
        error if error.is_transient() => {
            Failure::unavailable(error).hint("check --brokers, KAFLEET_BROKERS or `[kafka]`")
        }
        error => Failure::failed(error),
    }
}

/// Describes the workers of a consumer group.
fn workers_of(task_type: &str, group: &str) -> String {
    if group.ends_with(&format!(".tasks.{task_type}")) {
        format!("the workers of `{task_type}`")
    } else {
        format!("all workers of the group `{group}`, also those of other types")
    }
}

fn rows(changes: &[OffsetChange]) -> Rows {
    let mut rows = Rows::new(["PARTITION", "BEFORE", "NOW", "LOG START", "LOG END"]);
    let number = |offset: i64| Field::Number(u64::try_from(offset).unwrap_or(0));
    for change in changes {
        rows.add([
            number(change.partition.into()),
            change.before.map_or(Field::Empty, number),
            number(change.now),
            number(change.first),
            number(change.end),
        ]);
    }
    rows
}

#[cfg(test)]
mod tests;
