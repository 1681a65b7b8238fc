//! Fault injection from a seed.

use crate::BrokerError;

/// Probabilities from 0 to 1 of each fault, per call or record. All 0 by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    pub seed: u64,
    /// A send fails without writing the record.
    pub unavailable: f64,
    /// A record is written, but its producer gets an error.
    pub lost_acknowledgement: f64,
    /// A record, and everything after it in its producer, is delayed: until the next `send`, `flush` or
    /// [`super::MemoryBroker::deliver_delayed`] of an inline producer, otherwise for a few milliseconds.
    pub delay: f64,
    /// A record is written twice.
    pub duplicate: f64,
    /// A member's commit is refused, as during a rebalance.
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
    pub(super) fn new(faults: Faults) -> Self {
        Self { faults, random: fastrand::Rng::with_seed(faults.seed) }
    }

    pub(super) fn send(&mut self) -> SendFault {
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

    pub(super) fn commit(&mut self) -> Result<(), BrokerError> {
        if self.random.f64() < self.faults.refuse_commit {
            return Err(BrokerError::Refused("injected fault".to_owned()));
        }
        Ok(())
    }
}

pub(super) fn injected() -> BrokerError {
    BrokerError::Unavailable("injected fault".to_owned())
}
