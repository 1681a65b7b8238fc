//! The writer of a partition: one connection that never reconnects by itself, because a WATCH lost by a silent reconnect
//! would let two owners write.
//!
//! A batch is one pipeline: `MULTI … EXEC`, then `WATCH fence` and `GET fence` for the next batch. The connection is
//! taken out of the writer for the time of a call and put back only when all went well; whatever else happens to the call
//! (an error, a deadline, being dropped half way) leaves the writer closed.

use std::collections::hash_map::Entry as Slot;
use std::sync::Arc;

use ::redis::aio::MultiplexedConnection;
use ::redis::{ErrorKind, Pipeline, RedisResult, ServerErrorKind, Value, cmd, pipe};
use async_trait::async_trait;
use rustc_hash::FxHashMap;

use super::connection::{Link, MAX_MOVES, circles, within};
use super::server_state::{Noted, Vitals};
use super::values::{fence_text, first_done, notice_text, read, read_done, read_fence, read_lifetimes, read_nodes};
use super::{audit, server_state, torn_writes};
use crate::model::retention::Lifetimes;
use crate::model::task::id::TaskId;
use crate::store::keys::{self, Keys};
use crate::store::log_tail::LogTail;
use crate::store::redis::torn_writes::Batches;
use crate::store::{
    AuditPage, Changes, Checkpoint, Entry, Index, Notice, PartitionWriter, StoreError, TaskRecord, closed_writer,
};

/// Records per MSET or MGET, members per ZADD or ZREM: no single command holds Redis for long.
const CHUNK: usize = 1_000;
/// Tasks whose log sizes are remembered between batches.
const MAX_TAILS: usize = 1_000;

pub(super) struct Writer {
    link: Arc<Link>,
    keys: Keys,
    partition: u32,
    /// None once closed.
    connection: Option<MultiplexedConnection>,
    /// As read at the last WATCH.
    fence: Option<Checkpoint>,
    /// Applied so far, by anybody.
    batches: u64,
    /// Sizes of the log lines kept of tasks that logged lately.
    tails: FxHashMap<TaskId, LogTail<()>>,
    /// Counters that the last batch brought to zero: they go with the next.
    zeroed: Vec<String>,
    /// A counter that the last batch brought below zero: what it had counted before is gone.
    negative: Option<String>,
    /// The server when the partition was opened.
    vitals: Vitals,
    /// Until the first batch, which notes the server: what is noted of others and of no interest any more.
    unnoted: Option<Vec<String>>,
}

impl Writer {
    pub(super) async fn open(link: Arc<Link>, partition: u32) -> Result<(Self, Option<Checkpoint>), StoreError> {
        let keys = Keys::new(&link.options.prefix, partition);
        let opened = watch_at_owner(&link, &keys).await;
        let (mut connection, numbers, answer) = opened.map_err(|error| link.explain(&error))?;
        let state = torn_writes::read(numbers).map_err(|error| link.explain(&error))?;
        let Batches::Whole(batches) = state else {
            tracing::warn!(partition, "emptying a partition, to be folded again");
            torn_writes::clear(&link, &keys, &mut connection).await.map_err(|error| link.explain(&error))?;
            return Err(match state {
                Batches::Torn => StoreError::Damaged("a part of a batch was applied".to_owned()),
                _ => link.unavailable(&format!("partition {partition} has lost keys and was emptied: it is folded again")),
            });
        };
        let fence = read_fence(&keys, answer)?;
        let vitals = Vitals::ask(&link, &mut connection).await?;
        vitals.check_policy(&link)?;
        let noted = Noted::ask(&link, &mut connection, &keys).await?;
        let (tails, unnoted, loss) = (FxHashMap::default(), Some(noted.outdated(&vitals)), noted.loss(fence, &vitals));
        let connection = Some(connection);
        let (zeroed, negative) = (Vec::new(), None);
        let mut writer = Self { link, keys, partition, connection, fence, batches, tails, zeroed, negative, vitals, unnoted };
        if let Some(loss) = loss {
            writer.condemn().await?;
            return Err(StoreError::Damaged(loss));
        }
        Ok((writer, fence))
    }

    /// The server may be written to, and has evicted nothing.
    async fn check_on(&mut self, connection: &mut MultiplexedConnection) -> Result<(), StoreError> {
        let now = Vitals::ask(&self.link, connection).await?;
        now.check_policy(&self.link)?;
        now.check_memory(&self.link, &self.keys, connection).await?;
        let loss = now.evicted_since(&self.vitals).filter(|_| self.fence.is_some());
        let Some(loss) = loss else { return Ok(()) };
        self.condemn_on(connection).await?;
        Err(StoreError::Damaged(loss))
    }

