//! Every role in its own process, on a real Kafka and Redis, as started by `tests/services run`.

use std::io::Write;
use std::process::{Command, Stdio};

use kafleet::broker::kafka::Kafka;
use kafleet::broker::shared_producer::SharedProducer;
use kafleet::broker::{Broker, Partition, ProducerRecord};
use kafleet_testkit::names::unique;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::cli::run::{DEADLINE, Daemon, config_folder, eventually_blocking, kafleet, run, wait_for_exit};

/// Services, configuration and names of a fleet of processes.
pub(super) struct Fleet {
    kafka: String,
    redis: String,
    pub prefix: String,
    pub folder: tempfile::TempDir,
    api: String,
}

impl Fleet {
    /// `None` if no services are running.
    pub fn new() -> Option<Self> {
        Self::with("")
    }

    /// Adds lines to the section `topics`.
    fn with(topics: &str) -> Option<Self> {
        let (kafka, redis) = kafleet_testkit::services::kafka_and_redis()?;
        let types = "[types.echo]\nhandler = \"echo\"\n";
        let folder = config_folder(&format!("[topics]\nevents_partitions = 3\ntask_partitions = 2\n{topics}\n{types}"));
        Some(Self { kafka, redis, prefix: unique("cli"), folder, api: "http://127.0.0.1:1".into() })
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = kafleet(words);
        command.current_dir(self.folder.path()).env("KAFLEET_API", &self.api);
        command.args(["--brokers", &self.kafka, "--redis", &self.redis, "--prefix", &self.prefix]);
        command
    }

    pub fn run(&self, words: &[&str]) -> crate::cli::run::RunResult {
        run(self.command(words))
    }

    /// Starts an API, waits until it listens, and sends later commands to it.
    pub fn start_api(&mut self) -> Daemon {
        let mut api = Daemon::start(self.command(&["api", "--listen", "127.0.0.1:0"]));
        let listens: Value = serde_json::from_str(&api.wait_for_line("API listening")).expect("a log line as JSON");
        self.api = format!("http://{}", listens["address"].as_str().unwrap());
        api
    }

    /// Produces a line to the task topic, with kcat if it is installed.
    fn produce_line(&self, line: &str) {
        let topic = format!("{}.tasks.echo", self.prefix);
        let kcat = Command::new("kcat").args(["-P", "-b", &self.kafka, "-t", &topic]).stdin(Stdio::piped()).spawn();
        let Ok(mut kcat) = kcat else { return self.deliver(&topic, line) };
        kcat.stdin.take().unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
        assert!(kcat.wait().unwrap().success());
    }

    fn deliver(&self, topic: &str, line: &str) {
        let section = [("bootstrap.servers".to_owned(), self.kafka.clone())].into();
        let broker: std::sync::Arc<dyn Broker> = std::sync::Arc::new(Kafka::new(&section).unwrap());
        let producer = SharedProducer::open(broker, None).unwrap();
        let record = ProducerRecord { topic, partition: None, key: None, value: Some(line.as_bytes()), headers: &[] };
        runtime().block_on(producer.deliver(record, DEADLINE)).unwrap();
    }

    fn get(&self, path: &str) -> Value {
        let url = format!("{}{path}", self.api);
        let http = kafleet_testkit::http::client();
        runtime().block_on(async { http.get(url).send().await.unwrap().json().await.unwrap() })
    }
}

/// Reads `/readyz` at an address.
fn readiness(address: &str) -> (u16, String) {
    let http = kafleet_testkit::http::client();
    let asked = async {
        let answer = http.get(format!("http://{address}/readyz")).send().await.ok()?;
        Some((answer.status().as_u16(), answer.text().await.ok()?))
    };
    runtime().block_on(asked).unwrap_or_default()
}

fn delete_topics(fleet: &Fleet, name: &str) {
    let section = [("bootstrap.servers".to_owned(), fleet.kafka.clone())].into();
    Kafka::new(&section).unwrap().delete_topics(&format!("{}.{name}", fleet.prefix), DEADLINE).unwrap();
}

