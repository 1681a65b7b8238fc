//! Fixtures of the cases: unique names, sends with outcomes, readers and group members that are polled step by step.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use kafleet::broker::{
    Broker, BrokerError, Commit, Consumer, ConsumerSpec, DeliverySink, GroupEvent, Partition, Producer, ProducerRecord,
    Record, RecordRef, StartOffset, TopicChange, TopicSpec,
};
use kafleet_testkit::names::unique;

pub use kafleet_testkit::wait::{DEADLINE, eventually_blocking};

/// Time given to events that must not happen, and for which there is no condition to wait for.
pub const GRACE: Duration = Duration::from_millis(500);

pub type Outcome = Result<(i32, i64), BrokerError>;

pub struct Kit {
    pub broker: Arc<dyn Broker>,
    prefix: String,
    names: AtomicU64,
}

impl Kit {
    pub fn new(broker: Arc<dyn Broker>, case: &str) -> Self {
        Self { broker, prefix: format!("{}-{case}", unique("conf")), names: AtomicU64::new(0) }
    }

    /// Returns a unique name.
    pub fn name(&self, subject: &str) -> String {
        format!("{}-{subject}{}", self.prefix, self.names.fetch_add(1, Ordering::Relaxed))
    }

    pub fn topic(&self, partitions: u32) -> String {
        self.topic_with(partitions, &[])
    }

    /// Creates a topic and waits until the broker knows all of its partitions.
    pub fn topic_with(&self, partitions: u32, config: &[(&str, &str)]) -> String {
        let spec = spec(&self.name("t"), partitions, config);
        let outcomes = self.broker.apply_topics(std::slice::from_ref(&spec), DEADLINE).unwrap();
        assert_eq!(outcomes[0].change, TopicChange::Created);
        eventually_blocking("a new topic is known", || {
            (0..partitions).all(|index| {
                self.broker.watermarks(&Partition::new(spec.name.as_str(), index as i32), DEADLINE).is_ok()
            })
        });
        spec.name
    }

    pub fn producer(&self) -> (Arc<dyn Producer>, Arc<Outcomes>) {
        let outcomes = Arc::new(Outcomes::default());
        (self.broker.producer(outcomes.clone()).unwrap(), outcomes)
    }

    /// Sends one record and returns its outcome.
    pub fn send(&self, record: &ProducerRecord<'_>) -> Outcome {
        let (producer, outcomes) = self.producer();
        producer.send(record, 1)?;
        producer.flush(DEADLINE).unwrap();
        outcomes.of(1)
    }

    /// Sends values to one partition, in order.
    pub fn fill<V: AsRef<str>>(&self, at: &Partition, values: impl IntoIterator<Item = V>) {
        let (producer, outcomes) = self.producer();
        let mut count = 0;
        for value in values {
            producer.send(&value_record(at, value.as_ref()), count).unwrap();
            count += 1;
        }
        producer.flush(DEADLINE).unwrap();
        assert!((0..count).all(|token| outcomes.of(token).is_ok()));
    }

    /// Creates a reader without a group.
    pub fn reader(&self, starts: &[(Partition, StartOffset)]) -> Reader {
        self.reader_with(&ConsumerSpec::default(), starts)
    }

    pub fn reader_with(&self, spec: &ConsumerSpec, starts: &[(Partition, StartOffset)]) -> Reader {
        let mut consumer = self.broker.consumer(spec).unwrap();
        consumer.assign(starts).unwrap();
        Reader { consumer, records: Vec::new(), events: Vec::new() }
    }

    pub fn member(&self, group: &str, topic: &str) -> Member {
        self.member_of(group, &[topic])
    }

    /// Creates a member that subscribes to several topics.
    pub fn member_of(&self, group: &str, topics: &[&str]) -> Member {
        let topics = topics.iter().map(|topic| (*topic).to_owned()).collect();
        let spec = ConsumerSpec { group: Some(group.to_owned()), topics, ..ConsumerSpec::default() };
        Member::new(self.broker.consumer(&spec).unwrap())
    }

    pub fn committed(&self, group: &str, at: &Partition) -> Option<(i64, String)> {
        let found = self.broker.group_offsets(group, std::slice::from_ref(at), DEADLINE).unwrap();
        found[0].clone().map(|committed| (committed.offset, committed.metadata))
    }

    /// Returns the offset of the next visible record, and its value.
    pub fn first_visible(&self, at: &Partition, offset: i64) -> (i64, Option<String>) {
        let first_visible = self.broker.first_visible(at, offset, DEADLINE).unwrap();
        (first_visible.offset, first_visible.record.map(|record| text(&record).into_owned()))
    }

