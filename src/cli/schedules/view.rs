//! Text view of a schedule.

use kafleet_documents::ScheduleDocument;

use crate::cli::output::{Paint, one_line};

pub(super) fn render_schedule(schedule: &ScheduleDocument, paint: Paint) -> String {
    let mut lines = Vec::new();
    let mut line =
        |name: &str, text: String| lines.push(format!("{} {}", paint.dim(&format!("{name:<9}")), one_line(&text)));
    line("id", schedule.id.clone());
    line("type", schedule.spec.task.task_type.clone());
    line("when", schedule.spec.when());
    if let Some(words) = &schedule.description {
        line("in words", words.clone());
    }
    line("overlap", schedule.spec.overlap.name().to_owned());
    if let Some(paused) = &schedule.paused {
        let reason = paused.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        let by = paused.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
        line("paused", format!("since {}{by}{reason}", paused.since));
    }
    if let Some(error) = &schedule.error {
        line("error", format!("cannot fire: {error}"));
    }
    if schedule.paused.is_none() && !schedule.next.is_empty() {
        line("next", schedule.next.join("  "));
    }
    if let Some(last) = &schedule.last {
        let state = last.state.map(|state| format!(" ({})", paint.state(state))).unwrap_or_default();
        line("last", format!("{}{state}", last.task));
    }
    if let Some(waiting) = &schedule.waiting {
        line("waiting", format!("{waiting}, until the previous task has ended"));
    }
    line("times", format!("{} fired, {} skipped, {} missed", schedule.fired, schedule.skipped, schedule.missed));
    for note in &schedule.recent {
        let many = if note.count > 1 { format!(" and {} before it", note.count - 1) } else { String::new() };
        let task = note.task.as_ref().map(|task| format!(" {task}")).unwrap_or_default();
        line("", format!("{} {}{many}{task}", note.time, note.outcome.name()));
    }
    lines.join("\n")
}
