//! Connections: how many, how long, and how they end.

use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::runtime::{Shutdown, raise_open_files};

/// Connections open at once; others wait in the listener's queue.
const MAX_CONNECTIONS: usize = 16_384;
/// Files of this process besides its connections.
const OTHER_FILES: u64 = 256;
/// However few files it may open, so many connections are tried.
const FEWEST: u64 = 64;
/// How long the head of a request may take, and how long a connection may be idle.
const HEAD_DEADLINE: Duration = Duration::from_secs(60);
/// How long what is under way may take to end.
const DRAIN_DEADLINE: Duration = Duration::from_secs(30);
/// How long to stay away from a listener that fails.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until told to drain; then lets connections end, at most for 30 s, or until told to abort.
pub async fn serve(listener: TcpListener, app: Router, shutdown: &Shutdown) {
    let (mut connections, most) = (JoinSet::new(), room());
    loop {
        tokio::select! {
            () = shutdown.drain.cancelled() => break,
            // Ended ones are taken out, so that they do not pile up.
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < most => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, app.clone(), shutdown.drain.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be taken");
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
        tracing::warn!(connections = connections.len(), "some connections did not end in time and are cut");
    }
}

/// As many connections as files can be opened for.
fn room() -> usize {
    let files = raise_open_files(MAX_CONNECTIONS as u64 + OTHER_FILES);
    let room = files.saturating_sub(OTHER_FILES).max(FEWEST).min(MAX_CONNECTIONS as u64) as usize;
    if room < MAX_CONNECTIONS {
        tracing::warn!(
            "at most {room} connections at once: this process may open {files} files; raise its hard limit (`ulimit -Hn`)"
        );
    }
    room
}

async fn connection(stream: TcpStream, app: Router, drain: CancellationToken) {
    // Answers are small and written at once.
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
        tracing::debug!(%error, "a connection broke off");
    }
}
