//! `log`: prints and follows the logs of one task or of many, and appends to that of a task.

use std::io::Read;

use clap::Args;
use kafleet_documents::{AppendLog, LogAppended, LogDocument, LogLine};
use kafleet_model::event::log_line::{LogStream, MAX_EVENT_BYTES};

use super::client::{Client, ReconnectingStream};
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::output::{Output, Paint, eprint_line, one_line};

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
    let mut printer = LinePrinter::new(output, args.times);
    loop {
        let query = vec![("from", from.to_string())];
        let page: LogDocument = client.get(&["v1", "tasks", id, "log"], &query).await?;
        printer.show(&page, from)?;
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
    let mut printer = LinePrinter::new(output, args.times);
    let mut changes = ReconnectingStream::open_log(client, id, from).await?;
    while let Some(page) = changes.lines().await? {
        printer.show(&page, from)?;
        from = page.from + page.lines.len() as u64;
    }
    Ok(Code::Ok)
}

/// Prints the pages of one log.
struct LinePrinter<'a> {
    output: &'a Output,
    times: bool,
    headings: AttemptHeadings,
}

impl<'a> LinePrinter<'a> {
    fn new(output: &'a Output, times: bool) -> Self {
        Self { output, times, headings: AttemptHeadings::default() }
    }

    /// Prints a page that was requested from this line on.
    fn show(&mut self, page: &LogDocument, from: u64) -> Result<(), Failure> {
        if page.from > from {
            eprint_line(format_args!("{} lines before line {} are no longer kept", page.from - from, page.from));
        }
        if self.output.is_json() {
            return self.output.json_line(page);
        }
        page.lines.iter().try_for_each(|line| self.show_line(line))
    }

    fn show_line(&mut self, line: &LogLine) -> Result<(), Failure> {
        if let Some(heading) = self.headings.above(line) {
            // Not on stdout, which has the lines of the log alone.
            eprint_line(heading);
        }
        let time = if self.times { format!("{}  ", line.at) } else { String::new() };
        self.output.line(&format!("{time}{}", text_of(line, self.output.paint)))
    }
}

/// Text of a line, marked if the process of the attempt wrote it to stderr.
fn text_of(line: &LogLine, paint: Paint) -> String {
    let text = one_line(&line.text);
    match line.stream {
        Some(LogStream::Stderr) => format!("{} {text}", paint.dim("stderr │")),
        Some(LogStream::Stdout) | None => text,
    }
}

/// Headings between the lines of different attempts.
struct AttemptHeadings {
    /// Run and attempt of the newest line.
    newest: (u32, u32),
}

impl Default for AttemptHeadings {
    fn default() -> Self {
        Self { newest: (1, 1) }
    }
}

impl AttemptHeadings {
    /// Heading above a line, if another attempt wrote it than the line before. Lines from outside of an attempt have none.
    fn above(&mut self, line: &LogLine) -> Option<String> {
        let (run, attempt) = attempt_of(line).unwrap_or(self.newest);
        match std::mem::replace(&mut self.newest, (run, attempt)) {
            earlier if earlier == (run, attempt) => None,
            (earlier_run, _) if earlier_run == run => Some(format!("--- attempt {attempt}")),
            _ => Some(format!("--- run {run}, attempt {attempt}")),
        }
    }
}

/// Run and attempt that wrote a line; `None` for a line from outside of an attempt.
fn attempt_of(line: &LogLine) -> Option<(u32, u32)> {
    (line.attempt > 0).then_some((line.run, line.attempt))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn line(run: u32, attempt: u32) -> LogLine {
        LogLine { at: "2026-11-01T00:00:00.000Z".into(), run, attempt, stream: None, text: "text".into() }
    }

    #[test]
    fn lines_of_stderr_are_marked() {
        let of = |stream| text_of(&LogLine { stream, ..line(1, 1) }, Paint(false));
        assert_eq!(of(Some(LogStream::Stderr)), "stderr │ text");
        assert_eq!([of(Some(LogStream::Stdout)), of(None)], ["text", "text"]);
    }

    #[test]
    fn lines_of_a_further_attempt_have_a_heading() {
        let mut headings = AttemptHeadings::default();
        for (run, attempt, heading) in [
            (1, 1, None),
            (1, 1, None),
            (1, 3, Some("--- attempt 3")),
            (1, 0, None),
            (1, 3, None),
            (2, 1, Some("--- run 2, attempt 1")),
        ] {
            assert_eq!(headings.above(&line(run, attempt)).as_deref(), heading, "{run}.{attempt}");
        }
    }
}
