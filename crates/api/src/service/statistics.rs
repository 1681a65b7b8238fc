//! Endpoints of statistics, failures and requests.

use futures::stream::{self, StreamExt, TryStreamExt};
use kafleet_documents::{Audit, AuditDocument, DurationStats, Failures, Slowest, Stats};
use kafleet_model::projection::audit::{AuditEntry, MAX_AUDIT};
use kafleet_model::statistics::ALL;
use kafleet_model::statistics::aggregate::{AggregateKey, Level, hour_of, minute_of};
use kafleet_model::units::duration::Millis;
use kafleet_model::units::time::time_text;
use kafleet_runtime::now_ms;

use super::context::{After, RequestContext};
use super::dead_letters::counts::known_counts;
use crate::http::problem::{ApiError, Code};
use crate::http::request::bad_parameter;
pub use crate::read::failures::{FailuresBy, FailuresQuery, FailuresSort};
use crate::read::reads::Reads;
use crate::read::statistics::{self, MAX_POINTS, StatsRange};
use crate::read::{failure_roots, failures};
use crate::state::Api;

/// Default range.
const RANGE_MS: i64 = 3_600_000;

/// Series of statistics.
#[derive(Clone, Debug)]
pub enum Series {
    All,
    OfType(String),
    /// Each of the types with the most tasks.
    ByType,
}

/// Statistics to read.
#[derive(Clone, Debug)]
pub struct StatsQuery {
    pub series: Series,
    pub from_ms: Option<i64>,
    pub to_ms: Option<i64>,
    /// Length of a point. Default: the shortest that is kept and gives at most [`MAX_POINTS`].
    pub step: Option<Millis>,
}

/// Reads counts and durations over time.
pub async fn stats(RequestContext { api, .. }: RequestContext, query: StatsQuery) -> Result<Stats, ApiError> {
    read_stats(&api, query).await
}

pub(crate) async fn read_stats(api: &Api, query: StatsQuery) -> Result<Stats, ApiError> {
    let max_tree_age_ms = api.types.max_tree_age.as_i64();
    statistics::stats(&api.reads, &range_of(query)?, max_tree_age_ms).await
}

fn range_of(query: StatsQuery) -> Result<StatsRange, ApiError> {
    let to_ms = query.to_ms.unwrap_or_else(now_ms);
    let from_ms = query.from_ms.unwrap_or(to_ms - RANGE_MS);
    let series = match query.series {
        Series::All => Some(ALL.to_owned()),
        Series::OfType(name) => Some(name),
        Series::ByType => None,
    };
    let step = query.step;
    let level = match step {
        None => Level::ALL.into_iter().find(|level| refusal(*level, from_ms, to_ms).is_none()),
        Some(step) => Level::ALL.into_iter().find(|level| level.length_ms() == step.as_i64()),
    };
    let level = level.ok_or_else(|| match step {
        Some(_) => bad_parameter("step", "use 1m, 10m, 1h or 1d"),
        None => bad_parameter("from", "days are kept for 31 days: choose a shorter or later range"),
    })?;
    match refusal(level, from_ms, to_ms) {
        Some(error) => Err(bad_parameter("step", &error)),
        None => Ok(StatsRange { series, from_ms, to_ms, level }),
    }
}

/// Reason why a range cannot be read with this step.
fn refusal(level: Level, from_ms: i64, to_ms: i64) -> Option<String> {
    let (first, last) = StatsRange { series: None, from_ms, to_ms, level }.points();
    if last - first >= MAX_POINTS {
        return Some(format!("the range has more than {MAX_POINTS} points: choose a longer step or a shorter range"));
    }
    let kept = AggregateKey { level, number: level.first_kept(hour_of(minute_of(now_ms()))) };
    let is_kept = first >= kept.number;
    (!is_kept)
        .then(|| format!("points of this length are kept since {}: choose a longer step", time_text(kept.starts_ms())))
}

/// Reads the distributions of waits and run times, also of one type, by default of the last hour.
pub async fn durations(
    RequestContext { api, .. }: RequestContext,
    DurationsQuery { task_type, from_ms, to_ms }: DurationsQuery,
) -> Result<DurationStats, ApiError> {
    let series = task_type.map_or(Series::All, Series::OfType);
    statistics::durations_of(&api.reads, &range_of(StatsQuery { series, from_ms, to_ms, step: None })?).await
}

/// Range and type of distributions.
#[derive(Clone, Debug, Default)]
pub struct DurationsQuery {
    pub task_type: Option<String>,
    pub from_ms: Option<i64>,
    pub to_ms: Option<i64>,
}

