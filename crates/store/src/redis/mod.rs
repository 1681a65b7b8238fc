//! The store in Redis: one server, a master behind sentinels, or a cluster.
//!
//! [`keys`](super::keys) lists all keys. Each writer has a connection of its own that never reconnects (`writer`);
//! reads share one that does (`reader`); change notices use a third (`notices`).

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::try_join_all;
use futures::stream::BoxStream;
use kafleet_config::RedisConfig;
use kafleet_model::projection::audit::AuditEntry;
use kafleet_model::statistics::aggregate::AggregateKey;
use kafleet_model::statistics::errors::ErrorSummary;
use kafleet_model::task::id::TaskId;
use kafleet_model::unique::KeyState;

use ::redis::{Cmd, Value, cmd, pipe};

use super::inspect::{Inspect, Inspector};
use super::keys::{self, Keys};
use super::log_tail::LogTail;
use super::{
    Checkpoint, Entry, Index, LogPage, MemoryUse, Notice, Outbox, PartitionWriter, Reservation, RiskySetting, Store,
    StoreError, TaskRecord, TypeCount,
};
use super::{ErrorGroups, ErrorLevel, PartitionStatistics};
use super::{LEASE_TTL, MAX_PAGE, RESERVATION_TTL, Stage};
use connection::Connector;
use page::{Pages, is_newest_first};
use reader::Reader;

pub use usage::Usage;

mod cluster;
#[doc(hidden)]
pub mod commands;
mod connection;
mod inspect;
mod integrity;
mod notices;
mod page;
mod reader;
mod server_checks;
mod server_settings;
mod server_state;
mod statistics;
mod torn_writes;
mod url;
mod usage;
mod values;
mod writer;

/// Sets or deletes a reservation if it has the expected value, or the new one from an attempt whose answer was lost.
const REPLACE_RESERVATION: &str = "local held = redis.call('GET', KEYS[1])
if held ~= ARGV[1] and held ~= (ARGV[2] or false) then return 0 end
if ARGV[2] then redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) else redis.call('DEL', KEYS[1]) end
return 1";

/// Records per MGET.
const RECORDS_PER_MGET: usize = 1_000;
/// Deferred records per MGET: each may be as large as params.
const DEFERRED_PER_MGET: usize = 16;
/// Reads the heads of two indexes and the checkpoint atomically.
const READ_OUTBOX: &str = "return {redis.call('GET',KEYS[1]),\
    redis.call('ZRANGE',KEYS[2],0,ARGV[1],'WITHSCORES'),redis.call('ZRANGE',KEYS[3],0,ARGV[1],'WITHSCORES')}";
/// Attempts at reading a value that changes while it is read.
const MAX_READ_ATTEMPTS: usize = 5;

/// Connection settings. `Debug` shows no secret.
#[derive(Clone)]
pub struct RedisOptions {
    /// `redis://[user:password@]host:port[/db]`, with `rediss` for TLS; `redis-cluster://host:port,host:port` (also
    /// `rediss-cluster`) for any nodes of a cluster; `redis-sentinel://host:port,host:port/master-name[/db]` (also
    /// `rediss-sentinel`), where user and password are the master's; `redis+unix:///path`.
    pub url: String,
    /// Overrides the user name in the URL.
    pub username: Option<String>,
    /// Overrides the password in the URL.
    pub password: Option<String>,
    /// Password of the sentinels.
    pub sentinel_password: Option<String>,
    /// Files (PEM) with the authorities of the server's certificate, and with the client's certificate and key.
    pub ca: Option<PathBuf>,
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// Prefix of all keys: `[A-Za-z0-9._:-]{1,64}`. Default `kafleet`.
    pub prefix: String,
    /// Deadline for opening a connection. Default 5 s.
    pub connect_timeout: Duration,
    /// Deadline for the answer to a batch. Default 10 s.
    pub response_timeout: Duration,
    /// Deadline for a read including all retries. Default 5 s.
    pub read_timeout: Duration,
    /// Lifetime of a reservation whose publish has ended. Default [`RESERVATION_TTL`].
    pub reservation_ttl: Duration,
    /// Lifetime of a reservation while its task is published, from the last renewal. Default [`LEASE_TTL`].
    pub lease_ttl: Duration,
}

impl From<&RedisConfig> for RedisOptions {
    fn from(config: &RedisConfig) -> Self {
        Self {
            username: config.username.clone(),
            password: config.password.clone(),
            sentinel_password: config.sentinel_password.clone(),
            ca: config.ca.clone(),
            certificate: config.certificate.clone(),
            key: config.key.clone(),
            response_timeout: config.response_timeout.into(),
            ..Self::new(&config.url)
        }
    }
}

