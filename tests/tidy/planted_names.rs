//! Tests of the rules of names, words and habits.

use crate::planted::assert_finds;
use crate::source::SourceFile;
use crate::{habits, names, words};

#[test]
fn type_named_with_a_participle_is_found() {
    let good = "struct LoggedEvent; enum Feed {} trait Open {} type Seed = u8; struct Kept2; struct StreamClosed;";
    for (bad, named) in [
        ("\nstruct Logged;", "src/a.rs:2: `Logged`"),
        ("fn f() { enum Kept {} }", "src/a.rs:1: `Kept`"),
        ("#[cfg(test)] mod tests { trait Given {} }", "`Given`"),
        ("type Seen = u8;", "`Seen`"),
    ] {
        assert_finds(names::participles, "src/a.rs", (bad, named), good);
        assert_finds(names::participles, "tests/a.rs", (bad, &named.replace("src/", "tests/")), good);
    }
}

#[test]
fn name_of_four_types_is_found() {
    let files = |last: &str| {
        let file = SourceFile::new;
        [
            file("src/a.rs", "struct State; fn f() { enum State {} }"),
            file("crates/b/src/b.rs", "pub struct State;"),
            file("src/c.rs", last),
            file("tests/d.rs", "struct State;"),
        ]
    };
    let found = names::namesakes(&files("\ntype State = u8;"));
    let text = format!("{found:?}");
    assert!(found.len() == 4 && text.contains("crates/b/src/b.rs") && text.contains("of 4 types"), "{text}");
    let good = names::namesakes(&files("#[cfg(test)] mod tests { struct State; } struct S { State: u8 }"));
    assert!(good.is_empty(), "{good:?}");
}

#[test]
fn question_word_as_a_name_is_found() {
    let good =
        "use api::why; fn f(error: u8) { why::read(error); assert!(documents::why(1) && x.why()); /* why, what */ }";
    for (bad, named) in [
        ("fn f(why: u8) {}", "`why`"),
        ("fn f() { let _ = read().map_err(|what| 1); }", "`what`"),
        ("struct S { what: u8 }", "`what`"),
        ("fn why() {}", "`why`"),
        ("fn f() { assert!(read().is_ok_and(|why| true)); }", "`why`"),
        ("fn f() { if let Some(E { what: name, why }) = g() {} }", "`why`"),
    ] {
        assert_finds(names::question_words, "src/a.rs", (bad, named), good);
    }
    let own = "fn why(why: Why) { assert!(why.is_empty()); }";
    assert_finds(names::question_words, "src/cli/why.rs", ("fn f(what: u8) {}", "`what`"), own);
}

#[test]
fn unknown_position_is_found() {
    let good = "fn f() -> P { P { offset: 1, timestamp_ms: -1, position: Some(-2), last_offset: None } }";
    for bad in ["P { offset: -1 }", "P { last_position: -1 }", "P { position: -1_i64 }"] {
        let text = format!("fn f() -> P {{ {bad} }}");
        assert_finds(habits::numbered_unknowns, "src/a.rs", (&text, "is unknown"), good);
    }
}

#[test]
fn sleep_without_a_reason_is_found() {
    let good = "// Longer than a poll.\nfn f() { sleep(1); }\nfn g() { sleep(1) } // the work\nconst P: &str = \"time.sleep(3)\";";
    assert_finds(
        habits::bare_sleeps,
        "tests/a.rs",
        ("\nfn f() { tokio::time::sleep(1); }", "tests/a.rs:2: `sleep`"),
        good,
    );
    let beside = "fn f() { sleep(1) }\n#[cfg(test)]\nmod tests {\n    fn f() { sleep_until(1) }\n}\n";
    assert_finds(habits::bare_sleeps, "src/a.rs", (beside, "src/a.rs:4: `sleep`"), "fn f() { sleep(1) }");
    for own in ["crates/testkit/src/wait.rs", "tests/simulation/run.rs", "tests/chaos/load.rs"] {
        assert!(habits::bare_sleeps(&[SourceFile::new(own, "fn f() { sleep(1) }")]).is_empty(), "{own}");
    }
}

#[test]
fn double_of_a_backend_is_found() {
    let good = "struct B; impl Sink for B {} impl B {} mod broker { trait Broker {} }";
    for bad in ["\nimpl Broker for B {}", "\nimpl<T> kafleet::Store for B<T> {}"] {
        assert_finds(habits::doubles, "tests/api/a.rs", (bad, "tests/api/a.rs:2: `"), good);
        assert!(habits::doubles(&[SourceFile::new("crates/testkit/src/faults/a.rs", bad)]).is_empty());
        assert!(habits::doubles(&[SourceFile::new("src/broker/a.rs", bad)]).is_empty());
    }
    let beside = "impl Store for A {}\n#[cfg(test)]\nmod tests {\n    impl Store for B {}\n}\n";
    assert_finds(habits::doubles, "src/a.rs", (beside, "src/a.rs:4: `Store`"), "impl Store for A {}");
}

#[test]
fn forbidden_words_are_counted_in_code_and_comments() {
    let list = "# a list\nboth  lane  1 consumer\ncode  Ticket  0 delivery tag\ntext  whoever  0 the subject\n";
    let words = words::parse(list);
    let source = "struct Ticket; // a Ticket, `lane`, lanes\n/// Whoever polls the lane.\nfn f(lane: &str) { g('l', std::lane) }\n";
    let uses = words::uses(&words, &[SourceFile::new("src/a.rs", source)], &[]);
    let lines = |word: &str| uses[word].iter().map(|one| one.line).collect::<Vec<_>>();
    assert_eq!((lines("lane"), lines("Ticket"), lines("whoever")), (vec![2, 3], vec![1], vec![2]));
    assert_eq!(uses["Ticket"][0].to_string(), "src/a.rs:1: `Ticket` has a standard term: delivery tag");
    assert!(words::lowered(list, &uses).contains("both  lane             1 consumer\n"), "maxima are never raised");
}

#[test]
fn forbidden_words_are_counted_in_texts_tests_and_documents() {
    let words = words::parse("both  lane  0 consumer\ntext  whoever  0 the subject\ncode  Ticket  0 delivery tag\n");
    let source = "fn f() { g(\"of a lane\", r#\"a `lane`\"#, \"a Ticket\") }\n\
        #[cfg(test)]\nmod tests {\n    #[tokio::test]\n    async fn whoever_asks_waits() { g(\"lane\") }\n    fn whoever() {}\n}\n";
    let tests = SourceFile::new("tests/a.rs", "fn f() { g(\"of a lane\") }");
    let page = "# Lanes\n\n`lane` of\na lane: Ticket\n\n```sh\nlane\n```\n\n`a\nlane` for whoever\n".to_owned();
    let uses = words::uses(&words, &[SourceFile::new("src/a.rs", source), tests], &[("docs/a.md".into(), page)]);
    let findings =
        |word: &str| uses[word].iter().map(|found| format!("{}:{}", found.path, found.line)).collect::<Vec<_>>();
    assert_eq!(findings("lane"), ["src/a.rs:1", "docs/a.md:4"]);
    assert_eq!(findings("whoever"), ["src/a.rs:5", "docs/a.md:11"]);
    assert_eq!(findings("Ticket"), Vec::<String>::new());
}
