//! Statistics, errors and requests in Redis: commands of a batch, and reads.

use std::collections::BTreeMap;
use std::sync::Arc;

use ::redis::{Cmd, Pipeline, Value, cmd, pipe};
use kafleet_model::error_fingerprint::Fingerprint;
use kafleet_model::projection::audit::{AuditEntry, MAX_AUDIT};
use kafleet_model::projection::changes::Index;
use kafleet_model::statistics::StoredStatistics;
use kafleet_model::statistics::aggregate::{Aggregate, AggregateKey, Level};
use kafleet_model::statistics::errors::ErrorSummary;

use super::values::{read, read_checkpoint, read_entries};
use crate::keys::{self, Keys};
use crate::{
    Changes, Entry, ErrorGroup, ErrorGroups, ErrorLevel, MAX_PAGE, PartitionStatistics, StoreError, statistics,
    sum_counts,
};

/// Fields per HSET or HDEL.
const FIELDS_PER_COMMAND: usize = 1_000;

/// Returns the checkpoint, the overview, the counters, and the aggregates of each series. KEYS: those three, then the
/// series. ARGV: fields; the open minute is added to them.
const READ_AGGREGATES: &str = "
local overview=redis.call('GET',KEYS[2])
local minute=overview and string.match(overview,'\"minute\":(%d+)')
local fields={}
for i=1,#ARGV do fields[i]=ARGV[i] end
if minute then fields[#fields+1]='m'..minute end
local out={}
for i=4,#KEYS do
  out[#out+1]=#fields>0 and redis.call('HMGET',KEYS[i],unpack(fields)) or {}
end
return {redis.call('GET',KEYS[1]),overview,redis.call('HGETALL',KEYS[3]),out}";

/// Returns the number of errors of a type, and the most frequent ones with the number of recent tasks, and their first
/// and last task. KEYS: the errors. ARGV: prefix of the indexes of failed tasks, limit, start of the range.
const READ_ERROR_GROUPS: &str = "
local out={}
local page=redis.call('ZRANGE',KEYS[1],0,ARGV[2]-1,'REV','WITHSCORES')
for i=1,#page,2 do
  local key=ARGV[1]..page[i]
  out[#out+1]={page[i],page[i+1],redis.call('ZCOUNT',key,ARGV[3],'+inf'),
    redis.call('ZRANGE',key,0,0,'WITHSCORES'),redis.call('ZRANGE',key,-1,-1,'WITHSCORES')}
end
return {redis.call('ZCARD',KEYS[1]),out}";

/// Adds the commands of a batch.
pub(super) fn change(commands: &mut Pipeline, keys: &Keys, changes: &Changes) {
    let counted = &changes.statistics;
    if let Some(overview) = &counted.overview {
        commands.cmd("SET").arg(keys.statistics()).arg(overview.as_slice());
    }
    let aggregates = counted
        .aggregates
        .iter()
        .map(|(series, key, aggregate)| (keys.aggregates(series), key.to_string(), aggregate.as_deref()));
    change_hashes(commands, aggregates);
    let errors = counted
        .errors
        .iter()
        .map(|(name, hour, errors)| (keys.error_summaries(name), hour.to_string(), errors.as_deref()));
    change_hashes(commands, errors);
    for (task_type, error, change) in &changes.errors {
        for (level, error) in [(ErrorLevel::Message, *error), (ErrorLevel::Kind, error.kind())] {
            let key = keys.fingerprints(task_type, level);
            commands.cmd("ZINCRBY").arg(&key).arg(*change).arg(error.to_string());
            if *change < 0 {
                commands.cmd("ZREMRANGEBYSCORE").arg(&key).arg("-inf").arg(0);
            }
        }
    }
    if !changes.audit.is_empty() {
        let key = keys.audit();
        let newest = changes.audit.iter().rev().take(MAX_AUDIT).rev();
        commands.cmd("LPUSH").arg(&key).arg(newest.map(Vec::as_slice).collect::<Vec<_>>());
        commands.cmd("LTRIM").arg(&key).arg(0).arg(MAX_AUDIT - 1);
    }
}

/// Writes and removes fields of hashes. A later value of a field replaces an earlier one.
fn change_hashes<'a>(commands: &mut Pipeline, fields: impl Iterator<Item = (String, String, Option<&'a [u8]>)>) {
    let mut hashes: BTreeMap<String, BTreeMap<String, Option<&[u8]>>> = BTreeMap::new();
    for (key, field, value) in fields {
        hashes.entry(key).or_default().insert(field, value);
    }
    for (key, fields) in hashes {
        let (written, removed): (Vec<_>, Vec<_>) = fields.into_iter().partition(|(_, value)| value.is_some());
        for chunk in written.chunks(FIELDS_PER_COMMAND) {
            commands.cmd("HSET").arg(&key);
            for (field, value) in chunk {
                commands.arg(field).arg(*value);
            }
        }
        for chunk in removed.chunks(FIELDS_PER_COMMAND) {
            let names: Vec<&str> = chunk.iter().map(|(field, _)| field.as_str()).collect();
            commands.cmd("HDEL").arg(&key).arg(names);
        }
    }
}

