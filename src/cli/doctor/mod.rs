//! `doctor`: checks configuration, Kafka, topics, committed offsets, clocks, pending cancels, declarations of types, Redis,
//! the lag of the projection and the API, with a hint for each problem.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::apps::{self, TargetArgs};
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::output::{Paint, one_line};
use super::setup::{CALL_DEADLINE, Setup, SetupOptions, load_config};
use crate::broker::{BrokerClient, BrokerError, Partition, TopicInfo, Watermarks};
use crate::config::{Config, Names};
use crate::control::settings::read_control;
use crate::control::{ControlState, ControlWatch, keep};
use crate::error_text::split_hint;
use crate::handlers::Registry;
use crate::model::record::state::State;
use crate::model::task::id::TaskId;
use crate::runtime::now_ms;
use crate::store::{Checkpoint, MemoryUse, Reservation, Stage, Store, StoreError};
use crate::telemetry::{init_logs, otel};
use crate::topics::{self, Severity};

/// Maximum time by which the brokers' clock may be ahead of this machine's without a warning.
const CLOCK_SLACK_MS: i64 = 5_000;
/// Number of unprojected events above which a warning is given.
const LAG_EVENTS: i64 = 100_000;
/// Number of cancels on the control topic from which a warning is given.
const MANY_CANCELS: usize = 10_000;
/// Sections without an effect on the checks; the first one if Redis is not checked.
const UNUSED: &[&str] = &["redis", "api", "types", "schedules", "callbacks", "email"];
/// Share of Redis's `maxmemory` in use from which a warning is given.
const FULL_PERCENT: u128 = 90;

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Do not check the API
    #[arg(long)]
    pub no_api: bool,
    /// Do not check Redis
    #[arg(long)]
    pub no_redis: bool,
    #[command(flatten)]
    pub app: TargetArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Ok,
    Warning,
    Error,
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    verdict: Verdict,
    subject: String,
    what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl Finding {
    fn new(verdict: Verdict, subject: impl Into<String>, what: impl Into<String>) -> Self {
        Self { verdict, subject: subject.into(), what: what.into(), hint: None }
    }

    fn ok(subject: impl Into<String>, what: impl Into<String>) -> Self {
        Self::new(Verdict::Ok, subject, what)
    }

    fn error(subject: impl Into<String>, what: impl Into<String>) -> Self {
        Self::new(Verdict::Error, subject, what)
    }

    fn warning(subject: impl Into<String>, what: impl Into<String>) -> Self {
        Self::new(Verdict::Warning, subject, what)
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    fn of(subject: &str, failure: Failure) -> Self {
        Self { verdict: Verdict::Error, subject: subject.into(), what: failure.message, hint: failure.hint }
    }
}

pub(super) async fn doctor(args: DoctorArgs, globals: &Globals, registry: Registry) -> Outcome {
    init_logs("error");
    let unused = &UNUSED[usize::from(!args.no_redis)..];
    let options = SetupOptions { unused, app: args.app.section()?, ..SetupOptions::default() };
    let mut found = vec![configuration(globals, &options)];
    if let Ok(mut setup) = Setup::load(globals, registry, options) {
        found.extend(apps::check(&mut setup).await.err().map(|why| Finding::of("apps", why)));
        found.extend(setup.register().err().map(|why| Finding::of("types", why)));
        check_services(&setup, !args.no_redis, &mut found).await;
        found.extend(traces(&setup).await);
    }
    if !args.no_api {
        found.push(api(globals).await);
    }
    show(&found, globals)
}

/// Checks Kafka and, if wanted, Redis.
async fn check_services(setup: &Setup, with_redis: bool, found: &mut Vec<Finding>) {
    let watermarks = match setup.kafka() {
        Ok(broker) => kafka(setup, &broker.client(), found).await,
        Err(why) => {
            found.push(Finding::of("kafka", why));
            None
        }
    };
    if !with_redis {
        return;
    }
    let partitions = setup.config.topics.events_partitions;
    match setup.redis() {
        Ok(store) => found.extend(redis_findings(store, partitions, watermarks.as_deref()).await),
        Err(why) => found.push(Finding::of("redis", why)),
    }
}

/// Checks that the collector of traces answers, if there is one.
async fn traces(setup: &Setup) -> Vec<Finding> {
    let (settings, warnings) = otel::settings(&setup.config.otel, &|name| std::env::var(name).ok());
    let mut found: Vec<Finding> = warnings.into_iter().map(|why| Finding::warning("traces", why)).collect();
    if let Some(settings) = settings {
        found.push(match otel::probe(&settings).await {
            Ok(()) => {
                Finding::ok("traces", format!("the collector answers; {} % are sampled", settings.sample * 100.0))
            }
            Err(why) => Finding::warning("traces", why)
                .hint("check `otel.endpoint`: it takes OTLP over HTTP, usually on port 4318; tasks run without it"),
        });
    }
    found
}

fn configuration(globals: &Globals, options: &SetupOptions) -> Finding {
    match load_config(globals, options) {
        Ok(loaded) => {
            let file = loaded.path.map_or_else(
                || "no file: all settings have their defaults".to_owned(),
                |path| path.display().to_string(),
            );
            Finding::ok("configuration", file)
        }
        Err(failure) => Finding::of("configuration", failure),
    }
}

/// Checks Kafka; returns the watermarks of the events partitions if they could be read.
async fn kafka(setup: &Setup, client: &BrokerClient, found: &mut Vec<Finding>) -> Option<Vec<Watermarks>> {
    let brokers = setup.brokers();
    let present = match client.topics(&setup.names.topics()).await {
        Ok(present) => present,
        Err(why) => {
            let hint = match why.to_string().to_lowercase().contains("authentication") {
                true => "check `sasl.username`, `sasl.password` and `sasl.mechanism` in `[kafka]`",
                false => "check --brokers, KAFLEET_BROKERS or `[kafka]`, and that Kafka is running",
            };
            found.push(Finding::error("kafka", format!("`{brokers}`: {why}")).hint(hint));
            return None;
        }
    };
    found.push(Finding::ok("kafka", format!("`{brokers}` answers")));
    found.extend(topic_findings(client, &setup.config, &setup.registry, present.len()).await);
    match check_commits(client, &setup.config, &setup.registry, &present).await {
        Ok(findings) => found.extend(findings),
        Err(why) => found.push(Finding::error("offsets", why.to_string())),
    }
    let watermarks = events_watermarks(client, setup).await?;
    found.extend(clock_finding(client, &watermarks).await);
    found.push(check_cancels(client, &setup.names).await);
    found.extend(declarations::check(client, setup).await);
    Some(watermarks.into_iter().map(|(_, watermarks)| watermarks).collect())
}

/// Compares the clock of this host with the newest event.
async fn clock_finding(client: &BrokerClient, watermarks: &[(Partition, Watermarks)]) -> Option<Finding> {
    let mut newest = None;
    for (partition, watermarks) in watermarks {
        newest = newest.max(newest_ms(client, partition, *watermarks).await);
    }
    newest.and_then(|newest_ms| check_clock(newest_ms, now_ms()))
}

/// Returns the events partitions with their watermarks; `None` if one cannot be read.
async fn events_watermarks(client: &BrokerClient, setup: &Setup) -> Option<Vec<(Partition, Watermarks)>> {
    let mut found = Vec::new();
    for index in 0..setup.config.topics.events_partitions {
        let partition = Partition::new(setup.names.events(), i32::try_from(index).unwrap_or(i32::MAX));
        let watermarks = client.watermarks(&partition).await.ok()?;
        found.push((partition, watermarks));
    }
    Some(found)
}

/// Reports the number of cancels that every worker holds in memory.
async fn check_cancels(client: &BrokerClient, names: &Names) -> Finding {
    let watch = ControlWatch::new(ControlState::default());
    let _reading = keep(watch.clone(), client.broker().clone(), names, None);
    if let Err(why) = watch.whole_within(CALL_DEADLINE, names).await {
        return Finding::warning("cancels", why.to_string());
    }
    cancel_count_finding(watch.state().cancels().len())
}

fn cancel_count_finding(count: usize) -> Finding {
    let what = format!("every worker holds {count} in memory");
    if count < MANY_CANCELS {
        return Finding::ok("cancels", what);
    }
    Finding::warning("cancels", what)
        .hint("a cancel is kept until workers have committed past its tasks: check that each type has workers (`kafleet types`)")
}

async fn topic_findings(client: &BrokerClient, config: &Config, registry: &Registry, count: usize) -> Vec<Finding> {
    match topics::check(client, config, registry, CALL_DEADLINE * 2).await {
        Ok(findings) if findings.is_empty() => {
            vec![Finding::ok("topics", format!("{count} with the prefix, all configured as required"))]
        }
        Ok(findings) => findings.into_iter().map(Finding::from).collect(),
        Err(why) => vec![Finding::error("topics", why.to_string())],
    }
}

impl From<topics::TopicFinding> for Finding {
    fn from(given: topics::TopicFinding) -> Self {
        let verdict = match given.severity {
            Severity::Error => Verdict::Error,
            Severity::Warning => Verdict::Warning,
        };
        Self { verdict, subject: given.subject, what: given.what, hint: Some(given.hint) }
    }
}

/// Reports committed offsets that Kafka has dropped or that lie outside the log. Missing topics have a finding already.
async fn check_commits(
    client: &BrokerClient,
    config: &Config,
    registry: &Registry,
    present: &[TopicInfo],
) -> Result<Vec<Finding>, BrokerError> {
    let names = Names::of(config);
    let Ok(control) = read_control(client, &names).await else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    let types = config.types.keys().cloned().chain(registry.types().map(|(name, _)| name.to_string()));
    for task_type in types.collect::<std::collections::BTreeSet<_>>() {
        let topic: Arc<str> = names.tasks(&task_type).into();
        let numbers = control.consumed.iter().filter(|(name, _)| *name == task_type).map(|(_, number)| *number);
        let partitions: Vec<Partition> = numbers.map(|number| Partition::new(topic.clone(), number)).collect();
        let misplaced = super::offsets::misplaced_commits(&names, &control, &task_type);
        found.extend(misplaced.map(|(what, hint)| Finding::error(format!("type {task_type}"), what).hint(hint)));
        if partitions.is_empty() || !present.iter().any(|info| *info.name == *topic) {
            continue;
        }
        let group = names.group_id(&task_type, control.group_of(&task_type));
        let committed = client.group_offsets(&group, partitions.clone()).await?;
        for (partition, committed) in partitions.iter().zip(committed) {
            let watermarks = client.watermarks(partition).await?;
            found.extend(check_commit(&task_type, partition, committed.map(|committed| committed.offset), watermarks));
        }
    }
    Ok(found)
}

fn check_commit(
    task_type: &str,
    partition: &Partition,
    committed: Option<i64>,
    watermarks: Watermarks,
) -> Option<Finding> {
    let what = match committed {
        None => "consumed before, but Kafka has dropped the committed offset: workers refuse the partition".to_owned(),
        Some(offset) if offset < watermarks.low => {
            let removed = watermarks.low - offset;
            format!(
                "retention has removed {removed} offsets past the committed one: unfinished tasks among them are lost"
            )
        }
        Some(offset) if offset > watermarks.high => {
            format!("the committed offset is {offset}, but the log ends at {}", watermarks.high)
        }
        Some(_) => return None,
    };
    let target = format!("{task_type}/{}", partition.index);
    Some(Finding::error(partition.to_string(), what).hint(format!("run `kafleet offsets init {target} --at earliest`")))
}

/// Reads the append time of the newest event, if one of the last three offsets holds an event.
async fn newest_ms(client: &BrokerClient, partition: &Partition, watermarks: Watermarks) -> Option<i64> {
    // The last offsets may be transaction markers.
    for offset in (watermarks.low..watermarks.high).rev().take(3) {
        if let Ok(Some(record)) = client.read_at(partition, offset).await {
            return Some(record.timestamp_ms);
        }
    }
    None
}

/// Reports a broker clock that is ahead; one that is behind looks like an idle log.
fn check_clock(newest_ms: i64, now_ms: i64) -> Option<Finding> {
    let ahead_ms = newest_ms - now_ms;
    (ahead_ms > CLOCK_SLACK_MS).then(|| {
        Finding::warning("clock", format!("the brokers' clock is {} s ahead of this machine's", ahead_ms / 1_000))
            .hint("synchronise the clocks: delays and expiries are wrong by the difference")
    })
}

async fn redis_findings(store: Arc<dyn Store>, partitions: u32, watermarks: Option<&[Watermarks]>) -> Vec<Finding> {
    if let Err(why) = with_deadline(store.check()).await {
        let (what, hint) = split_hint(&why);
        return vec![Finding::error("redis", what).hint(hint.unwrap_or("check --redis, KAFLEET_REDIS or `[redis]`"))];
    }
    let mut found = vec![Finding::ok("redis", "answers, and evicts nothing (noeviction)")];
    match with_deadline(store.memory()).await {
        Ok(uses) => found.extend(uses.iter().filter_map(check_memory)),
        Err(why) => found.push(Finding::error("redis", why)),
    }
    found.extend(with_deadline(probe_writes(&*store, partitions)).await.err().map(write_failure));
    let Some(watermarks) = watermarks else { return found };
    let partitions: Vec<u32> = (0..).take(watermarks.len()).collect();
    match with_deadline(store.checkpoints(&partitions)).await {
        Ok(checkpoints) => found.extend(check_progress(&checkpoints, watermarks)),
        Err(why) => found.push(Finding::error("redis", why)),
    }
    found
}

/// Reports a server that is nearly full.
fn check_memory(memory: &MemoryUse) -> Option<Finding> {
    let MemoryUse { server, used_bytes, limit_bytes } = memory;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let what = format!("`{server}` uses {:.1} of {:.1} MiB (maxmemory)", mib(*used_bytes), mib(*limit_bytes));
    let is_short = u128::from(*used_bytes) * 100 >= u128::from(*limit_bytes) * FULL_PERCENT;
    is_short.then(|| Finding::warning("redis", what).hint("raise maxmemory: a full server refuses writes"))
}

/// Writes a reservation to each partition and deletes it, because a full server refuses writes but still answers reads.
async fn probe_writes(store: &dyn Store, partitions: u32) -> Result<(), StoreError> {
    let name = format!("doctor-{}", uuid::Uuid::now_v7().simple());
    let id = TaskId::parse(&name).map_err(|why| StoreError::Invalid(why.to_string()))?;
    let reservation = Reservation { hash: "probe".to_owned(), stage: Stage::InDoubt };
    for partition in 0..partitions {
        store.reserve(partition, &id, 1, &reservation).await?;
        store.replace_reservation(partition, &id, 1, &reservation, None).await?;
    }
    Ok(())
}

fn write_failure(why: String) -> Finding {
    let (what, hint) = split_hint(&why);
    let hint = hint.unwrap_or("trackers project nothing while Redis refuses writes");
    Finding::error("redis", format!("Redis refuses writes: {what}")).hint(hint)
}

async fn with_deadline<T>(call: impl Future<Output = Result<T, StoreError>>) -> Result<T, String> {
    let limit = Duration::from_secs(15);
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer.map_err(|why| why.to_string()),
        Err(_) => Err(format!("no answer within {} s", limit.as_secs())),
    }
}

