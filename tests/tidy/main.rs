//! Rules of the repository, listed in CONTRIBUTING.md. Each is also tested with a planted violation.

mod documents;
mod habits;
mod names;
mod planted;
mod planted_names;
mod promises;
mod rules;
mod source;
mod structure;
mod words;

use source::{Violation, rust_files, texts};

/// Tolerated violations, one per line as `rule path name`, each below a line with its reason. The list may only become
/// shorter: an entry without a violation fails the test.
const ALLOWED: &str = "tests/tidy/allowed.txt";

/// Entries of the list for a rule.
fn tolerated(rule: &str) -> Vec<String> {
    let list = std::fs::read_to_string(source::root().join(ALLOWED)).unwrap();
    list.lines().filter(|line| line.split(' ').next() == Some(rule)).map(str::to_owned).collect()
}

/// Line of the list that tolerates a violation.
fn entry(rule: &str, violation: &Violation) -> String {
    let name = violation.message.split('`').nth(1).unwrap_or("-");
    format!("{rule} {} {name}", violation.path)
}

/// Entries of the list whose violation no longer exists.
fn needless(rule: &str, found: &[Violation]) -> Vec<String> {
    let keys: Vec<String> = found.iter().map(|violation| entry(rule, violation)).collect();
    let gone = tolerated(rule).into_iter().filter(|entry| !keys.contains(entry));
    gone.map(|entry| format!("no longer violated, remove it from {ALLOWED}: {entry}")).collect()
}

/// Violations that are not tolerated, and tolerated ones that no longer exist.
fn broken(rule: &str, found: &[Violation]) -> Vec<String> {
    let allowed = tolerated(rule);
    let new = found.iter().filter(|violation| !allowed.contains(&entry(rule, violation)));
    new.map(|violation| format!("{rule}: {violation}")).chain(needless(rule, found)).collect()
}

#[test]
fn code_keeps_the_rules() {
    let code = rust_files();
    let mut all = broken("file-length", &rules::long_files(&code));
    all.extend(broken("function-length", &rules::long_functions(&code)));
    all.extend(broken("type-size", &rules::large_types(&code)));
    all.extend(broken("type-reason", &rules::types_near_the_limit(&code)));
    all.extend(broken("stream", &rules::other_streams(&code)));
    all.extend(broken("model-purity", &rules::impure_model(&code)));
    all.extend(broken("program-environment", &rules::programs_with_secrets(&code)));
    all.extend(broken("wake-ups", &rules::random_wake_ups(&code)));
    all.extend(broken("clock", &rules::wrong_clocks(&code)));
    all.extend(broken("dead-file", &rules::dead_files(&code)));
    all.extend(broken("circle", &structure::circles(&code)));
    all.extend(broken("folder-circle", &structure::folder_circles(&code)));
    all.extend(broken("shown-module", &structure::shown_modules(&code)));
    all.extend(broken("shared-name", &names::shared_names(&code)));
    all.extend(broken("namesake", &names::namesakes(&code)));
    all.extend(broken("participle", &names::participles(&code)));
    all.extend(broken("question-word", &names::question_words(&code)));
    all.extend(broken("doc-comment", &rules::vague_doc_comments(&code)));
    all.extend(broken("unknown-position", &habits::numbered_unknowns(&code)));
    all.extend(broken("sleep", &habits::bare_sleeps(&code)));
    all.extend(broken("double", &habits::doubles(&code)));
    assert!(all.is_empty(), "{} violations\n{}", all.len(), all.join("\n"));
}

#[test]
fn forbidden_words_do_not_become_more() {
    let path = source::root().join("tests/tidy/words.txt");
    let list = std::fs::read_to_string(&path).unwrap();
    let words = words::parse(&list);
    let mut uses = words::uses(&words, &rust_files(), &texts(&[".", "crates", "docs", "helm"], "md"));
    let allowed = tolerated("word");
    let mut all = needless("word", &uses.values().flatten().cloned().collect::<Vec<_>>());
    uses.values_mut().for_each(|uses| uses.retain(|violation| !allowed.contains(&entry("word", violation))));
    if std::env::var_os("KAFLEET_UPDATE").is_some() {
        std::fs::write(path, words::lowered(&list, &uses)).unwrap();
    }
    let exceeded = words.iter().filter(|word| uses[word.word].len() > word.maximum);
    all.extend(exceeded.flat_map(|word| uses[word.word].iter().map(ToString::to_string)));
    assert!(all.is_empty(), "{} uses of words with too many uses\n{}", all.len(), all.join("\n"));
}

/// Texts of the promises and of the documents that make them.
fn manuals_of(paths: &[&str]) -> Vec<(String, String)> {
    let text = |path: &&str| (path.to_string(), std::fs::read_to_string(source::root().join(path)).unwrap());
    paths.iter().map(text).collect()
}

#[test]
fn documents_keep_the_rules() {
    let manuals = texts(&[".", "crates", "docs", "helm"], "md");
    let mut all = broken("link", &documents::broken_links(&manuals));
    let documents = [texts(&["helm"], "yaml"), texts(&["helm"], "tpl"), manuals.clone()].concat();
    let code = rust_files();
    let sql = texts(&["crates"], "sql");
    all.extend(broken("name", &documents::unknown_names(&documents, &code, &sql)));
    all.extend(broken("member", &documents::unknown_members(&manuals, &code)));
    all.extend(broken(
        "promise",
        &promises::untested(&manuals_of(&["README.md", "docs/concepts.md", "docs/reliability.md"])),
    ));
    assert!(all.is_empty(), "{} violations\n{}", all.len(), all.join("\n"));
}
