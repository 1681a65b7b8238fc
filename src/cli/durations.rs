//! `stats --durations`: histogram of run times.

use kafleet_documents::DurationStats;
use kafleet_runtime::now_ms;

use super::client::{Client, Query};
use super::exit::{Code, Outcome};
use super::globals::Globals;
use super::list::resolve_time;
use super::output::{Field, Rows, eprint_incomplete};
use super::stats::StatsArgs;
use super::stats::time_text;

/// Maximum width of a bar.
const MAX_SHARE: u64 = 40;

/// Prints the histogram of the run times.
pub(super) async fn print_durations(client: &Client, args: StatsArgs, globals: &Globals) -> Outcome {
    let mut query: Query = args.task_type.into_iter().map(|name| ("type", name)).collect();
    for (name, time) in [("from", args.from), ("to", args.to)] {
        if let Some(time) = time {
            query.push((name, resolve_time(&time, now_ms())?));
        }
    }
    let stats: DurationStats = client.get(&["v1", "stats", "durations"], &query).await?;
    globals.output().json_or_list(&stats, duration_rows, "no attempt has succeeded in this time")?;
    eprint_incomplete(&stats.incomplete);
    Ok(Code::Ok)
}

fn duration_rows(stats: &DurationStats) -> Rows {
    let mut rows = Rows::new(["FROM", "TO", "ATTEMPTS", "SHARE"]);
    let highest = stats.run.buckets.iter().map(|bucket| bucket.count).max().unwrap_or(0).max(1);
    for bucket in &stats.run.buckets {
        let width = (bucket.count * MAX_SHARE).div_ceil(highest) as usize;
        rows.add([
            Field::Text(time_text(bucket.from_ms)),
            Field::Text(time_text(bucket.to_ms)),
            Field::Number(bucket.count),
            Field::Text("█".repeat(width)),
        ]);
    }
    rows
}
