//! Periodic check of the topics that a running role needs, by the same rules as `doctor`, with one request a minute.
//!
//! A topic may be deleted or reconfigured while a fleet runs. The process is then not ready, with the reason and a
//! hint, and a tracker stops projecting. A failed check (Kafka is unreachable) changes nothing.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::check::{Severity, compare};
use super::{agree, find};
use crate::broker::{BrokerClient, BrokerError, TopicInfo, TopicSpec};
use crate::config::Names;
use crate::error_text::single_line;
use crate::model::retention::Lifetimes;
use crate::runtime::{self, Health};

/// Deadline of one check.
const CHECK_DEADLINE: Duration = Duration::from_secs(10);
/// Maximum interval until the next check after one that found a problem.
const RECHECK: Duration = Duration::from_secs(5);
/// Interval of checks until the first one succeeds.
const FIRST_RECHECK: Duration = Duration::from_millis(500);

/// Topics that a role needs, and their required settings.
#[derive(Clone, Debug)]
pub struct RequiredTopics {
    names: Names,
    events_partitions: u32,
    specs: Vec<TopicSpec>,
    /// Topics that must stay once they exist.
    lasting: Vec<String>,
}

impl RequiredTopics {
    /// Control and events topics. Task topics are not included, since a single missing type must not make the API
    /// unavailable for all others.
    pub fn api(names: &Names, events_partitions: u32) -> Self {
        let specs = vec![spec(names.control(), 1, &[]), spec(names.events(), events_partitions, &[])];
        Self { names: names.clone(), events_partitions, specs, lasting: Vec::new() }
    }

    /// Topics of the API and of the given types.
    pub fn worker<'a>(names: &Names, events_partitions: u32, types: impl IntoIterator<Item = &'a str>) -> Self {
        let mut needs = Self::api(names, events_partitions);
        for task_type in types {
            needs.specs.push(spec(names.tasks(task_type), 1, &[("cleanup.policy", "delete".to_owned())]));
            needs.specs.push(spec(names.dead(task_type), 1, &[]));
        }
        needs
    }

    /// Events topic whose retention covers every tree in the store.
    pub fn tracker(names: &Names, events_partitions: u32, lifetimes: &Lifetimes) -> Self {
        let settings = [
            ("cleanup.policy", "delete".to_owned()),
            ("message.timestamp.type", "LogAppendTime".to_owned()),
            ("retention.ms", lifetimes.log_retention_ms().to_string()),
        ];
        let specs = vec![spec(names.events(), events_partitions, &settings)];
        Self { names: names.clone(), events_partitions, specs, lasting: vec![names.control(), names.workers()] }
    }

    /// Requires existing topics to stay.
    fn note(&mut self, present: &[TopicInfo]) {
        let there = self.lasting.extract_if(.., |name| find(present, name).is_some());
        self.specs.extend(there.map(|name| spec(name, 1, &[])));
    }

    /// First problem of these topics; `None` if all are correct.
    pub fn problem(&self, present: &[TopicInfo]) -> Option<String> {
        let events = self.names.events();
        let finding = self.specs.iter().find_map(|spec| {
            let findings = compare(spec, spec.name == events, find(present, &spec.name), 0);
            findings.into_iter().find(|finding| finding.severity == Severity::Error)
        });
        if let Some(finding) = finding {
            return Some(format!("`{}`: {}\n\nhint: {}", finding.subject, finding.what, finding.hint));
        }
        let other = agree(find(present, &events), Some(self.events_partitions), self.events_partitions).err()?;
        Some(other.to_string())
    }
}

fn spec(name: String, partitions: u32, settings: &[(&str, String)]) -> TopicSpec {
    let config = settings.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    TopicSpec { name, partitions, replication: None, config }
}

/// Result of the last checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicStatus {
    /// No check has succeeded yet; error of the last one.
    Unknown(String),
    Fit,
    /// Problem with its hint.
    Unsuitable(String),
}

/// Periodic checker, which runs until dropped.
pub struct TopicWatch {
    shared: Arc<Shared>,
    checking: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    /// `None` before the first check.
    standing: Mutex<Option<TopicStatus>>,
    /// Wakes waiters in order. A `watch` channel wakes them at random, which would make simulations unrepeatable.
    checked: Notify,
}

impl TopicWatch {
    /// Checks at once and then at this interval. Reports problems to `health` under the name `part`.
    pub fn start(
        client: &BrokerClient,
        mut needs: RequiredTopics,
        health: Health,
        part: &'static str,
        every: Duration,
    ) -> Self {
        let shared = Arc::<Shared>::default();
        let known = shared.clone();
        let client = client.with_deadline(CHECK_DEADLINE);
        let checking = runtime::spawn(async move {
            loop {
                let last = known.standing.lock().clone();
                let now = check(&client, &mut needs, last.clone()).await;
                if last.as_ref() != Some(&now) {
                    report(&health, part, &now);
                }
                let pause = match now {
                    TopicStatus::Fit => every,
                    TopicStatus::Unsuitable(_) => every.min(RECHECK),
                    TopicStatus::Unknown(_) => every.min(FIRST_RECHECK),
                };
                *known.standing.lock() = Some(now);
                known.checked.notify_waiters();
                tokio::time::sleep(pause).await;
            }
        });
        Self { shared, checking }
    }

    /// Waits for the first check.
    pub async fn standing(&self) -> TopicStatus {
        loop {
            let mut checked = std::pin::pin!(self.shared.checked.notified());
            checked.as_mut().enable();
            if let Some(standing) = self.shared.standing.lock().clone() {
                return standing;
            }
            checked.await;
        }
    }
}

