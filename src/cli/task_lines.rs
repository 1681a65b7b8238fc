//! Lines about attempts, as they happen: for the developer in front of `dev`, and for the logs of a worker's container.

use std::fmt::Display;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use kafleet_handlers::context::Attempt;
use kafleet_handlers::hooks::Observe;
use kafleet_handlers::{Context, Failure};
use kafleet_model::event::ErrorInfo;
use kafleet_model::record::state::State;
use kafleet_model::units::duration::Millis;
use parking_lot::Mutex;

use super::output::{Paint, eprint_line, one_line};

/// Maximum lines per second. Further ones are left out and counted: a terminal must not slow the tasks down.
const MAX_LINES: u64 = 500;
const PERIOD: Duration = Duration::from_secs(1);

/// Prints the lines of `dev`: `greet hello │ hello Ada`.
pub(super) struct TaskLines {
    paint: Paint,
    budget: Mutex<LineBudget>,
}

/// Lines of the current period.
struct LineBudget {
    since: Instant,
    lines: u64,
}

impl LineBudget {
    /// Counts a line. Returns whether it may be printed, and the number of lines left out in a period that has ended.
    fn admit(&mut self, now: Instant) -> (bool, Option<u64>) {
        let mut left_out = None;
        if now.duration_since(self.since) >= PERIOD {
            left_out = self.lines.checked_sub(MAX_LINES).filter(|lines| *lines > 0);
            (self.since, self.lines) = (now, 0);
        }
        self.lines += 1;
        (self.lines <= MAX_LINES, left_out)
    }
}

impl TaskLines {
    pub(super) fn new() -> Self {
        let budget = LineBudget { since: Instant::now(), lines: 0 };
        Self { paint: Paint(std::io::stderr().is_terminal()), budget: Mutex::new(budget) }
    }

    fn print(&self, attempt: &Attempt, rest: impl Display) {
        let (is_admitted, left_out) = self.budget.lock().admit(Instant::now());
        if let Some(lines) = left_out {
            eprint_line(format_args!("… {lines} lines are left out: more than {MAX_LINES} in a second"));
        }
        if is_admitted {
            let head = format!("{} {}", attempt.task_type(), attempt.id);
            eprint_line(format_args!("{} {rest}", self.paint.dim(&head)));
        }
    }

    fn ended(&self, cx: &Context, state: State, failure: &Failure, rest: impl Display) {
        let error = ErrorInfo::new(&failure.kind, one_line(&failure.message), cx.number);
        self.print(cx, format_args!("{} {} {rest}", self.paint.paint_as(state, "✗"), error.text()));
    }
}

impl Observe for TaskLines {
    fn on_start(&self, cx: &Context) {
        self.print(cx, format_args!("▸ attempt {}", cx.number));
    }

    fn on_log(&self, attempt: &Attempt, line: &str) {
        self.print(attempt, format_args!("│ {}", one_line(line)));
    }

    fn on_success(&self, cx: &Context, took: Duration) {
        let (mark, took) = (self.paint.paint_as(State::Succeeded, "✓"), time(took));
        match cx.published_children() {
            0 => self.print(cx, format_args!("{mark} succeeded in {took}")),
            1 => self.print(cx, format_args!("{mark} done in {took}, and waits for its child")),
            children => self.print(cx, format_args!("{mark} done in {took}, and waits for {children} children")),
        }
    }

    fn on_retry(&self, cx: &Context, failure: &Failure, wait: Duration) {
        self.ended(cx, State::Retrying, failure, format_args!("(again in {})", time(wait)));
    }

    fn on_wait(&self, cx: &Context, failure: &Failure, wait: Duration) {
        self.print(cx, format_args!("… waits {}: {}", time(wait), one_line(&failure.message)));
    }

    fn on_failure(&self, cx: &Context, failure: &Failure, took: Duration) {
        self.ended(cx, State::Failed, failure, format_args!("(failed for good after {})", time(took)));
    }
}

fn time(duration: Duration) -> Millis {
    Millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

/// Writes the lines of the tasks' logs to the log of the worker (`[log] tasks = "stderr"`), in its format, with the task.
pub(super) struct TaskLogs;

impl Observe for TaskLogs {
    fn on_log(&self, attempt: &Attempt, line: &str) {
        let (task, task_type) = (&attempt.id, attempt.task_type());
        tracing::info!(target: "kafleet::task", %task, task_type, run = attempt.run, attempt = attempt.number, "{}", one_line(line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_limit_of_a_second_are_counted() {
        let start = Instant::now();
        let mut budget = LineBudget { since: start, lines: 0 };
        let admitted = (0..MAX_LINES + 7).filter(|_| budget.admit(start).0).count() as u64;
        assert_eq!(admitted, MAX_LINES);
        assert_eq!(budget.admit(start + PERIOD), (true, Some(7)));
        assert_eq!(budget.admit(start + 2 * PERIOD), (true, None));
    }
}
