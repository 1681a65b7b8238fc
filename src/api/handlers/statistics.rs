//! Endpoints of statistics, failures and requests.

use axum::response::Response;
use futures::stream::{self, StreamExt, TryStreamExt};

use crate::api::documents::{Audit, AuditDocument, Failures, Slowest, Stats};
use crate::api::http::problem::ApiError;
use crate::api::http::request::{ApiRequest, bad_parameter};
use crate::api::http::response::json_answer;
use crate::api::read::failures::{self, ERROR_HOURS};
use crate::api::read::reads::Reads;
use crate::api::read::statistics::{self, MAX_POINTS, StatsRange};
use crate::model::projection::audit::MAX_AUDIT;
use crate::model::statistics::ALL;
use crate::model::statistics::aggregate::{AggregateKey, Level, hour_of, minute_of};
use crate::model::task::id::check_type;
use crate::publish::time_text;
use crate::runtime::now_ms;

/// Default range.
const RANGE_MS: i64 = 3_600_000;
/// Default and maximum number of listed groups, attempts and requests.
const LISTED: usize = 50;
const MAX_LISTED: usize = 200;

/// `GET /v1/stats`.
pub(crate) async fn stats(request: ApiRequest) -> Result<Response, ApiError> {
    Ok(json_answer(200, &stats_document(&request).await?))
}

pub(crate) async fn stats_document(request: &ApiRequest) -> Result<Stats, ApiError> {
    let range = range_of(request)?;
    let max_tree_age_ms = request.api.types.max_tree_age.as_i64();
    statistics::stats(&request.api.reads, &range, max_tree_age_ms).await
}

fn range_of(request: &ApiRequest) -> Result<StatsRange, ApiError> {
    let (from_ms, to_ms) = request.query.time_range()?;
    let to_ms = to_ms.unwrap_or_else(now_ms);
    let from_ms = from_ms.unwrap_or(to_ms - RANGE_MS);
    let series = match (task_type(request)?, request.query.text("by")) {
        (Some(_), Some(_)) => return Err(bad_parameter("by", "`type` selects one type: omit `by`")),
        (_, Some("type")) => None,
        (_, Some(_)) => return Err(bad_parameter("by", "the only value is `type`")),
        (Some(task_type), None) => Some(task_type.to_owned()),
        (None, None) => Some(ALL.to_owned()),
    };
    let step = request.query.duration("step")?;
    let level = match step {
        None => Level::ALL.into_iter().find(|level| refusal(*level, from_ms, to_ms).is_none()),
        Some(step) => Level::ALL.into_iter().find(|level| level.length_ms() == step.as_i64()),
    };
    let level = level.ok_or_else(|| match step {
        Some(_) => bad_parameter("step", "use 1m, 10m, 1h or 1d"),
        None => bad_parameter("from", "days are kept for 31 days: choose a shorter or later range"),
    })?;
    match refusal(level, from_ms, to_ms) {
        Some(why) => Err(bad_parameter("step", &why)),
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

fn task_type(request: &ApiRequest) -> Result<Option<&str>, ApiError> {
    let task_type = request.query.text("type");
    task_type.map(|name| check_type(name).map(|()| name).map_err(|why| bad_parameter("type", &why))).transpose()
}

/// `GET /v1/stats/slowest`.
pub(crate) async fn slowest(request: ApiRequest) -> Result<Response, ApiError> {
    Ok(json_answer(200, &slowest_document(&request).await?))
}

pub(crate) async fn slowest_document(request: &ApiRequest) -> Result<Slowest, ApiError> {
    let hours = request.query.number("hours", 1, 1..=ERROR_HOURS as usize)? as i64;
    let limit = request.query.number("limit", LISTED, 1..=MAX_LISTED)?;
    failures::slowest(&request.api.reads, task_type(request)?, hours, limit).await
}

/// `GET /v1/failures`.
pub(crate) async fn failures(request: ApiRequest) -> Result<Response, ApiError> {
    Ok(json_answer(200, &failures_document(&request).await?))
}

pub(crate) async fn failures_document(request: &ApiRequest) -> Result<Failures, ApiError> {
    let limit = request.query.number("limit", LISTED, 1..=MAX_LISTED)?;
    request.api.reads.wait_for_position(request.after()?).await?;
    failures::failures(&request.api.reads, task_type(request)?, limit).await
}

/// `GET /v1/audit`.
pub(crate) async fn audit(request: ApiRequest) -> Result<Response, ApiError> {
    Ok(json_answer(200, &audit_document(&request).await?))
}

pub(crate) async fn audit_document(request: &ApiRequest) -> Result<Audit, ApiError> {
    let limit = request.query.number("limit", LISTED, 1..=MAX_AUDIT)?;
    request.api.reads.wait_for_position(request.after()?).await?;
    read_audit(&request.api.reads, limit).await
}

pub(crate) async fn read_audit(reads: &Reads, limit: usize) -> Result<Audit, ApiError> {
    let found: Vec<_> = stream::iter(reads.partitions())
        .map(|partition| async move {
            let requests = reads.requests(partition, limit).await?;
            Ok::<_, ApiError>(requests.into_iter().map(move |entry| (partition, entry)))
        })
        .buffer_unordered(16)
        .try_collect()
        .await?;
    let mut found: Vec<_> = found.into_iter().flatten().collect();
    found.sort_by_key(|(partition, entry)| {
        (std::cmp::Reverse(entry.at_ms), *partition, std::cmp::Reverse(entry.offset))
    });
    let document = |(partition, entry): (u32, crate::model::projection::audit::AuditEntry)| AuditDocument {
        at: time_text(entry.at_ms),
        by: entry.by.as_deref().map(str::to_owned),
        action: entry.action,
        target: entry.target,
        reason: entry.reason,
        position: format!("{partition}:{}", entry.offset),
    };
    let incomplete = reads.incomplete().await?;
    Ok(Audit { requests: found.into_iter().take(limit).map(document).collect(), incomplete })
}
