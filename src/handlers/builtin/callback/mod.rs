//! `kafleet-callback`: one signed call that tells somebody outside what has become of a task.
//!
//! Whom it may reach says the configuration, checked on the address that is connected to; no redirect is followed and no
//! proxy used, so that nothing comes behind that check. Secrets are put in at the last moment and never told: not the
//! URL, nor what the other side answers, is part of a message.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, StatusCode, Url};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::http::retry_after;
use crate::config::{CallbacksConfig, TypePolicy};
use crate::handlers::egress::secrets::fill;
use crate::handlers::schema;
use crate::handlers::{Answer, AnswerFuture, Context, Failure, Handler, ParamsError, Registered, Schema};
use crate::model::json::RawJson;
use crate::model::retry::RetryPolicy;
use crate::model::task::action::{CALLBACK_TYPE, Callback};
use crate::model::units::duration::Millis;
use egress_policy::{Guard, Refused, Resolver};

mod egress_policy;
mod signature;

pub use signature::{ID, SIGNATURE, TIMESTAMP, signature};

/// The type's name.
pub const TYPE: &str = CALLBACK_TYPE;
/// Calls at once in one worker: they wait for others, they do not compute.
const CONCURRENCY: u32 = 32;
const RETRIES: u32 = 10;
const MIN_BACKOFF: Millis = Millis::secs(1);
const MAX_BACKOFF: Millis = Millis::secs(600);
const TIMEOUT: Millis = Millis::secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// What is called with what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CallbackParams {
    /// `${name}` in its path or query stands for a secret of `[callbacks.secrets]`.
    pub url: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The secret that signs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Sent as it is.
    pub body: RawJson,
}

/// Makes calls, as far as the configuration allows them.
pub struct Callbacks {
    client: Client,
    guard: Arc<Guard>,
}

