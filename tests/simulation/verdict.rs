//! What must have come of a story when all is quiet again. It knows the scripts, the requests and the log; of the code it
//! uses what reads records and events, and nothing that decides.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::atomic::Ordering::SeqCst;

use kafleet::broker::{Broker, ConsumerSpec, Partition, RecordRef, StartOffset};
use kafleet::model::event::{Event, Kind};
use kafleet::model::offsets::{Mark, Metadata};
use kafleet::model::projection::changes::Index;
use kafleet::model::record::TaskRecord;
use kafleet::model::record::rollup::children_of;
use kafleet::model::record::state::State;
use kafleet::model::task::id::TaskId;
use kafleet::store::Store;
use kafleet::tracker::project::projection::Logged;

use crate::deliveries;
use crate::family::{combined, continuations, counted, may_be_cancelled, tripped};
use crate::fleet::{CALL, Fleet};
use crate::orders;
use crate::plans::{self, overlaps};
use crate::retries;
use crate::story::{Mood, Story, then_segment};
use crate::trees::{Script, task_type};

pub type Records = BTreeMap<String, TaskRecord>;

/// Every record that the store can be asked for.
pub async fn records(fleet: &Fleet) -> Rc<Records> {
    let writes = fleet.luck.writes.load(SeqCst);
    let (then, known) = fleet.known.borrow().clone();
    if writes == then {
        return known;
    }
    let read = Rc::new(read(fleet).await);
    *fleet.known.borrow_mut() = (writes, read.clone());
    read
}

async fn read(fleet: &Fleet) -> Records {
    let mut all = Records::new();
    for partition in 0..fleet.story.events_partitions {
        let mut open = vec![Index::Roots];
        while let Some(index) = open.pop() {
            let page = fleet.store().page(partition, &index, None, 10_000).await.unwrap();
            let ids: Vec<TaskId> = page.into_iter().map(|entry| entry.id).collect();
            for (id, node) in ids.iter().zip(fleet.store().nodes(partition, &ids).await.unwrap()) {
                open.push(Index::Children(id.clone()));
                if let Some(node) = node {
                    all.insert(id.to_string(), node);
                }
            }
        }
    }
    all
}

/// What a store that has forgotten every tree still holds. Folded to the end, or it might not know yet.
pub async fn rest(fleet: &Fleet) -> Vec<String> {
    let mut rest: Vec<String> = unfolded(fleet).await.into_iter().collect();
    rest.extend(records(fleet).await.keys().cloned());
    for partition in 0..fleet.story.events_partitions {
        for index in [Index::Timers, Index::Effects, Index::Ages, Index::Roots] {
            let page = fleet.store().page(partition, &index, None, 10).await.unwrap();
            rest.extend(page.iter().map(|entry| format!("{entry:?} in {index:?}")));
        }
        let counts = fleet.store().counts(&[partition]).await.unwrap();
        rest.extend(counts.iter().map(|count| format!("{count:?}")));
    }
    rest
}

/// Why it is not quiet yet.
pub async fn unrest(fleet: &Fleet) -> Option<String> {
    if let Some(why) = open(fleet).await {
        return Some(why);
    }
    for number in 0..fleet.story.events_partitions {
        let outbox = fleet.store().outbox(number, 10).await.unwrap();
        if !outbox.timers.is_empty() || !outbox.effects.is_empty() {
            return Some(format!("events partition {number} has to do: {outbox:?}"));
        }
    }
    plans::unrest(fleet)
}

/// Why not everything has ended: something is not folded, has no end, or is not committed.
pub async fn open(fleet: &Fleet) -> Option<String> {
    let (broker, names) = (&fleet.broker, &fleet.names);
    if let Some(why) = unfolded(fleet).await {
        return Some(why);
    }
    let records = records(fleet).await;
    if let Some((id, node)) = records.iter().find(|(_, node)| !node.state.is_terminal()) {
        return Some(format!("`{id}` is {}: {node:?}", node.state));
    }
    for (partition, end) in task_partitions(fleet) {
        let group = names.group(names.type_of(&partition.topic).unwrap_or_default());
        let committed = broker.group_offsets(&group, std::slice::from_ref(&partition), CALL).unwrap().pop().flatten();
        if !is_passed(fleet, &partition, committed.as_ref().map_or(0, |committed| committed.offset), end) {
            return Some(format!("{partition} is committed to {committed:?} of {end}"));
        }
    }
    None
}

