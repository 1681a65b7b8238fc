//! `log --type` and `log --failed`: the logs of many tasks, of the newest ones or as they are written. Each line has the type
//! and the id of its task.

use std::collections::VecDeque;

use kafleet_documents::{LogDocument, Status};
use kafleet_model::record::state::State;
use rustc_hash::FxHashMap;

use super::{LogArgs, attempt_of, text_of};
use crate::cli::client::{Client, Query};
use crate::cli::exit::{Code, Failure, Outcome};
use crate::cli::list::pages;
use crate::cli::output::{Output, eprint_line};
use crate::cli::task_view::error_text;
use crate::cli::watch::fleet::{WatchScope, check_type, follow, with_retries};

/// Default number of tasks.
const DEFAULT_TASKS: u32 = 20;
/// Number of lines of a log, the last ones, that are printed when its task is seen for the first time.
const FIRST_LINES: u64 = 10;
/// Number of tasks whose printed lines are remembered; of an older task, lines may be printed twice.
const MAX_REMEMBERED: usize = 20_000;

/// Prints the logs of the selected tasks, or follows them.
pub(super) async fn logs(client: &Client, output: &Output, args: &LogArgs) -> Outcome {
    let logs = Logs { client, output, times: args.times };
    if args.follow {
        return follow_logs(logs, args).await;
    }
    if let Some(name) = &args.task_type {
        check_type(client, name).await?;
    }
    let mut filters: Query = vec![("level", "any".to_owned())];
    filters.extend(args.task_type.clone().map(|name| ("type", name)));
    filters.extend(args.failed.then(|| ("state", State::Failed.to_string())));
    let limit = args.limit.unwrap_or(DEFAULT_TASKS) as usize;
    let page = pages(client, &["v1", "tasks"], &filters, limit, None).await?;
    for status in page.tasks.iter().rev() {
        logs.show_from(status, 0).await?;
        if args.failed {
            logs.show_error(status)?;
        }
    }
    if page.tasks.is_empty() {
        eprint_line("no such task");
    }
    Ok(Code::Ok)
}

async fn follow_logs(logs: Logs<'_>, args: &LogArgs) -> Outcome {
    let scope = args.task_type.clone().map_or(WatchScope::All, WatchScope::Type);
    let of = if args.failed { "failed " } else { "" };
    let begun = format!("following the logs of {}", scope.to_string().replacen("tasks", &format!("{of}tasks"), 1));
    let (client, mut printed) = (logs.client, PrintedLines::default());
    let report = async |status: &Status, _| {
        if args.failed {
            let is_new = status.state == State::Failed
                && printed.record(&status.id, u64::from(status.run)) != Some(status.run.into());
            if is_new {
                logs.show_from(status, 0).await?;
                logs.show_error(status)?;
            }
            return Ok(());
        }
        let from = match printed.next.get(&status.id) {
            Some(next) => *next,
            None => logs.total(&status.id).await?.saturating_sub(FIRST_LINES),
        };
        let next = logs.show_from(status, from).await?;
        printed.record(&status.id, next);
        Ok(())
    };
    follow(client, scope, &begun, report).await
}

/// Prints lines of logs.
struct Logs<'a> {
    client: &'a Client,
    output: &'a Output,
    times: bool,
}

impl Logs<'_> {
    async fn page(&self, id: &str, query: Query) -> Result<LogDocument, Failure> {
        let client = self.client;
        match with_retries(async || client.get(&["v1", "tasks", id, "log"], &query).await).await {
            // The task has been removed since.
            Err(failure) if failure.code == Code::NotFound => {
                Ok(LogDocument { id: id.to_owned(), from: 0, lines: Vec::new(), total: 0, dropped: 0 })
            }
            page => page,
        }
    }

    /// Number of all lines ever logged by a task.
    async fn total(&self, id: &str) -> Result<u64, Failure> {
        Ok(self.page(id, vec![("limit", "1".to_owned())]).await?.total)
    }

    /// Prints the lines of a task from one on. Returns the number of the next line.
    async fn show_from(&self, status: &Status, mut from: u64) -> Result<u64, Failure> {
        loop {
            let page = self.page(&status.id, vec![("from", from.to_string())]).await?;
            if page.lines.is_empty() {
                return Ok(from);
            }
            from = page.from + page.lines.len() as u64;
            if self.output.is_json() {
                self.output.json_line(&page)?;
            } else {
                self.show_lines(status, &page)?;
            }
            if from >= page.total {
                return Ok(from);
            }
        }
    }

    fn show_lines(&self, status: &Status, page: &LogDocument) -> Result<(), Failure> {
        page.lines.iter().try_for_each(|line| {
            let time = if self.times { format!("{}  ", line.at) } else { String::new() };
            let head = self.head(status, attempt_of(line).filter(|attempt| *attempt != (1, 1)));
            self.output.line(&format!("{time}{head} │ {}", text_of(line, self.output.paint)))
        })
    }

    /// Prints the error of a failed task.
    fn show_error(&self, status: &Status) -> Result<(), Failure> {
        let Some(error) = status.error.as_ref().filter(|_| !self.output.is_json()) else { return Ok(()) };
        let mark = self.output.paint.paint_as(status.state, "✗");
        self.output.line(&format!("{} {mark} {}", self.head(status, None), error_text(error)))
    }

    /// Type and id of a task, with the attempt if it is not the first one.
    fn head(&self, status: &Status, attempt: Option<(u32, u32)>) -> String {
        let attempt = match attempt {
            Some((1, number)) => format!(" attempt {number}"),
            Some((run, number)) => format!(" run {run} attempt {number}"),
            None => String::new(),
        };
        self.output.paint.dim(&format!("{} {}{attempt}", status.task_type.as_deref().unwrap_or("-"), status.id))
    }
}

/// Printed parts of each task: the number of the next line, or the run whose failure was printed.
#[derive(Default)]
struct PrintedLines {
    next: FxHashMap<String, u64>,
    /// Ids in `next`, in the order in which they were added.
    order: VecDeque<String>,
}

impl PrintedLines {
    /// Records a number for a task; returns the earlier one.
    fn record(&mut self, id: &str, next: u64) -> Option<u64> {
        let earlier = self.next.insert(id.to_owned(), next);
        if earlier.is_none() {
            self.order.push_back(id.to_owned());
            if self.order.len() > MAX_REMEMBERED {
                self.order.pop_front().map(|oldest| self.next.remove(&oldest));
            }
        }
        earlier
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_lines_are_remembered_of_the_newest_tasks_only() {
        let mut printed = PrintedLines::default();
        assert_eq!((printed.record("a", 3), printed.record("a", 5), printed.record("a", 5)), (None, Some(3), Some(5)));
        for n in 0..MAX_REMEMBERED {
            printed.record(&format!("t{n}"), 1);
        }
        assert_eq!((printed.next.len(), printed.order.len()), (MAX_REMEMBERED, MAX_REMEMBERED));
        assert_eq!(printed.record("a", 9), None);
    }
}
