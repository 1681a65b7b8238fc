//! Outcomes of the last runs of a schedule.

use kafleet_documents::ScheduleNote;
use maud::{Markup, html};

use super::View;
use super::state::{glyph, tone, word};

/// Runs that are shown.
const LISTED_RUNS: usize = 10;

/// Glyphs of the last runs, the newest last, each as a link to its task.
pub(in super::super) fn last_runs(view: &View, recent: &[ScheduleNote]) -> Markup {
    html! {
        @if !recent.is_empty() {
            span.runs { @for note in recent.iter().take(LISTED_RUNS).rev() { (run(view, note)) } }
        }
    }
}

fn run(view: &View, note: &ScheduleNote) -> Markup {
    let at = note.time.get(..16).unwrap_or(&note.time).replace('T', " ");
    let outcome = note.state.map_or_else(|| note.outcome.name().to_owned(), word);
    let title = format!("{at} {outcome}");
    let (class, mark) = note.state.map_or(("neutral", "·".to_owned()), |state| (tone(state), glyph(state)));
    html! {
        @match &note.task {
            Some(task) => { a.run.(class) href=(view.task(task)) title=(title) aria-label=(title) { (mark) } }
            None => { span.run.neutral title=(title) { span aria-hidden="true" { "◌" } span.hidden { (title) } } }
        }
    }
}

#[cfg(test)]
mod tests {
    use kafleet_model::record::state::State;
    use kafleet_model::schedule::step::ScheduleOutcome;

    use super::*;

    #[test]
    fn last_runs_lead_to_their_tasks_newest_last() {
        let note = |hour: u32, task: Option<&str>, state: Option<State>| ScheduleNote {
            outcome: if task.is_some() { ScheduleOutcome::Fired } else { ScheduleOutcome::Skipped },
            time: format!("2026-01-31T{hour:02}:00:00.000Z"),
            at: String::new(),
            task: task.map(Into::into),
            count: 1,
            state,
        };
        let recent = [note(3, None, None), note(2, Some("n.2"), Some(State::Failed)), note(1, Some("n.1"), None)];
        let drawn = last_runs(&View::for_tests(kafleet_config::Role::Read), &recent).into_string();
        assert!(drawn.contains("class=\"run bad\" href=\"/tasks/n.2\" title=\"2026-01-31 02:00 failed\""), "{drawn}");
        let order = ["01:00 fired", "02:00 failed", "03:00 skipped"].map(|text| drawn.find(text));
        assert!(order[0].is_some() && order.is_sorted(), "{drawn}");
    }
}
