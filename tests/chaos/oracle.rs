//! Checks against the known trees, the recorded executions and the records in Kafka, independent of the fleet's own
//! logic.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use kafleet::model::record::state::State;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::apis::Apis;
use crate::executions::{Cause, Executions, Repeat};
use crate::fleet::{SCHEDULE, SCHEDULE_EVERY_S};
use crate::load::{PublishedTree, REPLY_DEADLINE};
use crate::topics::Topics;
use crate::trees::{ExpectedTask, Source};

/// Maximum time for the API to reach the expected state after the last tree has ended.
const SETTLE: Duration = Duration::from_secs(90);
/// Number of trees checked concurrently.
const CONCURRENCY: usize = 16;
/// Window of a partition: maximum number of attempts repeated after the loss of a worker.
const WINDOW: usize = 256;

/// Violations by kind.
#[derive(Default)]
pub struct Violations {
    pub lost: Vec<String>,
    pub rollups: Vec<String>,
    pub counts: Vec<String>,
}

impl Violations {
    pub fn is_empty(&self) -> bool {
        self.lost.is_empty() && self.rollups.is_empty() && self.counts.is_empty()
    }
}

pub struct Oracle<'a> {
    pub apis: &'a Apis,
    pub published: &'a [PublishedTree],
    pub probes: &'a BTreeMap<String, u32>,
}

impl Oracle<'_> {
    /// Violations in the API's responses, once there are none or after [`SETTLE`]. `read` reads the topics for each
    /// try, because the last scheduled task may come late.
    pub async fn violations(&self, read: &dyn Fn() -> Topics) -> Violations {
        let until = Instant::now() + SETTLE;
        loop {
            let violations = self.check(scheduled_ids(&read()).count()).await;
            if violations.is_empty() || Instant::now() > until {
                return violations;
            }
            sleep(Duration::from_secs(2)).await;
        }
    }

    async fn check(&self, scheduled_ids: usize) -> Violations {
        let mut violations = Violations::default();
        let pages = self.published.iter().map(async |published| {
            let path = format!("/v1/tasks?root={}&limit=200", published.tree.root.name);
            (published.tree.expected_tasks(), self.apis.get(&path, Instant::now() + REPLY_DEADLINE).await)
        });
        let mut pages = stream::iter(pages).buffer_unordered(CONCURRENCY);
        while let Some((expected_tasks, page)) = pages.next().await {
            match page {
                Ok(page) => compare(&expected_tasks, &page["tasks"], &mut violations),
                Err(error) => violations.lost.push(error),
            }
        }
        self.compare_counts(scheduled_ids, &mut violations).await;
        violations
    }

    /// Compares the counts by type with the number of published tasks.
    async fn compare_counts(&self, scheduled_ids: usize, violations: &mut Violations) {
        let mut expected = BTreeMap::<(String, State), usize>::new();
        for task in self.published.iter().flat_map(|published| published.tree.expected_tasks()) {
            *expected.entry((task.kind, task.state)).or_default() += 1;
        }
        *expected.entry(("work".to_owned(), State::Succeeded)).or_default() += self.probes.len() + scheduled_ids;
        let types = match self.apis.get("/v1/types", Instant::now() + REPLY_DEADLINE).await {
            Ok(types) => types,
            Err(error) => return violations.counts.push(error),
        };
        for kind in types["types"].as_array().into_iter().flatten() {
            let name = kind["type"].as_str().unwrap_or_default();
            for state in State::ALL {
                let reported = kind["counts"][state.to_string()].as_u64().unwrap_or(0) as usize;
                let counted = expected.remove(&(name.to_owned(), state)).unwrap_or(0);
                if reported != counted {
                    violations.counts.push(format!("{name} {state}: reported {reported}, counted {counted}"));
                }
            }
        }
        violations.counts.extend(
            expected
                .into_iter()
                .filter(|(_, count)| *count > 0)
                .map(|(counter, count)| format!("{} {}: reported none, counted {count}", counter.0, counter.1)),
        );
    }
}

