//! From a record to work: a task, or something that cannot be one.

use std::sync::Arc;

use super::completions::DeliveryTag;
use super::memory_budget::{Account, Charge, MemoryBudget};
use crate::broker::{Record, RecordRef};
use crate::config;
use crate::model::task::partition::partition_of;
use crate::model::task::{Position, Reject, Source, Task, read_task};

/// Bytes that a held task costs beyond its record, roughly.
const OVERHEAD: usize = 512;

/// One input on its way through the worker.
pub enum Input {
    Task(Box<InFlight>),
    Invalid(Box<Invalid>),
}

/// A task that the worker holds, from delivery to acknowledgement.
pub struct InFlight {
    pub task: Task,
    pub tag: DeliveryTag,
    /// Given back when the work is dropped.
    pub _charge: Charge,
    /// Hash of the ordering key; 0 where there is no order.
    pub key: u64,
    /// Attempts used in this run, earlier workers' included where the record tells.
    pub attempts: u32,
    /// When its record was written, epoch milliseconds.
    pub record_timestamp_ms: i64,
    /// Its record's key is not its id.
    pub has_own_key: bool,
    /// This worker has said something of the task, and with it everything it knows.
    pub announced: bool,
    /// It has its turn among the tasks with its key.
    pub holds_key: bool,
    /// Hash of the key that a rate per key goes by; 0 where there was no such rate when it came.
    pub rate_key: u64,
    /// The rate has let it pass already.
    pub paced: bool,
    /// It was under way when workers died: it runs where it can take down nothing but itself.
    pub suspect: bool,
    /// Child processes that it has taken down as a suspect.
    pub deaths: u8,
}

impl InFlight {
    /// What a rate per key goes by.
    pub fn rate_key(&self) -> u64 {
        if self.rate_key != 0 { self.rate_key } else { key_hash(self.task.id.as_str().as_bytes()) }
    }
}

/// A record that is no task.
pub struct Invalid {
    pub record: Record,
    pub reject: Reject,
    pub tag: DeliveryTag,
    /// Given back when the dead letter is written.
    pub _charge: Charge,
}

impl Input {
    pub fn offset(&self) -> i64 {
        match self {
            Self::Task(held) => held.task.position.offset,
            Self::Invalid(rejected) => rejected.record.offset,
        }
    }

    pub fn tag(&self) -> DeliveryTag {
        match self {
            Self::Task(held) => held.tag,
            Self::Invalid(rejected) => rejected.tag,
        }
    }
}

/// How a lane reads its records.
pub struct Decoder {
    pub task_type: Arc<str>,
    pub order: config::Order,
    pub max_params: usize,
    pub memory: Arc<MemoryBudget>,
    pub lane: usize,
    /// There is a rate per key.
    pub by_key: bool,
}

/// The records of one turn.
pub struct PollBatch<'a> {
    intake: &'a Decoder,
    /// Of its own: the lane makes copies while the dispatcher drops those of earlier turns.
    task_type: Arc<str>,
    account: Arc<Account>,
    bytes: usize,
}

impl Drop for PollBatch<'_> {
    fn drop(&mut self) {
        self.account.add(self.bytes);
    }
}

impl PollBatch<'_> {
    pub fn read(&mut self, record: &RecordRef<'_>, tag: DeliveryTag) -> Input {
        let intake = self.intake;
        let source = Source {
            task_type: &self.task_type,
            position: Position { partition: record.partition, offset: record.offset },
            timestamp_ms: record.timestamp_ms,
            value: record.value,
        };
        let size = record.value.map_or(0, <[u8]>::len);
        let read = read_task(&source, record.headers()).and_then(|task| intake.fits(task, size));
        match read {
            Ok(task) => {
                let attempts = task.attempts_used;
                // Headers are kept as the policy; most tasks have next to none.
                let size = if task.policy.is_some() { record.size() } else { size };
                let key = intake.order_key(record, &task);
                let _charge = self.charge(size);
                let rate_key =
                    if intake.by_key { key_hash(record.key.unwrap_or_else(|| task.id.as_str().as_bytes())) } else { 0 };
                let (announced, holds_key, paced, suspect, deaths) = Default::default();
                let record_timestamp_ms = record.timestamp_ms;
                let has_own_key = record.key.is_some_and(|key| key != task.id.as_str().as_bytes());
                Input::Task(Box::new(InFlight {
                    task,
                    tag,
                    _charge,
                    key,
                    attempts,
                    record_timestamp_ms,
                    has_own_key,
                    announced,
                    holds_key,
                    rate_key,
                    paced,
                    suspect,
                    deaths,
                }))
            }
            Err(reject) => {
                let _charge = self.charge(record.size());
                Input::Invalid(Box::new(Invalid { record: record.to_owned(), reject, tag, _charge }))
            }
        }
    }

    fn charge(&mut self, size: usize) -> Charge {
        self.bytes += size + OVERHEAD;
        self.account.charge(size + OVERHEAD)
    }
}

impl Decoder {
    pub fn turn(&self) -> PollBatch<'_> {
        let account = Account::open(&self.memory, self.lane);
        PollBatch { intake: self, task_type: Arc::from(&*self.task_type), account, bytes: 0 }
    }

    fn fits(&self, task: Task, size: usize) -> Result<Task, Reject> {
        if size <= self.max_params {
            return Ok(task);
        }
        let message = format!("the params have {size} bytes: at most {} are allowed; pass a link instead", self.max_params);
        Err(Reject { task: Some((task.id, task.run)), ..Reject::new("too_large", message) })
    }

    /// Tasks with the same value run one after the other.
    fn order_key(&self, record: &RecordRef<'_>, task: &Task) -> u64 {
        let partition = (record.partition as u64 + 1) << 32;
        match self.order {
            config::Order::None => 0,
            config::Order::Partition => partition,
            // A collision only makes two keys wait for one another.
            config::Order::Key => partition | key_hash(record.key.unwrap_or_else(|| task.id.as_str().as_bytes())),
        }
    }
}

fn key_hash(key: &[u8]) -> u64 {
    u64::from(partition_of(key, i32::MAX as u32))
}
