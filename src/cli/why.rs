//! `why`: explains why a task is in its state.

use clap::Args;
use kafleet_documents::Why;

use super::exit::{Code, Outcome};
use super::globals::Globals;
use super::output::one_line;

#[derive(Debug, Args)]
pub(super) struct WhyArgs {
    /// The task's id
    pub id: String,
}

pub(super) async fn why(args: WhyArgs, globals: &Globals) -> Outcome {
    let output = globals.output();
    let why: Why = globals.client()?.get(&["v1", "tasks", &args.id, "why"], &Vec::new()).await?;
    if output.is_json() {
        output.json(&why)?;
        return Ok(Code::Ok);
    }
    output.line(&format!("{} is {}", why.id, why.state))?;
    for finding in &why.findings {
        output.line(&format!("  {}", one_line(&finding.message)))?;
    }
    Ok(Code::Ok)
}
