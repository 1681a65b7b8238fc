//! Live updates: one stream per focused tab (`GET /ui/live?on=TOPIC`), whose events mean only that the page may be
//! stale. One loop reads the change notices and marks topics, however many streams there are.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use kafleet_api::http::problem::ApiError;
use kafleet_api::http::request::bad_parameter;
use kafleet_api::read::fleet_feed::too_many;
use kafleet_api::read::notices::Notices;
use kafleet_api::read::recent::Recent;
use kafleet_api::service::watch::{Events, event_stream};
use kafleet_api::service::why::RecentQueues;
use kafleet_documents::{Audit, DurationStats, EndReason, Params, Stats, Why};
use kafleet_fleet::control::ControlWatch;
use kafleet_model::task::id::{TaskId, check_type};
use kafleet_runtime::{now_ms, watch};
use kafleet_store::Notice;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::cache::SharedMains;
use super::navigation::SharedCounts;
use super::refresh_limiter::RefreshLimiter;
use super::response::with_security_headers;
use super::session;
use super::state::Ui;
use super::visit::Fields;

/// Maximum concurrent streams.
const MAX_STREAMS: usize = 5_000;
/// Lifetime of a stream; the browser then opens another one.
const STREAM_LIFETIME: Duration = Duration::from_secs(3_600);
/// Minimum time between two events of a tree's stream.
const TREE_EVENT_INTERVAL: Duration = Duration::from_millis(250);
/// Minimum time between two events of other streams.
const EVENT_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time between two events: pages also show times, heartbeats and values of Kafka, which have no notices.
const REFRESH_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum time between two events of the pages of workers.
const WORKERS_REFRESH_INTERVAL: Duration = Duration::from_secs(3);
/// Lifetime of params. The record at a position does not change until its topic is created again.
const PARAMS_LIFETIME: Duration = Duration::from_secs(600);
/// Lifetime of the reasons for a state.
const REASONS_LIFETIME: Duration = Duration::from_secs(1);
/// Lifetime of the dead letter of a task, for which the end of a topic is read.
const LETTERS_LIFETIME: Duration = Duration::from_secs(5);
/// Lifetime of statistics, which are read from all partitions.
const STATISTICS_LIFETIME: Duration = Duration::from_secs(1);
/// Lifetime of distributions, which change little and are read from all partitions.
const DURATIONS_LIFETIME: Duration = Duration::from_secs(10);
/// Lifetime of the kinds of errors that can be chosen in a search.
const KINDS_LIFETIME: Duration = Duration::from_secs(30);

/// Subject of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LiveTopic {
    /// All tasks, pauses, limits and kill switches.
    Fleet,
    /// Tasks of a type, pauses, limits and kill switches.
    Type(String),
    Workers,
    /// Pauses, limits, kill switches and schedules.
    Control,
    Tree(TaskId),
}

impl LiveTopic {
    fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':').unwrap_or((text, "")) {
            ("fleet", "") => Ok(Self::Fleet),
            ("workers", "") => Ok(Self::Workers),
            ("control", "") => Ok(Self::Control),
            ("type", name) => check_type(name).map(|()| Self::Type(name.to_owned())),
            ("tree", id) => TaskId::parse(id).map(Self::Tree).map_err(|error| error.to_string()),
            _ => Err("expected `fleet`, `workers`, `control`, `type:` and a type, or `tree:` and an id".to_owned()),
        }
    }

    const fn event_interval(&self) -> Duration {
        if matches!(self, Self::Tree(_)) { TREE_EVENT_INTERVAL } else { EVENT_INTERVAL }
    }

    const fn refresh_interval(&self) -> Duration {
        if matches!(self, Self::Workers) { WORKERS_REFRESH_INTERVAL } else { REFRESH_INTERVAL }
    }
}

