//! `bulk`: cancels, retries or starts all tasks that match a search.

use clap::{Args, Subcommand};
use kafleet_documents::{
    BulkAction, BulkOptions, BulkPreview, BulkProgress, BulkRequest, BulkSelection, Status, TaskPage, UnchangedTasks,
};
use kafleet_model::query::{TaskQuery, TreeLevel};
use kafleet_model::units::duration::Millis;
use tokio::time::Instant;

use super::exit::{Code, Outcome};
use super::globals::Globals;
use super::list::check_query;
use super::output::{Field, Output, Rows, one_line};
use super::wait;

#[derive(Debug, Subcommand)]
pub(super) enum BulkVerb {
    /// Cancel open tasks and their descendants
    Cancel(BulkArgs),
    /// Run ended tasks again; parents that failed only because of a descendant are skipped
    Retry(BulkArgs),
    /// Run the failed tasks in the trees of ended tasks again
    RetryFailed(BulkArgs),
    /// Start tasks now that wait for their start or their next attempt
    StartNow(BulkArgs),
    /// List the newest bulk actions
    List(BulkListArgs),
}

#[derive(Debug, Args)]
pub(super) struct BulkArgs {
    /// Search for the tasks, such as 'type:resize state:failed from:2h'; `level:any` and `level:roots` choose the level
    #[arg(value_name = "QUERY", required_unless_present = "id", conflicts_with = "id")]
    pub query: Option<String>,
    /// Id of a task instead of a search; repeatable
    #[arg(long, value_name = "ID")]
    pub id: Vec<String>,
    /// Maximum number of tasks to change; when more would change, the action stops there and fails [default: 100]
    #[arg(long, value_name = "COUNT")]
    pub limit: Option<u64>,
    /// Reason, recorded with each task
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Only count the tasks that would change
    #[arg(long, conflicts_with_all = ["limit", "reason", "wait"])]
    pub preview: bool,
    /// Wait for the end, up to this time [default: 5m]; the exit code is the outcome
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "5m")]
    pub wait: Option<Millis>,
}

#[derive(Debug, Args)]
pub(super) struct BulkListArgs {
    /// Maximum number of bulk actions
    #[arg(short = 'n', long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=200))]
    pub limit: u32,
}

pub(super) async fn bulk(verb: BulkVerb, globals: &Globals) -> Outcome {
    match verb {
        BulkVerb::Cancel(args) => request_action(BulkAction::Cancel, args, globals).await,
        BulkVerb::Retry(args) => request_action(BulkAction::Retry, args, globals).await,
        BulkVerb::RetryFailed(args) => request_action(BulkAction::RetryFailed, args, globals).await,
        BulkVerb::StartNow(args) => request_action(BulkAction::StartNow, args, globals).await,
        BulkVerb::List(args) => list(args, globals).await,
    }
}

async fn request_action(action: BulkAction, args: BulkArgs, globals: &Globals) -> Outcome {
    let (client, output, started) = (globals.client()?, globals.output(), Instant::now());
    args.query.as_deref().map_or(Ok(()), check_query)?;
    let (q, ids) = (args.query, args.id);
    if args.preview {
        let searched = q.as_deref().is_some_and(finds_roots);
        let selection = BulkSelection { action, q, ids, letters: None, patch: None };
        let preview: BulkPreview = client.post(&["v1", "bulk", "preview"], Some(&selection)).await?;
        show_preview(&preview, "tasks", &output)?;
        if searched && preview.matching == 0 && !output.is_json() {
            output.line("`level:any` in the search also finds tasks below roots")?;
        }
        return Ok(Code::Ok);
    }
    let (limit, reason) = (args.limit, args.reason);
    let request = BulkRequest { action, q, ids, letters: None, patch: None, limit, reason };
    let task: Status = client.post(&["v1", "bulk"], Some(&request)).await?;
    if let Some(wait) = args.wait {
        return wait::finish(&client, &output, task, wait, started).await;
    }
    output.json_or_line(&task, |task| task.id.clone())?;
    output.hint_to_follow(&task.id);
    Ok(Code::Ok)
}

/// Prints what a bulk action would change. `noun`: tasks or dead letters.
pub(super) fn show_preview(preview: &BulkPreview, noun: &str, output: &Output) -> Outcome {
    if output.is_json() {
        output.json(preview)?;
        return Ok(Code::Ok);
    }
    let at_least = if preview.exact { "" } else { "at least " };
    output.line(&format!("{at_least}{} of {} matching {noun} would change", preview.changing, preview.matching))?;
    for id in &preview.sample {
        output.line(&format!("  {id}"))?;
    }
    for UnchangedTasks { cause, tasks, example } in &preview.unchanged {
        let example = example.as_ref().map_or_else(String::new, |example| format!(", such as: {}", one_line(example)));
        output.line(&format!("{tasks} would stay as they are: {cause}{example}"))?;
    }
    Ok(Code::Ok)
}

/// Whether a search leaves out tasks below others.
fn finds_roots(q: &str) -> bool {
    TaskQuery::parse(q).is_ok_and(|query| query.level() == TreeLevel::Roots)
}

async fn list(args: BulkListArgs, globals: &Globals) -> Outcome {
    let output = globals.output();
    let page: TaskPage = globals.client()?.get(&["v1", "bulk"], &vec![("limit", args.limit.to_string())]).await?;
    output.json_or_list(&page, |page| rows(&page.tasks), "no bulk action has been requested recently")?;
    Ok(Code::Ok)
}

fn rows(tasks: &[Status]) -> Rows {
    let mut rows = Rows::new(["ID", "STATE", "DONE", "SKIPPED", "REFUSED", "BY", "SEEN", "ACTION", "REASON"]);
    for task in tasks {
        let BulkProgress { done, skipped, refused, .. } = BulkProgress::of(task);
        rows.add([
            Field::Text(task.id.clone()),
            Field::Text(task.state.to_string()),
            Field::Number(done),
            Field::Number(skipped),
            Field::Number(refused),
            task.fields.creator.clone().into(),
            task.seen_at.clone().into(),
            task.fields.name.clone().into(),
            BulkOptions::of(task).and_then(|options| options.reason).into(),
        ]);
    }
    rows
}