/// Reports the trackers' lag, and checkpoints outside the log.
fn check_progress(checkpoints: &[Option<Checkpoint>], watermarks: &[Watermarks]) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut behind = 0;
    for (index, (checkpoint, watermarks)) in checkpoints.iter().zip(watermarks).enumerate() {
        let offset = checkpoint.map_or(watermarks.low, |checkpoint| checkpoint.offset);
        behind += (watermarks.high - offset).max(0);
        if offset < watermarks.low || offset > watermarks.high {
            let what = format!(
                "the checkpoint in Redis is {offset}, but the log holds {} to {}",
                watermarks.low, watermarks.high
            );
            let hint = "check that this is not another fleet's Redis; if it is not, delete the keys of the prefix: trackers rebuild them from the log";
            found.push(Finding::error(format!("events/{index}"), what).hint(hint));
        }
    }
    found.push(lag_finding(behind));
    found
}

fn lag_finding(behind: i64) -> Finding {
    let what = format!("{behind} events not yet projected");
    if behind > LAG_EVENTS {
        return Finding::warning("projection", what).hint("run more trackers, or check their logs");
    }
    Finding::ok("projection", what)
}

async fn api(globals: &Globals) -> Finding {
    let client = match globals.client() {
        Ok(client) => client,
        Err(why) => return Finding::of("api", why),
    };
    match client.get::<Value>(&["v1", "types"], &Vec::new()).await {
        Ok(_) => Finding::ok("api", format!("`{}` answers", client.base())),
        Err(why) if why.code == Code::Denied => Finding::of("api", why),
        Err(why) => Finding { verdict: Verdict::Warning, ..Finding::of("api", why) },
    }
}

fn show(found: &[Finding], globals: &Globals) -> Outcome {
    let output = globals.output();
    output.json_or_line(&found, |found| text(found, output.paint))?;
    Ok(if found.iter().any(|one| one.verdict == Verdict::Error) { Code::Failed } else { Code::Ok })
}

fn text(found: &[Finding], paint: Paint) -> String {
    let width = found.iter().map(|one| one.subject.chars().count()).max().unwrap_or(0);
    let mut lines = Vec::new();
    for one in found {
        let (word, hue) = match one.verdict {
            Verdict::Ok => ("ok     ", State::Succeeded),
            Verdict::Warning => ("warning", State::Warning),
            Verdict::Error => ("error  ", State::Failed),
        };
        let what: Vec<String> = one.what.lines().map(one_line).collect();
        let indent = format!("\n{:1$}", "", width + 11);
        lines.push(format!("{}  {:width$}  {}", paint.paint_as(hue, word), one.subject, what.join(&indent)));
        lines.extend(one.hint.as_ref().map(|hint| format!("{:2$}hint: {}", "", one_line(hint), width + 11)));
    }
    lines.join("\n")
}

mod declarations;
#[cfg(test)]
mod tests;
