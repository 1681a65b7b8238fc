//! Callbacks to receivers that do not respond.

use std::net::SocketAddr;
use std::time::Duration;

use kafleet::config::CallbacksConfig;
use kafleet::handlers::builtin::callback::{Callbacks, TYPE};
use kafleet::handlers::testing::{Outcome, TestRun};
use kafleet::handlers::{Fail, TypeRegistration};
use kafleet::model::json::RawJson;
use kafleet_testkit::wait::DEADLINE;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The type with a number of slots.
fn callbacks(slots: u32) -> TypeRegistration {
    let config =
        CallbacksConfig { private: vec!["127.0.0.0/8".into()], plain_http: true, ..CallbacksConfig::default() };
    Callbacks::registered(&config, Some(slots)).unwrap()
}

async fn deliver(registered: TypeRegistration, to: SocketAddr) -> Outcome {
    let params = RawJson::of(&json!({"url": format!("http://{to}/"), "body": {}})).unwrap();
    let trial = TestRun::new().timeout(DEADLINE);
    tokio::time::timeout(DEADLINE, trial.handle(TYPE, &registered, params)).await.expect("an attempt ends")
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Receives a request and responds.
async fn respond(mut connection: TcpStream, status: &str) {
    let mut request = [0; 4_096];
    assert!(connection.read(&mut request).await.unwrap() > 0);
    let response = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    connection.write_all(response.as_bytes()).await.unwrap();
}

#[tokio::test]
async fn silent_receiver_leaves_slots_to_others() {
    let registered = callbacks(8);
    let ((silent, silent_address), (other, other_address)) = (listen().await, listen().await);
    let calls = [0; 2].map(|_| tokio::spawn(deliver(registered.clone(), silent_address)));
    // A connection proves that the call has its slot.
    let connections = [silent.accept().await.unwrap().0, silent.accept().await.unwrap().0];
    let third = deliver(registered.clone(), silent_address).await;
    assert_eq!((third.failure().then, third.failure().kind.as_ref()), (Fail::Wait { after: None }, "unreachable"));
    assert!(third.failure().message.contains("2 calls of it are running"), "{}", third.failure());
    let delivered = tokio::spawn(deliver(registered.clone(), other_address));
    respond(other.accept().await.unwrap().0, "200 OK").await;
    assert_eq!(delivered.await.unwrap().output(), json!({"status": 200}), "another receiver on the same host");
    drop(connections);
    for call in calls {
        assert_eq!(call.await.unwrap().failure().then, Fail::Retry { after: None }, "an attempt without a response");
    }
    // Once it responds, whatever the status, it uses all slots.
    let call = tokio::spawn(deliver(registered.clone(), silent_address));
    respond(silent.accept().await.unwrap().0, "503 Service Unavailable\r\nretry-after: 9").await;
    let after = Some(Duration::from_secs(9));
    assert_eq!(call.await.unwrap().failure().then, Fail::Wait { after });
    let calls: Vec<_> = (0..8).map(|_| tokio::spawn(deliver(registered.clone(), silent_address))).collect();
    let mut connections = Vec::new();
    for _ in &calls {
        connections.push(tokio::time::timeout(DEADLINE, silent.accept()).await.expect("a call").unwrap().0);
    }
    calls.iter().for_each(tokio::task::JoinHandle::abort);
}
