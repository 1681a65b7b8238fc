//! Rules of faults for any broker and any store.
//!
//! [`FaultRules`] wraps a broker, with its consumers and producers, or a store. Calls pass unchanged until a rule says
//! otherwise; the first rule that matches a call and has uses left decides about it:
//!
//! ```ignore
//! let faults = FaultRules::default();
//! let broker = faults.broker(broker);
//! let denied = faults.on(send(".events")).times(2).fail(BrokerError::Denied("no permission".into()));
//! let outage = faults.on(broker_calls).fail(BrokerError::Unavailable("cut off".into()));
//! outage.lift();
//! assert_eq!(denied.hits(), 2);
//! ```

mod broker;
pub mod call;
mod consumer;
pub mod outages;
mod producer;
pub mod rule;
mod store;

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use kafleet_broker::{Broker, BrokerError};
use kafleet_store::{Store, StoreError};
use parking_lot::Mutex;

pub use call::{
    Call, apply, broker_calls, dependents, group_offsets, open_transactional_producer, polls_of, polls_of_groups,
    read_checkpoints, read_commits, read_nodes, send, store_calls, transaction, watermarks,
};
pub use outages::{full, unavailable};
use rule::Effect;
pub use rule::{Rule, RuleBuilder};

/// Rules of a test, and the wrappers that follow them. Clones share the rules.
#[derive(Clone, Default)]
pub struct FaultRules {
    shared: Arc<RuleState>,
}

#[derive(Default)]
struct RuleState {
    rules: Mutex<Vec<Rule>>,
    /// Records that consumers have delivered.
    delivered: AtomicUsize,
}

/// Error of a rule: of the kind that the calls it matches return.
#[derive(Clone)]
pub enum Fault {
    Broker(BrokerError),
    Store(StoreError),
}

impl From<BrokerError> for Fault {
    fn from(error: BrokerError) -> Self {
        Self::Broker(error)
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<Fault> for BrokerError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Broker(error) => error,
            Fault::Store(error) => panic!("a rule of a call of the broker fails with an error of the store: {error}"),
        }
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Store(error) => error,
            Fault::Broker(error) => panic!("a rule of a call of the store fails with an error of the broker: {error}"),
        }
    }
}

/// Decision about a call that does not fail.
enum Verdict {
    /// The call is made.
    Make,
    /// The call is not made and returns this value.
    Answer(Box<dyn Any + Send>),
    /// The call takes effect and returns this error.
    LoseReply(Fault),
    /// An effect that only this kind of call has.
    Special(Rule),
}

impl Verdict {
    /// Returns the value of a rule in place of the call's.
    fn answer<T: 'static>(value: Box<dyn Any + Send>) -> T {
        *value.downcast().expect("a rule answers with the type that the call returns")
    }
}

impl FaultRules {
    /// Wraps a broker.
    pub fn broker(&self, inner: Arc<dyn Broker>) -> Arc<dyn Broker> {
        broker::FaultyBroker::open(inner, self.clone())
    }

    /// Wraps a store.
    pub fn store(&self, inner: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(store::FaultyStore { inner, faults: self.clone() })
    }

    /// Begins a rule for the calls that satisfy the condition.
    pub fn on(&self, matches: impl Fn(&Call<'_>) -> bool + Send + Sync + 'static) -> RuleBuilder {
        RuleBuilder::new(self.clone(), Box::new(matches))
    }

    /// Counts the calls that satisfy the condition, also those that fail by another rule.
    pub fn count(&self, matches: impl Fn(&Call<'_>) -> bool + Send + Sync + 'static) -> Rule {
        self.on(matches).build(Effect::Count)
    }

    /// Number of records that consumers have delivered.
    pub fn delivered(&self) -> usize {
        self.shared.delivered.load(SeqCst)
    }

    /// Finds the rule that decides about a call.
    fn rule_for(&self, call: &Call<'_>) -> Option<Rule> {
        let rules = self.shared.rules.lock();
        rules.iter().filter(|rule| rule.counts()).for_each(|rule| {
            rule.applies_to(call);
        });
        rules.iter().find(|rule| !rule.counts() && rule.applies_to(call)).cloned()
    }

    /// Decides about a call of the broker, after any wait that a rule demands.
    fn judge(&self, call: &Call<'_>) -> Result<Verdict, BrokerError> {
        while let Some(rule) = self.rule_for(call) {
            // Rules that follow a lifted one decide about the call that it has blocked.
            if !rule.is_block() || rule.wait_admitted() {
                return Ok(rule.verdict(call)?);
            }
        }
        Ok(Verdict::Make)
    }

    /// Makes a call of the broker as the rules say.
    fn call<T: 'static>(
        &self,
        call: &Call<'_>,
        make: impl FnOnce() -> Result<T, BrokerError>,
    ) -> Result<T, BrokerError> {
        match self.judge(call)? {
            Verdict::Answer(value) => Ok(Verdict::answer(value)),
            Verdict::LoseReply(fault) => make().and(Err(fault.into())),
            Verdict::Make | Verdict::Special(_) => make(),
        }
    }

    /// Makes a call of the store as the rules say.
    async fn call_store<T: 'static>(
        &self,
        call: Call<'_>,
        make: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let Some(rule) = self.rule_for(&call) else { return make.await };
        rule.delay().await;
        match rule.verdict(&call)? {
            Verdict::Answer(value) => Ok(Verdict::answer(value)),
            Verdict::LoseReply(fault) => make.await.and(Err(fault.into())),
            Verdict::Make | Verdict::Special(_) => make.await,
        }
    }
}
