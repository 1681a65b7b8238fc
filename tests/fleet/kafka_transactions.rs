//! Tasks that a producer writes in its own Kafka transaction, as in `docs/transactions.md`: the examples in Java, Python and Rust,
//! and a producer that leaves its transaction open.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use kafleet::broker::{Partition, ProducerRecord, TopicSpec};
use kafleet::model::record::state::State;
use kafleet_testkit::names::unique;
use kafleet_testkit::services::address;
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use crate::digest_tree::build_example;
use crate::fleet::in_process::{DEADLINE, Fleet, brokers, eventually};

/// Number of purchases, more than the examples take into one transaction.
const PURCHASES: usize = 120;

/// Running example, killed when dropped.
struct Example(Child);

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Example {
    async fn wait_for_exit(&mut self) -> ExitStatus {
        eventually("the example has ended", async || self.0.try_wait().unwrap()).await
    }
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/transactions")
}

/// Fleet with a worker, and topics of a shop: purchases in one partition, and accepted purchases.
struct Shop {
    fleet: Fleet,
    name: String,
}

impl Shop {
    async fn open() -> Option<Self> {
        let mut fleet = Fleet::with_services().await?;
        fleet.start_worker();
        let name = unique("shop");
        let topic = |topic: &str| TopicSpec {
            name: format!("{name}.{topic}"),
            partitions: 1,
            replication: None,
            config: Vec::new(),
        };
        fleet.broker.apply_topics(&[topic("purchases"), topic("accepted")], DEADLINE).unwrap();
        Some(Self { fleet, name })
    }

    fn partition(&self, topic: &str) -> Partition {
        Partition::new(format!("{}.{topic}", self.name), 0)
    }

    /// Places purchases in one transaction: consumers see all of them at once.
    fn purchase(&self, keys: &[Option<&str>]) {
        let topic = self.partition("purchases").topic;
        let purchase = |key: &Option<&str>| format!("{{\"purchase\":\"{}\"}}", key.unwrap_or("none"));
        let values: Vec<String> = keys.iter().map(purchase).collect();
        let records: Vec<ProducerRecord<'_>> = keys
            .iter()
            .zip(&values)
            .map(|(key, value)| ProducerRecord {
                topic: &topic,
                partition: Some(0),
                key: key.map(str::as_bytes),
                value: Some(value.as_bytes()),
                headers: &[],
            })
            .collect();
        let mut producer = self.fleet.broker.transactional_producer(&format!("{}-customer", self.name)).unwrap();
        producer.send_all(&records, DEADLINE).unwrap();
    }

    /// Starts an example with its arguments.
    fn start(&self, command: &[String]) -> Example {
        let arguments = [brokers().unwrap(), self.name.clone(), self.fleet.names.tasks("echo")];
        let mut program = Command::new(&command[0]);
        program.args(&command[1..]).args(arguments).stdin(Stdio::null());
        Example(program.spawn().unwrap())
    }

    /// Keys of the committed records of a partition, oldest first.
    fn committed(&self, partition: &Partition) -> Vec<String> {
        let end = self.fleet.broker.watermarks(partition, DEADLINE).unwrap().high;
        let records = (0..end).filter_map(|offset| self.fleet.broker.read_at(partition, offset, DEADLINE).unwrap());
        records.map(|record| String::from_utf8(record.key.unwrap_or_default()).unwrap()).collect()
    }

    /// Keys of the committed tasks, sorted.
    fn tasks(&self) -> Vec<String> {
        let topic = self.fleet.names.tasks("echo");
        let mut keys: Vec<String> =
            (0..4).flat_map(|index| self.committed(&Partition::new(topic.as_str(), index))).collect();
        keys.sort();
        keys
    }

    /// Offset behind the purchases that are done.
    fn done(&self) -> i64 {
        let purchases = [self.partition("purchases")];
        let committed = self.fleet.broker.group_offsets(&self.name, &purchases, DEADLINE).unwrap();
        committed[0].as_ref().map_or(0, |committed| committed.offset)
    }
}

