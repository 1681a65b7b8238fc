//! Events of tasks, and random ones. Unit tests of the model compile this file too, for the types of their build.

use kafleet_model::event::{Announcement, Event, Kind, Payload};
use kafleet_model::json::RawJson;
use kafleet_model::outbox::RecordCopy;
use kafleet_model::record::state::State;
use kafleet_model::task::action::{Action, Callback, Check, NotifyAction};
use kafleet_model::task::continuation::{Continuation, On};
use kafleet_model::task::id::TaskId;
use kafleet_model::task::{OnFailure, Policy, Position, Rules};
use kafleet_model::units::duration::Millis;
use proptest::prelude::*;

/// Id of a task; panics if the text is none.
pub fn id(text: &str) -> TaskId {
    TaskId::parse(text).unwrap()
}

/// Event of run 1.
pub fn event(payload: impl Into<Payload>, task: &str) -> Event {
    Event::new(payload, id(task), 1, 5)
}

/// Announcement of a task of type `echo`.
pub fn submitted(task: &str) -> Event {
    with_policy(task, Policy::default())
}

/// Announcement with a policy.
pub fn with_policy(task: &str, policy: Policy) -> Event {
    let mut event = event(Kind::Submitted, task);
    event.task = Some(Box::new(Announcement {
        task_type: "echo".into(),
        created_at_ms: 4,
        position: Some(Position { partition: 0, offset: 7 }),
        hash: Some("h".into()),
        policy: (policy != Policy::default()).then(|| Box::new(policy)),
        asof: None,
        trace: None,
    }));
    event
}

/// Record of a task without params.
pub fn record() -> Box<RecordCopy> {
    Box::new(RecordCopy::of(None, [("ce_id", b"x".as_slice())].into_iter(), RawJson::null()))
}

/// Sets the start of the attempt in events that have one.
pub fn began(mut event: Event, at_ms: Option<i64>) -> Event {
    match &mut event.payload {
        Payload::Succeeded { started_at_ms, .. } => *started_at_ms = at_ms,
        Payload::Retrying { failure, .. }
        | Payload::Failed(failure)
        | Payload::Cancelled(failure)
        | Payload::Expired(failure) => failure.started_at_ms = at_ms,
        _ => {}
    }
    event
}

/// Adds the deferred record.
pub fn with_record(mut event: Event, due_ms: i64) -> Event {
    event.payload.set_record(*record());
    event.payload.set_due(due_ms);
    event
}

const IDS: [&str; 12] =
    ["r", "r:then", "r:then-2", "r:a:then", "r:a", "r:b", "r:a:x", "r:a:y", "r:a:x:p", "r:b:z", "s", "s:t"];

fn some_continuations(number: usize) -> Vec<Continuation> {
    match number {
        1 => {
            vec![Continuation::new("after", serde_json::json!(1)).then(Continuation::new("echo", serde_json::json!(2)))]
        }
        2 => vec![
            Continuation::new("after", serde_json::json!(1)).on(On::Ended),
            Continuation::new("clean", serde_json::json!(1)).on(On::Failed),
        ],
        _ => Vec::new(),
    }
}

fn some_tells(state: State) -> (Vec<Action>, Vec<Check>) {
    let callback = Callback::to("https://a.example");
    let action = Some(NotifyAction { callback: Some(callback.clone()), email: None });
    let check = |after: u64| Check {
        after: Some(Millis(after)),
        at: None,
        expect: vec![state],
        passed: action.clone(),
        failed: None,
    };
    (vec![Action { on: vec![state], callback: Some(callback), email: None }], vec![check(3), check(9)])
}

/// Events of a few related tasks, in any order, of the kinds that change states, rollups, effects and logs. Patches,
/// attachments and events of partitions have tests of their own.
pub fn any_event() -> impl Strategy<Value = Event> {
    let kinds = prop::sample::select(vec![
        Kind::Submitted,
        Kind::Scheduled,
        Kind::Released,
        Kind::Started,
        Kind::Progress,
        Kind::Log,
        Kind::Warned,
        Kind::Retrying,
        Kind::Interrupted,
        Kind::Succeeded,
        Kind::Failed,
        Kind::Cancelled,
        Kind::Expired,
        Kind::Reported,
        Kind::CancelRequested,
        Kind::RetryRequested,
        Kind::EffectDone,
        Kind::Checked,
    ]);
    let policy = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), prop::option::of(0u32..3), 0usize..6);
    (prop::sample::select(IDS.to_vec()), kinds, 1u32..4, prop::sample::select(State::ALL.to_vec()), policy).prop_map(
        |(task, kind, run, state, (ignore, external, block_when_done, fail_fast, max_failed, continuations))| {
            let on_failure = if ignore { OnFailure::Ignore } else { OnFailure::Fail };
            let (actions, checks) = if continuations > 3 { some_tells(state) } else { Default::default() };
            let then = some_continuations(continuations);
            let rules =
                Rules { external, block_when_done, fail_fast, max_failed, then, actions, checks, ..Rules::default() };
            let mut event = with_policy(task, Policy { on_failure, rules, ..Policy::default() });
            event.run = run;
            event.payload = match kind {
                Kind::Log => Payload::log(vec!["line".into()]),
                Kind::Reported => Payload::Reported { state: Some(state), output: None, error: None },
                Kind::RetryRequested => Payload::RetryRequested { only_failed: ignore, new_run: None, record: None },
                Kind::EffectDone => {
                    let effect = format!("{}-{}", if ignore { "cancel" } else { "publish" }, state.index());
                    Payload::EffectDone { effect: Some(effect.into()), position: None }
                }
                Kind::Checked => Payload::Checked { check: Some(continuations as u32) },
                Kind::Started if continuations == 0 => Payload::Started { then: some_continuations(2) },
                other => other.into(),
            };
            if external && matches!(kind, Kind::Scheduled | Kind::Retrying) {
                event = with_record(event, 9_000 + i64::from(run));
            }
            if let Some(task) = event.task.as_mut().filter(|_| !block_when_done) {
                task.asof = Some(state.index() as i64);
            }
            if !matches!(kind, Kind::Submitted | Kind::Started) {
                event.task = None;
            }
            event
        },
    )
}
