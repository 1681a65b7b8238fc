//! Cases beyond the recorded sessions: long and joined lines, newer workers, slow workers, dead workers.

use serde_json::{Value, json};

use super::{Case, CaseStep, Needs, welcome};
use crate::protocol::{self, ToApp};

/// Number of attempts of the case with many.
const ATTEMPTS: u64 = 200;
/// Size of long params, in bytes: as large as a worker can be configured to accept.
const LONG_BYTES: usize = 3 << 20;
/// Size of the result that a slow worker reads late, in bytes; larger than the buffers of a socket.
const SLOW_BYTES: usize = 1 << 20;

/// Returns all cases.
pub(super) fn faults() -> Vec<Case> {
    [start(), lines(), attempts(), ends()].concat()
}

fn start() -> Vec<Case> {
    let mut newer = welcome_value(&[]);
    newer["welcome"]["protocol"] = json!(9);
    newer["welcome"]["future"] = json!({"kept": [1]});
    let newer = vec![send(&newer), CaseStep::Receive(json!({"ready": {}})), CaseStep::End, CaseStep::Exit(Some(0))];
    vec![
        case("idle-end", "At the end of the stream the app exits with code 0.", &[], idle()),
        case("newer-worker", "An app starts under a worker that speaks newer versions.", &[], newer),
    ]
}

fn lines() -> Vec<Case> {
    let echo = |n: u64, params: &Value| [attempt(n, "t-echo", params), ok(n, params)];
    let unknown = b"{\"future\":{\"n\":1,\"deep\":[[]]}}\n".to_vec();
    let joined = [unknown.clone(), attempt_line(1, "t-echo", &json!(1)), unknown].concat();
    let surrogate = attempt_line(1, "t-echo", &json!("HALF"));
    let surrogate = String::from_utf8_lossy(&surrogate).replace("HALF", "\\ud800");
    let long = json!("x".repeat(LONG_BYTES));
    let mut wide = welcome_value(&["t-echo"]);
    wide["welcome"]["limits"]["output"] = json!(2 * LONG_BYTES);
    wide["welcome"]["limits"]["params"] = json!(2 * LONG_BYTES);
    let wide = vec![send(&wide), CaseStep::Receive(json!({"ready": {}}))];
    let long = [wide, echo(1, &long).to_vec(), echo(2, &json!(2)).to_vec(), end()].concat();
    vec![
        session(
            "joined-lines",
            "Several lines may arrive at once, and unknown kinds are ignored.",
            &["t-echo"],
            vec![CaseStep::Send(joined), ok(1, &json!(1))],
        ),
        case("long-line", "A line has up to 8 MiB.", &["t-echo"], long),
        session(
            "lone-surrogate",
            "Params that the app cannot read fail their attempt only.",
            &["t-echo"],
            [
                vec![CaseStep::Send(surrogate.into_bytes()), CaseStep::ReceiveAnswers(vec![1])],
                echo(2, &json!(2)).to_vec(),
            ]
            .concat(),
        ),
        session(
            "slow-worker",
            "An app waits while the worker does not read, and loses nothing.",
            &["t-echo"],
            slow_worker(),
        ),
    ]
}

fn slow_worker() -> Vec<CaseStep> {
    let params = json!("y".repeat(SLOW_BYTES - 2));
    let mut steps = vec![attempt(1, "t-echo", &params), CaseStep::Pause, CaseStep::ReceiveAnswers(vec![1])];
    steps.extend([attempt(2, "t-echo", &json!(2)), ok(2, &json!(2))]);
    steps
}

