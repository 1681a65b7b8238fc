//! Client of the REST API for verbs: [`kafleet_client`], whose errors become failures in the terms of the command line.

use std::time::Duration;

use kafleet_client::{self as rest, Error, Request, follow};
use kafleet_documents::{BatchItem, BatchOutcome, CreateTask, FleetChange, LogDocument, Problem, Status};
use kafleet_documents::{RetryOutcome, RetryTask};

pub(super) use kafleet_client::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::exit::{Code, Failure};
use super::output::{eprint_line, one_line};

mod hints;

pub(super) use follow::Query;

/// Timeout of a modifying request.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(40);
/// Timeout of a request that may take long.
const LONG_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for which a batch is repeated while the API is unavailable.
const BATCH_DEADLINE: Duration = Duration::from_secs(30);

/// Client whose single requests are not repeated: the caller sees at once that the API is not available.
pub(super) struct Client(rest::Client);

impl Client {
    pub(super) fn new(api: &str, token: Option<&str>) -> Result<Self, Failure> {
        let builder = rest::Client::builder(api).repeat_for(Duration::ZERO);
        Ok(Self(token.into_iter().fold(builder, rest::ClientBuilder::token).build()?))
    }

    /// Address of the API, as given.
    pub(super) fn base(&self) -> &str {
        self.0.api()
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, path: &[&str], query: &Query) -> Result<T, Failure> {
        Ok(self.0.request(Method::GET, path).query(query).receive().await?)
    }

    /// Sends a POST request that may take long.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: Option<&impl Serialize>,
    ) -> Result<T, Failure> {
        let request = self.0.request(Method::POST, path).timeout(LONG_TIMEOUT);
        Ok(body.into_iter().fold(request, Request::json).receive().await?)
    }

    /// Creates a task and waits for its end up to `wait`, at most as long as the API permits in one request.
    pub(super) async fn create(&self, task: &CreateTask, wait: Duration) -> Result<Status, Failure> {
        Ok(self.0.create(task, wait, None).await?)
    }

    /// Sends a modifying request with an optional body.
    pub(super) async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &[&str],
        body: Option<&impl Serialize>,
    ) -> Result<T, Failure> {
        self.call_with(method, path, &Query::new(), body).await
    }

    /// Sends a modifying request with query parameters and an optional body.
    pub(super) async fn call_with<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &[&str],
        query: &Query,
        body: Option<&impl Serialize>,
    ) -> Result<T, Failure> {
        let request = self.0.request(method, path).query(query).timeout(CHANGE_TIMEOUT);
        Ok(body.into_iter().fold(request, Request::json).receive().await?)
    }

    pub(super) async fn get_bytes(&self, path: &[&str]) -> Result<Vec<u8>, Failure> {
        Ok(self.0.request(Method::GET, path).bytes().await?)
    }

    pub(super) async fn put_bytes<T: DeserializeOwned>(
        &self,
        path: &[&str],
        media: &str,
        data: Vec<u8>,
    ) -> Result<T, Failure> {
        Ok(self.0.request(Method::PUT, path).body(media, data).timeout(CHANGE_TIMEOUT).receive().await?)
    }

    /// Creates tasks independently of each other, and repeats those that failed temporarily. Returns one item for each.
    pub(super) async fn create_all(&self, tasks: &[&RawValue]) -> Result<Vec<BatchItem>, Failure> {
        Ok(self.0.create_all(tasks, Instant::now() + BATCH_DEADLINE).await?)
    }

    /// Creates all tasks or none.
    pub(super) async fn create_atomic(&self, tasks: &[&RawValue]) -> Result<BatchOutcome, Failure> {
        let request = self.0.request(Method::POST, &["v1", "batches"]).query(&[("atomic", "true".into())]);
        Ok(request.json(tasks).timeout(LONG_TIMEOUT).receive().await?)
    }

    pub(super) async fn status(&self, id: &str) -> Result<Status, Failure> {
        Ok(self.0.status(id).await?)
    }

    /// Retries a task, or its failed descendants.
    pub(super) async fn retry(&self, id: &str, request_body: &RetryTask) -> Result<RetryOutcome, Failure> {
        Ok(self.0.retry(id, request_body).await?)
    }

    /// Waits until the task has ended; returns its status then, or at the deadline.
    pub(super) async fn wait_until_ended(
        &self,
        status: Box<Status>,
        deadline: Instant,
    ) -> Result<Box<Status>, Failure> {
        let changes = follow::ReconnectingStream::new(&self.0, &status.id).on_lost(report_loss);
        Ok(self.0.wait_until_ended(status, deadline, changes).await?)
    }
}