/// Reads aggregates and counters.
pub(super) fn get_aggregates(keys: &Keys, series: &[Arc<str>], aggregates: &[AggregateKey]) -> Cmd {
    let mut script = cmd("EVAL");
    script.arg(READ_AGGREGATES).arg(3 + series.len()).arg(keys.checkpoint()).arg(keys.statistics()).arg(keys.counts());
    script.arg(series.iter().map(|series| keys.aggregates(series)).collect::<Vec<_>>());
    script.arg(aggregates.iter().map(AggregateKey::to_string).collect::<Vec<_>>());
    script
}

pub(super) fn read_aggregates(
    keys: &Keys,
    partition: u32,
    series: &[Arc<str>],
    aggregates: &[AggregateKey],
    answer: Value,
) -> Result<PartitionStatistics, StoreError> {
    type StatisticsReply = (Value, Option<Vec<u8>>, Vec<(String, i64)>, Vec<Vec<Option<Vec<u8>>>>);
    let (checkpoint, overview, counts, fields_found): StatisticsReply = read(&keys.statistics(), answer)?;
    let overview = overview.map(|bytes| statistics::overview(partition, &bytes)).transpose()?;
    let open = overview.as_ref().and_then(|overview| overview.minute);
    let open = open.map(|minute| AggregateKey::of_minute(Level::Minute, minute));
    let mut decoded = Vec::new();
    for (series, values) in series.iter().zip(fields_found) {
        // The open minute is the last field, even if it is requested by name.
        let names = aggregates.iter().copied().map(Some).chain([open.filter(|open| !aggregates.contains(open))]);
        for (key, bytes) in names.zip(values) {
            let (Some(key), Some(bytes)) = (key, bytes) else { continue };
            decoded.push((series.clone(), key, statistics::aggregate(partition, series, &bytes)?));
        }
    }
    let counters = counts.into_iter().filter_map(|(field, count)| Some((keys::parse_counter(&field)?, count)));
    Ok(PartitionStatistics {
        checkpoint: read_checkpoint(keys, checkpoint)?,
        overview,
        counts: sum_counts(counters)?,
        aggregates: decoded,
    })
}

/// Reads the aggregates that may still change. `overview`: the value of [`Keys::statistics`].
pub(super) fn get_open(
    keys: &Keys,
    partition: u32,
    overview: Value,
) -> Result<(StoredStatistics, Pipeline), StoreError> {
    let mut commands = pipe();
    let Some(bytes) = read::<Option<Vec<u8>>>(&keys.statistics(), overview)? else {
        return Ok((StoredStatistics::default(), commands));
    };
    let overview = statistics::overview(partition, &bytes)?;
    let names: Vec<String> = overview.open_aggregates().iter().map(AggregateKey::to_string).collect();
    for listed in overview.series.iter().filter(|_| !names.is_empty()) {
        commands.cmd("HMGET").arg(keys.aggregates(&listed.name)).arg(&names);
        commands.cmd("HGET").arg(keys.error_summaries(&listed.name)).arg(overview.open_hour());
    }
    Ok((StoredStatistics { overview: Some(overview), ..StoredStatistics::default() }, commands))
}