    pub fn watermarks(&self, at: &Partition) -> (i64, i64) {
        let ends = self.broker.watermarks(at, DEADLINE).unwrap();
        (ends.low, ends.high)
    }
}

pub fn spec(name: &str, partitions: u32, config: &[(&str, &str)]) -> TopicSpec {
    let config = config.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    TopicSpec { name: name.to_owned(), partitions, replication: None, config }
}

pub fn value_record<'a>(at: &'a Partition, value: &'a str) -> ProducerRecord<'a> {
    ProducerRecord {
        topic: &at.topic,
        partition: Some(at.index),
        key: None,
        value: Some(value.as_bytes()),
        headers: &[],
    }
}

pub fn keyed<'a>(topic: &'a str, key: &'a str, value: &'a str) -> ProducerRecord<'a> {
    ProducerRecord { topic, partition: None, key: Some(key.as_bytes()), value: Some(value.as_bytes()), headers: &[] }
}

pub fn commit(at: &Partition, offset: i64, metadata: &str) -> Commit {
    Commit { partition: at.clone(), offset, metadata: metadata.to_owned() }
}

/// Returns the record's value as text.
pub fn text(record: &Record) -> Cow<'_, str> {
    String::from_utf8_lossy(record.value.as_deref().unwrap_or_default())
}

/// A delivery outcome, with the record in case of a failure.
type Delivery = (Outcome, Option<Record>);

/// All outcomes of a producer, by token.
#[derive(Default)]
pub struct Outcomes {
    deliveries: Mutex<BTreeMap<u64, Vec<Delivery>>>,
    delivered_changed: Condvar,
    /// Append times that the broker reported, by token.
    append_times: Mutex<BTreeMap<u64, i64>>,
}

impl Outcomes {
    /// Returns the append time of a record, if the broker reported it.
    pub fn append_ms(&self, token: u64) -> Option<i64> {
        self.append_times.lock().unwrap().get(&token).copied()
    }

    /// Returns the only outcome of a token.
    pub fn of(&self, token: u64) -> Outcome {
        let deliveries = self.deliveries.lock().unwrap();
        let outcomes = &deliveries[&token];
        assert_eq!(outcomes.len(), 1, "token {token} has more than one outcome");
        outcomes[0].0.clone()
    }

    /// Returns the record delivered with a failure.
    pub fn record_of(&self, token: u64) -> Option<Record> {
        self.deliveries.lock().unwrap()[&token][0].1.clone()
    }

    pub fn all(&self) -> Vec<(u64, Outcome)> {
        let deliveries = self.deliveries.lock().unwrap();
        deliveries
            .iter()
            .flat_map(|(token, outcomes)| outcomes.iter().map(|(outcome, _)| (*token, outcome.clone())))
            .collect()
    }

    pub fn wait_for(&self, count: usize) {
        let deliveries = self.deliveries.lock().unwrap();
        let enough = |deliveries: &mut BTreeMap<u64, _>| deliveries.len() < count;
        let (deliveries, _) = self.delivered_changed.wait_timeout_while(deliveries, DEADLINE, enough).unwrap();
        assert!(deliveries.len() >= count, "only {} of {count} outcomes", deliveries.len());
    }
}

impl DeliverySink for Outcomes {
    fn appended(&self, token: u64, append_ms: i64) {
        self.append_times.lock().unwrap().insert(token, append_ms);
    }

    fn delivered(&self, token: u64, outcome: Result<(i32, i64), (BrokerError, &RecordRef<'_>)>) {
        let outcome = match outcome {
            Ok(offset) => (Ok(offset), None),
            Err((error, record)) => (Err(error), Some(record.to_owned())),
        };
        self.deliveries.lock().unwrap().entry(token).or_default().push(outcome);
        self.delivered_changed.notify_all();
    }
}

pub struct Reader {
    pub consumer: Box<dyn Consumer>,
    pub records: Vec<Record>,
    pub events: Vec<GroupEvent>,
}

impl Reader {
    pub fn step(&mut self) {
        self.poll(1000, Duration::from_millis(20));
    }

    pub fn poll(&mut self, max: usize, wait: Duration) {
        let records = &mut self.records;
        let events = self.consumer.poll(max, wait, &mut |record| records.push(record.to_owned())).unwrap();
        self.events.extend(events);
    }

    /// Reads until `count` records have arrived.
    #[track_caller]
    pub fn read(&mut self, count: usize) -> Vec<String> {
        eventually_blocking(&format!("{count} records"), || {
            self.step();
            self.records.len() >= count
        });
        self.values()
    }

