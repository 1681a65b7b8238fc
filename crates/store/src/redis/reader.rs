//! Reads over shared connections, which reconnect by themselves. A read never waits longer than its deadline.
//!
//! A single server, and a master behind sentinels, has one connection; in a cluster each node that holds partitions
//! has one (`cluster`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{ConnectionInfo, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout};

use super::connection::{Connector, within};
use super::url::Address;
use crate::StoreError;

const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(20);
const MAX_RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Interval of querying the sentinels for the master: a deposed master that they cannot reach keeps answering.
const MASTER_CHECK_INTERVAL: Duration = Duration::from_secs(5);

pub(super) struct Reader {
    pub(super) connector: Arc<Connector>,
    pub(super) pool: Arc<ConnectionPool>,
}

impl Reader {
    pub(super) fn new(connector: Arc<Connector>) -> Self {
        Self { connector, pool: Arc::default() }
    }

    /// Sends commands on keys of one partition and returns their answers. Retries transient failures, so the commands
    /// must be idempotent.
    pub(super) async fn query(&self, partition: u32, pipeline: &Pipeline) -> Result<Vec<Value>, StoreError> {
        let limit = self.connector.options.read_timeout;
        let mut last = None;
        match timeout(limit, self.query_with_retries(partition, pipeline, &mut last)).await {
            Ok(result) => result.map_err(|error| self.connector.explain(&error)),
            Err(_) => {
                let reason = last.map_or("no answer".to_owned(), |error| error.to_string());
                Err(self.connector.unavailable(&format!("{reason} (gave up after {limit:?})")))
            }
        }
    }

    async fn query_with_retries(
        &self,
        partition: u32,
        pipeline: &Pipeline,
        last: &mut Option<RedisError>,
    ) -> RedisResult<Vec<Value>> {
        let mut pause = MIN_RETRY_INTERVAL;
        loop {
            match self.attempt(partition, pipeline).await {
                Err(error) if self.connector.is_transient(&error) => *last = Some(error),
                result => return result,
            }
            tokio::time::sleep(pause).await;
            pause = MAX_RETRY_INTERVAL.min(pause * 2);
        }
    }

    async fn attempt(&self, partition: u32, pipeline: &Pipeline) -> RedisResult<Vec<Value>> {
        let answers = match &self.connector.address {
            Address::Cluster(_) => return self.query_owner(partition, pipeline).await,
            Address::One(_) => self.send(&self.pool.only(), pipeline).await?,
            Address::Sentinel(_) => {
                let line = self.pool.only();
                self.check_master(&line);
                self.send(&line, pipeline).await?
            }
        };
        answers.into_iter().map(Value::extract_error).collect()
    }

    /// Sends commands and returns their answers, including errors. Drops a connection that is no longer usable.
    pub(super) async fn send(&self, line: &Arc<SharedConnection>, pipeline: &Pipeline) -> RedisResult<Vec<Value>> {
        // Half of the deadline, which leaves time for another attempt after a dead connection.
        let limit = self.connector.options.read_timeout / 2;
        let sent = async {
            let mut connection = within(limit, line.connection(&self.connector)).await?;
            within(limit, connection.send_packed_commands(pipeline, 0, pipeline.len())).await
        };
        let answers = sent.await;
        let useless = match &answers {
            Err(error) => self.connector.is_transient(error),
            Ok(answers) => answers.iter().any(is_unavailable),
        };
        if useless {
            self.pool.forget(line);
        }
        answers
    }

    /// Queries the sentinels for the current master periodically, in the background.
    fn check_master(&self, line: &Arc<SharedConnection>) {
        if !line.is_master_check_due() {
            return;
        }
        let (connector, pool, line) = (self.connector.clone(), self.pool.clone(), line.clone());
        tokio::spawn(async move {
            let named = connector.named().await;
            let Some((_, connected)) = line.live.get() else { return };
            if named.is_ok_and(|master| master.addr() != connected.addr()) {
                tracing::warn!(deposed = %connected.addr(), "the sentinels name another master; reconnecting");
                pool.forget(&line);
            }
        });
    }
}