/// Lists the slowest attempts, also of one type, of the last `hours` of log time.
pub async fn slowest(
    RequestContext { api, .. }: RequestContext,
    task_type: Option<&str>,
    hours: i64,
    limit: usize,
) -> Result<Slowest, ApiError> {
    failures::slowest(&api.reads, task_type, hours, limit).await
}

/// Groups failed tasks by type and error, or by the type of their root.
pub async fn failures(
    RequestContext { api, .. }: RequestContext,
    query: FailuresQuery,
    After(after): After,
) -> Result<Failures, ApiError> {
    api.reads.wait_for_position(after).await?;
    let letters = known_counts(&api, query.task_type.as_deref()).await;
    if query.with_dead_letters && letters.is_none() {
        let reason = "the dead letters are not counted yet, so that errors with dead letters cannot be listed";
        return Err(ApiError::new(Code::KafkaUnavailable, reason).hint("retry in a moment, or list all errors"));
    }
    match query.by {
        FailuresBy::Message | FailuresBy::Kind => failures::failures(&api.reads, &query, letters.as_deref()).await,
        FailuresBy::Root => failure_roots::failures(&api.reads, &query, letters.as_deref()).await,
    }
}

/// Lists the kinds of errors of all types that have begun last, and those whose newest task ended last, up to `limit` of each.
pub async fn newest_failures(api: &Api, limit: usize) -> Result<Failures, ApiError> {
    let letters = known_counts(api, None).await;
    failures::newest_failures(&api.reads, limit, letters.as_deref()).await
}

/// Requests to list: the newest ones of those with these properties.
#[derive(Clone, Debug, Default)]
pub struct AuditQuery {
    pub by: Option<String>,
    pub action: Option<String>,
    /// Part of the target, in any case.
    pub target: Option<String>,
    pub from_ms: Option<i64>,
    pub to_ms: Option<i64>,
    pub limit: usize,
}

impl AuditQuery {
    /// The newest requests.
    pub fn newest(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    fn is_filter(&self) -> bool {
        let texts = [&self.by, &self.action, &self.target];
        texts.into_iter().any(Option::is_some) || self.from_ms.is_some() || self.to_ms.is_some()
    }

    fn matches(&self, entry: &AuditEntry) -> bool {
        let has_target = |part: &String| entry.target.to_lowercase().contains(&part.to_lowercase());
        self.by.as_deref().is_none_or(|by| entry.by.as_deref() == Some(by))
            && self.action.as_ref().is_none_or(|action| entry.action == *action)
            && self.target.as_ref().is_none_or(has_target)
            && self.from_ms.is_none_or(|from_ms| entry.at_ms >= from_ms)
            && self.to_ms.is_none_or(|to_ms| entry.at_ms < to_ms)
    }
}

/// Lists the newest requests of users that match.
pub async fn audit(
    RequestContext { api, .. }: RequestContext,
    query: AuditQuery,
    After(after): After,
) -> Result<Audit, ApiError> {
    api.reads.wait_for_position(after).await?;
    read_audit(&api.reads, &query).await
}

pub(crate) async fn read_audit(reads: &Reads, query: &AuditQuery) -> Result<Audit, ApiError> {
    let limit = query.limit;
    // A filter looks at all requests that are kept.
    let read = if query.is_filter() { MAX_AUDIT } else { limit };
    let entries: Vec<_> = stream::iter(reads.partitions())
        .map(|partition| async move {
            let requests = reads.requests(partition, read).await?;
            let matching = requests.into_iter().filter(|entry| query.matches(entry)).take(limit);
            Ok::<_, ApiError>(matching.map(move |entry| (partition, entry)).collect::<Vec<_>>())
        })
        .buffer_unordered(16)
        .try_collect()
        .await?;
    let mut entries: Vec<_> = entries.into_iter().flatten().collect();
    entries.sort_by_key(|(partition, entry)| {
        (std::cmp::Reverse(entry.at_ms), *partition, std::cmp::Reverse(entry.offset))
    });
    let document = |(partition, entry): (u32, AuditEntry)| AuditDocument {
        at: time_text(entry.at_ms),
        by: entry.by.as_deref().map(str::to_owned),
        action: entry.action,
        target: entry.target,
        reason: entry.reason,
        position: format!("{partition}:{}", entry.offset),
    };
    let incomplete = reads.incomplete().await?;
    Ok(Audit { requests: entries.into_iter().take(limit).map(document).collect(), incomplete })
}
