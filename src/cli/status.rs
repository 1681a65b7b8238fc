//! `status`, `history`: show one task.

use clap::Args;
use kafleet_documents::{History, HistoryItem};
use kafleet_model::units::duration::Millis;
use tokio::time::Instant;

use super::exit::{Code, Outcome};
use super::globals::Globals;
use super::output::{Field, Rows, eprint_line};
use super::task_view::render_task;

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// The task's id
    pub id: String,
    /// Wait for the task to end, up to this time [default: 5m]; the exit code is its outcome
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "5m")]
    pub wait: Option<Millis>,
}

/// Shows a task. With `--wait` the exit code is its outcome.
pub(super) async fn status(args: StatusArgs, globals: &Globals) -> Outcome {
    let client = globals.client()?;
    let output = globals.output();
    let started = Instant::now();
    let status = client.status(&args.id).await?;
    if let Some(wait) = args.wait {
        return super::wait::finish(&client, &output, status, wait, started).await;
    }
    output.json_or_line(&status, |status| render_task(status, output.paint))?;
    Ok(Code::Ok)
}

#[derive(Debug, Args)]
pub(super) struct HistoryArgs {
    /// The task's id
    pub id: String,
}

/// Shows the retained events of a task.
pub(super) async fn history(args: HistoryArgs, globals: &Globals) -> Outcome {
    let output = globals.output();
    let history: History = globals.client()?.get(&["v1", "tasks", &args.id, "history"], &Vec::new()).await?;
    if output.is_json() {
        output.json(&history)?;
        return Ok(Code::Ok);
    }
    output.table(history_rows(&history))?;
    if history.dropped > 0 {
        eprint_line(format_args!("{} older events are no longer kept", history.dropped));
    }
    Ok(Code::Ok)
}

fn history_rows(history: &History) -> Rows {
    let mut rows = Rows::new(["AT", "EVENT", "RUN", "ATTEMPT", "WORKER", "POSITION", "MESSAGE"]);
    for item in &history.events {
        let kind = if item.ignored { format!("{} (ignored)", item.kind) } else { item.kind.clone() };
        rows.add([
            Field::Text(item.at.clone()),
            Field::Text(kind),
            Field::Number(item.run.into()),
            Field::Number(item.attempt.into()),
            item.worker.clone().into(),
            Field::Text(item.position.clone()),
            message_text(item).into(),
        ]);
    }
    rows
}

/// Returns the message with the error kind (unless it repeats the event kind) and the requester.
fn message_text(item: &HistoryItem) -> Option<String> {
    let message = item.message.as_deref().unwrap_or_default().to_lowercase();
    let repeats = |kind: &str| kind == item.kind || kind == "error" || message.starts_with(&kind.replace('_', " "));
    let kind = item.error_kind.as_ref().filter(|kind| !repeats(kind)).map(|kind| format!("{kind}:"));
    let by = item.by.as_ref().map(|by| format!("(by {by})"));
    let words: Vec<String> = [kind, item.message.clone(), by].into_iter().flatten().collect();
    (!words.is_empty()).then(|| words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::Paint;

    #[test]
    fn history_marks_ignored_events() {
        let item = |kind: &str, ignored: bool| HistoryItem {
            kind: kind.into(),
            at: "2026-01-31T12:00:00.000Z".into(),
            run: 1,
            attempt: 2,
            worker: None,
            message: Some("two\nlines".into()),
            error_kind: ignored.then(|| "exit_code".to_owned()),
            waits: 0,
            started_at: None,
            by: ignored.then(|| "ops".to_owned()),
            ignored,
            position: "3:12".into(),
        };
        let events = vec![item("started", false), item("failed", true)];
        let history = History { id: "x".into(), events, dropped: 0, duplicates: 1 };
        let expected = "\
AT                        EVENT             RUN  ATTEMPT  WORKER  POSITION  MESSAGE
2026-01-31T12:00:00.000Z  started             1        2  -       3:12      two lines
2026-01-31T12:00:00.000Z  failed (ignored)    1        2  -       3:12      exit_code: two lines (by ops)";
        assert_eq!(history_rows(&history).draw(Paint(false), false), expected);
    }
}
