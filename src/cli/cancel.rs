//! `cancel`: requests the cancellation of a task and its descendants.

use clap::Args;
use kafleet_documents::{CancelOutcome, CancelTask};
use kafleet_model::units::duration::Millis;
use tokio::time::Instant;

use super::client::Method;
use super::exit::{Code, Outcome};
use super::globals::Globals;
use super::output::eprint_line;

#[derive(Debug, Args)]
pub(super) struct CancelArgs {
    /// The task's id
    pub id: String,
    /// Cancel only the task, not its descendants
    #[arg(long)]
    pub task_only: bool,
    /// Reason, shown with the task
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Wait for the task to end, up to this time [default: 1m]
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "1m")]
    pub wait: Option<Millis>,
}

/// Requests the cancellation. With `--wait` the exit code is 0 once the task has ended, in any state.
pub(super) async fn cancel(args: CancelArgs, globals: &Globals) -> Outcome {
    let client = globals.client()?;
    let output = globals.output();
    let started = Instant::now();
    let request = CancelTask { subtree: !args.task_only, reason: args.reason };
    let outcome: CancelOutcome =
        client.call(Method::POST, &["v1", "tasks", &args.id, "cancel"], Some(&request)).await?;
    if let Some(wait) = args.wait {
        let status = client.status(&args.id).await?;
        let ended = super::wait::finish(&client, &output, status, wait, started).await?;
        return Ok(if ended == Code::Failed { Code::Ok } else { ended });
    }
    if output.is_json() {
        output.json(&outcome)?;
    } else {
        eprint_line(message(&outcome));
    }
    Ok(Code::Ok)
}

fn message(outcome: &CancelOutcome) -> String {
    let id = &outcome.id;
    match outcome.already_requested {
        Some(true) => format!("cancellation of `{id}` was already requested"),
        _ => format!("cancellation of `{id}` requested; follow it with `kafleet status {id} --wait`"),
    }
}