/// State of live updates. Topics hold the time of their last change.
pub(crate) struct Live {
    fleet: watch::Sender<Instant>,
    control: watch::Sender<Instant>,
    /// Trees with streams.
    trees: Mutex<FxHashMap<TaskId, LiveTree>>,
    /// Types with streams.
    types: Mutex<FxHashMap<String, watch::Sender<Instant>>>,
    slots: Arc<Semaphore>,
    pub(super) refreshes: RefreshLimiter,
    pub(super) shared: SharedMains,
    /// Params by role, mask, task and position of the record.
    pub(super) params: Recent<Params>,
    /// Reasons by task and state.
    pub(super) reasons: Recent<Why>,
    /// Queues of the tasks whose reasons are shown.
    pub(super) queues: RecentQueues,
    /// Statistics by series and range.
    pub(super) statistics: Recent<Stats>,
    /// Distributions of times by type.
    pub(super) durations: Recent<DurationStats>,
    /// Newest requests of users.
    pub(super) requests: Recent<Audit>,
    /// Kinds of errors by type, all under the empty one.
    pub(super) error_kinds: Recent<Vec<String>>,
    /// Counts in the navigation.
    pub(super) counted: SharedCounts,
    /// Unresolved dead letter by task and run, if there is one.
    pub(super) letters: Recent<Option<String>>,
}

struct LiveTree {
    partition: u32,
    changed: watch::Sender<Instant>,
}

/// Subscription of a stream; unsubscribes on drop.
struct LiveSubscription {
    live: Arc<Live>,
    topic: LiveTopic,
    changed: watch::Receiver<Instant>,
    _slot: OwnedSemaphorePermit,
}

impl Default for Live {
    fn default() -> Self {
        Self {
            fleet: watch::Sender::new(Instant::now()),
            control: watch::Sender::new(Instant::now()),
            trees: Mutex::default(),
            types: Mutex::default(),
            slots: Arc::new(Semaphore::new(MAX_STREAMS)),
            refreshes: RefreshLimiter::default(),
            shared: SharedMains::default(),
            params: Recent::new(PARAMS_LIFETIME, |params| params.params.text().len()),
            reasons: Recent::new(REASONS_LIFETIME, |explanation| {
                explanation.findings.iter().map(|finding| 256 + finding.message.len()).sum()
            }),
            queues: RecentQueues::default(),
            statistics: Recent::new(STATISTICS_LIFETIME, |stats| {
                stats.series.iter().map(|series| 512 * series.points.len()).sum()
            }),
            durations: Recent::new(DURATIONS_LIFETIME, |stats| {
                24 * stats.run.buckets.len() + 24 * stats.wait.buckets.len()
            }),
            requests: Recent::new(STATISTICS_LIFETIME, |audit| 512 * audit.requests.len()),
            error_kinds: Recent::new(KINDS_LIFETIME, |kinds| kinds.iter().map(|kind| 64 + kind.len()).sum()),
            counted: SharedCounts::default(),
            letters: Recent::new(LETTERS_LIFETIME, |letter| letter.as_ref().map_or(0, String::len)),
        }
    }
}

impl Live {
    fn subscribe(self: &Arc<Self>, topic: LiveTopic, partition: u32) -> Result<LiveSubscription, ApiError> {
        let slot = self.slots.clone().try_acquire_owned().map_err(|_| too_many(MAX_STREAMS))?;
        let changed = match &topic {
            LiveTopic::Fleet => self.fleet.subscribe(),
            LiveTopic::Workers | LiveTopic::Control => self.control.subscribe(),
            LiveTopic::Type(name) => {
                let changed = || watch::Sender::new(Instant::now());
                self.types.lock().entry(name.clone()).or_insert_with(changed).subscribe()
            }
            LiveTopic::Tree(id) => {
                let tree = || LiveTree { partition, changed: watch::Sender::new(Instant::now()) };
                self.trees.lock().entry(id.clone()).or_insert_with(tree).changed.subscribe()
            }
        };
        Ok(LiveSubscription { live: self.clone(), topic, changed, _slot: slot })
    }

    /// Time after which a topic has not changed. Changes of a tree or a type are known while it has streams.
    pub(super) fn last_change(&self, topic: &str) -> Instant {
        let changed_at = match LiveTopic::parse(topic) {
            Ok(LiveTopic::Workers | LiveTopic::Control) => Some(self.control.get()),
            Ok(LiveTopic::Type(name)) => self.types.lock().get(&name).map(watch::Sender::get),
            Ok(LiveTopic::Tree(id)) => self.trees.lock().get(&id).map(|tree| tree.changed.get()),
            Ok(LiveTopic::Fleet) | Err(_) => None,
        };
        changed_at.unwrap_or_else(|| self.fleet.get())
    }

