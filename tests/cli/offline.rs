//! Verbs without a fleet: help, completions, and errors before any connection.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cli::run::{Daemon, config_folder, eventually_blocking, kafleet, run, run_with_stdin, write};

/// Returns the verbs listed by `--help`.
pub fn verbs() -> Vec<String> {
    let help = run(kafleet(["--help"])).exits_with(0).out;
    let commands = help.split("Commands:\n").nth(1).expect("a list of commands").split("\n\n").next().unwrap();
    let names = commands.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !name.is_empty() && *name != "help").map(str::to_owned).collect()
}

#[test]
fn every_verb_has_help_on_stdout() {
    let verbs = verbs();
    assert!(verbs.len() >= 17, "{verbs:?}");
    for verb in &verbs {
        let help = run(kafleet([verb, "--help"])).exits_with(0);
        assert!(help.out.contains("Usage: kafleet") && help.err.is_empty(), "{verb}: {help:?}");
    }
    run(kafleet(["--version"])).exits_with(0).stdout_has(&[env!("CARGO_PKG_VERSION")]);
}

/// A missing file would be taken for one without schedules, and `--prune` would delete them all.
#[test]
fn schedules_are_not_applied_without_a_configuration_file() {
    let empty = tempfile::tempdir().unwrap();
    let mut apply = kafleet(["schedules", "apply", "--prune"]);
    apply.current_dir(empty.path()).env_remove("KAFLEET_CONFIG");
    run(apply).exits_with(2).stderr_has(&["there is no configuration file", "--config"]);
}

#[test]
fn task_that_may_have_been_created_is_named() {
    let api = ["--api", "http://me:hunter2@127.0.0.1:1"];
    let ran = run(kafleet(["submit", "echo", "{}", "--id", "order-1"].into_iter().chain(api))).exits_with(4);
    assert!(ran.err.contains("repeat the command with `--id order-1`"), "{ran:?}");
    assert!(!ran.err.contains("hunter2"), "{ran:?}");
}

/// A full disk or a closed pipe behind stderr must not end a role, nor keep it from ending.
#[test]
fn role_survives_a_log_that_cannot_be_written() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut dev = kafleet(["dev", "--listen", &address, "--no-sample"]);
    dev.env("KAFLEET_LOG", "debug").stderr(full).stdout(std::process::Stdio::null());
    let mut dev = dev.spawn().unwrap();
    let api = format!("http://{address}");
    eventually_blocking("the role serves", || run(kafleet(["list", "--api", &api])).code == Some(0));
    kill(Pid::from_raw(dev.id() as i32), Signal::SIGTERM).unwrap();
    let status = eventually_blocking("the role has ended", || dev.try_wait().unwrap());
    assert!(status.success(), "{status}");
}

/// npm passes on the SIGINT of a terminal to the program, which has received it too.
#[test]
fn second_signal_aborts_unless_it_repeats_the_first() {
    let folder = config_folder("[types.slow]\nhandler = \"exec\"\ncommand = [\"sleep\", \"60\"]\n");
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut command = kafleet(["dev", "--listen", &address, "--no-sample"]);
    command.current_dir(folder.path()).env("KAFLEET_LOG", "info");
    let mut dev = Daemon::start(command);
    let api = format!("http://{address}");
    eventually_blocking("the task runs", || {
        run(kafleet(["submit", "slow", "{}", "--id", "a", "--api", &api]));
        run(kafleet(["status", "a", "--api", &api])).out.contains("running").then_some(())
    });
    let begun = Instant::now();
    dev.signal(Signal::SIGINT);
    dev.wait_for_line("shutting down");
    eventually_blocking("the process has aborted", || {
        dev.signal(Signal::SIGINT);
        dev.has_ended().then_some(())
    });
    assert!(begun.elapsed() >= Duration::from_millis(200), "the second signal has aborted");
    dev.wait_for_line("aborting");
}

