//! Statistics merged over all partitions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt, TryStreamExt};
use kafleet_documents::{DurationBucket, DurationHistogram, DurationStats, Durations, Stats, StatsPoint, StatsSeries};
use kafleet_model::statistics::ALL;
use kafleet_model::statistics::aggregate::{Aggregate, AggregateKey, Level, minute_of};
use kafleet_model::statistics::histogram::Histogram;
use kafleet_model::units::duration::Millis;
use kafleet_model::units::time::time_text;
use kafleet_runtime::now_ms;
use kafleet_store::PartitionStatistics;
use kafleet_store::integrity::is_open;
use tokio::time::Instant;

use crate::backends::stored;
use crate::http::problem::ApiError;
use crate::read::reads::Reads;

/// Maximum points of a series.
pub(crate) const MAX_POINTS: i64 = 400;
/// Maximum series in an answer.
const MAX_SERIES: usize = 100;
/// Aggregates per store call, which keeps one call short.
const MAX_AGGREGATES: usize = 8_000;
/// Maximum wait for the end offsets of all partitions. If it is exceeded, the response ends at the projected offsets.
const ENDS_DEADLINE: Duration = Duration::from_secs(1);
/// Maximum concurrent store calls of a request.
pub(super) const MAX_CONCURRENT_READS: usize = 16;
const DAY_MS: i64 = 24 * 3_600_000;

/// Requested statistics.
pub(crate) struct StatsRange {
    /// Series to read; `None`: each type.
    pub series: Option<String>,
    pub from_ms: i64,
    pub to_ms: i64,
    pub level: Level,
}

impl StatsRange {
    /// Numbers of the first and the last point.
    pub(crate) fn points(&self) -> (i64, i64) {
        let last = AggregateKey::at(self.level, self.to_ms.max(self.from_ms + 1) - 1).number;
        (AggregateKey::at(self.level, self.from_ms).number, last)
    }
}

/// Sums over the partitions.
#[derive(Default)]
struct Sums {
    series: BTreeMap<Arc<str>, BTreeMap<i64, Aggregate>>,
    /// Open tasks now, by type.
    open: BTreeMap<Arc<str>, i64>,
    complete_to_ms: Option<i64>,
    /// Log time of the first projected event, if the projection began after the beginning of the log.
    began_ms: Option<i64>,
}

/// Reads statistics. `max_tree_age_ms`: time after the start of a projection after which no task from before it is
/// left.
pub(crate) async fn stats(reads: &Reads, range: &StatsRange, max_tree_age_ms: i64) -> Result<Stats, ApiError> {
    let sums = sums(reads, range).await?;
    let incomplete = reads.incomplete().await?;
    Ok(Stats { incomplete, ..sums.document(range, max_tree_age_ms) })
}

/// Reads the distributions of the times of one series.
pub(crate) async fn durations_of(reads: &Reads, range: &StatsRange) -> Result<DurationStats, ApiError> {
    let sums = sums(reads, range).await?;
    let ((first, last), name) = (range.points(), range.series.as_deref().unwrap_or(ALL));
    let (mut wait, mut run) = (Histogram::default(), Histogram::default());
    for (_, point) in sums.series.get(name).into_iter().flat_map(|points| points.range(first..=last)) {
        wait.merge(&point.wait);
        run.merge(&point.run);
    }
    let starts_at = |number: i64| time_text(AggregateKey { level: range.level, number }.starts_ms());
    Ok(DurationStats {
        task_type: name.to_owned(),
        from: starts_at(first),
        to: starts_at(last + 1),
        wait: histogram_document(&wait),
        run: histogram_document(&run),
        incomplete: reads.incomplete().await?,
    })
}

fn histogram_document(histogram: &Histogram) -> DurationHistogram {
    let bucket = |(from_ms, to_ms, count)| DurationBucket { from_ms, to_ms, count };
    DurationHistogram { summary: durations(histogram), buckets: histogram.buckets().map(bucket).collect() }
}

/// Reads the sums of a range over all partitions.
async fn sums(reads: &Reads, range: &StatsRange) -> Result<Sums, ApiError> {
    let parts: Vec<(u32, PartitionStatistics)> =
        stream::iter(reads.partitions())
            .map(|partition| async move {
                Ok::<_, ApiError>((partition, partition_statistics(reads, partition, range).await?))
            })
            .buffer_unordered(MAX_CONCURRENT_READS)
            .try_collect()
            .await?;
    let projected = projected_partitions(reads, &parts).await;
    let mut sums = Sums::default();
    for (partition, part) in parts {
        sums.add(part, range.level, projected.contains(&partition));
    }
    Ok(sums)
}

/// Reads the aggregates from the first point up to now: later ones are needed for the number of open tasks.
async fn partition_statistics(
    reads: &Reads,
    partition: u32,
    range: &StatsRange,
) -> Result<PartitionStatistics, ApiError> {
    let overview = stored(reads.store.statistics(partition, &[], &[])).await?;
    let Some(series_overview) = &overview.overview else { return Ok(overview) };
    let names: Vec<Arc<str>> = match &range.series {
        Some(name) => vec![name.as_str().into()],
        None => series_overview.series.iter().map(|listed| listed.name.clone()).filter(|name| &**name != ALL).collect(),
    };
    let now = series_overview.minute.unwrap_or_default().max(minute_of(now_ms()));
    let level = range.level;
    let keys: Vec<AggregateKey> = (range.points().0..=AggregateKey::of_minute(level, now).number)
        .map(|number| AggregateKey { level, number })
        .collect();
    let mut collected = overview;
    for names in names.chunks((MAX_AGGREGATES / keys.len().max(1)).max(1)) {
        let part = stored(reads.store.statistics(partition, names, &keys)).await?;
        let earlier = std::mem::take(&mut collected.aggregates);
        collected = part;
        collected.aggregates.extend(earlier);
    }
    Ok(collected)
}