impl RedisOptions {
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            username: None,
            password: None,
            sentinel_password: None,
            ca: None,
            certificate: None,
            key: None,
            prefix: "kafleet".into(),
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(10),
            read_timeout: Duration::from_secs(5),
            reservation_ttl: RESERVATION_TTL,
            lease_ttl: LEASE_TTL,
        }
    }

    fn ttl_ms(&self, reservation: &Reservation) -> u64 {
        let ttl =
            if matches!(reservation.stage, Stage::Publishing { .. }) { self.lease_ttl } else { self.reservation_ttl };
        ttl.as_millis() as u64
    }

    /// Replaces all passwords in the text with asterisks.
    fn hide(&self, text: &str) -> String {
        let in_url = url::Address::password(self);
        let secrets = [in_url.as_deref(), self.password.as_deref(), self.sentinel_password.as_deref()];
        let secrets = secrets.into_iter().flatten().filter(|secret| !secret.is_empty());
        secrets.fold(text.to_owned(), |text, secret| text.replace(secret, "***"))
    }
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("url", &self.hide(&url::without_credentials(&self.url)))
            .field("username", &self.username)
            .field("prefix", &self.prefix)
            .field("connect_timeout", &self.connect_timeout)
            .field("response_timeout", &self.response_timeout)
            .field("read_timeout", &self.read_timeout)
            .field("reservation_ttl", &self.reservation_ttl)
            .field("lease_ttl", &self.lease_ttl)
            .finish_non_exhaustive()
    }
}

/// Handle to the Redis store. Clones share the connection for reads.
#[derive(Clone)]
pub struct Redis {
    connector: Arc<Connector>,
    reader: Arc<Reader>,
}

impl Redis {
    /// Checks the options. Connects with the first call, so Redis may be down at start; see [`Store::check`].
    pub fn connect(options: RedisOptions) -> Result<Self, StoreError> {
        keys::check_prefix(&options.prefix)?;
        let connector = Arc::new(Connector::new(options)?);
        Ok(Self { reader: Arc::new(Reader::new(connector.clone())), connector })
    }

    /// The URL without credentials.
    pub fn display_url(&self) -> &str {
        &self.connector.display_url
    }

    fn keys(&self, partition: u32) -> Keys {
        Keys::new(&self.connector.options.prefix, partition)
    }

    /// Sends one command on keys of a partition.
    async fn query_partition(&self, partition: u32, command: &mut Cmd) -> Result<Value, StoreError> {
        let mut commands = pipe();
        commands.add_command(command.take());
        Ok(self.reader.query(partition, &commands).await?.pop().unwrap_or_default())
    }

    async fn checkpoint(&self, partition: u32) -> Result<Option<Checkpoint>, StoreError> {
        let keys = self.keys(partition);
        let answer = self.query_partition(partition, cmd("GET").arg(keys.checkpoint())).await?;
        values::read_checkpoint(&keys, answer)
    }

    async fn counters(&self, partition: u32) -> Result<Vec<(String, i64)>, StoreError> {
        let key = self.keys(partition).counts();
        let answer = self.query_partition(partition, cmd("HGETALL").arg(&key)).await?;
        values::read(&key, answer)
    }

    /// Reads the retained log lines of a task; `None` if a concurrent write changed them.
    async fn log(&self, partition: u32, id: &TaskId) -> Result<Option<LogTail<String>>, StoreError> {
        let keys = self.keys(partition);
        let mut commands = pipe();
        commands.cmd("GET").arg(keys.log_total(id));
        commands.cmd("LRANGE").arg(keys.log(id)).arg(0).arg(-1);
        commands.cmd("GET").arg(keys.log_total(id));
        let answers = Value::Array(self.reader.query(partition, &commands).await?);
        let (before, lines, after): (Option<u64>, Vec<Vec<u8>>, Option<u64>) = values::read(&keys.log(id), answers)?;
        let lines = lines.into_iter().map(|line| {
            let size = line.len();
            (String::from_utf8_lossy(&line).into_owned(), size)
        });
        Ok((before == after).then(|| LogTail::from_stored(lines, after.unwrap_or(0))))
    }
}

#[async_trait]
impl Store for Redis {
    async fn open(&self, partition: u32) -> Result<(Box<dyn PartitionWriter>, Option<Checkpoint>), StoreError> {
        let (writer, checkpoint) = writer::Writer::open(self.connector.clone(), partition).await?;
        Ok((Box::new(writer), checkpoint))
    }

    async fn task_records(&self, partition: u32, ids: &[TaskId]) -> Result<Vec<Option<TaskRecord>>, StoreError> {
        let keys = self.keys(partition);
        let mut tasks = Vec::with_capacity(ids.len());
        for ids in ids.chunks(RECORDS_PER_MGET) {
            let answers = self.reader.query(partition, &writer::get_records(&keys, ids)).await?;
            tasks.extend(values::read_records(&keys, partition, ids, answers)?);
        }
        Ok(tasks)
    }

