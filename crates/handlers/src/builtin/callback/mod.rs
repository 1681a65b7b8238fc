//! `kafleet-callback`: an HTTP request, signed if its receiver has a secret, that notifies an external service about a task.
//!
//! The permitted destinations are configured, and checked on the address of the actual connection; redirects are not
//! followed and no proxy is used, since either would bypass that check. Secrets are inserted at the last moment, and
//! messages contain neither the URL nor the response.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use data_encoding::BASE64;
use hmac::{Hmac, KeyInit, Mac};
use kafleet_config::{CallbacksConfig, TypePolicy};
use kafleet_model::json::RawJson;
use kafleet_model::task::action::CALLBACK_TYPE;
use kafleet_model::task::delivery::CallbackParams;
use kafleet_model::units::duration::Millis;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, StatusCode, Url};
use serde::Deserialize;
use sha2::Sha256;
use url::Position;

use super::http::{now, retry_after};
use crate::egress::kept_connections::KeepAliveClient;
use crate::egress::secrets::fill;
use crate::failure::{BUSY, UNREACHABLE};
use crate::schema;
use crate::{
    Answer, AnswerFuture, Capabilities, Context, Failure, Handler, InChild, ParamsError, Schema, TypeRegistration,
};
use egress_policy::{CallbackPolicy, ForbiddenAddress, Resolver};
use receivers::Receivers;

mod egress_policy;
mod receivers;

/// The type's name.
pub const TYPE: &str = CALLBACK_TYPE;
/// Concurrent calls in one worker. High, because calls wait for other services rather than compute.
const CONCURRENCY: u32 = 32;
const RETRIES: u32 = 10;
const MIN_BACKOFF: Millis = Millis::secs(1);
const MAX_BACKOFF: Millis = Millis::secs(600);
const TIMEOUT: Millis = Millis::secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Handler of callback tasks.
pub struct Callbacks {
    client: KeepAliveClient,
    policy: Arc<CallbackPolicy>,
    receivers: Arc<Receivers>,
}

impl Callbacks {
    /// `slots`: concurrent calls in one worker.
    pub fn new(config: &CallbacksConfig, slots: u32) -> Result<Self, String> {
        let policy = Arc::new(CallbackPolicy::new(config)?);
        let settings = || {
            Client::builder()
                .connect_timeout(CONNECT_TIMEOUT)
                .redirect(reqwest::redirect::Policy::none())
                // A proxy would establish connections beyond the address check.
                .no_proxy()
                .dns_resolver(Arc::new(Resolver(policy.clone())))
                .user_agent(concat!("kafleet/", env!("CARGO_PKG_VERSION")))
        };
        let client =
            KeepAliveClient::new(settings).map_err(|error| format!("cannot create an http client: {error}"))?;
        Ok(Self { client, policy, receivers: Receivers::new(slots) })
    }

    /// Creates the type with its policy and schema. `concurrency`: as configured for the type.
    pub fn registered(config: &CallbacksConfig, concurrency: Option<u32>) -> Result<TypeRegistration, String> {
        let slots = concurrency.unwrap_or(CONCURRENCY);
        let policy = TypePolicy {
            concurrency: Some(slots),
            retries: RETRIES,
            min_backoff: MIN_BACKOFF,
            max_backoff: MAX_BACKOFF,
            timeout: TIMEOUT,
            ..TypePolicy::default()
        };
        Ok(TypeRegistration {
            schema: Schema::described::<CallbackParams>(),
            policy,
            ..TypeRegistration::new(Self::new(config, slots)?)
        })
    }
}

impl Handler for Callbacks {
    fn run(&self, params: &RawJson, cx: Context) -> Result<AnswerFuture, ParamsError> {
        let params: CallbackParams = schema::read(params.text())?;
        self.policy.check(&params)?;
        let (client, policy, receivers) = (self.client.clone(), self.policy.clone(), self.receivers.clone());
        Ok(Box::pin(async move {
            tokio::select! {
                answer = call(&client, &policy, &receivers, &params, &cx) => answer,
                () = cx.cancelled().cancelled() => Err(Failure::cancelled()),
            }
        }))
    }

    fn capabilities(&self) -> Capabilities {
        let policy = self.policy.clone();
        let check = move |params: &RawJson| {
            schema::read::<CallbackParams>(params.text()).and_then(|params| policy.check(&params)).err()
        };
        Capabilities {
            in_child: InChild::Never,
            check_params: Some(Arc::new(check)),
            host: Some(Arc::new(receiver_of)),
            ..Capabilities::default()
        }
    }
}

