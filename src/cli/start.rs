//! `start`: starts tasks now that wait for their start or their next attempt.

use clap::Args;
use kafleet_documents::{Finding, StartOutcome, StartTask};
use kafleet_model::record::state::State;

use super::client::Method;
use super::exit::{Code, Outcome};
use super::globals::Globals;
use super::output::{Output, eprint_line};

#[derive(Debug, Args)]
pub(super) struct StartArgs {
    /// Ids of the tasks
    #[arg(value_name = "ID", required = true, num_args = 1..=100)]
    pub ids: Vec<String>,
    /// Reason, recorded in the history
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

/// Starts the tasks one after the other. The exit code is that of the first failure.
pub(super) async fn start(args: StartArgs, globals: &Globals) -> Outcome {
    let (client, output) = (globals.client()?, globals.output());
    let request = StartTask { reason: args.reason };
    let mut code = Code::Ok;
    for id in &args.ids {
        match client.call(Method::POST, &["v1", "tasks", id, "start"], Some(&request)).await {
            Ok(outcome) => print(&output, &outcome, args.ids.len() > 1)?,
            Err(failure) if args.ids.len() == 1 => return Err(failure),
            Err(failure) => {
                eprint_line(failure.text().trim_end());
                code = if code == Code::Ok { failure.code } else { code };
            }
        }
    }
    Ok(code)
}

/// Prints an outcome; of several as one line.
fn print(output: &Output, outcome: &StartOutcome, is_one_of_many: bool) -> Result<(), super::Failure> {
    if output.is_json() && is_one_of_many {
        return output.json_line(outcome);
    }
    output.json_or_line(outcome, |outcome| text(&outcome.status.id, outcome.status.state, &outcome.held_by))
}

fn text(id: &str, state: State, held_by: &[Finding]) -> String {
    let holding: Vec<&str> = held_by.iter().map(|finding| finding.message.as_str()).collect();
    let rest = if holding.is_empty() { String::new() } else { format!("; {}", holding.join("; ")) };
    format!("{id} was started: it is {state}{rest}")
}

#[cfg(test)]
mod tests {
    use kafleet_documents::Reason;

    use super::*;

    #[test]
    fn text_says_what_still_holds_the_task() {
        assert_eq!(text("mail-7", State::Retrying, &[]), "mail-7 was started: it is retrying");
        let held = Finding {
            code: Reason::CircuitOpen,
            message: "the circuit of `mail` is open".into(),
            ..Finding::default()
        };
        let expected = "mail-7 was started: it is retrying; the circuit of `mail` is open";
        assert_eq!(text("mail-7", State::Retrying, &[held]), expected);
    }
}
