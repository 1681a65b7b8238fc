//! Callbacks of one worker to several receivers, one of which does not respond.

use std::time::{Duration, Instant};

use kafleet::config::CallbacksConfig;
use kafleet::handlers::builtin::callback::Callbacks;
use kafleet::model::event::Kind as EventKind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::worker::fleet::memory;
use crate::worker::types::Kind;

/// Name of the type: that of callbacks is reserved.
const TYPE: &str = "callback";

/// Receiver that answers every request with 200.
async fn responding(listener: TcpListener) {
    while let Ok((mut connection, _)) = listener.accept().await {
        let mut request = [0; 4_096];
        if connection.read(&mut request).await.is_ok_and(|read| read > 0) {
            let response = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            let _ = connection.write_all(response).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn receiver_that_does_not_respond_leaves_slots_to_others() {
    let config =
        CallbacksConfig { private: vec!["127.0.0.0/8".into()], plain_http: true, ..CallbacksConfig::default() };
    let registered = Callbacks::registered(&config, None).unwrap();
    let slots = registered.policy.slots() as usize;
    let (fleet, _) = memory(1, &[Kind { name: TYPE, registered }]).await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let params =
        |listener: &TcpListener| format!(r#"{{"url": "http://{}/", "body": {{}}}}"#, listener.local_addr().unwrap());
    let (to_silent, to_other) = (params(&silent), params(&other));
    for n in 0..slots + 8 {
        let id = format!("silent-{n}");
        fleet.send_record(TYPE, None, None, Some(to_silent.as_bytes()), &[("ce_id", id.as_str())]).await;
    }
    for n in 0..5 {
        let id = format!("other-{n}");
        fleet.send_record(TYPE, None, None, Some(to_other.as_bytes()), &[("ce_id", id.as_str())]).await;
    }
    let receiver = tokio::spawn(responding(other));
    let (started, worker) = (Instant::now(), fleet.worker());
    let results = fleet.wait_for_results(5).await;
    assert!(results.iter().all(|event| event.id.as_str().starts_with("other-")), "{results:?}");
    assert!(results.iter().all(|event| event.kind() == EventKind::Succeeded), "{results:?}");
    // Calls of the silent one time out after 30 s.
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    drop(silent);
    receiver.abort();
    worker.kill().await;
}
