//! A rule: its condition, its uses and its effect.

use std::any::Any;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use kafleet_broker::BrokerError;
use parking_lot::Mutex;

use super::producer::HeldRecord;
use super::{Call, Fault, FaultRules, Verdict};
use crate::wait::eventually_blocking;

type Condition = dyn Fn(&Call<'_>) -> bool + Send + Sync;
type MakeAnswer = dyn Fn(&Call<'_>) -> Box<dyn Any + Send> + Send + Sync;

/// Consequence of a rule for a call.
pub(super) enum Effect {
    /// The call is only counted; another rule may decide about it.
    Count,
    Fail(Box<dyn Fn() -> Fault + Send + Sync>),
    LoseReply(Fault),
    Answer(Box<MakeAnswer>),
    Run(Box<dyn Fn() + Send + Sync>),
    Block,
    Hang,
    Delay(Duration),
    /// A sent record is kept back.
    Hold,
    /// A sent record is accepted, and reported as not delivered.
    Undelivered(BrokerError),
    /// A poll delivers at most this number of records.
    AtMost(usize),
    /// Polls deliver at most this number of records together.
    Records(AtomicUsize),
}

/// Handle of a rule. The rule holds until it is lifted, also without its handle.
#[derive(Clone)]
pub struct Rule {
    state: Arc<RuleState>,
}

/// Condition, effect and uses of a rule.
pub struct RuleState {
    condition: Box<Condition>,
    /// Number of calls that pass before the rule begins.
    skipped: AtomicUsize,
    /// Number of uses left.
    left: AtomicUsize,
    hits: AtomicUsize,
    is_lifted: AtomicBool,
    /// Blocked calls that may pass.
    admitted: AtomicUsize,
    pub(super) held: Mutex<Vec<HeldRecord>>,
    pub(super) effect: Effect,
}

impl Deref for Rule {
    type Target = RuleState;

    fn deref(&self) -> &RuleState {
        &self.state
    }
}

/// A rule without its effect.
pub struct RuleBuilder {
    faults: FaultRules,
    condition: Box<Condition>,
    skipped: usize,
    times: usize,
}

impl RuleBuilder {
    pub(super) fn new(faults: FaultRules, condition: Box<Condition>) -> Self {
        Self { faults, condition, skipped: 0, times: usize::MAX }
    }

    /// Lets the first calls pass.
    pub fn after(self, calls: usize) -> Self {
        Self { skipped: calls, ..self }
    }

    /// Limits the rule to this number of calls; without a limit it holds until it is lifted.
    pub fn times(self, times: usize) -> Self {
        Self { times, ..self }
    }

    /// Fails the calls; they have no effect. A producer or consumer that fails with `Fatal` fails for good.
    pub fn fail(self, error: impl Into<Fault>) -> Rule {
        let fault = error.into();
        self.fail_with(move || fault.clone())
    }

    /// Fails the calls like [`Self::fail`], with an error per call.
    pub fn fail_with<F: Into<Fault>>(self, error: impl Fn() -> F + Send + Sync + 'static) -> Rule {
        self.build(Effect::Fail(Box::new(move || error().into())))
    }

    /// Lets the calls take effect and replaces their replies by the error.
    pub fn lose_reply(self, error: impl Into<Fault>) -> Rule {
        self.build(Effect::LoseReply(error.into()))
    }

    /// Returns the value in place of the calls. Its type is that of their result.
    pub fn answer<T: Clone + Send + Sync + 'static>(self, value: T) -> Rule {
        self.answer_with(move |_| value.clone())
    }

    /// Answers the calls like [`Self::answer`], with a value per call.
    pub fn answer_with<T: Send + 'static>(self, answer: impl Fn(&Call<'_>) -> T + Send + Sync + 'static) -> Rule {
        self.build(Effect::Answer(Box::new(move |call| Box::new(answer(call)))))
    }

    /// Runs a function before the calls, which may panic.
    pub fn run(self, run: impl Fn() + Send + Sync + 'static) -> Rule {
        self.build(Effect::Run(Box::new(run)))
    }

    /// Blocks calls of the broker until the rule is lifted.
    pub fn block(self) -> Rule {
        self.build(Effect::Block)
    }

    /// Never answers calls of the store.
    pub fn hang(self) -> Rule {
        self.build(Effect::Hang)
    }

    /// Delays calls of the store, or the outcomes of commits.
    pub fn delay(self, delay: Duration) -> Rule {
        self.build(Effect::Delay(delay))
    }

    /// Accepts records and sends them once the rule is lifted. They are purged if their producer fails for good.
    pub fn hold(self) -> Rule {
        self.build(Effect::Hold)
    }

    /// Accepts records and reports that they were not delivered.
    pub fn undelivered(self, error: BrokerError) -> Rule {
        self.build(Effect::Undelivered(error))
    }

    /// Limits the records of a poll.
    pub fn at_most(self, records: usize) -> Rule {
        self.build(Effect::AtMost(records))
    }

    /// Limits the records of all polls together.
    pub fn records(self, records: usize) -> Rule {
        self.build(Effect::Records(AtomicUsize::new(records)))
    }

    pub(super) fn build(self, effect: Effect) -> Rule {
        let state = RuleState {
            condition: self.condition,
            skipped: AtomicUsize::new(self.skipped),
            left: AtomicUsize::new(self.times),
            hits: AtomicUsize::default(),
            is_lifted: AtomicBool::default(),
            admitted: AtomicUsize::default(),
            held: Mutex::default(),
            effect,
        };
        let rule = Rule { state: Arc::new(state) };
        self.faults.shared.rules.lock().push(rule.clone());
        rule
    }
}

