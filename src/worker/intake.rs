//! From a record to work: a task, or something that cannot be one.

use std::sync::Arc;

use super::memory::{Account, Charge, Memory};
use super::ticket::Ticket;
use crate::broker::{Record, RecordRef};
use crate::config;
use crate::model::partition::partition_of;
use crate::model::task::{Position, Reject, Source, Task, read_task};

/// Bytes that a held task costs beyond its record, roughly.
const OVERHEAD: usize = 512;

/// One input on its way through the worker.
pub enum Work {
    Task(Box<Held>),
    Rejected(Box<Rejected>),
}

/// A task that the worker holds, from delivery to acknowledgement.
pub struct Held {
    pub task: Task,
    pub ticket: Ticket,
    /// Given back when the work is dropped.
    pub _charge: Charge,
    /// Hash of the ordering key; 0 where there is no order.
    pub key: u64,
    /// Attempts used in this run, earlier workers' included where the record tells.
    pub attempts: u32,
    /// When its record was written, epoch milliseconds.
    pub written_ms: i64,
    /// Its record's key is not its id.
    pub has_own_key: bool,
    /// This worker has said something of the task, and with it everything it knows.
    pub announced: bool,
    /// It has its turn among the tasks with its key.
    pub has_turn: bool,
    /// Hash of the key that a rate per key goes by; 0 where there was no such rate when it came.
    pub rate_key: u64,
    /// The rate has let it pass already.
    pub paced: bool,
    /// It was under way when workers died: it runs where it can take down nothing but itself.
    pub suspect: bool,
    /// Child processes that it has taken down as a suspect.
    pub deaths: u8,
}

impl Held {
    /// What a rate per key goes by.
    pub fn pace_key(&self) -> u64 {
        if self.rate_key != 0 { self.rate_key } else { key_hash(self.task.id.as_str().as_bytes()) }
    }
}

/// A record that is no task.
pub struct Rejected {
    pub record: Record,
    pub reject: Reject,
    pub ticket: Ticket,
    /// Given back when the dead letter is written.
    pub _charge: Charge,
}

impl Work {
    pub fn offset(&self) -> i64 {
        match self {
            Self::Task(held) => held.task.position.offset,
            Self::Rejected(rejected) => rejected.record.offset,
        }
    }

    pub fn ticket(&self) -> Ticket {
        match self {
            Self::Task(held) => held.ticket,
            Self::Rejected(rejected) => rejected.ticket,
        }
    }
}

/// How a lane reads its records.
pub struct Intake {
    pub task_type: Arc<str>,
    pub order: config::Order,
    pub max_params: usize,
    pub memory: Arc<Memory>,
    pub lane: usize,
    /// There is a rate per key.
    pub by_key: bool,
}

/// The records of one turn.
pub struct Turn<'a> {
    intake: &'a Intake,
    /// Of its own: the lane makes copies while the dispatcher drops those of earlier turns.
    task_type: Arc<str>,
    account: Arc<Account>,
    bytes: usize,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.account.add(self.bytes);
    }
}

impl Turn<'_> {
    pub fn read(&mut self, record: &RecordRef<'_>, ticket: Ticket) -> Work {
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
                let (announced, has_turn, paced, suspect, deaths) = Default::default();
                let written_ms = record.timestamp_ms;
                let has_own_key = record.key.is_some_and(|key| key != task.id.as_str().as_bytes());
                Work::Task(Box::new(Held {
                    task,
                    ticket,
                    _charge,
                    key,
                    attempts,
                    written_ms,
                    has_own_key,
                    announced,
                    has_turn,
                    rate_key,
                    paced,
                    suspect,
                    deaths,
                }))
            }
            Err(reject) => {
                let _charge = self.charge(record.size());
                Work::Rejected(Box::new(Rejected { record: record.to_owned(), reject, ticket, _charge }))
            }
        }
    }

    fn charge(&mut self, size: usize) -> Charge {
        self.bytes += size + OVERHEAD;
        self.account.charge(size + OVERHEAD)
    }
}

impl Intake {
    pub fn turn(&self) -> Turn<'_> {
        let account = Account::open(&self.memory, self.lane);
        Turn { intake: self, task_type: Arc::from(&*self.task_type), account, bytes: 0 }
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