#[test]
fn deleted_topics_make_roles_unready_until_applied() {
    let Some(fleet) = Fleet::with("check_interval = \"200ms\"") else { return };
    fleet.run(&["topics", "apply"]).exits_with(0);
    let [worker, api, tracker] = [(); 3].map(|()| {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        format!("127.0.0.1:{port}")
    });
    let roles = [
        Daemon::start(fleet.command(&["worker", "--ops-listen", &worker])),
        Daemon::start(fleet.command(&["api", "--listen", "127.0.0.1:0", "--ops-listen", &api])),
        Daemon::start(fleet.command(&["tracker", "--ops-listen", &tracker])),
    ];
    let is = |address: &str, status: u16, expected: &str| {
        eventually_blocking(&format!("{address} answers {status} {expected}"), || {
            let (found, text) = readiness(address);
            (found == status && text.contains(expected)).then_some(())
        });
    };
    [&worker, &api, &tracker].into_iter().for_each(|address| is(address, 200, "ready"));
    delete_topics(&fleet, "tasks.echo");
    is(&worker, 503, "tasks.echo`: the topic does not exist");
    is(&worker, 503, "\"hint\":\"run `kafleet topics apply`\"");
    is(&api, 200, "ready");
    fleet.run(&["topics", "apply"]).exits_with(0);
    eventually_blocking("the worker has seen the topic", || !readiness(&worker).1.contains("does not exist"));
    delete_topics(&fleet, "events");
    for address in [&worker, &api, &tracker] {
        is(address, 503, ".events`: the topic does not exist");
    }
    drop(roles);
}

#[test]
fn hangup_replaces_the_processes_of_apps() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/apps");
    let app = format!("[apps.a]\ncommand = [\"python3\", \"loop.py\"]\ncwd = \"{folder}\"\nprocesses = 1");
    let Some(mut fleet) = Fleet::with(&app) else { return };
    fleet.run(&["topics", "apply"]).exits_with(0);
    let _api = fleet.start_api();
    let roles = [Daemon::start(fleet.command(&["tracker"])), Daemon::start(fleet.command(&["worker"]))];
    let result = |action: &str| {
        let params = json!({"do": action}).to_string();
        let status = fleet.run(&["submit", "double", &params, "--wait=100s", "-o", "json"]).exits_with(0).json();
        status["result"].as_i64().unwrap() as i32
    };
    let (process, worker) = (result("pid"), result("parent"));
    kill(Pid::from_raw(worker), Signal::SIGHUP).unwrap();
    eventually_blocking("another process runs the attempts", || result("pid") != process);
    assert_eq!(result("parent"), worker);

    // Under load no attempt is lost or counted.
    let lines: String = (0..600).map(|x| format!("{{\"x\":{x}}}\n")).collect();
    let mut submit = fleet.command(&["submit", "double", "-", "--parallel", "1"]);
    submit.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut submit = submit.spawn().unwrap();
    let mut stdin = submit.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(lines.as_bytes()).unwrap());
    for _ in 0..2 {
        let before = result("pid");
        kill(Pid::from_raw(worker), Signal::SIGHUP).unwrap();
        eventually_blocking("another process runs the attempts", || result("pid") != before);
    }
    writer.join().unwrap();
    let submitted = wait_for_exit(submit).exits_with(0);
    let ids: Vec<&str> = submitted.out.lines().collect();
    assert_eq!(ids.len(), 600);
    eventually_blocking("all tasks have ended", || {
        let page = fleet.run(&["list", "-n", "1000", "-o", "json"]).exits_with(0).json();
        let tasks = page["tasks"].as_array().unwrap();
        let done = |task: &Value| task["state"] == "succeeded" && task["attempt"] == 1;
        ids.iter().all(|id| tasks.iter().any(|task| task["id"] == **id && done(task))).then_some(())
    });
    drop(roles);
}

/// Value of a metric at an address.
fn metric(address: &str, series: &str) -> Option<String> {
    let http = kafleet_testkit::http::client();
    let text = runtime()
        .block_on(async { http.get(format!("http://{address}/metrics")).send().await.ok()?.text().await.ok() })?;
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ').map(str::to_owned))
}