pub async fn unfolded(fleet: &Fleet) -> Option<String> {
    for number in 0..fleet.story.events_partitions {
        let end = fleet.broker.ends(&Partition::new(fleet.names.events(), number as i32), CALL).unwrap().end;
        let fence = fleet.store().fences(&[number]).await.unwrap()[0];
        if fence.map_or(0, |fence| fence.offset) < end {
            return Some(format!("events partition {number} is folded to {fence:?} of {end}"));
        }
    }
    None
}

fn task_partitions(fleet: &Fleet) -> Vec<(Partition, i64)> {
    let topics = fleet.broker.topics(&fleet.names.tasks(""), CALL).unwrap();
    let all = topics.iter().flat_map(|info| (0..info.partitions).map(|index| Partition::new(info.name.as_str(), index as i32)));
    all.map(|partition| (partition.clone(), fleet.broker.ends(&partition, CALL).unwrap().end)).collect()
}

/// Behind the last record may be the mark of a transaction, which nobody is given.
fn is_passed(fleet: &Fleet, partition: &Partition, committed: i64, end: i64) -> bool {
    committed >= end || fleet.broker.first_visible(partition, committed, CALL).unwrap().place >= end
}

/// Everything that is wrong.
pub async fn judge(fleet: &Fleet) -> Vec<String> {
    let records = records(fleet).await;
    let mut wrong = Vec::new();
    let mut known = 0;
    for (root, (oak, external)) in fleet.submitted.borrow().iter() {
        let id = Story::id(*root, &[]);
        match external {
            Some(fails) => {
                known += 1;
                let wanted = if *fails { State::Failed } else { State::Succeeded };
                let is = records.get(&id).map(|node| node.own);
                if is != Some(wanted) && !(is == Some(State::Cancelled) && may_be_cancelled(fleet, &records, &id, 1)) {
                    wrong.push(format!("`{id}` was reported {wanted} and is {is:?}"));
                }
            }
            None => visit(fleet, &records, &id, &fleet.story.roots[*root].1, *oak, &mut known, &mut wrong),
        }
    }
    for (batch, tasks) in fleet.story.batches.iter().enumerate() {
        for (n, task) in tasks.iter().enumerate() {
            let id = fleet.story.ordered_id(batch, n);
            if records.contains_key(&id) {
                visit(fleet, &records, &id, &task.script, task.oak, &mut known, &mut wrong);
            }
        }
    }
    let log = log(fleet);
    for (id, plan) in plans::tasks(fleet, &log) {
        visit(fleet, &records, &id, &plan.wish.script, plan.wish.oak, &mut known, &mut wrong);
    }
    plans::judge(fleet, &log, &mut wrong);
    retries::judge(fleet, &records, &mut wrong).await;
    orders::judge(fleet, &records, &mut wrong);
    known += deliveries::judge(fleet, &records, &log, &mut wrong).await;
    if known != records.len() {
        wrong.push(format!("{} records, {known} tasks: {:?}", records.len(), records.keys()));
    }
    wrong.extend(at_any_time(fleet, &records));
    counts(fleet, &records, &mut wrong).await;
    outcomes(&log, &records, &mut wrong);
    once(fleet, &log, &mut wrong);
    published(fleet, &log, &mut wrong);
    cancels(fleet, &mut wrong);
    wrong
}

/// What holds between any two batches: states and counts fit, and who has succeeded has its children.
pub fn at_any_time(fleet: &Fleet, records: &Records) -> Vec<String> {
    let mut wrong = Vec::new();
    for (id, node) in records {
        rollup(fleet, records, id, node, &mut wrong);
        continuations(fleet, records, id, node, &mut wrong);
    }
    for (root, (oak, _)) in fleet.submitted.borrow().iter().filter(|(_, (_, external))| external.is_none()) {
        let (id, script) = (Story::id(*root, &[]), &fleet.story.roots[*root].1);
        families(records, &id, script, &mut wrong);
        if records.get(&id).is_some_and(|node| node.state.is_terminal()) {
            visit(fleet, records, &id, script, *oak, &mut 0, &mut wrong);
        }
    }
    overlaps(fleet, records, &mut wrong);
    wrong
}

