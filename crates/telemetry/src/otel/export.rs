//! Requests to the collector: OTLP over HTTP with protobuf, with a deadline and a bounded response.

use std::time::Duration;

use kafleet_config::without_userinfo;
use kafleet_runtime::error_text::messages;
use reqwest::StatusCode;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};

use super::environment::OtelSettings;
use super::protobuf;
use super::span::Span;

/// Maximum size of a response that is read, in bytes; the rest is ignored.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;
/// Longest pause that a collector may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);

/// Reason why a collector has not taken spans.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExportError {
    /// Worth another attempt, after the pause that the collector asks for.
    #[error("{reason}")]
    Transient { reason: String, pause: Option<Duration> },
    #[error("{0}")]
    Permanent(String),
}

/// Connection to a collector.
pub(super) struct Collector {
    client: reqwest::Client,
    settings: OtelSettings,
}

impl Collector {
    pub(super) fn new(settings: OtelSettings) -> Result<Self, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in &settings.headers {
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|error| error.to_string())?;
            let mut value = HeaderValue::from_str(value).map_err(|error| error.to_string())?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        let client = reqwest::Client::builder()
            .user_agent(concat!("kafleet/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers)
            .redirect(reqwest::redirect::Policy::none())
            .timeout(settings.timeout)
            .pool_max_idle_per_host(1)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self { client, settings })
    }

    /// URL of the collector, for people: user and password are redacted.
    pub(super) fn url(&self) -> String {
        without_userinfo(&self.settings.url)
    }

    /// Sends spans once. Returns the number of those that the collector rejected.
    pub(super) async fn send(&self, spans: &[Span]) -> Result<u64, ExportError> {
        let body = protobuf::request(&self.settings.resource, spans);
        let sent = self.client.post(&self.settings.url).body(body).send().await;
        let response = sent.map_err(|error| ExportError::Transient { reason: text_of(&error), pause: None })?;
        let status = response.status();
        if status.is_success() {
            // The spans are accepted, whatever the rest of the response is.
            return Ok(protobuf::rejected_spans(&read(response).await).min(spans.len() as u64));
        }
        let reason = format!("the collector answers {status}");
        let is_transient = matches!(
            status,
            StatusCode::REQUEST_TIMEOUT
                | StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT
        );
        if !is_transient {
            return Err(ExportError::Permanent(reason));
        }
        let after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let pause = after.map(|seconds| Duration::from_secs(seconds).min(MAX_RETRY_AFTER));
        Err(ExportError::Transient { reason, pause })
    }
}

/// Reads the beginning of a response.
async fn read(mut response: reqwest::Response) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        let room = MAX_RESPONSE_BYTES - bytes.len();
        bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if bytes.len() == MAX_RESPONSE_BYTES {
            break;
        }
    }
    bytes
}

/// Text of an error with its causes. The URL is left out: it may have a password.
fn text_of(error: &reqwest::Error) -> String {
    let text = if error.is_timeout() { "no answer in time" } else { "no connection" };
    std::error::Error::source(error).map_or_else(|| text.to_owned(), |cause| format!("{text}: {}", messages(cause)))
}

/// Sends an empty request, to check that a collector answers.
///
/// # Errors
/// It does not answer, or refuses the request.
pub async fn probe(settings: &OtelSettings) -> Result<(), String> {
    let collector = Collector::new(settings.clone())?;
    collector.send(&[]).await.map(|_| ()).map_err(|error| error.to_string())
}
