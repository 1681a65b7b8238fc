//! Services that close kept connections instead of answering, called by `http` types and by callbacks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::stream::{self, StreamExt};
use kafleet::config::CallbacksConfig;
use kafleet::handlers::TypeRegistration;
use kafleet::handlers::builtin::callback::Callbacks;
use kafleet::handlers::builtin::http::{Call, Http, client};
use kafleet::handlers::testing::{Outcome, TestRun};
use kafleet::model::json::RawJson;
use kafleet_testkit::wait::DEADLINE;
use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Service that counts its connections and requests.
struct Service {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

impl Service {
    fn counts(&self) -> (usize, usize) {
        (self.connections.load(Ordering::SeqCst), self.requests.load(Ordering::SeqCst))
    }
}

/// Starts a service that closes each connection when it receives a request after `answered`, with or without a reset.
async fn serve(answered: usize, resets: bool) -> Service {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (connections, requests) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (connections.clone(), requests.clone());
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            counts.0.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(answer(connection, answered, resets, counts.1.clone()));
        }
    });
    Service { address, connections, requests }
}

/// Answers requests until the limit, and closes the connection when it receives one more.
async fn answer(mut connection: TcpStream, answered: usize, resets: bool, requests: Arc<AtomicUsize>) {
    let mut buffer = vec![0; 65_536];
    for number in 0..=answered {
        let mut request = Vec::new();
        while !request.ends_with(b"[7]") {
            match connection.read(&mut buffer).await {
                Ok(bytes) if bytes > 0 => request.extend_from_slice(&buffer[..bytes]),
                _ => return,
            }
        }
        let text = String::from_utf8(request).unwrap().to_ascii_lowercase();
        assert!(text.contains("kafleet-attempt: 1\r\n"), "{text}");
        requests.fetch_add(1, Ordering::SeqCst);
        if number < answered {
            let response = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-type: application/json\r\n\r\n1";
            connection.write_all(response).await.unwrap();
        }
    }
    if resets {
        connection.set_zero_linger().unwrap();
    }
}

fn http(address: SocketAddr, resend_on_close: bool) -> TypeRegistration {
    let (url, headers) = (format!("http://{address}/").parse().unwrap(), HeaderMap::new());
    let call = Call { url, method: Method::POST, headers, max_output: 100, resend_on_close };
    TypeRegistration::new(Http::new(client().unwrap(), call))
}

fn callbacks(resend_on_close: Option<bool>) -> TypeRegistration {
    let private = vec!["127.0.0.0/8".into()];
    let config = CallbacksConfig { private, plain_http: true, resend_on_close, ..CallbacksConfig::default() };
    Callbacks::registered(&config, None).unwrap()
}

/// An attempt of an `http` type, or of a callback.
async fn attempt(registered: &TypeRegistration, to: SocketAddr, is_callback: bool) -> Outcome {
    let trial = TestRun::new().timeout(DEADLINE);
    let callback = json!({"url": format!("http://{to}/"), "body": [7]});
    let params = RawJson::of(&if is_callback { callback } else { json!([7]) }).unwrap();
    tokio::time::timeout(DEADLINE, trial.handle("call", registered, params)).await.expect("an attempt ends")
}

/// Number of attempts of a test.
const ATTEMPTS: usize = 12;
/// Number of attempts of the test of concurrent ones, and how many of them run at the same time: as many as a callback
/// receiver that does not respond may hold.
const CONCURRENT_ATTEMPTS: usize = 1_000;
const CONCURRENCY: usize = 8;

/// Failure kinds of attempts, one after the other.
async fn failures(registered: &TypeRegistration, service: &Service, is_callback: bool) -> Vec<String> {
    let mut kinds = Vec::new();
    for _ in 0..ATTEMPTS {
        let outcome = attempt(registered, service.address, is_callback).await;
        kinds.extend(outcome.answer.err().map(|failure| failure.kind.to_string()));
    }
    kinds
}

#[tokio::test]
async fn request_on_a_closed_connection_is_sent_once_more() {
    for (is_callback, resets) in [(false, false), (false, true), (true, false), (true, true)] {
        let service = serve(1, resets).await;
        let registered = if is_callback { callbacks(None) } else { http(service.address, true) };
        let failures = failures(&registered, &service, is_callback).await;
        assert_eq!(failures, [""; 0], "callback {is_callback}, resets {resets}");
        let (_, requests) = service.counts();
        assert!(requests > ATTEMPTS, "no connection was used twice: {requests} requests");
    }
}

/// A request may begin a connection, and take one that another request gives back before it is open.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_requests_on_closed_connections_are_sent_once_more() {
    for is_callback in [false, true] {
        let service = serve(1, false).await;
        let registered = if is_callback { callbacks(None) } else { http(service.address, true) };
        let attempts = (0..CONCURRENT_ATTEMPTS).map(|_| attempt(&registered, service.address, is_callback));
        let outcomes = stream::iter(attempts).buffer_unordered(CONCURRENCY).collect::<Vec<_>>().await;
        let failures: Vec<_> = outcomes.into_iter().filter_map(|outcome| outcome.answer.err()).collect();
        assert!(failures.is_empty(), "callback {is_callback}: {} failures such as {:?}", failures.len(), failures[0]);
    }
}

#[tokio::test]
async fn request_on_a_new_connection_is_sent_only_once() {
    for is_callback in [false, true] {
        let service = serve(0, false).await;
        let registered = if is_callback { callbacks(None) } else { http(service.address, true) };
        let failures = failures(&registered, &service, is_callback).await;
        assert_eq!((failures, service.counts()), (vec!["unreachable".to_owned(); ATTEMPTS], (ATTEMPTS, ATTEMPTS)));
    }
}

#[tokio::test]
async fn request_is_not_sent_again_to_a_service_that_may_not_repeat() {
    for is_callback in [false, true] {
        let service = serve(1, false).await;
        let registered = if is_callback { callbacks(Some(false)) } else { http(service.address, false) };
        let failures = failures(&registered, &service, is_callback).await;
        assert!(!failures.is_empty() && failures.iter().all(|kind| kind == "unreachable"), "{failures:?}");
        assert_eq!(service.counts().1, ATTEMPTS);
    }
}
