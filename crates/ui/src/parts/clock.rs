//! Times that pass: how long a task has been in its state. The text is right when it is rendered; the script keeps it current,
//! and the entity tag of the page leaves it out.

use kafleet_documents::Status;
use kafleet_model::record::state::State;
use maud::{Markup, html};

use super::View;
use super::times::{between, duration, millis, whole_time};

/// Mark of an element whose text follows the clock.
pub(in super::super) const CLOCK_MARK: &str = "data-clock=\"";

/// Time that has passed since a time of a document.
fn since(view: &View, text: &str) -> Markup {
    let passed = millis(text).map(|at| view.now_ms.saturating_sub(at));
    html! { time datetime=(text) title=(whole_time(text)) data-clock="1" { (passed.map_or_else(String::new, span)) } }
}

/// Time that is left until a time of a document.
fn until(view: &View, text: &str) -> Markup {
    let left = millis(text).map(|at| at.saturating_sub(view.now_ms));
    html! { time datetime=(text) title=(whole_time(text)) data-clock="-1" { (left.map_or_else(String::new, span)) } }
}

/// Text that is about the time of the rendering, and stays until the page is rendered again.
pub(in super::super) fn as_of_now(text: &str) -> Markup {
    html! { span data-clock="" { (text) } }
}

/// Milliseconds in their two largest units, in whole seconds as the script shows them.
pub(in super::super) fn span(ms: i64) -> String {
    let seconds = ms.max(0) / 1_000;
    if seconds < 60 { format!("{seconds} s") } else { duration(seconds * 1_000) }
}

/// Time of a task in its state: how long it has been running, when it starts, or how long it took.
pub(in super::super) fn state_time(view: &View, task: &Status) -> Markup {
    if task.state.is_terminal() {
        return took(task);
    }
    let passing = |words: &str| html! { (words) @if let Some(at) = &task.state_since { " " (since(view, at)) } };
    let coming = |words: &str, otherwise: &str| match &task.due_at {
        Some(due) => html! { (words) " " (until(view, due)) },
        None => passing(otherwise),
    };
    match task.state {
        State::Scheduled if is_kept(view, task) => passing("kept"),
        State::Scheduled => coming("starts in", "scheduled"),
        State::Retrying => match task.due_at.as_deref().filter(|due| millis(due).is_some_and(|at| at <= view.now_ms)) {
            // Started on request, or held by something else than its delay.
            Some(due) => html! { "due for " (since(view, due)) },
            None => coming("retries in", "waits to retry"),
        },
        State::Queued => passing("queued"),
        State::Running | State::Warning => passing("running"),
        State::Cancelling => passing("cancelling"),
        State::WaitingForChildren => passing("waits for children"),
        _ => passing("expected"),
    }
}

/// Returns true if a unique task waits for the open one of its key, and no longer for its time.
fn is_kept(view: &View, task: &Status) -> bool {
    let due = task.due_at.as_deref().and_then(millis);
    task.fields.unique.is_some() && due.is_some_and(|due| due <= view.now_ms)
}

fn took(task: &Status) -> Markup {
    match ran_ms(task) {
        Some(ms) => html! { "took " (duration(ms)) },
        None => html! { span.quiet { "–" } },
    }
}

/// Milliseconds from the first start of an ended run to its end. With children these are the first start and the last end in
/// the tree, as on its page; of a later run, whose tree keeps the first start of all runs, they are its own.
fn ran_ms(task: &Status) -> Option<i64> {
    task.ended_at.as_ref()?;
    let of_tree = task.tree.execution_ms.filter(|_| task.run == 1 && task.children.total > 0);
    of_tree.or_else(|| between(task.started_at.as_deref(), task.ended_at.as_deref()))
}

/// Times of a run: from the creation to the first start, from there to the end, and from the creation to the end.
pub(in super::super) fn run_spans(status: &Status) -> [Option<Markup>; 3] {
    let [created, started, ended] =
        [&status.created_at, &status.started_at, &status.ended_at].map(|time| time.as_deref());
    let span = |from: Option<&str>, to: Option<&str>, note: &str| {
        between(from, to).map(|ms| html! { (duration(ms)) @if !note.is_empty() { span.quiet { (note) } } })
    };
    // The creation is not the beginning of the wait of a later run.
    let waited = span(created, started, "").filter(|_| status.run == 1);
    let note = parts_of_run(status);
    let ran = ran_ms(status).map(|ms| html! { (duration(ms)) @if !note.is_empty() { span.quiet { (note) } } });
    [waited, ran, span(created, ended, " from its creation")]
}

/// Parts of a run beside its last attempt, which count in the time that it ran.
fn parts_of_run(status: &Status) -> &'static str {
    let has_repeats = status.attempt > 1 || status.waits > 0 || status.interruptions > 0;
    match (has_repeats, status.children.total > 0) {
        (false, false) => "",
        (true, false) => " with its retries and waits",
        (false, true) => " with its children",
        (true, true) => " with its retries, waits and children",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::parts::tests::status;

    #[test]
    fn spans_of_a_run_say_what_they_contain() {
        let at = |second: u32| format!("2026-01-31T12:00:{second:02}.000Z");
        let shown = |change: serde_json::Value| {
            let mut times = json!({"created_at": at(0), "started_at": at(20), "ended_at": at(30)});
            times.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            run_spans(&status(times)).map(|span| span.map(Markup::into_string).unwrap_or_default())
        };
        let total = "30.0 s<span class=\"quiet\"> from its creation</span>";
        assert_eq!(shown(json!({})), ["20.0 s", "10.0 s", total]);
        assert!(shown(json!({"attempt": 2}))[1].contains("with its retries and waits"));
        let counts = json!({"total": 1, "pending": 0, "successful": 1, "failed": 0, "by_state": {}});
        assert!(shown(json!({"children": counts}))[1].contains("10.0 s<span class=\"quiet\"> with its children"));
        let counts = json!({"total": 1, "pending": 0, "successful": 1, "failed": 0, "by_state": {}});
        let tree = json!({"total": 2, "pending": 0, "successful": 2, "failed": 0, "execution_ms": 11_000});
        let parent = json!({"children": counts, "tree": tree});
        assert!(shown(parent)[1].starts_with("11.0 s<span"), "as the page of the tree states it");
        assert_eq!(shown(json!({"run": 2})), ["", "10.0 s", total], "earlier runs are no wait");
        assert_eq!(shown(json!({"ended_at": null})), ["20.0 s", "", ""]);
    }
}