impl Callbacks {
    pub fn new(config: &CallbacksConfig) -> Result<Self, String> {
        let guard = Arc::new(Guard::new(config)?);
        let client = Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            // A proxy would connect to where we cannot look.
            .no_proxy()
            .dns_resolver(Arc::new(Resolver(guard.clone())))
            .user_agent(concat!("kafleet/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|why| format!("no http client could be made: {why}"))?;
        Ok(Self { client, guard })
    }

    /// The params of the task that makes a call.
    pub fn params(callback: &Callback, body: RawJson) -> CallbackParams {
        let Callback { url, headers, secret, .. } = callback.clone();
        CallbackParams { url, headers, secret, body }
    }

    /// The type, ready to be registered.
    pub fn registered(config: &CallbacksConfig) -> Result<Registered, String> {
        let policy = TypePolicy {
            concurrency: Some(CONCURRENCY),
            retry: RetryPolicy { retries: RETRIES, min_backoff: MIN_BACKOFF, max_backoff: MAX_BACKOFF },
            timeout: TIMEOUT,
            ..TypePolicy::default()
        };
        Ok(Registered { handler: Arc::new(Self::new(config)?), schema: Schema::of::<CallbackParams>(), policy })
    }
}

impl Handler for Callbacks {
    fn start(&self, params: &RawJson, cx: Context) -> Result<AnswerFuture, ParamsError> {
        let params: CallbackParams = schema::read(params.text())?;
        self.guard.check(&params)?;
        let (client, guard) = (self.client.clone(), self.guard.clone());
        Ok(Box::pin(async move {
            tokio::select! {
                answer = call(&client, &guard, &params, &cx) => answer,
                () = cx.cancelled().cancelled() => Err(Failure::cancelled()),
            }
        }))
    }

    fn refuses(&self, params: &RawJson) -> Option<ParamsError> {
        schema::read::<CallbackParams>(params.text()).and_then(|params| self.guard.check(&params)).err()
    }

    fn name_in_child<'a>(&'a self, _: &'a str) -> Option<&'a str> {
        None
    }
}

async fn call(client: &Client, guard: &Guard, params: &CallbackParams, cx: &Context) -> Answer {
    let url = address(guard, params).await?;
    let host = url.host_str().unwrap_or_default().to_owned();
    let headers = headers(guard, params, cx).await?;
    let timeout = cx.deadline.map_or(TIMEOUT.into(), |at| at.saturating_duration_since(Instant::now()));
    let request = client.post(url).headers(headers).timeout(timeout).body(params.body.text().to_owned());
    let response = request.send().await.map_err(|why| unanswered(&host, &why))?;
    let (status, wait) = (response.status(), retry_after(response.headers(), jiff::Timestamp::now()));
    if !status.is_success() {
        return Err(refused(&host, status, wait));
    }
    RawJson::of(&serde_json::json!({"status": status.as_u16()})).map_err(|why| Failure::fail(why.to_string()))
}

/// The URL with its secrets, which lead to no other host than it names.
async fn address(guard: &Guard, params: &CallbackParams) -> Result<Url, Failure> {
    let text = fill(&params.url, guard.secrets()).await.map_err(no_secret)?;
    let told = || Failure::dead("the url is none with its secrets in place").of_kind("bad_url");
    let (named, url) = (Url::parse(&params.url).map_err(|_| told())?, Url::parse(&text).map_err(|_| told())?);
    let place = |url: &Url| (url.scheme().to_owned(), url.host_str().map(str::to_owned), url.port_or_known_default());
    if place(&named) == place(&url) { Ok(url) } else { Err(told()) }
}

async fn headers(guard: &Guard, params: &CallbackParams, cx: &Context) -> Result<HeaderMap, Failure> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for (name, text) in &params.headers {
        let value = fill(text, guard.secrets()).await.map_err(no_secret)?;
        let told =
            |_| Failure::dead(format!("the header `{name}` cannot be sent with its secret in place")).of_kind("bad_header");
        let mut value: HeaderValue = value.parse().map_err(told)?;
        value.set_sensitive(text != value.to_str().unwrap_or_default());
        headers.insert(name.parse::<HeaderName>().map_err(|_| Failure::dead(format!("`{name}` is no header")))?, value);
    }
    let seconds = jiff::Timestamp::now().as_second().to_string();
    let mut set = |name: &'static str, value: &str| {
        // Ids, numbers and base64 are all that a header may have.
        headers.extend(value.parse::<HeaderValue>().ok().map(|value| (HeaderName::from_static(name), value)));
    };
    set(ID, cx.id.as_str());
    set(TIMESTAMP, &seconds);
    set("kafleet-attempt", &cx.number.to_string());
    if let Some(name) = &params.secret {
        let secret = guard.secrets().get(name).ok_or_else(|| no_secret(format!("there is no secret `{name}`")))?;
        let secret = secret.source().read().await.map_err(no_secret)?;
        let signature = signature(&secret, cx.id.as_str(), &seconds, params.body.text()).map_err(no_secret)?;
        set(SIGNATURE, &signature);
    }
    Ok(headers)
}

/// Somebody has to set it right: other attempts are of use then.
fn no_secret(why: String) -> Failure {
    Failure::retry(why).of_kind("secret")
}

fn unanswered(host: &str, why: &reqwest::Error) -> Failure {
    let mut cause: Option<&(dyn Error + 'static)> = why.source();
    let mut last = String::new();
    while let Some(error) = cause {
        if let Some(refused) = error.downcast_ref::<Refused>() {
            return Failure::dead(refused.to_string()).of_kind("forbidden_address");
        }
        last = error.to_string();
        cause = error.source();
    }
    let told = if why.is_timeout() { "no answer in time".to_owned() } else { last };
    Failure::unanswered(format!("`{host}` did not answer: {told}"), why.is_timeout())
}

/// Only what will not change by itself is not tried again.
fn refused(host: &str, status: StatusCode, wait: Option<Duration>) -> Failure {
    let message = format!("`{host}` answered {status}");
    let failure = match wait {
        _ if status.is_redirection() => {
            Failure::dead(format!("{message}; hint: redirects are not followed, name where it leads"))
        }
        _ if status == StatusCode::GONE => Failure::dead(message),
        Some(wait) => Failure::retry_after(message, wait),
        None => Failure::retry(message),
    };
    failure.of_kind("http_status")
}
