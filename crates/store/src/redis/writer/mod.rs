//! The writer of a partition: a connection that never reconnects by itself, because a silent reconnect would lose the
//! WATCH and let two owners write.
//!
//! A batch is one pipeline: `MULTI … EXEC`, then `WATCH checkpoint` and `GET checkpoint` for the next batch. A call
//! takes the connection out of the writer and puts it back only on success; an error, a deadline or a dropped call
//! leaves the writer closed.
//!
//! Invariant: each batch starts from a checkpoint that was read after its WATCH. A change by another writer is
//! therefore seen in that read, or makes `EXEC` execute nothing. Redis does not roll back: if a command of a batch
//! fails, the checkpoint is made unreadable, so that no writer continues from a part of a batch.
//!
//! Read next: `batch.rs` (the commands of a batch), `../torn_writes.rs` (batches that a crash of Redis has cut).

use std::collections::hash_map::Entry as Slot;
use std::sync::Arc;

use ::redis::aio::MultiplexedConnection;
use ::redis::{ErrorKind, Pipeline, RedisResult, ServerErrorKind, Value, pipe};
use async_trait::async_trait;
use kafleet_model::retention::Lifetimes;
use kafleet_model::statistics::StoredStatistics;
use kafleet_model::task::id::TaskId;
use kafleet_model::unique::KeyState;
use rustc_hash::FxHashMap;

use super::connection::{Connector, MAX_REDIRECTS, redirect_loop, within};
use super::server_state::{RecordedState, ServerState};
use super::values::{first_done, get_keys, read, read_checkpoint, read_done, read_keys, read_lifetimes, read_records};
use super::{integrity, statistics, torn_writes};
use crate::keys::Keys;
use crate::log_tail::LogTail;
use crate::redis::torn_writes::Batches;
use crate::{Changes, Checkpoint, Entry, Index, IntegrityPage, PartitionWriter, StoreError, TaskRecord, closed_writer};

mod batch;

use batch::WriteBatch;

/// Records per MSET or MGET, members per ZADD or ZREM, so that no single command blocks Redis for long.
const ITEMS_PER_COMMAND: usize = 1_000;
/// Tasks whose log sizes are cached between batches.
const MAX_TAILS: usize = 1_000;

pub(super) struct Writer {
    connector: Arc<Connector>,
    keys: Keys,
    partition: u32,
    /// `None` once closed.
    connection: Option<MultiplexedConnection>,
    /// Checkpoint read at the last WATCH.
    checkpoint: Option<Checkpoint>,
    /// Batches applied by all writers so far.
    batches: u64,
    /// Sizes of the retained log lines of recently logging tasks.
    tails: FxHashMap<TaskId, LogTail<()>>,
    /// Counters that the last batch set to zero; the next batch removes them.
    zeroed: Vec<String>,
    /// Counter that the last batch made negative, which means that its earlier value was lost.
    negative: Option<String>,
    /// Server state when the partition was opened.
    server: ServerState,
    /// Outdated server fields to remove; `Some` until the first batch, which records the server.
    outdated_fields: Option<Vec<String>>,
}

impl Writer {
    pub(super) async fn open(
        connector: Arc<Connector>,
        partition: u32,
    ) -> Result<(Self, Option<Checkpoint>), StoreError> {
        let keys = Keys::new(&connector.options.prefix, partition);
        let opened = watch_at_owner(&connector, &keys).await;
        let (mut connection, numbers, answer) = opened.map_err(|error| connector.explain(&error))?;
        let state = torn_writes::read(numbers).map_err(|error| connector.explain(&error))?;
        let batches = match state {
            Batches::Whole(batches) => batches,
            Batches::Damaged(reason) => {
                torn_writes::clear(&connector, &keys, &mut connection)
                    .await
                    .map_err(|error| connector.explain(&error))?;
                return Err(StoreError::Emptied(reason));
            }
        };
        let checkpoint = read_checkpoint(&keys, answer)?;
        let server = ServerState::read(&connector, &mut connection).await?;
        server.check_policy(&connector)?;
        let recorded = RecordedState::read(&connector, &mut connection, &keys).await?;
        let (tails, outdated_fields) = (FxHashMap::default(), Some(recorded.outdated(&server)));
        let loss = match recorded.loss(checkpoint, &server) {
            None if checkpoint.is_none() => {
                let remains = torn_writes::has_remains(&connector, &keys, &mut connection).await;
                remains.map_err(|error| connector.explain(&error))?.then(|| torn_writes::REMAINING_KEYS.to_owned())
            }
            loss => loss,
        };
        let connection = Some(connection);
        let (zeroed, negative) = (Vec::new(), None);
        let mut writer = Self {
            connector,
            keys,
            partition,
            connection,
            checkpoint,
            batches,
            tails,
            zeroed,
            negative,
            server,
            outdated_fields,
        };
        if let Some(loss) = loss {
            writer.mark_damaged(&loss).await?;
            return Err(StoreError::Damaged(loss));
        }
        Ok((writer, checkpoint))
    }

