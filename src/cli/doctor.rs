//! `doctor`: looks at everything a fleet stands on, and says what to do about what is wrong.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::output::{Paint, one_line};
use super::setup::{CALL_DEADLINE, Setup, SetupOptions, load_config};
use crate::broker::{Broker, BrokerError, Partition, Watermarks};
use crate::config::{Bytes, Config, Names};
use crate::control::settings::read_control;
use crate::control::{ControlState, ControlWatch, keep};
use crate::handlers::Registry;
use crate::model::record::state::State;
use crate::model::task::id::TaskId;
use crate::runtime::{blocking, now_ms};
use crate::store::{Checkpoint, MemoryUse, Reservation, Stage, Store, StoreError};
use crate::telemetry::init_logs;
use crate::topics::{self, Severity};

/// A broker's clock may be ahead of this machine's by this much.
const CLOCK_SLACK_MS: i64 = 5_000;
/// More events than this waiting to be folded are worth a word.
const LAG_EVENTS: i64 = 100_000;
/// More cancels than this on the control topic are worth a word.
const MANY_CANCELS: usize = 10_000;
/// Memory used, of what a server may use, that is worth a word.
const FULL_PERCENT: u128 = 90;

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Leave the api out
    #[arg(long)]
    pub no_api: bool,
    /// Leave Redis out
    #[arg(long)]
    pub no_redis: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Ok,
    Warning,
    Error,
}

/// One thing that was looked at.
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

pub async fn doctor(args: DoctorArgs, globals: &Globals, registry: Registry) -> Outcome {
    init_logs("error");
    let unused: &[&str] = match args.no_redis {
        true => &["api", "types", "schedules", "callbacks", "email", "redis"],
        false => &["api", "types", "schedules", "callbacks", "email"],
    };
    let wants = SetupOptions { unused, ..SetupOptions::default() };
    let mut found = vec![configuration(globals, &wants)];
    if let Ok(mut parts) = Setup::load(globals, registry, wants) {
        found.extend(parts.register().err().map(|why| Finding::of("types", why)));
        let ends = match parts.kafka() {
            Ok(broker) => kafka(&parts, broker, &mut found).await,
            Err(why) => {
                found.push(Finding::of("kafka", why));
                None
            }
        };
        if !args.no_redis {
            match parts.redis() {
                Ok(store) => found.extend(redis(store, parts.config.topics.events_partitions, ends.as_deref()).await),
                Err(why) => found.push(Finding::of("redis", why)),
            }
        }
    }
    if !args.no_api {
        found.push(api(globals).await);
    }
    show(&found, globals)
}

fn configuration(globals: &Globals, wants: &SetupOptions) -> Finding {
    match load_config(globals, wants) {
        Ok(loaded) => {
            let file = loaded.path.map_or_else(|| "no file: all is default".to_owned(), |path| path.display().to_string());
            Finding::ok("configuration", file)
        }
        Err(failure) => Finding::of("configuration", failure),
    }
}

/// Returns the ends of the events partitions, where Kafka has told them.
async fn kafka(parts: &Setup, broker: Arc<dyn Broker>, found: &mut Vec<Finding>) -> Option<Vec<Watermarks>> {
    let (config, registry, brokers) = (parts.config.clone(), parts.registry.clone(), parts.brokers());
    let (names, reader) = (Names::new(&parts.config.topics.prefix), broker.clone());
    let looked = blocking(move || look_at_kafka(&*broker, &config, &registry, &brokers)).await;
    let (findings, ends) = looked.unwrap_or_else(|why| (vec![Finding::error("kafka", why)], None));
    found.extend(findings);
    if ends.is_some() {
        found.push(cancels(reader, &names).await);
    }
    ends
}

/// Reports the number of cancels that every worker holds in memory.
async fn cancels(broker: Arc<dyn Broker>, names: &Names) -> Finding {
    let board = ControlWatch::new(ControlState::default());
    let _reading = keep(board.clone(), broker, names, None);
    if let Err(why) = board.whole_within(CALL_DEADLINE, names).await {
        return Finding::warning("cancels", why);
    }
    count_of_cancels(board.orders().cancels().len())
}

