//! `watch`: a line for every change of a task until it ends, of a tree, of a type's tasks, or of all.

use clap::Args;
use sha2::{Digest as _, Sha256};

use super::client::{Client, Follow};
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::output::{Output, Paint, one_line};
use super::task_view::error_text;
use super::wait::code_of;
use crate::api::documents::Status;
use crate::model::units::duration::Millis;
use crate::publish::time_text;
use crate::runtime::now_ms;

mod fleet;
mod refresh;

use fleet::Scope;

#[derive(Debug, Args)]
pub struct WatchArgs {
    /// The task's id
    #[arg(required_unless_present_any = ["task_type", "all"], conflicts_with_all = ["task_type", "all"])]
    pub id: Option<String>,
    /// Also what is below the task
    #[arg(long, requires = "id")]
    pub tree: bool,
    /// All tasks of this type, without an end
    #[arg(long = "type", value_name = "TYPE", conflicts_with = "all")]
    pub task_type: Option<String>,
    /// All tasks of the fleet, without an end
    #[arg(long)]
    pub all: bool,
    /// Give up after so long; where there is no end, that is the end [default: never]
    #[arg(long, value_name = "DURATION")]
    pub timeout: Option<Millis>,
}

/// Follows a task, a tree, a type, or all. Where a task's end is the end, the exit code says how it ended.
pub async fn watch(args: WatchArgs, globals: &Globals) -> Outcome {
    let (client, screen) = (globals.client()?, globals.screen());
    let over = match &args.id {
        Some(id) => Err(Failure::new(Code::TimedOut, late(id, args.timeout))),
        None => Ok(Code::Ok),
    };
    let following = async {
        match (args.id, args.task_type) {
            (Some(id), _) if !args.tree => follow(&client, &screen, &id).await,
            (Some(id), _) => fleet::follow(&client, &screen, Scope::Tree(id)).await,
            (None, Some(name)) => fleet::follow(&client, &screen, Scope::Type(name)).await,
            (None, None) => fleet::follow(&client, &screen, Scope::All).await,
        }
    };
    match args.timeout {
        Some(timeout) => tokio::time::timeout(timeout.into(), following).await.unwrap_or(over),
        None => following.await,
    }
}

fn late(id: &str, timeout: Option<Millis>) -> String {
    format!("task `{id}` has not ended within {}", timeout.map(|timeout| timeout.to_string()).unwrap_or_default())
}

async fn follow(client: &Client, screen: &Output, id: &str) -> Outcome {
    let mut changes = Follow::open(client, id).await?;
    let mut shown = None;
    loop {
        let status = changes.next().await?;
        let mark = Some(Mark::of(&status));
        if shown != mark {
            show(screen, &status, None)?;
        }
        if status.state.is_terminal() {
            return Ok(code_of(status.state));
        }
        shown = mark;
    }
}

/// Of what a line shows: another mark is another line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark([u8; 16]);

impl Mark {
    fn of(status: &Status) -> Self {
        let shown =
            (status.state, status.own_state, status.run, status.attempt, &status.progress, &status.children, &status.error);
        let text = serde_json::to_vec(&shown).unwrap_or_default();
        let (mut mark, digest) = ([0; 16], Sha256::digest(text));
        mark.copy_from_slice(&digest[..16]);
        Self(mark)
    }
}

/// `of` is whose line it is, where that is not known.
fn show(screen: &Output, status: &Status, of: Option<&str>) -> Result<(), Failure> {
    if screen.is_json() { screen.json_line(status) } else { screen.line(&line(&time_text(now_ms()), status, of, screen.paint)) }
}

fn line(at: &str, status: &Status, of: Option<&str>, paint: Paint) -> String {
    let mut text = paint.dim(at);
    let mut add = |part: &str| {
        text.push_str("  ");
        text.push_str(part);
    };
    of.into_iter().for_each(&mut add);
    add(&paint.state(status.state));
    if status.attempt > 1 {
        add(&format!("attempt {}", status.attempt));
    }
    let children = &status.children;
    if children.total > 0 {
        let done = children.total.saturating_sub(children.pending);
        add(&format!("{done}/{} children done, {} failed", children.total, children.failed));
    }
    if let Some(error) = &status.error {
        add(&error_text(error));
    }
    match (&status.result, &status.progress) {
        (Some(result), _) if status.state.is_terminal() => add(&one_line(&result.to_string())),
        (_, Some(progress)) if !status.state.is_terminal() => add(&one_line(&progress.to_string())),
        _ => {}
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::task_view::samples;
    use crate::model::event::ErrorInfo;
    use crate::model::record::state::State;

    #[test]
    fn a_line_tells_what_is_new() {
        let done = samples::status();
        assert_eq!(line("12:00", &done, None, Paint(false)), "12:00  succeeded  {\"hello\":\"world\"}");
        let mut retrying = samples::status();
        (retrying.state, retrying.attempt, retrying.result) = (State::Retrying, 2, None);
        retrying.error = Some(ErrorInfo::new("handler", "no such host", 1));
        (retrying.children.total, retrying.children.pending) = (3, 2);
        let expected = "12:00  a:b  retrying  attempt 2  1/3 children done, 0 failed  handler: no such host (attempt 1)";
        assert_eq!(line("12:00", &retrying, Some("a:b"), Paint(false)), expected);
        assert_ne!(Mark::of(&done), Mark::of(&retrying));
        let mut moved = done.clone();
        moved.position = "3:99".into();
        assert_eq!(Mark::of(&done), Mark::of(&moved), "a new position alone is no news");
    }
}
