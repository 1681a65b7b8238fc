//! `children`: the direct children of a task, oldest first.

use clap::Args;

use super::exit::{Code, Outcome};
use super::globals::Globals;
use super::list::{self, rows};
use super::output::tell;
use crate::runtime::now_ms;

#[derive(Debug, Args)]
pub struct ChildrenArgs {
    /// The id of their parent
    pub id: String,
    /// How many
    #[arg(short = 'n', long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
    /// Go on where an earlier list ended
    #[arg(long)]
    pub cursor: Option<String>,
}

/// Lists children, over as many pages as it takes.
pub async fn children(args: ChildrenArgs, globals: &Globals) -> Outcome {
    let (client, screen, id) = (globals.client()?, globals.screen(), args.id);
    let is_first = args.cursor.is_none();
    let found = list::pages(&client, &["v1", "tasks", &id, "children"], &Vec::new(), args.limit as usize, args.cursor).await?;
    if screen.is_json() {
        screen.json(&found)?;
        return Ok(Code::Ok);
    }
    let none = match is_first {
        true => format!("`{id}` has no children; `kafleet submit TYPE PARAMS --parent {id}` adds one"),
        false => format!("`{id}` has no more children"),
    };
    screen.list(rows(&found.tasks, "ID", now_ms()), none)?;
    if let Some(cursor) = &found.next {
        tell(format_args!("there are more: --cursor {cursor}"));
    }
    Ok(Code::Ok)
}
