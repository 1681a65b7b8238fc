//! Promises of the documentation: each has tests in the table of `docs/reliability.md`, and they exist.

use std::path::PathBuf;

use regex::Regex;

use crate::source::{Violation, is_of_product, root};

/// Page with the table of promises, and the file from which a run of the chaos test copies it.
const PAGE: &str = "docs/reliability.md";
const TABLE: &str = "tests/chaos/promises.md";

/// Rows of the table without an existing test, guarantees of other documents without a row, and a table that differs from
/// its source. `documents`: paths and texts, with that of the page.
pub fn untested(documents: &[(String, String)]) -> Vec<Violation> {
    let text_of = |path: &str| documents.iter().find(|(known, _)| known == path).map_or("", |(_, text)| text.as_str());
    let page = text_of(PAGE);
    let mut found = Vec::new();
    let table = std::fs::read_to_string(root().join(TABLE)).unwrap();
    if !page.ends_with(&table) {
        found.push(Violation::new(PAGE, 1, format!("`{TABLE}` is not the end of the page: copy it there")));
    }
    let rows: Vec<(usize, Vec<&str>)> =
        (1..).zip(page.lines()).filter_map(|(line, text)| Some((line, columns(text)?))).collect();
    for (line, columns) in rows.iter().filter(|(_, columns)| columns.len() == 3 && columns[2].starts_with('`')) {
        found.extend(missing_tests(columns[2]).into_iter().map(|message| Violation::new(PAGE, *line, message)));
    }
    let promises: Vec<String> =
        rows.iter().filter(|(_, columns)| columns.len() == 3).map(|(_, columns)| words(columns[0])).collect();
    for (path, line, promise) in guarantees(documents) {
        // The document may go on where the table stops.
        if !promises.iter().any(|tested| words(&promise).starts_with(tested)) {
            found.push(Violation::new(&path, line, format!("`{promise}` is promised without a test in {PAGE}")));
        }
    }
    found
}

/// Columns of a row of a table.
fn columns(line: &str) -> Option<Vec<&str>> {
    let row = line.strip_prefix("| ")?.strip_suffix(" |")?;
    Some(row.split(" | ").collect())
}

/// Tests of a column, as `file: name`, that do not exist.
fn missing_tests(column: &str) -> Vec<String> {
    let test = Regex::new(r"^`([\w/]+\.(?:rs|py)): (\w+)`$").unwrap();
    let missing = |named: &str| {
        let Some(parts) = test.captures(named) else { return Some(format!("{named} is not `FILE: TEST`")) };
        let (file, name) = (&parts[1], &parts[2]);
        let path = if is_of_product(file) { PathBuf::from(file) } else { PathBuf::from("tests").join(file) };
        let text = std::fs::read_to_string(root().join(path)).unwrap_or_default();
        let is_test = [format!("fn {name}("), format!("\"{name}\""), format!("def {name}(")]
            .iter()
            .any(|form| text.contains(form));
        (!is_test).then(|| format!("`{name}` is not a test of {file}"))
    };
    column.split(", ").filter_map(missing).collect()
}

/// Guarantees of the README, which are rows of a table, and of the concepts, which are the first sentences of items.
fn guarantees(documents: &[(String, String)]) -> Vec<(String, usize, String)> {
    let mut found = Vec::new();
    for (path, text) in documents {
        let section = (1..).zip(text.lines()).skip_while(|(_, line)| *line != "## Guarantees").skip(1);
        let section = section.take_while(|(_, line)| !line.starts_with("## ") && !line.starts_with("| not guaranteed"));
        for (number, line) in section {
            let row = columns(line).filter(|columns| columns[0] != "guaranteed").map(|columns| columns[0]);
            if let Some(promise) = row.or_else(|| line.strip_prefix("- ")) {
                found.push((path.clone(), number, promise.to_owned()));
            }
        }
    }
    found
}

/// Words of a promise without emphasis and link targets, up to its first full stop or line break.
fn words(promise: &str) -> String {
    let link = Regex::new(r"\[([^]]*)\]\([^)]*\)").unwrap();
    let plain = link.replace_all(promise, "$1").replace("**", "");
    plain.split(". ").next().unwrap_or_default().trim_end_matches('.').to_owned()
}

#[test]
fn promise_without_a_test_is_found() {
    assert_eq!(missing_tests("`tidy/promises.rs: promise_without_a_test_is_found`"), Vec::<String>::new());
    let missing = missing_tests("`tidy/promises.rs: no_such_test`, `no/such/file.rs: x`, plain");
    assert_eq!(missing.len(), 3, "{missing:?}");
    let table = std::fs::read_to_string(root().join(TABLE)).unwrap();
    let readme = "## Guarantees\n\n| guaranteed | how |\n|---|---|\n| Nothing is [ever](x.md) late | magic |\n";
    let documents = [("README.md".to_owned(), readme.to_owned()), (PAGE.to_owned(), table)];
    let found: Vec<String> = untested(&documents).iter().map(ToString::to_string).collect();
    assert!(
        matches!(&found[..], [one] if one.contains("README.md:5") && one.contains("promised without a test")),
        "{found:?}"
    );
}