    /// Checks that the server is writable and has evicted nothing.
    async fn check_on(&mut self, connection: &mut MultiplexedConnection) -> Result<(), StoreError> {
        let now = ServerState::read(&self.connector, connection).await?;
        now.check_policy(&self.connector)?;
        now.check_memory(&self.connector, &self.keys, connection).await?;
        let loss = now.evicted_since(&self.server).filter(|_| self.checkpoint.is_some());
        let Some(loss) = loss else { return Ok(()) };
        self.mark_damaged_on(connection, &loss).await?;
        Err(StoreError::Damaged(loss))
    }

    async fn mark_damaged_on(
        &mut self,
        connection: &mut MultiplexedConnection,
        reason: &str,
    ) -> Result<(), StoreError> {
        let mut commands = pipe();
        torn_writes::mark_damaged(&mut commands, &self.keys, reason);
        let answer = query_server(&self.connector, connection, &commands).await?.pop().unwrap_or_default();
        if answer == Value::Nil { Err(StoreError::Conflict { stored: self.checkpoint }) } else { Ok(()) }
    }

    async fn apply_on(
        &mut self,
        connection: &mut MultiplexedConnection,
        changes: &Changes,
        from: Option<Checkpoint>,
        to: Checkpoint,
    ) -> Result<(), StoreError> {
        if self.checkpoint != from {
            return Err(StoreError::Conflict { stored: self.checkpoint });
        }
        self.load_tails(connection, changes).await?;
        let zeroed = std::mem::take(&mut self.zeroed);
        let batch = WriteBatch::build(self, changes, &zeroed, to)?;
        let mut answers = send(&self.connector, connection, &batch.commands).await?;
        let (answer, watched) = (answers.pop().unwrap_or_default(), answers.pop().unwrap_or_default());
        let executed = match answers.pop().unwrap_or_default() {
            Value::Nil => false,
            Value::Array(done) => {
                self.finish(connection, done, &batch).await?;
                self.batches += 1;
                true
            }
            refused => return Err(self.refused(answers, refused)),
        };
        // An error here means that the slot was migrated in between.
        let answer = watched
            .extract_error()
            .and_then(|_| answer.extract_error())
            .map_err(|error| self.connector.explain(&error))?;
        self.checkpoint = read_checkpoint(&self.keys, answer)?;
        if let Some(counter) = self.negative.take() {
            let loss = format!("the counter `{counter}` is negative");
            self.mark_damaged_on(connection, &loss).await?;
            return Err(StoreError::Damaged(loss));
        }
        if executed { Ok(()) } else { Err(StoreError::Conflict { stored: self.checkpoint }) }
    }

    /// Checks an executed batch: none of its commands may have failed, because Redis does not roll back the others.
    async fn finish(
        &mut self,
        connection: &mut MultiplexedConnection,
        done: Vec<Value>,
        batch: &WriteBatch,
    ) -> Result<(), StoreError> {
        for (counter, value) in batch.counters.iter().zip(done.iter().skip(batch.first_counter)) {
            match value {
                Value::Int(0) => self.zeroed.push(counter.clone()),
                Value::Int(..0) => self.negative = Some(counter.clone()),
                _ => {}
            }
        }
        let Err(error) = done.into_iter().map(Value::extract_error).collect::<RedisResult<Vec<_>>>() else {
            return Ok(());
        };
        // Only a key of another type causes a failure here. A part of the batch is applied, so no writer may continue
        // from this checkpoint.
        let mut spoil = pipe();
        spoil.cmd("SET").arg(self.keys.checkpoint()).arg("spoilt");
        send(&self.connector, connection, &spoil).await?;
        Err(self.connector.explain(&error))
    }

