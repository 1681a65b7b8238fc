//! `params`: prints the params of a task.

use clap::Args;
use kafleet_documents::Params;

use super::exit::{Code, Outcome};
use super::globals::Globals;
use super::output::one_line;

#[derive(Debug, Args)]
pub(super) struct ParamsArgs {
    /// The task's id
    pub id: String,
}

/// Prints the params as indented JSON; with `-o json`, the API's document.
pub(super) async fn params(args: ParamsArgs, globals: &Globals) -> Outcome {
    let output = globals.output();
    let params: Params = globals.client()?.get(&["v1", "tasks", &args.id, "params"], &Vec::new()).await?;
    if output.is_json() {
        output.json(&params)?;
    } else {
        let text = params.params.slice().pretty();
        output.line(&text.lines().map(one_line).collect::<Vec<_>>().join("\n"))?;
    }
    Ok(Code::Ok)
}