/// A parent never looks finished before its children are known.
fn families(records: &Records, id: &str, script: &Script, wrong: &mut Vec<String>) {
    let Some(node) = records.get(id) else { return };
    for (n, kid) in script.children.iter().enumerate() {
        let child = format!("{id}:c{n}");
        if node.own == State::Succeeded && records.get(&child).is_none_or(|child| child.run < node.run) {
            wrong.push(format!("run {} of `{id}` has succeeded, and `{child}` is not there", node.run));
        }
        families(records, &child, &kid.script, wrong);
    }
}

/// The task ends as its script says, its children are there, and nothing else.
fn visit(fleet: &Fleet, records: &Records, id: &str, script: &Script, oak: bool, known: &mut usize, wrong: &mut Vec<String>) {
    let Some(node) = records.get(id) else { return wrong.push(format!("`{id}` is lost")) };
    *known += 1;
    if node.task_type.as_deref() != Some(task_type(oak)) {
        wrong.push(format!("`{id}` has the type {:?}", node.task_type));
    }
    let wanted = script.reaches(node.run, oak);
    let is_under_way = !node.own.is_terminal() && is_superseded(records, id);
    if node.own != wanted && !is_under_way && !may_differ(fleet, records, id, node, script) {
        wrong.push(format!("run {} of `{id}` has to be {wanted} and is {}: {:?}", node.run, node.own, node.error));
    }
    if node.run > 1 && !fleet.retried.get() {
        wrong.push(format!("`{id}` is in run {}, and nobody asked for a retry", node.run));
    }
    for (n, kid) in script.children.iter().enumerate() {
        let child = format!("{id}:c{n}");
        if records.contains_key(&child) {
            if script.reaches(u32::MAX, oak) != State::Succeeded {
                wrong.push(format!("`{child}` is there though `{id}` never succeeds"));
            }
            visit(fleet, records, &child, &kid.script, kid.oak, known, wrong);
        }
    }
    for (n, then) in script.thens.iter().enumerate() {
        let next = format!("{id}:{}", then_segment(n));
        if records.contains_key(&next) {
            visit(fleet, records, &next, &then.kid.script, then.kid.oak, known, wrong);
        }
    }
}

/// It, or what it lies below, belongs to an earlier run of what is above: that does not wait for it.
fn is_superseded(records: &Records, id: &str) -> bool {
    let Some((above, _)) = id.rsplit_once(':') else { return false };
    let run = |id: &str| records.get(id).map_or(0, |node| node.run);
    run(id) < run(above) || is_superseded(records, above)
}

/// It was cancelled, its time was over, or it was stopped because a child had failed it.
fn may_differ(fleet: &Fleet, records: &Records, id: &str, node: &TaskRecord, script: &Script) -> bool {
    match node.own {
        State::Cancelled => may_be_cancelled(fleet, records, id, node.run),
        State::Expired => script.expires_ms.is_some() && node.run == 1 && (!id.contains(':') || orders::is_ordered(id)),
        State::Failed if is_failed_by_child(node) => script.fail_fast && tripped(fleet, records, id),
        // An attempt that failed after its child says more than that.
        State::Failed if orders::is_ordered(id) && script.fail_fast && tripped(fleet, records, id) => true,
        State::Failed => script.total_ms.is_some() && node.error.as_ref().is_some_and(|error| error.kind == "timeout"),
        _ => false,
    }
}

/// It failed fast while it ran itself: done once more, beside children that it has from before, or that were started again with it.
fn is_failed_by_child(node: &TaskRecord) -> bool {
    node.own == State::Failed && node.error.as_ref().is_some_and(|error| error.kind == "child_failed")
}

fn tree(records: &Records, id: &str, run: u32, sums: &mut BTreeMap<State, u64>) {
    for (child, node) in counted(records, id, run) {
        *sums.entry(node.state).or_default() += 1;
        tree(records, child, node.run, sums);
    }
}