/// Stream that reports lost connections on stderr.
pub(super) struct ReconnectingStream(follow::ReconnectingStream);

impl ReconnectingStream {
    /// Opens a stream of the changes of a task, or fails at once if the API cannot be reached.
    pub(super) async fn open(client: &Client, id: &str) -> Result<Self, Failure> {
        Ok(Self::reporting(follow::ReconnectingStream::open(&client.0, id).await?))
    }

    /// Opens a stream of the log of a task, from a line on.
    pub(super) async fn open_log(client: &Client, id: &str, from: u64) -> Result<Self, Failure> {
        Ok(Self::reporting(follow::ReconnectingStream::open_log(&client.0, id, from).await?))
    }

    /// Opens a stream of the changes of all tasks, or of a type or a tree.
    pub(super) async fn open_fleet(client: &Client, scope: Query) -> Result<Self, Failure> {
        Ok(Self::reporting(follow::ReconnectingStream::open_fleet(&client.0, scope).await?))
    }

    fn reporting(stream: follow::ReconnectingStream) -> Self {
        Self(stream.on_lost(report_loss))
    }

    /// Returns the task's present status, then its changes.
    pub(super) async fn next(&mut self) -> Result<Box<Status>, Failure> {
        Ok(self.0.next().await?)
    }

    /// Returns the next lines of the log; `None` once the task has ended and all lines were returned.
    pub(super) async fn lines(&mut self) -> Result<Option<Box<LogDocument>>, Failure> {
        Ok(self.0.lines().await?)
    }

    /// Returns the next change of the fleet.
    pub(super) async fn change(&mut self) -> Result<Box<FleetChange>, Failure> {
        Ok(self.0.change().await?)
    }

    /// Connects if there is no connection.
    pub(super) async fn connected(&mut self) -> Result<(), Failure> {
        Ok(self.0.connected().await?)
    }

    /// Returns the next change over the present connection; `None` if there is none in time.
    pub(super) async fn change_until(&mut self, until: Instant) -> Result<Option<Box<FleetChange>>, Failure> {
        Ok(self.0.change_until(until).await?)
    }
}

fn report_loss(reason: &str) {
    eprint_line(format_args!("connection lost ({reason}), reconnecting"));
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let failure = Self::new(code_of_error(&error), one_line(&error.to_string()));
        match (error.problem(), hint_of(&error)) {
            (Some(problem), _) => from_problem(problem),
            (None, Some(hint)) => failure.hint(hint),
            (None, None) => failure,
        }
    }
}

fn code_of_error(error: &Error) -> Code {
    match error {
        Error::Address { .. } | Error::Token | Error::Name { .. } | Error::Params(_) => Code::Usage,
        Error::Expired { .. } => Code::NotFound,
        Error::Deadline { .. } => Code::TimedOut,
        Error::Setup(_) | Error::Task(_) | Error::Output { .. } => Code::Failed,
        Error::Unexpected { status: 401 | 403, .. } => Code::Denied,
        _ => Code::Unavailable,
    }
}

fn hint_of(error: &Error) -> Option<&'static str> {
    Some(match error {
        Error::Address { .. } => "write it as http://127.0.0.1:8080",
        Error::Token => "check --token or KAFLEET_TOKEN for line ends",
        Error::Name { .. } => "give its id or name",
        Error::Unreachable { .. } => {
            "start one with `kafleet dev` or `kafleet api`, or name its address with --api or KAFLEET_API"
        }
        Error::NoAnswer { .. } => "check its /readyz, or try again",
        Error::Unexpected { status: 502..=504, .. } => {
            "check the proxy in front of the API, and the address given with --api or KAFLEET_API"
        }
        Error::Unexpected { .. } => "check the address given with --api or KAFLEET_API",
        Error::Lost { .. } => "check the API's /readyz and log",
        Error::Expired { .. } => "`topics.record_retention` sets how long finished trees are kept",
        _ => return None,
    })
}