#[test]
fn wrong_usage_is_reported_on_stderr_with_code_2() {
    for (line, expected) in [
        ("", "Usage: kafleet"),
        ("statsu", "'status', 'stats'"),
        ("status", "<ID>"),
        ("status a --wiat", "--wait"),
        ("list --state broken", "`broken` is not a state: use one of expected, scheduled"),
        ("list --limit 0", "0 is not in 1..=10000"),
        ("list --from yesterday", "`yesterday` is not a time"),
        ("tree a --depth x", "invalid value 'x'"),
        ("watch a --timeout soon", "soon"),
        ("dead-letters redrive echo:0:1 echo:0:2 --params 1", "`--params` needs the id of one dead letter"),
        ("dead-letters redrive echo:0:1 --params {odd", "`--params` is not JSON"),
        ("dead-letters redrive --type echo --patch {odd", "`--patch` is not JSON"),
        ("dead-letters redrive echo:0:1 --params 1 --patch {}", "cannot be used with"),
        ("dead-letters redrive --patch {}", "neither ids nor --type are given"),
        ("dead-letters drop echo:0:1 --type other", "cannot be used with"),
        ("dead-letters drop echo:0:1 --kind other", "cannot be used with"),
        ("bench tracker --redis redis-cluster://h:1", "`redis-cluster://` names a cluster"),
        ("bench outbox", "no Postgres is configured"),
        ("bench outbox --postgres http://x", "`http://x` is not a Postgres URL"),
        ("bench outbox --rows 1", "1 is not in 1000..=10000000"),
        ("submit", "required"),
        ("submit echo {bad", "`{bad` is not JSON"),
        ("submit echo {} --delay 1s --at 2026-01-31T12:00:00Z", "cannot be used with"),
        ("submit echo {} --file x", "cannot be used with"),
        ("submit - --wait", "`--wait` is for one task"),
        ("offsets init echo", "--at"),
        ("offsets init echo/x --at latest", "echo/x"),
        ("offsets init echo --at sometime", "`sometime` is not an offset"),
        ("offsets move echo", "--to"),
        ("offsets move Echo --to small", "`Echo` is not a type name"),
        ("dev --once --no-sample", "cannot be used with"),
        ("completions cobol", "possible values"),
        ("status a --api 127.0.0.1:80", "is not the address of an API"),
        ("status a -o yaml", "possible values: table, json"),
    ] {
        let ran = run(kafleet(line.split_whitespace())).exits_with(2).stderr_has(&[expected]);
        assert!(ran.out.is_empty(), "{line}: {ran:?}");
    }
}

#[test]
fn usage_does_not_list_options_set_by_the_environment() {
    for (line, usage) in [
        ("status", "Usage: kafleet status [OPTIONS] <ID>"),
        ("types pause", "Usage: kafleet types pause [OPTIONS] <TYPE>"),
        ("list --nope", "Usage: kafleet list [OPTIONS]"),
    ] {
        let mut command = kafleet(line.split_whitespace());
        command.env("KAFLEET_BROKERS", "b:9092").env("KAFLEET_REDIS", "redis://r").env("KAFLEET_API", "http://a");
        let ran = run(command).exits_with(2).stderr_has(&[usage]);
        assert!(!ran.err.contains("--brokers"), "{line}: {ran:?}");
    }
}

#[test]
fn completions_are_valid_scripts() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        run(kafleet(["completions", shell])).exits_with(0).stdout_has(&["kafleet", "submit"]);
    }
    let script = run(kafleet(["completions", "bash"])).out;
    let mut bash = std::process::Command::new("bash");
    bash.arg("-n");
    run_with_stdin(bash, &script).exits_with(0);
}

#[test]
fn metrics_prints_the_dashboard_and_the_alerts() {
    let dashboard = run(kafleet(["metrics", "dashboard"])).exits_with(0).out;
    assert_eq!(serde_json::from_str::<serde_json::Value>(&dashboard).unwrap()["uid"], "kafleet");
    run(kafleet(["metrics", "alerts", "--runbook", "https://wiki.example.org/runbook"]))
        .exits_with(0)
        .stdout_has(&["alert: KafleetTypeStopped", "https://wiki.example.org/runbook#kafleettypestopped"]);
}

#[test]
fn closed_stdout_is_no_failure() {
    let folder = config_folder("");
    let mut child = kafleet(["completions", "zsh"])
        .current_dir(folder.path())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let ran = crate::cli::run::wait_for_exit(child).exits_with(0);
    assert_eq!(ran.err, "");
}

