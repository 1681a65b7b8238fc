//! Batches of events between the poll loop and the task of a partition, bounded in number and bytes.

use kafleet_model::event::Event;
use tokio::sync::mpsc;

use crate::project::projection::LoggedEvent;

/// Maximum batches queued for a partition task.
pub(crate) const BATCHES: usize = 2;
/// Bytes of pending events at which a partition counts as full.
const MAX_PENDING_BYTES: usize = 4 << 20;

/// Offset of a batcher that was never started.
const NOT_STARTED: i64 = -1;

/// Events of one partition, in log order.
pub(crate) struct EventBatch {
    /// Generation of the seek that the events belong to.
    pub generation: u64,
    pub events: Vec<LoggedEvent>,
    /// Offset after the last record read, including records without an event.
    pub next: i64,
    /// Reason why the record at `next` cannot be folded; nothing follows it.
    pub stop: Option<String>,
}

/// Collects the events of one partition and sends them in batches.
pub(crate) struct EventBatcher {
    out: mpsc::Sender<EventBatch>,
    pub generation: u64,
    /// A start offset was set and nothing has stopped the partition since.
    pub is_started: bool,
    pub paused: bool,
    pending: Vec<LoggedEvent>,
    bytes: usize,
    next: i64,
    sent: i64,
    stop: Option<String>,
}

impl EventBatcher {
    /// Creates a stopped batcher. The generation of the first start must be higher than `generation`.
    pub(crate) fn new(out: mpsc::Sender<EventBatch>, generation: u64) -> Self {
        let (pending, stop) = (Vec::new(), None);
        Self {
            out,
            generation,
            is_started: false,
            paused: false,
            pending,
            bytes: 0,
            next: NOT_STARTED,
            sent: NOT_STARTED,
            stop,
        }
    }

    /// Restarts at an offset; batches already sent belong to an older generation.
    pub(crate) fn start(&mut self, generation: u64, offset: i64) {
        self.generation = generation;
        self.is_started = true;
        self.pending.clear();
        self.bytes = 0;
        (self.next, self.sent) = (offset, offset);
        self.stop = None;
    }

    /// Drops further records because the consumer could not be moved to the start offset.
    pub(crate) fn suspend(&mut self) {
        self.is_started = false;
    }

    pub(crate) fn next(&self) -> i64 {
        self.next
    }

    pub(crate) fn was_started(&self) -> bool {
        self.next != NOT_STARTED
    }

    pub(crate) fn push(&mut self, event: Event, offset: i64, timestamp_ms: i64, bytes: usize) {
        self.pending.push(LoggedEvent { event, offset, timestamp_ms });
        self.bytes += bytes;
        self.next = offset + 1;
    }

    /// Steps over a record without an event.
    pub(crate) fn skip(&mut self, offset: i64) {
        self.next = offset + 1;
    }

    /// Advances to the consumer's position: offsets before it that were not delivered contain no visible record.
    pub(crate) fn advance_to(&mut self, next: i64) {
        if self.is_started {
            self.next = self.next.max(next);
        }
    }

    /// Stops at an offset that cannot be folded.
    pub(crate) fn stop_at(&mut self, offset: i64, reason: String) {
        self.next = offset;
        self.stop = Some(reason);
        self.is_started = false;
    }

    /// Sends pending events while the partition task has capacity.
    pub(crate) fn flush(&mut self, max_events: usize) {
        while self.next > self.sent || self.stop.is_some() {
            let Ok(permit) = self.out.try_reserve() else { return };
            let rest = if self.pending.len() > max_events { self.pending.split_off(max_events) } else { Vec::new() };
            let events = std::mem::replace(&mut self.pending, rest);
            let last = self.pending.is_empty();
            let next = self.pending.first().map_or(self.next, |event| event.offset);
            self.sent = next;
            self.bytes = if last { 0 } else { self.bytes / 2 };
            let stop = if last { self.stop.take() } else { None };
            permit.send(EventBatch { generation: self.generation, events, next, stop });
        }
    }

    /// Returns true if the partition task has ended.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.out.is_closed()
    }

    pub(crate) fn has_pending(&self) -> bool {
        self.next > self.sent || self.stop.is_some()
    }

    /// Returns true if enough events are pending to stop reading.
    pub(crate) fn is_full(&self, max_events: usize) -> bool {
        self.pending.len() >= max_events || self.bytes >= MAX_PENDING_BYTES
    }
}
