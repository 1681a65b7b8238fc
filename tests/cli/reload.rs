//! Changes of source files under `kafleet dev`: new results and types, code that cannot be started, running attempts.

use std::fs;
use std::path::{Path, PathBuf};

use kafleet_testkit::wait::eventually_blocking;
use serde_json::json;

use super::apps::Dev;
use crate::cli::run::{kafleet, write};

const HEAD: &str = "import os, time\nfrom kafleet import App\napp = App()\n";

/// A task type `greet` with this result, and more code.
fn code(word: &str, more: &str) -> String {
    format!("{HEAD}@app.task\ndef greet(name: str) -> str:\n    return '{word} ' + name\n{more}")
}

fn dev(folder: &Path, options: &[&str]) -> Dev {
    let mut command = kafleet(["dev", "tasks.py", "--listen", "127.0.0.1:0"]);
    let sdk = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("sdk/python");
    command.args(options).current_dir(folder).env("PYTHONPATH", sdk).env_remove("VIRTUAL_ENV");
    Dev::start(command)
}

fn change(dev: &mut Dev, folder: &Path, text: &str) {
    change_file(dev, folder, "tasks.py", text);
}

fn change_file(dev: &mut Dev, folder: &Path, name: &str, text: &str) {
    write(folder, name, text);
    dev.daemon.wait_for_line(&format!("{name}` has changed: starting the new code"));
    dev.daemon.wait_for_line("the new code serves the types ");
}

fn greeting(dev: &Dev) -> String {
    dev.result("greet", &json!({"name": "Ada"})).as_str().unwrap().to_owned()
}

#[test]
fn changed_code_serves_the_next_task() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "tasks.py", &code("hello", ""));
    let (mut reloading, keeping) = (dev(folder.path(), &[]), dev(folder.path(), &["--no-reload"]));
    assert_eq!([greeting(&reloading), greeting(&keeping)], ["hello Ada", "hello Ada"]);

    // A module of the app, and another type.
    write(folder.path(), "words.py", "WORD = 'bye'\n");
    let text = code("hello", "@app.task\ndef leave(day: int) -> str:\n    import words\n    return words.WORD\n");
    change(&mut reloading, folder.path(), &text.replace("'hello ' + name", "'dear ' + name"));
    assert_eq!(greeting(&reloading), "dear Ada");
    eventually_blocking("the api knows the new type", || reloading.run(&["submit", "leave", "{}"]).err.contains("day"));
    assert_eq!(reloading.result("leave", &json!({"day": 1})), json!("bye"));
    write(folder.path(), "words.py", "WORD = 'adieu'\n");
    reloading.daemon.wait_for_line("words.py` has changed");
    reloading.daemon.wait_for_line("the new code serves");
    assert_eq!(reloading.result("leave", &json!({"day": 1})), json!("adieu"));

    // The params of one type change, and the other type is gone.
    let text = code("hi", "").replace("name: str", "name: str, age: int");
    change(&mut reloading, folder.path(), &text);
    eventually_blocking("the api knows the new params", || {
        reloading.run(&["submit", "greet", r#"{"name":"Ada"}"#]).err.contains("age")
    });
    assert_eq!(reloading.result("greet", &json!({"name": "Ada", "age": 36})), json!("hi Ada"));
    let types = || reloading.run(&["types", "-o", "json"]).exits_with(0).json();
    eventually_blocking("the declaration is gone", || {
        types()["types"]
            .as_array()
            .unwrap()
            .iter()
            .any(|document| document["type"] == "leave" && document["app"].is_null())
    });
    eventually_blocking("the fleet is ready", || reloading.is_ready());
    assert_eq!(greeting(&keeping), "hello Ada");
    assert_eq!([reloading.daemon.stop(), keeping.daemon.stop()], [Some(0), Some(0)]);
}

#[test]
fn code_that_cannot_be_started_leaves_the_old_code_serving() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "tasks.py", &code("hello", ""));
    let mut dev = dev(folder.path(), &[]);
    for (broken, reason) in [
        ("def (:\n".to_owned(), "SyntaxError"),
        (code("bye", "raise ValueError('no key')\n"), "ValueError: no key"),
        (code("bye", "@app.task(retries='x')\ndef f() -> None: ...\n"), "retries"),
    ] {
        write(folder.path(), "tasks.py", &broken);
        dev.daemon.wait_for_line("tasks.py` has changed: starting the new code");
        dev.daemon.wait_for_line(reason);
        dev.daemon.wait_for_line("the old code serves on");
        assert_eq!(greeting(&dev), "hello Ada");
    }
    // A start that does not end is given up at the next change.
    write(folder.path(), "tasks.py", "import time\nprint('waits', flush=True)\ntime.sleep(3600)\n");
    dev.daemon.wait_for_line("waits");
    change(&mut dev, folder.path(), &code("bye", ""));
    assert_eq!(greeting(&dev), "bye Ada");
    assert_eq!(dev.daemon.stop(), Some(0));
}

