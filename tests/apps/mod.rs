//! Processes of apps, with real programs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kafleet::apps::capacity::{Capacity, SlotKind};
use kafleet::apps::container::Container;
use kafleet::apps::loaded_files::LoadedFiles;
use kafleet::apps::pool::{AppHandler, AppPool, OpenedApp, PoolSettings, guard_container};
use kafleet::apps::process::{AppProcess, AppProgram, ProcessEnd, ProcessRequest};
use kafleet::apps::protocol::{self, Limits, Welcome};
use kafleet::apps::session::{AttemptAnswer, RunningAttempt, StuckCounter};
use kafleet::handlers::Handler;
use kafleet::handlers::context::Restart;
use kafleet::handlers::testing::TestRun;
use kafleet::model::json::RawJson;
use kafleet::runtime::Health;
use kafleet::telemetry::Metrics;
use kafleet_testkit::wait::{DEADLINE, eventually_blocking};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

fn program(command: &[&str]) -> AppProgram {
    AppProgram {
        files: LoadedFiles::default(),
        name: "shop".to_owned(),
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        cwd: PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/apps"),
        env: Default::default(),
        start_timeout: DEADLINE,
        types: None,
        slots: None,
        has_order: false,
        may_block: false,
        launcher: None,
    }
}

fn welcome() -> Welcome {
    Welcome {
        protocol: protocol::VERSION,
        app: "shop".to_owned(),
        worker: "w".to_owned(),
        version: "0",
        types: None,
        slots: None,
        grace_ms: 5_000,
        limits: Limits::new(1 << 20, 256 << 10),
        dev: false,
    }
}

/// Supervised process of the loop.
struct App {
    session: kafleet::apps::session::Session,
    pid: Pid,
    requests: mpsc::UnboundedSender<ProcessRequest>,
    end: JoinHandle<ProcessEnd>,
}

impl App {
    async fn start() -> Self {
        let (process, declaration) = program(&["python3", "loop.py"]).start(0, &welcome()).await.unwrap();
        assert_eq!(process.capacity(), Capacity::shared(1));
        assert!(declaration.types.keys().eq(["double"]));
        Self::supervise(process)
    }

    fn supervise(process: AppProcess) -> Self {
        let (requests, receiver) = mpsc::unbounded_channel();
        let session = process.session().clone();
        let pid = Pid::from_raw(process.pid() as i32);
        Self { session, pid, requests, end: tokio::spawn(process.run(receiver, |_| {})) }
    }

    fn begin(&self, params: &Value) -> RunningAttempt {
        let (cx, _) = TestRun::new().begin("double");
        self.session.start(&RawJson::of(params).unwrap(), &cx, &StuckCounter::default()).unwrap_or_else(|_| panic!())
    }

    async fn run(&self, params: Value) -> AttemptAnswer {
        timeout(DEADLINE, self.begin(&params).end()).await.expect("the attempt ends")
    }

    async fn ended(self) -> ProcessEnd {
        timeout(DEADLINE, self.end).await.expect("the process ends").unwrap()
    }
}

fn assert_gone(pid: Pid) {
    eventually_blocking("the process is gone", || kill(pid, None).err());
}

#[tokio::test]
async fn loop_runs_attempts_and_exits_at_the_end_of_the_stream() {
    let app = App::start().await;
    for x in 0..100 {
        assert_eq!(app.run(json!({"x": x})).await.answer.unwrap(), json!(x * 2));
    }
    assert_eq!(app.run(json!({"do": "child"})).await.answer.unwrap(), json!(""), "the child reads no attempt");
    assert_eq!(app.run(json!({"do": "pid"})).await.answer.unwrap(), json!(app.pid.as_raw()));
    let score = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", app.pid)).unwrap();
    assert_eq!(score.trim(), "1000");
    app.requests.send(ProcessRequest::Stop).unwrap();
    let end = app.ended().await;
    assert!(end.message.contains("exited with code 0"), "{}", end.message);
}

#[tokio::test]
async fn death_in_an_attempt_is_reported_with_the_last_output() {
    for (params, how) in [
        (json!({"do": "kill"}), "ended by SIGKILL; last output: about to die"),
        (json!({"do": "exit", "code": 0}), "it exited with code 0; last output: about to exit"),
    ] {
        let app = App::start().await;
        let pid = app.pid;
        let ended = app.run(params).await;
        let failure = ended.answer.unwrap_err();
        assert_eq!((ended.restart, &*failure.kind), (None, "crashed"));
        assert!(failure.message.contains(how), "{failure}");
        app.ended().await;
        assert_gone(pid);
    }
}

#[tokio::test]
async fn attempt_that_a_stopped_process_cannot_read_is_repeated() {
    let app = App::start().await;
    kill(app.pid, Signal::SIGSTOP).unwrap();
    let attempt = tokio::spawn(app.begin(&json!({"x": 1})).end());
    kill(app.pid, Signal::SIGKILL).unwrap();
    let ended = timeout(DEADLINE, attempt).await.expect("the attempt ends").unwrap();
    assert_eq!(ended.restart, Some(Restart::Shared));
}

#[tokio::test]
async fn process_is_killed_if_its_attempt_does_not_stop() {
    let app = App::start().await;
    let pid = app.pid;
    drop(app.begin(&json!({"do": "hang"})));
    let end = app.ended().await;
    assert!(end.message.contains("another attempt did not stop in time"), "{}", end.message);
    assert_gone(pid);
}

#[tokio::test]
async fn process_that_violates_the_protocol_is_killed() {
    let app = App::start().await;
    let pid = app.pid;
    let failure = app.run(json!({"do": "garble"})).await.answer.unwrap_err();
    assert_eq!(&*failure.kind, "garbled");
    assert!(failure.message.contains("`hello`"), "{failure}");
    app.ended().await;
    assert_gone(pid);
}

