//! `offsets init`: says where workers of a type begin, when Kafka has forgotten or somebody knows better.

use std::sync::Arc;
use std::time::Duration;

mod live;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::output::{Field, Rows};
use super::setup::{CALL_DEADLINE, Setup, SetupOptions};
use crate::broker::{Broker, BrokerError, Commit, Partition, Watermarks};
use crate::handlers::Registry;
use crate::model::offsets::{Completed, Mark, Metadata};
use crate::model::task::parse_time;
use crate::model::units::duration::Millis;
use crate::runtime::{blocking, now_ms};
use crate::telemetry::init_logs;

#[derive(Debug, Subcommand)]
pub enum OffsetsVerb {
    /// Set where the workers of a type begin
    Init(InitArgs),
}

#[derive(Debug, Args)]
pub struct InitArgs {
    /// The type, or one partition of it, such as echo/3
    #[arg(value_name = "TYPE[/PARTITION]")]
    pub target: Target,
    /// earliest, latest, an offset, a time (RFC 3339), or so long ago, such as 2h
    #[arg(long, value_name = "WHERE")]
    pub at: At,
}

/// A type, and perhaps one of its partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    task_type: String,
    partition: Option<i32>,
}

impl std::str::FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, partition) = match text.split_once('/') {
            Some((name, partition)) => (name, Some(partition)),
            None => (text, None),
        };
        crate::model::task::id::check_type(name)?;
        let number = |text: &str| text.parse().ok().filter(|number| *number >= 0);
        let partition = match partition.map(|text| number(text).ok_or(text)).transpose() {
            Ok(partition) => partition,
            Err(text) => return Err(format!("`{text}` is not the number of a partition: write echo/3")),
        };
        Ok(Self { task_type: name.to_owned(), partition })
    }
}

/// Where to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    Earliest,
    Latest,
    Offset(i64),
    /// At the first record that is not older. Epoch milliseconds.
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
            return if offset >= 0 { Ok(Self::Offset(offset)) } else { Err(format!("`{offset}` is below zero")) };
        }
        if let Ok(ago) = Millis::parse(text) {
            return Ok(Self::Time(now_ms().saturating_sub(ago.as_i64())));
        }
        parse_time(text).map(Self::Time).map_err(|_| {
            format!("`{text}` is no place in a log: write earliest, latest, an offset, an RFC 3339 time, or 2h for so long ago")
        })
    }
}

/// What was set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Placed {
    partition: i32,
    before: Option<i64>,
    now: i64,
    first: i64,
    end: i64,
}

pub async fn offsets(verb: OffsetsVerb, globals: &Globals, registry: Registry) -> Outcome {
    let OffsetsVerb::Init(args) = verb;
    init_logs("warn");
    let parts = Setup::load(
        globals,
        registry,
        SetupOptions { unused: &["redis", "api", "types", "schedules", "callbacks", "email"], ..SetupOptions::default() },
    )?;
    let (topic, group) = (parts.names.tasks(&args.target.task_type), parts.names.group(&args.target.task_type));
    let broker = parts.kafka()?;
    let target = args.target.clone();
    let (asked, asked_group) = (broker.clone(), group.clone());
    let planned = blocking(move || plan(&asked, &topic, &asked_group, &target, args.at)).await.map_err(Failure::failed)??;
    let Plan { placed, commits } = planned.clone();
    let (asked, asked_group) = (broker.clone(), group.clone());
    let set = blocking(move || asked.set_group_offsets(&asked_group, &commits, CALL_DEADLINE)).await.map_err(Failure::failed)?;
    let placed = match set {
        Ok(()) => placed,
        Err(BrokerError::Refused(why)) => {
            let refused: Vec<Placed> = placed.into_iter().filter(Placed::is_refused).collect();
            if refused.is_empty() {
                return Err(failure(BrokerError::Refused(why), &args.target.task_type, &group));
            }
            live::tell(broker, &parts.names, &args.target.task_type, &refused).await?;
            refused
        }
        Err(why) => return Err(failure(why, &args.target.task_type, &group)),
    };
    let screen = globals.screen();
    if screen.is_json() {
        screen.json(&placed)?
    } else {
        screen.table(rows(&placed))?
    }
    Ok(Code::Ok)
}

