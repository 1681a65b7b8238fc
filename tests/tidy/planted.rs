//! Tests of the rules: each finds a planted violation, and nothing in a text that keeps it.

use crate::documents::{broken_links, unknown_members, unknown_names};
use crate::names;
use crate::rules;
use crate::source::{SourceFile, Violation};
use crate::structure;

pub type Rule = fn(&[SourceFile]) -> Vec<Violation>;

fn found_in(rule: Rule, path: &str, text: &str) -> Vec<String> {
    rule(&[SourceFile::new(path, text)]).iter().map(ToString::to_string).collect()
}

/// Asserts that the rule has one finding with this text in the first source and none in the second.
pub fn assert_finds(rule: Rule, path: &str, (bad, finding): (&str, &str), good: &str) {
    let found = found_in(rule, path, bad);
    assert!(matches!(&found[..], [one] if one.contains(finding)), "{finding}: {found:?}");
    assert_eq!(found_in(rule, path, good), Vec::<String>::new());
}

#[test]
fn long_file_is_found() {
    let text = |lines| "// x\n".repeat(lines);
    assert_finds(rules::long_files, "src/a.rs", (&text(501), "src/a.rs:1: 501 lines"), &text(500));
}

#[test]
fn long_function_and_method_are_found() {
    let body = |lines: usize| format!("{{\n{}}}", "\n".repeat(lines - 2 + 1));
    let function = |lines| format!("fn f() {}", body(lines));
    let method = |lines| format!("struct S;\nimpl S {{ fn m(&self) {} }}", body(lines));
    assert_finds(rules::long_functions, "src/a.rs", (&function(61), "src/a.rs:1: `f` has"), &function(59));
    assert_finds(rules::long_functions, "src/a.rs", (&method(61), "src/a.rs:2: `m` has"), &method(59));
}

#[test]
fn large_struct_is_found() {
    let text =
        |fields: usize| format!("struct S {{ {} }}", (0..fields).map(|n| format!("f{n}: u8,")).collect::<String>());
    assert_finds(rules::large_types, "src/a.rs", (&text(21), "`S` has 21 fields"), &text(20));
    assert_finds(rules::types_near_the_limit, "src/a.rs", (&text(18), "`S` has 18 fields"), &text(17));
}

#[test]
fn methods_of_a_type_are_counted_over_its_impl_blocks() {
    let part = |from: usize, to: usize| {
        format!("impl S {{ {} }}", (from..to).map(|n| format!("fn m{n}() {{}}")).collect::<String>())
    };
    let files = |most| {
        let file = SourceFile::new;
        [
            file("src/a/w.rs", &part(0, 20)),
            file("src/a/x.rs", "\nstruct S;"),
            file("src/a/y.rs", &part(20, most)),
            file("src/b/x.rs", "struct S; impl S { fn other() {} }"),
        ]
    };
    let found = rules::large_types(&files(26));
    assert!(matches!(&found[..], [one] if one.to_string().contains("src/a/x.rs:2: `S` has 26 methods")), "{found:?}");
    assert!(rules::large_types(&files(25)).is_empty());
    assert_eq!(rules::types_near_the_limit(&files(22)).len(), 1);
    assert!(rules::types_near_the_limit(&files(21)).is_empty());
}

#[test]
fn stream_made_elsewhere_is_found() {
    let stream = "use axum::response::sse::Sse;";
    let finding = (stream, "`axum::response::sse` may be named in crates/api/src/service/watch.rs only");
    assert_finds(rules::other_streams, "crates/ui/src/x.rs", finding, "use axum::response::Response;");
    assert_eq!(found_in(rules::other_streams, "crates/api/src/service/watch.rs", stream), Vec::<String>::new());
}

#[test]
fn impurity_of_the_model_is_found() {
    for bad in ["use std::fs;", "fn f() { Instant::now(); }", "async fn f() {}"] {
        assert_finds(
            rules::impure_model,
            "crates/model/src/x.rs",
            (bad, "crates/model/src/x.rs:1:"),
            "use std::fmt; // std::fs would be impure",
        );
        assert_eq!(found_in(rules::impure_model, "crates/worker/src/x.rs", bad), Vec::<String>::new());
    }
}

#[test]
fn program_with_the_secrets_of_the_worker_is_found() {
    let good = "use tokio::process::Command;\n#[cfg(test)]\nmod tests { fn f() { Command::new(\"env\"); } }";
    let bad = ("\nfn f() { std::process::Command::new(\"env\"); }", "crates/worker/src/x.rs:2: `Command::new`");
    assert_finds(rules::programs_with_secrets, "crates/worker/src/x.rs", bad, good);
}

#[test]
fn tokio_watch_is_found() {
    for bad in
        ["use tokio::sync::watch;", "use tokio::sync::{mpsc, watch};", "fn f(a: tokio::sync::watch::Sender<u8>) {}"]
    {
        assert_finds(
            rules::random_wake_ups,
            "crates/worker/src/x.rs",
            (bad, "crates/worker/src/x.rs:1: `tokio::sync::watch`"),
            "use tokio::sync::{mpsc, oneshot}; use kafleet_runtime::watch;",
        );
    }
}

#[test]
fn clock_of_the_machine_is_found() {
    for (bad, named) in [
        ("fn f() { std::time::SystemTime::now(); }", "`SystemTime::now`"),
        ("fn f() { jiff::Timestamp::now(); }", "`Timestamp::now`"),
        ("use kafleet_runtime::local_ms;", "`local_ms`"),
    ] {
        let expected = format!("crates/worker/src/x.rs:1: {named}");
        assert_finds(rules::wrong_clocks, "crates/worker/src/x.rs", (bad, &expected), "use kafleet_runtime::now_ms;");
    }
}

