//! `kafleet init`: files of new projects, a Python project that runs at once, and refusals.
//!
//! The suites of the SDKs run the tests of the generated projects (`sdk/python/tests/test_init.py`,
//! `sdk/typescript/tests/init.test.ts`), and `tests/standalone.rs` compiles the template in Rust.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use kafleet::config::{Overrides, load};
use serde_json::json;

use super::apps::Dev;
use crate::cli::run::{RunResult, kafleet, run, write};

const LANGUAGES: [&str; 3] = ["python", "typescript", "rust"];

fn init(folder: &Path, words: &[&str]) -> RunResult {
    let mut command = kafleet(["init"].iter().chain(words));
    command.current_dir(folder);
    run(command)
}

/// Files below a folder with their texts, by their paths.
fn files(folder: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(path.strip_prefix(folder).unwrap().to_owned(), fs::read_to_string(&path).unwrap());
            }
        }
    }
    found
}

#[test]
fn project_has_the_listed_files_and_the_name_of_its_folder() {
    for language in LANGUAGES {
        let parent = tempfile::tempdir().unwrap();
        let project = init(parent.path(), &[language, "My Shop", "-o", "json"]).exits_with(0).json();
        assert_eq!((&project["name"], &project["folder"]), (&json!("my-shop"), &json!("My Shop")));
        assert_eq!(project["language"], language);
        let written = files(&parent.path().join("My Shop"));
        let listed: Vec<&str> =
            project["files"].as_array().unwrap().iter().map(|path| path.as_str().unwrap()).collect();
        assert!(listed.len() == written.len() && listed.iter().all(|path| written.contains_key(Path::new(path))));
        assert!(written.values().all(|text| !text.contains("{{")), "{language}");
        assert!(written[Path::new("README.md")].starts_with("# my-shop\n"), "{language}");
        let first = project["next"][0].as_str().unwrap();
        assert!(first.starts_with("cd 'My Shop' && "), "{first}");
        let settings = parent.path().join("My Shop/kafleet.toml");
        assert!(load(Some(&settings), &Overrides::default()).is_ok(), "{language}");
        let has_app = written[Path::new("kafleet.toml")].contains("\n[apps.my-shop]\n");
        assert_eq!(has_app, language != "rust", "types in Rust are in the binary itself");
    }
}

#[test]
fn project_without_a_folder_is_written_into_the_current_one() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("web-shop");
    fs::create_dir(&folder).unwrap();
    write(&folder, "notes.txt", "own");
    let shown = init(&folder, &["typescript"]).exits_with(0).out;
    assert!(shown.starts_with("the project `web-shop` has these files:\n  README.md\n"), "{shown}");
    assert!(
        shown.ends_with(
            "\n  npm install PATH_OF_THE_CHECKOUT/target/packages/kafleet-*.tgz\n  npx kafleet dev tasks.ts\n"
        ),
        "{shown}"
    );
    let written = files(&folder);
    assert_eq!(written[Path::new("notes.txt")], "own");
    assert!(written[Path::new("package.json")].contains("\"name\": \"web-shop\""));
}

#[test]
fn existing_files_are_named_and_nothing_is_written() {
    for language in LANGUAGES {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("shop")).unwrap();
        write(folder.path(), "shop/kafleet.toml", "[apps.own]\ncommand = [\"own\"]\n");
        write(folder.path(), "shop/.gitignore", "own\n");
        let before = files(folder.path());
        init(folder.path(), &[language, "shop"]).exits_with(1).stderr_has(&[
            "error: nothing was written: ",
            "`shop/.gitignore`, `shop/kafleet.toml` exist already",
            "hint: name a new folder",
        ]);
        assert_eq!(files(folder.path()), before);
    }
}

#[test]
fn path_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "shop", "a file");
    init(folder.path(), &["python", "shop"])
        .exits_with(1)
        .stderr_has(&["`shop/README.md` cannot be written: Not a directory", "hint: no file was written"]);
    fs::create_dir(folder.path().join("other")).unwrap();
    write(folder.path(), "other/tests", "a file");
    let before = files(folder.path());
    init(folder.path(), &["python", "other"])
        .exits_with(1)
        .stderr_has(&["`other/tests/test_tasks.py` cannot be written"]);
    assert_eq!(files(folder.path()), before);
}

#[test]
fn unknown_language_is_refused_with_the_known_ones() {
    let folder = tempfile::tempdir().unwrap();
    init(folder.path(), &["cobol"]).exits_with(2).stderr_has(&["[possible values: python, typescript, rust]"]);
    init(folder.path(), &[]).exits_with(2).stderr_has(&["<LANGUAGE>"]);
    assert!(files(folder.path()).is_empty());
}

/// A command in a Python project, with the SDK of the checkout.
fn in_project(folder: &Path, words: &[&str]) -> Command {
    let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk/python");
    let mut command = kafleet(words);
    command.current_dir(folder).env("PYTHONPATH", sdk).env_remove("VIRTUAL_ENV");
    command
}

#[test]
fn python_project_runs_its_tasks_at_once() {
    let parent = tempfile::tempdir().unwrap();
    init(parent.path(), &["python", "shop"]).exits_with(0);
    let folder = parent.path().join("shop");
    // In the place of the virtual environment of README.md, for which the test would need a package index.
    let python = folder.join(".venv/bin/python");
    fs::create_dir_all(python.parent().unwrap()).unwrap();
    fs::write(&python, "#!/bin/sh\nexec python3 \"$@\"\n").unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();

    let check = run(in_project(&folder, &["app", "check"])).exits_with(0);
    check.stdout_has(&["shop  order ", "shop  pack ", "shop  receipt ", "shop  report "]);

    let dev = Dev::start(in_project(&folder, &["dev", "--listen", "127.0.0.1:0", "--no-sample"]));
    let order = dev.task("order", &json!({"customer": "ada", "items": ["tea", "cups"]}), &["--id", "first"]);
    assert_eq!((&order["state"], &order["result"]), (&json!("succeeded"), &json!(2)), "{order}");
    let receipt = dev.run(&["status", "first:then", "-o", "json"]).exits_with(0).json();
    assert_eq!(receipt["result"], "ada pays 16.50", "{receipt}");
    let packed = dev.run(&["status", "first:0", "-o", "json"]).exits_with(0).json();
    assert_eq!(packed["attempt"], 2, "{packed}");
    dev.run(&["schedules", "list"]).exits_with(0).stdout_has(&["report"]);
}