    async fn task_records_with_checkpoint(
        &self,
        partition: u32,
        ids: &[TaskId],
    ) -> Result<(Option<Checkpoint>, Vec<Option<TaskRecord>>), StoreError> {
        let keys = self.keys(partition);
        let (first, rest) = ids.split_at(ids.len().min(RECORDS_PER_MGET));
        let mut command = cmd("MGET");
        command.arg(keys.checkpoint());
        for id in first {
            command.arg(keys.record(id));
        }
        let mut values: Vec<Value> = values::read(&keys.all(), self.query_partition(partition, &mut command).await?)?;
        let checkpoint = values::read_checkpoint(&keys, values.remove(0))?;
        let mut tasks = values::read_records(&keys, partition, first, vec![Value::Array(values)])?;
        tasks.extend(self.task_records(partition, rest).await?);
        Ok((checkpoint, tasks))
    }

    async fn checkpoints(&self, partitions: &[u32]) -> Result<Vec<Option<Checkpoint>>, StoreError> {
        try_join_all(partitions.iter().map(|&partition| self.checkpoint(partition))).await
    }

    async fn page(
        &self,
        partition: u32,
        index: &Index,
        after: Option<&Entry>,
        limit: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        let limit = limit.min(MAX_PAGE);
        if limit == 0 {
            return Ok(Vec::new());
        }
        let key = self.keys(partition).index(index);
        let pages = Pages { reader: &self.reader, partition, key, newest_first: is_newest_first(index) };
        match after {
            None => pages.first(limit).await,
            Some(after) => pages.after(after, limit).await,
        }
    }

    async fn done(&self, partition: u32, after_ms: i64, limit: usize) -> Result<Vec<Entry>, StoreError> {
        let key = self.keys(partition).done_times();
        let answer = self.query_partition(partition, &mut values::first_done(&key, after_ms, limit)).await?;
        values::read_done(&key, answer)
    }

    async fn outbox(&self, partition: u32, limit: usize) -> Result<Outbox, StoreError> {
        let keys = self.keys(partition);
        let (timers, effects) = (keys.index(&Index::Timers), keys.index(&Index::Effects));
        let last = limit.clamp(1, MAX_PAGE) - 1;
        let mut script = cmd("EVAL");
        script.arg(READ_OUTBOX).arg(3).arg(keys.checkpoint()).arg(&timers).arg(&effects).arg(last);
        let answer = self.query_partition(partition, &mut script).await?;
        let (checkpoint, due, todo): (Value, Value, Value) = values::read(&keys.all(), answer)?;
        Ok(Outbox {
            checkpoint: values::read_checkpoint(&keys, checkpoint)?,
            timers: values::read_entries(&timers, due)?,
            effects: values::read_entries(&effects, todo)?,
        })
    }

    async fn deferred(&self, partition: u32, ids: &[TaskId]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let keys = self.keys(partition);
        let chunks = ids.chunks(DEFERRED_PER_MGET).map(async |ids| {
            let mut command = cmd("MGET");
            for id in ids {
                command.arg(keys.deferred(id));
            }
            values::read::<Vec<Option<Vec<u8>>>>(&keys.all(), self.query_partition(partition, &mut command).await?)
        });
        Ok(try_join_all(chunks).await?.concat())
    }

    async fn unique_keys(&self, partition: u32, tags: &[String]) -> Result<Vec<Option<KeyState>>, StoreError> {
        let keys = self.keys(partition);
        let mut states = Vec::with_capacity(tags.len());
        for tags in tags.chunks(RECORDS_PER_MGET) {
            let answer = self.query_partition(partition, &mut values::get_keys(&keys, tags)).await?;
            states.extend(values::read_keys(&keys, partition, tags, answer)?);
        }
        Ok(states)
    }

    async fn counts(&self, partitions: &[u32]) -> Result<Vec<TypeCount>, StoreError> {
        let counters = try_join_all(partitions.iter().map(|&partition| self.counters(partition))).await?;
        let parsed = counters.into_iter().flatten().map(|(field, count)| match keys::parse_counter(&field) {
            Some(counter) => Ok((counter, count)),
            None => {
                Err(StoreError::Invalid(format!("`{field}` is not a valid counter name: another version wrote it")))
            }
        });
        super::sum_counts(parsed.collect::<Result<Vec<_>, _>>()?)
    }

    async fn statistics(
        &self,
        partition: u32,
        series: &[Arc<str>],
        aggregates: &[AggregateKey],
    ) -> Result<PartitionStatistics, StoreError> {
        let keys = self.keys(partition);
        let answer =
            self.query_partition(partition, &mut statistics::get_aggregates(&keys, series, aggregates)).await?;
        statistics::read_aggregates(&keys, partition, series, aggregates, answer)
    }

