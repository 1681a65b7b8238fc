//! Attempts that need attention: those of silent workers, and those that run far longer than the others of their type.

use kafleet_documents::{RunningDocument, WorkerDocument, WorkerState, Workers};
use kafleet_runtime::now_ms;
use maud::{Markup, html};

use super::types::Minutes;
use crate::parts::state::label;
use crate::parts::statistics::ms_text;
use crate::parts::tasks::{type_link, worker_link};
use crate::parts::times::{millis, time};
use crate::parts::{View, counted, encoded, visible};

/// Attempts that are named.
const NAMED: usize = 5;
/// Attempts of the last full minute from which the usual time of a type is known.
const MIN_ATTEMPTS: u64 = 10;
/// Multiple of the longest of these above which an attempt runs too long, and the least such time.
const TIMES_LONGER: u64 = 20;
const MIN_RUN_MS: u64 = 5 * 60_000;

/// Attempt that runs, its worker, and the longest time of those that ended in the last full minute.
struct SlowAttempt<'a> {
    attempt: &'a RunningDocument,
    worker: &'a str,
    usual_ms: u64,
}

/// Attempts of live workers that run far longer than those of their type that ended in the last full minute.
pub(super) fn slow_attempts(view: &View, workers: &Workers, minutes: Option<&Minutes>) -> Vec<Markup> {
    let Some(minutes) = minutes else { return Vec::new() };
    let alive = workers.workers.iter().filter(|worker| worker.state == WorkerState::Alive);
    let running = alive.flat_map(|worker| worker.running.iter().map(move |attempt| (worker, attempt)));
    let mut slow: Vec<SlowAttempt<'_>> =
        running.filter_map(|(worker, attempt)| SlowAttempt::of(worker, attempt, minutes)).collect();
    // Times of documents are sorted like their texts.
    slow.sort_by(|one, other| one.attempt.started_at.cmp(&other.attempt.started_at));
    let more = slow.len().saturating_sub(NAMED);
    slow.truncate(NAMED);
    let last = slow.len().saturating_sub(1);
    slow.iter().enumerate().map(|(n, slow)| slow.markup(view, if n == last { more } else { 0 })).collect()
}

impl<'a> SlowAttempt<'a> {
    fn of(worker: &'a WorkerDocument, attempt: &'a RunningDocument, minutes: &Minutes) -> Option<Self> {
        let run = minutes.of(&attempt.task_type)?.run;
        let usual_ms = run.max.filter(|_| run.count >= MIN_ATTEMPTS)?;
        let passed_ms = u64::try_from(now_ms() - millis(&attempt.started_at)?).ok()?;
        let is_slow = passed_ms >= MIN_RUN_MS.max(usual_ms.saturating_mul(TIMES_LONGER));
        is_slow.then_some(Self { attempt, worker: &worker.id, usual_ms })
    }

    /// `more`: further attempts that are not named.
    fn markup(&self, view: &View, more: usize) -> Markup {
        html! {
            (label("attention", "▲\u{fe0e} runs long")) " "
            (type_link(view, Some(&self.attempt.task_type))) " "
            a href=(view.task(&self.attempt.id)) { code { (visible(&self.attempt.id)) } }
            " runs since " (time(&self.attempt.started_at)) " on " (worker_link(view, self.worker))
            "; those that ended in the last full minute took at most " (ms_text(self.usual_ms))
            @if more > 0 { "; so do " (counted(more as u64, "more attempt", "more attempts")) }
        }
    }
}

/// Attempts that a silent worker ran when it was last heard of.
pub(super) fn attempts_of(view: &View, worker: &WorkerDocument) -> Markup {
    let more = worker.in_flight.saturating_sub(worker.running.len().min(NAMED) as u64);
    html! {
        @if worker.in_flight == 0 { "; it ran nothing then" }
        @else {
            "; " (counted(worker.in_flight, "attempt", "attempts")) " ran there: "
            @for (n, attempt) in worker.running.iter().take(NAMED).enumerate() {
                @if n > 0 { ", " }
                a href=(view.task(&attempt.id)) { code { (visible(&attempt.id)) } }
            }
            @if more > 0 { a href=(view.url(&format!("/workers/{}", encoded(&worker.id)))) { " and " (more) " more" } }
        }
    }
}

#[cfg(test)]
mod tests {
    use kafleet_config::Role;
    use kafleet_documents::{Durations, StatsPoint};
    use kafleet_model::units::time::time_text;

    use super::*;

    fn view() -> View {
        View::for_tests(Role::Read)
    }

    fn worker(state: &str, ages_ms: &[i64]) -> WorkerDocument {
        let running: Vec<_> = ages_ms
            .iter()
            .enumerate()
            .map(|(n, age_ms)| {
                serde_json::json!({"id": format!("order-{n}"), "type": "pack", "attempt": 1,
                    "started_at": time_text(now_ms() - age_ms)})
            })
            .collect();
        let now = time_text(now_ms());
        serde_json::from_value(serde_json::json!({"id": "w", "state": state, "age_ms": 0, "last_heartbeat_at": now,
            "started_at": now, "host": "h", "pid": 1, "version": "1", "held_bytes": 0, "in_flight": ages_ms.len(),
            "types": [], "running": running}))
        .unwrap()
    }

    fn slow(state: &str, ages_ms: &[i64], count: u64, max_ms: u64) -> Vec<String> {
        let run = Durations { count, max: Some(max_ms), ..Durations::default() };
        let minutes = Minutes::of_type("pack", StatsPoint { run, ..StatsPoint::default() });
        let workers = Workers { workers: vec![worker(state, ages_ms)] };
        slow_attempts(&view(), &workers, Some(&minutes)).into_iter().map(Markup::into_string).collect()
    }

    #[test]
    fn attempt_that_runs_far_longer_than_the_others_is_named() {
        let found = slow("alive", &[1_000, 400_000], 50, 2_000);
        assert!(
            matches!(&found[..], [text] if text.contains("/tasks/order-1\"") && text.contains("at most 2.0 s")),
            "{found:?}"
        );
        assert!(slow("alive", &[400_000], 50, 60_000).is_empty(), "others take a minute");
        assert!(slow("alive", &[400_000], 9, 2_000).is_empty(), "too few attempts to know");
        assert!(slow("alive", &[200_000], 50, 2).is_empty(), "below five minutes");
        assert!(slow("silent", &[400_000], 50, 2_000).is_empty(), "those of silent workers are named with them");
        let many = slow("alive", &[400_000; 8], 50, 2_000);
        assert!(many.len() == NAMED && many[NAMED - 1].contains("so do 3 more attempts"), "{many:?}");
    }

    #[test]
    fn silent_worker_names_what_it_ran() {
        let text = attempts_of(&view(), &worker("silent", &[1, 2, 3, 4, 5, 6, 7])).into_string();
        assert!(
            text.contains("7 attempts ran there") && text.contains("/tasks/order-4") && text.contains("and 2 more"),
            "{text}"
        );
        assert!(attempts_of(&view(), &worker("silent", &[])).into_string().contains("it ran nothing then"));
    }
}
