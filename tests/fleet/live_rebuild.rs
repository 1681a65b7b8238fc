//! Migration of a fleet to another Redis under load: a rebuild that is killed and resumed, then the API and the
//! trackers are moved one by one.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kafleet::broker::kafka::Kafka;
use kafleet::broker::offset_range::{OffsetRange, read};
use kafleet::broker::shared_producer::SharedProducer;
use kafleet::broker::{Broker, Partition};
use kafleet::config::{Names, Topology};
use kafleet::model::event::Kind;
use kafleet::model::json::RawJson;
use kafleet::model::record::state::State;
use kafleet::model::task::TaskSpec;
use kafleet::model::task::id::TaskId;
use kafleet::publish::Publisher;
use kafleet::runtime::now_ms;
use kafleet::store::Store;
use kafleet_testkit::names::unique;
use kafleet_testkit::processes::{Process, ProcessFleet, eventually_running};
use kafleet_testkit::redis::{Server, free_port};
use kafleet_testkit::services::connect;
use kafleet_testkit::wait::DEADLINE;
use serde_json::{Value, json};

use crate::fleet::in_process::brokers;
use crate::fleet::process_crashes::wait_until_folded;

/// Tasks per wave of the load; every tenth is delayed.
const WAVE: usize = 40;
const WAVE_INTERVAL: Duration = Duration::from_millis(100);

/// Publishes until stopped, and records ids and positions of the published tasks.
async fn load(publisher: Publisher, stop: Arc<AtomicBool>, published: Arc<Mutex<Vec<(String, String)>>>) {
    for wave in 0.. {
        if stop.load(SeqCst) {
            return;
        }
        let task = |n: usize| {
            let id = TaskId::parse(&format!("w{wave}-{n}")).unwrap();
            let task = TaskSpec::new(id, "echo", RawJson::of(&json!({ "n": n })).unwrap());
            if n.is_multiple_of(10) { task.at(now_ms() + 200 + 37 * n as i64) } else { task }
        };
        for outcome in publisher.publish_all((0..WAVE).map(task).collect(), now_ms()).await {
            let task = outcome.unwrap();
            published.lock().unwrap().push((task.id.to_string(), task.position.to_string()));
        }
        // Interval between the waves of the load.
        tokio::time::sleep(WAVE_INTERVAL).await;
    }
}

/// Running `kafleet rebuild` with the documents it has printed so far.
struct Rebuild {
    child: Child,
    documents: Arc<Mutex<Vec<Value>>>,
}

impl Rebuild {
    fn start(fleet: &ProcessFleet, into: &str) -> Self {
        let mut command = fleet.command(&["rebuild", "--into", into, "-o", "json"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let (documents, lines) =
            (Arc::new(Mutex::new(Vec::new())), BufReader::new(child.stdout.take().unwrap()).lines());
        let received = documents.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                received.lock().unwrap().push(serde_json::from_str(&line).expect("each line is a JSON document"));
            }
        });
        Self { child, documents }
    }

    fn all(&self, event: &str) -> Vec<Value> {
        self.documents.lock().unwrap().iter().filter(|document| document["event"] == event).cloned().collect()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Rebuild {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- rebuild\n{:?}", self.documents.lock());
        }
    }
}

async fn succeeded(store: &dyn Store, all: &[u32]) -> usize {
    let counts = store.counts(all).await.unwrap_or_default();
    counts.iter().filter(|count| count.state == State::Succeeded).map(|count| count.count as usize).sum()
}

