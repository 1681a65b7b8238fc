//! What others are to be told: each transition becomes one delivery, whatever happens to the tracker in between.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;

use kafleet::broker::TopicSpec;
use kafleet::handlers::builtin::callback::TYPE;
use kafleet::model::event::{Event, Kind};
use kafleet::model::record::state::State;
use kafleet::model::task::action::{Action, Callback, Check, NotifyAction};
use kafleet::model::task::{Policy, Rules};
use kafleet::model::units::duration::Millis;
use kafleet::runtime::now_ms;
use kafleet::store::memory::Memory;

use crate::cases::agrees;
use crate::firing::{header, make_topics, read_all};
use crate::ground::{DEADLINE, Ground, until};
use crate::memory::ground;
use crate::shaky::{ShakyBroker, Step};
use crate::story::{submitted, succeeded};

fn make_callback_topic(ground: &Ground) {
    make_topics(ground);
    let spec = TopicSpec { name: ground.names.tasks(TYPE), partitions: 2, replication: None, config: Vec::new() };
    ground.broker.apply_topics(&[spec], DEADLINE).unwrap();
}

/// A task that tells of its success, and of a check that is due at once.
fn telling(task: &str) -> Event {
    let callback = Callback::to("https://hooks.example.com");
    let tell = Some(NotifyAction { callback: Some(callback.clone()), email: None });
    let check = Check { after: Some(Millis(1)), at: None, expect: vec![State::Failed], passed: None, failed: tell };
    let actions = vec![Action { on: vec![State::Succeeded], callback: Some(callback), email: None }];
    let rules = Rules { actions, checks: vec![check], ..Rules::default() };
    let mut event = submitted(task);
    let announced = event.task.as_mut().unwrap();
    (announced.policy, announced.created_at_ms) = (Some(Box::new(Policy { rules, ..Policy::default() })), now_ms());
    event
}

/// How often each delivery was published, and how many tasks they tell of.
fn published(ground: &Ground) -> (BTreeMap<String, usize>, usize) {
    let mut times = BTreeMap::new();
    let records = read_all(ground, &ground.names.tasks(TYPE));
    for record in &records {
        *times.entry(header(record, "ce_id").unwrap().to_owned()).or_default() += 1;
    }
    let about = |value: &[u8]| serde_json::from_slice::<serde_json::Value>(value).unwrap()["body"]["data"]["id"].to_string();
    let tasks: std::collections::BTreeSet<_> = records.iter().map(|record| about(record.value.as_deref().unwrap())).collect();
    (times, tasks.len())
}

async fn all_told(ground: &Ground, tasks: usize) {
    until("everything is told", || async { published(ground).0.len() == 2 * tasks }).await;
    agrees(ground).await;
    let (times, told_of) = published(ground);
    let twice: Vec<_> = times.iter().filter(|(_, times)| **times != 1).collect();
    assert!(twice.is_empty(), "not once: {twice:?}");
    assert_eq!((times.len(), told_of), (2 * tasks, tasks));
}

fn story(prefix: &str, tasks: usize) -> Vec<Event> {
    (0..tasks).flat_map(|n| [telling(&format!("{prefix}-{n}")), succeeded(&format!("{prefix}-{n}"))]).collect()
}

/// Stopped between any two steps, and another one goes on.
#[tokio::test(flavor = "multi_thread")]
async fn each_transition_is_told_once_wherever_a_tracker_is_stopped() {
    for step in [Step::Before, Step::After, Step::Frozen] {
        let (ground, _) = ground(2);
        make_callback_topic(&ground);
        let (broker, tricks) = ShakyBroker::new(ground.broker.clone());
        *tricks.step.lock().unwrap() = step;
        let stopped = ground.with(broker, ground.store.clone()).tracker().await;
        ground.write(&story("a", 20)).await;
        match step {
            Step::Frozen => until("it is stopped in the middle", || async { tricks.frozen.load(SeqCst) }).await,
            _ => until("it has tried", || async { tricks.atomics.load(SeqCst) > 0 }).await,
        }
        stopped.shutdown.begin();
        let next = ground.tracker().await;
        ground.write(&story("b", 20)).await;
        all_told(&ground, 40).await;
        *tricks.step.lock().unwrap() = Step::Done;
        stopped.stop().await;
        all_told(&ground, 40).await;
        next.stop().await;
    }
}

/// A store that is wiped is folded again, and nobody is told anything twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_fold_from_the_start_tells_nothing_again() {
    let (ground, _) = ground(2);
    make_callback_topic(&ground);
    let tracker = ground.tracker().await;
    ground.write(&story("a", 20)).await;
    all_told(&ground, 20).await;
    tracker.stop().await;
    let again = ground.with(ground.broker.clone(), std::sync::Arc::new(Memory::default()));
    let tracker = again.tracker().await;
    again.write(&story("b", 5)).await;
    all_told(&again, 25).await;
    tracker.stop().await;
}

/// Without workers' configuration there is no topic: the delivery has failed, and its task says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_without_callbacks_says_so() {
    let (ground, _) = ground(2);
    make_topics(&ground);
    let tracker = ground.tracker().await;
    ground.write(&story("a", 1)).await;
    let failed = || async {
        let counts = ground.store.counts(&ground.all()).await.unwrap();
        counts.iter().any(|count| &*count.task_type == TYPE && count.state == State::Failed && count.count == 2)
    };
    until("both deliveries have failed", failed).await;
    let task = crate::firing::node(&ground, "a-0").await.unwrap();
    assert_eq!(task.history.iter().filter(|entry| entry.kind == Kind::Checked).count(), 1);
    let rules = &task.policy.as_ref().unwrap().rules;
    for one in &task.told.as_ref().unwrap().deliveries {
        let id = one.id(&crate::story::id("a-0"), one.rule.telling(rules).unwrap());
        let error = crate::firing::node(&ground, &id).await.unwrap().error.unwrap();
        assert!(error.message.contains("does not exist"), "{}", error.message);
    }
    tracker.stop().await;
}