/// Compares a tree with its expected outcome.
fn compare(expected_tasks: &[ExpectedTask], tasks: &Value, violations: &mut Violations) {
    let reported: BTreeMap<&str, &Value> = tasks
        .as_array()
        .into_iter()
        .flatten()
        .map(|status| (status["id"].as_str().unwrap_or_default(), status))
        .collect();
    for (index, expected) in expected_tasks.iter().enumerate() {
        let Some(status) = reported.get(&*expected.id) else {
            violations.lost.push(format!("`{}` is unknown", expected.id));
            continue;
        };
        if !status["state"]
            .as_str()
            .is_some_and(|state| ["succeeded", "failed", "cancelled", "expired"].contains(&state))
        {
            violations.lost.push(format!("`{}` stays {}", expected.id, status["state"]));
            continue;
        }
        let actual = (&status["own_state"], &status["state"], &status["run"]);
        let expected_states = (json!(expected.own), json!(expected.state), json!(expected.run));
        if actual != (&expected_states.0, &expected_states.1, &expected_states.2) {
            violations.rollups.push(format!("`{}` is {actual:?} instead of {expected_states:?}", expected.id));
        }
        compare_counts(expected_tasks, index, status, violations);
    }
    for id in reported.keys().filter(|id| !expected_tasks.iter().any(|expected| expected.id == **id)) {
        violations.rollups.push(format!("`{id}` was not requested"));
    }
}

/// Compares the counts of a task with a count of its children and its tree.
fn compare_counts(expected_tasks: &[ExpectedTask], index: usize, status: &Value, violations: &mut Violations) {
    let expected = &expected_tasks[index];
    let mut by_state = BTreeMap::<String, u64>::new();
    for child in &expected.children {
        *by_state.entry(expected_tasks[*child].state.to_string()).or_default() += 1;
    }
    let reported = &status["children"];
    let zero = |(name, count): (&String, &Value)| (count.as_u64() != Some(0)).then(|| (name.clone(), count.clone()));
    let reported_by_state: serde_json::Map<String, Value> =
        reported["by_state"].as_object().into_iter().flatten().filter_map(zero).collect();
    if json!(by_state) != json!(reported_by_state) || reported["total"] != json!(expected.children.len()) {
        violations.counts.push(format!("`{}` reports the children {reported}, counted {by_state:?}", expected.id));
    }
    let below = |id: &str| id.strip_prefix(&*expected.id).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'));
    let all: Vec<&ExpectedTask> = expected_tasks.iter().filter(|other| below(&other.id)).collect();
    let well = all.iter().filter(|other| other.state == State::Succeeded).count();
    let tree = &status["tree"];
    let counted = json!([all.len(), 0, well, all.len() - well]);
    if json!([tree["total"], tree["pending"], tree["successful"], tree["failed"]]) != counted {
        violations.counts.push(format!("`{}` reports the tree {tree}, counted {counted}", expected.id));
    }
}

/// Numbers of records published by timers, effects and schedules, and violations.
#[derive(Default, Debug, serde::Serialize)]
pub struct PublishCounts {
    pub timers: usize,
    pub continuations: usize,
    pub retries: usize,
    pub scheduled: usize,
    pub wrong: Vec<String>,
}

/// Checks the number of records per task: one for a timer or an effect, at least one for a publisher or a parent, and
/// never more than requested.
pub fn publish_counts(
    published: &[PublishedTree],
    executions: &Executions,
    topics: &Topics,
) -> (PublishCounts, Vec<String>) {
    let (mut publish_counts, mut lost) = (PublishCounts::default(), Vec::new());
    for published in published {
        let expected_tasks = published.tree.expected_tasks();
        for expected in &expected_tasks {
            let run = if expected.source == Source::Effect { expected.run } else { 1 };
            let count = topics.count(&expected.id, run, 0);
            let parent = expected.parent.map(|parent| executions.ends(&expected_tasks[parent].id, 1, "succeeded"));
            let requested = parent.unwrap_or(1 + published.retried_sends as usize).max(1);
            let (most, least) = match expected.source {
                Source::Never => (0, 0),
                Source::Publisher | Source::Parent => (requested, 1),
                Source::Timer => {
                    publish_counts.timers += 1;
                    (requested, 1)
                }
                Source::Effect => {
                    publish_counts.continuations += 1;
                    (1, 1)
                }
            };
            if count < least {
                lost.push(format!("`{}` has no record", expected.id));
            }
            if count > most {
                publish_counts
                    .wrong
                    .push(format!("`{}` was published {count} times, requested {most} times", expected.id));
            }
            if expected.run == 2 && expected.source != Source::Effect {
                publish_counts.retries += 1;
                let count = topics.count(&expected.id, 2, 0);
                if count != 1 {
                    publish_counts.wrong.push(format!("`{}` was retried {count} times", expected.id));
                }
            }
            lost.extend(missing_execution(expected, executions));
            if expected.dead && !topics.dead.contains_key(&expected.id) {
                lost.push(format!("`{}` has no dead letter", expected.id));
            }
        }
    }
    retries_by_timer(executions, topics, &mut publish_counts);
    scheduled(topics, &mut publish_counts);
    (publish_counts, lost)
}