fn attempts() -> Vec<Case> {
    let many = (1..=ATTEMPTS).flat_map(|n| [attempt(n, "t-echo", &json!([n])), ok(n, &json!([n]))]).collect();
    let child = [(1, "t-child", json!(0)), (2, "t-child", json!(0)), (3, "t-echo", json!({}))];
    let child = child.into_iter().flat_map(|(n, name, output)| [attempt(n, name, &json!({})), ok(n, &output)]);
    let wait = attempt(1, "t-wait", &json!({"ms": 600_000}));
    let cancel = |reason: &str| send(&json!({"cancel": {"n": 1, "reason": reason}}));
    let cancelled =
        CaseStep::Receive(json!({"error": {"n": 1, "outcome": "cancelled", "kind": "cancelled", "message": ""}}));
    let echo = [attempt(2, "t-echo", &json!(2)), ok(2, &json!(2))];
    let twice = [vec![wait.clone(), cancel("cancelled"), cancel("shutdown"), cancelled], echo.to_vec()].concat();
    // The worker kills the process with the long attempt.
    let beside = [opening(&["t-wait", "t-echo"]), vec![wait], echo.to_vec()].concat();
    let both = [attempt_line(1, "t-echo", &json!(1)), attempt_line(2, "t-echo", &json!(2))].concat();
    vec![
        session("many-attempts", "Every attempt has one answer.", &["t-echo"], many),
        session(
            "child-process",
            "A child process that reads its stdin does not get the socket.",
            &["t-child", "t-echo"],
            child.collect(),
        ),
        Case {
            needs: Needs::Responsive,
            ..session("second-cancel", "A second cancel is ignored.", &["t-wait", "t-echo"], twice)
        },
        Case {
            needs: Needs::Slots,
            ..case("slots", "An app with several slots runs attempts beside each other.", &["t-wait", "t-echo"], beside)
        },
        Case {
            needs: Needs::Slots,
            ..session(
                "joined-attempts",
                "Several attempts may arrive at once.",
                &["t-echo"],
                vec![CaseStep::Send(both), CaseStep::ReceiveAnswers(vec![1, 2])],
            )
        },
    ]
}

fn ends() -> Vec<Case> {
    let exit = vec![attempt(1, "t-exit", &json!({"code": 7})), CaseStep::Exit(Some(7))];
    let wait = vec![attempt(1, "t-wait", &json!({"ms": 200})), CaseStep::Close, CaseStep::Exit(None)];
    vec![
        case(
            "dead-worker",
            "The app exits when the worker has died.",
            &[],
            [opening(&[]), vec![CaseStep::Close, CaseStep::Exit(None)]].concat(),
        ),
        case(
            "dead-worker-in-attempt",
            "The app exits when the worker has died in an attempt.",
            &["t-wait"],
            [opening(&["t-wait"]), wait].concat(),
        ),
        case("exit", "An attempt may end its process.", &["t-exit"], [opening(&["t-exit"]), exit].concat()),
    ]
}

fn case(name: &str, rule: &str, types: &[&str], steps: Vec<CaseStep>) -> Case {
    let types = types.iter().map(|name| (*name).to_owned()).collect();
    Case { name: name.to_owned(), rule: rule.to_owned(), types, needs: Needs::Nothing, steps }
}

/// Returns a case that starts and ends as usual.
fn session(name: &str, rule: &str, types: &[&str], steps: Vec<CaseStep>) -> Case {
    case(name, rule, types, [opening(types), steps, end()].concat())
}

fn idle() -> Vec<CaseStep> {
    [opening(&[]), end()].concat()
}

fn opening(types: &[&str]) -> Vec<CaseStep> {
    vec![send(&welcome_value(types)), CaseStep::Receive(json!({"ready": {}}))]
}

fn end() -> Vec<CaseStep> {
    vec![CaseStep::End, CaseStep::Exit(Some(0))]
}

/// Returns a welcome that asks for these types, or for all.
fn welcome_value(types: &[&str]) -> Value {
    let types: Vec<String> = types.iter().map(|name| (*name).to_owned()).collect();
    let line = protocol::line(&ToApp::Welcome(&welcome((!types.is_empty()).then_some(&types))));
    serde_json::from_slice(&line).unwrap_or_default()
}

/// Returns the line of an attempt, with its fields in their order.
fn attempt_line(n: u64, task_type: &str, params: &Value) -> Vec<u8> {
    let fields = format!(r#""n":{n},"type":"{task_type}","id":"order-{n}","run":1,"number":1,"left_ms":120000"#);
    format!("{{\"attempt\":{{{fields},\"params\":{params}}}}}\n").into_bytes()
}

fn attempt(n: u64, task_type: &str, params: &Value) -> CaseStep {
    CaseStep::Send(attempt_line(n, task_type, params))
}

fn ok(n: u64, output: &Value) -> CaseStep {
    CaseStep::Receive(json!({"ok": {"n": n, "output": output}}))
}

fn send(message: &Value) -> CaseStep {
    CaseStep::Send(format!("{message}\n").into_bytes())
}