    /// Marks the topics that a notice concerns.
    fn mark(&self, notice: &Notice) {
        let now = Instant::now();
        self.mark_trees(now, notice);
        match notice {
            Notice::Changed { types: Some(names), .. } => {
                self.mark_types(now, |name| names.iter().any(|it| **it == *name));
            }
            Notice::Changed { types: None, .. } | Notice::Gap => self.mark_types(now, |_| true),
        }
        self.fleet.send(now);
    }

    fn mark_trees(&self, now: Instant, notice: &Notice) {
        let trees = self.trees.lock();
        let mark = |tree: &LiveTree| tree.changed.send(now);
        match notice {
            Notice::Changed { ids: Some(ids), .. } if !trees.is_empty() => {
                let paths = ids.iter().flat_map(|id| std::iter::once(id.as_str()).chain(id.ancestors()));
                paths.filter_map(|path| trees.get(path)).for_each(mark);
            }
            Notice::Changed { ids: Some(_), .. } => {}
            Notice::Changed { ids: None, partition, .. } => {
                trees.values().filter(|tree| tree.partition == *partition).for_each(mark);
            }
            Notice::Gap => trees.values().for_each(mark),
        }
    }

    fn mark_types(&self, now: Instant, is_concerned: impl Fn(&str) -> bool) {
        for (_, changed) in self.types.lock().iter().filter(|(name, _)| is_concerned(name)) {
            changed.send(now);
        }
    }

    fn mark_control(&self) {
        let now = Instant::now();
        self.control.send(now);
        self.mark_types(now, |_| true);
        self.fleet.send(now);
    }
}

impl Drop for LiveSubscription {
    fn drop(&mut self) {
        // The last receiver is that of this subscription.
        match &self.topic {
            LiveTopic::Tree(id) => {
                let mut trees = self.live.trees.lock();
                if trees.get(id).is_some_and(|tree| tree.changed.receiver_count() <= 1) {
                    trees.remove(id);
                }
            }
            LiveTopic::Type(name) => {
                let mut types = self.live.types.lock();
                if types.get(name).is_some_and(|changed| changed.receiver_count() <= 1) {
                    types.remove(name);
                }
            }
            LiveTopic::Fleet | LiveTopic::Workers | LiveTopic::Control => {}
        }
    }
}

/// Marks topics until the guard is dropped.
pub(crate) fn mark_topics(live: Arc<Live>, notices: Arc<Notices>, control: Arc<ControlWatch>) -> DropGuard {
    kafleet_runtime::spawn_guarded(async move { mark_changes(&live, &notices, &control).await })
}

async fn mark_changes(live: &Live, notices: &Notices, control: &ControlWatch) {
    let (mut received, mut control) = (notices.listen(), control.changes());
    loop {
        tokio::select! {
            biased;
            notice = received.recv() => match notice {
                Ok(changes) => live.mark(&changes.notice),
                Err(RecvError::Lagged(_)) => live.mark(&Notice::Gap),
                Err(RecvError::Closed) => return,
            },
            changed = control.changed() => match changed {
                Ok(()) => live.mark_control(),
                Err(_) => return,
            },
        }
    }
}

/// `GET /ui/live?on=TOPIC`.
pub(super) async fn stream(State(ui): State<Ui>, request: Request) -> Response {
    let started = Instant::now();
    let response = open(&ui, &request).unwrap_or_else(IntoResponse::into_response);
    ui.api.ops.record_request("GET /ui/live", response.status().as_u16(), started.elapsed());
    with_security_headers(response)
}

fn open(Ui { api, live }: &Ui, request: &Request) -> Result<Response, ApiError> {
    api.access.current().check_host(request.headers())?;
    session::caller(&api.access.current(), request.headers(), now_ms())?;
    let query = Fields::parse(request.uri().query().unwrap_or_default().as_bytes());
    let topic = LiveTopic::parse(query.get("on").unwrap_or_default()).map_err(|error| bad_parameter("on", &error))?;
    let partition = match &topic {
        LiveTopic::Tree(id) => api.topology.partition_of(id),
        LiveTopic::Fleet | LiveTopic::Type(_) | LiveTopic::Workers | LiveTopic::Control => 0,
    };
    let subscription = live.subscribe(topic, partition)?;
    let drain = api.reads.shutdown.drain.clone();
    Ok(event_stream(|events| stream_topic(subscription, drain, events)).0)
}

