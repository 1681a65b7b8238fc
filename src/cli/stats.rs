//! `stats`, `failures` and `audit`: counts over time, failed tasks by error, audit log.

use clap::{Args, ValueEnum};
use kafleet_documents::statistics::change_text;
use kafleet_documents::{Audit, FailureGroup, Failures, Slowest, Stats, StatsPoint, StatsSeries};
use kafleet_model::task::parse_time;
use kafleet_model::units::duration::Millis;
use kafleet_model::units::time::time_text as rfc3339;
use kafleet_runtime::now_ms;
use serde::Serialize;

use super::client::{Client, Query};
use super::durations::print_durations;
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::list::resolve_time;
use super::output::{Field, Rows, eprint_incomplete, eprint_line};
use super::task_view::span_text;

/// Bars of a sparkline, lowest first.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Maximum width of a sparkline; several points share a bar if there are more.
const MAX_BARS: usize = 60;
/// Maximum number of workers listed by name.
const MAX_NAMES: usize = 2;
const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;

#[derive(Debug, Args)]
pub(super) struct StatsArgs {
    /// Only this type [default: each type]
    #[arg(value_name = "TYPE")]
    pub task_type: Option<String>,
    /// Start of the range (RFC 3339, or an age such as 2h) [default: 1h]
    #[arg(long, value_name = "TIME")]
    pub from: Option<String>,
    /// End of the range [default: now]
    #[arg(long, value_name = "TIME")]
    pub to: Option<String>,
    /// Duration of each point: 1m, 10m, 1h or 1d
    #[arg(long, value_name = "DURATION")]
    pub step: Option<Millis>,
    /// List the slowest attempts of the last hour instead
    #[arg(long, conflicts_with_all = ["from", "to", "step"])]
    pub slowest: bool,
    /// Show the distribution of run times instead
    #[arg(long, conflicts_with_all = ["step", "slowest", "compare"])]
    pub durations: bool,
    /// Compare the totals with those of the same time of an earlier day
    #[arg(long, value_name = "TIME", conflicts_with_all = ["step", "slowest"])]
    pub compare: Option<Compare>,
}

/// Earlier time to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Compare {
    /// A day earlier
    Yesterday,
    /// Seven days earlier
    Week,
}

impl Compare {
    const fn shift_ms(self) -> i64 {
        match self {
            Self::Yesterday => DAY_MS,
            Self::Week => 7 * DAY_MS,
        }
    }
}

/// Statistics of a range and of the same range of an earlier day.
#[derive(Debug, Serialize)]
struct StatsComparison {
    current: Stats,
    earlier: Stats,
}

#[derive(Debug, Args)]
pub(super) struct FailuresArgs {
    /// Only this type
    #[arg(long = "type", value_name = "TYPE")]
    pub task_type: Option<String>,
    /// Only errors of this kind
    #[arg(long)]
    pub kind: Option<String>,
    /// Groups: type, kind and similar message, type and kind, or the type of the root of the failed tasks
    #[arg(long, value_name = "GROUPS", default_value = "message", value_parser = ["message", "kind", "root"])]
    pub by: String,
    /// Count only tasks that ended within this time, such as 1h or 7d [default: all retained tasks]
    #[arg(long, value_name = "DURATION")]
    pub since: Option<Millis>,
    /// Most tasks first, or the newest first or last task first
    #[arg(long, value_name = "ORDER", default_value = "count", value_parser = ["count", "first", "last"])]
    pub sort: String,
    /// Only errors whose kind, message or worker contains this text
    #[arg(long)]
    pub text: Option<String>,
    /// Only errors with unresolved dead letters
    #[arg(long)]
    pub with_dead_letters: bool,
    /// Maximum number of errors
    #[arg(short = 'n', long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=200))]
    pub limit: u32,
}

