//! `log`: what a task has logged, read, followed and added to.

use std::io::Read;

use clap::Args;

use super::client::{Client, Follow};
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::output::{Output, one_line, tell};
use crate::api::documents::{AppendLog, LogAppended, LogDocument};
use crate::model::event::log_line::MAX_EVENT_BYTES;

#[derive(Debug, Args)]
pub struct LogArgs {
    /// The task's id
    pub id: String,
    /// Begin at this line; the oldest is 0
    #[arg(long, default_value_t = 0, value_name = "LINE")]
    pub from: u64,
    /// Go on with what comes, until the task ends
    #[arg(long, short)]
    pub follow: bool,
    /// Add a line instead; `-` reads lines from stdin
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["from", "follow"], allow_hyphen_values = true)]
    pub append: Option<String>,
}

pub async fn log(args: LogArgs, globals: &Globals) -> Outcome {
    let (client, screen) = (globals.client()?, globals.screen());
    match args.append {
        Some(text) => append(&client, &screen, &args.id, text).await,
        None if args.follow => follow(&client, &screen, &args.id, args.from).await,
        None => read(&client, &screen, &args.id, args.from).await,
    }
}

/// Page after page.
async fn read(client: &Client, screen: &Output, id: &str, mut from: u64) -> Outcome {
    let (begun, mut shown) = (from, false);
    loop {
        let query = vec![("from", from.to_string())];
        let page: LogDocument = client.get(&["v1", "tasks", id, "log"], &query).await?;
        show(screen, &page, from)?;
        shown |= !page.lines.is_empty();
        from = page.from + page.lines.len() as u64;
        if page.lines.is_empty() || from >= page.total {
            if page.dropped > 0 {
                tell(format_args!("{} lines were dropped by the worker: the task logged more than is kept", page.dropped));
            }
            if !shown && !screen.is_json() {
                tell(nothing(id, begun, page.total));
            }
            return Ok(Code::Ok);
        }
    }
}

/// The message for a log without lines from there on.
fn nothing(id: &str, from: u64, total: u64) -> String {
    match total {
        0 => format!("`{id}` has logged nothing; `kafleet history {id}` shows its events"),
        _ => format!("no line from {from} on: the log of `{id}` has {total}"),
    }
}

async fn follow(client: &Client, screen: &Output, id: &str, mut from: u64) -> Outcome {
    let mut changes = Follow::open_log(client, id, from).await?;
    while let Some(page) = changes.lines().await? {
        show(screen, &page, from)?;
        from = page.from + page.lines.len() as u64;
    }
    Ok(Code::Ok)
}

fn show(screen: &Output, page: &LogDocument, from: u64) -> Result<(), Failure> {
    if page.from > from {
        tell(format_args!("{} lines before line {} are no longer kept", page.from - from, page.from));
    }
    if screen.is_json() {
        return screen.json_line(page);
    }
    page.lines.iter().try_for_each(|line| screen.line(&one_line(line)))
}

async fn append(client: &Client, screen: &Output, id: &str, text: String) -> Outcome {
    let text = if text == "-" { stdin()? } else { text };
    let asked = AppendLog { lines: vec![text] };
    let done: LogAppended = client.post(&["v1", "tasks", id, "log"], Some(&asked)).await?;
    if screen.is_json() {
        screen.json(&done)?
    } else {
        tell(format_args!("{} line{} added", done.lines, if done.lines == 1 { "" } else { "s" }))
    }
    Ok(Code::Ok)
}

/// More than the api takes at once is not read.
fn stdin() -> Result<String, Failure> {
    let mut text = String::new();
    let most = 2 * MAX_EVENT_BYTES as u64;
    let read = std::io::stdin().lock().take(most).read_to_string(&mut text);
    read.map_err(|why| Failure::usage(format_args!("stdin cannot be read as text: {why}")))?;
    Ok(text)
}
