//! Export of a list of tasks to stdout: read page by page, each written before the next is read.

use std::io::{self, Write};

use kafleet_documents::{ExportEnd, ExportLines, TaskPage};

use super::client::{Client, Query};
use super::exit::{Code, Failure, Outcome};
use super::output::eprint_line;

/// Tasks per request.
const PAGE: usize = 200;
/// Maximum number of exported tasks, unless another one is given.
pub(super) const DEFAULT_TASKS: usize = 10_000;

/// Writes the tasks that match the filters, at most `limit`. A closed stdout ends it quietly.
pub(super) async fn export(
    client: &Client,
    filters: &Query,
    lines: &ExportLines,
    (limit, cursor): (usize, Option<String>),
) -> Outcome {
    let mut next = cursor;
    let mut tasks = 0;
    let mut incomplete = false;
    write(&lines.head())?;
    loop {
        let mut query = filters.clone();
        query.push(("limit", PAGE.min(limit - tasks).to_string()));
        query.extend(next.take().map(|cursor| ("cursor", cursor)));
        let page: TaskPage = client.get(&["v1", "tasks"], &query).await?;
        tasks += page.tasks.len();
        incomplete |= !page.incomplete.is_empty();
        write(&page.tasks.iter().map(|task| lines.task(task)).collect::<String>())?;
        next = page.next;
        if next.is_none() || tasks >= limit {
            break;
        }
    }
    let reason = match &next {
        Some(cursor) => {
            eprint_line(format_args!("the limit of {limit} tasks is reached; continue with --cursor {cursor}"));
            Some("the limit is reached".to_owned())
        }
        None if incomplete => {
            eprint_line("incomplete: the store has lost data, or no tracker projects some partitions");
            Some("the store has lost data".to_owned())
        }
        None => None,
    };
    write(&lines.end(&ExportEnd { complete: reason.is_none(), tasks: tasks as u64, reason, next }))?;
    Ok(Code::Ok)
}

fn write(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}