/// The state of a task is what it and its children have come to, and it counts what is below it.
fn rollup(fleet: &Fleet, records: &Records, id: &str, node: &TaskRecord, wrong: &mut Vec<String>) {
    let combined = combined(fleet, records, id, node);
    let fits = match node.own.is_terminal() {
        true => node.state == combined,
        false if node.state == State::Cancelling => may_be_cancelled(fleet, records, id, node.run),
        false => node.state == node.own,
    };
    if !fits {
        wrong.push(format!("`{id}` is {} itself, with its children {combined}, and it is said to be {}", node.own, node.state));
    }
    let mut sums = BTreeMap::new();
    tree(records, id, node.run, &mut sums);
    let (_, _, told) = children_of(&node.below);
    for state in State::ALL {
        let (told, is) = (told.get(state), sums.get(&state).copied().unwrap_or_default());
        if told != is {
            wrong.push(format!("`{id}` counts {told} tasks below it that are {state}; there are {is}"));
        }
    }
}

async fn counts(fleet: &Fleet, records: &Records, wrong: &mut Vec<String>) {
    let mut is: BTreeMap<(String, State), u64> = BTreeMap::new();
    for node in records.values() {
        let name = node.task_type.as_deref().unwrap_or_default().to_owned();
        *is.entry((name, node.state)).or_default() += 1;
    }
    let all: Vec<u32> = (0..fleet.story.events_partitions).collect();
    let told = fleet.store().counts(&all).await.unwrap();
    let told: BTreeMap<_, _> = told.into_iter().map(|count| ((count.task_type.to_string(), count.state), count.count)).collect();
    if told != is {
        wrong.push(format!("the counts by type are {told:?}, and there are {is:?}"));
    }
}

