//! Connection handling: limits, timeouts, graceful shutdown.

use std::io::{self, Cursor};
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use kafleet_runtime::{Shutdown, raise_open_files};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Maximum open connections; more wait in the listener's backlog.
const MAX_CONNECTIONS: usize = 16_384;
/// File descriptors reserved for other uses.
const RESERVED_FILES: u64 = 256;
/// Minimum connection limit, however low the limit on open files.
const MIN_CONNECTIONS: u64 = 64;
/// Beginning of each HTTP/2 connection; no HTTP/1 request has the same first 24 bytes.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Timeout of request headers and of idle connections.
const HEAD_DEADLINE: Duration = Duration::from_secs(60);
/// Maximum time for requests in flight at shutdown.
const DRAIN_DEADLINE: Duration = Duration::from_secs(30);
/// Pause after a failed accept.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

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
                    tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
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

async fn connection(mut stream: TcpStream, app: Router, drain: CancellationToken) {
    // Responses are small and written at once.
    let _ = stream.set_nodelay(true);
    let first = tokio::select! {
        first = timeout(HEAD_DEADLINE, first_bytes(&mut stream)) => first,
        () = drain.cancelled() => return,
    };
    let Ok(Ok(first)) = first else { return };
    let (rest, write) = stream.into_split();
    let stream = tokio::io::join(Cursor::new(first).chain(rest), write);
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

/// Reads until the version of HTTP is known. The server's own timeouts begin only after that.
async fn first_bytes(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let (mut first, mut length) = ([0; PREFACE.len()], 0);
    while length < PREFACE.len() && first[..length] == PREFACE[..length] {
        match stream.read(&mut first[length..]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            received => length += received,
        }
    }
    Ok(first[..length].to_vec())
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connection_without_a_request_is_closed() {
        let shutdown = Shutdown::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn({
            let shutdown = shutdown.clone();
            async move { serve(listener, Router::new(), &shutdown).await }
        });
        for begun in ["", "PRI * HTTP/2.0", "GET / HTTP/1.1\r\n"] {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(begun.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            let closed = timeout(4 * HEAD_DEADLINE, client.read_to_end(&mut answer)).await;
            assert!(closed.is_ok(), "`{begun}` keeps the connection open");
        }
        shutdown.begin();
        serving.await.unwrap();
    }
}
