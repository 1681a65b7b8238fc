//! SIGKILL and FLUSHALL during 20,000 tasks, and a task published with kcat as documented.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use kafleet::broker::Broker;
use kafleet::broker::kafka::Kafka;
use kafleet::broker::shared_producer::SharedProducer;
use kafleet::config::{Names, Topology};
use kafleet::model::json::RawJson;
use kafleet::model::record::state::State;
use kafleet::model::task::TaskSpec;
use kafleet::model::task::id::TaskId;
use kafleet::publish::Publisher;
use kafleet::runtime::now_ms;
use kafleet::store::Store;
use kafleet_testkit::names::unique;
use kafleet_testkit::oracle::Oracle;
use kafleet_testkit::processes::{Process, ProcessFleet, eventually_running};
use kafleet_testkit::services::connect;
use kafleet_testkit::wait::eventually;
use serde_json::{Value, json};

use crate::fleet::in_process::{brokers, is_folded_up_to};

const TASKS: usize = 20_000;

fn kafleet() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_kafleet"))
}

fn id(n: usize) -> TaskId {
    TaskId::parse(&format!("t-{n}")).unwrap()
}

async fn publish(publisher: Publisher) {
    for chunk in (0..TASKS).collect::<Vec<_>>().chunks(2_000) {
        let task = |n: &usize| TaskSpec::new(id(*n), "echo", RawJson::of(&json!({ "n": n })).unwrap());
        for outcome in publisher.publish_all(chunk.iter().map(task).collect(), now_ms()).await {
            outcome.unwrap();
        }
    }
}

/// Number of tasks counted as succeeded.
async fn succeeded(store: &dyn Store, all: &[u32]) -> usize {
    let counts = store.counts(all).await.unwrap_or_default();
    counts.iter().filter(|count| count.state == State::Succeeded).map(|count| count.count as usize).sum()
}

async fn until_succeeded(store: &dyn Store, all: &[u32], number: usize, processes: &mut [Process]) {
    eventually_running(&format!("{number} tasks have succeeded"), processes, async || {
        let so_far = succeeded(store, all).await;
        if so_far >= number { Ok(()) } else { Err(so_far) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sigkill_and_flushall_lose_no_task() {
    let Some(brokers) = brokers() else { return };
    let types = "[types.echo]\nhandler = \"echo\"\nconcurrency = 8\n";
    let fleet = ProcessFleet::new(kafleet(), brokers.clone(), unique("fleet"), types);
    let kafka = connect(brokers);
    let (names, all) = (Names::new(&fleet.prefix), (0..fleet.events_partitions).collect::<Vec<u32>>());
    let store = fleet.redis.store(&fleet.prefix);
    let publisher = Publisher::new(
        SharedProducer::open(kafka.clone(), None).unwrap(),
        Topology::new(names.clone(), fleet.events_partitions),
        "test",
    );
    let mut running = vec![fleet.start("worker"), fleet.start("tracker")];
    let publishing = tokio::spawn(publish(publisher.clone()));
    until_succeeded(&store, &all, 2_000, &mut running).await;
    running.iter_mut().for_each(Process::kill);
    let mut running =
        vec![fleet.start("tracker"), fleet.start("worker"), fleet.start("worker"), fleet.start("tracker")];
    until_succeeded(&store, &all, 6_000, &mut running).await;
    let () = fleet.redis.call(&["FLUSHALL"]).unwrap();
    running[1].kill();
    running[3].kill();
    running.retain_mut(|process| !process.is_dead());
    until_succeeded(&store, &all, 10_000, &mut running).await;
    running.iter_mut().for_each(Process::kill);
    let () = fleet.redis.call(&["FLUSHALL"]).unwrap();
    publishing.await.unwrap();
    let mut running = vec![fleet.start("worker"), fleet.start("tracker")];
    until_succeeded(&store, &all, TASKS, &mut running).await;
    let oracle = wait_until_folded(&kafka, &names, &store, &all).await;
    assert_eq!(oracle.tasks(), TASKS, "no task is lost or duplicated");
    for task_records in &oracle.task_records {
        assert!(task_records.iter().all(|(_, task_record)| task_record.state == State::Succeeded));
    }
}

/// Waits until the store equals a fold of the log; workers killed last may have written duplicate events.
pub async fn wait_until_folded(kafka: &Arc<Kafka>, names: &Names, store: &dyn Store, all: &[u32]) -> Oracle {
    let broker: Arc<dyn Broker> = kafka.clone();
    eventually("the log is folded", async || {
        let oracle = Oracle::of(broker.clone(), names, all.len() as u32).await;
        oracle.settles(store, async |ends| is_folded_up_to(&broker, names, store, ends).await).await
    })
    .await
}

/// The documented first steps against real services: a line published with kcat, then its status with the CLI and
/// over REST.
#[tokio::test(flavor = "multi_thread")]
async fn task_published_with_kcat_is_listed() {
    let Some(brokers) = brokers() else { return };
    let fleet = ProcessFleet::new(kafleet(), brokers, unique("fleet"), "[types.echo]\nhandler = \"echo\"\n");
    let mut running = [fleet.start("worker"), fleet.start("tracker"), fleet.start("api")];
    let topic = Names::new(&fleet.prefix).tasks("echo");
    let mut kcat =
        Command::new("kcat").args(["-P", "-b", &fleet.brokers, "-t", &topic]).stdin(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(kcat.stdin.as_mut().unwrap(), b"{\"text\":\"hello\"}\n").unwrap();
    assert!(kcat.wait().unwrap().success());
    let id = only_task_id(&fleet, &mut running).await;
    let status: Value = serde_json::from_str(&fleet.run(&["status", &id, "--wait=240s", "-o", "json"])).unwrap();
    assert_eq!((&status["state"], &status["result"]), (&json!("succeeded"), &json!({"text": "hello"})));
    assert!(fleet.run(&["status", &id]).contains("succeeded"));
    let rest = kafleet_testkit::http::client();
    let response = rest.get(format!("{}/v1/tasks/{id}", fleet.api)).send().await.unwrap();
    let document: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
    assert_eq!((&document["state"], &document["result"]), (&json!("succeeded"), &json!({"text": "hello"})));
}

/// Id of the only task, once the API lists it.
async fn only_task_id(fleet: &ProcessFleet, processes: &mut [Process]) -> String {
    eventually_running("a task is listed", processes, async || {
        let listed = fleet.command(&["list", "-o", "json"]).output().unwrap();
        let page: Value = serde_json::from_slice(&listed.stdout).unwrap_or_default();
        let tasks = page.get("tasks").unwrap_or(&page);
        let id = tasks.pointer("/0/id").or_else(|| page.get("id")).and_then(Value::as_str);
        id.map(str::to_owned).ok_or_else(|| format!("{page} {}", String::from_utf8_lossy(&listed.stderr)))
    })
    .await
}
