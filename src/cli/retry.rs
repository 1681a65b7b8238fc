//! `retry`: starts a task anew that has ended, or what failed below it.

use clap::Args;
use tokio::time::Instant;

use super::exit::{Code, Outcome};
use super::globals::Globals;
use super::output::tell;
use crate::api::documents::RetryTask;
use crate::model::units::duration::Millis;

#[derive(Debug, Args)]
pub struct RetryArgs {
    /// The task's id
    pub id: String,
    /// Only the tasks of its tree that have failed, expired or been cancelled themselves
    #[arg(long)]
    pub only_failed: bool,
    /// Why, for its history
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Wait for the end, at most so long [default: 5m]; the exit code says how it ended
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "5m")]
    pub wait: Option<Millis>,
}

pub async fn retry(args: RetryArgs, globals: &Globals) -> Outcome {
    let (client, screen, begun) = (globals.client()?, globals.screen(), Instant::now());
    let asked = RetryTask { only_failed: args.only_failed, reason: args.reason };
    let outcome = client.retry(&args.id, &asked).await?;
    if let Some(wait) = args.wait {
        return super::wait::finish(&client, &screen, outcome.status, wait, begun).await;
    }
    if screen.is_json() {
        screen.json(&outcome)?
    } else {
        screen.line(&format!("{} is {} in run {}", outcome.status.id, outcome.status.state, outcome.run))?
    }
    if screen.terminal {
        tell(format_args!("follow it with `kafleet watch {}`", outcome.status.id));
    }
    Ok(Code::Ok)
}
