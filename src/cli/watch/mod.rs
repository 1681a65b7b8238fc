//! `watch`: prints a line for every change of a task, a tree, a type's tasks, or all tasks.

use clap::Args;
use kafleet_documents::Status;
use kafleet_model::json::RawJson;
use kafleet_model::units::duration::Millis;
use kafleet_model::units::time::time_text;
use kafleet_runtime::now_ms;
use sha2::{Digest as _, Sha256};

use super::client::{Client, ReconnectingStream};
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::output::{Output, Paint, one_line};
use super::task_view::error_text;
use super::wait::code_of;

pub(super) mod fleet;
mod refresh;

use fleet::WatchScope;

#[derive(Debug, Args)]
pub(super) struct WatchArgs {
    /// The task's id [default: all tasks of the fleet, without an end]
    #[arg(conflicts_with = "task_type")]
    pub id: Option<String>,
    /// Also watch the descendants of the task
    #[arg(long, requires = "id")]
    pub tree: bool,
    /// Watch all tasks of this type, without an end
    #[arg(long = "type", value_name = "TYPE")]
    pub task_type: Option<String>,
    /// Stop watching after this time [default: never]
    #[arg(long, value_name = "DURATION")]
    pub timeout: Option<Millis>,
}

/// Follows a task, a tree, a type, or all tasks. For a task or a tree, the exit code is the task's outcome.
pub(super) async fn watch(args: WatchArgs, globals: &Globals) -> Outcome {
    let client = globals.client()?;
    let output = globals.output();
    let at_timeout = match &args.id {
        Some(id) => Err(Failure::new(Code::TimedOut, timeout_message(id, args.timeout))),
        None => Ok(Code::Ok),
    };
    let following = async {
        match (args.id, args.task_type) {
            (Some(id), _) if !args.tree => follow_task(&client, &output, &id).await,
            (Some(id), _) => fleet::show_changes(&client, &output, WatchScope::Tree(id)).await,
            (None, Some(name)) => fleet::show_changes(&client, &output, WatchScope::Type(name)).await,
            (None, None) => fleet::show_changes(&client, &output, WatchScope::All).await,
        }
    };
    match args.timeout {
        Some(timeout) => tokio::time::timeout(timeout.into(), following).await.unwrap_or(at_timeout),
        None => following.await,
    }
}

fn timeout_message(id: &str, timeout: Option<Millis>) -> String {
    format!("task `{id}` has not ended within {}", timeout.map(|timeout| timeout.to_string()).unwrap_or_default())
}

async fn follow_task(client: &Client, output: &Output, id: &str) -> Outcome {
    let mut changes = ReconnectingStream::open(client, id).await?;
    let mut shown = None;
    loop {
        let status = changes.next().await?;
        let fingerprint = Some(Fingerprint::of(&status)?);
        if shown != fingerprint {
            show(output, &status, None)?;
        }
        if status.state.is_terminal() {
            return Ok(code_of(status.state));
        }
        shown = fingerprint;
    }
}

/// Digest of the printed fields of a status: a new line is printed when it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fingerprint([u8; 16]);

impl Fingerprint {
    fn of(status: &Status) -> Result<Self, Failure> {
        let shown = (
            status.state,
            status.own_state,
            status.run,
            status.attempt,
            &status.progress,
            &status.children,
            &status.error,
        );
        let text = serde_json::to_vec(&shown).map_err(Failure::failed)?;
        let mut fingerprint = [0; 16];
        let digest = Sha256::digest(text);
        fingerprint.copy_from_slice(&digest[..16]);
        Ok(Self(fingerprint))
    }
}

/// Prints a status; `label` names the task if several are watched.
fn show(output: &Output, status: &Status, label: Option<&str>) -> Result<(), Failure> {
    if output.is_json() {
        output.json_line(status)
    } else {
        output.line(&line(&time_text(now_ms()), status, label, output.paint))
    }
}

fn line(at: &str, status: &Status, label: Option<&str>, paint: Paint) -> String {
    let mut text = paint.dim(at);
    let mut add = |part: &str| {
        text.push_str("  ");
        text.push_str(part);
    };
    label.into_iter().for_each(&mut add);
    add(&paint.state(status.state));
    if status.attempt > 1 {
        add(&format!("attempt {}", status.attempt));
    }
    let children = &status.children;
    if children.total > 0 {
        let done = children.total.saturating_sub(children.pending);
        add(&format!("{done}/{} children done, {} unsuccessful", children.total, children.failed));
    }
    if let Some(error) = &status.error {
        add(&error_text(error));
    }
    if let Some(value) = result_or_progress(status) {
        add(&one_line(&value.to_string()));
    }
    text
}

/// Returns the result of an ended task, or the progress of an open one.
fn result_or_progress(status: &Status) -> Option<&RawJson> {
    if status.state.is_terminal() { status.result.as_ref() } else { status.progress.as_ref() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::task_view::samples;
    use kafleet_model::event::ErrorInfo;
    use kafleet_model::record::state::State;

    #[test]
    fn line_shows_the_changed_fields() {
        let done = samples::status();
        assert_eq!(line("12:00", &done, None, Paint(false)), "12:00  succeeded  {\"hello\":\"world\"}");
        let mut retrying = samples::status();
        retrying.state = State::Retrying;
        retrying.attempt = 2;
        retrying.result = None;
        retrying.error = Some(ErrorInfo::new("handler", "no such host", 1));
        retrying.children.total = 3;
        retrying.children.pending = 2;
        let expected =
            "12:00  a:b  retrying  attempt 2  1/3 children done, 0 unsuccessful  handler: no such host (attempt 1)";
        assert_eq!(line("12:00", &retrying, Some("a:b"), Paint(false)), expected);
        let fingerprint = |status| Fingerprint::of(status).unwrap();
        assert_ne!(fingerprint(&done), fingerprint(&retrying));
        let mut moved = done.clone();
        moved.position = "3:99".into();
        assert_eq!(fingerprint(&done), fingerprint(&moved), "the position is not printed");
    }
}