    async fn error_summaries(
        &self,
        partition: u32,
        task_type: &str,
        hours: &[i64],
    ) -> Result<Vec<(i64, ErrorSummary)>, StoreError> {
        if hours.is_empty() {
            return Ok(Vec::new());
        }
        let keys = self.keys(partition);
        let answer =
            self.query_partition(partition, &mut statistics::get_error_summaries(&keys, task_type, hours)).await?;
        statistics::read_error_summaries(&keys, partition, task_type, hours, answer)
    }

    async fn error_groups(
        &self,
        partition: u32,
        task_type: &str,
        level: ErrorLevel,
        since_ms: i64,
        limit: usize,
    ) -> Result<ErrorGroups, StoreError> {
        let keys = self.keys(partition);
        let mut script = statistics::get_groups(&keys, task_type, level, since_ms, limit);
        let answer = self.query_partition(partition, &mut script).await?;
        statistics::read_groups(&keys, task_type, answer)
    }

    async fn requests(&self, partition: u32, limit: usize) -> Result<Vec<AuditEntry>, StoreError> {
        let keys = self.keys(partition);
        let answer = self.query_partition(partition, &mut statistics::get_requests(&keys, limit)).await?;
        statistics::read_requests(&keys, partition, answer)
    }

    async fn log_lines(&self, partition: u32, id: &TaskId, from: u64, limit: usize) -> Result<LogPage, StoreError> {
        for _ in 0..MAX_READ_ATTEMPTS {
            if let Some(tail) = self.log(partition, id).await? {
                let (from, lines) = tail.page(from, limit);
                return Ok(LogPage { from, lines: lines.cloned().collect() });
            }
        }
        Err(StoreError::Unavailable(format!("the log of `{id}` grows faster than it can be read: try again")))
    }

    async fn attachment(&self, partition: u32, id: &TaskId, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let key = self.keys(partition).attachments(id);
        let mut command = cmd("HGET");
        command.arg(&key).arg(name);
        values::read(&key, self.query_partition(partition, &mut command).await?)
    }

    async fn reserve(
        &self,
        partition: u32,
        id: &TaskId,
        run: u32,
        reservation: &Reservation,
    ) -> Result<Option<Reservation>, StoreError> {
        let key = self.keys(partition).reservation(id, run);
        let ttl_ms = self.connector.options.ttl_ms(reservation);
        for _ in 0..MAX_READ_ATTEMPTS {
            let mut commands = pipe();
            commands.cmd("SET").arg(&key).arg(values::reservation_text(reservation)).arg("NX").arg("PX").arg(ttl_ms);
            commands.cmd("GET").arg(&key);
            let mut answers = self.reader.query(partition, &commands).await?;
            let held = answers.pop().unwrap_or_default();
            if answers.pop() == Some(Value::Okay) {
                return Ok(None);
            }
            // No value: the reservation expired between the two commands.
            if let Some(held) = values::read_reservation(&key, held)? {
                return Ok(Some(held));
            }
        }
        Err(StoreError::Unavailable(format!("the reservation of `{id}` changes faster than it can be read: try again")))
    }

    async fn replace_reservation(
        &self,
        partition: u32,
        id: &TaskId,
        run: u32,
        held: &Reservation,
        reservation: Option<&Reservation>,
    ) -> Result<bool, StoreError> {
        let key = self.keys(partition).reservation(id, run);
        let mut script = cmd("EVAL");
        script.arg(REPLACE_RESERVATION).arg(1).arg(&key).arg(values::reservation_text(held));
        if let Some(reservation) = reservation {
            script.arg(values::reservation_text(reservation)).arg(self.connector.options.ttl_ms(reservation));
        }
        let replaced: i64 = values::read(&key, self.query_partition(partition, &mut script).await?)?;
        Ok(replaced == 1)
    }

    async fn notices(&self) -> Result<BoxStream<'static, Notice>, StoreError> {
        Ok(notices::stream(self.connector.clone()))
    }

    async fn check(&self) -> Result<(), StoreError> {
        server_checks::check(&self.connector).await
    }

    async fn memory(&self) -> Result<Vec<MemoryUse>, StoreError> {
        server_checks::memory(&self.connector).await
    }

    async fn risky_settings(&self) -> Result<Vec<RiskySetting>, StoreError> {
        server_settings::risky_settings(&self.connector).await
    }

    async fn probe(&self, partitions: u32) -> Result<(), StoreError> {
        commands::probe(self, partitions).await
    }
}

#[async_trait]
impl Inspect for Redis {
    async fn inspect(&self, partition: u32) -> Result<Box<dyn Inspector>, StoreError> {
        Ok(Box::new(inspect::KeyScan::open(self.connector.clone(), partition).await?))
    }
}
