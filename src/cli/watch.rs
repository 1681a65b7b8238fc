//! `watch`: a line for every change of a task, until it ends.

use clap::Args;

use super::card::error_text;
use super::client::{Client, Follow};
use super::globals::Globals;
use super::outcome::{Code, Failure, Outcome};
use super::screen::{Paint, Screen, one_line};
use super::wait::code_of;
use crate::api::documents::Status;
use crate::model::duration::Millis;
use crate::publish::time_text;
use crate::runtime::now_ms;

#[derive(Debug, Args)]
pub struct WatchArgs {
    /// The task's id
    pub id: String,
    /// Give up after so long [default: never]
    #[arg(long, value_name = "DURATION")]
    pub timeout: Option<Millis>,
}

/// Follows a task; the exit code says how it ended.
pub async fn watch(args: WatchArgs, globals: &Globals) -> Outcome {
    let (client, screen) = (globals.client()?, globals.screen());
    let Some(timeout) = args.timeout else { return follow(&client, &screen, &args.id).await };
    let late = Failure::new(Code::TimedOut, format_args!("task `{}` has not ended within {timeout}", args.id));
    tokio::time::timeout(timeout.into(), follow(&client, &screen, &args.id)).await.unwrap_or(Err(late))
}

async fn follow(client: &Client, screen: &Screen, id: &str) -> Outcome {
    let mut changes = Follow::open(client, id).await?;
    let mut shown: Option<Box<Status>> = None;
    loop {
        let status = changes.next().await?;
        if shown.as_deref().is_none_or(|before| differs(before, &status)) {
            show(screen, &status)?;
        }
        if status.state.is_terminal() {
            return Ok(code_of(status.state));
        }
        shown = Some(status);
    }
}

/// Something changed that a line shows.
fn differs(before: &Status, now: &Status) -> bool {
    (before.state, before.own_state, before.run, before.attempt) != (now.state, now.own_state, now.run, now.attempt)
        || (&before.progress, &before.children, &before.error) != (&now.progress, &now.children, &now.error)
}

fn show(screen: &Screen, status: &Status) -> Result<(), Failure> {
    if screen.is_json() { screen.json_line(status) } else { screen.line(&line(&time_text(now_ms()), status, screen.paint)) }
}

fn line(at: &str, status: &Status, paint: Paint) -> String {
    let mut text = format!("{}  {}", paint.dim(at), paint.state(status.state));
    let mut add = |part: String| text.push_str(&format!("  {part}"));
    if status.attempt > 1 {
        add(format!("attempt {}", status.attempt));
    }
    let children = &status.children;
    if children.total > 0 {
        let done = children.total.saturating_sub(children.pending);
        add(format!("{done}/{} children done, {} failed", children.total, children.failed));
    }
    if let Some(error) = &status.error {
        add(error_text(error));
    }
    match (&status.result, &status.progress) {
        (Some(result), _) if status.state.is_terminal() => add(one_line(&result.to_string())),
        (_, Some(progress)) if !status.state.is_terminal() => add(one_line(&progress.to_string())),
        _ => {}
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::card::samples;
    use crate::model::event::ErrorInfo;
    use crate::model::state::State;

    #[test]
    fn a_line_tells_what_is_new() {
        let done = samples::status();
        assert_eq!(line("12:00", &done, Paint(false)), "12:00  succeeded  {\"hello\":\"world\"}");
        let mut retrying = samples::status();
        (retrying.state, retrying.attempt, retrying.result) = (State::Retrying, 2, None);
        retrying.error = Some(ErrorInfo::new("handler", "no such host", 1));
        (retrying.children.total, retrying.children.pending) = (3, 2);
        let expected = "12:00  retrying  attempt 2  1/3 children done, 0 failed  handler: no such host (attempt 1)";
        assert_eq!(line("12:00", &retrying, Paint(false)), expected);
        assert!(differs(&done, &retrying));
        let mut moved = done.clone();
        moved.position = "3:99".into();
        assert!(!differs(&done, &moved), "a new position alone is no news");
    }
}
