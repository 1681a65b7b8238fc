//! `log`: prints and follows the logs of one task or of many, and appends to that of a task.

use std::io::Read;

use clap::Args;
use kafleet_documents::{AppendLog, LogAppended, LogDocument};
use kafleet_model::event::log_line::MAX_EVENT_BYTES;

use super::client::{Client, ReconnectingStream};
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::output::{Output, eprint_line, one_line};

mod many;

#[derive(Debug, Args)]
pub(super) struct LogArgs {
    /// The task's id
    #[arg(required_unless_present_any = ["task_type", "failed"], conflicts_with_all = ["task_type", "failed", "limit"])]
    pub id: Option<String>,
    /// Print the logs of the newest tasks of this type
    #[arg(long = "type", value_name = "TYPE", conflicts_with_all = ["from", "append"])]
    pub task_type: Option<String>,
    /// Print the logs of the newest failed tasks, with their errors
    #[arg(long, conflicts_with_all = ["from", "append"])]
    pub failed: bool,
    /// Maximum number of tasks with --type or --failed [default: 20]
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=1_000), conflicts_with = "follow")]
    pub limit: Option<u32>,
    /// First line to print; the oldest is 0
    #[arg(long, default_value_t = 0, value_name = "LINE")]
    pub from: u64,
    /// Follow the log until the task ends; with --type or --failed, follow those of all such tasks without an end
    #[arg(long, short)]
    pub follow: bool,
    /// Print the time before each line
    #[arg(long, short)]
    pub times: bool,
    /// Append this line instead; `-` reads lines from stdin
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["from", "follow", "times"], allow_hyphen_values = true)]
    pub append: Option<String>,
}

pub(super) async fn log(args: LogArgs, globals: &Globals) -> Outcome {
    let client = globals.client()?;
    let output = globals.output();
    let Some(id) = args.id.as_deref() else { return many::logs(&client, &output, &args).await };
    match &args.append {
        Some(text) => append(&client, &output, id, text).await,
        None if args.follow => follow_log(&client, &output, id, &args).await,
        None => read(&client, &output, id, &args).await,
    }
}

/// Prints the log from line `from` on, page by page.
async fn read(client: &Client, output: &Output, id: &str, args: &LogArgs) -> Outcome {
    let begun = args.from;
    let mut from = begun;
    let mut shown = false;
    loop {
        let query = vec![("from", from.to_string())];
        let page: LogDocument = client.get(&["v1", "tasks", id, "log"], &query).await?;
        show(output, &page, from, args.times)?;
        shown |= !page.lines.is_empty();
        from = page.from + page.lines.len() as u64;
        if page.lines.is_empty() || from >= page.total {
            eprint_dropped(page.dropped);
            if !shown && !output.is_json() {
                eprint_line(empty_message(id, begun, page.total));
            }
            return Ok(Code::Ok);
        }
    }
}

fn eprint_dropped(lines: u32) {
    if lines > 0 {
        eprint_line(format_args!("{lines} lines were dropped by the worker: the task exceeded the log limit"));
    }
}

/// Message for a log without lines from `from` on.
fn empty_message(id: &str, from: u64, total: u64) -> String {
    match total {
        0 => format!("`{id}` has logged nothing; `kafleet history {id}` shows its events"),
        _ => format!("the log of `{id}` has {total} lines, none from line {from} on"),
    }
}

async fn follow_log(client: &Client, output: &Output, id: &str, args: &LogArgs) -> Outcome {
    let mut from = args.from;
    let mut changes = ReconnectingStream::open_log(client, id, from).await?;
    while let Some(page) = changes.lines().await? {
        show(output, &page, from, args.times)?;
        from = page.from + page.lines.len() as u64;
    }
    Ok(Code::Ok)
}

fn show(output: &Output, page: &LogDocument, from: u64, times: bool) -> Result<(), Failure> {
    if page.from > from {
        eprint_line(format_args!("{} lines before line {} are no longer kept", page.from - from, page.from));
    }
    if output.is_json() {
        return output.json_line(page);
    }
    page.lines.iter().try_for_each(|line| {
        if times {
            output.line(&format!("{}  {}", line.at, one_line(&line.text)))
        } else {
            output.line(&one_line(&line.text))
        }
    })
}

async fn append(client: &Client, output: &Output, id: &str, text: &str) -> Outcome {
    let text = if text == "-" { read_stdin()? } else { text.to_owned() };
    let request = AppendLog { lines: vec![text] };
    let done: LogAppended = client.post(&["v1", "tasks", id, "log"], Some(&request)).await?;
    if output.is_json() {
        output.json(&done)?;
    } else {
        eprint_line(format_args!("{} line{} added", done.lines, if done.lines == 1 { "" } else { "s" }));
    }
    Ok(Code::Ok)
}

/// Reads text from stdin, up to more than the API accepts in one request.
fn read_stdin() -> Result<String, Failure> {
    let mut text = String::new();
    let limit = 2 * MAX_EVENT_BYTES as u64;
    let read = std::io::stdin().lock().take(limit).read_to_string(&mut text);
    read.map_err(|error| Failure::usage(format_args!("stdin cannot be read as text: {error}")))?;
    Ok(text)
}
