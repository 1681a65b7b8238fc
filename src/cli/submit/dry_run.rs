//! `submit --dry-run`: says whether a task would be accepted, without creating it.

use kafleet_documents::{CreateTask, Problem, TaskPreview};

use crate::cli::client::Client;
use crate::cli::exit::{Code, Outcome};
use crate::cli::output::Output;

pub(super) async fn dry_run(task: &CreateTask, client: &Client, output: &Output) -> Outcome {
    let preview: TaskPreview = client.post(&["v1", "preview"], Some(task)).await?;
    output.json_or_line(&preview, text)?;
    Ok(if preview.valid { Code::Ok } else { Code::Failed })
}

fn text(preview: &TaskPreview) -> String {
    if !preview.valid {
        return preview.problems.iter().map(line).collect::<Vec<_>>().join("\n");
    }
    let start = preview.starts_at.as_ref().map(|at| format!("; it would start at {at}")).unwrap_or_default();
    if preview.exists { "valid: the same task already exists".to_owned() } else { format!("valid{start}") }
}

fn line(problem: &Problem) -> String {
    let pointer = problem.pointer.as_deref().filter(|pointer| !pointer.is_empty());
    let at = pointer.map(|pointer| format!(" (at {pointer})")).unwrap_or_default();
    format!("not valid: {}{at}", problem.detail)
}
