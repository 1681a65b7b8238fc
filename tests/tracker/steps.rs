//! Steps of a transaction at which a tracker stops or freezes.

use kafleet::broker::BrokerError;
use kafleet_testkit::faults::{FaultRules, Rule, transaction};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Fails before anything is sent.
    Before,
    /// Commits but reports no result.
    After,
    /// Continues only when released, as a stopped process does.
    Frozen,
}

impl Step {
    pub const ALL: [Self; 3] = [Self::Before, Self::After, Self::Frozen];

    /// Stops transactions at this step until the rule is lifted.
    pub fn stop(self, faults: &FaultRules) -> Rule {
        let transactions = faults.on(transaction(""));
        match self {
            Self::Before => transactions.fail(BrokerError::Unavailable("not sent, on purpose".into())),
            Self::After => transactions.lose_reply(BrokerError::InDoubt("sent, on purpose".into())),
            Self::Frozen => transactions.block(),
        }
    }
}
