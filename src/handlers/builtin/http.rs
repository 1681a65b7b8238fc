//! `http`: a call of a configured URL is the task type. Params are the body, the answer's body is the result, and its
//! status says how it went.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Method, Response, StatusCode, Url};

use crate::handlers::failure::excerpt;
use crate::handlers::{Answer, AnswerFuture, Context, Failure, Handler, ParamsError};
use crate::model::json::RawJson;

/// A server cannot ask for a longer wait than this.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);
/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// For an attempt without a deadline of its own.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(120);
/// How much of a refusal's body its message quotes.
const QUOTED_CHARS: usize = 500;

/// What is called, and how.
#[derive(Clone, Debug)]
pub struct Call {
    pub url: Url,
    pub method: Method,
    pub headers: HeaderMap,
    /// Bytes of the answer's body.
    pub max_output: usize,
}

/// Makes a [`Call`] per attempt.
pub struct Http {
    client: Client,
    call: Arc<Call>,
}

/// The client that all `http` types of a process share. Follows no redirects: a moved address is a setting to change.
pub fn client() -> Result<Client, String> {
    Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(concat!("kafleet/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|why| format!("no http client could be made: {}", causes(&why)))
}

impl Http {
    pub fn new(client: Client, call: Call) -> Self {
        Self { client, call: Arc::new(call) }
    }
}

impl Handler for Http {
    fn start(&self, params: &RawJson, cx: Context) -> Result<AnswerFuture, ParamsError> {
        let (client, call, params) = (self.client.clone(), self.call.clone(), params.clone());
        Ok(Box::pin(async move {
            let answered = call.make(&client, params, &cx);
            tokio::select! {
                answer = answered => answer,
                () = cx.cancelled().cancelled() => Err(Failure::cancelled()),
            }
        }))
    }

    fn name_in_child<'a>(&'a self, _: &'a str) -> Option<&'a str> {
        None
    }
}

impl Call {
    async fn make(&self, client: &Client, params: RawJson, cx: &Context) -> Answer {
        let timeout = cx.deadline.map_or(DEFAULT_TIMEOUT, |at| at.saturating_duration_since(Instant::now()));
        let body = params.text().to_owned();
        let request = client.request(self.method.clone(), self.url.clone()).headers(self.headers(cx)).timeout(timeout).body(body);
        let mut response = request.send().await.map_err(|why| self.unanswered(why))?;
        let (status, wait) = (response.status(), retry_after(response.headers(), now()));
        let body = self.body(&mut response).await.map_err(|why| self.unanswered(why))?;
        if !status.is_success() {
            return Err(self.refused(&response, &body, wait));
        }
        if body.len() > self.max_output {
            let told =
                format!("the answer has more than {} bytes; hint: store it elsewhere and answer with a link", self.max_output);
            return Err(Failure::fail(told).of_kind("result_too_large"));
        }
        result(&body)
    }

    /// The configured headers, and what an attempt says of itself: CloudEvents attributes, the idempotency key, the trace.
    fn headers(&self, cx: &Context) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let mut set = |name: &'static str, value: &str| {
            // Only a trace from outside can hold what a header cannot.
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

    /// The body, and one byte more than allowed where it is too long.
    async fn body(&self, response: &mut Response) -> Result<Vec<u8>, reqwest::Error> {
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            let room = self.max_output.saturating_add(1) - body.len();
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if body.len() > self.max_output {
                break;
            }
        }
        Ok(body)
    }

    fn unanswered(&self, why: reqwest::Error) -> Failure {
        let (host, timed_out) = (self.url.host_str().unwrap_or_default(), why.is_timeout());
        Failure::unanswered(format!("`{host}` did not answer: {}", causes(&why.without_url())), timed_out)
    }

    fn refused(&self, response: &Response, body: &[u8], wait: Option<Duration>) -> Failure {
        let status = response.status();
        let mut message = format!("`{}` answered {status}", self.url.host_str().unwrap_or_default());
        if let Some(to) = response.headers().get("location").filter(|_| status.is_redirection()) {
            let to = excerpt(to.as_bytes(), QUOTED_CHARS);
            message = format!("{message} to `{to}`; hint: redirects are not followed, set `url` to where it leads");
        } else if !body.trim_ascii().is_empty() {
            message = format!("{message}: {}", excerpt(body, QUOTED_CHARS));
        }
        let failure = match (is_passing(status), wait) {
            (true, Some(wait)) => Failure::retry_after(message, wait),
            (true, None) => Failure::retry(message),
            (false, _) => Failure::fail(message),
        };
        failure.of_kind("http_status")
    }
}

/// Whether the same call may be answered better later.
fn is_passing(status: StatusCode) -> bool {
    status.is_server_error()
        || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS)
}

/// JSON as it is, other text as a string, nothing as null.
fn result(body: &[u8]) -> Answer {
    if body.trim_ascii().is_empty() {
        return Ok(RawJson::null());
    }
    RawJson::parse(body)
        .or_else(|_| RawJson::of(&String::from_utf8_lossy(body)))
        .map_err(|why| Failure::fail(format!("the answer is not JSON: {why}")))
}

fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

/// Seconds or an HTTP date; at most [`MAX_RETRY_AFTER`], and nothing for what is neither.
pub(in crate::handlers) fn retry_after(headers: &HeaderMap, now: jiff::Timestamp) -> Option<Duration> {
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

/// An error with its causes, outermost first.
fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date_within_reason() {
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