#[test]
fn every_problem_of_the_configuration_is_reported_with_its_line() {
    let folder = config_folder(
        "[worker]\ndrain_timeout = \"soon\"\n\n[topic]\nprefix = \"x\"\n\n[types.echo]\nhandler = \"ecko\"\n",
    );
    for verb in [&["worker"][..], &["tracker"], &["api"], &["dev", "--once"], &["topics", "apply"]] {
        let mut command = kafleet(verb);
        command.current_dir(folder.path());
        run(command).exits_with(2).stderr_has(&[
            "the configuration is invalid",
            "kafleet.toml:2: ",
            "soon",
            "kafleet.toml:4: ",
            "topics",
            "kafleet.toml:8: ",
            "ecko",
        ]);
    }
    let mut doctor = kafleet(["doctor", "--no-api"]);
    doctor.current_dir(folder.path());
    run(doctor).exits_with(1).stdout_has(&["error    configuration", "kafleet.toml:2: ", "kafleet.toml:8: "]);
}

#[test]
fn invalid_schema_is_reported_with_its_line() {
    let folder = config_folder("[types.count]\nhandler = \"exec\"\ncommand = [\"wc\"]\nschema = \"count.json\"\n");
    let role = || {
        let mut command = kafleet(["worker"]);
        command.current_dir(folder.path());
        run(command)
    };
    role().exits_with(2).stderr_has(&["kafleet.toml:4: the schema `", "count.json", "No such file", "hint: "]);
    write(folder.path(), "count.json", r#"{"type": "nonsense"}"#);
    role().exits_with(2).stderr_has(&["kafleet.toml:4: the schema `", "count.json` is not a JSON Schema"]);
}

#[test]
fn role_needs_no_secrets_of_other_roles() {
    let folder = config_folder("[redis]\npassword = \"${KAFLEET_TEST_NO_SUCH}\"\n");
    let role = |words: &[&str]| {
        let mut command = kafleet(words);
        command.current_dir(folder.path()).args(["--brokers", "127.0.0.1:1"]);
        command
    };
    let expected = ["kafleet.toml:2: the environment variable `KAFLEET_TEST_NO_SUCH` is not set", "hint: "];
    run(role(&["tracker"])).exits_with(2).stderr_has(&expected);
    run(role(&["api"])).exits_with(2).stderr_has(&expected);
    let mut worker = Daemon::start(role(&["worker"]));
    worker.wait_for_line("waiting for kafka");
    assert_eq!(worker.stop(), Some(0));
}

#[test]
fn named_file_must_exist() {
    run(kafleet(["worker", "--config", "/no/such.toml"]))
        .exits_with(2)
        .stderr_has(&["/no/such.toml", "cannot be read"]);
    run(kafleet(["submit", "--file", "/no/such.ndjson"])).exits_with(3).stderr_has(&["cannot read `/no/such.ndjson`"]);
}

#[test]
fn port_in_use_is_reported_with_a_hint() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for verb in ["dev", "api"] {
        run(kafleet([verb, "--listen", &address])).exits_with(1).stderr_has(&[
            &format!("`{address}` is in use by another process"),
            "hint: choose another address with --listen, or port 0",
        ]);
    }
    run(kafleet(["worker", "--ops-listen", &address]))
        .exits_with(1)
        .stderr_has(&["hint: choose another address with --ops-listen"]);
}

#[test]
fn unreachable_api_is_exit_code_4() {
    // Bound but not listening, so that no other process can listen there meanwhile.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let free = socket.local_addr().unwrap();
    for line in
        ["status a", "list", "tree a", "watch a", "history a", "log a", "types", "submit echo {}", "status a --wait"]
    {
        let mut command = kafleet(line.split(' '));
        command.env("KAFLEET_API", format!("http://{free}"));
        run(command)
            .exits_with(4)
            .stderr_has(&["cannot be reached", "hint: start one with `kafleet dev` or `kafleet api`"]);
    }
}

#[test]
fn role_waits_for_kafka_until_timeout_or_signal() {
    let nothing = "127.0.0.1:1";
    run(kafleet(["worker", "--brokers", nothing, "--start-timeout", "1ms"]))
        .exits_with(4)
        .stderr_has(&["kafka at `127.0.0.1:1` was not ready", "hint: check --brokers"]);
    run(kafleet(["worker", "--types", "nope", "--brokers", nothing]))
        .exits_with(3)
        .stderr_has(&["no type `nope`", "`echo`, `foreach`"]);
    let mut waiting = Daemon::start(kafleet(["tracker", "--brokers", nothing]));
    waiting.wait_for_line("waiting for kafka");
    assert_eq!(waiting.stop(), Some(0));
}
