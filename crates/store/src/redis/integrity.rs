//! Integrity checks of a partition in Redis, each in one script and so as of one checkpoint.

use ::redis::aio::MultiplexedConnection;
use ::redis::{Pipeline, Value, pipe};
use kafleet_model::projection::changes::{Changes, Entry, Index};
use kafleet_model::record::state::State;
use kafleet_model::task::id::TaskId;

use super::connection::Connector;
use super::values::{ANOTHER_STORE_HINT, read};
use super::writer::query_server;
use crate::integrity::{COMPARED_GROUPS, IndexedTask, IntegrityPage, SIZED, Sizes, is_open};
use crate::keys::Keys;
use crate::{StoreError, TaskRecord, decode};

/// Bytes of records after which a page accepts no further entry.
const PAGE_BYTES: usize = 256 << 10;
/// Entries per page.
const PAGE_ENTRIES: usize = 100;
/// Field of the sum of all counters.
const TASKS: &str = "tasks";
/// Field of the number of open tasks by the statistics.
const OPEN: &str = "open";
/// Field of the number of entries in all indexes of failed tasks.
const FAILED: &str = "failed";

/// KEYS: batch counts, counters, overview of the statistics, then the sized indexes. ARGV: common key prefix, number
/// of size fields, their names, the number of groups of failed tasks to compare, then the states: `i` if tasks are
/// indexed by it, `o` if they are open in it. Returns a list of problems.
const VERIFY_TOTALS: &str = "
local out={}
for i=1,#KEYS do
  if redis.call('PTTL',KEYS[i])>=0 then out[#out+1]='`'..KEYS[i]..'` has a TTL that kafleet has not set' end
end
local fields=tonumber(ARGV[2])
for i=1,fields do
  local noted=tonumber(redis.call('HGET',KEYS[1],ARGV[2+i]) or 0)
  local found=redis.call('ZCARD',KEYS[3+i])
  if noted~=found then out[#out+1]='`'..KEYS[3+i]..'` has '..found..' entries instead of '..noted end
end
local groups=tonumber(ARGV[3+fields])
local indexed,open={},{}
for i=4+fields,#ARGV,2 do
  indexed[ARGV[i]]=string.find(ARGV[i+1],'i')~=nil
  open[ARGV[i]]=string.find(ARGV[i+1],'o')~=nil
end
local counters,sum,pending,types=redis.call('HGETALL',KEYS[2]),0,0,{}
for i=1,#counters,2 do
  local name,count=counters[i],tonumber(counters[i+1])
  sum=sum+count
  local kind,state=name:match('^(.*)/([^/]*)$')
  if kind then types[kind]=true end
  if open[state] then pending=pending+count end
  if count<0 then out[#out+1]='the counter `'..name..'` is '..count
  elseif indexed[state] then
    local found=redis.call('ZCARD',ARGV[1]..'m:'..kind..':'..state)
    if found~=count then out[#out+1]='the index of `'..name..'` has '..found..' entries instead of '..count end
  end
end
local function noted(field) return tonumber(redis.call('HGET',KEYS[1],field) or 0) end
if noted('tasks')~=sum then out[#out+1]='the counters add up to '..sum..' tasks instead of '..noted('tasks') end
if noted('open')~=pending then
  out[#out+1]='the statistics count '..noted('open')..' open tasks, and the counters '..pending
end
for _,level in ipairs({'fingerprints:','kinds:'}) do
  local failed,complete=0,true
  for kind in pairs(types) do
    local key=ARGV[1]..level..kind
    local page=redis.call('ZRANGE',key,0,groups-1,'REV','WITHSCORES')
    complete=complete and redis.call('ZCARD',key)<=groups
    for i=1,#page,2 do
      local index,count=ARGV[1]..'failed:'..kind..':'..page[i],tonumber(page[i+1])
      local found=redis.call('ZCARD',index)
      failed=failed+count
      if found~=count then out[#out+1]='`'..index..'` has '..found..' entries instead of '..count end
    end
  end
  if complete and noted('failed')~=failed then
    out[#out+1]='the errors add up to '..failed..' failed tasks instead of '..noted('failed')
  end
end
local overview=redis.call('GET',KEYS[3])
for name in string.gmatch(overview or '','\"name\":\"([^\"]*)\"') do
  local ttl=redis.call('PTTL',ARGV[1]..'statistics:'..name)
  if ttl~=-1 then out[#out+1]='`'..ARGV[1]..'statistics:'..name..'` is missing or has a TTL that kafleet has not set' end
end
return out";

/// KEYS: the index, then the timer, effect and age indexes. ARGV: common key prefix, limits in entries and bytes, and
/// the entry to continue after.
const READ_RECORDS: &str = "
local base,limit,budget=ARGV[1],tonumber(ARGV[2]),tonumber(ARGV[3])
local first,member,score=0,ARGV[4],ARGV[5]
if score~='' then
  local rank=redis.call('ZRANK',KEYS[1],member)
  if rank and tonumber(redis.call('ZSCORE',KEYS[1],member))==tonumber(score) then first=rank+1
  else first=redis.call('ZCOUNT',KEYS[1],'-inf','('..score) end
end
local page=redis.call('ZRANGE',KEYS[1],first,first+limit-1,'WITHSCORES')
local out,spent={},0
for i=1,#page,2 do
  if spent>=budget then break end
  local id=page[i]
  local record=redis.call('GET',base..'t:'..id)
  if record then spent=spent+#record end
  out[#out+1]={id,page[i+1],record,redis.call('ZCARD',base..'c:'..id),redis.call('ZSCORE',KEYS[2],id),
    redis.call('ZSCORE',KEYS[3],id),redis.call('ZSCORE',KEYS[4],id),redis.call('EXISTS',base..'k:'..id),
    redis.call('EXISTS',base..'ln:'..id),redis.call('EXISTS',base..'a:'..id),redis.call('PTTL',base..'t:'..id)}
end
return {out,redis.call('ZCARD',KEYS[1])-first-#out}";

/// Adds a batch's changes in size to the expected sizes that [`totals`] compares; fields are named like the index
/// keys.
pub(super) fn add_sizes(commands: &mut Pipeline, keys: &Keys, changes: &Changes) {
    let sizes = Sizes::of(changes);
    let entries = SIZED.iter().map(|index| name_of(keys, index)).zip(sizes.entries);
    let sums = [(TASKS, sizes.tasks), (OPEN, sizes.open), (FAILED, sizes.failed)];
    let sums = sums.map(|(field, change)| (field.to_owned(), change));
    for (field, change) in entries.chain(sums).filter(|(_, change)| *change != 0) {
        commands.cmd("HINCRBY").arg(keys.batches()).arg(field).arg(change);
    }
}

/// Compares expected and actual sizes. Returns a description of any difference.
pub(super) async fn totals(
    connector: &Connector,
    connection: &mut MultiplexedConnection,
    keys: &Keys,
) -> Result<Option<String>, StoreError> {
    let mut commands = pipe();
    commands
        .cmd("EVAL")
        .arg(VERIFY_TOTALS)
        .arg(3 + SIZED.len())
        .arg(keys.batches())
        .arg(keys.counts())
        .arg(keys.statistics());
    commands.arg(SIZED.iter().map(|index| keys.index(index)).collect::<Vec<_>>());
    commands.arg(&keys.base).arg(SIZED.len());
    commands.arg(SIZED.iter().map(|index| name_of(keys, index)).collect::<Vec<_>>()).arg(COMPARED_GROUPS);
    for state in State::ALL {
        let flags = [(state.is_indexed(), 'i'), (is_open(state), 'o')];
        let flags: String = flags.into_iter().filter(|(is, _)| *is).map(|(_, flag)| flag).collect();
        commands.arg(state.name()).arg(flags);
    }
    let answer = query_server(connector, connection, &commands).await?.pop().unwrap_or_default();
    let problems: Vec<String> = read(&keys.all(), answer)?;
    Ok((!problems.is_empty()).then(|| problems.join(", ")))
}

/// Reads a page of an index with the keys that belong to its tasks.
pub(super) async fn records(
    connector: &Connector,
    connection: &mut MultiplexedConnection,
    (keys, partition): (&Keys, u32),
    index: &Index,
    after: Option<&Entry>,
    limit: usize,
) -> Result<IntegrityPage, StoreError> {
    let mut commands = pipe();
    let related = [Index::Timers, Index::Effects, Index::Ages];
    commands.cmd("EVAL").arg(READ_RECORDS).arg(1 + related.len()).arg(keys.index(index));
    commands.arg(related.iter().map(|index| keys.index(index)).collect::<Vec<_>>());
    commands.arg(&keys.base).arg(limit.clamp(1, PAGE_ENTRIES)).arg(PAGE_BYTES);
    match after {
        Some(entry) => commands.arg(entry.id.as_str()).arg(entry.seen_ms),
        None => commands.arg("").arg(""),
    };
    let answer = query_server(connector, connection, &commands).await?.pop().unwrap_or_default();
    let (values, rest): (Vec<Value>, i64) = read(&keys.all(), answer)?;
    let tasks = values.into_iter().map(|task| indexed_task(keys, partition, task));
    Ok(IntegrityPage { tasks: tasks.collect::<Result<_, _>>()?, more: rest > 0 })
}

fn indexed_task(keys: &Keys, partition: u32, task: Value) -> Result<IndexedTask, StoreError> {
    type TimerKind = Option<f64>;
    type IndexedReply = (String, f64, Option<Vec<u8>>, u64, TimerKind, TimerKind, TimerKind, bool, bool, bool, i64);
    let (member, score, record, children, timer, effect, age, has_deferred, has_log, has_attachments, ttl_ms): IndexedReply =
        read(&keys.all(), task)?;
    let unreadable =
        |_| StoreError::Invalid(format!("`{member}` in an index of partition {partition} is not a task id"));
    let id = TaskId::parse(&member).map_err(unreadable)?;
    let task_record: Option<TaskRecord> =
        record.map(|bytes| decode(partition, &id, &bytes, ANOTHER_STORE_HINT)).transpose()?;
    let due = |score: TimerKind| score.map(|score| score as i64);
    Ok(IndexedTask {
        entry: Entry { seen_ms: score as i64, id },
        task: task_record,
        children,
        timer: due(timer),
        effect: due(effect),
        age: due(age),
        has_deferred,
        has_log,
        has_attachments,
        expires: ttl_ms >= 0,
    })
}

/// Key of an index without the common prefix.
fn name_of(keys: &Keys, index: &Index) -> String {
    keys.index(index).split_off(keys.base.len())
}
