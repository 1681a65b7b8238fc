//! `tree`: a task and what is below it, drawn; with `--watch` again and again until it has ended.

use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::client::{Client, Query};
use super::exit::{Code, Failure, Outcome};
use super::globals::{Format, Globals};
use super::output::tell;
use super::task_view::tree_counts;
use super::wait::code_of;
use crate::api::documents::TreeNode;
use crate::api::read::diagram::{dot, mermaid};
use crate::runtime::now_ms;

mod draw;

/// Between two looks at a tree that is watched.
const REDRAW: Duration = Duration::from_millis(300);
/// How long a watched tree may be out of reach.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub struct TreeArgs {
    /// The id of the task at the top
    pub id: String,
    /// Draw again as it changes, until the task has ended
    #[arg(long)]
    pub watch: bool,
    /// Levels below the task
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(0..=50))]
    pub depth: u32,
    /// Tasks drawn at most
    #[arg(short = 'n', long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
}

/// Draws a tree. With `--watch` the exit code says how the task ended.
pub async fn tree(args: TreeArgs, globals: &Globals) -> Outcome {
    let (client, screen) = (globals.client()?, globals.screen());
    let mut tree = look(&client, &args).await?;
    if args.watch {
        let bar = live_area(screen.terminal && screen.format == Format::Table);
        while !tree.state.is_terminal() {
            bar.set_message(draw::lines(&tree, screen.paint, now_ms()).join("\n"));
            tokio::time::sleep(REDRAW).await;
            tree = look_again(&client, &args).await?;
        }
        bar.finish_and_clear();
    }
    match screen.format {
        Format::Json => screen.json(&tree)?,
        Format::Mermaid => screen.line(mermaid(&tree).trim_end())?,
        Format::Dot => screen.line(dot(&tree).trim_end())?,
        Format::Table => {
            screen.line(&draw::lines(&tree, screen.paint, now_ms()).join("\n"))?;
            footer(&tree).into_iter().for_each(tell);
        }
    }
    Ok(if args.watch { code_of(tree.state) } else { Code::Ok })
}

async fn look(client: &Client, args: &TreeArgs) -> Result<TreeNode, Failure> {
    let query: Query = vec![("depth", args.depth.to_string()), ("limit", args.limit.to_string())];
    client.get(&["v1", "tasks", &args.id, "tree"], &query).await
}

/// A watched tree survives an api that restarts.
async fn look_again(client: &Client, args: &TreeArgs) -> Result<TreeNode, Failure> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        match look(client, args).await {
            Err(why) if why.code == Code::Unavailable && tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(REDRAW * 3).await;
            }
            answer => return answer,
        }
    }
}

/// The part of the terminal that is drawn anew; hidden where nobody looks.
fn live_area(seen: bool) -> ProgressBar {
    let target = if seen { ProgressDrawTarget::stdout_with_hz(4) } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
    ProgressBar::with_draw_target(None, target).with_style(style)
}

fn footer(tree: &TreeNode) -> Option<String> {
    (tree.tree.total > 1).then(|| tree_counts(&tree.tree))
}
