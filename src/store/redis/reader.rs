//! Reads over shared connections: they come back by themselves, and a read never waits longer than its deadline.
//!
//! One server, and a master behind sentinels, has one connection; in a cluster each node that holds partitions has one
//! (`cluster`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{ConnectionInfo, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout};

use super::connection::{Link, within};
use super::url::Address;
use crate::store::StoreError;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How often the sentinels are asked whether the master still is one: a deposed one that nobody can reach to tell it so goes
/// on answering.
const MASTER_LOOK: Duration = Duration::from_secs(5);

pub(super) struct Reader {
    pub(super) link: Arc<Link>,
    pub(super) lines: Arc<Lines>,
}

impl Reader {
    pub(super) fn new(link: Arc<Link>) -> Self {
        Self { link, lines: Arc::default() }
    }

    /// Sends commands on keys of one partition and returns their answers. Repeats what fails for a passing reason, so the
    /// commands must bear being sent twice.
    pub(super) async fn query(&self, partition: u32, pipeline: &Pipeline) -> Result<Vec<Value>, StoreError> {
        let limit = self.link.options.read_timeout;
        let mut last = None;
        match timeout(limit, self.persist(partition, pipeline, &mut last)).await {
            Ok(result) => result.map_err(|error| self.link.explain(&error)),
            Err(_) => {
                let why = last.map_or("no answer".to_owned(), |error| error.to_string());
                Err(self.link.unavailable(&format!("{why} (gave up after {limit:?})")))
            }
        }
    }

    async fn persist(&self, partition: u32, pipeline: &Pipeline, last: &mut Option<RedisError>) -> RedisResult<Vec<Value>> {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.attempt(partition, pipeline).await {
                Err(error) if self.link.is_passing(&error) => *last = Some(error),
                result => return result,
            }
            tokio::time::sleep(pause).await;
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }

    async fn attempt(&self, partition: u32, pipeline: &Pipeline) -> RedisResult<Vec<Value>> {
        let answers = match &self.link.address {
            Address::Cluster(_) => return self.ask_owner(partition, pipeline).await,
            Address::One(_) => self.send(&self.lines.only(), pipeline).await?,
            Address::Sentinel(_) => {
                let line = self.lines.only();
                self.look_at_master(&line);
                self.send(&line, pipeline).await?
            }
        };
        answers.into_iter().map(Value::extract_error).collect()
    }

    /// Sends commands and returns their answers, errors among them. A line that is of no use any more is forgotten.
    pub(super) async fn send(&self, line: &Arc<Line>, pipeline: &Pipeline) -> RedisResult<Vec<Value>> {
        // Half of the deadline, so that a dead connection leaves time for another.
        let limit = self.link.options.read_timeout / 2;
        let sent = async {
            let mut connection = within(limit, line.connection(&self.link)).await?;
            within(limit, connection.send_packed_commands(pipeline, 0, pipeline.len())).await
        };
        let answers = sent.await;
        let useless = match &answers {
            Err(error) => self.link.is_passing(error),
            Ok(answers) => answers.iter().any(is_of_no_use),
        };
        if useless {
            self.lines.forget(line);
        }
        answers
    }

    /// Asks the sentinels for the master from time to time, while reads go on.
    fn look_at_master(&self, line: &Arc<Line>) {
        if !line.is_look_due() {
            return;
        }
        let (link, lines, line) = (self.link.clone(), self.lines.clone(), line.clone());
        tokio::spawn(async move {
            let named = link.named().await;
            let Some((_, own)) = line.live.get() else { return };
            if named.is_ok_and(|master| master.addr() != own.addr()) {
                tracing::warn!(deposed = %own.addr(), "the sentinels have named another master");
                lines.forget(&line);
            }
        });
    }
}

/// This server does not serve, or not any more what it served: another may.
fn is_of_no_use(answer: &Value) -> bool {
    use ServerErrorKind::{BusyLoading, ClusterDown, MasterDown, ReadOnly};
    let Value::ServerError(error) = answer else { return false };
    matches!(error.kind(), Some(BusyLoading | ClusterDown | MasterDown | ReadOnly))
}

/// A connection that many share.
pub(super) struct Line {
    /// The node it goes to; None: wherever the address leads.
    to: Option<ConnectionInfo>,
    live: OnceCell<(MultiplexedConnection, ConnectionInfo)>,
    looked: Mutex<Instant>,
}

impl Line {
    fn new(to: Option<ConnectionInfo>) -> Arc<Self> {
        Arc::new(Self { to, live: OnceCell::new(), looked: Mutex::new(Instant::now()) })
    }

    /// Where it goes to, once it is known.
    pub(super) fn place(&self) -> Option<&ConnectionInfo> {
        self.to.as_ref()
    }

    async fn connection(&self, link: &Link) -> RedisResult<MultiplexedConnection> {
        let opened = self.live.get_or_try_init(|| async {
            match &self.to {
                Some(info) => link.open(info.clone()).await,
                None => link.connect().await,
            }
        });
        Ok(opened.await?.0.clone())
    }

    fn is_look_due(&self) -> bool {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        let due = looked.elapsed() >= MASTER_LOOK;
        if due {
            *looked = Instant::now();
        }
        due
    }
}

/// The lines in use.
#[derive(Default)]
pub(super) struct Lines {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    only: Option<Arc<Line>>,
    /// Of a cluster, by address.
    nodes: HashMap<String, Arc<Line>>,
    /// Which node has last answered for a partition.
    owners: HashMap<u32, Arc<Line>>,
}

impl Lines {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn only(&self) -> Arc<Line> {
        self.state().only.get_or_insert_with(|| Line::new(None)).clone()
    }

    /// To this node of a cluster.
    pub(super) fn to(&self, node: ConnectionInfo) -> Arc<Line> {
        self.state().nodes.entry(node.addr().to_string()).or_insert_with(|| Line::new(Some(node))).clone()
    }

    pub(super) fn owner(&self, partition: u32) -> Option<Arc<Line>> {
        self.state().owners.get(&partition).cloned()
    }

    pub(super) fn owns(&self, line: &Arc<Line>, partition: u32) {
        let mut state = self.state();
        // One that was forgotten meanwhile stays so.
        if state.nodes.values().any(|node| Arc::ptr_eq(node, line)) {
            state.owners.insert(partition, line.clone());
        }
    }

    /// Whoever needs it next opens another.
    fn forget(&self, line: &Arc<Line>) {
        let mut state = self.state();
        state.only.take_if(|only| Arc::ptr_eq(only, line));
        state.nodes.retain(|_, node| !Arc::ptr_eq(node, line));
        state.owners.retain(|_, owner| !Arc::ptr_eq(owner, line));
    }
}

/// Where a cluster's node sends us on to.
pub(super) enum Elsewhere {
    /// The slot lies there.
    Moved(RedisError),
    /// The slot is on its way there, and this key has gone or is new.
    Asked(RedisError),
    /// The slot is on its way, and the keys of this command lie on both sides.
    Split(RedisError),
}

impl Elsewhere {
    pub(super) fn of(answer: &Value) -> Option<Self> {
        let Value::ServerError(error) = answer else { return None };
        let error = RedisError::from(error.clone());
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::Moved) => Some(Self::Moved(error)),
            ErrorKind::Server(ServerErrorKind::Ask) => Some(Self::Asked(error)),
            ErrorKind::Server(ServerErrorKind::TryAgain) => Some(Self::Split(error)),
            _ => None,
        }
    }
}
