//! Periodic check of the topics that a running role needs, by the same rules as `doctor`, with one request a minute.
//!
//! A topic may be deleted or reconfigured while a fleet runs. The process is then not ready, with the reason and a
//! hint, and a tracker stops projecting. A failed check (Kafka is unreachable) changes nothing.

use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::{BrokerClient, BrokerError, TopicInfo};
use kafleet_config::Topology;
use kafleet_model::retention::Lifetimes;
use kafleet_model::units::duration::Millis;
use kafleet_runtime::Health;
use kafleet_runtime::error_text::single_line;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::check::{Severity, TopicFinding, compare};
use super::settings::{Kind, RequiredTopic};
use super::{MAX_DEAD_BYTES, MAX_RECORD_BYTES, agree, find};

/// Deadline of one check.
const CHECK_DEADLINE: Duration = Duration::from_secs(10);
/// Maximum interval until the next check after one that found a problem.
const RECHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Interval of checks until the first one succeeds.
const FIRST_RECHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Topics that a role needs, and their required settings.
#[derive(Clone, Debug)]
pub struct RequiredTopics {
    topology: Topology,
    topics: Vec<NeededTopic>,
    /// Topics that must stay once they exist.
    lasting: Vec<NeededTopic>,
}

/// Topic that a role needs.
#[derive(Clone, Debug)]
struct NeededTopic {
    topic: RequiredTopic,
    checks: Checks,
}

/// Extent of a role's checks of a topic that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Checks {
    Nothing,
    /// Settings of the topic, if the role may read them.
    KnownSettings,
    Settings,
}

impl NeededTopic {
    fn new(name: String, kind: Kind) -> Self {
        let max_bytes = if kind == Kind::Dead { MAX_DEAD_BYTES } else { MAX_RECORD_BYTES };
        let topic = RequiredTopic { name, kind, partitions: 1, replication: None, retention: None, max_bytes };
        Self { topic, checks: Checks::KnownSettings }
    }

    fn checking(self, checks: Checks) -> Self {
        Self { checks, ..self }
    }

    /// First problem for which the role does not work.
    fn problem(&self, info: Option<&TopicInfo>) -> Option<TopicFinding> {
        let is_unchecked = |info: &TopicInfo| match self.checks {
            Checks::Nothing => true,
            Checks::KnownSettings => !info.has_known_settings(),
            Checks::Settings => false,
        };
        if info.is_some_and(is_unchecked) {
            return None;
        }
        compare(&self.topic, info, 0).into_iter().find(|finding| finding.severity == Severity::Error)
    }
}

impl RequiredTopics {
    /// Control and events topics. Task topics are not included, since a single missing type must not make the API
    /// unavailable for all others.
    pub fn api(topology: &Topology) -> Self {
        let names = &topology.names;
        let topics =
            vec![NeededTopic::new(names.control(), Kind::Control), NeededTopic::new(names.events(), Kind::Events)];
        Self { topology: topology.clone(), topics, lasting: Vec::new() }
    }