/// Takes one from a number, if one is left.
fn take_one(number: &AtomicUsize) -> bool {
    number.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
}

impl Rule {
    /// Number of calls that the rule has decided about.
    pub fn hits(&self) -> usize {
        self.hits.load(SeqCst)
    }

    /// Number of records held back.
    pub fn held_records(&self, matches: impl Fn(&[u8]) -> bool) -> usize {
        self.held.lock().iter().filter(|held| held.record.value.as_deref().is_some_and(&matches)).count()
    }

    /// Ends the rule: blocked calls are made, and records held back are sent.
    pub fn lift(&self) {
        let mut held = self.held.lock();
        self.is_lifted.store(true, SeqCst);
        held.drain(..).for_each(HeldRecord::send);
    }

    /// Lets one blocked call pass.
    pub fn admit_one(&self) {
        self.admitted.fetch_add(1, SeqCst);
    }

    pub(super) fn counts(&self) -> bool {
        matches!(self.effect, Effect::Count)
    }

    /// Keeps a record back, or sends it if the rule was lifted meanwhile.
    pub(super) fn hold_record(&self, record: HeldRecord) {
        let mut held = self.held.lock();
        if self.is_lifted.load(SeqCst) {
            record.send();
        } else {
            held.push(record);
        }
    }

    pub(super) fn is_block(&self) -> bool {
        matches!(self.effect, Effect::Block)
    }

    /// Uses the rule once if it holds for the call.
    pub(super) fn applies_to(&self, call: &Call<'_>) -> bool {
        let applies =
            !self.is_lifted.load(SeqCst) && (self.condition)(call) && !take_one(&self.skipped) && take_one(&self.left);
        self.hits.fetch_add(applies.into(), SeqCst);
        applies
    }

    /// Waits until a blocked call is admitted (true) or the rule is lifted (false).
    pub(super) fn wait_admitted(&self) -> bool {
        eventually_blocking("the test lets a blocked call pass", || {
            let admitted = take_one(&self.admitted);
            (admitted || self.is_lifted.load(SeqCst)).then_some(admitted)
        })
    }

    /// Waits as long as the rule demands of a call of the store.
    pub(super) async fn delay(&self) {
        match self.effect {
            Effect::Delay(delay) => tokio::time::sleep(delay).await,
            Effect::Hang => std::future::pending().await,
            _ => {}
        }
    }

    pub(super) fn verdict(&self, call: &Call<'_>) -> Result<Verdict, Fault> {
        match &self.effect {
            Effect::Fail(error) => return Err(error()),
            Effect::LoseReply(fault) => return Ok(Verdict::LoseReply(fault.clone())),
            Effect::Answer(answer) => return Ok(Verdict::Answer(answer(call))),
            Effect::Run(run) => run(),
            Effect::Count | Effect::Block | Effect::Hang | Effect::Delay(_) => {}
            Effect::Hold | Effect::Undelivered(_) | Effect::AtMost(_) | Effect::Records(_) => {
                return Ok(Verdict::Special(self.clone()));
            }
        }
        Ok(Verdict::Make)
    }
}
