//! HTTP client that keeps connections, and repeats a request whose connection the service closes instead of answering.
//!
//! A service may close an idle connection at any moment, even while a request is on its way. The request then fails
//! although the service is healthy and has not begun to answer, so it is sent once more, on a new connection.

use std::error::Error;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use http::Extensions;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpInfo};
use parking_lot::Mutex;
use reqwest::{Client, ClientBuilder, Method, Request, RequestBuilder, Response, Url};
use tower::Service;
use tower::layer::layer_fn;

tokio::task_local! {
    /// Local address of the connection that the request in this task has opened. It is not always sent on it: it takes one of
    /// the pool that becomes free before.
    static OPENED: Mutex<Option<SocketAddr>>;
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
        let (answer, opened) = OPENED
            .scope(Mutex::default(), async {
                let answer = self.pooled.execute(request).await;
                (answer, OPENED.with(|opened| *opened.lock()))
            })
            .await;
        match (answer, copy) {
            (Err(reason), Some(copy)) if is_closed(&reason) && was_kept(&reason, opened) => {
                tracing::debug!(host = copy.url().host_str(), error = %reason, "a kept connection was closed; sending again");
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
    causes(error).any(|cause| {
        let by_http = cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_incomplete_message);
        let by_tcp = cause.downcast_ref::<std::io::Error>().is_some_and(|error| {
            matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe)
        });
        by_http || by_tcp
    })
}

/// Returns whether a request failed on a connection that another one had used. `opened`: the connection that it has opened
/// itself.
fn was_kept(error: &reqwest::Error, opened: Option<SocketAddr>) -> bool {
    let info = causes(error).find_map(|cause| cause.downcast_ref::<legacy::Error>()?.connect_info());
    let used = info.and_then(local_address);
    used.is_some() && used != opened
}

fn causes(error: &reqwest::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(error.source(), |&cause| cause.source())
}

fn local_address(connection: &Connected) -> Option<SocketAddr> {
    let mut extras = Extensions::new();
    connection.get_extras(&mut extras);
    extras.get().map(HttpInfo::local_addr)
}

/// Connector that notes in the task of a request which connection it has opened.
#[derive(Clone)]
struct NoteConnection<S>(S);

impl<S, R> Service<R> for NoteConnection<S>
where
    S: Service<R, Response: Connection, Future: Send + 'static>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, target: R) -> Self::Future {
        let opening = self.0.call(target);
        Box::pin(async move {
            let opened = opening.await;
            if let Ok(connection) = &opened {
                // Fails outside of the task of a request, which has taken another connection.
                let _ = OPENED.try_with(|opened| *opened.lock() = local_address(&connection.connected()));
            }
            opened
        })
    }
}