    /// Topics of the API and of the given types.
    pub fn worker<'a>(topology: &Topology, types: impl IntoIterator<Item = &'a str>) -> Self {
        let (names, mut needs) = (&topology.names, Self::api(topology));
        for task_type in types {
            needs.topics.push(NeededTopic::new(names.tasks(task_type), Kind::Tasks).checking(Checks::Settings));
            needs.topics.push(NeededTopic::new(names.dead(task_type), Kind::Dead));
        }
        needs
    }

    /// Topics of the API, and that of markers.
    pub fn outbox(topology: &Topology) -> Self {
        let mut needs = Self::api(topology);
        let markers = NeededTopic::new(topology.names.outbox(), Kind::Outbox);
        needs.topics.push(markers.checking(Checks::Settings));
        needs
    }

    /// Events topic whose retention covers every tree in the store.
    pub fn tracker(topology: &Topology, lifetimes: &Lifetimes) -> Self {
        let names = &topology.names;
        let mut events = NeededTopic::new(names.events(), Kind::Events).checking(Checks::Settings);
        events.topic.retention = Some(Millis(lifetimes.log_retention_ms().unsigned_abs()));
        let lasting = [(names.control(), Kind::Control), (names.workers(), Kind::Workers)];
        let lasting = lasting.map(|(name, kind)| NeededTopic::new(name, kind).checking(Checks::Nothing)).to_vec();
        Self { topology: topology.clone(), topics: vec![events], lasting }
    }

    /// Requires existing topics to stay.
    fn require_existing(&mut self, present: &[TopicInfo]) {
        let existing = self.lasting.extract_if(.., |need| find(present, &need.topic.name).is_some());
        self.topics.extend(existing);
    }

    /// First problem of these topics; `None` if all are correct.
    pub fn problem(&self, present: &[TopicInfo]) -> Option<String> {
        let finding = self.topics.iter().find_map(|need| need.problem(find(present, &need.topic.name)));
        if let Some(finding) = finding {
            return Some(format!("`{}`: {}\n\nhint: {}", finding.subject, finding.message, finding.hint));
        }
        let Topology { names, events_partitions } = &self.topology;
        let events = find(present, &names.events());
        let other = agree(events, Some(*events_partitions), *events_partitions).err()?;
        Some(other.to_string())
    }
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
    shared: Arc<WatchedTopics>,
    checking: JoinHandle<()>,
}