fn count_of_cancels(count: usize) -> Finding {
    let what = format!("workers are told of {count}");
    if count < MANY_CANCELS {
        return Finding::ok("cancels", what);
    }
    Finding::warning("cancels", what)
        .hint("a cancel stays until workers have committed past its tasks: see whether each type has workers (`kafleet types`)")
}

fn look_at_kafka(
    broker: &dyn Broker,
    config: &Config,
    registry: &Registry,
    brokers: &str,
) -> (Vec<Finding>, Option<Vec<Watermarks>>) {
    let names = crate::config::Names::new(&config.topics.prefix);
    let count = match broker.topics(&names.prefix, CALL_DEADLINE) {
        Ok(topics) => topics.len(),
        Err(why) => {
            let hint = "check --brokers, KAFLEET_BROKERS or `[kafka]`, and that Kafka runs";
            return (vec![Finding::error("kafka", format!("`{brokers}`: {why}")).hint(hint)], None);
        }
    };
    let mut found = vec![Finding::ok("kafka", format!("`{brokers}` answers"))];
    found.extend(topic_findings(broker, config, registry, count));
    match partitions_of_types(broker, config, registry) {
        Ok(findings) => found.extend(findings),
        Err(why) => found.push(Finding::error("offsets", why.to_string())),
    }
    let events = |index: u32| Partition::new(names.events(), i32::try_from(index).unwrap_or(i32::MAX));
    let ends: Result<Vec<Watermarks>, _> =
        (0..config.topics.events_partitions).map(|index| broker.ends(&events(index), CALL_DEADLINE)).collect();
    let Ok(ends) = ends else { return (found, None) };
    let newest = ends.iter().zip(0..).filter_map(|(ends, index)| newest_ms(broker, &events(index), *ends)).max();
    found.extend(newest.and_then(|newest_ms| clock(newest_ms, now_ms())));
    (found, Some(ends))
}

fn topic_findings(broker: &dyn Broker, config: &Config, registry: &Registry, count: usize) -> Vec<Finding> {
    match topics::check(broker, config, registry, CALL_DEADLINE * 2) {
        Ok(findings) if findings.is_empty() => {
            vec![Finding::ok("topics", format!("{count} with the prefix, all as they should be"))]
        }
        Ok(findings) => findings.into_iter().map(Finding::from).collect(),
        Err(why) => vec![Finding::error("topics", why.to_string())],
    }
}

impl From<topics::Finding> for Finding {
    fn from(given: topics::Finding) -> Self {
        let verdict = match given.severity {
            Severity::Error => Verdict::Error,
            Severity::Warning => Verdict::Warning,
        };
        Self { verdict, subject: given.subject, what: given.what, hint: Some(given.hint) }
    }
}

/// Commits that Kafka has dropped, or that its retention has overtaken.
fn partitions_of_types(broker: &dyn Broker, config: &Config, registry: &Registry) -> Result<Vec<Finding>, BrokerError> {
    let names = crate::config::Names::new(&config.topics.prefix);
    let Ok(control) = read_control(broker, &names, CALL_DEADLINE) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    let types = config.types.keys().cloned().chain(registry.types().map(|(name, _)| name.to_string()));
    for task_type in types.collect::<std::collections::BTreeSet<_>>() {
        let topic: Arc<str> = names.tasks(&task_type).into();
        let numbers = control.consumed.iter().filter(|(name, _)| *name == task_type).map(|(_, number)| *number);
        let partitions: Vec<Partition> = numbers.map(|number| Partition::new(topic.clone(), number)).collect();
        if partitions.is_empty() {
            continue;
        }
        let committed = broker.group_offsets(&names.group(&task_type), &partitions, CALL_DEADLINE)?;
        for (partition, committed) in partitions.iter().zip(committed) {
            let ends = broker.ends(partition, CALL_DEADLINE)?;
            found.extend(place(&task_type, partition, committed.map(|committed| committed.offset), ends));
        }
    }
    Ok(found)
}