/// Reads recently published tasks at their positions: each must be found or answered with `503`.
async fn query(api: String, stop: Arc<AtomicBool>, published: Arc<Mutex<Vec<(String, String)>>>) -> (usize, usize) {
    let client = kafleet_testkit::http::client();
    let (mut visible, mut late, mut ended) = (0, 0, BTreeMap::<String, String>::new());
    while !stop.load(SeqCst) {
        let (id, position) = published.lock().unwrap().last().cloned().unwrap();
        let response = client.get(format!("{api}/v1/tasks/{id}?after={position}")).send().await.unwrap();
        let (status, document) = (response.status().as_u16(), response.text().await.unwrap());
        let document: Value = serde_json::from_str(&document).unwrap();
        match status {
            200 => {
                assert_eq!(document["id"], json!(id), "{document}");
                visible += 1;
                if let Some(state) = document["state"].as_str().filter(|state| *state == "succeeded") {
                    ended.insert(id, state.to_owned());
                }
            }
            // Not projected yet.
            503 => {
                assert!(document["code"].is_string() && document["hint"].is_string(), "{document}");
                late += 1;
            }
            _ => panic!("`{id}` after {position}: {status} {document}"),
        }
        // A terminal state does not change.
        if let Some(id) = ended.keys().next().cloned() {
            let response = client.get(format!("{api}/v1/tasks/{id}")).send().await.unwrap();
            let document: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
            assert_eq!(document["state"], json!("succeeded"), "{document}");
        }
        // Interval of the requests.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    (visible, late)
}

#[tokio::test(flavor = "multi_thread")]
async fn fleet_moves_to_another_redis_under_load() {
    let Some(brokers) = brokers() else { return };
    let binary = Path::new(env!("CARGO_BIN_EXE_kafleet"));
    let types = "[types.echo]\nhandler = \"echo\"\nconcurrency = 8\n";
    let fleet = ProcessFleet::new(binary, brokers.clone(), unique("fleet"), types);
    let new = Server::start();
    let (url, copy) = (new.url(), new.store(&fleet.prefix));
    let kafka = connect(brokers);
    let (names, all) = (Names::new(&fleet.prefix), (0..fleet.events_partitions).collect::<Vec<u32>>());
    let store = fleet.redis.store(&fleet.prefix);
    let publisher = Publisher::new(
        SharedProducer::open(kafka.clone(), None).unwrap(),
        Topology::new(names.clone(), fleet.events_partitions),
        "test",
    );
    let (stop, published) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
    let loading = tokio::spawn(load(publisher, stop.clone(), published.clone()));
    let mut running = vec![fleet.start("worker"), fleet.start("tracker"), fleet.start("tracker")];
    eventually_running("500 tasks have succeeded", &mut running, async || succeeded(&store, &all).await > 500).await;

    let mut first = Rebuild::start(&fleet, &url);
    eventually_running("the rebuild has folded events", &mut running, async || succeeded(&copy, &all).await > 0).await;
    first.kill();
    let mut second = Rebuild::start(&fleet, &url);
    eventually_running("the rebuild is ready", &mut running, async || !second.all("ready").is_empty()).await;
    assert_eq!(second.all("begins")[0]["resumed"], json!(true));
    assert_eq!(second.all("verified").len(), all.len(), "{:?}", second.documents);

    // The API reads the new store first, while trackers still fold into the old one.
    let address = format!("127.0.0.1:{}", free_port());
    let api = fleet.start_with("api", &["--redis", &url, "--listen", &address]);
    running.push(api);
    let api = format!("http://{address}");
    let client = kafleet_testkit::http::client();
    let responses = async || client.get(format!("{api}/v1/types")).send().await.is_ok();
    eventually_running("the API responds", &mut running, responses).await;
    let querying = tokio::spawn(query(api, stop.clone(), published.clone()));

    move_trackers(&fleet, &url, &mut running, &second).await;
    eventually_running("the rebuild ends", &mut running, async || second.child.try_wait().unwrap().is_some()).await;
    assert!(second.child.wait().unwrap().success(), "{:?}", second.documents);
    assert_eq!(second.all("ended")[0]["how"], json!("taken_over"));
    stop.store(true, SeqCst);
    loading.await.unwrap();
    let (visible, late) = querying.await.unwrap();
    assert!(visible > 0, "{visible} found, {late} not yet visible");

    let count = published.lock().unwrap().len();
    eventually_running("all tasks succeed", &mut running, async || succeeded(&copy, &all).await == count).await;
    assert_store_matches_log(&kafka, &names, &copy, &all).await;
    // Each delayed task was released once, whichever tracker owned the partition.
    let times = released(&kafka, &names);
    assert_eq!(times.len(), count / 10);
    assert!(times.values().all(|times| *times == 1), "{times:?}");
}

/// Restarts the trackers on the new Redis one by one; each takes over its partitions from the rebuild.
async fn move_trackers(fleet: &ProcessFleet, url: &str, running: &mut [Process], rebuild: &Rebuild) {
    for tracker in [1, 2] {
        running[tracker].stop();
        running[tracker] = fleet.start_with("tracker", &["--redis", url]);
        let taken = tracker * 2 - 1;
        eventually_running("the tracker takes partitions over", running, async || {
            rebuild.all("taken_over").len() >= taken
        })
        .await;
    }
}

/// Each delayed task was released once, according to the log and the store.
async fn assert_store_matches_log(kafka: &Arc<Kafka>, names: &Names, store: &dyn Store, all: &[u32]) {
    let oracle = wait_until_folded(kafka, names, store, all).await;
    let releases = |task_record: &kafleet::model::record::TaskRecord| {
        task_record.history.entries.iter().filter(|entry| entry.kind == Kind::Released).count() <= 1
            && task_record.history.duplicates == 0
    };
    assert!(oracle.task_records.iter().flatten().all(|(_, task_record)| releases(task_record)));
}

/// Number of records of each delayed task in the task topic.
fn released(kafka: &Arc<Kafka>, names: &Names) -> BTreeMap<String, usize> {
    let topic: Arc<str> = names.tasks("echo").into();
    let ranges: Vec<OffsetRange> = (0..4)
        .map(|index| {
            let partition = Partition::new(topic.clone(), index);
            let ends = kafka.watermarks(&partition, DEADLINE).unwrap();
            OffsetRange { partition, from: ends.low, to: ends.high }
        })
        .collect();
    let mut times = BTreeMap::new();
    read(&**kafka, &ranges, DEADLINE, &mut |record| {
        let id = record.headers().find(|(name, _)| *name == "ce_id").and_then(|(_, value)| value).unwrap_or_default();
        let id = String::from_utf8_lossy(id).into_owned();
        if id.rsplit_once('-').is_some_and(|(_, n)| n.parse::<usize>().is_ok_and(|n| n.is_multiple_of(10))) {
            *times.entry(id).or_default() += 1;
        }
    })
    .unwrap();
    times
}
