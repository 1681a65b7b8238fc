//! Environment of the programs that kafleet starts: without its secrets, with everything else.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use super::apps::Dev;
use crate::cli::run::{config_folder, eventually_blocking, kafleet, run};

/// Variables of the worker with a secret as their value: expanded by kafleet.toml, or read by kafleet itself.
const SECRETS: [&str; 8] = [
    "KAFKA_PASSWORD",
    "SHOP_TOKEN",
    "NAMED",
    "KAFLEET_TOKEN",
    "KAFLEET_REDIS",
    "KAFLEET_REBUILD_INTO",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
];

const CONFIG: &str = r#"
[kafka]
"sasl.password" = "${KAFKA_PASSWORD}"
[types.call]
handler = "http"
url = "http://127.0.0.1:9"
headers = { authorization = "${SHOP_TOKEN}" }
[types.show]
handler = "exec"
command = ["sh", "-c", "env > \"$OUT\"; echo 1"]
env = { OUT = "FOLDER/show", NAMED = "${NAMED}" }
[types.strict]
handler = "exec"
command = ["sh", "-c", "env > \"$OUT\"; echo 1"]
env = { OUT = "FOLDER/strict" }
inherit = false
[apps.shop]
command = ["sh", "-c", "env > \"$OUT\"; exec python3 loop.py"]
cwd = "APPS"
env = { OUT = "FOLDER/shop", NAMED = "${NAMED}" }
processes = 1
"#;

fn with_secrets(command: &mut Command) {
    command.env("PLAIN", "kept").envs(SECRETS.map(|name| (name, format!("redis://marker-{name}"))));
}

/// Environment that a program has written, by line.
fn environment(folder: &Path, name: &str) -> Vec<String> {
    let file = folder.join(name);
    eventually_blocking(&format!("`{name}` has written its environment"), || {
        let text = std::fs::read_to_string(&file).ok()?;
        text.contains("PATH=").then(|| text.lines().map(str::to_owned).collect())
    })
}

fn secrets_in(environment: &[String]) -> Vec<&str> {
    environment.iter().map(String::as_str).filter(|line| line.contains("marker-")).collect()
}

fn assert_inherits_all_but_secrets(folder: &Path, name: &str) {
    let environment = environment(folder, name);
    assert!(environment.iter().any(|line| line == "PLAIN=kept"), "{name}: {environment:?}");
    assert_eq!(secrets_in(&environment), ["NAMED=redis://marker-NAMED"], "{name}");
}

#[test]
fn programs_under_dev_inherit_all_but_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let apps = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/apps");
    let config = config_folder(&CONFIG.replace("FOLDER", &folder.path().to_string_lossy()).replace("APPS", apps));
    let mut command = kafleet(["dev", "--listen", "127.0.0.1:0", "--no-sample", "--config"]);
    command.arg(config.path().join("kafleet.toml"));
    with_secrets(&mut command);
    let dev = Dev::start(command);
    for task_type in ["show", "strict"] {
        assert_eq!(dev.result(task_type, &json!({})), json!(1));
    }
    assert_inherits_all_but_secrets(folder.path(), "show");
    assert_inherits_all_but_secrets(folder.path(), "shop");
    let strict = environment(folder.path(), "strict");
    assert_eq!(secrets_in(&strict), Vec::<&str>::new());
    assert!(!strict.iter().any(|line| line.starts_with("PLAIN=")), "{strict:?}");
    assert!(strict.iter().any(|line| line.starts_with("KAFLEET_TASK_ID=")), "{strict:?}");
    assert_eq!(dev.daemon.stop(), Some(0));
}

#[test]
fn checked_app_inherits_all_but_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let apps = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/apps");
    let config = config_folder(&CONFIG.replace("FOLDER", &folder.path().to_string_lossy()).replace("APPS", apps));
    let mut command = kafleet(["app", "check", "--config"]);
    command.arg(config.path().join("kafleet.toml"));
    with_secrets(&mut command);
    run(command).exits_with(0);
    assert_inherits_all_but_secrets(folder.path(), "shop");
}
