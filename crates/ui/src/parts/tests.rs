use kafleet_documents::{History, HistoryItem};
use kafleet_model::record::state::State;

use super::*;

fn view(base: &str) -> View {
    View { base: base.into(), role: Role::Submit, read_only: false }
}

#[test]
fn urls_contain_the_base_path() {
    assert_eq!(view("").url("/"), "/");
    assert_eq!(view("/fleet").url("/"), "/fleet");
    assert_eq!(view("/fleet").task("a:b@c"), "/fleet/tasks/a:b@c");
    assert_eq!(view("").url_with("/tasks", &[("tag", "a b&c")]), "/tasks?tag=a+b%26c");
    assert_eq!(view("").task(".."), "/tasks?q=id%3A..");
    assert_eq!(encoded("a b/c?\u{e9}"), "a%20b%2Fc%3F%C3%A9");
}

#[test]
fn role_and_mode_permit_actions() {
    assert!(view("").may(Role::Submit) && !view("").may(Role::Operate));
    assert!(!View { read_only: true, ..view("") }.may(Role::Read));
}

#[test]
fn numbers_have_thousands_separators() {
    for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
        assert_eq!(count(number), text);
    }
}

#[test]
fn backticks_of_messages_become_code() {
    assert_eq!(prose("`a<b` failed").into_string(), "<code>a&lt;b</code> failed");
    assert_eq!(prose("one ` only").into_string(), "one ` only");
}

#[test]
fn first_line_has_a_maximum_length() {
    assert_eq!(first_line("one\ntwo", 9), "one");
    assert_eq!(first_line("äöüß", 2), "äö…");
}

#[test]
fn states_have_glyph_word_and_colour() {
    assert_eq!(
        state::pill(State::WaitingForChildren).into_string(),
        "<span class=\"pill blue\"><span class=\"glyph\" aria-hidden=\"true\">◔\u{fe0e}</span> waiting for children</span>"
    );
    let glyphs: std::collections::BTreeSet<String> = State::ALL.into_iter().map(state::glyph).collect();
    assert_eq!(glyphs.len(), State::COUNT, "no two states share a glyph");
}

#[test]
fn breadcrumbs_lead_to_the_parents() {
    assert_eq!(
        tasks::breadcrumbs(&view("/fleet"), "a:b").into_string(),
        "<nav class=\"crumbs\" aria-label=\"parents\"><a href=\"/fleet/tasks/a\">a</a>\
         <span class=\"quiet\" aria-hidden=\"true\">›</span><strong>b</strong></nav>"
    );
}

#[test]
fn long_breadcrumbs_keep_the_root_and_the_last_parents() {
    let steps = |depth: usize| {
        let id = (0..depth).map(|n| format!("t{n}")).collect::<Vec<_>>().join(":");
        let shown = tasks::breadcrumbs(&view(""), &id).into_string();
        let is_shown = |n: &usize| shown.contains(&format!(">t{n}<"));
        ((0..depth).filter(is_shown).collect::<Vec<_>>(), shown.contains(" more<"))
    };
    assert_eq!(steps(1), (vec![0], false));
    assert_eq!(steps(8), ((0..8).collect(), false));
    assert_eq!(steps(9), (vec![0, 4, 5, 6, 7, 8], true));
    assert_eq!(steps(100), (vec![0, 95, 96, 97, 98, 99], true));
}

#[test]
fn bar_shows_each_state_and_describes_itself() {
    let counts = [(State::Succeeded, 999_999), (State::Failed, 1)].into_iter().collect();
    let drawn = bar::state_bar(&counts).into_string();
    assert!(drawn.contains("aria-label=\"999,999 succeeded, 1 failed\""), "{drawn}");
    assert!(drawn.contains("<rect class=\"fill bad\" x=\"999\" y=\"0\" width=\"6\""), "{drawn}");
}

#[test]
fn bar_of_a_tree_is_in_proportion_to_all_of_its_tasks() {
    let tree = kafleet_documents::Tree { total: 1_000, successful: 900, failed: 4, pending: 96, ..Default::default() };
    let drawn = bar::tree_bar(&tree).into_string();
    assert!(drawn.contains("aria-label=\"900 succeeded, 4 failed, 96 open\""), "{drawn}");
    assert!(drawn.contains("<rect class=\"fill bad\" x=\"900\" y=\"0\" width=\"6\""), "{drawn}");
}

#[test]
fn field_of_a_form_has_its_label_and_hint() {
    let field = form::Input::new("a", "A", Some("<x>")).hint("why");
    assert_eq!(
        maud::Render::render(&field).into_string(),
        "<div class=\"field\"><label for=\"f-a\">A</label><input id=\"f-a\" name=\"a\" value=\"&lt;x&gt;\" \
         autocomplete=\"off\" aria-describedby=\"h-a\"><p class=\"hint\" id=\"h-a\">why</p></div>"
    );
}

#[test]
fn attempt_after_a_wait_or_an_interruption_has_a_row_of_its_own() {
    let event = |kind: &str, second: u32, waits| HistoryItem {
        kind: kind.into(),
        at: format!("2026-01-31T12:00:{second:02}.000Z"),
        run: 1,
        attempt: 1,
        worker: Some("w".into()),
        message: None,
        error_kind: None,
        waits,
        started_at: None,
        by: None,
        ignored: false,
        position: "0:1".into(),
    };
    let events = vec![
        event("started", 1, 0),
        event("retrying", 3, 1),
        event("started", 4, 0),
        event("interrupted", 7, 0),
        event("started", 9, 0),
        event("succeeded", 10, 0),
    ];
    let history = History { id: "a".into(), events, dropped: 0, duplicates: 0 };
    let rows = attempts::attempt_bars(&view(""), &history).into_string();
    let outcomes: Vec<&str> = ["waited", "interrupted", "succeeded", "running", "failed"]
        .into_iter()
        .filter(|outcome| rows.contains(&format!(">{outcome}</span>")))
        .collect();
    assert_eq!(outcomes, ["waited", "interrupted", "succeeded"]);
    assert!(rows.contains("2.0 s") && rows.contains("3.0 s") && rows.contains("1.0 s"), "{rows}");
}
