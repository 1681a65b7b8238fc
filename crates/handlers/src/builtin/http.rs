//! `http`: calls a configured URL per attempt. The params are the request body, the response body is the result, and
//! the status is the outcome.

use std::error::Error;
use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kafleet_config::TypePolicy;
use kafleet_model::json::{JsonError, RawJson};
use kafleet_model::task::id::clip;
use kafleet_runtime::now_ms;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, Url};

use super::Section;
use crate::batch::run_one;
use crate::egress::kept_connections::KeepAliveClient;
use crate::failure::excerpt;
use crate::{
    Answer, AnswerFuture, BatchContext, BatchFuture, Capabilities, Context, Failure, Handler, InChild, Item,
    ParamsError, TypeRegistration,
};

/// Upper bound on a server's `Retry-After`.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);
/// Timeout for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of an attempt without a deadline.
pub(super) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum characters of an error response quoted in the message.
const QUOTED_CHARS: usize = 500;

/// A request and its limits.
#[derive(Clone, Debug)]
pub struct Call {
    pub url: Url,
    pub method: Method,
    pub headers: HeaderMap,
    /// Maximum bytes of the response body.
    pub max_output: usize,
    /// Send the request once more if the service closes a kept connection without an answer.
    pub resend_on_close: bool,
}

/// Makes a [`Call`] per attempt, or per call with several tasks.
pub struct Http {
    client: KeepAliveClient,
    call: Arc<Call>,
    /// The service gets batches of CloudEvents.
    takes_batches: bool,
}

/// Creates the client shared by all `http` types of a process. It follows no redirects: a moved address is a
/// configuration change.
pub fn client() -> Result<KeepAliveClient, String> {
    let settings = || {
        Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("kafleet/", env!("CARGO_PKG_VERSION")))
    };
    KeepAliveClient::new(settings).map_err(|error| format!("cannot create an http client: {}", root_cause(&error)))
}

impl Http {
    pub fn new(client: KeepAliveClient, call: Call) -> Self {
        Self { client, call: Arc::new(call), takes_batches: false }
    }

    /// Lets the service take several tasks in one request, also for a single task.
    pub fn with_batches(self) -> Self {
        Self { takes_batches: true, ..self }
    }

    /// Creates the type of a configuration section.
    pub(super) fn from_section(section: &mut Section<'_>) -> Option<TypeRegistration> {
        let takes_batches = section.config.batch.is_some();
        call(section).map(|(client, call)| {
            let mut registered = TypeRegistration::new(Self { takes_batches, ..Self::new(client, call) });
            registered.policy.trip_on = TypePolicy::outage_kinds();
            registered
        })
    }
}

fn call(section: &mut Section<'_>) -> Option<(KeepAliveClient, Call)> {
    let (url, method, headers) = (url(section), method(section), headers(section));
    if section.client.is_none() {
        *section.client = client().map_err(|error| section.problem("", error)).ok();
    }
    let client = section.client.clone();
    let resend_on_close = section.config.resend_on_close.unwrap_or(true);
    let max_output = section.max_output();
    Some((client?, Call { url: url?, method: method?, headers: headers?, max_output, resend_on_close }))
}

fn url(section: &mut Section<'_>) -> Option<Url> {
    let Some(text) = &section.config.url else {
        section.problem(
            "url",
            "missing; hint: set it to the address of the service, such as \"https://resizer.internal/resize\"",
        );
        return None;
    };
    let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    if url.is_none() {
        section.problem("url", format!("`{}` is not an http or https url", clip(text)));
    }
    url
}

fn method(section: &mut Section<'_>) -> Option<Method> {
    match section.config.method.as_deref().unwrap_or("POST") {
        "POST" => Some(Method::POST),
        "PUT" => Some(Method::PUT),
        "PATCH" => Some(Method::PATCH),
        other => {
            section.problem("method", format!("`{}` is unknown: use POST, PUT or PATCH", clip(other)));
            None
        }
    }
}

fn headers(section: &mut Section<'_>) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, value) in &section.config.headers {
        match (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
            (Ok(name), Ok(value)) => drop(headers.insert(name, value)),
            // The value may be a secret and is not shown.
            (Ok(_), Err(_)) => {
                section
                    .problem(&format!("headers.{name}"), "the value has characters that are not allowed in a header");
            }
            (Err(_), _) => section.problem("headers", format!("`{}` is not the name of a header", clip(name))),
        }
    }
    (headers.len() == section.config.headers.len()).then_some(headers)
}

impl Handler for Http {
    fn run(&self, params: &RawJson, cx: Context) -> Result<AnswerFuture, ParamsError> {
        let (client, call, params) = (self.client.clone(), self.call.clone(), params.clone());
        if self.takes_batches {
            return Ok(Box::pin(run_one(
                params,
                cx,
                |items, cx| async move { call.call_batch(&client, items, cx).await },
            )));
        }
        Ok(Box::pin(async move {
            let answer = call.send(&client, params, &cx);
            tokio::select! {
                answer = answer => answer,
                () = cx.cancelled().cancelled() => Err(Failure::cancelled()),
            }
        }))
    }

    fn run_batch(&self, items: Vec<Item<RawJson>>, cx: BatchContext) -> BatchFuture {
        let (client, call) = (self.client.clone(), self.call.clone());
        Box::pin(async move { call.call_batch(&client, items, cx).await })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { in_child: InChild::Never, takes_batches: self.takes_batches, ..Capabilities::default() }
    }
}