    /// Polls for [`GRACE`], for records that must not arrive.
    pub fn read_during_grace(&mut self) -> Vec<String> {
        let end = Instant::now() + GRACE;
        while Instant::now() < end {
            self.step();
        }
        self.values()
    }

    pub fn values(&self) -> Vec<String> {
        self.records.iter().map(|record| text(record).into_owned()).collect()
    }
}

/// A group member that starts at the committed offsets and releases partitions on request.
pub struct Member {
    pub consumer: Box<dyn Consumer>,
    pub records: Vec<Record>,
    pub events: Vec<GroupEvent>,
    pub assigned: BTreeSet<Partition>,
    /// Next offset of every assigned partition.
    pub next: BTreeMap<Partition, i64>,
    /// Revoked partitions that have not been released.
    pub revoked: BTreeSet<Partition>,
}

impl Member {
    pub fn new(consumer: Box<dyn Consumer>) -> Self {
        let (assigned, next, revoked) = (BTreeSet::new(), BTreeMap::new(), BTreeSet::new());
        Self { consumer, records: Vec::new(), events: Vec::new(), assigned, next, revoked }
    }

    /// Polls once and takes assigned partitions; revoked ones stay unreleased.
    pub fn step(&mut self) {
        self.poll(1000);
    }

    /// Polls once for at most this number of records, and takes assigned partitions; revoked ones stay unreleased.
    pub fn poll(&mut self, max: usize) {
        let (records, next) = (&mut self.records, &mut self.next);
        let keep = &mut |record: &RecordRef<'_>| {
            next.insert(Partition::new(record.topic, record.partition), record.offset + 1);
            records.push(record.to_owned());
        };
        let events = self.consumer.poll(max, Duration::from_millis(20), keep).unwrap();
        for event in &events {
            match event {
                GroupEvent::Assigned(partitions) => self.take(partitions),
                GroupEvent::Revoked(partitions) => self.revoked.extend(partitions.iter().cloned()),
                GroupEvent::Lost(partitions) => self.release(partitions),
                _ => {}
            }
        }
        self.events.extend(events);
    }

    fn take(&mut self, partitions: &[Partition]) {
        let committed = self.consumer.committed(partitions, DEADLINE).unwrap();
        let start = |found: &Option<kafleet::broker::CommittedOffset>| {
            found.as_ref().map_or(StartOffset::Beginning, |found| StartOffset::At(found.offset))
        };
        let starts: Vec<_> = partitions.iter().cloned().zip(committed.iter().map(start)).collect();
        self.consumer.assign(&starts).unwrap();
        self.assigned.extend(partitions.iter().cloned());
    }

    fn release(&mut self, partitions: &[Partition]) {
        self.consumer.release(partitions).unwrap();
        self.assigned.retain(|at| !partitions.contains(at));
        self.next.retain(|at, _| !partitions.contains(at));
        self.revoked.retain(|at| !partitions.contains(at));
    }

    /// Commits the positions of the revoked partitions and releases them.
    pub fn release_revoked(&mut self) {
        let revoked: Vec<Partition> = self.revoked.iter().cloned().collect();
        let commits: Vec<Commit> = revoked.iter().filter_map(|at| Some(commit(at, *self.next.get(at)?, ""))).collect();
        if !commits.is_empty() {
            self.consumer.commit_sync(&commits).unwrap();
        }
        if !revoked.is_empty() {
            self.release(&revoked);
        }
    }

    /// Polls once and releases revoked partitions.
    pub fn step_and_release(&mut self) {
        self.step();
        self.release_revoked();
    }

    #[track_caller]
    pub fn until_assigned(&mut self, count: usize) {
        eventually_blocking(&format!("{count} partitions assigned"), || {
            self.step_and_release();
            self.assigned.len() == count
        });
    }

    /// Commits, polling as long as a rebalance refuses the commit.
    #[track_caller]
    pub fn commit(&mut self, commits: &[Commit]) {
        eventually_blocking("a commit is accepted", || match self.consumer.commit_sync(commits) {
            Ok(()) => true,
            Err(BrokerError::Refused(_)) => {
                self.step_and_release();
                false
            }
            Err(error) => panic!("commit: {error}"),
        });
    }

    pub fn values(&self) -> Vec<String> {
        self.records.iter().map(|record| text(record).into_owned()).collect()
    }

    pub fn close(self) {
        self.consumer.close(DEADLINE);
    }
}