/// Returns the partitions that are projected up to the end of their logs. Those whose end Kafka does not report in
/// time are left out.
async fn projected_partitions(reads: &Reads, parts: &[(u32, PartitionStatistics)]) -> BTreeSet<u32> {
    let offset_of = |part: &PartitionStatistics| part.checkpoint.map_or(0, |checkpoint| checkpoint.offset);
    let offsets: Vec<(u32, i64)> = parts.iter().map(|(partition, part)| (*partition, offset_of(part))).collect();
    let deadline = Instant::now() + ENDS_DEADLINE;
    stream::iter(offsets)
        .map(|(partition, offset)| async move {
            let ends = tokio::time::timeout_at(deadline, reads.event_ends(partition, ENDS_DEADLINE)).await;
            matches!(ends, Ok(Ok(ends)) if offset >= ends.high).then_some(partition)
        })
        .buffer_unordered(MAX_CONCURRENT_READS)
        .filter_map(std::future::ready)
        .collect()
        .await
}

impl Sums {
    fn add(&mut self, part: PartitionStatistics, level: Level, is_complete: bool) {
        for (series, key, aggregate) in part.aggregates {
            let number = key.starts_ms().div_euclid(level.length_ms());
            self.series.entry(series).or_default().entry(number).or_default().merge(&aggregate);
        }
        for count in part.counts.iter().filter(|count| is_open(count.state)) {
            for series in [count.task_type.clone(), ALL.into()] {
                *self.open.entry(series).or_default() += count.count as i64;
            }
        }
        let log_time_ms = part.checkpoint.map_or(0, |checkpoint| checkpoint.log_time_ms);
        if !is_complete {
            self.complete_to_ms = Some(self.complete_to_ms.map_or(log_time_ms, |earliest| earliest.min(log_time_ms)));
        }
        let late = part.overview.filter(|overview| overview.began > 0).and_then(|overview| overview.first_ms);
        self.began_ms = self.began_ms.max(late);
    }

    fn document(self, range: &StatsRange, max_tree_age_ms: i64) -> Stats {
        let exact_from_ms =
            self.began_ms.map(|began_ms| began_ms.saturating_add(max_tree_age_ms).saturating_add(DAY_MS));
        let open = &self.open;
        let mut series: Vec<(u64, StatsSeries)> = self
            .series
            .iter()
            .map(|(name, points)| {
                let weight = points.values().map(|point| point.opened + point.ended()).sum();
                (weight, series_document(name, points, open.get(name).copied().unwrap_or(0), range))
            })
            .collect();
        series.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
        let left_out = series.len().saturating_sub(MAX_SERIES) as u64;
        Stats {
            step: Millis(range.level.length_ms().unsigned_abs()),
            complete_to: time_text(self.complete_to_ms.unwrap_or_else(now_ms)),
            exact_from: exact_from_ms.map(time_text),
            series: series.into_iter().take(MAX_SERIES).map(|(_, series)| series).collect(),
            left_out,
            incomplete: Vec::new(),
        }
    }
}

/// Builds the points of a series. The numbers of open tasks are computed backwards from the current one.
fn series_document(name: &str, points: &BTreeMap<i64, Aggregate>, open_now: i64, range: &StatsRange) -> StatsSeries {
    let (first, last) = range.points();
    let mut open = open_now - points.range(last + 1..).map(|(_, point)| point.open_change()).sum::<i64>();
    let mut documents = Vec::new();
    for number in (first..=last).rev() {
        let point = points.get(&number).cloned().unwrap_or_default();
        let at_ms = AggregateKey { level: range.level, number }.starts_ms();
        documents.push(point_document(at_ms, &point, open));
        open -= point.open_change();
    }
    documents.reverse();
    StatsSeries { task_type: name.to_owned(), points: documents }
}

fn point_document(at_ms: i64, point: &Aggregate, open: i64) -> StatsPoint {
    StatsPoint {
        at: time_text(at_ms),
        opened: point.opened,
        succeeded: point.succeeded,
        failed: point.failed,
        cancelled: point.cancelled,
        expired: point.expired,
        dropped: point.dropped,
        retried: point.retried,
        duplicates: point.duplicates,
        busy_ms: point.busy_ms,
        open: u64::try_from(open).unwrap_or(0),
        wait: durations(&point.wait),
        run: durations(&point.run),
    }
}

fn durations(histogram: &Histogram) -> Durations {
    let count = histogram.count();
    Durations {
        count,
        p50: histogram.percentile(50),
        p95: histogram.percentile(95),
        p99: histogram.percentile(99),
        max: (count > 0).then(|| histogram.max_ms()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_tasks_of_the_past_are_computed_backwards() {
        let point = |opened, succeeded, dropped| Aggregate { opened, succeeded, dropped, ..Aggregate::default() };
        let points = BTreeMap::from([(10, point(7, 2, 0)), (12, point(3, 4, 1)), (13, point(5, 0, 0))]);
        let level = Level::Minute;
        let range = StatsRange { series: None, from_ms: 10 * 60_000, to_ms: 13 * 60_000, level };
        let open: Vec<u64> =
            series_document("echo", &points, 8, &range).points.iter().map(|point| point.open).collect();
        assert_eq!(open, [5, 5, 3], "8 are open now, 5 of them opened after the range");
    }
}