/// Failure for a task whose record was removed.
pub(super) fn record_removed(id: &str) -> Failure {
    Error::Expired { id: id.to_owned() }.into()
}

/// Converts a problem document to a failure.
pub(super) fn from_problem(problem: &Problem) -> Failure {
    let code = code_of_status(problem.status);
    let text = if problem.detail.is_empty() { &problem.title } else { &problem.detail };
    let location = problem.pointer.as_deref().filter(|pointer| !pointer.is_empty());
    let location = location.map(|pointer| format!(" (at `{}`)", hints::location(pointer, std::env::args())));
    let location = location.unwrap_or_default();
    let plain = |text: &str| hints::for_shell(&one_line(text));
    let failure = Failure::new(code, format_args!("{}{location}", plain(text)));
    let existing = problem.existing.as_ref().map(|existing| format!("see `kafleet status {existing}`"));
    let hints: Vec<String> = problem.hint.as_deref().map(plain).into_iter().chain(existing).collect();
    if hints.is_empty() { failure } else { failure.hint(hints.join("; ")) }
}

fn code_of_status(status: u16) -> Code {
    match status {
        401 | 403 => Code::Denied,
        404 | 410 => Code::NotFound,
        408 | 429 | 500.. => Code::Unavailable,
        409 | 412 => Code::Failed,
        _ => Code::Usage,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(status: u16) -> Problem {
        Problem {
            problem_type: "about:blank".into(),
            title: "Not found".into(),
            status,
            detail: "there is no task `x`".into(),
            code: "not_found".into(),
            hint: None,
            pointer: None,
            span: None,
            existing: None,
        }
    }

    #[test]
    fn problem_becomes_a_failure_with_pointer_and_hint() {
        let mut given = problem(422);
        given.pointer = Some("/params/url".into());
        given.hint = Some("write a\nurl".into());
        let failure = from_problem(&given);
        assert_eq!(failure.code, Code::Usage);
        assert_eq!(failure.text(), "error: there is no task `x` (at `/params/url`)\n\nhint: write a url\n");
    }

    #[test]
    fn http_status_determines_the_exit_code() {
        for (status, code) in [
            (400, Code::Usage),
            (401, Code::Denied),
            (403, Code::Denied),
            (404, Code::NotFound),
            (409, Code::Failed),
            (413, Code::Usage),
            (429, Code::Unavailable),
            (500, Code::Unavailable),
            (503, Code::Unavailable),
        ] {
            assert_eq!(from_problem(&problem(status)).code, code, "{status}");
        }
    }

    #[test]
    fn conflict_names_the_existing_task() {
        let mut given = problem(409);
        given.existing = Some("cover-42".into());
        assert_eq!(from_problem(&given).hint.as_deref(), Some("see `kafleet status cover-42`"));
        given.hint = Some("choose another id".into());
        assert_eq!(from_problem(&given).hint.as_deref(), Some("choose another id; see `kafleet status cover-42`"));
    }

    #[test]
    fn invalid_address_is_refused() {
        for (api, from_problem) in [("127.0.0.1:8080", "is not the address"), ("ftp://host", "`ftp:`"), ("", "``")] {
            let failure = Client::new(api, None).err().unwrap();
            assert_eq!(failure.code, Code::Usage, "{api}");
            assert!(failure.message.contains(from_problem), "{api}: {}", failure.message);
        }
    }

    #[test]
    fn invalid_token_is_refused_and_not_shown() {
        let failure = Client::new("http://localhost", Some("secret\n")).err().unwrap();
        assert_eq!(failure.code, Code::Usage);
        assert!(!failure.text().contains("secret"), "{}", failure.text());
    }
}
