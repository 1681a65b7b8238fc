//! Client of the REST API: submits tasks, waits for their results, follows and controls them. It needs neither Kafka
//! nor Redis. A worker that submits tasks has the same client as `kafleet::client`.
//!
//! ```no_run
//! use std::time::Duration;
//! use kafleet_client::{Client, TaskType};
//!
//! /// Params of the type `resize`, which any worker may run, in any language.
//! #[derive(serde::Serialize)]
//! struct Resize {
//!     url: String,
//!     width: u32,
//! }
//!
//! impl TaskType for Resize {
//!     const TYPE: &'static str = "resize";
//!     type Output = String;
//! }
//!
//! # async fn example() -> Result<(), kafleet_client::Error> {
//! let client = Client::from_env()?;
//! let resize = Resize { url: "https://example.com/a.jpg".into(), width: 200 };
//! let handle = client.submit(resize).id("cover-42").delay(Duration::from_secs(60)).await?;
//! let path: String = handle.result(Duration::from_secs(120)).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Ids are made before a request is sent, so a request that is repeated after a lost connection creates no second task.
//! Reads, submissions and cancels are repeated while the API, Kafka or the store is unavailable, for 30 s unless
//! [`ClientBuilder::repeat_for`] says otherwise. Every wait has a deadline, and every failure is an [`Error`], which
//! keeps the problem document of the API.
//!
//! In: tasks as [`TaskType`] or [`NewTask`]. Out: a [`Handle`], results, and [documents](kafleet_documents) of the API.
//! Invariant: the id of a task is fixed before its first request. With an id per request, a repeated submission would
//! run the task twice. Read next: `task.rs` (a task to submit), `submit.rs`, `request.rs` (repetition).

#![warn(missing_docs, unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

use std::sync::Arc;
use std::time::Duration;

pub use reqwest::Method;
use reqwest::Url;
use tokio::time::Instant;

mod answer;
mod batch;
mod error;
mod events;
// The command line follows streams with it.
#[doc(hidden)]
pub mod follow;
mod outbox;
mod request;
mod submit;
mod task;
mod watch;

#[doc(hidden)]
pub use batch::{BATCH_BYTES, BATCH_ITEMS};
pub use error::Error;
pub use kafleet_documents::{
    CancelOutcome, CancelTask, CreateTask, Problem, RetryOutcome, RetryTask, StartOutcome, StartTask, Status, TreeNode,
};
pub use kafleet_model::event::ErrorInfo;
pub use kafleet_model::json::RawJson;
pub use kafleet_model::record::state::State;
pub use kafleet_model::unique::{AskVerdict, UniqueMode, UniqueRule};
pub use outbox::{OUTBOX_INSERT, OutboxStatement, outbox_statement};
pub use request::Request;
pub use submit::{Handle, Run, Submit};
pub use task::{IntoTask, NewTask, TaskType, new_id, new_id_after};

/// Address of an API on this machine, used by [`Client::from_env`] without `KAFLEET_API`.
pub const DEFAULT_API: &str = "http://127.0.0.1:8080";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum of [`ClientBuilder::repeat_for`]: ten years.
const MAX_REPEAT_FOR: Duration = Duration::from_secs(10 * 365 * 86_400);
/// Default of [`ClientBuilder::repeat_for`].
const REPEAT_FOR: Duration = Duration::from_secs(30);

/// Client of the REST API. Cheap to clone; the clones share their connections.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    http: reqwest::Client,
    url: Url,
    /// Address without user and password.
    shown: String,
    token: Option<String>,
    repeat_for: Duration,
}

/// Settings of a [`Client`].
#[derive(Clone)]
#[must_use]
pub struct ClientBuilder {
    api: String,
    token: Option<String>,
    repeat_for: Duration,
}

impl ClientBuilder {
    /// Sets the bearer token.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Sets the time for which a request is repeated while the API, Kafka or the store is unavailable, at most ten years.
    /// Default: 30 s; zero: no repetition.
    pub fn repeat_for(mut self, time: Duration) -> Self {
        self.repeat_for = time.min(MAX_REPEAT_FOR);
        self
    }

    /// Creates the client. No connection is made yet.
    ///
    /// # Errors
    /// The address or the token is invalid.
    pub fn build(self) -> Result<Client, Error> {
        let url = url(&self.api)?;
        if self.token.as_deref().is_some_and(|token| reqwest::header::HeaderValue::from_str(token).is_err()) {
            return Err(Error::Token);
        }
        let mut http = reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT);
        // A proxy cannot reach this machine's loopback address.
        if is_loopback(&url) {
            http = http.no_proxy();
        }
        let http = http.build().map_err(|error| Error::Setup(request::innermost(&error)))?;
        let shown = answer::without_userinfo(url.clone()).as_str().trim_end_matches('/').to_owned();
        Ok(Client(Arc::new(Inner { http, url, shown, token: self.token, repeat_for: self.repeat_for })))
    }
}

