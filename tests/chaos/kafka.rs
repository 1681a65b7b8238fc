//! Kafka cluster of combined brokers and controllers. Clients connect through a proxy per broker, brokers directly.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process::{Process, free_ports};
use crate::proxy::Proxy;
use crate::wait_until;

pub struct Cluster {
    pub brokers: Vec<Process>,
    pub proxies: Vec<Proxy>,
    pub version: String,
}

impl Cluster {
    /// Starts one or three brokers, and waits until they are ready.
    pub async fn start(folder: &Path, count: usize) -> Self {
        let libraries = libraries();
        let clients = free_ports::<3>();
        let (mut brokers, mut proxies) = (Vec::new(), Vec::new());
        let ports = Ports { count, direct: free_ports(), internal: free_ports(), control: free_ports(), clients };
        for (number, (client, direct)) in clients.into_iter().zip(ports.direct).enumerate().take(count) {
            let at = folder.join(format!("kafka-{}", number + 1));
            std::fs::create_dir_all(&at).unwrap();
            std::fs::write(at.join("kafka.properties"), ports.configuration(number, &at)).unwrap();
            proxies.push(Proxy::new(client, direct).await);
        }
        format_storage(folder, &libraries, count);
        for number in 1..=count {
            let (at, libraries) = (folder.join(format!("kafka-{number}")), libraries.clone());
            let log = folder.join(format!("broker-{number}.log"));
            let mut broker = Process::new(&format!("broker-{number}"), log, move |_| {
                let mut command = java(&libraries, "384m");
                command.arg("kafka.Kafka").arg(at.join("kafka.properties")).current_dir(&at);
                command
            });
            broker.start();
            brokers.push(broker);
        }
        let version = libraries.parent().unwrap().file_name().unwrap().to_string_lossy().replace("kafka-", "Kafka ");
        let this = Self { brokers, proxies, version };
        this.ready().await;
        this
    }

    /// Waits until the last start of each broker is complete.
    pub async fn started(&self) {
        let is_started =
            |broker: &Process| broker.log().matches("Kafka Server started").count() >= broker.starts as usize;
        let ready = || async { self.brokers.iter().all(is_started).then_some(()) };
        let logs = || self.brokers.iter().map(Process::log_tail).collect::<Vec<_>>().join("\n---\n");
        wait_until("the brokers have started", Duration::from_secs(120), ready, logs).await;
    }

    /// Bootstrap servers of the proxies.
    pub fn addresses(&self) -> String {
        let addresses = self.proxies.iter().map(|link| format!("127.0.0.1:{}", link.port));
        addresses.collect::<Vec<_>>().join(",")
    }

    async fn ready(&self) {
        let ready =
            || async { self.brokers.iter().all(|broker| broker.log().contains("Kafka Server started")).then_some(()) };
        wait_until("the brokers are ready", Duration::from_secs(120), ready, || {
            self.brokers.iter().map(Process::log_tail).collect::<Vec<_>>().join("\n---\n")
        })
        .await;
    }
}

/// Folder of Kafka's libraries, fetched by `tests/services` where they are missing.
fn libraries() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/services");
    let output = Command::new(script).arg("libraries").output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "Kafka's libraries are missing: {stderr}");
    PathBuf::from(stdout.trim())
}

/// JVM with few threads for garbage collection and compilation, as three of them share the machine.
fn java(libraries: &Path, memory: &str) -> Command {
    let mut command = Command::new("java");
    command.arg(format!("-Xmx{memory}")).args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
    for (name, level) in
        [("defaultLogLevel", "warn"), ("showDateTime", "true"), ("log.kafka.server.KafkaRaftServer", "info")]
    {
        command.arg(format!("-Dorg.slf4j.simpleLogger.{name}={level}"));
    }
    command.arg("-cp").arg(libraries.join("*"));
    command
}

/// Formats the storage of the first broker and copies it with other ids to the others, which saves two JVMs.
fn format_storage(folder: &Path, libraries: &Path, count: usize) {
    let first = folder.join("kafka-1");
    let mut command = java(libraries, "128m");
    command
        .args(["kafka.tools.StorageTool", "format", "-t", "kafleet-chaos-AAAAAAAA", "-c"])
        .arg(first.join("kafka.properties"));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let meta = std::fs::read_to_string(first.join("data/meta.properties")).unwrap();
    for number in 2..=count {
        let data = folder.join(format!("kafka-{number}/data"));
        std::fs::create_dir_all(&data).unwrap();
        let line = |line: &str| match line.split_once('=') {
            Some(("node.id", _)) => format!("node.id={number}"),
            Some(("directory.id", _)) => format!("directory.id=kafleet-chaos-{number}AAAAAAA"),
            _ => line.to_owned(),
        };
        let properties: Vec<String> = meta.lines().map(line).collect();
        std::fs::write(data.join("meta.properties"), properties.join("\n")).unwrap();
        for file in std::fs::read_dir(first.join("data")).unwrap().map(|entry| entry.unwrap().path()) {
            if file.extension().is_some_and(|extension| extension == "checkpoint") {
                std::fs::copy(&file, data.join(file.file_name().unwrap())).unwrap();
            }
        }
    }
}

struct Ports {
    count: usize,
    direct: [u16; 3],
    internal: [u16; 3],
    control: [u16; 3],
    clients: [u16; 3],
}

impl Ports {
    fn configuration(&self, number: usize, at: &Path) -> String {
        let voters: Vec<String> = (0..self.count).map(|n| format!("{}@127.0.0.1:{}", n + 1, self.control[n])).collect();
        let (copies, in_sync) = (self.count, self.count.min(2));
        let (direct, internal, control, client) =
            (self.direct[number], self.internal[number], self.control[number], self.clients[number]);
        format!(
            "process.roles=broker,controller
node.id={}
controller.quorum.voters={}
controller.listener.names=CONTROLLER
listeners=CLIENT://127.0.0.1:{direct},INTERNAL://127.0.0.1:{internal},CONTROLLER://127.0.0.1:{control}
advertised.listeners=CLIENT://127.0.0.1:{client},INTERNAL://127.0.0.1:{internal}
listener.security.protocol.map=CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=INTERNAL
log.dirs={}/data
auto.create.topics.enable=false
message.max.bytes=8388608
replica.fetch.max.bytes=8388608
default.replication.factor={copies}
offsets.topic.replication.factor={copies}
offsets.topic.num.partitions=4
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={in_sync}
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor={copies}
share.coordinator.state.topic.min.isr={in_sync}
min.insync.replicas={in_sync}
replica.lag.time.max.ms=6000
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=16777216
",
            number + 1,
            voters.join(","),
            at.display(),
        )
    }
}
