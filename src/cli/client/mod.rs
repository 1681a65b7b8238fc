//! Client of the REST API, with bounded waits; problem documents become failures.

use std::time::Duration;

pub(super) use reqwest::Method;
use reqwest::{RequestBuilder, Response, StatusCode, Url, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::exit::{Code, Failure, innermost};
use crate::api::documents::{BatchOutcome, CreateTask, Problem, RetryOutcome, RetryTask, Status};

mod events;
mod follow;
mod hints;

use events::{EventStream, StreamEvent};
use follow::Source;
pub(super) use follow::{ReconnectingStream, record_removed};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a request that the API answers at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum wait requested from the API in one request.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Maximum length of an unexpected response in a message.
const EXCERPT_CHARS: usize = 200;

pub(super) struct Client {
    http: reqwest::Client,
    base: Url,
    token: Option<String>,
}

/// Query parameters.
pub(super) type Query = Vec<(&'static str, String)>;

impl Client {
    pub(super) fn new(api: &str, token: Option<&str>) -> Result<Self, Failure> {
        let base = base_url(api)?;
        if token.is_some_and(|token| header::HeaderValue::from_str(token).is_err()) {
            return Err(
                Failure::usage("the token has invalid characters").hint("check --token or KAFLEET_TOKEN for line ends")
            );
        }
        let mut http = reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT);
        // A proxy cannot reach this machine's loopback address.
        if is_loopback(&base) {
            http = http.no_proxy();
        }
        let http = http.build().map_err(|why| Failure::failed(format_args!("no http client: {}", innermost(&why))))?;
        Ok(Self { http, base, token: token.map(str::to_owned) })
    }

    /// Address of the API, as given.
    pub(super) fn base(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, path: &[&str], query: &Query) -> Result<T, Failure> {
        let request = self.request(Method::GET, path, query);
        self.document(request.timeout(ANSWER_TIMEOUT)).await
    }

    /// Sends a POST request that may take long.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: Option<&impl Serialize>,
    ) -> Result<T, Failure> {
        let request = self.request(Method::POST, path, &Query::new());
        let request = body.into_iter().fold(request, |request, body| request.json(body));
        self.document(request.timeout(ANSWER_TIMEOUT * 3)).await
    }

    /// Creates a task and waits for its end up to `wait`, at most `LONGEST_WAIT`.
    pub(super) async fn create(&self, task: &CreateTask, wait: Duration) -> Result<Status, Failure> {
        let wait = wait.min(LONGEST_WAIT);
        let query = if wait.is_zero() { Query::new() } else { vec![("wait", millis(wait))] };
        let request = self.request(Method::POST, &["v1", "tasks"], &query).json(task);
        self.document(request.timeout(ANSWER_TIMEOUT + wait)).await
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
        let request = self.request(method, path, query).timeout(ANSWER_TIMEOUT * 2);
        self.document(body.into_iter().fold(request, RequestBuilder::json)).await
    }

    pub(super) async fn get_bytes(&self, path: &[&str]) -> Result<Vec<u8>, Failure> {
        let request = self.request(Method::GET, path, &Query::new()).timeout(ANSWER_TIMEOUT);
        let answer = request.send().await.map_err(|why| self.unreachable(&why))?;
        let body = self.accepted(answer).await?.bytes().await.map_err(|why| self.unreachable(&why))?;
        Ok(body.into())
    }

    pub(super) async fn put_bytes<T: DeserializeOwned>(
        &self,
        path: &[&str],
        media: &str,
        data: Vec<u8>,
    ) -> Result<T, Failure> {
        let request = self.request(Method::PUT, path, &Query::new()).header(header::CONTENT_TYPE, media).body(data);
        self.document(request.timeout(ANSWER_TIMEOUT * 2)).await
    }

    /// Creates tasks independently of each other.
    pub(super) async fn create_all(&self, tasks: &[&RawValue]) -> Result<BatchOutcome, Failure> {
        let request = self.request(Method::POST, &["v1", "batches"], &Query::new()).json(tasks);
        self.document(request.timeout(ANSWER_TIMEOUT * 2)).await
    }

    /// Creates all tasks or none.
    pub(super) async fn create_atomic(&self, tasks: &[&RawValue]) -> Result<BatchOutcome, Failure> {
        let request = self.request(Method::POST, &["v1", "batches"], &vec![("atomic", "true".into())]).json(tasks);
        self.document(request.timeout(ANSWER_TIMEOUT * 3)).await
    }

    pub(super) async fn status(&self, id: &str) -> Result<Status, Failure> {
        self.get(&["v1", "tasks", id], &Query::new()).await
    }

    /// Retries a task, or its failed descendants.
    pub(super) async fn retry(&self, id: &str, request_body: &RetryTask) -> Result<RetryOutcome, Failure> {
        let request = self.request(Method::POST, &["v1", "tasks", id, "retry"], &Query::new()).json(request_body);
        self.document(request.timeout(ANSWER_TIMEOUT)).await
    }

    /// Waits until the task has ended; returns its status then, or at the deadline.
    pub(super) async fn wait_until_ended(
        &self,
        mut status: Box<Status>,
        deadline: Instant,
    ) -> Result<Box<Status>, Failure> {
        let id = status.id.clone();
        let mut changes = ReconnectingStream::new(self, &id);
        while !status.state.is_terminal() {
            match tokio::time::timeout_at(deadline, changes.next()).await {
                Ok(changed) => status = changed?,
                Err(_) => break,
            }
        }
        Ok(status)
    }

    /// Opens a stream from the present state, or after the last event received.
    async fn watch(&self, source: &Source<'_>) -> Result<EventStream, Failure> {
        let request = match source {
            Source::Task(id) => self.request(Method::GET, &["v1", "tasks", id, "watch"], &Query::new()),
            Source::Log { id, from } => {
                self.request(Method::GET, &["v1", "tasks", id, "log", "watch"], &vec![("from", from.to_string())])
            }
            Source::Fleet { scope, last_event_id } => {
                let request = self.request(Method::GET, &["v1", "watch"], scope);
                last_event_id
                    .iter()
                    .fold(request, |request, last_event_id| request.header("last-event-id", last_event_id))
            }
        };
        let request = request.header(header::ACCEPT, "text/event-stream");
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, request.send()).await;
        let answer = answer.map_err(|_| self.timed_out())?.map_err(|why| self.unreachable(&why))?;
        Ok(EventStream::new(self.accepted(answer).await?))
    }

    fn request(&self, method: Method, path: &[&str], query: &Query) -> RequestBuilder {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        let request = self.http.request(method, url).query(query);
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    async fn document<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, Failure> {
        let answer = request.send().await.map_err(|why| self.unreachable(&why))?;
        let answer = self.accepted(answer).await?;
        let body = answer.bytes().await.map_err(|why| self.unreachable(&why))?;
        serde_json::from_slice(&body).map_err(|why| self.unexpected_answer(format_args!("unexpected document: {why}")))
    }

    async fn accepted(&self, answer: Response) -> Result<Response, Failure> {
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let body = answer.bytes().await.map_err(|why| self.unreachable(&why))?;
        match serde_json::from_slice::<Problem>(&body) {
            Ok(problem) => Err(from_problem(&problem)),
            Err(_) => {
                let excerpt: String = String::from_utf8_lossy(&body).chars().take(EXCERPT_CHARS).collect();
                let failure =
                    self.unexpected_answer(format_args!("{status}: {}", super::output::one_line(excerpt.trim())));
                Err(Failure { code: code_of(status), ..failure })
            }
        }
    }

    fn unreachable(&self, why: &reqwest::Error) -> Failure {
        if why.is_timeout() && !why.is_connect() {
            return self.timed_out();
        }
        Failure::unavailable(format_args!("the API at `{}` cannot be reached: {}", self.base(), innermost(why)))
            .hint("start one with `kafleet dev` or `kafleet api`, or name its address with --api or KAFLEET_API")
    }

    fn timed_out(&self) -> Failure {
        Failure::unavailable(format_args!("the API at `{}` does not answer in time", self.base()))
            .hint("check its /readyz, or try again")
    }

    fn unexpected_answer(&self, what: impl std::fmt::Display) -> Failure {
        Failure::unavailable(format_args!("`{}` does not answer like a kafleet api: {what}", self.base()))
            .hint("check the address given with --api or KAFLEET_API")
    }
}

