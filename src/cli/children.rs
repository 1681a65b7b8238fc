//! `children`: lists the direct children of a task, oldest first.

use clap::Args;
use kafleet_runtime::now_ms;

use super::exit::{Code, Outcome};
use super::globals::Globals;
use super::list::{self, rows};
use super::output::eprint_line;

#[derive(Debug, Args)]
pub(super) struct ChildrenArgs {
    /// The parent's id
    pub id: String,
    /// Maximum number of children
    #[arg(short = 'n', long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
    /// Continue from the cursor of an earlier list
    #[arg(long)]
    pub cursor: Option<String>,
}

/// Lists children, reading as many pages as needed.
pub(super) async fn children(args: ChildrenArgs, globals: &Globals) -> Outcome {
    let client = globals.client()?;
    let output = globals.output();
    let id = args.id;
    let is_first = args.cursor.is_none();
    let page =
        list::pages(&client, &["v1", "tasks", &id, "children"], &Vec::new(), args.limit as usize, args.cursor).await?;
    if output.is_json() {
        output.json(&page)?;
        return Ok(Code::Ok);
    }
    output.list(rows(&page.tasks, "ID", now_ms()), empty_message(&id, is_first))?;
    if let Some(cursor) = &page.next {
        eprint_line(format_args!("there are more: --cursor {cursor}"));
    }
    Ok(Code::Ok)
}

fn empty_message(id: &str, is_first: bool) -> String {
    if is_first {
        format!("`{id}` has no children; `kafleet submit TYPE PARAMS --parent {id}` adds one")
    } else {
        format!("`{id}` has no more children")
    }
}
