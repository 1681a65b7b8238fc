//! The `exec` handler with real programs.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use kafleet::config::ProgramVariables;
use kafleet::handlers::builtin::exec::{Exec, MAX_LINES, Program};
use kafleet::handlers::note::Note;
use kafleet::handlers::program_env::ProgramEnv;
use kafleet::handlers::testing::{Outcome, TestRun};
use kafleet::handlers::{Fail, Failure, Handler, TypeRegistration};
use kafleet::model::json::RawJson;
use kafleet_testkit::wait::{DEADLINE, eventually_blocking};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

fn sh(script: &str) -> Program {
    Program {
        program: "sh".into(),
        arguments: vec!["-c".into(), script.into()],
        env: Default::default(),
        cwd: ".".into(),
        retry_exit_codes: vec![75],
        wait_exit_codes: Vec::new(),
        max_output: 64 * 1024,
        grace: Duration::from_millis(300),
    }
}

async fn attempt(program: Program, params: Value) -> Outcome {
    trial(&TestRun::new(), program, params).await
}

async fn trial(trial: &TestRun, program: Program, params: Value) -> Outcome {
    trial.handle("count", &TypeRegistration::new(Exec::new(program)), RawJson::of(&params).unwrap()).await
}

/// Returns the pids that a script has written, one per line, once there are `count`.
fn pids(file: &Path, count: usize) -> Vec<Pid> {
    eventually_blocking("the pids are written", || {
        let text = std::fs::read_to_string(file).ok().filter(|text| text.ends_with('\n'))?;
        let pids: Vec<_> = text.lines().filter_map(|line| line.parse().ok().map(Pid::from_raw)).collect();
        (pids.len() == count).then_some(pids)
    })
}

/// Returns whether a process runs. A zombie does not count; its parent may be any process.
fn runs(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
}

fn assert_gone(pids: &[Pid]) {
    for &pid in pids {
        eventually_blocking(&format!("process {pid} is gone"), || !runs(pid));
    }
}

/// Program with a child process that ignores everything but SIGKILL; their pids are written to the file.
fn unkillable_group(file: &Path) -> Program {
    let script = format!(
        "trap '' TERM; (trap '' TERM; while :; do sleep 60; done) & echo $! >> {0}; echo $$ >> {0}",
        file.display()
    );
    sh(&format!("{script}; while :; do sleep 60; done"))
}

#[tokio::test]
async fn params_are_stdin_and_result_is_stdout() {
    let outcome = attempt(sh("cat"), json!({"text": "grüße"})).await;
    assert_eq!(outcome.output(), json!({"text": "grüße"}));
    assert_eq!(attempt(sh("exit 0"), json!(null)).await.output(), Value::Null, "no output is null");
    assert_eq!(attempt(sh("echo '  '"), json!(null)).await.output(), Value::Null, "blank output is null");
    let large = json!({"text": "x".repeat(900_000)});
    assert_eq!(attempt(sh("exec 0<&-; echo 1"), large.clone()).await.output(), json!(1), "unread input");
    assert_eq!(attempt(sh("wc -c"), large.clone()).await.output(), json!(large.to_string().len()));
}

