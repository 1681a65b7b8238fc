//! Task types for the tests: handlers from closures, gates that block them, and a journal of attempts.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use kafleet::config::{Order, TypePolicy};
use kafleet::handlers::{Answer, AnswerFuture, Context, Handler, ParamsError, Schema, TypeRegistration};
use kafleet::model::json::RawJson;
use kafleet::model::units::duration::Millis;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;

/// A task type.
#[derive(Clone)]
pub struct Kind {
    pub name: &'static str,
    pub registered: TypeRegistration,
}

struct Function<F>(F);

impl<F, R> Handler for Function<F>
where
    F: Fn(Value, Context) -> R + Send + Sync + 'static,
    R: Future<Output = Answer> + Send + 'static,
{
    fn run(&self, params: &RawJson, cx: Context) -> Result<AnswerFuture, ParamsError> {
        Ok(Box::pin((self.0)(params.value().unwrap(), cx)))
    }
}

impl Kind {
    /// Creates a type with eight slots, three attempts with short backoff, and a timeout that no test reaches.
    pub fn new<R>(name: &'static str, run: impl Fn(Value, Context) -> R + Send + Sync + 'static) -> Self
    where
        R: Future<Output = Answer> + Send + 'static,
    {
        let policy = TypePolicy {
            concurrency: Some(8),
            order: Order::None,
            retries: 2,
            min_backoff: Millis(20),
            max_backoff: Millis(80),
            timeout: Millis::secs(900),
            ..TypePolicy::default()
        };
        Self { name, registered: TypeRegistration { policy, ..TypeRegistration::new(Function(run)) } }
    }

    /// Creates a type that returns its params.
    pub fn echo(name: &'static str) -> Self {
        Self::new(name, |params, _| async move { ok(params) })
    }

    pub fn slots(mut self, slots: u32) -> Self {
        self.registered.policy.concurrency = Some(slots);
        self
    }

    pub fn order(mut self, order: Order) -> Self {
        self.registered.policy.order = order;
        self
    }

    pub fn timeout(mut self, timeout: Millis) -> Self {
        self.registered.policy.timeout = timeout;
        self
    }

    pub fn retries(mut self, retries: u32, backoff: Millis) -> Self {
        let policy = &mut self.registered.policy;
        (policy.retries, policy.min_backoff, policy.max_backoff) = (retries, backoff, backoff);
        self
    }

    pub fn schema(mut self, schema: Value) -> Self {
        self.registered.schema = Schema::compile(schema).unwrap();
        self
    }

    pub fn publish_results(mut self) -> Self {
        self.registered.policy.publish_results = true;
        self
    }
}

pub fn ok(output: Value) -> Answer {
    Ok(RawJson::of(&output).unwrap())
}

/// Blocks attempts until it is opened, for all or one by one.
#[derive(Clone)]
pub struct Gate(Arc<watch::Sender<GateState>>);

#[derive(Default)]
struct GateState {
    all: bool,
    ids: Vec<String>,
}

impl Gate {
    pub fn closed() -> Self {
        Self(Arc::new(watch::channel(GateState::default()).0))
    }

    pub fn open(&self) {
        self.0.send_modify(|opened| opened.all = true);
    }

    pub fn open_for(&self, id: &str) {
        self.0.send_modify(|opened| opened.ids.push(id.to_owned()));
    }

    pub async fn pass(&self, id: &str) {
        let mut opened = self.0.subscribe();
        let _ = opened.wait_for(|opened| opened.all || opened.ids.iter().any(|open| open == id)).await;
    }
}

/// Journal of all attempts of a test's workers.
#[derive(Clone, Default)]
pub struct Journal(Arc<Mutex<Entries>>);

#[derive(Default)]
struct Entries {
    /// Task ids in the order of their starts.
    starts: Vec<String>,
    running: usize,
    most: usize,
}

/// A running attempt, until it is dropped.
pub struct Run(Journal);

impl Journal {
    pub fn begin(&self, cx: &Context) -> Run {
        let mut entries = self.0.lock();
        entries.starts.push(cx.id.to_string());
        entries.running += 1;
        entries.most = entries.most.max(entries.running);
        Run(self.clone())
    }

    pub fn starts(&self) -> Vec<String> {
        self.0.lock().starts.clone()
    }

    pub fn started(&self) -> usize {
        self.0.lock().starts.len()
    }

    /// Number of starts of each task.
    pub fn counts(&self) -> HashMap<String, usize> {
        let mut counts = HashMap::new();
        self.starts().into_iter().for_each(|id| *counts.entry(id).or_default() += 1);
        counts
    }

    pub fn running(&self) -> usize {
        self.0.lock().running
    }

    /// Maximum number of concurrent attempts so far.
    pub fn most(&self) -> usize {
        self.0.lock().most
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.0.0.lock().running -= 1;
    }
}

/// Creates a type whose attempts are recorded in the journal and wait at the gate.
pub fn gated(name: &'static str, journal: &Journal, gate: &Gate) -> Kind {
    let journal = journal.clone();
    let gate = gate.clone();
    Kind::new(name, move |_, cx| {
        let journal = journal.clone();
        let gate = gate.clone();
        async move {
            let _run = journal.begin(&cx);
            gate.pass(cx.id.as_str()).await;
            ok(Value::Null)
        }
    })
}

/// Creates a type whose attempts are recorded in the journal and end at once.
pub fn counted(name: &'static str, journal: &Journal) -> Kind {
    let gate = Gate::closed();
    gate.open();
    gated(name, journal, &gate)
}