    async fn condemn_on(&mut self, connection: &mut MultiplexedConnection) -> Result<(), StoreError> {
        let mut commands = pipe();
        torn_writes::condemn(&mut commands, &self.keys);
        let answer = ask(&self.link, connection, &commands).await?.pop().unwrap_or_default();
        if answer == Value::Nil { Err(StoreError::Conflict { found: self.fence }) } else { Ok(()) }
    }

    async fn apply_on(
        &mut self,
        connection: &mut MultiplexedConnection,
        changes: &Changes,
        from: Option<Checkpoint>,
        to: Checkpoint,
    ) -> Result<(), StoreError> {
        if self.fence != from {
            return Err(StoreError::Conflict { found: self.fence });
        }
        self.load_tails(connection, changes).await?;
        let zeroed = std::mem::take(&mut self.zeroed);
        let batch = Batch::build(self, changes, &zeroed, to);
        let mut answers = send(&self.link, connection, &batch.commands).await?;
        let (found, watched) = (answers.pop().unwrap_or_default(), answers.pop().unwrap_or_default());
        let executed = match answers.pop().unwrap_or_default() {
            Value::Nil => false,
            Value::Array(done) => {
                self.finish(connection, done, &batch).await?;
                self.batches += 1;
                true
            }
            refused => return Err(self.refused(answers, refused)),
        };
        // Refused where the slot has gone elsewhere in between.
        let found = watched.extract_error().and_then(|_| found.extract_error()).map_err(|error| self.link.explain(&error))?;
        self.fence = read_fence(&self.keys, found)?;
        if let Some(counter) = self.negative.take() {
            self.condemn_on(connection).await?;
            return Err(StoreError::Damaged(format!("the counter `{counter}` has fallen below zero")));
        }
        if executed { Ok(()) } else { Err(StoreError::Conflict { found: self.fence }) }
    }

    /// The batch was executed: nothing in it may have failed, because Redis does not take back the rest.
    async fn finish(
        &mut self,
        connection: &mut MultiplexedConnection,
        done: Vec<Value>,
        batch: &Batch,
    ) -> Result<(), StoreError> {
        for (counter, value) in batch.counters.iter().zip(done.iter().skip(batch.first_counter)) {
            match value {
                Value::Int(0) => self.zeroed.push(counter.clone()),
                Value::Int(..0) => self.negative = Some(counter.clone()),
                _ => {}
            }
        }
        let Err(error) = done.into_iter().map(Value::extract_error).collect::<RedisResult<Vec<_>>>() else { return Ok(()) };
        // Only a key of another type gets here. Half of the batch is in: nobody may go on from this fence.
        let mut spoil = pipe();
        spoil.cmd("SET").arg(self.keys.fence()).arg("spoilt");
        send(&self.link, connection, &spoil).await?;
        Err(self.link.explain(&error))
    }

    /// EXEC was refused because a command before it was (no memory left, no right): nothing was changed.
    fn refused(&self, queued: Vec<Value>, exec: Value) -> StoreError {
        let errors = queued.into_iter().chain([exec]).map(Value::extract_error);
        match errors.filter_map(Result::err).next() {
            Some(error) => self.link.explain(&error),
            None => self.link.unavailable("an answer that makes no sense to EXEC"),
        }
    }

    /// Reads how long the logs are that this batch adds to.
    async fn load_tails(&mut self, connection: &mut MultiplexedConnection, changes: &Changes) -> Result<(), StoreError> {
        if self.tails.len() > MAX_TAILS {
            self.tails.clear();
        }
        let unknown: Vec<&TaskId> = changes.logs.iter().map(|(id, _)| id).filter(|id| !self.tails.contains_key(*id)).collect();
        // One by one: each log may hold as much as is kept of it.
        for id in unknown {
            if let Slot::Vacant(slot) = self.tails.entry(id.clone()) {
                let mut commands = pipe();
                commands.cmd("GET").arg(self.keys.log_total(id)).cmd("LRANGE").arg(self.keys.log(id)).arg(0).arg(-1);
                let answers = ask(&self.link, connection, &commands).await?;
                let (total, lines): (Option<u64>, Vec<Vec<u8>>) = read(&self.keys.log(id), Value::Array(answers))?;
                slot.insert(LogTail::found(lines.iter().map(|line| ((), line.len())), total.unwrap_or(0)));
            }
        }
        Ok(())
    }
}

