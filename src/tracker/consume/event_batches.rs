//! From the reader's thread to the folder of a partition: events in batches, bounded in number and bytes.

use tokio::sync::mpsc;

use crate::model::event::Event;
use crate::tracker::project::projection::Logged;

/// Batches on their way to a folder.
pub const BATCHES: usize = 2;
/// Bytes of events that wait for a folder before no more are taken, and that make one batch.
const MAX_PENDING_BYTES: usize = 4 << 20;

/// The place of a feed that was never started.
const NOWHERE: i64 = -1;

/// Events of one partition, in log order.
pub struct Batch {
    /// Which start of the partition they belong to.
    pub generation: u64,
    pub events: Vec<Logged>,
    /// The place after the last record read, events or not.
    pub next: i64,
    /// The record at `next` cannot be folded, and nothing behind it.
    pub stop: Option<String>,
}

/// The reader's end.
pub struct EventBatcher {
    out: mpsc::Sender<Batch>,
    pub generation: u64,
    /// The folder has said where to start, and nothing has stopped it since.
    pub flowing: bool,
    pub paused: bool,
    pending: Vec<Logged>,
    bytes: usize,
    next: i64,
    sent: i64,
    stop: Option<String>,
}

impl EventBatcher {
    /// Nothing flows before the first start, whose generation is higher than this one.
    pub fn new(out: mpsc::Sender<Batch>, generation: u64) -> Self {
        let (pending, stop) = (Vec::new(), None);
        Self { out, generation, flowing: false, paused: false, pending, bytes: 0, next: NOWHERE, sent: NOWHERE, stop }
    }

    /// Begins anew at an offset; whatever was on its way is of an older generation.
    pub fn start(&mut self, generation: u64, offset: i64) {
        self.generation = generation;
        self.flowing = true;
        self.pending.clear();
        self.bytes = 0;
        (self.next, self.sent) = (offset, offset);
        self.stop = None;
    }

    /// The consumer could not be moved to the start: what it delivers does not belong here.
    pub fn hold(&mut self) {
        self.flowing = false;
    }

    pub fn next(&self) -> i64 {
        self.next
    }

    pub fn was_started(&self) -> bool {
        self.next != NOWHERE
    }

    pub fn push(&mut self, event: Event, offset: i64, timestamp_ms: i64, bytes: usize) {
        self.pending.push(Logged { event, offset, timestamp_ms });
        self.bytes += bytes;
        self.next = offset + 1;
    }

    /// A record that is no event.
    pub fn skip(&mut self, offset: i64) {
        self.next = offset + 1;
    }

    /// The consumer has come this far: what lies before and was not delivered is for no reader.
    pub fn step_to(&mut self, next: i64) {
        if self.flowing {
            self.next = self.next.max(next);
        }
    }

    /// Nothing from this offset on can be folded.
    pub fn stop_at(&mut self, offset: i64, why: String) {
        self.next = offset;
        self.stop = Some(why);
        self.flowing = false;
    }

    /// Hands over what has gathered, if the folder has room.
    pub fn pass_on(&mut self, max_events: usize) {
        while self.next > self.sent || self.stop.is_some() {
            let Ok(place) = self.out.try_reserve() else { return };
            let rest = if self.pending.len() > max_events { self.pending.split_off(max_events) } else { Vec::new() };
            let events = std::mem::replace(&mut self.pending, rest);
            let last = self.pending.is_empty();
            let next = self.pending.first().map_or(self.next, |event| event.offset);
            self.sent = next;
            self.bytes = if last { 0 } else { self.bytes / 2 };
            let stop = if last { self.stop.take() } else { None };
            place.send(Batch { generation: self.generation, events, next, stop });
        }
    }

    /// Whoever folded it has gone for good.
    pub fn is_abandoned(&self) -> bool {
        self.out.is_closed()
    }

    pub fn has_pending(&self) -> bool {
        self.next > self.sent || self.stop.is_some()
    }

    /// So much waits that reading on would be hoarding.
    pub fn is_full(&self, max_events: usize) -> bool {
        self.pending.len() >= max_events || self.bytes >= MAX_PENDING_BYTES
    }
}
