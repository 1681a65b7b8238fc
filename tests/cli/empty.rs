//! Empty lists, and unexpected input.

use std::fs::File;
use std::process::Stdio;

use crate::cli::client::Dev;
use crate::cli::run::{eventually_blocking, kafleet, run, run_with_stdin, wait_for_exit, write};

#[test]
fn empty_list_suggests_the_next_verb() {
    let dev = Dev::start();
    for (words, expected) in [
        (&["list"][..], "no tasks yet; `kafleet submit TYPE PARAMS` creates one"),
        (&["list", "--tag", "x"], "`--level any` also searches below roots"),
        (&["list", "--level", "any", "--tag", "x"], "no matching task"),
        (&["dead-letters", "list"], "no dead letters"),
        (&["kill-switch", "list"], "`kafleet kill-switch on TAG` sets one"),
        (&["schedules", "list"], "`kafleet schedules create ID TYPE PARAMS --every 10m` creates one"),
        (&["workers", "--running"], "no task is running"),
    ] {
        let ran = dev.run(words).exits_with(0).stderr_has(&[expected]);
        assert_eq!(ran.out, "", "{words:?}");
        let json = dev.run(&[words, &["-o", "json"]].concat()).exits_with(0);
        assert_eq!((json.json().is_null(), json.err.as_str()), (false, ""), "{words:?}");
    }
    dev.run(&["submit", "echo", "--id", "one", "--wait"]).exits_with(0);
    for (words, expected) in [
        (["children", "one"].as_slice(), "`kafleet submit TYPE PARAMS --parent one` adds one"),
        (&["attachments", "list", "one"], "`kafleet attachments put one NAME FILE` adds one"),
        (&["log", "one"], "`one` has logged nothing"),
    ] {
        assert_eq!(dev.run(words).exits_with(0).stderr_has(&[expected]).out, "", "{words:?}");
    }
    dev.run(&["log", "one", "--append", "a line"]).exits_with(0);
    eventually_blocking("the line is visible", || dev.run(&["log", "one"]).out == "a line\n");
    dev.run(&["log", "one", "--from", "9"])
        .exits_with(0)
        .stderr_has(&["the log of `one` has 1 lines, none from line 9 on"]);
}

#[test]
fn list_takes_a_query_and_marks_its_mistakes() {
    let dev = Dev::start();
    for id in ["one", "two"] {
        dev.run(&["submit", "echo", "--id", id, "--tag", id, "--wait"]).exits_with(0);
    }
    let ids = |query: &str| -> Vec<String> {
        let found = dev.json(&["list", query]);
        found["tasks"].as_array().unwrap().iter().map(|task| task["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids("type:echo tag:two"), ["two"]);
    assert_eq!(ids("state:succeeded -tag:two"), ["one"]);
    let table = dev.run(&["list", "id:one,none"]).exits_with(0).stderr_has(&["not found: none"]);
    assert!(table.out.starts_with("ID ") && table.out.contains("one"), "{table:?}");
    dev.run(&["list", "nowhere"])
        .exits_with(0)
        .stderr_has(&["hint: words are compared with the beginnings of ids and with names"]);
    dev.run(&["types", "--text", "no such type"]).exits_with(0).stderr_has(&["no type has these words"]);
    dev.run(&["list", "tag:none"]).exits_with(0).stderr_has(&["`level:any` in the query also searches below roots"]);
    dev.run(&["list", "type:echo state:succeded"]).exits_with(2).stderr_has(&[
        "error: `succeded` is not a state",
        "\n  type:echo state:succeded\n                  ^^^^^^^^\n",
        "hint: did you mean `succeeded`?",
    ]);
    dev.run(&["list", "tag:one", "--state", "failed"]).exits_with(2).stderr_has(&["cannot be used with"]);
}

#[test]
fn refusal_names_options() {
    let dev = Dev::start();
    dev.run(&["list", "--cursor", "nonsense"])
        .exits_with(2)
        .stderr_has(&["`--cursor`: `nonsense` is not a cursor of this list"]);
    dev.run(&["schedules", "create", "x", "echo"])
        .exits_with(2)
        .stderr_has(&["neither --cron nor --every", "or --every 10m"]);
    dev.run(&["kill-switch", "on", ""]).exits_with(2).stderr_has(&["error: a name is empty"]);
}

#[test]
fn piped_params_without_a_dash_are_refused() {
    let dev = Dev::start();
    let expected =
        ["stdin is a pipe or a file", "`kafleet submit echo -` reads params from it", "`kafleet submit echo '{}'`"];
    run_with_stdin(dev.command(&["submit", "echo"]), "{\"n\": 1}\n").exits_with(2).stderr_has(&expected);
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "params.json", "{}");
    let file = || Stdio::from(File::open(folder.path().join("params.json")).unwrap());
    let from_file = |words: &[&str]| {
        let mut command = dev.command(words);
        wait_for_exit(command.stdin(file()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    };
    from_file(&["submit", "echo"]).exits_with(2).stderr_has(&expected);
    from_file(&["submit", "echo", "-"]).exits_with(0).stderr_has(&["1 submitted"]);
    from_file(&["submit", "echo", "{}"]).exits_with(0);
    run_with_stdin(dev.command(&["submit", "echo"]), "").exits_with(0);
    assert_eq!(dev.json(&["list"])["tasks"].as_array().map(Vec::len), Some(3), "refused input creates no task");
}

#[test]
fn open_address_is_refused_before_the_banner() {
    for verb in ["dev", "api"] {
        let ran = run(kafleet([verb, "--listen", "0.0.0.0:0"]))
            .exits_with(2)
            .stderr_has(&["from everyone who can reach", "hint: set `api.tokens`"]);
        assert!(!ran.err.contains("a whole fleet") && !ran.err.contains("waiting"), "{ran:?}");
    }
}

#[test]
fn running_task_shows_elapsed_time() {
    let dev = Dev::start();
    dev.run(&["submit", "sleeps", "--id", "long"]).exits_with(0);
    dev.wait_until_visible("long");
    eventually_blocking("it runs", || dev.json(&["status", "long"])["state"] == "running");
    dev.run(&["status", "long"]).exits_with(0).stdout_has(&[" ago)"]);
    dev.run(&["list"]).exits_with(0).stdout_has(&["TIME", "  for "]);
    dev.run(&["tree", "long"]).exits_with(0).stdout_has(&["running  for "]);
    dev.run(&["cancel", "long"]).exits_with(0);
}