#[test]
fn hangup_reloads_the_configuration_of_a_role() {
    let Some(mut fleet) = Fleet::new() else { return };
    fleet.run(&["topics", "apply"]).exits_with(0);
    let path = fleet.folder.path().join("kafleet.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let tokens = |token: &str| format!("[[api.tokens]]\nname = \"ci\"\ntoken = \"{token}\"\nrole = \"operate\"\n");
    let (old, new) = ("old-0123456789abcdef", "new-0123456789abcdef");
    std::fs::write(&path, text.clone() + &tokens(old)).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let ops = format!("127.0.0.1:{port}");
    let mut api = fleet.start_api();
    let mut tracker = Daemon::start(fleet.command(&["tracker"]));
    let mut worker = Daemon::start(fleet.command(&["worker", "--ops-listen", &ops]));
    tracker.wait_for_line("tracker starts");
    worker.wait_for_line("worker is starting");
    let slots = || metric(&ops, "kafleet_type_slots{type=\"echo\"}");
    eventually_blocking("the type has slots", || slots().filter(|slots| slots != "33"));
    let reload = |role: &mut Daemon, config: &str| {
        std::fs::write(&path, config).unwrap();
        role.signal(Signal::SIGHUP);
        let line = role.wait_for_line("the configuration has been read again");
        serde_json::from_str::<Value>(&line).unwrap()["outcome"].as_str().unwrap().to_owned()
    };

    let slow = text.clone() + "concurrency = 33\norder = \"key\"\n" + &tokens(new);
    assert_eq!(reload(&mut worker, &slow), "restart_needed");
    eventually_blocking("the concurrency is in effect", || slots().as_deref() == Some("33"));
    assert_eq!(reload(&mut worker, &slow.replace("33", "many")), "invalid");
    assert_eq!(reload(&mut worker, &(slow.clone() + "[log]\nfilter = \"info,other=debug\"\n")), "restart_needed");
    assert_eq!(slots().as_deref(), Some("33"), "an invalid file changes nothing");
    let reloads = |outcome: &str| metric(&ops, &format!("kafleet_config_reloads_total{{outcome=\"{outcome}\"}}"));
    assert_eq!([reloads("invalid"), reloads("restart_needed")], [Some("1".into()), Some("2".into())]);
    assert_eq!(reload(&mut tracker, &slow), "unchanged");

    let with = |token: &str| run_with(&fleet, token);
    with(old).exits_with(0);
    assert_eq!(reload(&mut api, &slow), "applied");
    with(old).exits_with(6);
    with(new).exits_with(0);
    for role in [api, tracker, worker] {
        assert_eq!(role.stop(), Some(0));
    }
}