#[tokio::test]
async fn lines_on_stderr_are_progress_warnings_and_log() {
    let script = r#"
        echo '{"progress": {"done": 1}}' >&2; echo plain >&2; echo '{"log": "told"}' >&2; echo '{"warn": "hot"}' >&2
        echo '{"level": "info", "log": "somebody elses"}' >&2; echo '{"log": 3}' >&2; echo >&2; printf 'no newline' >&2"#;
    let outcome = attempt(sh(script), json!({})).await;
    assert_eq!(outcome.output(), Value::Null);
    assert_eq!(outcome.progress(), [json!({"done": 1})]);
    let log = ["plain", "told", r#"{"level": "info", "log": "somebody elses"}"#, r#"{"log": 3}"#, "no newline"];
    assert_eq!(outcome.log(), log);
    assert!(outcome.notes.contains(&Note::Warning("hot".into())));
}

#[tokio::test]
async fn exit_code_determines_outcome() {
    let failed = attempt(sh("echo working >&2; echo 'disk full' >&2; exit 3"), json!({})).await;
    assert_eq!((failed.failure().then, failed.failure().kind.as_ref()), (Fail::Final, "exit_code"));
    assert_eq!(failed.failure().message, "exit code 3: working\ndisk full");
    let again = attempt(sh("exit 75"), json!({})).await;
    assert_eq!(again.failure().then, Fail::Retry { after: None });
    assert_eq!(again.failure().message, "exit code 75, and nothing on stderr");
    let own_codes = Program { retry_exit_codes: vec![9], ..sh("exit 9") };
    assert_eq!(attempt(own_codes, json!({})).await.failure().then, Fail::Retry { after: None });
    let wait_codes = Program { wait_exit_codes: vec![9], ..sh("echo busy >&2; exit 9") };
    let waits = attempt(wait_codes, json!({})).await;
    assert_eq!((waits.failure().then, waits.failure().kind.as_ref()), (Fail::Wait { after: None }, "exit_code"));
    assert_eq!(waits.failure().message, "exit code 9: busy");
    let killed = attempt(sh("kill -SEGV $$"), json!({})).await;
    assert_eq!((killed.failure().then, killed.failure().kind.as_ref()), (Fail::Retry { after: None }, "signal"));
    assert!(killed.failure().message.contains("SIGSEGV"), "{}", killed.failure());
}

#[tokio::test]
async fn failure_quotes_plain_lines_rather_than_protocol_lines() {
    let talk = r#"echo '{"log": "step 1"}' >&2; echo '{"progress": 1}' >&2; echo '{"warn": "hot"}' >&2"#;
    let failed =
        attempt(sh(&format!("{talk}; echo 'disk full' >&2; echo '{{\"log\": \"step 2\"}}' >&2; exit 3")), json!({}))
            .await;
    assert_eq!(failed.failure().message, "exit code 3: disk full");
    // Protocol lines are quoted if there are no others.
    assert_eq!(attempt(sh(&format!("{talk}; exit 3")), json!({})).await.failure().message, "exit code 3: step 1\nhot");
}

#[tokio::test]
async fn invalid_json_output_fails_with_excerpt() {
    let outcome = attempt(sh("echo Hello world"), json!({})).await;
    assert_eq!((outcome.failure().then, outcome.failure().kind.as_ref()), (Fail::Final, "bad_output"));
    assert!(outcome.failure().message.ends_with("it begins with `Hello world`"), "{}", outcome.failure());
}

#[tokio::test]
async fn program_that_cannot_be_started_is_named() {
    let program = Program { program: "/no/such/program".into(), ..sh("") };
    let outcome = attempt(program, json!({})).await;
    assert_eq!((outcome.failure().then, outcome.failure().kind.as_ref()), (Fail::Retry { after: None }, "not_started"));
    assert!(
        outcome.failure().message.contains("cannot start the program `/no/such/program`: No such file"),
        "{}",
        outcome.failure()
    );
}

#[tokio::test]
async fn program_gets_task_in_environment() {
    let script = r#"echo "[\"$KAFLEET_TASK_ID\",\"$KAFLEET_TYPE\",$KAFLEET_ATTEMPT,$KAFLEET_RUN,\"$KAFLEET_IDEMPOTENCY_KEY\",\"$TRACEPARENT\",\"$COLOUR\",\"$PWD\"]""#;
    let own = [("COLOUR".to_owned(), "blue".to_owned())].into();
    let env = ProgramEnv { variables: ProgramVariables { own, inherit: true }, ..ProgramEnv::default() };
    let program = Program { env, cwd: "/".into(), ..sh(script) };
    let outcome = trial(&TestRun::new().id("order:9").attempt(2).trace("00-ab-cd-01"), program, json!({})).await;
    assert_eq!(outcome.output(), json!(["order:9", "count", 2, 1, "order:9/1", "00-ab-cd-01", "blue", "/"]));
}

/// Runs the sample of the documentation, which needs Python.
#[tokio::test]
async fn documented_sample_counts_words() {
    if Command::new("python3").arg("--version").output().is_err() {
        return eprintln!("not run: there is no `python3` here");
    }
    let program = || {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/word-count");
        Program { program, arguments: Vec::new(), ..sh("") }
    };
    let outcome = attempt(program(), json!({"text": "to be or not\nto be"})).await;
    assert_eq!(outcome.output(), json!({"words": 6, "different": 4, "most": [["to", 2], ["be", 2], ["or", 1]]}));
    assert_eq!(outcome.progress(), [json!({"line": 1, "of": 2}), json!({"line": 2, "of": 2})]);
    let empty = attempt(program(), json!({"text": ""})).await;
    assert!(empty.failure().message.ends_with("the text has no words"), "{}", empty.failure());
}

#[tokio::test]
async fn program_output_is_bounded() {
    let endless = attempt(sh("while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done"), json!({})).await;
    assert_eq!((endless.failure().then, endless.failure().kind.as_ref()), (Fail::Final, "result_too_large"));
    let exact = Program { max_output: 5, ..sh("printf 12345") };
    assert_eq!(attempt(exact, json!({})).await.output(), json!(12345));

    let long_line =
        attempt(sh("head -c 1000000 /dev/zero | tr '\\0' x >&2; echo >&2; echo after >&2"), json!({})).await;
    assert_eq!(long_line.log().iter().map(|line| line.len()).collect::<Vec<_>>(), [16 * 1024, 5]);

    let chatty = attempt(sh("seq 1 20000 >&2"), json!({})).await;
    assert_eq!(chatty.log().len(), MAX_LINES + 1);
    assert_eq!(*chatty.log().last().unwrap(), "10000 more lines were dropped: the limit of an attempt is 10000");
}

#[tokio::test]
async fn remaining_processes_are_killed_without_delaying_the_result() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pids");
    // The child process keeps stdout and stderr open.
    let outcome = attempt(sh(&format!("sleep 600 & echo $! > {}; echo 1", file.display())), json!({})).await;
    assert_eq!(outcome.output(), json!(1));
    assert_gone(&pids(&file, 1));

    // The program ends once its child has left the process group.
    let left = dir.path().join("left");
    let script = "setsid sh -c 'echo $$ > {left}; exec sleep 600' & while [ ! -s {left} ]; do sleep 0.05; done; echo 2";
    let escaped = attempt(sh(&script.replace("{left}", left.to_str().unwrap())), json!({})).await;
    assert_eq!(escaped.output(), json!(2), "a process that left the group does not delay the result");
    pids(&left, 1).into_iter().for_each(|pid| kill(pid, Signal::SIGKILL).unwrap());
}

