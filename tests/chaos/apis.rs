//! Requests to the APIs by a patient client, which alternates between them and retries until the deadline.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::{Client, Method};
use serde_json::Value;
use tokio::time::{Instant, sleep};

const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// Longer than the API takes to answer `outcome_unknown`.
const ONCE: Duration = Duration::from_secs(75);
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

pub struct Apis {
    pub urls: Vec<String>,
    client: Client,
    next: AtomicUsize,
}

/// Response other than a server error, with the number of requests it took.
pub struct Reply {
    pub status: u16,
    pub body: Value,
    pub calls: u32,
}

impl Apis {
    pub fn new(urls: Vec<String>) -> Self {
        let client =
            Client::builder().no_proxy().timeout(CALL_TIMEOUT).connect_timeout(Duration::from_secs(2)).build().unwrap();
        Self { urls, client, next: AtomicUsize::new(0) }
    }

    pub async fn responds(&self, url: &str, path: &str) -> bool {
        let response = self.client.get(format!("{url}{path}")).send().await;
        response.is_ok_and(|response| response.status().is_success())
    }

    /// Repeats the request until the status is below 500 or the deadline has passed.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        deadline: Instant,
    ) -> Result<Reply, String> {
        let mut calls = 0;
        loop {
            let url = &self.urls[self.next.fetch_add(1, Ordering::Relaxed) % self.urls.len()];
            let mut call = self.client.request(method.clone(), format!("{url}{path}"));
            if let Some(body) = body {
                call = call.json(body);
            }
            calls += 1;
            let error = match call.send().await {
                Ok(response) => {
                    let (status, body) = (response.status().as_u16(), response.json::<Value>().await);
                    match body {
                        Ok(body) if status < 500 => return Ok(Reply { status, body, calls }),
                        Ok(body) => format!("{status}: {body}"),
                        Err(error) => format!("{status}, truncated body: {error}"),
                    }
                }
                Err(error) => error.to_string(),
            };
            if Instant::now() >= deadline {
                return Err(format!("{method} {path}: {error}"));
            }
            sleep(RETRY_INTERVAL).await;
        }
    }

    /// Sends one request. Returns `None` without a response, whatever its effect.
    pub async fn once(&self, method: Method, path: &str, body: Option<&Value>) -> Option<(u16, Value)> {
        let url = &self.urls[self.next.fetch_add(1, Ordering::Relaxed) % self.urls.len()];
        let mut call = self.client.request(method, format!("{url}{path}"));
        if let Some(body) = body {
            call = call.json(body);
        }
        let response = call.timeout(ONCE).send().await.ok()?;
        let status = response.status().as_u16();
        Some((status, response.json::<Value>().await.ok()?))
    }

    pub async fn get(&self, path: &str, deadline: Instant) -> Result<Value, String> {
        let reply = self.call(Method::GET, path, None, deadline).await?;
        match reply.status {
            200..300 => Ok(reply.body),
            status => Err(format!("GET {path}: {status}: {}", reply.body)),
        }
    }
}