/// Returns the receiver of a callback with these params: the host of its URL, with the port if it is not that of the scheme.
/// `None` if the params have no URL with a host.
pub fn receiver_of(params: &RawJson) -> Option<String> {
    #[derive(Deserialize)]
    struct Target {
        url: String,
    }
    let Target { url } = serde_json::from_str(params.text()).ok()?;
    let url = Url::parse(&url).ok()?;
    let host = &url[Position::BeforeHost..Position::AfterPort];
    (!host.is_empty()).then(|| host.to_owned())
}

async fn call(
    client: &KeepAliveClient,
    policy: &CallbackPolicy,
    receivers: &Arc<Receivers>,
    params: &CallbackParams,
    cx: &Context,
) -> Answer {
    let url = resolved_url(policy, params).await?;
    let host = url.host_str().unwrap_or_default().to_owned();
    let headers = headers(policy, params, cx).await?;
    let Some(slot) = receivers.acquire(&url[Position::BeforeHost..Position::AfterPort]) else {
        let message = format!("`{host}` does not respond, and {} calls of it are running already", receivers.limit());
        return Err(Failure::wait(None, message).of_kind(UNREACHABLE));
    };
    let timeout = cx.deadline.map_or(TIMEOUT.into(), |at| at.saturating_duration_since(Instant::now()));
    let request = client.request(Method::POST, url).headers(headers).timeout(timeout);
    let request = request.body(params.body.text().to_owned());
    let response = client.send(request, policy.resend_on_close()).await.map_err(|error| no_response(&host, &error))?;
    slot.responded();
    let (status, wait) = (response.status(), retry_after(response.headers(), now()));
    if !status.is_success() {
        return Err(error_status(&host, status, wait));
    }
    RawJson::of(&serde_json::json!({"status": status.as_u16()})).map_err(|error| Failure::fail(error.to_string()))
}

/// Returns the URL with its secrets, which must not change its origin.
async fn resolved_url(policy: &CallbackPolicy, params: &CallbackParams) -> Result<Url, Failure> {
    let text = fill(&params.url, policy.secrets()).await.map_err(secret_error)?;
    let bad_url = || Failure::dead("the url is invalid with its secrets inserted").of_kind("bad_url");
    let template = Url::parse(&params.url).map_err(|_| bad_url())?;
    let url = Url::parse(&text).map_err(|_| bad_url())?;
    let origin = |url: &Url| (url.scheme().to_owned(), url.host_str().map(str::to_owned), url.port_or_known_default());
    if origin(&template) == origin(&url) { Ok(url) } else { Err(bad_url()) }
}

async fn headers(policy: &CallbackPolicy, params: &CallbackParams, cx: &Context) -> Result<HeaderMap, Failure> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for (name, text) in &params.headers {
        let value = fill(text, policy.secrets()).await.map_err(secret_error)?;
        let bad_header =
            |_| Failure::dead(format!("the header `{name}` is invalid with its secret inserted")).of_kind("bad_header");
        let mut value: HeaderValue = value.parse().map_err(bad_header)?;
        value.set_sensitive(text != value.to_str().unwrap_or_default());
        headers.insert(
            name.parse::<HeaderName>().map_err(|_| Failure::dead(format!("`{name}` is not a valid header name")))?,
            value,
        );
    }
    let seconds = now().as_second().to_string();
    let mut set = |name: &'static str, value: &str| {
        // Ids, numbers and base64 are always valid header values.
        headers.extend(value.parse::<HeaderValue>().ok().map(|value| (HeaderName::from_static(name), value)));
    };
    set(ID, cx.id.as_str());
    set(TIMESTAMP, &seconds);
    set("kafleet-attempt", &cx.number.to_string());
    if let Some(name) = &params.secret {
        let secret = policy.secrets().get(name).ok_or_else(|| secret_error(format!("there is no secret `{name}`")))?;
        let secret = secret.source().read().await.map_err(secret_error)?;
        let signature = signature(&secret, cx.id.as_str(), &seconds, params.body.text()).map_err(secret_error)?;
        set(SIGNATURE, &signature);
    }
    Ok(headers)
}

/// Failure of a missing or unreadable secret. Retried: it works once the configuration is fixed.
fn secret_error(reason: String) -> Failure {
    Failure::retry(reason).of_kind("secret")
}