fn place(task_type: &str, partition: &Partition, committed: Option<i64>, ends: Watermarks) -> Option<Finding> {
    let what = match committed {
        None => "it was consumed before, but Kafka has dropped the commit: workers refuse it".to_owned(),
        Some(offset) if offset < ends.first => {
            format!("retention has removed {} tasks that were not consumed yet", ends.first - offset)
        }
        Some(offset) if offset > ends.end => format!("committed up to {offset}, but the log ends at {}", ends.end),
        Some(_) => return None,
    };
    let target = format!("{task_type}/{}", partition.index);
    Some(Finding::error(partition.to_string(), what).hint(format!("run `kafleet offsets init {target} --at earliest`")))
}

/// When the last event was appended, if it can be seen.
fn newest_ms(broker: &dyn Broker, partition: &Partition, ends: Watermarks) -> Option<i64> {
    // The last offsets may be markers of transactions.
    (ends.first..ends.end)
        .rev()
        .take(3)
        .find_map(|offset| broker.read_at(partition, offset, CALL_DEADLINE).ok().flatten())
        .map(|record| record.timestamp_ms)
}

/// Only a clock that is ahead can be told from a quiet log.
fn clock(newest_ms: i64, now_ms: i64) -> Option<Finding> {
    let ahead_ms = newest_ms - now_ms;
    (ahead_ms > CLOCK_SLACK_MS).then(|| {
        Finding::warning("clock", format!("the brokers' clock is {} s ahead of this machine's", ahead_ms / 1_000))
            .hint("synchronise the clocks: delays and expiries are off by the difference")
    })
}

async fn redis(store: Arc<dyn Store>, partitions: u32, ends: Option<&[Watermarks]>) -> Vec<Finding> {
    if let Err(why) = timed(store.check()).await {
        return vec![Finding::error("redis", why).hint("check --redis, KAFLEET_REDIS or `[redis]`")];
    }
    let mut found = vec![Finding::ok("redis", "answers, and keeps what it is given (noeviction)")];
    match timed(store.memory()).await {
        Ok(uses) => found.extend(uses.iter().filter_map(memory)),
        Err(why) => found.push(Finding::error("redis", why)),
    }
    found.extend(timed(probe(&*store, partitions)).await.err().map(unwritable));
    let Some(ends) = ends else { return found };
    let partitions: Vec<u32> = (0..).take(ends.len()).collect();
    match timed(store.fences(&partitions)).await {
        Ok(fences) => found.extend(folding(&fences, ends)),
        Err(why) => found.push(Finding::error("redis", why)),
    }
    found
}

/// A server that is nearly full.
fn memory(memory: &MemoryUse) -> Option<Finding> {
    let MemoryUse { server, used_bytes, limit_bytes } = memory;
    let what = format!("`{server}` uses {} of {} (maxmemory)", Bytes(*used_bytes), Bytes(*limit_bytes));
    let is_short = u128::from(*used_bytes) * 100 >= u128::from(*limit_bytes) * FULL_PERCENT;
    is_short.then(|| Finding::warning("redis", what).hint("raise maxmemory before it is full: a full server refuses writes"))
}

/// Writes to each partition, and takes that back: a server that is full still answers.
async fn probe(store: &dyn Store, partitions: u32) -> Result<(), StoreError> {
    let name = format!("doctor-{}", uuid::Uuid::now_v7().simple());
    let id = TaskId::parse(&name).map_err(|why| StoreError::Invalid(why.to_string()))?;
    let mark = Reservation { hash: "probe".to_owned(), stage: Stage::InDoubt };
    for partition in 0..partitions {
        store.reserve(partition, &id, 1, &mark).await?;
        store.replace_reservation(partition, &id, 1, &mark, None).await?;
    }
    Ok(())
}

fn unwritable(why: String) -> Finding {
    let (what, hint) = why.split_once("\n\nhint: ").unwrap_or((&why, "trackers fold nothing while Redis refuses writes"));
    Finding::error("redis", format!("a write is refused: {what}")).hint(hint)
}

async fn timed<T>(call: impl Future<Output = Result<T, crate::store::StoreError>>) -> Result<T, String> {
    let limit = Duration::from_secs(15);
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer.map_err(|why| why.to_string()),
        Err(_) => Err(format!("no answer within {} s", limit.as_secs())),
    }
}