#[derive(Default)]
struct WatchedTopics {
    /// `None` before the first check.
    status: Mutex<Option<TopicStatus>>,
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
        let shared = Arc::<WatchedTopics>::default();
        let watched = shared.clone();
        let client = client.with_deadline(CHECK_DEADLINE);
        let checking = kafleet_runtime::spawn(async move {
            loop {
                let last = watched.status.lock().clone();
                let now = check(&client, &mut needs, last.clone()).await;
                if last.as_ref() != Some(&now) {
                    report(&health, part, &now);
                }
                let pause = match now {
                    TopicStatus::Fit => every,
                    TopicStatus::Unsuitable(_) => every.min(RECHECK_INTERVAL),
                    TopicStatus::Unknown(_) => every.min(FIRST_RECHECK_INTERVAL),
                };
                *watched.status.lock() = Some(now);
                watched.checked.notify_waiters();
                tokio::time::sleep(pause).await;
            }
        });
        Self { shared, checking }
    }

    /// Waits for the first check.
    pub async fn status(&self) -> TopicStatus {
        loop {
            let mut checked = std::pin::pin!(self.shared.checked.notified());
            checked.as_mut().enable();
            if let Some(status) = self.shared.status.lock().clone() {
                return status;
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
    let listed = client.topics(&needs.topology.names.topics()).await;
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
            needs.require_existing(&present);
            needs.problem(&present).map_or(TopicStatus::Fit, TopicStatus::Unsuitable)
        }
        Err(error) => {
            tracing::debug!(reason = %error, "topics could not be checked");
            match last {
                Some(status @ (TopicStatus::Fit | TopicStatus::Unsuitable(_))) => status,
                _ => TopicStatus::Unknown(error.to_string()),
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
        TopicStatus::Unsuitable(error) => {
            tracing::error!(part, reason = single_line(error), "not ready: a topic is not as required");
            health.set(part, error.as_str());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafleet_config::Names;

    fn topic(name: &str, partitions: u32, settings: &[(&str, &str)]) -> TopicInfo {
        let config = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        TopicInfo { name: name.to_owned(), partitions, replication: 1, config, inherited: Vec::new() }
    }

    const GOOD: [(&str, &str); 3] =
        [("message.timestamp.type", "LogAppendTime"), ("retention.ms", "-1"), ("max.message.bytes", "9999999")];

    fn applied() -> Vec<TopicInfo> {
        vec![
            topic("t.control", 1, &[&[("cleanup.policy", "compact")], &GOOD[..]].concat()),
            topic("t.dead.echo", 1, &[]),
            topic("t.events", 4, &GOOD),
            topic("t.tasks.echo", 2, &GOOD),
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
        let topology = Topology::new(Names::new("t"), 4);
        let api = RequiredTopics::api(&topology);
        let worker = RequiredTopics::worker(&topology, ["echo"]);
        let tracker = RequiredTopics::tracker(&topology, &Lifetimes::default());
        for needs in [&api, &worker, &tracker] {
            assert_eq!(needs.problem(&applied()), None, "{needs:?}");
        }
        let good = |more: &[(&'static str, &'static str)]| {
            let others = GOOD.iter().filter(|(key, _)| more.iter().all(|(other, _)| key != other));
            others.chain(more).copied().collect::<Vec<_>>()
        };
        for (needs, present, expected) in [
            (
                &worker,
                without("t.tasks.echo"),
                "`t.tasks.echo`: the topic does not exist\n\nhint: run `kafleet topics apply`",
            ),
            (&worker, without("t.dead.echo"), "`t.dead.echo`: the topic does not exist"),
            (&api, without("t.control"), "`t.control`: the topic does not exist"),
            (&tracker, without("t.events"), "`t.events`: the topic does not exist"),
            (&tracker, with("t.events", 4, &good(&[("retention.ms", "60000")])), "`retention.ms` is `1m`"),
            (&tracker, with("t.events", 4, &GOOD[..1]), "`retention.ms` is `7d`"),
            (&tracker, with("t.events", 4, &good(&[("retention.bytes", "1000000")])), "`retention.bytes` is"),
            (
                &tracker,
                with("t.events", 4, &good(&[("cleanup.policy", "compact,delete")])),
                "`cleanup.policy` is `compact,delete`, expected `delete`",
            ),
            (&tracker, with("t.events", 5, &GOOD), "has 5 partitions, but 4 were applied"),
            (
                &worker,
                with("t.tasks.echo", 2, &good(&[("cleanup.policy", "compact")])),
                "`cleanup.policy` is `compact`",
            ),
            (&worker, with("t.tasks.echo", 2, &GOOD[1..]), "`message.timestamp.type` is `CreateTime`"),
            (&worker, with("t.dead.echo", 1, &GOOD[..1]), "`max.message.bytes` is `1048588B`"),
            (&api, with("t.control", 1, &GOOD), "`cleanup.policy` is `delete`, expected `compact`"),
            (&api, with("t.events", 4, &good(&[("min.insync.replicas", "2")])), "every record is refused"),
        ] {
            let problem = needs.problem(&present);
            let matches = |problem: &String| problem.contains(expected) && problem.contains("\n\nhint: ");
            assert!(problem.as_ref().is_some_and(matches), "{problem:?} {expected}");
        }
        assert_eq!(api.problem(&without("t.tasks.echo")), None, "a missing type does not affect the API");
    }

    #[test]
    fn failed_check_keeps_the_last_result() {
        let mut needs = RequiredTopics::tracker(&Topology::new(Names::new("t"), 4), &Lifetimes::default());
        let away = || Err(BrokerError::Unavailable("broker away".to_owned()));
        let unknown = TopicStatus::Unknown("broker away".to_owned());
        assert_eq!(status_of(away(), &mut needs, None), unknown);
        let fit = status_of(Ok(applied()), &mut needs, Some(unknown));
        assert_eq!(fit, TopicStatus::Fit);
        assert_eq!(status_of(away(), &mut needs, Some(fit.clone())), fit);
        let unsuitable = status_of(Ok(without("t.control")), &mut needs, Some(fit));
        assert!(
            matches!(&unsuitable, TopicStatus::Unsuitable(error) if error.contains("`t.control`")),
            "a topic that existed is missing: {unsuitable:?}"
        );
        assert_eq!(status_of(away(), &mut needs, Some(unsuitable.clone())), unsuitable);
    }
}
