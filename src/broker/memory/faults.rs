//! What may go wrong on purpose, decided by a seed.

use crate::broker::BrokerError;

/// Probabilities from 0 to 1, each per call or record; all 0 by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    pub seed: u64,
    /// A send fails and nothing is written.
    pub unavailable: f64,
    /// A send is written, but its sender is told that it failed.
    pub lost_acknowledgement: f64,
    /// A record, and everything behind it in its producer, waits: until the next `send`, `flush` or
    /// [`super::Memory::deliver_delayed`] of an inline producer, else for some milliseconds.
    pub delay: f64,
    /// A record is written twice.
    pub duplicate: f64,
    /// A member's commit is refused, as in a rebalance.
    pub refuse_commit: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendFault {
    None,
    Unavailable,
    LostAcknowledgement,
    Delay,
    Duplicate,
}

#[derive(Default)]
pub(super) struct FaultInjector {
    faults: Faults,
    random: fastrand::Rng,
}

impl FaultInjector {
    pub fn new(faults: Faults) -> Self {
        Self { faults, random: fastrand::Rng::with_seed(faults.seed) }
    }

    pub fn send(&mut self) -> SendFault {
        let faults = [
            (self.faults.unavailable, SendFault::Unavailable),
            (self.faults.lost_acknowledgement, SendFault::LostAcknowledgement),
            (self.faults.delay, SendFault::Delay),
            (self.faults.duplicate, SendFault::Duplicate),
        ];
        let mut left = self.random.f64();
        for (probability, fault) in faults {
            if left < probability {
                return fault;
            }
            left -= probability;
        }
        SendFault::None
    }

    pub fn commit(&mut self) -> Result<(), BrokerError> {
        if self.random.f64() < self.faults.refuse_commit {
            return Err(BrokerError::Refused("a fault on purpose".to_owned()));
        }
        Ok(())
    }
}

pub(super) fn injected() -> BrokerError {
    BrokerError::Unavailable("a fault on purpose".to_owned())
}