pub(super) fn read_open(
    keys: &Keys,
    partition: u32,
    stored: &mut StoredStatistics,
    answers: Vec<Value>,
) -> Result<(), StoreError> {
    let Some(overview) = &stored.overview else { return Ok(()) };
    let open = overview.open_aggregates();
    let mut answers = answers.into_iter();
    for listed in &overview.series {
        let name = &listed.name;
        let (Some(aggregates), Some(errors)) = (answers.next(), answers.next()) else { break };
        let aggregates: Vec<Option<Vec<u8>>> = read(&keys.aggregates(name), aggregates)?;
        for (key, bytes) in open.iter().zip(aggregates) {
            let aggregate: Option<Aggregate> =
                bytes.map(|bytes| statistics::aggregate(partition, name, &bytes)).transpose()?;
            stored.aggregates.extend(aggregate.map(|aggregate| (name.clone(), *key, aggregate)));
        }
        let errors: Option<Vec<u8>> = read(&keys.error_summaries(name), errors)?;
        let errors = errors.map(|bytes| statistics::errors(partition, name, &bytes)).transpose()?;
        stored.errors.extend(errors.map(|errors| (name.clone(), errors)));
    }
    Ok(())
}

pub(super) fn get_error_summaries(keys: &Keys, task_type: &str, hours: &[i64]) -> Cmd {
    let mut command = cmd("HMGET");
    command.arg(keys.error_summaries(task_type)).arg(hours);
    command
}

pub(super) fn read_error_summaries(
    keys: &Keys,
    partition: u32,
    task_type: &str,
    hours: &[i64],
    answer: Value,
) -> Result<Vec<(i64, ErrorSummary)>, StoreError> {
    let values: Vec<Option<Vec<u8>>> = read(&keys.error_summaries(task_type), answer)?;
    let values = hours.iter().zip(values).filter_map(|(hour, bytes)| Some((*hour, bytes?)));
    values.map(|(hour, bytes)| Ok((hour, statistics::errors(partition, task_type, &bytes)?))).collect()
}

pub(super) fn get_groups(keys: &Keys, task_type: &str, level: ErrorLevel, since_ms: i64, limit: usize) -> Cmd {
    // Any error: the key without its name.
    let mut prefix = keys.index(&Index::Failed { task_type: task_type.into(), error: Fingerprint(0) });
    prefix.truncate(prefix.len() - Fingerprint(0).to_string().len());
    let mut script = cmd("EVAL");
    script.arg(READ_ERROR_GROUPS).arg(1).arg(keys.fingerprints(task_type, level));
    script.arg(prefix).arg(limit.clamp(1, MAX_PAGE)).arg(since_ms);
    script
}

/// Error, number of its tasks, number of those in the range, and the first and the last of them.
type GroupAnswer = (String, f64, u64, Value, Value);

pub(super) fn read_groups(keys: &Keys, task_type: &str, answer: Value) -> Result<ErrorGroups, StoreError> {
    let key = keys.fingerprints(task_type, ErrorLevel::Message);
    let (total, values): (u64, Vec<GroupAnswer>) = read(&key, answer)?;
    let mut groups = Vec::new();
    for (name, count, recent, first, last) in values {
        let error: Fingerprint = name.parse().map_err(StoreError::Invalid)?;
        let (first, last): (Vec<Entry>, Vec<Entry>) = (read_entries(&key, first)?, read_entries(&key, last)?);
        if let (Some(first), Some(last)) = (first.into_iter().next(), last.into_iter().next()) {
            groups.push(ErrorGroup { error, count: count as u64, recent, first, last });
        }
    }
    Ok(ErrorGroups { groups, total })
}

pub(super) fn get_requests(keys: &Keys, limit: usize) -> Cmd {
    let mut command = cmd("LRANGE");
    command.arg(keys.audit()).arg(0).arg(limit.clamp(1, MAX_AUDIT) - 1);
    command
}

pub(super) fn read_requests(keys: &Keys, partition: u32, answer: Value) -> Result<Vec<AuditEntry>, StoreError> {
    let values: Vec<Vec<u8>> = read(&keys.audit(), answer)?;
    values.iter().map(|bytes| statistics::request(partition, bytes)).collect()
}