/// What is to be set.
#[derive(Clone)]
struct Plan {
    placed: Vec<Placed>,
    commits: Vec<Commit>,
}

impl Placed {
    /// A worker that has this partition does not work on it: its commit is gone, or lies outside the log.
    fn is_refused(&self) -> bool {
        self.before.is_none_or(|before| before > self.end)
    }
}

fn plan(broker: &Arc<dyn Broker>, topic: &str, group: &str, target: &Target, at: At) -> Result<Plan, Failure> {
    let partitions = partitions(&**broker, topic, target)?;
    let told = |why: BrokerError| failure(why, &target.task_type, group);
    let committed = broker.group_offsets(group, &partitions, CALL_DEADLINE).map_err(told)?;
    let mut placed = Vec::new();
    for (partition, committed) in partitions.iter().zip(committed) {
        let ends = broker.ends(partition, CALL_DEADLINE).map_err(told)?;
        let now = place(&**broker, partition, ends, at)?;
        let before = committed.map(|committed| committed.offset);
        placed.push(Placed { partition: partition.index, before, now, first: ends.first, end: ends.end });
    }
    let commits = partitions.into_iter().zip(&placed).map(|(partition, placed)| commit(partition, placed.now)).collect();
    Ok(Plan { placed, commits })
}

/// A clean start: nothing was running, so nothing can have crashed.
fn commit(partition: Partition, offset: i64) -> Commit {
    Commit { partition, offset, metadata: Metadata::encode(&Completed::starting_at(offset), Mark::Clean, offset, 0) }
}

fn partitions(broker: &dyn Broker, topic: &str, target: &Target) -> Result<Vec<Partition>, Failure> {
    let topics = broker.topics(topic, CALL_DEADLINE).map_err(|why| failure(why, &target.task_type, topic))?;
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

fn place(broker: &dyn Broker, partition: &Partition, ends: Watermarks, at: At) -> Result<i64, Failure> {
    match at {
        At::Earliest => Ok(ends.first),
        At::Latest => Ok(ends.end),
        At::Offset(offset) if (ends.first..=ends.end).contains(&offset) => Ok(offset),
        At::Offset(offset) => Err(Failure::usage(format_args!("`{partition}` does not hold offset {offset}"))
            .hint(format_args!("it holds {} to {}", ends.first, ends.end))),
        At::Time(at_ms) => search(broker, partition, ends, at_ms).map_err(|why| failure(why, &partition.topic, &partition.topic)),
    }
}

/// The first record that is not older than a time, by halving: records lie nearly in the order of their times.
fn search(broker: &dyn Broker, partition: &Partition, ends: Watermarks, at_ms: i64) -> Result<i64, BrokerError> {
    let (mut low, mut high) = (ends.first, ends.end);
    while low < high {
        let middle = low + (high - low) / 2;
        match broker.first_visible(partition, middle, Duration::from_secs(5))?.record {
            Some(record) if record.offset < high && record.timestamp_ms < at_ms => low = record.offset + 1,
            // It is young enough, or there is no record from the middle on.
            _ => high = middle,
        }
    }
    Ok(low)
}

fn failure(why: BrokerError, task_type: &str, group: &str) -> Failure {
    match why {
        BrokerError::Refused(why) => Failure::failed(format_args!(
            "the group `{group}` has members, and Kafka takes no commits from outside while it has: {why}"
        ))
        .hint(format_args!("stop the workers of `{task_type}`, run this again, then start them")),
        BrokerError::Unknown(_) => Failure::new(Code::NotFound, why),
        BrokerError::Denied(_) => Failure::new(Code::Denied, why).hint("check the rights of this user on Kafka"),
        why if why.is_transient() => Failure::unavailable(why).hint("check --brokers, KAFLEET_BROKERS or `[kafka]`"),
        why => Failure::failed(why),
    }
}

fn rows(placed: &[Placed]) -> Rows {
    let mut rows = Rows::new(["PARTITION", "BEFORE", "NOW", "LOG START", "LOG END"]);
    let number = |offset: i64| Field::Number(u64::try_from(offset).unwrap_or(0));
    for one in placed {
        rows.add([
            number(one.partition.into()),
            one.before.map_or(Field::Nothing, number),
            number(one.now),
            number(one.first),
            number(one.end),
        ]);
    }
    rows
}

#[cfg(test)]
mod tests;
