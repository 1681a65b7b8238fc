//! Tickets: which input an outcome belongs to, in 63 bits, so that an acknowledgement needs no look-up.

use parking_lot::Mutex;

/// Types that one process can work on.
pub const MAX_LANES: usize = 255;
/// Assignments that can be told apart before a number comes again.
pub const SLOTS: u32 = 1 << 12;
const SEQUENCE_BITS: u32 = 43;

/// One input: the lane (type), the slot (one assignment of one partition) and the offset, counted from where the
/// assignment began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryTag(u64);

impl DeliveryTag {
    /// For events that no input waits for.
    pub const UNTRACKED: DeliveryTag = DeliveryTag((MAX_LANES as u64) << (SEQUENCE_BITS + 12));

    pub fn new(lane: usize, slot: u32, sequence: i64) -> Self {
        let lane = (lane as u64) << (SEQUENCE_BITS + 12);
        let slot = u64::from(slot % SLOTS) << SEQUENCE_BITS;
        Self(lane | slot | (sequence as u64 & ((1 << SEQUENCE_BITS) - 1)))
    }

    pub fn from_token(token: u64) -> Self {
        Self(token)
    }

    pub fn token(self) -> u64 {
        self.0
    }

    pub fn lane(self) -> usize {
        (self.0 >> (SEQUENCE_BITS + 12)) as usize
    }

    pub fn slot(self) -> u32 {
        (self.0 >> SEQUENCE_BITS) as u32 % SLOTS
    }

    pub fn sequence(self) -> i64 {
        (self.0 & ((1 << SEQUENCE_BITS) - 1)) as i64
    }
}

/// What comes back to a lane. Bounded by what the lane has handed out.
#[derive(Default)]
pub struct Completions {
    done: Mutex<Vec<DeliveryTag>>,
    returned: Mutex<Vec<DeliveryTag>>,
}

impl Completions {
    /// The input's result is acknowledged.
    pub fn done(&self, tag: DeliveryTag) {
        self.done.lock().push(tag);
    }

    /// The input was given back without a result: a successor does it.
    pub fn returned(&self, tag: DeliveryTag) {
        self.returned.lock().push(tag);
    }

    /// Swaps what has come into the two lists, which must be empty.
    pub fn take(&self, done: &mut Vec<DeliveryTag>, returned: &mut Vec<DeliveryTag>) {
        std::mem::swap(&mut *self.done.lock(), done);
        std::mem::swap(&mut *self.returned.lock(), returned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back() {
        for (lane, slot, sequence) in [(0, 0, 0), (254, 4095, (1 << 43) - 1), (7, 9, 123_456_789)] {
            let tag = DeliveryTag::from_token(DeliveryTag::new(lane, slot, sequence).token());
            assert_eq!((tag.lane(), tag.slot(), tag.sequence()), (lane, slot, sequence));
            assert_eq!(tag.token() & crate::broker::shared_producer::WAITER_BIT, 0);
        }
        assert_eq!(DeliveryTag::UNTRACKED.lane(), MAX_LANES);
    }
}