    /// Explains an EXEC that was rejected because of an earlier command (out of memory, no permission); nothing was
    /// changed.
    fn refused(&self, queued: Vec<Value>, exec: Value) -> StoreError {
        let errors = queued.into_iter().chain([exec]).map(Value::extract_error);
        match errors.filter_map(Result::err).next() {
            Some(error) => self.connector.explain(&error),
            None => self.connector.unavailable("unexpected answer to EXEC"),
        }
    }

    /// Loads the sizes of the logs that this batch appends to.
    async fn load_tails(
        &mut self,
        connection: &mut MultiplexedConnection,
        changes: &Changes,
    ) -> Result<(), StoreError> {
        if self.tails.len() > MAX_TAILS {
            self.tails.clear();
        }
        let unknown: Vec<&TaskId> =
            changes.logs.iter().map(|(id, _)| id).filter(|id| !self.tails.contains_key(*id)).collect();
        // Read one at a time, because each log may be of maximum size.
        for id in unknown {
            if let Slot::Vacant(slot) = self.tails.entry(id.clone()) {
                let mut commands = pipe();
                commands.cmd("GET").arg(self.keys.log_total(id)).cmd("LRANGE").arg(self.keys.log(id)).arg(0).arg(-1);
                let answers = query_server(&self.connector, connection, &commands).await?;
                let (total, lines): (Option<u64>, Vec<Vec<u8>>) = read(&self.keys.log(id), Value::Array(answers))?;
                slot.insert(LogTail::from_stored(lines.iter().map(|line| ((), line.len())), total.unwrap_or(0)));
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
        let answer = query_server(&self.connector, &mut connection, &commands).await?.pop().unwrap_or_default();
        self.connection = Some(connection);
        read_lifetimes(&self.keys, answer)
    }

    async fn statistics(&mut self) -> Result<StoredStatistics, StoreError> {
        let mut connection = self.connection.take().ok_or_else(closed_writer)?;
        let mut commands = pipe();
        commands.cmd("GET").arg(self.keys.statistics());
        let overview = query_server(&self.connector, &mut connection, &commands).await?.pop().unwrap_or_default();
        let (mut stored, commands) = statistics::get_open(&self.keys, self.partition, overview)?;
        if !commands.is_empty() {
            let answers = query_server(&self.connector, &mut connection, &commands).await?;
            statistics::read_open(&self.keys, self.partition, &mut stored, answers)?;
        }
        self.connection = Some(connection);
        Ok(stored)
    }

    async fn done(&mut self, limit: usize) -> Result<Vec<Entry>, StoreError> {
        let mut connection = self.connection.take().ok_or_else(closed_writer)?;
        let (key, mut commands) = (self.keys.done_times(), pipe());
        commands.add_command(first_done(&key, i64::MIN, limit));
        let answer = query_server(&self.connector, &mut connection, &commands).await?.pop().unwrap_or_default();
        self.connection = Some(connection);
        read_done(&key, answer)
    }

    async fn task_records(&mut self, ids: &[TaskId]) -> Result<Vec<Option<TaskRecord>>, StoreError> {
        let mut connection = self.connection.take().ok_or_else(closed_writer)?;
        let mut tasks = Vec::with_capacity(ids.len());
        for ids in ids.chunks(ITEMS_PER_COMMAND) {
            let answers = query_server(&self.connector, &mut connection, &get_records(&self.keys, ids)).await?;
            tasks.extend(read_records(&self.keys, self.partition, ids, answers)?);
        }
        self.connection = Some(connection);
        Ok(tasks)
    }

    async fn unique_keys(&mut self, tags: &[String]) -> Result<Vec<Option<KeyState>>, StoreError> {
        let mut connection = self.connection.take().ok_or_else(closed_writer)?;
        let mut states = Vec::with_capacity(tags.len());
        for tags in tags.chunks(ITEMS_PER_COMMAND) {
            let mut commands = pipe();
            commands.add_command(get_keys(&self.keys, tags));
            let answer = query_server(&self.connector, &mut connection, &commands).await?.pop().unwrap_or_default();
            states.extend(read_keys(&self.keys, self.partition, tags, answer)?);
        }
        self.connection = Some(connection);
        Ok(states)
    }

    async fn check(&mut self) -> Result<(), StoreError> {
        let mut connection = self.connection.take().ok_or_else(closed_writer)?;
        self.check_on(&mut connection).await?;
        self.connection = Some(connection);
        Ok(())
    }

    async fn verify_totals(&mut self) -> Result<Option<String>, StoreError> {
        let mut connection = self.connection.take().ok_or_else(closed_writer)?;
        let fault = integrity::totals(&self.connector, &mut connection, &self.keys).await?;
        self.connection = Some(connection);
        Ok(fault)
    }

    async fn indexed_tasks(
        &mut self,
        index: &Index,
        after: Option<&Entry>,
        limit: usize,
    ) -> Result<IntegrityPage, StoreError> {
        let mut connection = self.connection.take().ok_or_else(closed_writer)?;
        let partition = (&self.keys, self.partition);
        let page = integrity::records(&self.connector, &mut connection, partition, index, after, limit).await?;
        self.connection = Some(connection);
        Ok(page)
    }

    async fn mark_damaged(&mut self, reason: &str) -> Result<(), StoreError> {
        let mut connection = self.connection.take().ok_or_else(closed_writer)?;
        self.mark_damaged_on(&mut connection, reason).await
    }

    async fn apply(&mut self, changes: &Changes, from: Option<Checkpoint>, to: Checkpoint) -> Result<(), StoreError> {
        let mut connection = self.connection.take().ok_or_else(closed_writer)?;
        self.apply_on(&mut connection, changes, from, to).await?;
        self.connection = Some(connection);
        Ok(())
    }
}

/// Sends commands and returns their answers, including errors.
pub(super) async fn send(
    connector: &Connector,
    connection: &mut MultiplexedConnection,
    commands: &Pipeline,
) -> Result<Vec<Value>, StoreError> {
    let sent = within(connector.options.response_timeout, connection.send_packed_commands(commands, 0, commands.len()));
    sent.await.map_err(|error| connector.explain(&error))
}

/// Sends commands; an error among the answers fails the call.
pub(super) async fn query_server(
    connector: &Connector,
    connection: &mut MultiplexedConnection,
    commands: &Pipeline,
) -> Result<Vec<Value>, StoreError> {
    let answers = send(connector, connection, commands).await?;
    answers.into_iter().map(Value::extract_error).collect::<RedisResult<_>>().map_err(|error| connector.explain(&error))
}

/// Builds one MGET.
pub(super) fn get_records(keys: &Keys, ids: &[TaskId]) -> Pipeline {
    let mut commands = pipe();
    commands.cmd("MGET");
    for id in ids {
        commands.arg(keys.record(id));
    }
    commands
}

/// Connects to the node that owns the partition, following redirects, and watches its checkpoint there. Also returns
/// the answers to [`torn_writes::add_query`] and to GET of the checkpoint.
pub(super) async fn watch_at_owner(
    connector: &Connector,
    keys: &Keys,
) -> RedisResult<(MultiplexedConnection, Value, Value)> {
    let (mut connection, mut info) = connector.connect().await?;
    let mut commands = pipe();
    // Watched first: a batch between two reads would make them contradict each other.
    watch(&mut commands, keys);
    torn_writes::add_query(&mut commands, keys);
    for _ in 0..MAX_REDIRECTS {
        let sent =
            within(connector.options.response_timeout, connection.send_packed_commands(&commands, 0, commands.len()));
        let answers: RedisResult<Vec<Value>> = sent.await?.into_iter().map(Value::extract_error).collect();
        match answers {
            Ok(mut answers) => {
                let batches = answers.pop().unwrap_or_default();
                let checkpoint = answers.pop().unwrap_or_default();
                return Ok((connection, batches, checkpoint));
            }
            // ASK is not followed: a batch needs all of its keys on one node.
            Err(error)
                if error.kind() == ErrorKind::Server(ServerErrorKind::Moved) && connector.is_transient(&error) =>
            {
                (connection, info) = connector.open(connector.redirected(&error, &info)?).await?;
            }
            Err(error) => return Err(error),
        }
    }
    Err(redirect_loop(&format!("`{}`", keys.checkpoint())))
}

fn watch(commands: &mut Pipeline, keys: &Keys) {
    commands.cmd("WATCH").arg(keys.checkpoint());
    commands.cmd("GET").arg(keys.checkpoint());
}
