//! How to reach Redis, and what its errors mean to a person.

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ::redis::aio::{MultiplexedConnection, PubSub};
use ::redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, RedisResult, ServerErrorKind,
};

use futures::FutureExt;

use super::RedisOptions;
use super::url::{Address, without_credentials};
use crate::store::StoreError;

/// How often a cluster may send us on to another node before it counts as going round in circles.
pub(super) const MAX_MOVES: usize = 5;
/// What to do about a server that is full.
const MORE_MEMORY: &str = "raise its `maxmemory`, keep finished trees for a shorter time (`record_retention`), or give it more servers; \
     nothing is lost, and trackers go on by themselves";

pub(super) struct Link {
    pub(super) address: Address,
    pub(super) options: RedisOptions,
    /// The URL as it may be shown.
    pub(super) place: String,
    /// Whose turn it is among a cluster's nodes.
    turn: AtomicUsize,
}

impl Link {
    pub(super) fn new(options: RedisOptions) -> Result<Self, StoreError> {
        let address = Address::parse(&options)?;
        let place = options.hide(&without_credentials(&options.url));
        Ok(Self { address, options, place, turn: AtomicUsize::new(0) })
    }

    /// A client of the one server, of the master that the sentinels name, or of some node of the cluster.
    async fn client(&self) -> RedisResult<Client> {
        match &self.address {
            Address::One(info) => Client::open(info.as_ref().clone()),
            Address::Cluster(_) => Client::open(self.node()?),
            Address::Sentinel(sentinels) => sentinels.lock().await.async_get_client().await,
        }
    }

    /// One of the nodes that the URL names, in turn.
    pub(super) fn node(&self) -> RedisResult<ConnectionInfo> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        match &self.address {
            Address::One(info) => Ok(info.as_ref().clone()),
            Address::Cluster(nodes) if !nodes.is_empty() => Ok(nodes[turn % nodes.len()].clone()),
            _ => Err((ErrorKind::InvalidClientConfig, "the address names no node").into()),
        }
    }

    /// The server that the address leads to now.
    pub(super) async fn named(&self) -> RedisResult<ConnectionInfo> {
        let client = within(self.options.connect_timeout, self.client().boxed()).await?;
        Ok(client.get_connection_info().clone())
    }

    /// A connection that never reconnects by itself. To any node, in a cluster; with the node's address.
    pub(super) async fn connect(&self) -> RedisResult<(MultiplexedConnection, ConnectionInfo)> {
        let work = async {
            let client = self.client().await?;
            let info = client.get_connection_info().clone();
            Ok((client.get_multiplexed_async_connection_with_config(&self.config()).await?, info))
        };
        within(self.options.connect_timeout, work.boxed()).await
    }

    /// The node that an answer of `near` names. A node that names no host means its own.
    pub(super) fn redirected(&self, answer: &RedisError, near: &ConnectionInfo) -> RedisResult<ConnectionInfo> {
        let named = answer.redirect_node().and_then(|(node, _)| node.rsplit_once(':'));
        match named.and_then(|(host, port)| Some((host, port.parse().ok()?))) {
            Some((host, port)) => Ok(near.clone().set_addr(moved(near.addr(), host, port))),
            None => Err(answer.clone()),
        }
    }

    /// The same to a node that `near` has named.
    pub(super) async fn connect_to(
        &self,
        host: &str,
        port: u16,
        near: &ConnectionInfo,
    ) -> RedisResult<(MultiplexedConnection, ConnectionInfo)> {
        self.open(near.clone().set_addr(moved(near.addr(), host, port))).await
    }

    /// The same to this node.
    pub(super) async fn open(&self, info: ConnectionInfo) -> RedisResult<(MultiplexedConnection, ConnectionInfo)> {
        let client = Client::open(info.clone())?;
        let config = self.config();
        let work = client.get_multiplexed_async_connection_with_config(&config);
        let connection = within(self.options.connect_timeout, work.boxed()).await?;
        Ok((connection, info))
    }

    pub(super) async fn pubsub(&self) -> RedisResult<PubSub> {
        within(self.options.connect_timeout, async { self.client().await?.get_async_pubsub().await }.boxed()).await
    }

    fn config(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.options.connect_timeout))
            .set_response_timeout(Some(self.options.response_timeout))
    }

    /// May the same succeed a little later?
    pub(super) fn is_passing(&self, error: &RedisError) -> bool {
        use ServerErrorKind::{Ask, BusyLoading, ClusterDown, MasterDown, Moved, ReadOnly, TryAgain};
        match error.kind() {
            ErrorKind::Io | ErrorKind::MasterNameNotFoundBySentinel => true,
            ErrorKind::Server(BusyLoading | ClusterDown | MasterDown | ReadOnly | TryAgain) => true,
            ErrorKind::Server(Ask | Moved) => matches!(self.address, Address::Cluster(_)),
            _ => error.is_connection_dropped() || error.is_timeout(),
        }
    }

    pub(super) fn explain(&self, error: &RedisError) -> StoreError {
        let text = self.options.hide(&error.to_string());
        let place = &self.place;
        if is_refused(error) {
            return StoreError::Misconfigured(format!(
                "redis at `{place}` refuses the user: {text}\n\nhint: check user name, password and the user's rights"
            ));
        }
        if is_out_of_memory(error) {
            return self.unavailable(&format!("it is out of memory and refuses every write ({text})\n\nhint: {MORE_MEMORY}"));
        }
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::Ask | ServerErrorKind::TryAgain) if self.is_passing(error) => {
                self.unavailable(&format!("its slot is being moved to another node; it goes on when that is done ({text})"))
            }
            ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::CrossSlot) if !self.is_passing(error) => {
                StoreError::Misconfigured(format!(
                    "redis at `{place}` is part of a cluster\n\nhint: write the URL as redis-cluster://host:port"
                ))
            }
            ErrorKind::InvalidClientConfig => StoreError::Misconfigured(format!("redis at `{place}`: {text}")),
            _ if error.code() == Some("WRONGTYPE") => {
                StoreError::Invalid(format!("redis at `{place}` holds something else: {text}"))
            }
            _ => self.unavailable(&text),
        }
    }

    pub(super) fn unavailable(&self, why: &str) -> StoreError {
        StoreError::Unavailable(format!("redis at `{}`: {}", self.place, self.options.hide(why)))
    }
}

/// Also where a command within a transaction was refused for it.
fn is_out_of_memory(error: &RedisError) -> bool {
    error.code() == Some("OOM") || error.to_string().contains("OOM command not allowed")
}

fn is_refused(error: &RedisError) -> bool {
    error.kind() == ErrorKind::AuthenticationFailed || matches!(error.code(), Some("WRONGPASS" | "NOAUTH" | "NOPERM"))
}

fn moved(from: &ConnectionAddr, host: &str, port: u16) -> ConnectionAddr {
    let host_or = |own: &str| if host.is_empty() { own.to_owned() } else { host.to_owned() };
    match from {
        ConnectionAddr::TcpTls { host: own, insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host: host_or(own), port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        ConnectionAddr::Tcp(own, _) => ConnectionAddr::Tcp(host_or(own), port),
        _ => ConnectionAddr::Tcp(host_or("127.0.0.1"), port),
    }
}

/// Nodes that name one another for the same thing.
pub(super) fn circles(what: &str) -> RedisError {
    io::Error::other(format!("the cluster's nodes send us on from one to another for {what}")).into()
}

/// A deadline as an error of its own.
pub(super) async fn within<T>(limit: Duration, work: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {limit:?}")).into()),
    }
}