#[test]
fn changed_file_is_reloaded_and_reload_reaches_a_role_without_its_id() {
    let Some(fleet) = Fleet::new() else { return };
    fleet.run(&["topics", "apply"]).exits_with(0);
    let path = fleet.folder.path().join("kafleet.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    // A copy, because `reload` reaches all roles of the same program, also those of other tests.
    let program = fleet.folder.path().join("program");
    std::fs::copy(env!("CARGO_BIN_EXE_kafleet"), &program).unwrap();
    let command = |words: &[&str]| {
        let template = fleet.command(words);
        let mut command = Command::new(&program);
        command.args(template.get_args()).current_dir(&fleet.folder);
        for (name, value) in template.get_envs() {
            value.into_iter().for_each(|value| {
                command.env(name, value);
            });
        }
        command
    };
    run(command(&["reload"])).exits_with(3).stderr_has(&["no role of this program runs here"]);
    let mut worker = Daemon::start(command(&["worker", "--watch-config"]));
    worker.wait_for_line("worker is starting");
    std::fs::write(&path, text + "concurrency = 33\n").unwrap();
    let outcome = |line: String| serde_json::from_str::<Value>(&line).unwrap()["outcome"].clone();
    assert_eq!(outcome(worker.wait_for_line("the configuration has been read again")), "applied");
    run(command(&["reload"])).exits_with(0).stderr_has(&["reloads its configuration"]);
    assert_eq!(outcome(worker.wait_for_line("the configuration has been read again")), "unchanged");
    assert_eq!(worker.stop(), Some(0));
}

fn run_with(fleet: &Fleet, token: &str) -> crate::cli::run::RunResult {
    let mut command = fleet.command(&["types"]);
    command.env("KAFLEET_TOKEN", token);
    run(command)
}

#[test]
fn doctor_reports_a_full_redis() {
    let Some(mut fleet) = Fleet::new() else { return };
    let server = kafleet_testkit::redis::Server::start_with(&["--maxmemory-policy", "noeviction"]);
    fleet.redis = server.url();
    fleet.run(&["topics", "apply"]).exits_with(0);
    fleet.run(&["doctor", "--no-api"]).exits_with(0).stdout_has(&["ok       redis"]);
    let _: String = server.call(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let expected = [
        "warning  redis",
        "(maxmemory)",
        "error    redis",
        "Redis refuses writes",
        "out of memory",
        "hint: raise its `maxmemory`",
    ];
    fleet.run(&["doctor", "--no-api"]).exits_with(1).stdout_has(&expected);
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn fleet_of_processes_runs_on_kafka_and_redis() {
    let Some(mut fleet) = Fleet::new() else { return };
    fleet.run(&["doctor", "--no-api"]).exits_with(1).stdout_has(&["error", "kafleet topics apply"]);
    fleet
        .run(&["offsets", "init", "echo", "--at", "earliest"])
        .exits_with(3)
        .stderr_has(&["there is no topic", "hint: "]);
    let applied = fleet.run(&["topics", "apply", "-o", "json"]).exits_with(0).json();
    let changes = applied.as_array().unwrap();
    assert!(changes.len() >= 4 && changes.iter().all(|one| one["change"] == "created"), "{applied}");
    fleet.run(&["topics", "apply"]).exits_with(0).stdout_has(&["unchanged", &format!("{}.tasks.echo", fleet.prefix)]);

    let api = fleet.start_api();
    let tracker = Daemon::start(fleet.command(&["tracker"]));
    let worker = Daemon::start(fleet.command(&["worker"]));

    fleet.produce_line(r#"{"hello":"kcat"}"#);
    let id = eventually_blocking("the plain record is a task that succeeded", || {
        let page = fleet.run(&["list", "--type", "echo", "-o", "json"]).exits_with(0).json();
        let task = page["tasks"].get(0)?.clone();
        (task["state"] == "succeeded").then(|| task["id"].as_str().unwrap().to_owned())
    });
    assert!(id.starts_with("echo-"), "{id}");
    fleet.run(&["status", &id]).exits_with(0).stdout_has(&["state     succeeded", r#"result    {"hello":"kcat"}"#]);
    let document = fleet.get(&format!("/v1/tasks/{id}"));
    assert_eq!((&document["state"], &document["result"]), (&json!("succeeded"), &json!({"hello": "kcat"})));
    fleet.run(&["submit", "echo", "[1,2]", "--wait=100s"]).exits_with(0).stdout_has(&["result    [1,2]"]);

    fleet
        .run(&["schedules", "create", "tick", "echo", "[3]", "--cron", "* * * * * *"])
        .exits_with(0)
        .stdout_has(&["* * * * * * UTC"]);
    let last = eventually_blocking("the schedule has fired twice and its task has succeeded", || {
        let shown = fleet.run(&["schedules", "show", "tick", "-o", "json"]).exits_with(0).json();
        (shown["fired"].as_u64()? >= 2 && shown["last"]["state"] == "succeeded").then(|| shown["last"]["task"].clone())
    });
    assert!(last.as_str().unwrap().starts_with("tick.20"), "{last}");
    fleet.run(&["schedules", "trigger", "tick", "--wait=100s"]).exits_with(0).stdout_has(&["result    [3]"]);
    fleet.run(&["schedules", "delete", "tick"]).exits_with(0);

    let healthy =
        fleet.run(&["doctor"]).exits_with(0).stdout_has(&["ok       kafka", "ok       redis", "ok       api"]);
    assert!(!healthy.out.contains("error "), "{healthy:?}");
    fleet
        .run(&["offsets", "init", "echo", "--at", "earliest"])
        .exits_with(1)
        .stderr_has(&["has members", "hint: stop the workers of `echo`"]);

    for (role, daemon) in [("worker", worker), ("api", api), ("tracker", tracker)] {
        assert_eq!(daemon.stop(), Some(0), "{role}");
    }
    let changes = fleet.run(&["offsets", "init", "echo/0", "--at", "latest", "-o", "json"]).exits_with(0).json();
    assert_eq!((&changes[0]["partition"], &changes[0]["now"]), (&json!(0), &changes[0]["end"]), "{changes}");
}

impl Fleet {
    /// Waits until a group has committed this many tasks of the type.
    fn wait_committed(&self, group: &str, tasks: i64) {
        let section = [("bootstrap.servers".to_owned(), self.kafka.clone())].into();
        let broker = Kafka::new(&section).unwrap();
        let topic = format!("{}.tasks.echo", self.prefix);
        let partitions = [0, 1].map(|index| Partition::new(topic.as_str(), index));
        let group = format!("{}.{group}", self.prefix);
        eventually_blocking(&format!("{tasks} tasks are committed in `{group}`"), || {
            let committed = broker.group_offsets(&group, &partitions, DEADLINE).unwrap();
            (committed.iter().flatten().map(|found| found.offset).sum::<i64>() == tasks).then_some(())
        });
    }
}

#[test]
fn type_is_moved_to_a_shared_group_with_its_commits() {
    let Some(fleet) = Fleet::new() else { return };
    fleet.run(&["topics", "apply"]).exits_with(0);
    fleet.produce_line("1");
    let worker = Daemon::start(fleet.command(&["worker"]));
    fleet.wait_committed("tasks.echo", 1);
    let file = fleet.folder.path().join("kafleet.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text + "group = \"small\"\n").unwrap();
    let move_type = ["offsets", "move", "echo", "--to", "small"];
    fleet.run(&move_type).exits_with(1).stderr_has(&["has members", "hint: stop the workers of `echo`"]);
    assert_eq!(worker.stop(), Some(0));
    let hint = "kafleet offsets move echo --to small";
    let refused = fleet.run(&["worker"]);
    assert!(refused.err.contains(hint), "{refused:?}");
    fleet
        .run(&["doctor", "--no-api"])
        .exits_with(1)
        .stdout_has(&["its committed offsets are in the group `echo`", hint]);
    let moved = fleet.run(&[&move_type[..], &["-o", "json"]].concat()).exits_with(0).json();
    assert_eq!((&moved["from"], &moved["to"]), (&json!("echo"), &json!("small")));
    fleet.produce_line("2");
    let worker = Daemon::start(fleet.command(&["worker"]));
    fleet.wait_committed("group.small", 2);
    fleet.wait_committed("tasks.echo", 1);
    assert_eq!(worker.stop(), Some(0));
}

/// A process with all roles creates its topics, and runs the tasks of the configuration and of an app.
#[test]
fn all_roles_run_in_one_process() {
    let Some(mut fleet) = Fleet::new() else { return };
    let apps = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/apps/loop.py");
    let mut command = fleet.command(&["all", "--listen", "127.0.0.1:0"]);
    command.args(["--", "python3", apps]);
    let mut all = Daemon::start(command);
    let listens: Value = serde_json::from_str(&all.wait_for_line("API listening")).expect("a log line as JSON");
    fleet.api = format!("http://{}", listens["address"].as_str().unwrap());
    let result = |task_type: &str, params: &str| {
        fleet.run(&["submit", task_type, params, "--wait=100s", "-o", "json"]).exits_with(0).json()["result"].clone()
    };
    assert_eq!((result("echo", "7"), result("double", r#"{"x":4}"#)), (json!(7), json!(8)));
    let workers = fleet.run(&["workers", "-o", "json"]).exits_with(0).json();
    assert_eq!(workers["workers"].as_array().unwrap().len(), 1, "{workers}");

    // Its configuration is reloaded as that of a worker.
    let path = fleet.folder.path().join("kafleet.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("[types.echo]", "[types.echo]\nconcurrency = 3")).unwrap();
    all.signal(Signal::SIGHUP);
    let applied = all.wait_for_line("the changed key is in effect");
    assert!(applied.contains("types.echo.concurrency"), "{applied}");
    assert_eq!(all.stop(), Some(0));
}