impl Fleet {
    /// Hands out what readers of a partition are given, in order.
    pub fn each_record(&self, partition: &Partition, take: &mut dyn FnMut(&RecordRef<'_>)) {
        let mut consumer = self.broker.consumer(&ConsumerSpec::default()).unwrap();
        consumer.assign(&[(partition.clone(), StartOffset::Beginning)]).unwrap();
        // To where a transaction is open, say: its end would come from this very thread.
        let mut before = None;
        while before != Some(consumer.positions().unwrap()) {
            before = Some(consumer.positions().unwrap());
            consumer.poll(10_000, std::time::Duration::ZERO, take).unwrap();
        }
    }
}

/// Everything on the events topic that readers are given, in order.
pub fn log(fleet: &Fleet) -> Vec<Event> {
    let all = (0..fleet.story.events_partitions).flat_map(|number| logged(fleet, number));
    all.map(|logged| logged.event).collect()
}

pub fn logged(fleet: &Fleet, number: u32) -> Vec<Logged> {
    let mut all = Vec::new();
    fleet.each_record(&Partition::new(fleet.names.events(), number as i32), &mut |record| {
        let event = Event::decode(record.value.unwrap_or_default()).unwrap();
        all.push(Logged { event, offset: record.offset, timestamp_ms: record.timestamp_ms });
    });
    all
}

/// The first end of a run in the log is the one that counts.
fn outcomes(log: &[Event], records: &Records, wrong: &mut Vec<String>) {
    let mut first: BTreeMap<(String, u32), State> = BTreeMap::new();
    for event in log {
        let state = match event.kind {
            Kind::Succeeded => State::Succeeded,
            Kind::Failed => State::Failed,
            Kind::Cancelled => State::Cancelled,
            Kind::Expired => State::Expired,
            _ => continue,
        };
        first.entry((event.id.to_string(), event.run)).or_insert(state);
    }
    for (id, node) in records.iter().filter(|(_, node)| !node.is_external()) {
        let told = first.get(&(id.clone(), node.run));
        // Whoever ran it was told to stop, and says so.
        let failed_fast = is_failed_by_child(node) || (node.own == State::Failed && orders::is_ordered(id));
        let stopped = told == Some(&State::Cancelled) && failed_fast;
        if told != Some(&node.own) && !stopped {
            wrong.push(format!("run {} of `{id}` ended as {told:?} in the log and is {}", node.run, node.own));
        }
    }
}

/// What has ended has no cancel left, which a later task of the same id would not survive.
fn cancels(fleet: &Fleet, wrong: &mut Vec<String>) {
    let told = fleet.cancels_told();
    if !told.is_empty() && !fleet.may_leave_cancels() {
        wrong.push(format!("workers are still told of cancels: {told:?}"));
    }
}

/// What the tracker does outside, it does once; in a calm fleet so does everybody.
fn once(fleet: &Fleet, log: &[Event], wrong: &mut Vec<String>) {
    let mut fired: BTreeMap<(String, u32, String), u32> = BTreeMap::new();
    for event in log {
        let what = match event.kind {
            Kind::Released => "release".to_owned(),
            Kind::Checked => format!("check {:?}", event.check),
            Kind::EffectDone => format!("{:?}", event.effect),
            Kind::Cancelled | Kind::Expired if event.worker.is_none() => "end".to_owned(),
            _ => continue,
        };
        // A task waits at the tracker before any of its attempts.
        let key = (event.id.to_string(), event.run, what);
        *fired.entry(key).or_default() += 1;
    }
    for ((id, run, what), times) in fired {
        let waits = if what.starts_with("release") { releases(log, &id, run) } else { 1 };
        if times > waits {
            wrong.push(format!("{what} of run {run} of `{id}` was fired {times} times"));
        }
    }
    let (mood, good) = (fleet.story.mood, fleet.journal.good.lock());
    // What waits for its next attempt when another worker joins begins there with its first one.
    let alone = fleet.story.workers == 1;
    // What follows a task that was started again, and fails again, makes what is below it again, which had failed as well.
    let made_again = |(id, run, _): &(String, u32, u32)| *run > 1 && id.contains(":then");
    for (attempt, times) in fleet.journal.begun.lock().iter().filter(|(_, times)| **times > 1) {
        if made_again(attempt) {
            continue;
        }
        if mood != Mood::Wild && (good.contains(&attempt.0) || (mood == Mood::Calm && alone)) {
            wrong.push(format!("{attempt:?} ran {times} times, and nothing had gone wrong"));
        }
    }
}

/// A record that only the tracker publishes is there as often as an event says so: a root's of a retry, or of a wait.
fn published(fleet: &Fleet, log: &[Event], wrong: &mut Vec<String>) {
    let mut released: BTreeMap<(String, u32), usize> = BTreeMap::new();
    log.iter().filter(|event| event.kind == Kind::Released).for_each(|event| {
        *released.entry((event.id.to_string(), event.run)).or_default() += 1;
    });
    // A delay that is over by the time it is asked for is none.
    let waits = |event: &Event| event.kind == Kind::Scheduled && event.worker.is_none();
    let waiting: BTreeSet<String> = log.iter().filter(|event| waits(event)).map(|event| event.id.to_string()).collect();
    for ((id, run), records) in fleet.ledger.ready() {
        let follows = id.rsplit(':').next().is_some_and(|segment| segment.starts_with("then"));
        let by_tracker = follows || (!id.contains(':') && (run > 1 || waiting.contains(&id)));
        let told = released.get(&(id.clone(), run)).copied().unwrap_or_default() + usize::from(run > 1 || follows);
        if by_tracker && records > told {
            wrong.push(format!("run {run} of `{id}` was published {records} times, {told} are told"));
        }
    }
}

/// How often it was put off: different times to be due at.
fn releases(log: &[Event], id: &str, run: u32) -> u32 {
    let mut due = std::collections::BTreeSet::new();
    for event in log {
        if event.id.as_str() == id && event.run == run && event.record.is_some() {
            due.insert(event.due_ms);
        }
    }
    due.len() as u32
}

/// After all workers have stopped: what they gave back is done, and they say so.
pub fn given_back(fleet: &Fleet) -> Vec<String> {
    let mut wrong = Vec::new();
    for (partition, end) in task_partitions(fleet) {
        let group = fleet.names.group(fleet.names.type_of(&partition.topic).unwrap_or_default());
        let committed = fleet.broker.group_offsets(&group, std::slice::from_ref(&partition), CALL).unwrap().pop().flatten();
        let Some(committed) = committed else {
            wrong.push(format!("{partition} was never committed"));
            continue;
        };
        let clean = Metadata::decode(committed.offset, &committed.metadata).is_some_and(|metadata| metadata.mark == Mark::Clean);
        if !is_passed(fleet, &partition, committed.offset, end) || !clean {
            wrong.push(format!("{partition} ends at {end} and was given back with {committed:?}"));
        }
    }
    wrong
}
