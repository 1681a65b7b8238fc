//! `tree`: draws a task and its descendants; with `--watch`, repeatedly until the task has ended.

use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use kafleet_documents::TreeNode;
use kafleet_documents::diagram::mermaid;
use kafleet_runtime::now_ms;

use super::client::{Client, Query};
use super::exit::{Code, Failure, Outcome};
use super::globals::{Format, Globals};
use super::output::{Output, eprint_line};
use super::task_view::tree_counts;
use super::wait::code_of;

mod draw;

/// Interval between reads of a watched tree.
const REDRAW_INTERVAL: Duration = Duration::from_millis(300);
/// Maximum time a watched tree may be unavailable.
const OUTAGE_DEADLINE: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub(super) struct TreeArgs {
    /// Id of the task at the top
    pub id: String,
    /// Redraw until the task has ended; the exit code is its outcome
    #[arg(long)]
    pub watch: bool,
    /// Maximum depth below the task
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(0..=50))]
    pub depth: u32,
    /// Maximum number of tasks
    #[arg(short = 'n', long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
}

/// Draws a tree. With `--watch` the exit code is the task's outcome.
pub(super) async fn tree(args: TreeArgs, globals: &Globals) -> Outcome {
    let client = globals.client()?;
    let output = globals.output();
    let tree = if args.watch { watch(&client, &args, &output).await? } else { fetch(&client, &args).await? };
    match output.format {
        Format::Json => output.json(&tree)?,
        Format::Mermaid => output.line(mermaid(&tree).trim_end())?,
        Format::Table => {
            output.line(&draw::lines(&tree, output.paint, now_ms()).join("\n"))?;
            footer(&tree).into_iter().for_each(eprint_line);
        }
    }
    Ok(if args.watch { code_of(tree.state) } else { Code::Ok })
}

/// Redraws the tree until its task has ended.
async fn watch(client: &Client, args: &TreeArgs, output: &Output) -> Result<TreeNode, Failure> {
    let mut tree = fetch(client, args).await?;
    let bar = live_area(output.terminal && output.format == Format::Table);
    while !tree.state.is_terminal() {
        bar.set_message(draw::lines(&tree, output.paint, now_ms()).join("\n"));
        tokio::time::sleep(REDRAW_INTERVAL).await;
        tree = refetch(client, args).await?;
    }
    bar.finish_and_clear();
    Ok(tree)
}

async fn fetch(client: &Client, args: &TreeArgs) -> Result<TreeNode, Failure> {
    let query: Query = vec![("depth", args.depth.to_string()), ("limit", args.limit.to_string())];
    client.get(&["v1", "tasks", &args.id, "tree"], &query).await
}

/// Fetches the tree again, retrying while the API is unavailable.
async fn refetch(client: &Client, args: &TreeArgs) -> Result<TreeNode, Failure> {
    let deadline = tokio::time::Instant::now() + OUTAGE_DEADLINE;
    loop {
        match fetch(client, args).await {
            Err(error) if error.code == Code::Unavailable && tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(REDRAW_INTERVAL * 3).await;
            }
            answer => return answer,
        }
    }
}

/// Creates the redrawn area of the terminal; hidden if stdout is not a terminal.
fn live_area(seen: bool) -> ProgressBar {
    let target = if seen { ProgressDrawTarget::stdout_with_hz(4) } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
    ProgressBar::with_draw_target(None, target).with_style(style)
}

fn footer(tree: &TreeNode) -> Option<String> {
    (tree.tree.total > 1).then(|| tree_counts(&tree.tree))
}