#[tokio::test]
async fn cancelled_program_gets_sigterm_and_then_sigkill() {
    let dir = tempfile::tempdir().unwrap();
    let (ready, cleaned) = (dir.path().join("ready"), dir.path().join("cleaned"));
    let script = "trap 'echo 1 > {cleaned}; exit 1' TERM; echo $$ > {ready}; while :; do sleep 0.05; done";
    let script = script.replace("{cleaned}", cleaned.to_str().unwrap()).replace("{ready}", ready.to_str().unwrap());
    assert_eq!(cancel_when_ready(Program { grace: DEADLINE, ..sh(&script) }, &ready, 1).await, Fail::Cancelled);
    assert!(cleaned.exists(), "the program got SIGTERM and time to clean up");

    let stubborn = dir.path().join("stubborn");
    assert_eq!(cancel_when_ready(unkillable_group(&stubborn), &stubborn, 2).await, Fail::Cancelled);
    assert_gone(&pids(&stubborn, 2));
}

async fn cancel_when_ready(program: Program, ready: &Path, count: usize) -> Fail {
    let (cx, _) = TestRun::new().begin("count");
    let answer = Exec::new(program).run(&RawJson::null(), cx.clone()).unwrap();
    let file = ready.to_owned();
    let canceller = tokio::task::spawn_blocking(move || {
        pids(&file, count);
        cx.cancelled().cancel();
    });
    let answer = tokio::time::timeout(DEADLINE, answer).await.expect("the program is killed after the grace period");
    canceller.await.unwrap();
    answer.unwrap_err().then
}

