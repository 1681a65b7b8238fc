//! What the cases share: names of their own, sends with outcomes, readers and members that can be stepped.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kafleet::broker::{
    Broker, BrokerError, Commit, Consumer, ConsumerSpec, DeliverySink, GroupEvent, Partition, Producer, ProducerRecord, Record,
    RecordRef, StartOffset, TopicChange, TopicSpec,
};

/// Long enough for a slow Kafka and a dozen rebalances; a case that meets it has failed.
pub const DEADLINE: Duration = Duration::from_secs(180);
/// How long something that must not happen is given to happen.
pub const GRACE: Duration = Duration::from_millis(500);

pub type Outcome = Result<(i32, i64), BrokerError>;

pub struct Kit {
    pub broker: Arc<dyn Broker>,
    prefix: String,
    names: AtomicU64,
}

impl Kit {
    pub fn new(broker: Arc<dyn Broker>, case: &str) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
        let prefix = format!("conf-{now:x}-{:x}-{case}", std::process::id());
        Self { broker, prefix, names: AtomicU64::new(0) }
    }

    /// A name that nobody else has.
    pub fn name(&self, what: &str) -> String {
        format!("{}-{what}{}", self.prefix, self.names.fetch_add(1, Ordering::Relaxed))
    }

    pub fn topic(&self, partitions: u32) -> String {
        self.topic_with(partitions, &[])
    }

    /// A new topic, once the broker knows all of its partitions.
    pub fn topic_with(&self, partitions: u32, config: &[(&str, &str)]) -> String {
        let spec = spec(&self.name("t"), partitions, config);
        let outcomes = self.broker.apply_topics(std::slice::from_ref(&spec), DEADLINE).unwrap();
        assert_eq!(outcomes[0].change, TopicChange::Created);
        until("a new topic is known", || {
            (0..partitions).all(|index| self.broker.ends(&Partition::new(spec.name.as_str(), index as i32), DEADLINE).is_ok())
        });
        spec.name
    }

    pub fn producer(&self) -> (Arc<dyn Producer>, Arc<Outcomes>) {
        let outcomes = Arc::new(Outcomes::default());
        (self.broker.producer(outcomes.clone()).unwrap(), outcomes)
    }

    /// Sends one record and returns what became of it.
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
            producer.send(&plain(at, value.as_ref()), count).unwrap();
            count += 1;
        }
        producer.flush(DEADLINE).unwrap();
        assert!((0..count).all(|token| outcomes.of(token).is_ok()));
    }

    /// A reader without a group.
    pub fn reader(&self, starts: &[(Partition, StartOffset)]) -> Reader {
        self.reader_with(&ConsumerSpec::default(), starts)
    }

    pub fn reader_with(&self, spec: &ConsumerSpec, starts: &[(Partition, StartOffset)]) -> Reader {
        let mut consumer = self.broker.consumer(spec).unwrap();
        consumer.assign(starts).unwrap();
        Reader { consumer, records: Vec::new(), events: Vec::new() }
    }

    pub fn member(&self, group: &str, topic: &str) -> Member {
        let spec = ConsumerSpec { group: Some(group.to_owned()), topics: vec![topic.to_owned()], ..ConsumerSpec::default() };
        Member::new(self.broker.consumer(&spec).unwrap())
    }

    pub fn committed(&self, group: &str, at: &Partition) -> Option<(i64, String)> {
        let found = self.broker.group_offsets(group, std::slice::from_ref(at), DEADLINE).unwrap();
        found[0].clone().map(|committed| (committed.offset, committed.metadata))
    }

    /// Where the next record for readers lies, and its value.
    pub fn first_visible(&self, at: &Partition, offset: i64) -> (i64, Option<String>) {
        let first_visible = self.broker.first_visible(at, offset, DEADLINE).unwrap();
        (first_visible.place, first_visible.record.map(|record| text(&record).into_owned()))
    }

    pub fn ends(&self, at: &Partition) -> (i64, i64) {
        let ends = self.broker.ends(at, DEADLINE).unwrap();
        (ends.first, ends.end)
    }
}

pub fn spec(name: &str, partitions: u32, config: &[(&str, &str)]) -> TopicSpec {
    let config = config.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    TopicSpec { name: name.to_owned(), partitions, replication: None, config }
}

pub fn plain<'a>(at: &'a Partition, value: &'a str) -> ProducerRecord<'a> {
    ProducerRecord { topic: &at.topic, partition: Some(at.index), key: None, value: Some(value.as_bytes()), headers: &[] }
}

pub fn keyed<'a>(topic: &'a str, key: &'a str, value: &'a str) -> ProducerRecord<'a> {
    ProducerRecord { topic, partition: None, key: Some(key.as_bytes()), value: Some(value.as_bytes()), headers: &[] }
}

pub fn commit(at: &Partition, offset: i64, metadata: &str) -> Commit {
    Commit { partition: at.clone(), offset, metadata: metadata.to_owned() }
}

/// The value; for a record whose bytes matter, compare those.
pub fn text(record: &Record) -> Cow<'_, str> {
    String::from_utf8_lossy(record.value.as_deref().unwrap_or_default())
}

/// Tries until a condition holds.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < end, "not within {DEADLINE:?}: {what}");
        std::thread::yield_now();
    }
}

