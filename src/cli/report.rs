//! `report`: reports the state of an external task.

use clap::Args;
use kafleet_documents::{Report, ReportOutcome};
use kafleet_model::record::state::State;

use super::client::Method;
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::submit::json;

#[derive(Debug, Args)]
pub(super) struct ReportArgs {
    /// The task's id
    pub id: String,
    /// Current state of the task
    #[arg(value_parser = ["queued", "running", "warning", "waiting_for_children", "succeeded", "failed"])]
    pub state: String,
    /// Message shown with the state; for `failed`, the error
    #[arg(long, value_name = "TEXT")]
    pub message: Option<String>,
    /// Result as JSON
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    pub result: Option<String>,
}

/// Reports a state. A report on an ended task changes nothing and gives exit code 1.
pub(super) async fn report(args: ReportArgs, globals: &Globals) -> Outcome {
    let state: State = args.state.parse().map_err(Failure::usage)?;
    let result = args.result.as_deref().map(json).transpose()?;
    let client = globals.client()?;
    let output = globals.output();
    let request = Report { state, message: args.message, result };
    let outcome: ReportOutcome = client.call(Method::PUT, &["v1", "tasks", &args.id, "state"], Some(&request)).await?;
    let status = &outcome.status;
    if output.is_json() {
        output.json(&outcome)?;
    } else if !outcome.ignored {
        output.line(&format!("{} is {}", status.id, status.state))?;
    }
    if outcome.ignored {
        Err(Failure::failed(format_args!("`{}` has already ended: the report was ignored", status.id))
            .hint(format_args!("see `kafleet status {}`", status.id)))
    } else {
        Ok(Code::Ok)
    }
}