#[test]
fn running_attempt_starts_again_with_its_number() {
    let folder = tempfile::tempdir().unwrap();
    let more =
        "@app.task(retries=0)\ndef wait() -> str:\n    while not os.path.exists('go'): time.sleep(0.01)\n    return ";
    write(folder.path(), "tasks.py", &code("hello", &format!("{more}'old'\n")));
    let mut dev = dev(folder.path(), &[]);
    dev.run(&["submit", "wait", "{}", "--id", "w"]).exits_with(0);
    eventually_blocking("the attempt is running", || dev.run(&["status", "w"]).out.contains("running"));
    change(&mut dev, folder.path(), &code("hello", &format!("{more}'new'\n")));
    assert_eq!(greeting(&dev), "hello Ada");
    fs::write(folder.path().join("go"), "").unwrap();
    let ended = &dev.ended(&["w".to_owned()])[0];
    assert_eq!((&ended["state"], &ended["attempt"]), (&json!("succeeded"), &json!(1)), "{ended}");
    assert_eq!(ended["result"], "new", "{ended}");
}

#[test]
fn changed_file_of_a_command_serves_the_next_task() {
    let folder = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/apps/loop.py")).unwrap();
    write(folder.path(), "loop.py", &text);
    let mut command = kafleet(["dev", "--listen", "127.0.0.1:0", "--", "python3", "loop.py"]);
    command.current_dir(folder.path());
    let mut dev = Dev::start(command);
    assert_eq!(dev.result("double", &json!({"x": 4})), json!(8));
    assert!(text.contains("* 2"), "the result is made elsewhere");
    change_file(&mut dev, folder.path(), "loop.py", &text.replace("* 2", "* 3"));
    assert_eq!(dev.result("double", &json!({"x": 4})), json!(12));
    assert_eq!(dev.daemon.stop(), Some(0));
}

#[test]
fn only_files_that_the_app_has_loaded_start_new_code() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "tasks.py", &code("hello", ""));
    let mut dev = dev(folder.path(), &[]);
    assert_eq!(greeting(&dev), "hello Ada");
    // The first file of a change is named: it would be this one.
    write(folder.path(), "a_script.py", "print('not part of the app')\n");
    change(&mut dev, folder.path(), &code("bye", ""));
    assert_eq!(greeting(&dev), "bye Ada");
    assert_eq!(dev.daemon.stop(), Some(0));
}

#[test]
fn changed_configuration_takes_effect() {
    let folder = tempfile::tempdir().unwrap();
    let types = |name: &str| format!("[types.{name}]\nhandler = \"echo\"\n");
    write(folder.path(), "kafleet.toml", &types("old"));
    let mut command = kafleet(["dev", "--listen", "127.0.0.1:0", "--no-sample"]);
    command.current_dir(folder.path());
    let mut dev = Dev::start(command);
    assert_eq!(dev.result("old", &json!(1)), json!(1));
    write(folder.path(), "kafleet.toml", "[types.new]\nhandler = 7\n");
    dev.daemon.wait_for_line("`kafleet.toml` has changed: starting with the new configuration");
    dev.daemon.wait_for_line("the configuration is invalid");
    dev.daemon.wait_for_line("the old code serves on");
    assert_eq!(dev.result("old", &json!(3)), json!(3));
    dev.run(&["types", "pause", "old"]).exits_with(0);
    dev.run(&["submit", "old", "2"]).exits_with(0);

    write(folder.path(), "kafleet.toml", &format!("[api]\nmax_body = \"1MiB\"\n{}", types("new")));
    dev.daemon.wait_for_line("`[api]` keeps its values until `dev` is started again");
    let gone = dev.daemon.wait_for_line("does not have the type `old`");
    assert!(gone.contains("about 1 of its tasks wait; if it was renamed, name it in `aliases`"), "{gone}");
    dev.daemon.wait_for_line("the new code serves the types echo, foreach, new");
    assert_eq!(dev.result("new", &json!(4)), json!(4));
    assert_eq!(dev.daemon.stop(), Some(0));
}

#[test]
fn type_may_move_to_another_app() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "tasks.py", &code("hello", "@app.task\ndef leave() -> str:\n    return 'bye'\n"));
    let command = "command = [\"python3\", \"-P\", \"-m\", \"kafleet\", \"tasks.py\"]";
    write(folder.path(), "kafleet.toml", &format!("[apps.one]\n{command}\n"));
    let mut command_line = kafleet(["dev", "--listen", "127.0.0.1:0", "--no-sample"]);
    let sdk = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("sdk/python");
    command_line.current_dir(folder.path()).env("PYTHONPATH", sdk).env_remove("VIRTUAL_ENV");
    let mut dev = Dev::start(command_line);
    assert_eq!(dev.result("leave", &json!({})), json!("bye"));
    dev.run(&["submit", "leave", "{}", "--id", "later", "--delay", "2s"]).exits_with(0);
    let two = format!("[apps.one]\n{command}\ntypes = [\"greet\"]\n[apps.two]\n{command}\ntypes = [\"leave\"]\n");
    write(folder.path(), "kafleet.toml", &two);
    dev.daemon.wait_for_line("the new code serves the types ");
    assert_eq!((dev.result("leave", &json!({})), greeting(&dev)), (json!("bye"), "hello Ada".to_owned()));
    assert_eq!(dev.ended(&["later".to_owned()])[0]["state"], "succeeded");
    assert_eq!(dev.daemon.stop(), Some(0));
}
