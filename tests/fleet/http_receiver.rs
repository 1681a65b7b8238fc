//! HTTP server that receives callbacks.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use parking_lot::Mutex;
use serde_json::Value;

/// Received request.
#[derive(Clone, Debug)]
pub struct Call {
    pub path: String,
    pub headers: HeaderMap,
    pub body: String,
}

impl Call {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    pub fn id(&self) -> &str {
        self.header("webhook-id")
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// Accepts requests to `/ok`, those to `/flaky` on the second attempt, and those to `/broken` never.
#[derive(Clone, Default)]
pub struct Receiver {
    calls: Arc<Mutex<Vec<Call>>>,
    pub url: String,
}

impl Receiver {
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let receiver = Self { url, ..Self::default() };
        let app = Router::new().route("/{path}", post(take)).with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        receiver
    }

    pub fn calls(&self, path: &str) -> Vec<Call> {
        self.calls.lock().iter().filter(|call| call.path == path).cloned().collect()
    }

    /// Number of requests per webhook id.
    pub fn ids(&self, path: &str) -> BTreeMap<String, usize> {
        let mut ids = BTreeMap::new();
        self.calls(path).iter().for_each(|call| *ids.entry(call.id().to_owned()).or_default() += 1);
        ids
    }
}

async fn take(
    State(receiver): State<Receiver>,
    Path(path): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    let call = Call { path, headers, body: String::from_utf8(body.to_vec()).unwrap() };
    let first = call.header("kafleet-attempt") == "1";
    let status = match call.path.as_str() {
        "flaky" if first => StatusCode::SERVICE_UNAVAILABLE,
        "broken" => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::OK,
    };
    receiver.calls.lock().push(call);
    status
}
