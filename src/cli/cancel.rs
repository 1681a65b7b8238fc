//! `cancel`: a task, and what is below it.

use clap::Args;
use tokio::time::Instant;

use super::client::Method;
use super::exit::{Code, Outcome};
use super::globals::Globals;
use super::output::tell;
use crate::api::documents::{CancelOutcome, CancelTask};
use crate::model::units::duration::Millis;

#[derive(Debug, Args)]
pub struct CancelArgs {
    /// The task's id
    pub id: String,
    /// Only the task, not what is below it
    #[arg(long)]
    pub task_only: bool,
    /// What people read beside it
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Wait for the task's end, at most so long [default: 1m]
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "1m")]
    pub wait: Option<Millis>,
}

/// Asks for it. With `--wait` the exit code is 0 when the task has ended, however it ended.
pub async fn cancel(args: CancelArgs, globals: &Globals) -> Outcome {
    let (client, screen) = (globals.client()?, globals.screen());
    let begun = Instant::now();
    let asked = CancelTask { subtree: !args.task_only, reason: args.reason };
    let outcome: CancelOutcome = client.call(Method::POST, &["v1", "tasks", &args.id, "cancel"], Some(&asked)).await?;
    if let Some(wait) = args.wait {
        let status = client.status(&args.id).await?;
        let ended = super::wait::finish(&client, &screen, status, wait, begun).await?;
        return Ok(if ended == Code::Failed { Code::Ok } else { ended });
    }
    if screen.is_json() {
        screen.json(&outcome)?;
    } else if outcome.already_requested == Some(true) {
        tell(format_args!("cancellation of `{}` had been asked for already", outcome.id));
    } else {
        tell(format_args!("cancellation of `{}` is asked for; follow it with `kafleet status {0} --wait`", outcome.id));
    }
    Ok(Code::Ok)
}