/// Runs an example on purchases, and on a last one whose transaction fails: a committed purchase has one record and one task, an
/// aborted one has neither.
async fn purchases_become_tasks_once(shop: Shop, command: &[String]) {
    let keys: Vec<String> = (0..PURCHASES).map(|n| format!("{n:03}")).collect();
    shop.purchase(&keys.iter().map(|key| Some(key.as_str())).collect::<Vec<_>>());
    let mut example = shop.start(command);
    for key in &keys {
        assert_eq!(shop.fleet.wait_for_end(&format!("purchase-{key}")).await.state, State::Succeeded);
    }
    // librdkafka's position is behind the marker of the transaction of the purchases, Java's before it.
    let is_done = |done: &i64| *done >= PURCHASES as i64;
    let done = eventually("the offsets are committed", async || Some(shop.done()).filter(is_done)).await;
    shop.purchase(&[Some("last"), None]);
    let status = example.wait_for_exit().await;
    assert!(!status.success(), "the purchase without a key is an error");
    let (code, text) = shop.fleet.response("/v1/tasks/purchase-last").await;
    assert_eq!((code, shop.done()), (404, done), "{text}");
    assert_eq!((shop.committed(&shop.partition("accepted")), shop.tasks()), (keys.clone(), keys));
    shop.fleet.assert_store_matches_log().await;
    shop.fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn java_example_submits_tasks_in_its_transactions() {
    let Some(shop) = Shop::open().await else { return };
    let Some(libraries) = address("KAFLEET_TEST_KAFKA_LIBS") else { return };
    // Compiles the source in memory.
    let source = examples().join("Purchases.java");
    let (quiet, libraries) = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", format!("{libraries}/*"));
    let command = ["java", quiet, "-cp", &libraries, source.to_str().unwrap()].map(str::to_owned);
    purchases_become_tasks_once(shop, &command).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_example_submits_tasks_in_its_transactions() {
    let Some(shop) = Shop::open().await else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let installed = Command::new(root.join("tests/tools")).arg("kafka-python").status().unwrap();
    assert!(installed.success(), "`tests/tools kafka-python` ended with {installed}");
    let python = root.join("target/tools/kafka-python/bin/python");
    let command = [python, examples().join("purchases.py")].map(|path| path.to_str().unwrap().to_owned());
    purchases_become_tasks_once(shop, &command).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rust_example_submits_tasks_in_its_transactions() {
    let Some(shop) = Shop::open().await else { return };
    let command = [build_example("transactions").to_str().unwrap().to_owned()];
    purchases_become_tasks_once(shop, &command).await;
}

/// A producer writes a task and hangs. What is behind it in the partition waits until Kafka aborts the transaction, and `why` names
/// it meanwhile; other partitions continue.
#[tokio::test(flavor = "multi_thread")]
async fn hanging_transaction_delays_its_partition_until_its_timeout() {
    let Some(mut fleet) = Fleet::with_services().await else { return };
    fleet.start_worker();
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", brokers().unwrap())
        .set("transactional.id", unique("hanging"))
        .set("transaction.timeout.ms", "25000")
        .create()
        .unwrap();
    let topic = fleet.names.tasks("echo");
    let header = Header { key: "ce_id", value: Some("hanging") };
    let hanging = BaseRecord::<str, str>::to(&topic).partition(0).payload("1");
    let hanging = hanging.headers(OwnedHeaders::new().insert(header));
    producer.init_transactions(DEADLINE).unwrap();
    producer.begin_transaction().unwrap();
    producer.send(hanging).map_err(|(error, _)| error).unwrap();
    producer.flush(Duration::from_secs(20)).unwrap();
    let (mut behind, mut beside) = (Vec::new(), Vec::new());
    for n in 0..20 {
        let id = format!("task-{n}");
        fleet.publish("echo", &id, &1).await;
        let position = eventually("the position of its record is known", async || {
            fleet.record(&id).await.and_then(|record| record.definition.position)
        });
        if position.await.partition == 0 { behind.push(id) } else { beside.push(id) }
    }
    for id in &beside {
        assert_eq!(fleet.wait_for_end(id).await.state, State::Succeeded);
    }
    let first = behind.first().expect("one of 20 tasks is in the partition");
    let finding = eventually("the open transaction is named", async || {
        let answer = fleet.get(&format!("/v1/tasks/{first}/why")).await;
        assert_eq!(answer["state"], "queued", "it starts only after the end of the transaction: {answer}");
        let findings = answer["findings"].as_array().unwrap().clone();
        findings.into_iter().find(|finding| finding["code"] == "open_transaction")
    })
    .await;
    let message = finding["message"].as_str().unwrap();
    assert!(message.contains("holds back") && message.contains("`transaction.timeout.ms`"), "{message}");
    for id in &behind {
        assert_eq!(fleet.wait_for_end(id).await.state, State::Succeeded);
    }
    let (status, text) = fleet.response("/v1/tasks/hanging").await;
    assert_eq!(status, 404, "{text}");
    drop(producer);
    fleet.stop().await;
}

/// The page shows code of the examples.
#[test]
fn code_of_the_page_is_that_of_the_examples() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/transactions.md")).unwrap();
    let mut compared = 0;
    for (language, file) in [("java", "Purchases.java"), ("python", "purchases.py"), ("rust", "main.rs")] {
        let source = std::fs::read_to_string(examples().join(file)).unwrap();
        let lines: Vec<&str> = source.lines().map(str::trim).collect();
        let start = format!("```{language}\n");
        let blocks = page.split(&start).skip(1).map(|rest| rest.split("```").next().unwrap());
        for block in blocks {
            let shown: Vec<&str> = block.lines().map(str::trim).collect();
            let is_in = lines.windows(shown.len()).any(|window| window == shown);
            assert!(is_in, "{file} does not contain these lines of docs/transactions.md:\n{block}");
            compared += 1;
        }
    }
    assert!(compared >= 3, "{compared} blocks");
}
