//! Delivery tags and the completions that return to a consumer.
//!
//! A delivery tag identifies an input in 63 bits: the type, the assignment of its partition, and the offset. It travels
//! through the producer as the delivery token of the input's terminal event, so an acknowledgement needs no look-up:
//! the thread of the producer appends the tag to a list, which the poll loop of the type takes with one swap.
//!
//! Invariant: a tag of an earlier assignment matches no later one (ids of assignments repeat after 4,096 others). An
//! acknowledgement may arrive after its partition was lost and assigned again; it must not complete an offset that the
//! new assignment has not processed.
//!
//! Read next: `events.rs` (where tags are sent), `crates/worker/src/consumer/partition_table.rs` (where completions are
//! applied).

use kafleet_model::offsets::PendingRetry;
use parking_lot::Mutex;

/// Maximum number of task types in one process.
pub(super) const MAX_TYPES: usize = 1_023;
/// Number of assignment ids of a consumer before they repeat.
pub(super) const ASSIGNMENT_IDS: u32 = 1 << 12;
const SEQUENCE_BITS: u32 = 41;
const ASSIGNMENT_BITS: u32 = 12;

/// Identifies one input: the task type (as an index), the assignment of its partition, and the offset relative to the
/// start of that assignment, modulo 2^41.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeliveryTag(u64);

impl DeliveryTag {
    /// Tag of events whose acknowledgement completes no input.
    pub(super) const UNTRACKED: DeliveryTag = DeliveryTag((MAX_TYPES as u64) << (SEQUENCE_BITS + ASSIGNMENT_BITS));

    pub(super) fn new(type_index: usize, assignment_id: u32, sequence: i64) -> Self {
        let type_index = (type_index as u64) << (SEQUENCE_BITS + ASSIGNMENT_BITS);
        let assignment_id = u64::from(assignment_id % ASSIGNMENT_IDS) << SEQUENCE_BITS;
        Self(type_index | assignment_id | (sequence as u64 & ((1 << SEQUENCE_BITS) - 1)))
    }

    pub(super) fn from_token(token: u64) -> Self {
        Self(token)
    }

    pub(super) fn token(self) -> u64 {
        self.0
    }

    pub(super) fn type_index(self) -> usize {
        (self.0 >> (SEQUENCE_BITS + ASSIGNMENT_BITS)) as usize
    }

    pub(super) fn assignment_id(self) -> u32 {
        (self.0 >> SEQUENCE_BITS) as u32 % ASSIGNMENT_IDS
    }

    fn sequence(self) -> i64 {
        (self.0 & ((1 << SEQUENCE_BITS) - 1)) as i64
    }

    /// Returns the offset of the input, which is within 2^40 of `watermark`. `base` is the start of the assignment.
    pub(super) fn offset(self, base: i64, watermark: i64) -> i64 {
        let distance = self.sequence().wrapping_sub(watermark - base);
        // Sign extension of the lower bits.
        watermark + ((distance << (64 - SEQUENCE_BITS)) >> (64 - SEQUENCE_BITS))
    }
}

/// Attempts and waits that a task has used, to be kept in the commits of its partition.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordedRetry {
    pub tag: DeliveryTag,
    /// Number of the record, from 1; ascending within a type.
    pub sequence: u64,
    pub retry: PendingRetry,
}

/// Completions that have arrived since the last time.
#[derive(Default)]
pub(super) struct ArrivedCompletions {
    pub completed: Vec<DeliveryTag>,
    pub released: Vec<DeliveryTag>,
    pub recorded: Vec<RecordedRetry>,
}

/// Completed and released inputs, and recorded retries, that the consumer has not applied yet. Bounded by the number of
/// inputs handed out, and the retries by the commits for which the next attempts wait.
#[derive(Default)]
pub(super) struct Completions {
    completed: Mutex<Vec<DeliveryTag>>,
    released: Mutex<Vec<DeliveryTag>>,
    recorded: Mutex<Vec<RecordedRetry>>,
}

impl Completions {
    /// Adds an input whose result is acknowledged.
    pub(super) fn complete(&self, tag: DeliveryTag) {
        self.completed.lock().push(tag);
    }

    /// Adds an input that was given up without a result; the next owner of the partition runs it.
    pub(super) fn release(&self, tag: DeliveryTag) {
        self.released.lock().push(tag);
    }

    /// Records what a task has used, before it is released or runs again.
    pub(super) fn record(&self, recorded: RecordedRetry) {
        self.recorded.lock().push(recorded);
    }

    /// Swaps the collected completions into the lists, which must be empty. The recorded retry of a released task is among
    /// them.
    pub(super) fn take_arrived(&self, arrived: &mut ArrivedCompletions) {
        std::mem::swap(&mut *self.completed.lock(), &mut arrived.completed);
        std::mem::swap(&mut *self.released.lock(), &mut arrived.released);
        std::mem::swap(&mut *self.recorded.lock(), &mut arrived.recorded);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_round_trip_keeps_all_parts() {
        for (type_index, assignment_id, sequence) in [(0, 0, 0), (1_022, 4095, (1 << 41) - 1), (7, 9, 123_456_789)] {
            let tag = DeliveryTag::from_token(DeliveryTag::new(type_index, assignment_id, sequence).token());
            let parts = (tag.type_index(), tag.assignment_id(), tag.sequence());
            assert_eq!(parts, (type_index, assignment_id, sequence));
            assert_eq!(tag.token() & kafleet_broker::shared_producer::WAITER_BIT, 0);
        }
        assert_eq!(DeliveryTag::UNTRACKED.type_index(), MAX_TYPES);
    }

    #[test]
    fn offset_is_found_after_the_sequence_wraps_around() {
        let base = 1_000;
        for offset in [base, base + 5, base + (1 << 41) - 1, base + (1 << 41), base + (1 << 42) + 77] {
            let tag = DeliveryTag::new(3, 7, offset - base);
            for watermark in [offset, offset - 1, offset - 100_000, offset + 3] {
                assert_eq!(tag.offset(base, watermark.max(base)), offset);
            }
        }
    }
}
