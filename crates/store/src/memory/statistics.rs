//! Reads of the statistics in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use kafleet_model::error_fingerprint::Fingerprint;
use kafleet_model::projection::audit::AuditEntry;
use kafleet_model::projection::changes::Index;
use kafleet_model::statistics::StoredStatistics;
use kafleet_model::statistics::aggregate::{Aggregate, AggregateKey, Level};
use kafleet_model::statistics::errors::ErrorSummary;

use super::Partition;
use crate::{ErrorGroup, ErrorGroups, ErrorLevel, PartitionStatistics, StoreError, statistics, sum_counts};

impl Partition {
    fn aggregate(&self, partition: u32, series: &Arc<str>, key: AggregateKey) -> Result<Option<Aggregate>, StoreError> {
        let bytes = self.aggregates.get(&(series.clone(), key));
        bytes.map(|bytes| statistics::aggregate(partition, series, bytes)).transpose()
    }

    fn aggregates_of(
        &self,
        partition: u32,
        series: &[Arc<str>],
        keys: &[AggregateKey],
    ) -> Result<Vec<(Arc<str>, AggregateKey, Aggregate)>, StoreError> {
        let mut aggregates = Vec::new();
        for series in series {
            for key in keys {
                aggregates.extend(
                    self.aggregate(partition, series, *key)?.map(|aggregate| (series.clone(), *key, aggregate)),
                );
            }
        }
        Ok(aggregates)
    }

    pub(super) fn stored_statistics(&self, partition: u32) -> Result<StoredStatistics, StoreError> {
        let Some(bytes) = &self.overview else { return Ok(StoredStatistics::default()) };
        let overview = statistics::overview(partition, bytes)?;
        let names: Vec<Arc<str>> = overview.series.iter().map(|listed| listed.name.clone()).collect();
        let aggregates = self.aggregates_of(partition, &names, &overview.open_aggregates())?;
        let mut errors = Vec::new();
        for name in &names {
            let hour = overview.open_hour().unwrap_or_default();
            errors.extend(
                self.errors_of(partition, name, &[hour])?.into_iter().map(|(_, aggregate)| (name.clone(), aggregate)),
            );
        }
        Ok(StoredStatistics { overview: Some(overview), aggregates, errors })
    }

    pub(super) fn statistics(
        &self,
        partition: u32,
        series: &[Arc<str>],
        aggregates: &[AggregateKey],
    ) -> Result<PartitionStatistics, StoreError> {
        let overview = self.overview.as_ref().map(|bytes| statistics::overview(partition, bytes)).transpose()?;
        let open = overview.as_ref().and_then(|overview| overview.minute);
        let open =
            open.map(|minute| AggregateKey::of_minute(Level::Minute, minute)).filter(|open| !aggregates.contains(open));
        let keys: Vec<AggregateKey> = aggregates.iter().copied().chain(open).collect();
        Ok(PartitionStatistics {
            checkpoint: self.checkpoint,
            counts: sum_counts(self.counts.clone())?,
            aggregates: self.aggregates_of(partition, series, &keys)?,
            overview,
        })
    }

    pub(super) fn errors_of(
        &self,
        partition: u32,
        task_type: &str,
        hours: &[i64],
    ) -> Result<Vec<(i64, ErrorSummary)>, StoreError> {
        let name: Arc<str> = task_type.into();
        let summaries =
            hours.iter().filter_map(|hour| Some((*hour, self.error_summaries.get(&(name.clone(), *hour))?)));
        summaries.map(|(hour, bytes)| Ok((hour, statistics::errors(partition, task_type, bytes)?))).collect()
    }

    /// Numbers of failed tasks by error. Those of kinds are sums over their errors.
    pub(super) fn error_counts(&self, level: ErrorLevel) -> BTreeMap<(Arc<str>, Fingerprint), i64> {
        let mut counts = BTreeMap::new();
        for ((task_type, error), count) in &self.errors {
            let error = match level {
                ErrorLevel::Kind => error.kind(),
                ErrorLevel::Message => *error,
            };
            *counts.entry((task_type.clone(), error)).or_default() += count;
        }
        counts
    }

    pub(super) fn error_groups(&self, task_type: &str, level: ErrorLevel, since_ms: i64, limit: usize) -> ErrorGroups {
        let counts = self.error_counts(level).into_iter().filter(|((name, _), _)| **name == *task_type);
        let mut groups: Vec<ErrorGroup> = counts
            .filter_map(|((task_type, error), count)| {
                let entries = self.indexes.get(&Index::Failed { task_type, error })?;
                let (first, last) = (entries.first()?.clone(), entries.last()?.clone());
                let recent = entries.iter().rev().take_while(|entry| entry.seen_ms >= since_ms).count() as u64;
                Some(ErrorGroup { error, count: count.unsigned_abs(), recent, first, last })
            })
            .collect();
        let total = groups.len() as u64;
        groups.sort_by(|one, other| other.count.cmp(&one.count).then_with(|| other.error.cmp(&one.error)));
        groups.truncate(limit);
        ErrorGroups { groups, total }
    }

    pub(super) fn requests(&self, partition: u32, limit: usize) -> Result<Vec<AuditEntry>, StoreError> {
        self.requests.iter().take(limit).map(|bytes| statistics::request(partition, bytes)).collect()
    }
}
