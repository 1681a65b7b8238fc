//! Completeness of docs/cli.md.

use crate::cli::offline::verbs;
use crate::cli::run::{kafleet, run};

fn manual() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/cli.md")).unwrap()
}

#[test]
fn every_verb_has_its_heading_and_an_example() {
    let manual = manual();
    for verb in verbs() {
        let heading = manual.lines().any(|line| line.starts_with('#') && line.contains(&format!("`{verb}")));
        assert!(heading, "docs/cli.md has no heading for `{verb}`");
        assert!(manual.contains(&format!("$ kafleet {verb}")), "docs/cli.md has no example of `{verb}`");
    }
}

#[test]
fn every_verb_is_in_the_table() {
    let manual = manual();
    let table = manual.split("## Options of every verb").next().unwrap();
    for verb in verbs() {
        assert!(table.contains(&format!("[`{verb}")), "the table of docs/cli.md lacks `{verb}`");
    }
}

#[test]
fn every_exit_code_is_named() {
    let help = run(kafleet(["--help"])).exits_with(0).out;
    let codes = help.split("Exit codes: ").nth(1).expect("the exit codes").trim().replace('\n', " ");
    let codes: Vec<&str> = codes.split(", ").collect();
    assert_eq!(codes.len(), 7, "{codes:?}");
    for code in codes {
        let (number, _) = code.split_once(' ').unwrap();
        assert!(manual().contains(&format!("| {number} |")), "docs/cli.md does not name exit code {number}");
    }
}

#[test]
fn every_option_is_named() {
    let fields = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/task-fields.md")).unwrap();
    let manual = manual() + &fields;
    for verb in verbs() {
        let help = run(kafleet([&verb, "--help"])).out;
        let section = help.split("Global options:").next().unwrap();
        for option in section.split_whitespace().filter_map(|word| word.strip_prefix("--")) {
            let name = option.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').next().unwrap();
            let known = name == "help" || name.is_empty() || manual.contains(&format!("--{name}"));
            assert!(known, "docs/cli.md and docs/task-fields.md do not name --{name} of `{verb}`");
        }
    }
}
