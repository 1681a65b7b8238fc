//! Waiting for a task's end, and what its end means to the shell.

use std::time::Duration;

use tokio::time::Instant;

use super::client::Client;
use super::exit::{Code, Failure, Outcome};
use super::output::Output;
use super::task_view::card;
use crate::api::documents::Status;
use crate::model::record::state::{Category, State};
use crate::model::units::duration::Millis;

/// Waits for the end of a task until `wait` after `begun`, prints it as it then is, and answers with its outcome.
pub async fn finish(client: &Client, screen: &Output, status: Status, wait: Millis, begun: Instant) -> Outcome {
    let status = client.until_done(Box::new(status), deadline(begun, wait)).await?;
    if screen.is_json() {
        screen.json(&*status)?
    } else {
        screen.line(&card(&status, screen.paint))?
    }
    verdict(&status.id, status.state, wait)
}

/// Half a century stands for more than a clock can hold.
pub fn deadline(begun: Instant, wait: Millis) -> Instant {
    const LONGEST: Duration = Duration::from_secs(50 * 365 * 86_400);
    begun + Duration::from(wait).min(LONGEST)
}

/// The exit code of a task's state.
pub fn code_of(state: State) -> Code {
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
    fn the_state_is_the_exit_code() {
        assert_eq!(code_of(State::Succeeded), Code::Ok);
        for state in [State::Failed, State::Cancelled, State::Expired] {
            assert_eq!(code_of(state), Code::Failed);
        }
        let late = verdict("a", State::Running, Millis::secs(30)).unwrap_err();
        assert_eq!((late.code, late.message.as_str()), (Code::TimedOut, "task `a` is still running after 30s"));
    }
}