#[async_trait]
impl PartitionWriter for Writer {
    async fn lifetimes(&mut self) -> Result<Option<Lifetimes>, StoreError> {
        let mut connection = self.connection.take().ok_or_else(closed_writer)?;
        let (key, mut commands) = (self.keys.lifetimes(), pipe());
        commands.cmd("GET").arg(&key);
        let found = ask(&self.link, &mut connection, &commands).await?.pop().unwrap_or_default();
        self.connection = Some(connection);
        read_lifetimes(&self.keys, found)
    }

    async fn done(&mut self, limit: usize) -> Result<Vec<Entry>, StoreError> {
        let mut connection = self.connection.take().ok_or_else(closed_writer)?;
        let (key, mut commands) = (self.keys.done_times(), pipe());
        commands.add_command(first_done(&key, i64::MIN, limit));
        let found = ask(&self.link, &mut connection, &commands).await?.pop().unwrap_or_default();
        self.connection = Some(connection);
        read_done(&key, found)
    }

    async fn nodes(&mut self, ids: &[TaskId]) -> Result<Vec<Option<TaskRecord>>, StoreError> {
        let mut connection = self.connection.take().ok_or_else(closed_writer)?;
        let mut nodes = Vec::with_capacity(ids.len());
        for ids in ids.chunks(CHUNK) {
            let answers = ask(&self.link, &mut connection, &get_records(&self.keys, ids)).await?;
            nodes.extend(read_nodes(&self.keys, self.partition, ids, answers)?);
        }
        self.connection = Some(connection);
        Ok(nodes)
    }

    async fn check(&mut self) -> Result<(), StoreError> {
        let mut connection = self.connection.take().ok_or_else(closed_writer)?;
        self.check_on(&mut connection).await?;
        self.connection = Some(connection);
        Ok(())
    }

    async fn sums(&mut self) -> Result<Option<String>, StoreError> {
        let mut connection = self.connection.take().ok_or_else(closed_writer)?;
        let fault = audit::totals(&self.link, &mut connection, &self.keys).await?;
        self.connection = Some(connection);
        Ok(fault)
    }

    async fn audit(&mut self, index: &Index, after: Option<&Entry>, limit: usize) -> Result<AuditPage, StoreError> {
        let mut connection = self.connection.take().ok_or_else(closed_writer)?;
        let place = (&self.keys, self.partition);
        let page = audit::records(&self.link, &mut connection, place, index, after, limit).await?;
        self.connection = Some(connection);
        Ok(page)
    }

    async fn condemn(&mut self) -> Result<(), StoreError> {
        let mut connection = self.connection.take().ok_or_else(closed_writer)?;
        self.condemn_on(&mut connection).await
    }

    async fn apply(&mut self, changes: &Changes, from: Option<Checkpoint>, to: Checkpoint) -> Result<(), StoreError> {
        let mut connection = self.connection.take().ok_or_else(closed_writer)?;
        self.apply_on(&mut connection, changes, from, to).await?;
        self.connection = Some(connection);
        Ok(())
    }
}

/// Sends commands and returns their answers, errors among them.
pub(super) async fn send(
    link: &Link,
    connection: &mut MultiplexedConnection,
    commands: &Pipeline,
) -> Result<Vec<Value>, StoreError> {
    let sent = within(link.options.response_timeout, connection.send_packed_commands(commands, 0, commands.len()));
    sent.await.map_err(|error| link.explain(&error))
}

/// The same for reads: an error among the answers is the answer.
pub(super) async fn ask(
    link: &Link,
    connection: &mut MultiplexedConnection,
    commands: &Pipeline,
) -> Result<Vec<Value>, StoreError> {
    let answers = send(link, connection, commands).await?;
    answers.into_iter().map(Value::extract_error).collect::<RedisResult<_>>().map_err(|error| link.explain(&error))
}

/// One MGET.
pub(super) fn get_records(keys: &Keys, ids: &[TaskId]) -> Pipeline {
    let mut commands = pipe();
    commands.cmd("MGET");
    for id in ids {
        commands.arg(keys.record(id));
    }
    commands
}