#[derive(Debug, Args)]
pub(super) struct AuditArgs {
    /// Only requests with this API token
    #[arg(long, value_name = "NAME")]
    pub by: Option<String>,
    /// Only requests of this action, such as pause_type
    #[arg(long)]
    pub action: Option<String>,
    /// Only requests whose target contains this text
    #[arg(long, value_name = "TEXT")]
    pub target: Option<String>,
    /// Only requests at or after this time (RFC 3339, or an age such as 2h)
    #[arg(long, value_name = "TIME")]
    pub from: Option<String>,
    /// Only requests before this time
    #[arg(long, value_name = "TIME")]
    pub to: Option<String>,
    /// Maximum number of requests
    #[arg(short = 'n', long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub limit: u32,
}

pub(super) async fn stats(args: StatsArgs, globals: &Globals) -> Outcome {
    let (client, output, now) = (globals.client()?, globals.output(), now_ms());
    let mut query = Query::new();
    if args.slowest {
        query.extend(args.task_type.map(|name| ("type", name)));
        let slowest: Slowest = client.get(&["v1", "stats", "slowest"], &query).await?;
        output.json_or_list(&slowest, slowest_rows, "no attempt has ended in the last hour")?;
        eprint_incomplete(&slowest.incomplete);
        return Ok(Code::Ok);
    }
    if let Some(compare) = args.compare {
        return print_comparison(&client, &args, compare, globals).await;
    }
    if args.durations {
        return print_durations(&client, args, globals).await;
    }
    query.push(args.task_type.map_or(("by", "type".to_owned()), |name| ("type", name)));
    for (name, time) in [("from", args.from), ("to", args.to)] {
        if let Some(time) = time {
            query.push((name, resolve_time(&time, now)?));
        }
    }
    query.extend(args.step.map(|step| ("step", step.to_string())));
    let stats: Stats = client.get(&["v1", "stats"], &query).await?;
    output.json_or_list(&stats, rows, "nothing has been counted in this time; `kafleet submit` submits a task")?;
    eprint_incomplete(&stats.incomplete);
    Ok(Code::Ok)
}

/// Prints the totals of a range, those of the same range of an earlier day, and the changes.
async fn print_comparison(client: &Client, args: &StatsArgs, compare: Compare, globals: &Globals) -> Outcome {
    let now = now_ms();
    let time = |text: &Option<String>, default: i64| match text {
        Some(text) => parse_time(&resolve_time(text, now)?).map_err(Failure::usage),
        None => Ok(default),
    };
    let to_ms = time(&args.to, now)?;
    let from_ms = time(&args.from, to_ms - HOUR_MS)?;
    let query = |shift_ms: i64| -> Query {
        let series = args.task_type.clone().map_or(("by", "type".to_owned()), |name| ("type", name));
        vec![series, ("from", rfc3339(from_ms - shift_ms)), ("to", rfc3339(to_ms - shift_ms))]
    };
    let current: Stats = client.get(&["v1", "stats"], &query(0)).await?;
    let earlier: Stats = client.get(&["v1", "stats"], &query(compare.shift_ms())).await?;
    let (comparison, is_by_type) = (StatsComparison { current, earlier }, args.task_type.is_none());
    let rows = |comparison: &StatsComparison| comparison_rows(comparison, from_ms, to_ms, compare.shift_ms());
    globals.output().json_or_list(&comparison, rows, "nothing has been counted in these times")?;
    if !globals.output().is_json() && comparison.earlier.step > comparison.current.step {
        eprint_line(format_args!("the earlier counts are shares of points of {}", comparison.earlier.step));
    }
    if is_by_type && comparison.current.left_out > 0 {
        eprint_line(format_args!("{} more types are left out", comparison.current.left_out));
    }
    eprint_incomplete(&comparison.current.incomplete);
    Ok(Code::Ok)
}