#[tokio::test]
async fn dropped_attempt_kills_its_process_group() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pids");
    let (cx, _) = TestRun::new().begin("count");
    let attempt = tokio::spawn(Exec::new(unkillable_group(&file)).run(&RawJson::null(), cx).unwrap());
    let family = tokio::task::spawn_blocking({
        let file = file.clone();
        move || pids(&file, 2)
    });
    let family = family.await.unwrap();
    assert!(family.iter().all(|&pid| runs(pid)));
    attempt.abort();
    assert!(attempt.await.unwrap_err().is_cancelled());
    assert_gone(&family);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_programs_leave_no_zombies() {
    let attempts =
        (0..60).map(|n| tokio::spawn(async move { attempt(sh("sleep 0.05; cat"), json!(n)).await.output() }));
    for (n, attempt) in attempts.collect::<Vec<_>>().into_iter().enumerate() {
        assert_eq!(attempt.await.unwrap(), json!(n));
    }
    let own_id = std::process::id();
    eventually_blocking("no zombie is left", || !children(own_id).into_iter().any(|pid| !runs(pid)));
}

/// Returns the children of a process, including zombies.
fn children(parent: u32) -> Vec<Pid> {
    let tasks = std::fs::read_dir(format!("/proc/{parent}/task")).unwrap().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().map(|pid| Pid::from_raw(pid.parse().unwrap())).collect::<Vec<_>>())
        .collect()
}

const WORKER: &str = "KAFLEET_TEST_WORKER";
const BUSY_WORKER: &str = "KAFLEET_TEST_BUSY_WORKER";
const ALONE: &str = "KAFLEET_TEST_ALONE";

/// Entry point of a worker process for the next tests: runs three groups of programs until it is killed.
#[tokio::test(flavor = "multi_thread")]
async fn as_a_worker_process() {
    let Ok(dir) = std::env::var(WORKER) else { return };
    let attempts =
        (0..3).map(|n| tokio::spawn(attempt(unkillable_group(&Path::new(&dir).join(n.to_string())), json!({}))));
    for attempt in attempts.collect::<Vec<_>>() {
        attempt.await.unwrap();
    }
}

fn start_worker(dir: &Path) -> std::process::Child {
    start("as_a_worker_process", WORKER, dir)
}

fn start(test: &str, variable: &str, dir: &Path) -> std::process::Child {
    let mut worker = Command::new(std::env::current_exe().unwrap());
    worker
        .args(["--exact", &full_name(test)])
        .env(variable, dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn families(dir: &Path) -> Vec<Pid> {
    (0..3).flat_map(|n| pids(&dir.join(n.to_string()), 2)).collect()
}

fn guard_of(worker: u32) -> Option<Pid> {
    let is_guard = |pid: &Pid| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "kafleet-guard")
    };
    children(worker).into_iter().find(is_guard)
}

#[test]
fn programs_die_with_a_killed_worker() {
    let dir = tempfile::tempdir().unwrap();
    let mut worker = start_worker(dir.path());
    let families = families(dir.path());
    let guard = eventually_blocking("the worker has a guard", || guard_of(worker.id()));
    assert!(families.iter().all(|&pid| runs(pid)));
    worker.kill().unwrap();
    worker.wait().unwrap();
    assert_gone(&families);
    assert_gone(&[guard]);
}