/// How far the trackers are, and fences that do not fit the log.
fn folding(fences: &[Option<Checkpoint>], ends: &[Watermarks]) -> Vec<Finding> {
    let (mut found, mut behind) = (Vec::new(), 0);
    for (index, (fence, ends)) in fences.iter().zip(ends).enumerate() {
        let offset = fence.map_or(ends.first, |fence| fence.offset);
        behind += (ends.end - offset).max(0);
        if offset < ends.first || offset > ends.end {
            let what = format!("Redis is folded up to {offset}, the log holds {} to {}", ends.first, ends.end);
            let hint = "is it the Redis of another fleet? if not, delete the keys of the prefix: trackers fold the log again";
            found.push(Finding::error(format!("events/{index}"), what).hint(hint));
        }
    }
    if behind > LAG_EVENTS {
        found.push(
            Finding::warning("folding", format!("{behind} events wait to be folded"))
                .hint("run more trackers, or look at their logs"),
        );
    } else {
        found.push(Finding::ok("folding", format!("{behind} events wait to be folded")));
    }
    found
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
    let screen = globals.screen();
    if screen.is_json() {
        screen.json(&found)?
    } else {
        screen.line(&text(found, screen.paint))?
    }
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
        lines.push(format!("{}  {:width$}  {}", paint.hue(hue, word), one.subject, what.join(&indent)));
        lines.extend(one.hint.as_ref().map(|hint| format!("{:2$}hint: {}", "", one_line(hint), width + 11)));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_lined_up_with_their_hints() {
        let found =
            [Finding::ok("configuration", "kafleet.toml"), Finding::error("redis", "no answer\n  at all").hint("start it")];
        let expected = "\
ok       configuration  kafleet.toml
error    redis          no answer
                          at all
                        hint: start it";
        assert_eq!(text(&found, Paint(false)), expected);
    }

    #[test]
    fn many_cancels_are_a_warning() {
        assert_eq!(count_of_cancels(3), Finding::ok("cancels", "workers are told of 3"));
        let many = count_of_cancels(MANY_CANCELS);
        assert_eq!((many.verdict, many.what.as_str()), (Verdict::Warning, "workers are told of 10000"));
    }

    #[test]
    fn commits_that_do_not_fit_the_log_are_found() {
        let (partition, ends) = (Partition::new("kafleet.tasks.echo", 3), Watermarks { first: 10, end: 20 });
        for (committed, told) in [
            (None, Some("dropped the commit")),
            (Some(4), Some("removed 6 tasks")),
            (Some(21), Some("the log ends at 20")),
            (Some(10), None),
            (Some(20), None),
        ] {
            let finding = place("echo", &partition, committed, ends);
            assert_eq!(finding.is_some(), told.is_some(), "{committed:?}");
            if let (Some(finding), Some(told)) = (finding, told) {
                assert!(finding.what.contains(told), "{finding:?}");
                assert_eq!(finding.hint.as_deref(), Some("run `kafleet offsets init echo/3 --at earliest`"));
            }
        }
    }

    #[test]
    fn fences_outside_the_log_and_lag_are_found() {
        let fence = |offset| Some(Checkpoint { offset, version: 1, ..Checkpoint::default() });
        let ends = |first, end| Watermarks { first, end };
        let healthy = folding(&[fence(7), None], &[ends(0, 10), ends(0, 5)]);
        assert_eq!(healthy, [Finding::ok("folding", "8 events wait to be folded")]);
        let foreign = folding(&[fence(700), fence(1)], &[ends(0, 10), ends(5, 9)]);
        let errors: Vec<&str> =
            foreign.iter().filter(|one| one.verdict == Verdict::Error).map(|one| one.subject.as_str()).collect();
        assert_eq!(errors, ["events/0", "events/1"]);
        assert_eq!(folding(&[fence(0)], &[ends(0, 200_000)])[0].verdict, Verdict::Warning);
    }

    #[test]
    fn only_a_clock_ahead_is_told() {
        assert_eq!(clock(1_000, 1_000_000), None);
        assert!(clock(60_000, 0).is_some_and(|finding| finding.what.contains("60 s ahead")));
    }
}
