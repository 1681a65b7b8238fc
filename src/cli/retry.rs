//! `retry`: runs an ended task again, or only its failed descendants.

use clap::Args;
use kafleet_documents::{RetryOutcome, RetryTask};
use kafleet_model::units::duration::Millis;
use tokio::time::Instant;

use super::exit::{Code, Outcome};
use super::globals::Globals;

#[derive(Debug, Args)]
pub(super) struct RetryArgs {
    /// The task's id
    pub id: String,
    /// Retry only tasks of its tree that failed, expired or were cancelled themselves
    #[arg(long)]
    pub only_failed: bool,
    /// Reason, recorded in the history
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Wait until the task ends, for at most DURATION (5m if omitted); the exit code reports the outcome
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "5m")]
    pub wait: Option<Millis>,
}

pub(super) async fn retry(args: RetryArgs, globals: &Globals) -> Outcome {
    let client = globals.client()?;
    let output = globals.output();
    let started = Instant::now();
    let request = RetryTask { only_failed: args.only_failed, reason: args.reason };
    let outcome = client.retry(&args.id, &request).await?;
    if let Some(wait) = args.wait {
        return super::wait::finish(&client, &output, outcome.status, wait, started).await;
    }
    let text =
        |outcome: &RetryOutcome| format!("{} is {} in run {}", outcome.status.id, outcome.status.state, outcome.run);
    output.json_or_line(&outcome, text)?;
    output.hint_to_follow(&outcome.status.id);
    Ok(Code::Ok)
}
