//! The shared connection for reads: it comes back by itself, and a read never waits longer than its deadline.

use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::{ConnectionLike, MultiplexedConnection};
use ::redis::cluster::ClusterClientBuilder;
use ::redis::cluster_async::ClusterConnection;
use ::redis::{Pipeline, RedisError, RedisResult, Value};
use futures::FutureExt;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::address::{Address, tcp_settings};
use super::link::{Link, within};
use crate::store::StoreError;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

pub(super) struct Reader {
    link: Arc<Link>,
    live: Mutex<Live>,
}

#[derive(Default)]
struct Live {
    connection: Option<Connection>,
    /// Which connection this is, so that only whoever used it drops it.
    generation: u64,
}

#[derive(Clone)]
enum Connection {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Connection {
    async fn send(&mut self, pipeline: &Pipeline) -> RedisResult<Vec<Value>> {
        let values = match self {
            Self::One(connection) => connection.req_packed_commands(pipeline, 0, pipeline.len()).await?,
            Self::Cluster(connection) => connection.req_packed_commands(pipeline, 0, pipeline.len()).await?,
        };
        values.into_iter().map(Value::extract_error).collect()
    }
}

impl Reader {
    pub(super) fn new(link: Arc<Link>) -> Self {
        Self { link, live: Mutex::default() }
    }

    /// Sends commands on keys of one partition and returns their answers. Repeats what fails for a passing reason, so the
    /// commands must bear being sent twice.
    pub(super) async fn query(&self, pipeline: &Pipeline) -> Result<Vec<Value>, StoreError> {
        let limit = self.link.options.read_timeout;
        let mut last = None;
        match timeout(limit, self.persist(pipeline, &mut last)).await {
            Ok(result) => result.map_err(|error| self.link.explain(&error)),
            Err(_) => {
                let why = last.map_or("no answer".to_owned(), |error| error.to_string());
                Err(self.link.unavailable(&format!("{why} (gave up after {limit:?})")))
            }
        }
    }

    async fn persist(&self, pipeline: &Pipeline, last: &mut Option<RedisError>) -> RedisResult<Vec<Value>> {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.attempt(pipeline).await {
                Err(error) if self.link.is_passing(&error) => *last = Some(error),
                result => return result,
            }
            tokio::time::sleep(pause).await;
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }

    async fn attempt(&self, pipeline: &Pipeline) -> RedisResult<Vec<Value>> {
        // Half of the deadline, so that a dead connection leaves time for another.
        let limit = self.link.options.read_timeout / 2;
        let (mut connection, generation) = within(limit, self.connection()).await?;
        let result = within(limit, connection.send(pipeline)).await;
        if result.as_ref().is_err_and(|error| self.link.is_passing(error)) {
            self.forget(generation).await;
        }
        result
    }

    async fn connection(&self) -> RedisResult<(Connection, u64)> {
        let mut live = self.live.lock().await;
        if let Some(connection) = &live.connection {
            return Ok((connection.clone(), live.generation));
        }
        // Boxed, because a connection's future has types nested too deeply for the compiler.
        let connection = self.connect().boxed().await?;
        live.generation += 1;
        live.connection = Some(connection.clone());
        Ok((connection, live.generation))
    }

    async fn forget(&self, generation: u64) {
        let mut live = self.live.lock().await;
        if live.generation == generation {
            live.connection = None;
        }
    }

    async fn connect(&self) -> RedisResult<Connection> {
        let Address::Cluster(nodes) = &self.link.address else {
            return Ok(Connection::One(self.link.connect().await?.0));
        };
        let options = &self.link.options;
        let client = ClusterClientBuilder::new(nodes.iter().cloned())
            .connection_timeout(options.connect_timeout)
            .response_timeout(options.read_timeout)
            .tcp_settings(tcp_settings())
            .build()?;
        Ok(Connection::Cluster(client.get_async_connection().await?))
    }
}
