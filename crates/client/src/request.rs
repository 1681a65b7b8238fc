//! Single requests: their address, timeout and repetition, and the decoding of answers.
//!
//! A request is repeated while the API, Kafka or the store is unavailable, with growing pauses, until a time that the
//! client sets.
//!
//! Invariant: only requests that change nothing when they arrive twice are repeated: reads, submissions with an id that
//! was made before the first try, and cancels. A lost answer does not show whether the request took effect; a
//! retry of a task that was repeated would start another run.
//!
//! Read next: `submit.rs` (submission and result), `follow.rs` (streams), `error.rs`.

use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use kafleet_documents::Problem;
use kafleet_model::task::id::is_path_step;
use reqwest::{Method, RequestBuilder, Response, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::answer::{AnswerHead, CompleteAnswer, RequestLine};
use super::{Client, Error};

/// Timeout of a request that the API answers at once.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Request to an endpoint of the [REST API](https://github.com/kafleet/kafleet/blob/main/docs/api.md) that [`Client`] has
/// no method for.
///
/// ```no_run
/// # async fn example(client: kafleet_client::Client) -> Result<(), kafleet_client::Error> {
/// use kafleet_client::Method;
/// let types: serde_json::Value = client.request(Method::GET, &["v1", "types"]).receive().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a request is sent by `receive` or `bytes`"]
pub struct Request {
    client: Client,
    request: RequestBuilder,
    line: RequestLine,
    timeout: Duration,
    repeat_until: Option<Instant>,
    /// Segment of the path that the address cannot have.
    lost_segment: Option<String>,
}

impl Request {
    pub(super) fn new(client: &Client, method: Method, path: &[&str]) -> Self {
        // The request would reach another document.
        let lost_segment = path.iter().find(|segment| is_path_step(segment)).map(ToString::to_string);
        let mut url = client.0.url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        let is_read = method == Method::GET;
        let request = client.0.http.request(method.clone(), url.clone());
        let request = match &client.0.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        let line = RequestLine { method, url };
        let new =
            Self { client: client.clone(), request, line, timeout: ANSWER_TIMEOUT, repeat_until: None, lost_segment };
        if is_read { new.repeatable() } else { new }
    }

    /// Sets query parameters.
    pub fn query(mut self, query: &[(&str, String)]) -> Self {
        self.request = self.request.query(query);
        self
    }

    /// Sets a JSON body.
    pub fn json(mut self, body: &(impl Serialize + ?Sized)) -> Self {
        self.request = self.request.json(body);
        self
    }

    /// Sets a body of any media type.
    pub fn body(mut self, media: &str, data: Vec<u8>) -> Self {
        self.request = self.request.header(header::CONTENT_TYPE, media).body(data);
        self
    }

    pub(super) fn header(mut self, name: header::HeaderName, value: &str) -> Self {
        self.request = self.request.header(name, value);
        self
    }

    /// Sets the timeout of the request, without its repetitions. Default: 20 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Marks a request as safe to repeat: it is then repeated while the API is unavailable, for the time given with
    /// [`ClientBuilder::repeat_for`](super::ClientBuilder::repeat_for). Reads are repeated in any case.
    pub fn repeatable(mut self) -> Self {
        self.repeat_until = Instant::now().checked_add(self.client.0.repeat_for);
        self
    }

    pub(super) fn repeat_until(mut self, deadline: Instant) -> Self {
        self.repeat_until = self.repeat_until.map(|end| end.min(deadline));
        self
    }

    /// Sends the request and decodes the JSON document of the answer.
    ///
    /// # Errors
    /// The API is unavailable, refused the request, or answered with another document.
    pub async fn receive<T: DeserializeOwned>(self) -> Result<T, Error> {
        let answer = self.repeated().await?;
        serde_json::from_slice(&answer.body)
            .map_err(|error| self.client.unexpected(answer.head.status, answer.describe(&error)))
    }

    /// Sends the request and returns the body of the answer.
    ///
    /// # Errors
    /// The API is unavailable or refused the request.
    pub async fn bytes(self) -> Result<Vec<u8>, Error> {
        let CompleteAnswer { head, body } = self.repeated().await?;
        if head.is_page() { Err(self.client.unexpected(head.status, head.to_string())) } else { Ok(body) }
    }

    /// Sends the request, once, and returns the answer with its body unread, which may be endless.
    pub(super) async fn open(self) -> Result<Response, Error> {
        self.check_path()?;
        let answer = tokio::time::timeout(self.timeout, self.request.send()).await;
        let answer = answer.map_err(|_| self.client.no_answer())?.map_err(|error| self.client.unreachable(&error))?;
        let (head, answer) = self.client.accepted(&self.line, answer).await?;
        if head.is_stream() { Ok(answer) } else { Err(self.client.unexpected(head.status, head.to_string())) }
    }

    fn check_path(&self) -> Result<(), Error> {
        self.lost_segment.clone().map_or(Ok(()), |name| Err(Error::Name { name }))
    }

    async fn repeated(&self) -> Result<CompleteAnswer, Error> {
        self.check_path()?;
        let may_repeat =
            |error: &Error| error.is_temporary() && self.repeat_until.is_some_and(|end| Instant::now() < end);
        (|| self.send_once()).retry(waits()).when(may_repeat).await
    }

    async fn send_once(&self) -> Result<CompleteAnswer, Error> {
        // Only bodies that are streams cannot be cloned.
        let request = self.request.try_clone().ok_or_else(|| Error::Setup("the body cannot be repeated".into()))?;
        let answer = request.timeout(self.timeout).send().await.map_err(|error| self.client.unreachable(&error))?;
        let (head, answer) = self.client.accepted(&self.line, answer).await?;
        let body = answer.bytes().await.map_err(|error| self.client.unreachable(&error))?;
        Ok(CompleteAnswer { head, body: body.into() })
    }
}

/// Waits between repetitions. Their number is limited by time.
pub(super) fn waits() -> ExponentialBuilder {
    ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(Duration::from_secs(3))
        .with_jitter()
        .without_max_times()
}

impl Client {
    /// Returns an answer of success with its head.
    async fn accepted(&self, line: &RequestLine, answer: Response) -> Result<(AnswerHead, Response), Error> {
        let head = AnswerHead::of(line, &answer);
        if answer.status().is_success() {
            return Ok((head, answer));
        }
        let body = answer.bytes().await.map_err(|error| self.unreachable(&error))?;
        if let Ok(problem) = serde_json::from_slice::<Problem>(&body) {
            return Err(Error::Problem(Box::new(problem)));
        }
        Err(self.unexpected(head.status, head.with_excerpt(&body)))
    }

    pub(super) fn unreachable(&self, error: &reqwest::Error) -> Error {
        if error.is_timeout() && !error.is_connect() {
            return self.no_answer();
        }
        Error::Unreachable { api: self.api().to_owned(), reason: innermost(error) }
    }

    pub(super) fn no_answer(&self) -> Error {
        Error::NoAnswer { api: self.api().to_owned() }
    }

    fn unexpected(&self, status: u16, reason: String) -> Error {
        Error::Unexpected { api: self.api().to_owned(), status, reason }
    }
}

/// Returns the root cause: HTTP errors are chains of wrappers around it.
pub(super) fn innermost(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source()).last().map(ToString::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_path_of_the_address_is_kept() {
        for api in ["https://host/fleet", "https://host/fleet/"] {
            let client = Client::new(api).unwrap();
            let request = client.request(Method::GET, &["v1", "tasks", "a:b~1"]).query(&[("after", "3:9".into())]);
            let request = request.request.build().unwrap();
            assert_eq!(request.url().as_str(), "https://host/fleet/v1/tasks/a:b~1?after=3%3A9");
        }
    }

    #[tokio::test]
    async fn names_that_addresses_drop_are_not_sent() {
        let client = Client::new("http://127.0.0.1:1").unwrap();
        for name in [".", ".."] {
            let request = || client.request(Method::POST, &["v1", "tasks", name, "cancel"]);
            let errors = [request().bytes().await.unwrap_err(), request().open().await.unwrap_err()];
            assert!(
                errors.iter().all(|error| matches!(error, Error::Name { .. }) && !error.is_temporary()),
                "{errors:?}"
            );
        }
    }
}
