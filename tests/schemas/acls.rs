//! The generated tables in `docs/production.md` are those of this build: Kafka permissions, settings of topics, commands of
//! Redis.

use std::path::Path;

use kafleet::store::redis::commands;
use kafleet::topics::{acls, settings_markdown};

pub const UPDATE: &str = "KAFLEET_UPDATE=1 cargo test --test standalone schemas";
const END: &str = "<!-- End of the generated table -->";

/// Replaces a generated table.
pub fn with_table(page: &str, name: &str, table: &str) -> String {
    let begin = format!("<!-- Generated {name}: {UPDATE} -->\n");
    let (before, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("no beginning of the table of {name}"));
    let (_, after) = rest.split_once(END).unwrap_or_else(|| panic!("no end of the table of {name}"));
    format!("{before}{begin}{table}{END}{after}")
}

#[test]
fn generated_tables_for_production_are_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/production.md");
    let mut expected = std::fs::read_to_string(&path).unwrap();
    for (name, table) in [
        ("topic settings", settings_markdown()),
        ("redis commands", commands::markdown()),
        ("permissions", acls::markdown()),
    ] {
        expected = with_table(&expected, name, &table);
    }
    assert_current("docs/production.md", &expected);
}

/// Compares a file with its expected text, or writes it.
pub fn assert_current(name: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    if std::env::var_os("KAFLEET_UPDATE").is_some() {
        std::fs::write(&path, expected).unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(text == expected, "{name} is out of date: run `{UPDATE}`");
}