fn base_url(api: &str) -> Result<Url, Failure> {
    let wrong = |why: &str| {
        Failure::usage(format_args!("`{api}` is not the address of an API: {why}"))
            .hint("write it as http://127.0.0.1:8080")
    };
    let url = Url::parse(api).map_err(|why| wrong(&why.to_string()))?;
    match url.scheme() {
        "http" | "https" if url.has_host() => Ok(url),
        scheme => Err(wrong(&format!("`{scheme}:` is neither http: nor https:"))),
    }
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn millis(span: Duration) -> String {
    format!("{}ms", span.as_millis())
}

/// Converts a problem document to a failure.
pub(super) fn from_problem(problem: &Problem) -> Failure {
    let code = StatusCode::from_u16(problem.status).map_or(Code::Failed, code_of);
    let text = if problem.detail.is_empty() { &problem.title } else { &problem.detail };
    let location = problem.pointer.as_deref().filter(|pointer| !pointer.is_empty());
    let location = location.map(|pointer| format!(" (at `{}`)", hints::location(pointer, std::env::args())));
    let location = location.unwrap_or_default();
    let plain = |text: &str| hints::for_shell(&super::output::one_line(text));
    let failure = Failure::new(code, format_args!("{}{location}", plain(text)));
    let existing = problem.existing.as_ref().map(|existing| format!("see `kafleet status {existing}`"));
    let hints: Vec<String> = problem.hint.as_deref().map(plain).into_iter().chain(existing).collect();
    if hints.is_empty() { failure } else { failure.hint(hints.join("; ")) }
}

fn code_of(status: StatusCode) -> Code {
    match status.as_u16() {
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

    #[test]
    fn base_path_of_the_address_is_kept() {
        for api in ["https://host/fleet", "https://host/fleet/"] {
            let client = Client::new(api, None).unwrap();
            let request =
                client.request(Method::GET, &["v1", "tasks", "a:b~1"], &vec![("after", "3:9".into())]).build().unwrap();
            assert_eq!(request.url().as_str(), "https://host/fleet/v1/tasks/a:b~1?after=3%3A9");
        }
        for (api, loopback) in [("http://[::1]:80", true), ("http://localhost", true), ("http://10.0.0.1", false)] {
            assert_eq!(is_loopback(&Url::parse(api).unwrap()), loopback, "{api}");
        }
    }
}
