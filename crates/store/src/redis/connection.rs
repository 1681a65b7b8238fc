//! Connections to Redis, and the translation of its errors.

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
use crate::StoreError;

/// Maximum redirects of a cluster before they count as a loop.
pub(super) const MAX_REDIRECTS: usize = 5;
/// Hint for a server that is out of memory.
const MORE_MEMORY_HINT: &str = "raise its `maxmemory`, keep finished trees for a shorter time (`record_retention`), or give it more servers; \
     nothing is lost, and trackers continue by themselves";

pub(super) struct Connector {
    pub(super) address: Address,
    pub(super) options: RedisOptions,
    /// The URL without credentials.
    pub(super) display_url: String,
    /// Round-robin counter over a cluster's nodes.
    turn: AtomicUsize,
}

impl Connector {
    pub(super) fn new(options: RedisOptions) -> Result<Self, StoreError> {
        let address = Address::parse(&options)?;
        let display_url = options.hide(&without_credentials(&options.url));
        Ok(Self { address, options, display_url, turn: AtomicUsize::new(0) })
    }

    /// Creates a client of the single server, of the master named by the sentinels, or of any node of the cluster.
    async fn client(&self) -> RedisResult<Client> {
        match &self.address {
            Address::One(info) => Client::open(info.as_ref().clone()),
            Address::Cluster(_) => Client::open(self.node()?),
            Address::Sentinel(sentinels) => sentinels.lock().await.async_get_client().await,
        }
    }

    /// Next of the nodes in the URL, round-robin.
    pub(super) fn node(&self) -> RedisResult<ConnectionInfo> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        match &self.address {
            Address::One(info) => Ok(info.as_ref().clone()),
            Address::Cluster(nodes) if !nodes.is_empty() => Ok(nodes[turn % nodes.len()].clone()),
            _ => Err((ErrorKind::InvalidClientConfig, "the address names no node").into()),
        }
    }

    /// Resolves the server to which the address currently leads.
    pub(super) async fn named(&self) -> RedisResult<ConnectionInfo> {
        let client = within(self.options.connect_timeout, self.client().boxed()).await?;
        Ok(client.get_connection_info().clone())
    }

    /// Opens a connection that never reconnects by itself (in a cluster: to any node), with the node's address.
    pub(super) async fn connect(&self) -> RedisResult<(MultiplexedConnection, ConnectionInfo)> {
        let work = async {
            let client = self.client().await?;
            let info = client.get_connection_info().clone();
            Ok((client.get_multiplexed_async_connection_with_config(&self.config()).await?, info))
        };
        within(self.options.connect_timeout, work.boxed()).await
    }

    /// Resolves the node named by a redirect from `near`. A redirect without a host means `near` itself.
    pub(super) fn redirected(&self, answer: &RedisError, near: &ConnectionInfo) -> RedisResult<ConnectionInfo> {
        let named = answer.redirect_node().and_then(|(node, _)| node.rsplit_once(':'));
        match named.and_then(|(host, port)| Some((host, port.parse().ok()?))) {
            Some((host, port)) => Ok(near.clone().set_addr(with_host(near.addr(), host, port))),
            None => Err(answer.clone()),
        }
    }

    /// Connects to a node named by `near`.
    pub(super) async fn connect_to(
        &self,
        host: &str,
        port: u16,
        near: &ConnectionInfo,
    ) -> RedisResult<(MultiplexedConnection, ConnectionInfo)> {
        self.open(near.clone().set_addr(with_host(near.addr(), host, port))).await
    }

    /// Connects to this node.
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

    /// Returns true if a retry may succeed.
    pub(super) fn is_transient(&self, error: &RedisError) -> bool {
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
        let display_url = &self.display_url;
        if is_permission_error(error) {
            return StoreError::Misconfigured(format!(
                "redis at `{display_url}` rejects the user: {text}\n\nhint: check the user name, the password and the user's permissions"
            ));
        }
        if is_out_of_memory(error) {
            return self
                .unavailable(&format!("out of memory, all writes are rejected ({text})\n\nhint: {MORE_MEMORY_HINT}"));
        }
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::Ask | ServerErrorKind::TryAgain) if self.is_transient(error) => self
                .unavailable(&format!(
                    "its slot is being migrated to another node; retrying until that is done ({text})"
                )),
            ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::CrossSlot) if !self.is_transient(error) => {
                StoreError::Misconfigured(format!(
                    "redis at `{display_url}` is part of a cluster\n\nhint: write the URL as redis-cluster://host:port"
                ))
            }
            ErrorKind::InvalidClientConfig => StoreError::Misconfigured(format!("redis at `{display_url}`: {text}")),
            _ if error.code() == Some("WRONGTYPE") => {
                StoreError::Invalid(format!("redis at `{display_url}` holds data of another application: {text}"))
            }
            _ => self.unavailable(&text),
        }
    }

    pub(super) fn unavailable(&self, reason: &str) -> StoreError {
        StoreError::Unavailable(format!("redis at `{}`: {}", self.display_url, self.options.hide(reason)))
    }
}

/// Detects out-of-memory errors, including EXEC aborted because of one.
fn is_out_of_memory(error: &RedisError) -> bool {
    error.code() == Some("OOM") || error.to_string().contains("OOM command not allowed")
}

fn is_permission_error(error: &RedisError) -> bool {
    error.kind() == ErrorKind::AuthenticationFailed || matches!(error.code(), Some("WRONGPASS" | "NOAUTH" | "NOPERM"))
}

fn with_host(from: &ConnectionAddr, host: &str, port: u16) -> ConnectionAddr {
    let host_or = |host_given: &str| if host.is_empty() { host_given.to_owned() } else { host.to_owned() };
    match from {
        ConnectionAddr::TcpTls { host: host_given, insecure, tls_params, .. } => ConnectionAddr::TcpTls {
            host: host_or(host_given),
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        ConnectionAddr::Tcp(host_given, _) => ConnectionAddr::Tcp(host_or(host_given), port),
        _ => ConnectionAddr::Tcp(host_or("127.0.0.1"), port),
    }
}

/// Error for a redirect loop.
pub(super) fn redirect_loop(command: &str) -> RedisError {
    io::Error::other(format!("redirect loop between cluster nodes for {command}")).into()
}

/// Applies a deadline, reported as an IO error.
pub(super) async fn within<T>(limit: Duration, work: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {limit:?}")).into()),
    }
}