#[test]
fn guard_closes_inherited_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let mut worker = start_worker(dir.path());
    let families = families(dir.path());
    let guard = eventually_blocking("the worker has a guard", || guard_of(worker.id()));
    // The guard closes them after it has set its name.
    let open = || std::fs::read_dir(format!("/proc/{guard}/fd")).unwrap().count();
    eventually_blocking("all descriptors but the pipe are closed", || open() == 1);
    kill(guard, Signal::SIGTERM).unwrap();
    kill(guard, Signal::SIGINT).unwrap();
    worker.kill().unwrap();
    worker.wait().unwrap();
    assert_gone(&families);
}

#[tokio::test(flavor = "multi_thread")]
async fn as_a_busy_worker_process() {
    let Ok(dir) = std::env::var(BUSY_WORKER) else { return };
    let once = || async {
        loop {
            attempt(sh("sleep 0.01 & sleep 600 & wait $!"), json!({})).await;
        }
    };
    let short = || async {
        loop {
            let mark = Path::new(&dir).join("begun");
            attempt(sh(&format!("echo 1 > {}; sleep 600 &", mark.display())), json!({})).await;
        }
    };
    tokio::join!(once(), once(), short(), short());
}

/// Kills the worker at random moments: during a fork, before an exec, after an exit.
#[test]
fn worker_killed_at_any_time_leaves_no_programs() {
    for round in 0..6 {
        let dir = tempfile::tempdir().unwrap();
        let mut worker = start("as_a_busy_worker_process", BUSY_WORKER, dir.path());
        eventually_blocking("it works", || dir.path().join("begun").exists());
        // Another moment in each round.
        std::thread::sleep(Duration::from_millis(round * 7));
        worker.kill().unwrap();
        worker.wait().unwrap();
        let mark = format!("{BUSY_WORKER}={}", dir.path().display());
        eventually_blocking("no process is left", || with_environment(&mark).is_empty());
    }
}

fn with_environment(mark: &str) -> Vec<Pid> {
    let pids =
        std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let has = |pid: &i32| {
        std::fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|env| env.split(|&b| b == 0).any(|v| v == mark.as_bytes()))
    };
    pids.filter(has).map(Pid::from_raw).collect()
}

/// Name of a test of this module, as the test runner knows it: without the crate.
fn full_name(test: &str) -> String {
    let (_, module) = module_path!().split_once("::").unwrap();
    format!("{module}::{test}")
}

/// Runs a test in a separate process, because it affects global state. True in that process.
fn alone(test: &str) -> bool {
    let inside = std::env::var(ALONE).is_ok_and(|name| name == test);
    if !inside {
        let mut alone = Command::new(std::env::current_exe().unwrap());
        let status = alone.args(["--exact", &full_name(test)]).env(ALONE, test).status().unwrap();
        assert!(status.success());
    }
    inside
}

#[tokio::test]
async fn dead_guard_is_replaced_with_current_table() {
    if !alone("dead_guard_is_replaced_with_current_table") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let handler = Exec::new(sh("echo 1"));
    handler.prepare().unwrap();
    let old = eventually_blocking("the guard is running", || guard_of(std::process::id()));
    let file = dir.path().join("pids");
    let (cx, _) = TestRun::new().begin("count");
    let running = tokio::spawn(Exec::new(unkillable_group(&file)).run(&RawJson::null(), cx).unwrap());
    let family = tokio::task::spawn_blocking(move || pids(&file, 2)).await.unwrap();
    kill(old, Signal::SIGKILL).unwrap();
    eventually_blocking("the guard has ended", || !runs(old));
    assert_eq!(attempt(sh("echo 1"), json!({})).await.output(), json!(1));
    let new = eventually_blocking("a new guard is running", || guard_of(std::process::id()));
    assert_ne!(old, new);
    assert!(family.iter().all(|&pid| runs(pid)), "running programs continue");
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    assert_gone(&family);
}