fn comparison_rows(comparison: &StatsComparison, from_ms: i64, to_ms: i64, shift_ms: i64) -> Rows {
    const COUNTS: [fn(&StatsPoint) -> u64; 3] =
        [|point| point.opened, |point| point.succeeded, StatsPoint::unsuccessful];
    let StatsComparison { current, earlier } = comparison;
    let mut rows = Rows::new([
        "TYPE",
        "OPENED",
        "EARLIER",
        "CHANGE",
        "SUCCEEDED",
        "EARLIER",
        "CHANGE",
        "FAILED",
        "EARLIER",
        "CHANGE",
    ]);
    let names: std::collections::BTreeSet<&str> =
        [current, earlier].into_iter().flat_map(|stats| &stats.series).map(|series| &*series.task_type).collect();
    let sum = |stats: &Stats, name: &str, shift_ms: i64, count: fn(&StatsPoint) -> u64| {
        let series = stats.series.iter().find(|series| series.task_type == name);
        series.map_or(0.0, |series| series.sum_between(stats.step, from_ms - shift_ms, to_ms - shift_ms, count))
    };
    for name in names {
        let mut row = vec![Field::from(name)];
        for count in COUNTS {
            let (now, then) = (sum(current, name, 0, count), sum(earlier, name, shift_ms, count));
            row.extend([now, then].map(|sum| Field::Number(sum.round() as u64)));
            row.push(change_text(now, then).into());
        }
        rows.add(row);
    }
    rows
}

pub(super) async fn failures(args: FailuresArgs, globals: &Globals) -> Outcome {
    let output = globals.output();
    let rows = match args.by.as_str() {
        "root" => root_rows,
        "kind" => kind_rows,
        _ => failure_rows,
    };
    let nothing = if args.since.is_some() {
        "no task has failed or expired in this time"
    } else {
        "no task has failed or expired"
    };
    let failures: Failures = globals.client()?.get(&["v1", "failures"], &failures_query(args)).await?;
    output.json_or_list(&failures, rows, nothing)?;
    if failures.at_least {
        eprint_line("counts are lower bounds: there are more failed tasks or errors than were read");
    }
    if let Some(others) = failures.other_dead_letters.filter(|others| *others > 0) {
        let text = "dead letters belong to no failed task; `kafleet dead-letters list --without-failure` lists them";
        eprint_line(format_args!("{others} {text}"));
    }
    eprint_incomplete(&failures.incomplete);
    Ok(Code::Ok)
}

fn failures_query(args: FailuresArgs) -> Query {
    let mut query = vec![("limit", args.limit.to_string()), ("by", args.by), ("sort", args.sort)];
    query.extend(args.task_type.map(|name| ("type", name)));
    query.extend(args.kind.map(|kind| ("kind", kind)));
    query.extend(args.since.map(|since| ("since", since.to_string())));
    query.extend(args.text.map(|text| ("text", text)));
    query.extend(args.with_dead_letters.then(|| ("with_dead_letters", "true".to_owned())));
    query
}

fn kind_rows(failures: &Failures) -> Rows {
    let mut rows = Rows::new([
        "TASKS",
        "LETTERS",
        "TYPE",
        "KIND",
        "MESSAGES",
        "LAST 24 H",
        "FIRST",
        "LAST",
        "WORKERS",
        "NEWEST ERROR",
    ]);
    for group in &failures.groups {
        let at_least = if failures.messages_at_least { "≥ " } else { "" };
        rows.add([
            Field::Number(group.count),
            letters(failures, group),
            Field::Text(group.task_type.clone()),
            group.kind.clone().into(),
            group.messages.map_or(Field::Empty, |messages| Field::Text(format!("{at_least}{messages}"))),
            Field::Text(sparkline(&group.attempts_by_hour)),
            Field::Text(group.first.clone()),
            Field::Text(group.last.clone()),
            workers(&group.workers),
            Field::Text(group.text.clone()),
        ]);
    }
    rows
}

