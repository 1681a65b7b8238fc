//! Outages of the services of an API.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use kafleet_broker::BrokerError;
use kafleet_store::StoreError;

use super::{FaultRules, Rule, broker_calls, send, store_calls};

/// Error of a full queue.
pub fn full() -> BrokerError {
    BrokerError::Full("full on purpose".into())
}

/// Error of an unavailable store.
pub fn unavailable() -> StoreError {
    StoreError::Unavailable("unavailable on purpose".into())
}

impl FaultRules {
    /// Makes the store unavailable to the API.
    pub fn store_outage(&self) -> Rule {
        self.on(store_calls).fail(unavailable())
    }

    /// Makes Kafka unavailable to the API, except for the clients that it has opened.
    pub fn kafka_outage(&self) -> Rule {
        self.on(broker_calls).fail(BrokerError::Unavailable("cut off on purpose".into()))
    }

    /// Fails writes to the control topic.
    pub fn full_control_topic(&self) -> Rule {
        self.on(send(".control")).fail(full())
    }

    /// Drops the acknowledgements of writes to the events and control topics. A refused retry ends the wait for the
    /// acknowledgement of the first attempt.
    pub fn unacknowledged_writes(&self) -> Rule {
        let is_retry = AtomicBool::default();
        let next_error = move || {
            if is_retry.fetch_xor(true, SeqCst) {
                BrokerError::Denied("refused on purpose".into())
            } else {
                BrokerError::InDoubt("acknowledgement withheld on purpose".into())
            }
        };
        self.on(|call| send(".events")(call) || send(".control")(call)).fail_with(next_error)
    }
}
