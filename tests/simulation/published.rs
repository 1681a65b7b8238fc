//! Records and events of the tracker: each effect is published once, and no record without its event.

use std::collections::{BTreeMap, BTreeSet};

use kafleet::model::event::{Event, Kind, Payload};
use kafleet::model::task::header;

use crate::fleet::Fleet;

/// Checks that the tracker publishes each effect once.
pub fn check_published_once(log: &[Event], violations: &mut Vec<String>) {
    let mut published_counts: BTreeMap<(String, u32, String), u32> = BTreeMap::new();
    for event in log {
        let effect = match &event.payload {
            Payload::Released { .. } => "release".to_owned(),
            Payload::Checked { check } => format!("check {check:?}"),
            Payload::EffectDone { effect, .. } => format!("{effect:?}"),
            Payload::Cancelled(_) | Payload::Expired(_) if event.worker.is_none() => "end".to_owned(),
            _ => continue,
        };
        // A task waits at the tracker once per attempt.
        let key = (event.id.to_string(), event.run, effect);
        *published_counts.entry(key).or_default() += 1;
    }
    for ((id, run, effect), times) in published_counts {
        let is_delayed = if effect.starts_with("release") { releases(log, &id, run) } else { 1 };
        if times > is_delayed {
            violations.push(format!("{effect} of run {run} of `{id}` was published {times} times"));
        }
    }
}

/// Checks that the number of records published by the tracker matches the events.
pub fn check_records(fleet: &Fleet, log: &[Event], violations: &mut Vec<String>) {
    let mut released: BTreeMap<(String, u32), usize> = BTreeMap::new();
    log.iter().filter(|event| event.kind() == Kind::Released).for_each(|event| {
        *released.entry((event.id.to_string(), event.run)).or_default() += 1;
    });
    // A delay that has passed at the time of the request is ignored.
    let is_delayed = |event: &Event| event.kind() == Kind::Scheduled && event.worker.is_none();
    let waiting: BTreeSet<String> =
        log.iter().filter(|event| is_delayed(event)).map(|event| event.id.to_string()).collect();
    for ((id, run), records) in fleet.offset_oracle.ready() {
        let is_continuation = id.rsplit(':').next().is_some_and(|segment| segment.starts_with("then"));
        let by_tracker = is_continuation || (!id.contains(':') && (run > 1 || waiting.contains(&id)));
        let reported =
            released.get(&(id.clone(), run)).copied().unwrap_or_default() + usize::from(run > 1 || is_continuation);
        if by_tracker && records > reported {
            violations.push(format!("run {run} of `{id}` has {records} records, and {reported} are in the log"));
        }
    }
}

/// Number of times the run was postponed: different due times or, where two waits end at the same one, numbers of used waits.
fn releases(log: &[Event], id: &str, run: u32) -> u32 {
    let of_run = log.iter().filter(|event| event.id.as_str() == id && event.run == run);
    let postponed = |event: &Event| {
        let headers = &event.payload.record()?.headers;
        let used = headers.iter().find(|(name, _)| name == header::WAITS).map(|(_, value)| value.clone());
        Some((event.payload.due_ms(), event.attempt, used))
    };
    of_run.filter_map(postponed).collect::<BTreeSet<_>>().len() as u32
}
