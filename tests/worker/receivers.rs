//! Callbacks of one worker to several receivers, one of which does not respond.

use std::time::{Duration, Instant};

use kafleet::config::CallbacksConfig;
use kafleet::control::{CircuitSetting, ControlKey, ControlRecord, ForcedCircuit};
use kafleet::handlers::builtin::callback::Callbacks;
use kafleet::model::event::{Event, Kind as EventKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::worker::fleet::{Fleet, Worker, eventually, memory};
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

/// Number of receivers, the first of which refuses connections.
const RECEIVERS: usize = 10;
/// Callbacks of each receiver.
const CALLBACKS: usize = 60;

/// Receivers on ports of their own, without the first one if it is dead.
async fn receivers(first_is_dead: bool) -> (Vec<String>, tokio::task::JoinSet<()>) {
    let (mut params, mut serving) = (Vec::new(), tokio::task::JoinSet::new());
    for n in 0..RECEIVERS {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        params.push(format!(r#"{{"url": "http://{}/", "body": {{}}}}"#, listener.local_addr().unwrap()));
        if n > 0 || !first_is_dead {
            serving.spawn(responding(listener));
        }
    }
    (params, serving)
}

/// Delivers callbacks to all receivers. Returns the results of those that respond, and the worker.
async fn deliver(first_is_dead: bool) -> (Vec<Event>, Fleet, Worker) {
    let config =
        CallbacksConfig { private: vec!["127.0.0.0/8".into()], plain_http: true, ..CallbacksConfig::default() };
    let registered = Callbacks::registered(&config, Some(8)).unwrap();
    let (fleet, _) = memory(1, &[Kind { name: TYPE, registered }]).await;
    let (params, _serving) = receivers(first_is_dead).await;
    for n in 0..CALLBACKS {
        for (receiver, params) in params.iter().enumerate() {
            let id = format!("r{receiver}-{n}");
            fleet.send_record(TYPE, None, None, Some(params.as_bytes()), &[("ce_id", id.as_str())]).await;
        }
    }
    let worker = fleet.worker();
    let alive = if first_is_dead { RECEIVERS - 1 } else { RECEIVERS };
    let results = fleet.wait_for_results(alive * CALLBACKS).await;
    (results, fleet, worker)
}

/// A dead receiver has 60 tasks, a quarter of the window of 256, before, between and behind the others.
#[tokio::test(flavor = "multi_thread")]
async fn dead_receiver_of_ten_costs_the_others_nothing() {
    let (results, _fleet, worker) = deliver(false).await;
    assert_eq!(worker.metric("kafleet_hosts_opened_total", TYPE), 0.0);
    assert!(results.iter().all(|event| event.kind() == EventKind::Succeeded), "{results:?}");
    worker.stop().await;
    let (results, fleet, worker) = deliver(true).await;
    assert!(results.iter().all(|event| event.kind() == EventKind::Succeeded && event.attempt == 1), "{results:?}");
    assert!(results.iter().all(|event| !event.id.as_str().starts_with("r0-")));
    assert_eq!(worker.metric("kafleet_open_hosts", TYPE), 1.0);
    assert_eq!(worker.metric("kafleet_hosts_opened_total", TYPE), 1.0);
    // Five failures open its circuit. Attempts that ran then and single probes may be more, but most tasks have not started.
    let started = (0..CALLBACKS).filter(|n| !fleet.kinds_of(&format!("r0-{n}")).is_empty()).count();
    assert!(started < CALLBACKS / 2, "{started} callbacks of the dead receiver have used an attempt");
    worker.kill().await;
}

/// Host of the params of a callback.
fn host_of(params: &str) -> String {
    let params: serde_json::Value = serde_json::from_str(params).unwrap();
    params["url"].as_str().unwrap().trim_start_matches("http://").trim_end_matches('/').to_owned()
}

/// Opens the circuit of a host, as an operator does.
async fn open_host(fleet: &Fleet, host: &str) {
    let setting = CircuitSetting { v: 1, at_ms: 0, state: ForcedCircuit::Open, reason: None, by: None };
    fleet.put_control(ControlKey::HostCircuit(TYPE.into(), host.into()), ControlRecord::Circuit(setting)).await;
}

/// Eight slots have a window of 256 offsets, of which tasks of open hosts occupy at most 64. The others leave as waits.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_beyond_a_quarter_of_the_window_wait_at_the_tracker() {
    let config =
        CallbacksConfig { private: vec!["127.0.0.0/8".into()], plain_http: true, ..CallbacksConfig::default() };
    let registered = Callbacks::registered(&config, Some(8)).unwrap();
    let (fleet, _) = memory(1, &[Kind { name: TYPE, registered }]).await;
    let (params, _serving) = receivers(false).await;
    open_host(&fleet, &host_of(&params[0])).await;
    for n in 0..100 {
        let id = format!("r0-{n}");
        fleet.send_record(TYPE, None, None, Some(params[0].as_bytes()), &[("ce_id", id.as_str())]).await;
    }
    fleet.send_record(TYPE, None, None, Some(params[1].as_bytes()), &[("ce_id", "other")]).await;
    let worker = fleet.worker();
    assert_eq!(fleet.result_of("other").await.kind(), EventKind::Succeeded, "it is behind 100 tasks of the open host");
    let handed_over = || {
        let events = fleet.events.all();
        let of_host = events.into_iter().filter(|event| event.kind() == EventKind::Retrying);
        of_host.filter(|event| event.payload.record().is_some() && event.payload.waits() == 1).count()
    };
    eventually("36 are handed over", async || handed_over() == 36).await;
    let events = fleet.events.all();
    let failure = events.iter().find_map(|event| event.payload.error()).unwrap();
    assert!(failure.message.contains("the circuit of the host `127.0.0.1:"), "{}", failure.message);
    worker.stop().await;
}

/// An operator opens and releases the circuit of one host, while the callbacks of others are delivered.
#[tokio::test(flavor = "multi_thread")]
async fn operator_holds_back_one_receiver() {
    let config =
        CallbacksConfig { private: vec!["127.0.0.0/8".into()], plain_http: true, ..CallbacksConfig::default() };
    let registered = Callbacks::registered(&config, Some(8)).unwrap();
    let (fleet, _) = memory(1, &[Kind { name: TYPE, registered }]).await;
    let (params, _serving) = receivers(false).await;
    let host = host_of(&params[0]);
    open_host(&fleet, &host).await;
    let worker = fleet.worker();
    worker.ready().await;
    for (receiver, params) in params.iter().enumerate() {
        let id = format!("r{receiver}");
        fleet.send_record(TYPE, None, None, Some(params.as_bytes()), &[("ce_id", id.as_str())]).await;
    }
    let results = fleet.wait_for_results(RECEIVERS - 1).await;
    assert!(results.iter().all(|event| event.id.as_str() != "r0"), "{results:?}");
    eventually("the host is open", async || worker.metric("kafleet_open_hosts", TYPE) == 1.0).await;
    fleet.delete_control(ControlKey::HostCircuit(TYPE.into(), host)).await;
    assert_eq!(fleet.result_of("r0").await.kind(), EventKind::Succeeded);
    eventually("the host is closed", async || worker.metric("kafleet_open_hosts", TYPE) == 0.0).await;
    worker.stop().await;
    fleet.assert_clean(TYPE).await;
}