fn no_response(host: &str, failure: &reqwest::Error) -> Failure {
    let mut cause: Option<&(dyn Error + 'static)> = failure.source();
    let mut last = String::new();
    while let Some(error) = cause {
        if let Some(forbidden) = error.downcast_ref::<ForbiddenAddress>() {
            return Failure::dead(forbidden.to_string()).of_kind("forbidden_address");
        }
        last = error.to_string();
        cause = error.source();
    }
    let reason = if failure.is_timeout() { "no response in time".to_owned() } else { last };
    Failure::no_response(format!("`{host}` did not respond: {reason}"), failure.is_timeout())
}

/// Failure of an error status. Redirects and 410 (gone) are permanent; all others are retried, also 400 and 404. A receiver
/// that refuses the call for now is busy.
fn error_status(host: &str, status: StatusCode, wait: Option<Duration>) -> Failure {
    let message = format!("`{host}` answered {status}");
    let dead = |message| Failure::dead(message).of_kind("http_status");
    match status {
        _ if status.is_redirection() => {
            dead(format!("{message}; hint: redirects are not followed, use the target url"))
        }
        StatusCode::GONE => dead(message),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            Failure::error_status(message, status, wait, true).of_kind(BUSY)
        }
        _ => Failure::error_status(message, status, wait, true),
    }
}

/// Header with the id of the delivery, the same for every attempt.
pub const ID: &str = "webhook-id";
/// Header with the time of the attempt, in seconds since 1970.
pub const TIMESTAMP: &str = "webhook-timestamp";
/// Header with the signature: `v1,` and the base64 of HMAC-SHA256 over `<id>.<timestamp>.<body>`.
pub const SIGNATURE: &str = "webhook-signature";

/// Prefix of a key in base64; any other text is the key itself.
const ENCODED: &str = "whsec_";

/// Returns the value of [`SIGNATURE`], according to <https://www.standardwebhooks.com>, whose libraries can verify it.
pub fn signature(secret: &str, id: &str, timestamp: &str, body: &str) -> Result<String, String> {
    let key = match secret.strip_prefix(ENCODED) {
        Some(encoded) => BASE64
            .decode(encoded.as_bytes())
            .map_err(|_| format!("the secret begins with `{ENCODED}`, but the rest is not base64"))?,
        None => secret.as_bytes().to_vec(),
    };
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).map_err(|error| error.to_string())?;
    for part in [id, ".", timestamp, ".", body] {
        mac.update(part.as_bytes());
    }
    Ok(format!("v1,{}", BASE64.encode(&mac.finalize().into_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test vector of the standard's own libraries.
    #[test]
    fn signature_matches_the_standard_vector() {
        let signed = signature(
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            "1614265330",
            r#"{"test": 2432232314}"#,
        );
        assert_eq!(signed.as_deref(), Ok("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="));
    }

    #[test]
    fn receiver_is_the_host_with_a_port_of_its_own() {
        let receiver = |url: &str| receiver_of(&RawJson::of(&serde_json::json!({"url": url, "body": {}})).unwrap());
        assert_eq!(receiver("https://Hooks.example.com/a/${key}").as_deref(), Some("hooks.example.com"));
        assert_eq!(receiver("https://hooks.example.com:443/").as_deref(), Some("hooks.example.com"));
        assert_eq!(receiver("http://[::1]:8080/b").as_deref(), Some("[::1]:8080"));
        assert_eq!(receiver("not a url"), None);
        assert_eq!(receiver_of(&RawJson::null()), None);
    }

    #[test]
    fn refusal_of_one_receiver_is_no_overload_of_the_type() {
        let kind = |status| error_status("a", status, None).kind;
        assert_eq!([kind(StatusCode::TOO_MANY_REQUESTS), kind(StatusCode::SERVICE_UNAVAILABLE)], [BUSY, BUSY]);
        assert_eq!(kind(StatusCode::BAD_GATEWAY), UNREACHABLE);
    }

    #[test]
    fn signature_covers_id_timestamp_and_body() {
        let first = signature("key", "a", "1", "{}").unwrap();
        for (secret, id, timestamp, body) in
            [("kez", "a", "1", "{}"), ("key", "b", "1", "{}"), ("key", "a", "2", "{}"), ("key", "a", "1", "{ }")]
        {
            assert_ne!(signature(secret, id, timestamp, body).unwrap(), first);
        }
        assert!(signature("whsec_not base64", "a", "1", "{}").unwrap_err().contains("base64"));
    }
}