impl Client {
    /// Creates a client of the API at a URL such as `http://127.0.0.1:8080`.
    ///
    /// # Errors
    /// The address is invalid.
    pub fn new(api: &str) -> Result<Self, Error> {
        Self::builder(api).build()
    }

    /// Creates a client from the environment variables `KAFLEET_API` (default: [`DEFAULT_API`]) and `KAFLEET_TOKEN`.
    ///
    /// # Errors
    /// The address or the token is invalid.
    pub fn from_env() -> Result<Self, Error> {
        let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let builder = Self::builder(set("KAFLEET_API").as_deref().unwrap_or(DEFAULT_API));
        set("KAFLEET_TOKEN").into_iter().fold(builder, ClientBuilder::token).build()
    }

    /// Starts the settings of a client.
    pub fn builder(api: &str) -> ClientBuilder {
        ClientBuilder { api: api.to_owned(), token: None, repeat_for: REPEAT_FOR }
    }

    /// Returns the address of the API, for people: without a slash at its end, and without user and password.
    pub fn api(&self) -> &str {
        &self.0.shown
    }

    /// Starts a request to an endpoint, given by the segments of its path.
    pub fn request(&self, method: Method, path: &[&str]) -> Request {
        Request::new(self, method, path)
    }

    /// Returns the handle of an existing task, whose result has the type `O`.
    pub fn handle<O>(&self, id: impl Into<String>) -> Handle<O> {
        Handle::new(self.clone(), id.into(), None)
    }

    /// Reads the status of a task.
    ///
    /// # Errors
    /// The API is unavailable, or there is no such task.
    pub async fn status(&self, id: &str) -> Result<Status, Error> {
        self.request(Method::GET, &["v1", "tasks", id]).receive().await
    }

    /// Reads a task with its descendants, up to the limits of the API.
    ///
    /// # Errors
    /// The API is unavailable, or there is no such task.
    pub async fn tree(&self, id: &str) -> Result<TreeNode, Error> {
        self.request(Method::GET, &["v1", "tasks", id, "tree"]).receive().await
    }

    /// Cancels a task; by default ([`CancelTask::default`]) with its descendants. A repeated cancel has no effect.
    ///
    /// # Errors
    /// The API is unavailable, or there is no such task.
    pub async fn cancel(&self, id: &str, options: &CancelTask) -> Result<CancelOutcome, Error> {
        self.request(Method::POST, &["v1", "tasks", id, "cancel"]).json(options).repeatable().receive().await
    }

    /// Starts a new run of an ended task, or of its failed descendants. The request is not repeated: after an answer
    /// that was lost, the status shows whether the run has started.
    ///
    /// # Errors
    /// The API is unavailable, there is no such task, or it has not ended.
    pub async fn retry(&self, id: &str, options: &RetryTask) -> Result<RetryOutcome, Error> {
        self.request(Method::POST, &["v1", "tasks", id, "retry"]).json(options).receive().await
    }

    /// Waits until the task has ended, or until the deadline; returns its last status.
    #[doc(hidden)]
    pub async fn wait_until_ended(
        &self,
        mut status: Box<Status>,
        deadline: Instant,
        mut changes: follow::ReconnectingStream,
    ) -> Result<Box<Status>, Error> {
        while !status.state.is_terminal() {
            match tokio::time::timeout_at(deadline, changes.next()).await {
                Ok(changed) => status = changed?,
                Err(_) => break,
            }
        }
        Ok(status)
    }
}

/// The token is not shown.
impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("api", &self.api()).finish_non_exhaustive()
    }
}

fn url(api: &str) -> Result<Url, Error> {
    let invalid = |reason: String| Error::Address { api: api.to_owned(), reason };
    let url = Url::parse(api).map_err(|error| invalid(error.to_string()))?;
    match url.scheme() {
        "http" | "https" if url.has_host() => Ok(url),
        scheme => Err(invalid(format!("`{scheme}:` is neither http: nor https:"))),
    }
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_address_is_refused() {
        for (api, reason) in [("127.0.0.1:8080", "is not the address"), ("ftp://host", "`ftp:`"), ("", "``")] {
            let error = Client::new(api).unwrap_err();
            assert!(error.to_string().contains(reason), "{api}: {error}");
        }
    }

    #[test]
    fn invalid_token_is_refused_and_not_shown() {
        let error = Client::builder("http://localhost").token("secret\n").build().unwrap_err();
        assert!(matches!(error, Error::Token));
        let client = Client::builder("http://localhost").token("secret").build().unwrap();
        assert!(!format!("{error:?} {client:?}").contains("secret"));
    }

    #[test]
    fn loopback_address_is_recognised() {
        for (api, loopback) in [("http://[::1]:80", true), ("http://localhost", true), ("http://10.0.0.1", false)] {
            assert_eq!(is_loopback(&Url::parse(api).unwrap()), loopback, "{api}");
        }
    }
}
