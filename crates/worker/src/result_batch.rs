//! Batch of results of tasks that have succeeded: the producer takes a batch at less cost than single records.

use std::ops::Range;
use std::time::Duration;

use kafleet_broker::BatchRecord;
use kafleet_model::encode_error::EncodeError;
use tokio::time::Instant;

use super::decode::InFlight;
use super::events::EventWriter;

/// Maximum time that a result waits for others; far below the producer's own linger.
const LINGER: Duration = Duration::from_millis(1);

/// Encoded results to be sent together, by events partition.
#[derive(Default)]
pub(super) struct ResultBatch {
    bytes: Vec<u8>,
    by_partition: Vec<Vec<EncodedResult>>,
    /// Time of the first result; `None` for an empty batch.
    since: Option<Instant>,
}

/// A task and its encoded result. The task stays in flight until the producer has accepted the result.
struct EncodedResult {
    in_flight: Box<InFlight>,
    value: Range<usize>,
}

impl ResultBatch {
    /// Returns whether the first result has waited long enough.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now.duration_since(since) >= LINGER)
    }

    /// Adds a task with the result that `encode` writes. Returns the task if that fails.
    pub(super) fn add(
        &mut self,
        in_flight: Box<InFlight>,
        partition: u32,
        now: Instant,
        encode: impl FnOnce(&InFlight, &mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), (Box<InFlight>, EncodeError)> {
        let start = self.bytes.len();
        if let Err(error) = encode(&in_flight, &mut self.bytes) {
            self.bytes.truncate(start);
            return Err((in_flight, error));
        }
        let partition = partition as usize;
        if self.by_partition.len() <= partition {
            self.by_partition.resize_with(partition + 1, Vec::new);
        }
        self.by_partition[partition].push(EncodedResult { in_flight, value: start..self.bytes.len() });
        self.since.get_or_insert(now);
        Ok(())
    }

    /// Sends all results; waits only while the producer has no room.
    pub(super) async fn send(&mut self, events: &EventWriter) {
        if self.since.take().is_none() {
            return;
        }
        for (partition, entries) in self.by_partition.iter_mut().enumerate().filter(|(_, entries)| !entries.is_empty())
        {
            let refused = events.send_batch(partition as i32, entries.iter().map(|entry| entry.record(&self.bytes)));
            for n in refused {
                let EncodedResult { in_flight, value } = &entries[n];
                events.send_until_accepted(&in_flight.task.id, &self.bytes[value.clone()], in_flight.tag).await;
            }
            entries.clear();
        }
        self.bytes.clear();
    }
}

impl EncodedResult {
    fn record<'a>(&'a self, bytes: &'a [u8]) -> BatchRecord<'a> {
        let InFlight { task, tag, .. } = &*self.in_flight;
        BatchRecord { key: task.id.root().as_bytes(), value: &bytes[self.value.clone()], token: tag.token() }
    }
}
