//! A single Kafka broker per test, which may be killed.

use std::fs::File;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kafleet_testkit::redis::free_port;

const START: Duration = Duration::from_secs(240);

pub struct OwnBroker {
    port: u16,
    libraries: PathBuf,
    process: Child,
    folder: tempfile::TempDir,
}

impl OwnBroker {
    /// Starts the broker; `None` if no services were started.
    pub fn start() -> Option<Self> {
        let libraries = kafleet_testkit::services::address("KAFLEET_TEST_KAFKA_LIBS")?;
        let (libraries, folder) = (PathBuf::from(libraries), tempfile::tempdir().unwrap());
        let [port, controller] = [free_port(), free_port()];
        let properties = properties(port, controller, folder.path());
        std::fs::write(folder.path().join("kafka.properties"), properties).unwrap();
        let mut format = java(&libraries);
        format.args(["kafka.tools.StorageTool", "format", "-t", "kafleet-restarts-AAAA", "-c", "kafka.properties"]);
        let formatted = format.current_dir(folder.path()).output().unwrap();
        assert!(formatted.status.success(), "{}", String::from_utf8_lossy(&formatted.stderr));
        let process = launch(&libraries, folder.path());
        let mut broker = Self { port, libraries, process, folder };
        broker.ready();
        Some(broker)
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Kills the process as `kill -9` does.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub fn restart(&mut self) {
        self.process = launch(&self.libraries, self.folder.path());
        self.ready();
    }

    fn ready(&mut self) {
        let end = Instant::now() + START;
        let log = || std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        while !log().contains("Kafka Server started") || TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let ended = self.process.try_wait().unwrap();
            assert!(
                ended.is_none() && Instant::now() < end,
                "Kafka was not ready within {START:?}: {ended:?}: {}",
                log()
            );
            // Interval of the checks, which have a deadline of their own.
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for OwnBroker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn launch(libraries: &Path, folder: &Path) -> Child {
    let log = File::create(folder.join("log")).unwrap();
    let mut command = java(libraries);
    command.args(["kafka.Kafka", "kafka.properties"]).current_dir(folder);
    command.stdout(log.try_clone().unwrap()).stderr(log).stdin(Stdio::null()).spawn().unwrap()
}

/// Java with options for a quick start.
fn java(libraries: &Path) -> Command {
    let mut command = Command::new("java");
    command.args(["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
    command.args([
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
    ]);
    command.arg("-cp").arg(libraries.join("*"));
    command
}

fn properties(port: u16, controller: u16, folder: &Path) -> String {
    format!(
        "process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=2
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=16777216
",
        folder.display()
    )
}
