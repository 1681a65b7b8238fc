//! Nothing there, and nothing asked for: empty lists, and input that no one reads.

use std::fs::File;
use std::process::Stdio;

use crate::client::Dev;
use crate::run::{ended, fed, kafleet, run, until, write};

#[test]
fn empty_list_says_so_and_names_the_next_verb() {
    let dev = Dev::start();
    for (words, told) in [
        (&["list"][..], "no tasks yet; `kafleet submit TYPE PARAMS` makes one"),
        (&["list", "--tag", "x"], "`--level any` lists tasks below roots too"),
        (&["list", "--level", "any", "--tag", "x"], "no such task"),
        (&["dead", "list"], "no dead letters"),
        (&["kill", "list"], "`kafleet kill on TAG` sets one"),
        (&["schedules", "list"], "`kafleet schedules create ID TYPE PARAMS --every 10m` makes one"),
        (&["workers", "--running"], "no task is running"),
    ] {
        let ran = dev.run(words).ends(0).tells(&[told]);
        assert_eq!(ran.out, "", "{words:?}");
        let json = dev.run(&[words, &["-o", "json"]].concat()).ends(0);
        assert_eq!((json.json().is_null(), json.err.as_str()), (false, ""), "{words:?}");
    }
    dev.run(&["submit", "echo", "--id", "one", "--wait"]).ends(0);
    for (words, told) in [
        (["children", "one"].as_slice(), "`kafleet submit TYPE PARAMS --parent one` adds one"),
        (&["attachments", "list", "one"], "`kafleet attachments put one NAME FILE` adds one"),
        (&["log", "one"], "`one` has logged nothing"),
    ] {
        assert_eq!(dev.run(words).ends(0).tells(&[told]).out, "", "{words:?}");
    }
    dev.run(&["log", "one", "--append", "a line"]).ends(0);
    until("the line is there", || (dev.run(&["log", "one"]).out == "a line\n").then_some(()));
    dev.run(&["log", "one", "--from", "9"]).ends(0).tells(&["no line from 9 on: the log of `one` has 1"]);
}

#[test]
fn refusal_speaks_of_options() {
    let dev = Dev::start();
    dev.run(&["list", "--cursor", "nonsense"]).ends(2).tells(&["--cursor is not a cursor of this API"]);
    dev.run(&["schedules", "create", "x", "echo"]).ends(2).tells(&["neither --cron nor --every", "or --every 10m"]);
    dev.run(&["kill", "on", ""]).ends(2).tells(&["error: a name is empty"]);
}

#[test]
fn piped_params_without_a_dash_are_refused() {
    let dev = Dev::start();
    let told = ["stdin is a pipe or a file", "`kafleet submit echo -` reads params from it", "`kafleet submit echo '{}'`"];
    fed(dev.command(&["submit", "echo"]), "{\"n\": 1}\n").ends(2).tells(&told);
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "params.json", "{}");
    let file = || Stdio::from(File::open(folder.path().join("params.json")).unwrap());
    let from_file = |words: &[&str]| {
        let mut command = dev.command(words);
        ended(command.stdin(file()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    };
    from_file(&["submit", "echo"]).ends(2).tells(&told);
    from_file(&["submit", "echo", "-"]).ends(0).tells(&["1 submitted"]);
    from_file(&["submit", "echo", "{}"]).ends(0);
    fed(dev.command(&["submit", "echo"]), "").ends(0);
    assert_eq!(dev.json(&["list"])["tasks"].as_array().map(Vec::len), Some(3), "what was refused made no task");
}

#[test]
fn open_address_is_refused_before_the_banner() {
    for verb in ["dev", "api"] {
        let ran = run(kafleet([verb, "--listen", "0.0.0.0:0"]))
            .ends(2)
            .tells(&["from everyone who can reach", "hint: set `api.tokens`"]);
        assert!(!ran.err.contains("a whole fleet") && !ran.err.contains("waiting"), "{ran:?}");
    }
}

#[test]
fn running_task_shows_how_long_it_has_run() {
    let dev = Dev::start();
    dev.run(&["submit", "sleeps", "--id", "long"]).ends(0);
    dev.folded("long");
    until("it runs", || (dev.json(&["status", "long"])["state"] == "running").then_some(()));
    dev.run(&["status", "long"]).ends(0).prints(&[" ago)"]);
    dev.run(&["list"]).ends(0).prints(&["TIME", "  for "]);
    dev.run(&["tree", "long"]).ends(0).prints(&["running  for "]);
    dev.run(&["cancel", "long"]).ends(0);
}
