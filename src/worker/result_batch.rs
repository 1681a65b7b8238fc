//! The last words of tasks that were done on the spot, gathered for a moment: the producer takes many for less than it
//! takes them one by one.

use std::ops::Range;
use std::time::Duration;

use tokio::time::Instant;

use super::decode::InFlight;
use super::events::EventWriter;
use crate::broker::BatchRecord;

/// How long an event waits for others. Far below what the producer itself waits for its batches.
const LONGEST_WAIT: Duration = Duration::from_millis(1);

/// Events that wait to be sent together, by partition.
#[derive(Default)]
pub struct ResultBatch {
    bytes: Vec<u8>,
    waiting: Vec<Vec<Entry>>,
    /// Of the first of them; None: there are none.
    since: Option<Instant>,
}

/// The last word on a task, which is held until the producer has it.
struct Entry {
    held: Box<InFlight>,
    value: Range<usize>,
}

impl ResultBatch {
    /// The first has waited long enough.
    pub fn is_due(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now.duration_since(since) >= LONGEST_WAIT)
    }

    /// Takes the last word on a task, as `write` writes it.
    pub fn add(&mut self, held: Box<InFlight>, partition: u32, now: Instant, write: impl FnOnce(&InFlight, &mut Vec<u8>)) {
        let from = self.bytes.len();
        write(&held, &mut self.bytes);
        let partition = partition as usize;
        if self.waiting.len() <= partition {
            self.waiting.resize_with(partition + 1, Vec::new);
        }
        self.waiting[partition].push(Entry { held, value: from..self.bytes.len() });
        self.since.get_or_insert(now);
    }

    /// Hands everything to the producer; waits only while that has no room.
    pub async fn send(&mut self, events: &EventWriter) {
        if self.since.take().is_none() {
            return;
        }
        for (partition, entries) in self.waiting.iter_mut().enumerate().filter(|(_, entries)| !entries.is_empty()) {
            let refused = events.send_batch(partition as i32, entries.iter().map(|entry| entry.plain(&self.bytes)));
            for n in refused {
                let Entry { held, value } = &entries[n];
                events.send_until_accepted(&held.task.id, &self.bytes[value.clone()], held.tag).await;
            }
            entries.clear();
        }
        self.bytes.clear();
    }
}

impl Entry {
    fn plain<'a>(&'a self, bytes: &'a [u8]) -> BatchRecord<'a> {
        let InFlight { task, tag, .. } = &*self.held;
        BatchRecord { key: task.id.root().as_bytes(), value: &bytes[self.value.clone()], token: tag.token() }
    }
}