/// Connects to the node that holds the partition and watches its fence there. A cluster's other nodes name it.
/// With the answers to [`torn::ask`] and to GET of the fence.
pub(super) async fn watch_at_owner(link: &Link, keys: &Keys) -> RedisResult<(MultiplexedConnection, Value, Value)> {
    let (mut connection, mut info) = link.connect().await?;
    let mut commands = pipe();
    torn_writes::ask(&mut commands, keys);
    watch(&mut commands, keys);
    for _ in 0..MAX_MOVES {
        let sent = within(link.options.response_timeout, connection.send_packed_commands(&commands, 0, commands.len()));
        let answers: RedisResult<Vec<Value>> = sent.await?.into_iter().map(Value::extract_error).collect();
        match answers {
            Ok(mut answers) => {
                let fence = answers.pop().unwrap_or_default();
                return Ok((connection, answers.swap_remove(0), fence));
            }
            // Not while the slot is on its way: a batch needs all of its keys on one side.
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::Moved) && link.is_passing(&error) => {
                (connection, info) = link.open(link.redirected(&error, &info)?).await?;
            }
            Err(error) => return Err(error),
        }
    }
    Err(circles(&format!("`{}`", keys.fence())))
}

fn watch(commands: &mut Pipeline, keys: &Keys) {
    commands.cmd("WATCH").arg(keys.fence());
    commands.cmd("GET").arg(keys.fence());
}

/// The commands of one batch.
struct Batch {
    commands: Pipeline,
    /// The counters in the order of their HINCRBY.
    counters: Vec<String>,
    /// The place of the first of these among the transaction's commands.
    first_counter: usize,
}

impl Batch {
    fn build(writer: &mut Writer, changes: &Changes, zeroed: &[String], to: Checkpoint) -> Self {
        let keys = &writer.keys;
        let mut commands = pipe();
        commands.cmd("MULTI");
        torn_writes::begin(&mut commands, keys);
        let records = changes.nodes.iter().map(|(id, record)| (keys.record(id), record.as_slice()));
        set_many(&mut commands, records);
        let kept = changes.kept.iter().filter_map(|(id, kept)| Some((keys.kept(id), kept.as_deref()?)));
        set_many(&mut commands, kept);
        drop_kept(&mut commands, keys, changes);
        add_logs(&mut commands, keys, &mut writer.tails, changes);
        change_attachments(&mut commands, keys, changes);
        drop_gone(&mut commands, keys, &mut writer.tails, changes);
        if let Some(lifetimes) = &changes.lifetimes {
            commands.cmd("SET").arg(keys.lifetimes()).arg(serde_json::to_vec(lifetimes).unwrap_or_default());
        }
        change_indexes(&mut commands, keys, changes);
        change_done(&mut commands, keys, changes);
        if !zeroed.is_empty() {
            commands.cmd("HDEL").arg(keys.counts()).arg(zeroed);
        }
        // MULTI itself has no place in what EXEC answers.
        let first_counter = commands.len() - 1;
        let counters = change_counts(&mut commands, keys, changes);
        audit::note(&mut commands, keys, changes);
        if let Some(outdated) = writer.unnoted.take() {
            server_state::note(&mut commands, keys, &writer.vitals, &outdated);
        }
        torn_writes::end(&mut commands, keys, writer.batches + 1);
        commands.cmd("SET").arg(keys.fence()).arg(fence_text(to));
        if let Some(text) = notice_text(Notice::of(writer.partition, to, changes)) {
            commands.cmd("PUBLISH").arg(keys::notices(&writer.link.options.prefix)).arg(text);
        }
        commands.cmd("EXEC");
        watch(&mut commands, keys);
        Self { commands, counters, first_counter }
    }
}

fn set_many<'a>(commands: &mut Pipeline, pairs: impl Iterator<Item = (String, &'a [u8])>) {
    let mut command = cmd("MSET");
    let mut held = 0;
    for (key, value) in pairs {
        command.arg(key).arg(value);
        held += 1;
        if held == CHUNK {
            commands.add_command(std::mem::replace(&mut command, cmd("MSET")));
            held = 0;
        }
    }
    if held > 0 {
        commands.add_command(command);
    }
}

fn drop_kept(commands: &mut Pipeline, keys: &Keys, changes: &Changes) {
    let gone: Vec<String> = changes.kept.iter().filter(|(_, kept)| kept.is_none()).map(|(id, _)| keys.kept(id)).collect();
    for chunk in gone.chunks(CHUNK) {
        commands.cmd("DEL").arg(chunk);
    }
}

