//! Waits for the end of a task and maps its state to an exit code.

use std::time::Duration;

use kafleet_documents::{Reason, Status, Why};
use kafleet_model::record::state::{Category, State};
use kafleet_model::units::duration::Millis;
use tokio::time::Instant;

use super::client::{Client, Query};
use super::exit::{Code, Failure, Outcome};
use super::output::{Output, eprint_line, one_line};
use super::task_view::render_task;

/// Waits for the end of a task until `wait` after `started`, prints its status, and returns its exit code.
pub(super) async fn finish(
    client: &Client,
    output: &Output,
    status: Status,
    wait: Millis,
    started: Instant,
) -> Outcome {
    let status = client.wait_until_ended(Box::new(status), deadline(started, wait)).await?;
    if output.is_json() {
        output.json(&*status)?;
    } else {
        output.line(&render_task(&status, output.paint))?;
    }
    eprint_failed_descendant(client, &status).await;
    verdict(&status.id, status.state, wait)
}

/// Names the descendant because of which a task has failed, with its error.
async fn eprint_failed_descendant(client: &Client, status: &Status) {
    if status.state == status.own_state || code_of(status.state) != Code::Failed {
        return;
    }
    // The outcome is known without an answer.
    let explained: Result<Why, Failure> = client.get(&["v1", "tasks", &status.id, "why"], &Query::new()).await;
    let findings = explained.into_iter().flat_map(|explained| explained.findings);
    let findings = findings.filter(|finding| finding.code == Reason::FailedChild);
    findings.for_each(|finding| eprint_line(one_line(&finding.message)));
}

/// Returns `started + wait`, with a wait of at most 50 years so that the sum does not overflow.
pub(super) fn deadline(started: Instant, wait: Millis) -> Instant {
    const MAX_WAIT: Duration = Duration::from_secs(50 * 365 * 86_400);
    started + Duration::from(wait).min(MAX_WAIT)
}

/// Returns the exit code for a task's state.
pub(super) fn code_of(state: State) -> Code {
    match state.category() {
        Category::Successful => Code::Ok,
        Category::Failed => Code::Failed,
        Category::Pending => Code::TimedOut,
    }
}

fn verdict(id: &str, state: State, wait: Millis) -> Outcome {
    match code_of(state) {
        Code::TimedOut => Err(Failure::new(Code::TimedOut, format_args!("task `{id}` is still {state} after {wait}"))
            .hint(format_args!("follow it with `kafleet watch {id}`"))),
        code => Ok(code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_determines_the_exit_code() {
        assert_eq!(code_of(State::Succeeded), Code::Ok);
        for state in [State::Failed, State::Cancelled, State::Expired] {
            assert_eq!(code_of(state), Code::Failed);
        }
        let late = verdict("a", State::Running, Millis::secs(30)).unwrap_err();
        assert_eq!((late.code, late.message.as_str()), (Code::TimedOut, "task `a` is still running after 30s"));
    }
}