/// An outcome, and the record that came along with a failure.
type Told = (Outcome, Option<Record>);

/// All outcomes of a producer, by token.
#[derive(Default)]
pub struct Outcomes {
    told: Mutex<BTreeMap<u64, Vec<Told>>>,
    news: Condvar,
}

impl Outcomes {
    /// The one outcome of a token.
    pub fn of(&self, token: u64) -> Outcome {
        let told = self.told.lock().unwrap();
        let outcomes = &told[&token];
        assert_eq!(outcomes.len(), 1, "token {token} has more than one outcome");
        outcomes[0].0.clone()
    }

    /// The record that came along with a failure.
    pub fn record_of(&self, token: u64) -> Option<Record> {
        self.told.lock().unwrap()[&token][0].1.clone()
    }

    pub fn all(&self) -> Vec<(u64, Outcome)> {
        let told = self.told.lock().unwrap();
        told.iter().flat_map(|(token, outcomes)| outcomes.iter().map(|(outcome, _)| (*token, outcome.clone()))).collect()
    }

    pub fn wait_for(&self, count: usize) {
        let told = self.told.lock().unwrap();
        let enough = |told: &mut BTreeMap<u64, _>| told.len() < count;
        let (told, _) = self.news.wait_timeout_while(told, DEADLINE, enough).unwrap();
        assert!(told.len() >= count, "only {} of {count} outcomes", told.len());
    }
}

impl DeliverySink for Outcomes {
    fn delivered(&self, token: u64, outcome: Result<(i32, i64), (BrokerError, &RecordRef<'_>)>) {
        let outcome = match outcome {
            Ok(place) => (Ok(place), None),
            Err((error, record)) => (Err(error), Some(record.to_owned())),
        };
        self.told.lock().unwrap().entry(token).or_default().push(outcome);
        self.news.notify_all();
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

    /// Reads until there are so many records.
    #[track_caller]
    pub fn read(&mut self, count: usize) -> Vec<String> {
        until(&format!("{count} records"), || {
            self.step();
            self.records.len() >= count
        });
        self.values()
    }

    /// Gives what must not come the time to come.
    pub fn settle(&mut self) -> Vec<String> {
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

/// A member of a group that starts where the group has committed, and gives partitions back when told to.
pub struct Member {
    pub consumer: Box<dyn Consumer>,
    pub records: Vec<Record>,
    pub events: Vec<GroupEvent>,
    pub held: BTreeSet<Partition>,
    /// The next offset of every partition that is held.
    pub next: BTreeMap<Partition, i64>,
    /// Asked back, and not given back so far.
    pub owed: BTreeSet<Partition>,
}

impl Member {
    pub fn new(consumer: Box<dyn Consumer>) -> Self {
        let (held, next, owed) = (BTreeSet::new(), BTreeMap::new(), BTreeSet::new());
        Self { consumer, records: Vec::new(), events: Vec::new(), held, next, owed }
    }

    /// Polls once and takes what is assigned; what is asked back stays owed.
    pub fn step(&mut self) {
        self.poll(1000);
    }

    /// The same, for so many records at most.
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
                GroupEvent::Revoked(partitions) => self.owed.extend(partitions.iter().cloned()),
                GroupEvent::Lost(partitions) => self.give_back(partitions),
                _ => {}
            }
        }
        self.events.extend(events);
    }

    fn take(&mut self, partitions: &[Partition]) {
        let committed = self.consumer.committed(partitions, DEADLINE).unwrap();
        let start = |found: &Option<kafleet::broker::Committed>| {
            found.as_ref().map_or(StartOffset::Beginning, |found| StartOffset::At(found.offset))
        };
        let starts: Vec<_> = partitions.iter().cloned().zip(committed.iter().map(start)).collect();
        self.consumer.assign(&starts).unwrap();
        self.held.extend(partitions.iter().cloned());
    }

    fn give_back(&mut self, partitions: &[Partition]) {
        self.consumer.release(partitions).unwrap();
        self.held.retain(|at| !partitions.contains(at));
        self.next.retain(|at, _| !partitions.contains(at));
        self.owed.retain(|at| !partitions.contains(at));
    }

    /// Commits what it has read of the owed partitions, and gives them back.
    pub fn pay(&mut self) {
        let owed: Vec<Partition> = self.owed.iter().cloned().collect();
        let commits: Vec<Commit> = owed.iter().filter_map(|at| Some(commit(at, *self.next.get(at)?, ""))).collect();
        if !commits.is_empty() {
            self.consumer.commit_sync(&commits).unwrap();
        }
        if !owed.is_empty() {
            self.give_back(&owed);
        }
    }

    /// Steps, and gives back what is asked for.
    pub fn step_and_pay(&mut self) {
        self.step();
        self.pay();
    }

    #[track_caller]
    pub fn until_holding(&mut self, count: usize) {
        until(&format!("{count} partitions held"), || {
            self.step_and_pay();
            self.held.len() == count
        });
    }

    /// Commits, polling in between as long as a rebalance refuses it.
    #[track_caller]
    pub fn commit(&mut self, commits: &[Commit]) {
        until("a commit is accepted", || match self.consumer.commit_sync(commits) {
            Ok(()) => true,
            Err(BrokerError::Refused(_)) => {
                self.step_and_pay();
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
