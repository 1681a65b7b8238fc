//! Connection handling: limits, timeouts, graceful shutdown.

use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::runtime::{Shutdown, raise_open_files};

/// Maximum open connections; more wait in the listener's backlog.
const MAX_CONNECTIONS: usize = 16_384;
/// File descriptors reserved for other uses.
const RESERVED_FILES: u64 = 256;
/// Minimum connection limit, however low the limit on open files.
const MIN_CONNECTIONS: u64 = 64;
/// Timeout of request headers and of idle connections.
const HEAD_DEADLINE: Duration = Duration::from_secs(60);
/// Maximum time for requests in flight at shutdown.
const DRAIN_DEADLINE: Duration = Duration::from_secs(30);
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until shutdown is requested; then drains connections for at most 30 s, or until aborted.
pub(crate) async fn serve(listener: TcpListener, app: Router, shutdown: &Shutdown) {
    let (mut connections, limit) = (JoinSet::new(), connection_limit());
    loop {
        tokio::select! {
            () = shutdown.drain.cancelled() => break,
            // Reap finished connections so that they do not accumulate.
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < limit => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, app.clone(), shutdown.drain.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    let in_time = tokio::select! {
        () = ended => true,
        () = shutdown.abort.cancelled() => false,
        () = tokio::time::sleep(DRAIN_DEADLINE) => false,
    };
    if !in_time {
        tracing::warn!(connections = connections.len(), "closing connections that did not drain in time");
    }
}

/// Returns the connection limit, given the limit on open files.
fn connection_limit() -> usize {
    let files = raise_open_files(MAX_CONNECTIONS as u64 + RESERVED_FILES);
    let connection_limit =
        files.saturating_sub(RESERVED_FILES).max(MIN_CONNECTIONS).min(MAX_CONNECTIONS as u64) as usize;
    if connection_limit < MAX_CONNECTIONS {
        tracing::warn!(
            "limited to {connection_limit} connections: this process may open {files} files; raise its hard limit \
             (`ulimit -Hn`)"
        );
    }
    connection_limit
}

async fn connection(stream: TcpStream, app: Router, drain: CancellationToken) {
    // Responses are small and written at once.
    let _ = stream.set_nodelay(true);
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_DEADLINE);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(HEAD_DEADLINE);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
    let mut connection = std::pin::pin!(connection);
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = drain.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(%error, "connection closed with an error");
    }
}