fn root_rows(failures: &Failures) -> Rows {
    let mut rows = Rows::new(["ROOTS", "TYPE OF ROOTS", "TYPE", "KIND", "TASKS", "LAST", "NEWEST TASK"]);
    for group in &failures.groups {
        rows.add([
            Field::Number(group.roots.unwrap_or_default()),
            Field::from(group.root_type.clone().filter(|name| !name.is_empty())),
            Field::Text(group.task_type.clone()),
            group.kind.clone().into(),
            Field::Number(group.count),
            Field::Text(group.last.clone()),
            Field::Text(group.newest.clone()),
        ]);
    }
    rows
}

fn failure_rows(failures: &Failures) -> Rows {
    let mut rows = Rows::new(["TASKS", "LETTERS", "TYPE", "LAST 24 H", "LAST", "NEWEST TASK", "WORKERS", "ERROR"]);
    for group in &failures.groups {
        let note = if group.newest_superseded { " (superseded)" } else { "" };
        rows.add([
            Field::Number(group.count),
            letters(failures, group),
            Field::Text(group.task_type.clone()),
            Field::Text(sparkline(&group.attempts_by_hour)),
            Field::Text(group.last.clone()),
            Field::Text(format!("{}{note}", group.newest)),
            workers(&group.workers),
            Field::Text(group.text.clone()),
        ]);
    }
    rows
}

/// Number of unresolved dead letters, if it is known.
fn letters(failures: &Failures, group: &FailureGroup) -> Field {
    match group.dead_letters {
        Some(number) if failures.dead_letters_at_least => Field::Text(format!("≥ {number}")),
        Some(number) => Field::Number(number),
        None => Field::Empty,
    }
}

/// Names of the workers, or their number if there are many.
fn workers(names: &[String]) -> Field {
    match names {
        [] => Field::Empty,
        names if names.len() <= MAX_NAMES => Field::Text(names.join(", ")),
        names => Field::Text(format!("{} workers", names.len())),
    }
}

pub(super) async fn audit(args: AuditArgs, globals: &Globals) -> Outcome {
    let output = globals.output();
    let audit: Audit = globals.client()?.get(&["v1", "audit"], &audit_query(args)?).await?;
    if output.is_json() {
        output.json(&audit)?;
        return Ok(Code::Ok);
    }
    eprint_incomplete(&audit.incomplete);
    let mut rows = Rows::new(["AT", "BY", "ACTION", "TARGET", "REASON"]);
    for request in audit.requests {
        rows.add([
            Field::Text(request.at),
            request.by.into(),
            Field::Text(request.action),
            Field::Text(request.target),
            request.reason.into(),
        ]);
    }
    output.list(rows, "no such request has been made")?;
    Ok(Code::Ok)
}

fn audit_query(args: AuditArgs) -> Result<Query, Failure> {
    let mut query = vec![("limit", args.limit.to_string())];
    let texts = [("by", args.by), ("action", args.action), ("target", args.target)];
    query.extend(texts.into_iter().filter_map(|(name, text)| Some((name, text?))));
    for (name, time) in [("from", args.from), ("to", args.to)] {
        if let Some(time) = time {
            query.push((name, resolve_time(&time, now_ms())?));
        }
    }
    Ok(query)
}

fn slowest_rows(slowest: &Slowest) -> Rows {
    let mut rows = Rows::new(["TOOK", "TYPE", "TASK", "RUN", "ATTEMPT", "WORKER", "ENDED"]);
    for attempt in &slowest.attempts {
        rows.add([
            Field::Text(time_text(attempt.took_ms)),
            Field::Text(attempt.task_type.clone()),
            Field::Text(attempt.id.clone()),
            Field::Number(attempt.run.into()),
            Field::Number(attempt.attempt.into()),
            attempt.worker.clone().into(),
            Field::Text(attempt.ended_at.clone()),
        ]);
    }
    rows
}