/// Records, their logs and attachments; the index of a record's children is empty by then, and so not there any more.
fn drop_gone(commands: &mut Pipeline, keys: &Keys, tails: &mut FxHashMap<TaskId, LogTail<()>>, changes: &Changes) {
    for chunk in changes.gone.chunks(CHUNK) {
        let of = |id: &TaskId| [keys.record(id), keys.log(id), keys.log_total(id), keys.attachments(id)];
        commands.cmd("DEL").arg(chunk.iter().flat_map(of).collect::<Vec<_>>());
        chunk.iter().for_each(|id| drop(tails.remove(id)));
    }
}

fn add_logs(commands: &mut Pipeline, keys: &Keys, tails: &mut FxHashMap<TaskId, LogTail<()>>, changes: &Changes) {
    for (id, lines) in changes.logs.iter().filter(|(_, lines)| !lines.is_empty()) {
        let tail = tails.entry(id.clone()).or_default();
        let would_hold = tail.len() + lines.len();
        lines.iter().for_each(|line| tail.push((), line.len()));
        let key = keys.log(id);
        commands.cmd("RPUSH").arg(&key).arg(lines);
        match tail.len() {
            0 => commands.cmd("DEL").arg(&key),
            kept if kept < would_hold => commands.cmd("LTRIM").arg(&key).arg(-(kept as i64)).arg(-1),
            _ => commands,
        };
        commands.cmd("SET").arg(keys.log_total(id)).arg(tail.total());
    }
}

fn change_attachments(commands: &mut Pipeline, keys: &Keys, changes: &Changes) {
    for (id, name, data) in &changes.attachments {
        let key = keys.attachments(id);
        match data {
            Some(data) => commands.cmd("HSET").arg(key).arg(name).arg(data.as_slice()),
            None => commands.cmd("HDEL").arg(key).arg(name),
        };
    }
}

fn change_indexes(commands: &mut Pipeline, keys: &Keys, changes: &Changes) {
    for (index, entries) in by_index(&changes.removed) {
        let key = keys.index(index);
        for chunk in entries.chunks(CHUNK) {
            let members: Vec<&str> = chunk.iter().map(|entry| entry.id.as_str()).collect();
            commands.cmd("ZREM").arg(&key).arg(members);
        }
    }
    for (index, entries) in by_index(&changes.added) {
        let key = keys.index(index);
        for chunk in entries.chunks(CHUNK) {
            let members: Vec<(i64, &str)> = chunk.iter().map(|entry| (entry.seen_ms, entry.id.as_str())).collect();
            commands.cmd("ZADD").arg(&key).arg(members);
        }
    }
}

/// Drops ids from the front of a list, and its time once it is empty.
const DONE_WITH: &str = "redis.call('LTRIM',KEYS[2],ARGV[1],-1)\n\
    if redis.call('EXISTS',KEYS[2]) == 0 then redis.call('ZREM',KEYS[1],ARGV[2]) end";

fn change_done(commands: &mut Pipeline, keys: &Keys, changes: &Changes) {
    let mut by_time: FxHashMap<i64, Vec<&str>> = FxHashMap::default();
    for entry in &changes.done {
        by_time.entry(entry.seen_ms).or_default().push(entry.id.as_str());
    }
    for (due_ms, ids) in by_time {
        commands.cmd("ZADD").arg(keys.done_times()).arg(due_ms).arg(due_ms);
        for chunk in ids.chunks(CHUNK) {
            commands.cmd("RPUSH").arg(keys.done(due_ms)).arg(chunk);
        }
    }
    if let Some((due_ms, count)) = changes.done_with {
        let (times, list) = (keys.done_times(), keys.done(due_ms));
        commands.cmd("EVAL").arg(DONE_WITH).arg(2).arg(times).arg(list).arg(count).arg(due_ms);
    }
}

fn by_index(entries: &[(Index, Entry)]) -> FxHashMap<&Index, Vec<&Entry>> {
    let mut grouped: FxHashMap<&Index, Vec<&Entry>> = FxHashMap::default();
    for (index, entry) in entries {
        grouped.entry(index).or_default().push(entry);
    }
    grouped
}

fn change_counts(commands: &mut Pipeline, keys: &Keys, changes: &Changes) -> Vec<String> {
    let counters = changes.counts.iter().map(|(task_type, state, change)| {
        let counter = keys::counter(task_type, *state);
        commands.cmd("HINCRBY").arg(keys.counts()).arg(&counter).arg(*change);
        counter
    });
    counters.collect()
}
