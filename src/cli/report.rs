//! `report`: tells the state of an external task, for whoever runs it.

use clap::Args;
use serde_json::Value;

use super::client::Method;
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::submit::json;
use crate::api::documents::{Report, ReportOutcome};
use crate::model::record::state::State;

#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The task's id
    pub id: String,
    /// The state that it is in now
    #[arg(value_parser = ["queued", "running", "warning", "waiting_for_children", "succeeded", "failed"])]
    pub state: String,
    /// What people read beside it; of a failure its error
    #[arg(long, value_name = "TEXT")]
    pub message: Option<String>,
    /// The result, as JSON
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    pub result: Option<String>,
}

/// Reports a state. A report that changes nothing, as the task has ended, is code 1.
pub async fn report(args: ReportArgs, globals: &Globals) -> Outcome {
    let state: State = args.state.parse().map_err(Failure::usage)?;
    let result: Option<Value> = args.result.as_deref().map(json).transpose()?;
    let (client, screen) = (globals.client()?, globals.screen());
    let asked = Report { state, message: args.message, result };
    let outcome: ReportOutcome = client.call(Method::PUT, &["v1", "tasks", &args.id, "state"], Some(&asked)).await?;
    let status = &outcome.status;
    if screen.is_json() {
        screen.json(&outcome)?;
    } else if !outcome.ignored {
        screen.line(&format!("{} is {}", status.id, status.state))?;
    }
    match outcome.ignored {
        true => Err(Failure::failed(format_args!("`{}` has ended already: the report changes nothing", status.id))
            .hint(format_args!("see `kafleet status {}`", status.id))),
        false => Ok(Code::Ok),
    }
}