/// Returns true if this server does not serve its data any more and another may.
fn is_unavailable(answer: &Value) -> bool {
    use ServerErrorKind::{BusyLoading, ClusterDown, MasterDown, ReadOnly};
    let Value::ServerError(error) = answer else { return false };
    matches!(error.kind(), Some(BusyLoading | ClusterDown | MasterDown | ReadOnly))
}

/// A shared connection.
pub(super) struct SharedConnection {
    /// Target node; `None`: resolved from the address.
    to: Option<ConnectionInfo>,
    live: OnceCell<(MultiplexedConnection, ConnectionInfo)>,
    last_master_check: Mutex<Instant>,
}

impl SharedConnection {
    fn new(to: Option<ConnectionInfo>) -> Arc<Self> {
        Arc::new(Self { to, live: OnceCell::new(), last_master_check: Mutex::new(Instant::now()) })
    }

    /// Target node, if it is fixed.
    pub(super) fn node(&self) -> Option<&ConnectionInfo> {
        self.to.as_ref()
    }

    async fn connection(&self, connector: &Connector) -> RedisResult<MultiplexedConnection> {
        let opened = self.live.get_or_try_init(|| async {
            match &self.to {
                Some(info) => connector.open(info.clone()).await,
                None => connector.connect().await,
            }
        });
        Ok(opened.await?.0.clone())
    }

    fn is_master_check_due(&self) -> bool {
        let mut last_master_check = self.last_master_check.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last_master_check.elapsed() >= MASTER_CHECK_INTERVAL;
        if due {
            *last_master_check = Instant::now();
        }
        due
    }
}

/// Connections in use.
#[derive(Default)]
pub(super) struct ConnectionPool {
    state: Mutex<ConnectionPoolState>,
}

#[derive(Default)]
struct ConnectionPoolState {
    only: Option<Arc<SharedConnection>>,
    /// Connections of a cluster by node address.
    nodes: HashMap<String, Arc<SharedConnection>>,
    /// Node that last answered for a partition.
    owners: HashMap<u32, Arc<SharedConnection>>,
}

impl ConnectionPool {
    fn state(&self) -> std::sync::MutexGuard<'_, ConnectionPoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn only(&self) -> Arc<SharedConnection> {
        self.state().only.get_or_insert_with(|| SharedConnection::new(None)).clone()
    }

    /// Connection to this node of a cluster.
    pub(super) fn to(&self, node: ConnectionInfo) -> Arc<SharedConnection> {
        self.state().nodes.entry(node.addr().to_string()).or_insert_with(|| SharedConnection::new(Some(node))).clone()
    }

    pub(super) fn owner(&self, partition: u32) -> Option<Arc<SharedConnection>> {
        self.state().owners.get(&partition).cloned()
    }

    pub(super) fn owns(&self, line: &Arc<SharedConnection>, partition: u32) {
        let mut state = self.state();
        // A connection that was forgotten meanwhile is not restored.
        if state.nodes.values().any(|node| Arc::ptr_eq(node, line)) {
            state.owners.insert(partition, line.clone());
        }
    }

    /// Removes a connection; the next user opens a new one.
    fn forget(&self, line: &Arc<SharedConnection>) {
        let mut state = self.state();
        state.only.take_if(|only| Arc::ptr_eq(only, line));
        state.nodes.retain(|_, node| !Arc::ptr_eq(node, line));
        state.owners.retain(|_, owner| !Arc::ptr_eq(owner, line));
    }
}

/// Redirect of a cluster node.
pub(super) enum Redirect {
    /// MOVED: the slot belongs to another node.
    Moved(RedisError),
    /// ASK: the slot is being migrated, and this key is at the other node or does not exist.
    Ask(RedisError),
    /// TRYAGAIN: the slot is being migrated, and the keys of this command are on both nodes.
    TryAgain(RedisError),
}

impl Redirect {
    pub(super) fn of(answer: &Value) -> Option<Self> {
        let Value::ServerError(error) = answer else { return None };
        let error = RedisError::from(error.clone());
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::Moved) => Some(Self::Moved(error)),
            ErrorKind::Server(ServerErrorKind::Ask) => Some(Self::Ask(error)),
            ErrorKind::Server(ServerErrorKind::TryAgain) => Some(Self::TryAgain(error)),
            _ => None,
        }
    }
}