async fn batch(script: &str, params: &[Value]) -> Result<Vec<Outcome>, Failure> {
    let registered = TypeRegistration::new(Exec::new(sh(script)).with_batches());
    let params = params.iter().map(|params| RawJson::of(params).unwrap()).collect();
    TestRun::new().handle_batch("count", &registered, params).await
}

/// Answers each line with the line itself.
const ECHO: &str = r#"while IFS= read -r line; do
    id=${line#*\"id\":\"}; printf '{"id": "%s", "ok": %s}\n' "${id%%\"*}" "$line"
done"#;

#[tokio::test]
async fn tasks_of_a_batch_are_lines_and_so_are_their_answers() {
    let outcomes = batch(ECHO, &[json!({"n": 1}), json!(2)]).await.unwrap();
    let expected =
        |id: &str, params: Value| json!({"id": id, "run": 1, "attempt": 1, "key": format!("{id}/1"), "params": params});
    assert_eq!(outcomes[0].output(), expected("test-1", json!({"n": 1})));
    assert_eq!(outcomes[1].output(), expected("test-2", json!(2)));
    let registered = TypeRegistration::new(Exec::new(sh(ECHO)).with_batches());
    let single = TestRun::new().handle("count", &registered, RawJson::null()).await;
    assert_eq!(single.output(), expected("test", Value::Null), "a single task is a batch of one");
}

#[tokio::test]
async fn tasks_of_a_batch_have_outcomes_and_logs_of_their_own() {
    let script = r#"echo '{"id": "test-1", "ok": null}
{"id": "test-3", "retry": "later", "kind": "busy", "after": "7s"}
{"id": "test-2", "fail": "no"}
{"id": "test-4", "dead": "never"}
{"id": "test-5", "wait": "soon"}
{"id": "test-6", "ok": 1, "fail": "no"}
{"id": "test-9", "ok": 1}'
echo '{"id": "test-2", "log": "mine"}' >&2; echo '{"log": "of no task"}' >&2; echo plain >&2"#;
    let outcomes = batch(script, &vec![json!(1); 7]).await.unwrap();
    assert_eq!(outcomes[0].output(), Value::Null);
    assert_eq!(outcomes[6].output(), Value::Null, "exit code 0 is the answer of a task without one");
    assert_eq!((outcomes[1].failure().then, outcomes[1].log()), (Fail::Final, vec!["mine"]));
    let busy = outcomes[2].failure();
    assert_eq!((busy.then, &*busy.kind), (Fail::Retry { after: Some(Duration::from_secs(7)) }, "busy"));
    assert_eq!(outcomes[3].failure().then, Fail::Dead);
    assert_eq!(outcomes[4].failure().then, Fail::Wait { after: None });
    assert_eq!(&*outcomes[5].failure().kind, "bad_output");
    assert!(outcomes.iter().enumerate().all(|(n, outcome)| n == 1 || outcome.notes.is_empty()), "{outcomes:?}");
}

#[tokio::test]
async fn exit_code_is_the_answer_of_tasks_without_one() {
    let outcomes = batch("echo '{\"id\": \"test-1\", \"ok\": 1}'; exit 75", &[json!(1), json!(2)]).await.unwrap();
    assert_eq!(outcomes[0].output(), json!(1));
    assert_eq!(outcomes[1].failure().then, Fail::Retry { after: None });
    for (script, kind) in [("exit 3", "exit_code"), ("kill -9 $$", "signal"), ("echo no", "bad_output")] {
        let failure = batch(script, &[json!(1), json!(2)]).await.unwrap_err();
        assert_eq!(&*failure.kind, kind, "of the call: {failure:?}");
    }
}