async fn stream_topic(mut subscription: LiveSubscription, drain: CancellationToken, mut events: Events) {
    let (pace, refresh) = (subscription.topic.event_interval(), subscription.topic.refresh_interval());
    let ends = Instant::now() + STREAM_LIFETIME;
    while Instant::now() < ends {
        tokio::select! {
            biased;
            () = events.closed() => return,
            () = drain.cancelled() => return events.end(EndReason::Shutdown),
            // The page is fetched again after a change, and at intervals.
            _ = tokio::time::timeout(refresh, subscription.changed.changed()) => {}
        }
        if events.send("stale", None, &()).await.is_err() {
            return;
        }
        tokio::time::sleep(pace).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> TaskId {
        TaskId::parse(text).unwrap()
    }

    fn changed(partition: u32, ids: Option<&[&str]>) -> Notice {
        let ids = ids.map(|ids| ids.iter().map(|text| id(text)).collect());
        Notice::Changed { partition, offset: 1, ids, types: Some(vec!["echo".into()]) }
    }

    fn has_changed(subscription: &mut LiveSubscription) -> bool {
        let has_changed = subscription.changed.has_changed();
        subscription.changed.get_and_mark();
        has_changed
    }

    #[test]
    fn topics_are_parsed_or_refused() {
        assert_eq!(LiveTopic::parse("tree:order:fetch"), Ok(LiveTopic::Tree(id("order:fetch"))));
        assert_eq!(LiveTopic::parse("type:resize"), Ok(LiveTopic::Type("resize".into())));
        for wrong in ["", "fleet:x", "tree:", "type:", "type:A B", "other", "workers:1"] {
            assert!(LiveTopic::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn notice_marks_the_trees_that_contain_its_tasks() {
        let live = Arc::new(Live::default());
        let subscribe = |text: &str, partition| live.subscribe(LiveTopic::Tree(id(text)), partition).unwrap();
        let mut all = [subscribe("order", 0), subscribe("order:fetch", 0), subscribe("other", 1)];
        let mut marked = |notice: &Notice| {
            live.mark(notice);
            all.each_mut().map(has_changed)
        };
        assert_eq!(marked(&changed(0, Some(&["order:fetch:3"]))), [true, true, false]);
        assert_eq!(marked(&changed(0, Some(&["order:last"]))), [true, false, false]);
        assert_eq!(marked(&changed(0, None)), [true, true, false], "any task of the partition");
        assert_eq!(marked(&Notice::Gap), [true; 3]);
        assert_eq!(marked(&changed(0, Some(&["unrelated"]))), [false; 3]);
    }

    #[test]
    fn control_record_marks_pages_of_control_types_and_the_fleet() {
        let live = Arc::new(Live::default());
        let topics = [LiveTopic::Fleet, LiveTopic::Control, LiveTopic::Type("resize".into()), LiveTopic::Tree(id("a"))];
        let mut all = topics.map(|on| live.subscribe(on, 0).unwrap());
        live.mark_control();
        assert_eq!(all.each_mut().map(has_changed), [true, true, true, false]);
        live.mark(&changed(0, Some(&["b"])));
        assert_eq!(all.each_mut().map(has_changed), [true, false, false, false]);
    }

    #[test]
    fn notice_marks_the_types_that_it_names() {
        let live = Arc::new(Live::default());
        let mut all = ["echo", "resize"].map(|name| live.subscribe(LiveTopic::Type(name.into()), 0).unwrap());
        let mut marked = |notice: &Notice| {
            live.mark(notice);
            all.each_mut().map(has_changed)
        };
        assert_eq!(marked(&changed(0, None)), [true, false]);
        let any = Notice::Changed { partition: 0, offset: 1, ids: None, types: None };
        assert_eq!((marked(&any), marked(&Notice::Gap)), ([true; 2], [true; 2]));
        drop(all);
        assert!(live.types.lock().is_empty());
    }

    #[test]
    fn dropped_subscription_is_unregistered() {
        let live = Arc::new(Live::default());
        let (first, second) = (
            live.subscribe(LiveTopic::Tree(id("a")), 0).unwrap(),
            live.subscribe(LiveTopic::Tree(id("a")), 0).unwrap(),
        );
        drop(first);
        assert_eq!(live.trees.lock().len(), 1);
        drop(second);
        assert!(live.trees.lock().is_empty());
        assert_eq!(live.slots.available_permits(), MAX_STREAMS);
    }
}