impl Call {
    async fn send(&self, client: &KeepAliveClient, params: RawJson, cx: &Context) -> Answer {
        let timeout = cx.deadline.map_or(DEFAULT_TIMEOUT, |at| at.saturating_duration_since(Instant::now()));
        let body = params.text().to_owned();
        let request =
            client.request(self.method.clone(), self.url.clone()).headers(self.headers(cx)).timeout(timeout).body(body);
        result(&self.response(client, request, self.max_output).await?)
    }

    /// Sends a request, and returns the body of a successful response.
    pub(super) async fn response(
        &self,
        client: &KeepAliveClient,
        request: RequestBuilder,
        max_output: usize,
    ) -> Result<Vec<u8>, Failure> {
        let mut response = client.send(request, self.resend_on_close).await.map_err(|error| self.no_response(error))?;
        let (status, wait) = (response.status(), retry_after(response.headers(), now()));
        let body = read_body(&mut response, max_output).await.map_err(|error| self.no_response(error))?;
        if !status.is_success() {
            return Err(self.error_status(&response, &body, wait));
        }
        if body.len() > max_output {
            let message =
                format!("the response has more than {max_output} bytes; hint: store it elsewhere and return a link");
            return Err(Failure::fail(message).of_kind("result_too_large"));
        }
        Ok(body)
    }

    /// Returns the request headers: CloudEvents attributes, idempotency key and trace of the attempt, then the
    /// configured ones.
    fn headers(&self, cx: &Context) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let mut set = |name: &'static str, value: &str| {
            // Only a trace from outside can have characters that are invalid in a header.
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        };
        set("ce-specversion", "1.0");
        set("ce-id", cx.id.as_str());
        set("ce-type", cx.task_type());
        set("ce-source", "kafleet");
        set("idempotency-key", &cx.idempotency_key());
        set("kafleet-task-id", cx.id.as_str());
        set("kafleet-attempt", &cx.number.to_string());
        set("kafleet-run", &cx.run.to_string());
        if let Some(trace) = &cx.trace {
            set("traceparent", &trace.parent);
            trace.state.iter().for_each(|state| set("tracestate", state));
        }
        headers.extend(self.headers.clone());
        headers
    }

    fn no_response(&self, error: reqwest::Error) -> Failure {
        let (host, timed_out) = (self.url.host_str().unwrap_or_default(), error.is_timeout());
        let symptom = if error.is_connect() { "cannot be reached" } else { "did not respond" };
        Failure::no_response(format!("`{host}` {symptom}: {}", root_cause(&error.without_url())), timed_out)
    }

    fn error_status(&self, response: &Response, body: &[u8], wait: Option<Duration>) -> Failure {
        let status = response.status();
        let mut message = format!("`{}` responded with {status}", self.url.host_str().unwrap_or_default());
        if let Some(to) = response.headers().get("location").filter(|_| status.is_redirection()) {
            let to = excerpt(to.as_bytes(), QUOTED_CHARS);
            message = format!("{message} to `{to}`; hint: redirects are not followed, set `url` to the target");
        } else if !body.trim_ascii().is_empty() {
            message = format!("{message}: {}", excerpt(body, QUOTED_CHARS));
        }
        Failure::error_status(message, status, wait, is_retryable(status))
    }
}

/// Reads a response body, up to one byte over the limit.
async fn read_body(response: &mut Response, max_output: usize) -> Result<Vec<u8>, reqwest::Error> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        let room = max_output.saturating_add(1) - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if body.len() > max_output {
            break;
        }
    }
    Ok(body)
}

/// Returns whether a retry of the same request may succeed.
fn is_retryable(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY)
}

/// Converts a body: JSON as it is, other text to a string, nothing to null.
fn result(body: &[u8]) -> Answer {
    if body.trim_ascii().is_empty() {
        return Ok(RawJson::null());
    }
    let refused =
        |error: &dyn Display| Failure::fail(format!("the response is not JSON: {error}")).of_kind("bad_output");
    match RawJson::parse(body) {
        Ok(result) => Ok(result),
        Err(JsonError::Syntax(_)) => RawJson::of(&String::from_utf8_lossy(body)).map_err(|error| refused(&error)),
        Err(error) => Err(refused(&error)),
    }
}

/// Current time by the brokers' clock, with which dates of services are compared.
pub(crate) fn now() -> jiff::Timestamp {
    jiff::Timestamp::from_millisecond(now_ms()).unwrap_or_default()
}

/// Parses `Retry-After`, seconds or an HTTP date, capped at [`MAX_RETRY_AFTER`]. `None` if it is neither.
pub(crate) fn retry_after(headers: &HeaderMap, now: jiff::Timestamp) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let at = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
            Duration::try_from(at.duration_since(now)).unwrap_or_default()
        }
    };
    Some(wait.min(MAX_RETRY_AFTER))
}

/// Message of the innermost cause: the outer ones only repeat that a request was sent.
fn root_cause(error: &dyn Error) -> String {
    let mut innermost = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_accepts_seconds_and_dates_up_to_the_cap() {
        let now = "1994-11-06T08:49:07Z".parse().unwrap();
        for (text, wait) in [
            ("120", Some(120)),
            ("0", Some(0)),
            ("99999999", Some(3600)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(30)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
            ("Mon, 07 Nov 1994 08:49:37 GMT", Some(3600)),
            ("soon", None),
            ("-1", None),
        ] {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(text))]);
            assert_eq!(retry_after(&headers, now), wait.map(Duration::from_secs), "{text}");
        }
    }
}