#[tokio::test]
async fn dropped_process_is_killed() {
    let (process, _) = program(&["python3", "loop.py"]).start(0, &welcome()).await.unwrap();
    let pid = Pid::from_raw(process.pid() as i32);
    drop(process);
    assert_gone(pid);
}

#[tokio::test]
async fn failed_start_gives_the_reason_and_a_remedy() {
    let short = AppProgram { start_timeout: Duration::from_millis(200), ..program(&["sleep", "60"]) };
    let cases = [
        (program(&["no-such-program"]), vec!["the app `shop` cannot be started: `no-such-program`", "tests/apps"]),
        (
            program(&["python3", "-c", "import no_such_module"]),
            vec![
                "the app `shop` ended before it was ready: exit code 1: ModuleNotFoundError: No module named 'no_such_module'",
                "hint: started in `",
                "set `cwd`",
            ],
        ),
        (short, vec!["was not ready within 0.2 s", "raise `start_timeout`"]),
        (program(&["sh", "-c", "echo '{\"unable\":{\"message\":\"no key\"}}' >&0"]), vec!["cannot serve: no key"]),
        (program(&["sh", "-c", "echo hello >&0; sleep 60"]), vec!["violates the app protocol", "`hello`"]),
        (
            program(&["sh", "-c", "echo '{\"ready\":{\"protocol\":2,\"types\":[]}}' >&0; sleep 60"]),
            vec!["is refused: it speaks version 2 of the app protocol"],
        ),
    ];
    for (program, parts) in cases {
        let started = timeout(DEADLINE, program.start(0, &welcome())).await.expect("the start ends");
        let text = started.err().unwrap_or_else(|| panic!("{program:?}")).to_string();
        for part in parts {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

/// Runs an attempt of the app with threads, and returns the process that has run it.
async fn run_in(pool: &Arc<AppPool>, params: Value) -> i64 {
    let (cx, _) = TestRun::new().begin("work");
    let attempt = AppHandler::new(pool.clone(), SlotKind::General).run(&RawJson::of(&params).unwrap(), cx).unwrap();
    let answer = timeout(DEADLINE, attempt).await.expect("the attempt ends").unwrap();
    answer.text().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn reload_replaces_a_process_and_lets_its_attempts_finish() {
    let opened = OpenedApp::open(program(&["python3", "threads.py"]), welcome()).await.unwrap();
    let pool = AppPool::new(opened, PoolSettings { processes: 1, max_tasks: None, memory: None, overlap: true }, false);
    let metrics = Metrics::new().unwrap();
    pool.serve(Health::default(), &metrics.apps);
    let first = run_in(&pool, json!({})).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("go");
    let running = {
        let (pool, params) = (pool.clone(), json!({"do": "wait", "file": file}));
        tokio::spawn(async move { run_in(&pool, params).await })
    };
    timeout(DEADLINE, async {
        while metrics.apps.attempts.with_label_values(&["shop"]).get() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the attempt is sent");
    timeout(DEADLINE, pool.reload()).await.expect("the process is replaced");
    assert_ne!(run_in(&pool, json!({})).await, first);
    std::fs::write(&file, "").unwrap();
    assert_eq!(running.await.unwrap(), first);
    assert_gone(Pid::from_raw(first as i32));
    pool.stop().await;
}

/// Pool of one process of the loop, and the process.
async fn serving_loop(metrics: &Metrics) -> (Arc<AppPool>, i64) {
    let opened = OpenedApp::open(program(&["python3", "loop.py"]), welcome()).await.unwrap();
    let pool = AppPool::new(opened, PoolSettings { processes: 1, max_tasks: None, memory: None, overlap: true }, false);
    pool.serve(Health::default(), &metrics.apps);
    let pid = run_in(&pool, json!({"do": "pid"})).await;
    (pool, pid)
}

#[tokio::test(flavor = "multi_thread")]
async fn largest_process_is_killed_before_the_container_is_full() {
    let metrics = Metrics::new().unwrap();
    let ((small, first), (large, second)) = (serving_loop(&metrics).await, serving_loop(&metrics).await);
    let cgroup = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: u64| std::fs::write(cgroup.path().join(name), bytes.to_string()).unwrap();
    write("memory.max", 1 << 30);
    write("memory.current", 1 << 20);
    let container = Container::find(cgroup.path(), "0::/");
    let guard = tokio::spawn(guard_container(vec![small.clone(), large.clone()], container));
    let (cx, _) = TestRun::new().begin("double");
    let params = RawJson::of(&json!({"do": "grow", "mib": 100, "hang": true})).unwrap();
    let attempt = AppHandler::new(large.clone(), SlotKind::General).run(&params, cx).unwrap();
    let attempt = tokio::spawn(attempt);
    let resident = || std::fs::read_to_string(format!("/proc/{second}/statm")).unwrap_or_default();
    let pages = || resident().split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    tokio::task::block_in_place(|| eventually_blocking("the process has grown", || pages() > 25_600));
    write("memory.current", (1 << 30) / 100 * 95);
    let failure = timeout(DEADLINE, attempt).await.expect("the attempt ends").unwrap().unwrap_err();
    // Memory is free again before the next look.
    write("memory.current", 1 << 20);
    assert_eq!(&*failure.kind, "crashed");
    assert!(failure.message.contains("of its 1GiB of memory, more than 90 %"), "{failure}");
    assert_gone(Pid::from_raw(second as i32));
    assert_eq!(run_in(&small, json!({"do": "pid"})).await, first, "the other process lives");
    assert_ne!(run_in(&large, json!({"do": "pid"})).await, second);
    guard.abort();
    tokio::join!(small.stop(), large.stop());
}