/// Finds a terminal state without an execution.
fn missing_execution(expected: &ExpectedTask, executions: &Executions) -> Option<String> {
    let end = match expected.own {
        State::Succeeded => "succeeded",
        State::Failed => "failed",
        _ => return None,
    };
    let done = executions.ends(&expected.id, expected.run, end) > 0;
    (expected.is_run && !done).then(|| format!("`{}` was not executed in run {}", expected.id, expected.run))
}

/// Checks that a retry that waited at the tracker was released at most once per failed attempt.
fn retries_by_timer(executions: &Executions, topics: &Topics, publish_counts: &mut PublishCounts) {
    for ((id, run, used), partitions) in topics.tasks.iter().filter(|(key, _)| key.2 > 0) {
        publish_counts.timers += 1;
        let failed = executions
            .of(id, *run)
            .iter()
            .filter(|execution| execution.attempt == *used && execution.end.as_deref() == Some("again"));
        let requested = failed.count();
        if partitions.len() > requested {
            publish_counts.wrong.push(format!(
                "attempt {} of `{id}` was released {} times after {requested} failures",
                used + 1,
                partitions.len()
            ));
        }
    }
}

/// Ids of the tasks of the schedule.
pub fn scheduled_ids(topics: &Topics) -> impl Iterator<Item = &String> {
    let prefix = format!("{SCHEDULE}.");
    topics.tasks.keys().map(|(id, ..)| id).filter(move |id| id.starts_with(&prefix))
}

/// Checks that each time of the schedule has one task, without gaps.
fn scheduled(topics: &Topics, publish_counts: &mut PublishCounts) {
    let mut times = Vec::new();
    for id in scheduled_ids(topics) {
        publish_counts.scheduled += 1;
        let time = id.split_once('.').map_or("", |(_, time)| time);
        match jiff::civil::DateTime::strptime("%Y%m%dT%H%M%SZ", time) {
            Ok(time) => times.push(time.to_zoned(jiff::tz::TimeZone::UTC).unwrap().timestamp().as_second()),
            Err(error) => publish_counts.wrong.push(format!("`{id}` does not contain a time: {error}")),
        }
        let count = topics.count(id, 1, 0);
        if count != 1 {
            publish_counts.wrong.push(format!("`{id}` was created {count} times"));
        }
    }
    times.sort_unstable();
    let gaps = times.windows(2).filter(|pair| pair[1] - pair[0] != SCHEDULE_EVERY_S);
    publish_counts.wrong.extend(
        gaps.map(|pair| format!("the schedule created no task between {} and {} (epoch seconds)", pair[0], pair[1])),
    );
}

/// Checks that repetitions per worker, partition and cause do not exceed a window.
pub fn beyond_window(repeats: &[Repeat], topics: &Topics) -> Vec<String> {
    let mut counts = BTreeMap::<(&str, String, i64, &str), usize>::new();
    // Two records of a task cause two executions.
    for repeat in repeats.iter().filter(|repeat| !matches!(repeat.cause, Cause::Record | Cause::Parent)) {
        let partition = topics.first_partition(&repeat.id).map(ToString::to_string).unwrap_or_default();
        let since_ms = if let Cause::Fault(_, since_ms) = repeat.cause { since_ms } else { 0 };
        *counts.entry((&repeat.first.worker, partition, since_ms, repeat.cause.name())).or_default() += 1;
    }
    let beyond = counts.into_iter().filter(|(_, count)| *count > WINDOW);
    let describe = |((worker, partition, _, cause), count)| {
        format!("{count} attempts of {worker} in {partition} were repeated: {cause}")
    };
    beyond.map(describe).collect()
}

/// Checks that a graceful stop repeats no finished execution.
pub fn repeated_after_stop(repeats: &[Repeat]) -> Vec<String> {
    let all = repeats.iter().filter(|repeat| repeat.cause == Cause::Finished);
    all.map(|repeat| {
        format!("attempt {} of run {} of `{}`, by {}", repeat.attempt, repeat.run, repeat.id, repeat.first.worker)
    })
    .collect()
}