fn rows(stats: &Stats) -> Rows {
    let mut rows = Rows::new([
        "TYPE",
        "ENDED",
        "OPENED",
        "SUCCEEDED",
        "FAILED",
        "OTHER ENDS",
        "RETRIED",
        "OPEN",
        "WAIT MAX",
        "RUN MAX",
    ]);
    stats.series.iter().for_each(|series| rows.add(row(series)));
    rows
}

fn row(series: &StatsSeries) -> [Field; 10] {
    let StatsSeries { task_type, points } = series;
    let sum = |count: fn(&StatsPoint) -> u64| points.iter().map(count).sum::<u64>();
    let longest =
        |longest: fn(&StatsPoint) -> Option<u64>| Field::from(points.iter().filter_map(longest).max().map(time_text));
    [
        Field::Text(task_type.clone()),
        Field::Text(sparkline(&points.iter().map(ended).collect::<Vec<_>>())),
        Field::Number(sum(|point| point.opened)),
        Field::Number(sum(|point| point.succeeded)),
        Field::Number(sum(|point| point.failed)),
        Field::Number(sum(|point| point.cancelled + point.expired)),
        Field::Number(sum(|point| point.retried)),
        points.last().map_or(Field::Empty, |point| Field::Number(point.open)),
        longest(|point| point.wait.max),
        longest(|point| point.run.max),
    ]
}

pub(super) fn time_text(ms: u64) -> String {
    span_text(i64::try_from(ms).unwrap_or(i64::MAX))
}

const fn ended(point: &StatsPoint) -> u64 {
    point.succeeded + point.failed + point.cancelled + point.expired
}

/// Draws counts as bars; the tallest stands for the highest count, a space for none.
fn sparkline(counts: &[u64]) -> String {
    let width = counts.len().div_ceil(MAX_BARS).max(1);
    let bars: Vec<u64> = counts.chunks(width).map(|some| some.iter().sum()).collect();
    let highest = bars.iter().copied().max().unwrap_or(0).max(1);
    let bar = |count: &u64| match *count {
        0 => ' ',
        count => BARS[((count * BARS.len() as u64).div_ceil(highest) as usize).clamp(1, BARS.len()) - 1],
    };
    bars.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_of_two_times_are_compared_by_type() {
        let stats = |at: &str, step: u64, opened: u64| -> Stats {
            let point = serde_json::json!({
                "at": at, "opened": opened, "succeeded": opened, "failed": 0, "cancelled": 0, "expired": 0, "dropped": 0,
                "retried": 0, "duplicates": 0, "busy_ms": 0, "open": 0,
                "wait": {"count": 0, "p50": null, "p95": null, "p99": null, "max": null},
                "run": {"count": 0, "p50": null, "p95": null, "p99": null, "max": null},
            });
            serde_json::from_value(serde_json::json!({
                "step": Millis::secs(step), "complete_to": at, "exact_from": null, "left_out": 0,
                "series": [{"type": "echo", "points": [point]}],
            }))
            .unwrap()
        };
        let from_ms = parse_time("2026-11-02T13:00:00Z").unwrap();
        let current = stats("2026-11-02T13:00:00.000Z", 60, 56);
        let earlier = stats("2026-11-01T13:00:00.000Z", 3_600, 3_000);
        let rows = comparison_rows(&StatsComparison { current, earlier }, from_ms, from_ms + 60_000, DAY_MS);
        let drawn = rows.draw(crate::cli::output::Paint(false), false);
        assert!(drawn.contains("echo      56       50  ▲ 12 %"), "{drawn}");
    }

    #[test]
    fn sparkline_scales_to_the_highest_count() {
        assert_eq!(sparkline(&[0, 1, 4, 8]), " ▁▄█");
        assert_eq!(sparkline(&[0, 0]), "  ");
        assert_eq!(sparkline(&[]), "");
        assert_eq!(sparkline(&[3; 400]).chars().count(), 58, "several points share a bar");
        assert_eq!(sparkline(&[u64::MAX / 8, 1]), "█▁");
    }
}