#[test]
fn file_of_no_module_is_found() {
    let files = |declared: &str| {
        let file = SourceFile::new;
        [
            file("src/lib.rs", declared),
            file("src/a.rs", "mod b;"),
            file("src/a/b.rs", ""),
            file("src/c/mod.rs", "mod d;"),
            file("src/c/d.rs", ""),
        ]
    };
    let found = rules::dead_files(&files("mod a;"));
    assert!(matches!(&found[..], [one] if one.path == "src/c/mod.rs"), "{found:?}");
    assert!(rules::dead_files(&files("mod a; mod c;")).is_empty());
    let member = |declared: &str| {
        let root = SourceFile::new("crates/a/src/lib.rs", declared);
        rules::dead_files(&[root, SourceFile::new("crates/a/src/b.rs", "")]).len()
    };
    assert_eq!((member(""), member("mod b;")), (1, 0));
}

#[test]
fn doc_comment_that_begins_with_a_question_word_is_found() {
    let good = "/// Maximum wait.\n/// What follows is the second line.\nstruct S;";
    assert_finds(
        rules::vague_doc_comments,
        "src/a.rs",
        ("/// What it waits for.\nstruct S;", "src/a.rs:1: a doc comment begins with `What`"),
        good,
    );
    assert_finds(
        rules::vague_doc_comments,
        "src/a.rs",
        ("//! So it is.\n", "src/a.rs:1: a doc comment begins with `So`"),
        "//! Sorting.\n",
    );
}

#[test]
fn broken_link_is_found() {
    let text = "# A title, of two\n[a](#a-title-of-two) [b](docs/api.md) [c](https://example.org)\n[d](docs/none.md) [e](#nowhere) [f](docs/api.md#nowhere)\n";
    let found: Vec<String> =
        broken_links(&[("README.md".into(), text.into())]).iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "README.md:3: `docs/none.md` is not a file",
            "README.md:3: `#nowhere` is not a heading",
            "README.md:3: `docs/api.md#nowhere` is not a heading"
        ]
    );
}

#[test]
fn metric_that_does_not_exist_is_found() {
    let text = "`kafleet_lag_records` and `kafleet_wait_seconds_bucket`\n`kafleet_lag`\nuse kafleet_client::Client;\n";
    let source = r#"const NAMES: [&str; 2] = ["kafleet_lag_records", "kafleet_wait_seconds"];"#;
    let source = SourceFile::new("src/telemetry.rs", source);
    let found: Vec<String> =
        unknown_names(&[("docs/a.md".into(), text.into())], &[source], &[]).iter().map(ToString::to_string).collect();
    assert_eq!(found, ["docs/a.md:2: `kafleet_lag` is neither a metric nor a header of the source"]);
}

#[test]
fn member_that_does_not_exist_is_found() {
    let text = "`TypeSpec::of` is one, `Registered::of::<T>()` and `TypeSpec::renamed` are none.\n```rust\nOther::new()\n```\n";
    let source = SourceFile::new("src/a.rs", "struct TypeSpec; impl TypeSpec { fn of() {} }");
    let found: Vec<String> =
        unknown_members(&[("docs/a.md".into(), text.into())], &[source]).iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        ["docs/a.md:1: `Registered::of` is not in the code", "docs/a.md:1: `TypeSpec::renamed` is not in the code"]
    );
}

#[test]
fn large_circle_of_files_is_found() {
    let file = |name: &str, text: &str| SourceFile::new(&format!("src/a/{name}.rs"), text);
    let files = |last: &str| {
        [
            file("mod", "pub use self::six::Six; use one::One;"),
            file("one", "use super::two::Two;"),
            file("two", "use crate::a::{three::Three, self};"),
            file("three", "fn f() { super::four::f() }"),
            file("four", "fn f(a: super::five::Five) {}"),
            file("five", "use super::Six;"),
            file("six", last),
        ]
    };
    let without_roots = structure::circles(&files("use super::one;"));
    assert!(
        matches!(&without_roots[..], [one] if one.to_string().contains("circle of 6 files; at most 5: a::five, a::four")),
        "{without_roots:?}"
    );
    let with_roots = structure::folder_circles(&files("use super::one;"));
    assert!(
        matches!(&with_roots[..], [one] if one.to_string().contains("circle of 7 files; at most 5: a, a::five, a::four")),
        "{with_roots:?}"
    );
    for rule in [structure::circles, structure::folder_circles] {
        assert!(rule(&files("#[cfg(test)] mod tests { use super::super::one::One; }")).is_empty());
    }
}

#[test]
fn shared_name_of_public_types_is_found() {
    let files = |second: &str| [SourceFile::new("src/a.rs", "pub struct S;"), SourceFile::new("src/b.rs", second)];
    let found = names::shared_names(&files("\npub enum S {}"));
    let text = format!("{found:?}");
    assert!(found.len() == 2 && text.contains("src/a.rs") && text.contains("src/b.rs"), "{text}");
    assert!(names::shared_names(&files("enum S {} pub enum T {} #[cfg(test)] mod t { pub struct S; }")).is_empty());
}

#[test]
fn module_that_users_would_see_is_found() {
    let good = "#[doc(hidden)]\npub mod socket;\npub(crate) mod a;\nmod b;\npub mod context;";
    let bad = ("#[cfg(unix)]\npub mod socket;", "crates/handlers/src/lib.rs:2: `socket` is shown");
    assert_finds(structure::shown_modules, "crates/handlers/src/lib.rs", bad, good);
    assert_eq!(found_in(structure::shown_modules, "crates/worker/src/lib.rs", bad.0), Vec::<String>::new());
}
