//! Progress of a task as a bar, for values `{done, total, message?}` as the SDKs and bulk actions report them.

use kafleet_documents::Status;
use kafleet_model::json::RawJson;
use kafleet_model::record::state::State;
use maud::{Markup, html};

use super::clock::{as_of_now, span};
use super::json::json_block;
use super::times::millis;
use super::{View, count, first_line};

/// Characters of a message in a list.
const MESSAGE_CHARS: usize = 40;
/// Longest message on the page of a task, in characters.
const MAX_MESSAGE_CHARS: usize = 400;
/// Time without a sign of life of an attempt after which its rest is not estimated, as `why` names it silent.
const SILENT_MS: i64 = 30_000;

/// Part of the work of a task that is done.
struct WorkDone {
    done: f64,
    total: f64,
    message: Option<String>,
}

impl WorkDone {
    /// Returns `None` for values of another form.
    fn read(progress: &RawJson) -> Option<Self> {
        let slice = progress.slice();
        let number = |name: &str| slice.member(name)?.text().parse::<f64>().ok().filter(|number| number.is_finite());
        let (done, total) = (number("done")?, number("total")?);
        let message = slice.member("message").and_then(|message| message.string()).map(String::from);
        (done >= 0.0 && total > 0.0).then_some(Self { done, total, message })
    }

    fn text(&self) -> String {
        format!("{} of {}", number(self.done), number(self.total))
    }

    /// Milliseconds until the rest is done, at the speed of the passed time.
    fn rest_ms(&self, passed_ms: i64) -> Option<i64> {
        let is_open = self.done > 0.0 && self.done < self.total;
        (is_open && passed_ms > 0).then(|| (passed_ms as f64 / self.done * (self.total - self.done)) as i64)
    }

    fn bar(&self) -> Markup {
        html! { progress max=(self.total) value=(self.done.min(self.total)) aria-label="progress" {} }
    }
}

/// Whole numbers with separators, others with at most two digits behind the point.
fn number(value: f64) -> String {
    if value.fract() == 0.0 && value < 1e15 { count(value as u64) } else { format!("{value:.2}") }
}

/// Progress of an open task in a list.
pub(in super::super) fn small_progress(task: &Status) -> Markup {
    let work = task.progress.as_ref().filter(|_| !task.state.is_terminal()).and_then(WorkDone::read);
    html! {
        @if let Some(work) = work {
            span.usage { (work.bar()) span.of { (work.text()) } }
            @if let Some(message) = &work.message { " " span.quiet { (first_line(message, MESSAGE_CHARS)) } }
            " "
        }
    }
}

/// Progress on the page of a task, with the time that the rest takes.
/// `quiet_ms`: time since the last sign of life of the attempt, if it is known.
pub(in super::super) fn progress_block(view: &View, task: &Status, quiet_ms: Option<u64>) -> Markup {
    let Some(progress) = &task.progress else { return html! {} };
    html! {
        section.panel #progress {
            h2 { "Progress" }
            @match WorkDone::read(progress) {
                Some(work) => {
                    (work_done(view, task, &work, quiet_ms))
                    details.more { summary { "As JSON" } (json_block(progress, None)) }
                }
                None => { (json_block(progress, None)) }
            }
        }
    }
}

fn work_done(view: &View, task: &Status, work: &WorkDone, quiet_ms: Option<u64>) -> Markup {
    // Only the attempt that runs has a speed.
    let running = task.state_since.as_deref().filter(|_| matches!(task.state, State::Running | State::Warning));
    let passed_ms = running.and_then(millis).map(|since| view.now_ms.saturating_sub(since));
    // What is done was done up to the last sign of life; an attempt that is silent has no speed.
    let quiet_ms = quiet_ms.and_then(|quiet_ms| i64::try_from(quiet_ms).ok()).unwrap_or_default();
    let is_silent = passed_ms.is_some() && quiet_ms >= SILENT_MS;
    let rest_ms = passed_ms.filter(|_| !is_silent).and_then(|passed_ms| work.rest_ms(passed_ms - quiet_ms));
    html! {
        p.progress {
            (work.bar()) " " strong { (work.text()) }
            @if is_silent { " " (as_of_now(&format!("no progress for {}", span(quiet_ms)))) }
            @if let Some(rest_ms) = rest_ms { " " (as_of_now(&format!("about {} left", span(rest_ms)))) }
        }
        @if let Some(message) = &work.message { p { (first_line(message, MAX_MESSAGE_CHARS)) } }
    }
}
