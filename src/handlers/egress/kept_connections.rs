//! HTTP client that keeps connections, and repeats a request whose connection the service closes instead of answering.
//!
//! A service may close an idle connection at any moment, also while a request is on its way. The request fails although
//! the service is well and has not begun to answer, so it is sent once more, on a connection of its own.

use std::error::Error;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use reqwest::{Client, ClientBuilder, Method, Request, RequestBuilder, Response, Url};
use tower::Service;
use tower::layer::layer_fn;

tokio::task_local! {
    /// Set once the request that runs in this task opens a connection.
    static HAS_CONNECTED: AtomicBool;
}

/// HTTP client with a pool of connections. Cheap to clone.
#[derive(Clone)]
pub struct KeepAliveClient {
    pooled: Client,
    /// Opens a connection per request: another one of the pool may have been closed as well.
    unpooled: Client,
}

impl KeepAliveClient {
    /// Creates a client with these settings.
    ///
    /// # Errors
    /// The TLS library cannot be initialised.
    pub fn new(settings: impl Fn() -> ClientBuilder) -> reqwest::Result<Self> {
        let pooled = settings().connector_layer(layer_fn(NoteConnection)).build()?;
        Ok(Self { pooled, unpooled: settings().pool_max_idle_per_host(0).build()? })
    }

    /// Begins a request.
    pub fn request(&self, method: Method, url: Url) -> RequestBuilder {
        self.pooled.request(method, url)
    }

    /// Sends a request within its timeout. `may_resend`: once more if the service closes a used connection without an
    /// answer.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn send(&self, request: RequestBuilder, may_resend: bool) -> reqwest::Result<Response> {
        let request = request.build()?;
        let copy = if may_resend { request.try_clone() } else { None };
        let started = Instant::now();
        let (answer, has_connected) = HAS_CONNECTED
            .scope(AtomicBool::new(false), async {
                let answer = self.pooled.execute(request).await;
                (answer, HAS_CONNECTED.with(|has_connected| has_connected.load(Ordering::Relaxed)))
            })
            .await;
        match (answer, copy) {
            (Err(why), Some(copy)) if !has_connected && is_closed(&why) => {
                tracing::debug!(host = copy.url().host_str(), error = %why, "a kept connection was closed; sending again");
                self.unpooled.execute(within(copy, started)).await
            }
            (answer, _) => answer,
        }
    }
}

/// Reduces the timeout of a request by the time since its first sending.
fn within(mut request: Request, started: Instant) -> Request {
    if let Some(timeout) = request.timeout_mut() {
        *timeout = timeout.saturating_sub(started.elapsed());
    }
    request
}

/// Returns whether the connection was closed before the answer.
fn is_closed(error: &reqwest::Error) -> bool {
    let mut next = error.source();
    while let Some(cause) = next {
        let by_http = cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_incomplete_message);
        let by_tcp = cause.downcast_ref::<std::io::Error>().is_some_and(|error| {
            matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe)
        });
        if by_http || by_tcp {
            return true;
        }
        next = cause.source();
    }
    false
}

/// Connector that notes in the task of a request that it opens a connection.
#[derive(Clone)]
struct NoteConnection<S>(S);

impl<S: Service<R>, R> Service<R> for NoteConnection<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, target: R) -> S::Future {
        // Fails outside of the task of a request, where the pool opens no connections.
        let _ = HAS_CONNECTED.try_with(|has_connected| has_connected.store(true, Ordering::Relaxed));
        self.0.call(target)
    }
}