impl Drop for TopicWatch {
    fn drop(&mut self) {
        self.checking.abort();
    }
}

async fn check(client: &BrokerClient, needs: &mut RequiredTopics, last: Option<TopicStatus>) -> TopicStatus {
    let listed = client.topics(&needs.names.topics()).await;
    status_of(listed, needs, last)
}

/// Evaluates a check. A failed one keeps the last result.
fn status_of(
    listed: Result<Vec<TopicInfo>, BrokerError>,
    needs: &mut RequiredTopics,
    last: Option<TopicStatus>,
) -> TopicStatus {
    match listed {
        Ok(present) => {
            needs.note(&present);
            needs.problem(&present).map_or(TopicStatus::Fit, TopicStatus::Unsuitable)
        }
        Err(why) => {
            tracing::debug!(reason = %why, "topics could not be checked");
            match last {
                Some(known @ (TopicStatus::Fit | TopicStatus::Unsuitable(_))) => known,
                _ => TopicStatus::Unknown(why.to_string()),
            }
        }
    }
}

fn report(health: &Health, part: &str, now: &TopicStatus) {
    match now {
        TopicStatus::Unknown(_) => {}
        TopicStatus::Fit => {
            tracing::debug!(part, "all topics are correct");
            health.clear(part);
        }
        TopicStatus::Unsuitable(why) => {
            tracing::error!(part, reason = single_line(why), "not ready: a topic is not as required");
            health.set(part, why.as_str());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(name: &str, partitions: u32, settings: &[(&str, &str)]) -> TopicInfo {
        let config = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        TopicInfo { name: name.to_owned(), partitions, replication: 1, config }
    }

    fn applied() -> Vec<TopicInfo> {
        let events =
            [("message.timestamp.type", "LogAppendTime"), ("retention.ms", "-1"), ("cleanup.policy", "delete")];
        vec![
            topic("t.control", 1, &[("cleanup.policy", "compact")]),
            topic("t.dead.echo", 1, &[]),
            topic("t.events", 4, &events),
            topic("t.tasks.echo", 2, &[]),
        ]
    }

    /// Topics with one of them replaced.
    fn with(name: &str, partitions: u32, settings: &[(&str, &str)]) -> Vec<TopicInfo> {
        let others = applied().into_iter().filter(|info| info.name != name);
        others.chain([topic(name, partitions, settings)]).collect()
    }

    fn without(name: &str) -> Vec<TopicInfo> {
        applied().into_iter().filter(|info| info.name != name).collect()
    }

    #[test]
    fn each_role_names_the_problems_of_its_own_topics() {
        let names = Names::new("t");
        let api = RequiredTopics::api(&names, 4);
        let worker = RequiredTopics::worker(&names, 4, ["echo"]);
        let tracker = RequiredTopics::tracker(&names, 4, &Lifetimes::default());
        for needs in [&api, &worker, &tracker] {
            assert_eq!(needs.problem(&applied()), None, "{needs:?}");
        }
        let stamped = ("message.timestamp.type", "LogAppendTime");
        for (needs, present, expected) in [
            (
                &worker,
                without("t.tasks.echo"),
                "`t.tasks.echo`: the topic does not exist\n\nhint: run `kafleet topics apply`",
            ),
            (&worker, without("t.dead.echo"), "`t.dead.echo`: the topic does not exist"),
            (&api, without("t.control"), "`t.control`: the topic does not exist"),
            (&tracker, without("t.events"), "`t.events`: the topic does not exist"),
            (&tracker, with("t.events", 4, &[stamped, ("retention.ms", "60000")]), "`retention.ms` is `1m`"),
            (&tracker, with("t.events", 4, &[stamped]), "`retention.ms` is not set"),
            (
                &tracker,
                with("t.events", 4, &[stamped, ("retention.ms", "-1"), ("cleanup.policy", "compact,delete")]),
                "`cleanup.policy` is `compact,delete`, expected `delete`",
            ),
            (&tracker, with("t.events", 5, &[stamped, ("retention.ms", "-1")]), "has 5 partitions, but 4 were applied"),
            (&worker, with("t.tasks.echo", 2, &[("cleanup.policy", "compact")]), "`cleanup.policy` is `compact`"),
        ] {
            let problem = needs.problem(&present);
            let matches = |problem: &String| problem.contains(expected) && problem.contains("\n\nhint: ");
            assert!(problem.as_ref().is_some_and(matches), "{problem:?} {expected}");
        }
        assert_eq!(api.problem(&without("t.tasks.echo")), None, "a missing type does not affect the API");
    }

    #[test]
    fn failed_check_keeps_the_last_result() {
        let mut needs = RequiredTopics::tracker(&Names::new("t"), 4, &Lifetimes::default());
        let away = || Err(BrokerError::Unavailable("broker away".to_owned()));
        let unknown = TopicStatus::Unknown("broker away".to_owned());
        assert_eq!(status_of(away(), &mut needs, None), unknown);
        let fit = status_of(Ok(applied()), &mut needs, Some(unknown));
        assert_eq!(fit, TopicStatus::Fit);
        assert_eq!(status_of(away(), &mut needs, Some(fit.clone())), fit);
        let unsuitable = status_of(Ok(without("t.control")), &mut needs, Some(fit));
        assert!(
            matches!(&unsuitable, TopicStatus::Unsuitable(why) if why.contains("`t.control`")),
            "a topic that existed is missing: {unsuitable:?}"
        );
        assert_eq!(status_of(away(), &mut needs, Some(unsuitable.clone())), unsuitable);
    }
}
