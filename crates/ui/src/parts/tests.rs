use kafleet_documents::{History, HistoryItem, Status};
use kafleet_model::record::state::State;

use super::*;

fn view(base: &str) -> View {
    View { base: base.into(), ..View::for_tests(Role::Submit) }
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
fn sizes_have_readable_units() {
    for (bytes, text) in
        [(0, "0 bytes"), (1, "1 byte"), (24_622, "24.6 kB"), (999_999, "1.0 MB"), (1_500_000_000, "1.5 GB")]
    {
        assert_eq!(bytes_text(bytes), text);
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
fn long_id_in_a_list_keeps_its_ends() {
    let id = (0..60).map(|n| format!("level{n}")).collect::<Vec<_>>().join(":");
    let shown = tasks::middle_cut(&id);
    assert!(shown.starts_with("level0:level1:") && shown.ends_with(":level58:level59"), "{shown}");
    assert_eq!((shown.chars().count(), tasks::middle_cut("order:charge")), (61, "order:charge".into()));
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
fn failures_of_types_state_how_many_are_their_own() {
    let counts = [(State::Succeeded, 29_975), (State::Failed, 25)];
    let own = |tasks| Some(kafleet_documents::OwnFailed { tasks, at_least: false });
    let shown = |own| tasks::state_counts_of_types(&counts, own, |_| String::new()).into_string();
    assert!(shown(own(12)).contains("25 failed</a><span class=\"quiet\" title="), "{}", shown(own(12)));
    assert!(shown(own(12)).contains(" (12 by themselves)</span>"));
    assert!(!shown(own(25)).contains("by themselves") && !shown(None).contains("by themselves"));
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

pub(super) fn event(kind: &str, second: u32, waits: u32) -> HistoryItem {
    HistoryItem {
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
    }
}

fn rows_of(events: Vec<HistoryItem>, retries: Option<u32>) -> String {
    let history = History { id: "a".into(), events, dropped: 0, duplicates: 0 };
    attempts::attempt_bars(&view(""), &history, retries).into_string()
}

#[test]
fn attempt_begins_with_its_first_start_or_that_which_its_end_states() {
    let added = || vec![event("started", 1, 0), event("continuations_added", 8, 0)];
    let end =
        |started_at: Option<&str>| HistoryItem { started_at: started_at.map(Into::into), ..event("succeeded", 9, 0) };
    let ended = |end: HistoryItem| rows_of([added(), vec![end]].concat(), Some(3));
    assert!(ended(end(None)).contains("8.0 s"));
    assert!(ended(end(Some("2026-01-31T12:00:01.000Z"))).contains("8.0 s"));
    assert!(ended(end(Some("2026-01-31T12:00:05.000Z"))).contains("4.0 s"), "the worker has started it again");
    let rows = rows_of(added(), Some(3));
    assert!(
        rows.contains("<td data-label=\"Attempt\" class=\"number\">1 of 4</td>") && rows.contains("12:00:01.000"),
        "{rows}"
    );
}

#[test]
fn attempt_in_a_batch_states_its_size() {
    let started = HistoryItem { message: Some("in a batch of 4 tasks".into()), ..event("started", 1, 0) };
    assert!(rows_of(vec![started, event("succeeded", 2, 0)], None).contains("in a batch of 4 tasks"));
}

#[test]
fn attempt_after_a_wait_or_an_interruption_has_a_row_of_its_own() {
    let events = vec![
        event("started", 1, 0),
        event("retrying", 3, 1),
        event("started", 4, 0),
        event("interrupted", 7, 0),
        event("started", 9, 0),
        event("succeeded", 10, 0),
    ];
    let rows = rows_of(events, None);
    let outcomes: Vec<&str> = ["waited", "interrupted", "succeeded", "running", "failed"]
        .into_iter()
        .filter(|outcome| rows.contains(&format!("{outcome}</span>")))
        .collect();
    assert_eq!(outcomes, ["waited", "interrupted", "succeeded"]);
    assert!(rows.contains("class=\"number\">wait 1</td>"), "a wait is no attempt: {rows}");
    assert!(rows.contains("2.0 s") && rows.contains("3.0 s") && rows.contains("1.0 s"), "{rows}");
}

const NOW: i64 = 1_769_860_900_000;

pub(in super::super) fn status(change: serde_json::Value) -> Status {
    let counts = serde_json::json!({"total": 0, "pending": 0, "successful": 0, "failed": 0, "by_state": {}});
    let mut document = serde_json::json!({
        "id": "a", "parent": null, "root": "a", "type": "echo", "state": "running", "own_state": "running", "run": 1,
        "attempt": 1, "name": null, "creator": null, "tags": [], "link": null, "options": null, "external": false, "created_at": "2026-01-31T12:00:00.000Z", "seen_at": null, "started_at": null, "ended_at": null,
        "due_at": null, "progress": null, "result": null, "error": null, "children": counts, "tree": counts, "worker": null,
        "record": null, "position": "0:1", "duplicates": 0,
    });
    document.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    serde_json::from_value(document).unwrap()
}

#[test]
fn time_of_a_task_is_that_of_its_state() {
    let view = View { now_ms: NOW, ..view("") };
    let text = |change| {
        let shown = clock::state_time(&view, &status(change)).into_string();
        let without_tags: String =
            shown.split('<').map(|part| part.split_once('>').map_or(part, |(_, text)| text)).collect();
        without_tags
    };
    let at = |second: u32| format!("2026-01-31T12:{:02}:{:02}.000Z", second / 60, second % 60);
    for (change, expected) in [
        (serde_json::json!({"state_since": at(0)}), "running 1 min 40 s"),
        (serde_json::json!({"state": "queued", "state_since": at(60)}), "queued 40 s"),
        (serde_json::json!({"state": "retrying", "due_at": at(520)}), "retries in 7 min 0 s"),
        (serde_json::json!({"state": "retrying", "due_at": at(60)}), "due for 40 s"),
        (serde_json::json!({"state": "scheduled", "due_at": at(10)}), "starts in 0 s"),
        (
            serde_json::json!({"state": "scheduled", "due_at": at(10), "state_since": at(60), "unique": "k"}),
            "kept 40 s",
        ),
        (serde_json::json!({"state": "scheduled", "due_at": at(520), "unique": "k"}), "starts in 7 min 0 s"),
        (serde_json::json!({"state": "waiting_for_children", "state_since": at(95)}), "waits for children 5 s"),
        (serde_json::json!({"state": "running"}), "running"),
        (serde_json::json!({"state": "succeeded", "started_at": at(1), "ended_at": at(3)}), "took 2.0 s"),
        (serde_json::json!({"state": "cancelled", "ended_at": at(3)}), "–"),
    ] {
        assert_eq!(text(change), expected);
    }
}

#[test]
fn task_offers_to_start_now_while_it_waits_for_a_time() {
    for (own_state, state, external, offered) in [
        ("scheduled", "scheduled", false, true),
        ("retrying", "retrying", false, true),
        ("retrying", "cancelling", false, false),
        ("retrying", "retrying", true, false),
        ("queued", "queued", false, false),
        ("running", "running", false, false),
        ("succeeded", "waiting_for_children", false, false),
    ] {
        let task = status(serde_json::json!({"own_state": own_state, "state": state, "external": external}));
        let shown = task_head::head(&view(""), &task).into_string();
        assert_eq!(shown.contains("/tasks/a/start-now"), offered, "{own_state} {state} {external}: {shown}");
    }
}

#[test]
fn progress_with_figures_is_a_bar_with_the_rest() {
    let view = View { now_ms: NOW, ..view("") };
    let block = |progress: serde_json::Value| {
        let task = status(serde_json::json!({"progress": progress, "state_since": "2026-01-31T12:00:00.000Z"}));
        (progress::progress_block(&view, &task, None).into_string(), progress::small_progress(&task).into_string())
    };
    let (large, small) = block(serde_json::json!({"done": 1_000, "total": 6_000, "message": "p<3"}));
    for text in ["<progress max=\"6000\" value=\"1000\"", "1,000 of 6,000", "p&lt;3"] {
        assert!(large.contains(text) && small.contains(text), "{text} is missing: {large} {small}");
    }
    assert!(
        large.contains("about 8 min 20 s left")
            && large.contains("&quot;done&quot;</span>: <span class=\"digits\">1000"),
        "{large}"
    );
    let (large, small) = block(serde_json::json!({"done": "1", "total": 6}));
    assert!(
        !large.contains("<progress")
            && large.contains("&quot;total&quot;</span>: <span class=\"digits\">6")
            && small.is_empty(),
        "{large}"
    );
    assert!(!block(serde_json::json!({"done": 0, "total": 6})).0.contains("left"), "nothing is known of its speed");
}

#[test]
fn rest_is_estimated_up_to_the_last_sign_of_life_and_not_of_a_silent_attempt() {
    let view = View { now_ms: NOW, ..view("") };
    let progress = serde_json::json!({"progress": {"done": 1, "total": 2}, "state_since": "2026-01-31T12:00:00.000Z"});
    let shown = |quiet_ms| progress::progress_block(&view, &status(progress.clone()), quiet_ms).into_string();
    assert!(shown(Some(20_000)).contains("about 1 min 20 s left"), "a hundred seconds have passed");
    let silent = shown(Some(40_000));
    assert!(silent.contains("no progress for 40 s") && !silent.contains(" left"), "{silent}");
}

/// Sources of the pages and their parts, with their paths.
fn sources() -> Vec<(std::path::PathBuf, String)> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = ["pages", "parts"].map(|name| std::fs::read_dir(folder.join(name)).unwrap());
    let paths = files.into_iter().flatten().map(|entry| entry.unwrap().path());
    let is_source = |path: &std::path::PathBuf| path.is_file() && !path.ends_with("tests.rs");
    paths.filter(is_source).map(|path| (path.clone(), std::fs::read_to_string(&path).unwrap())).collect()
}

#[test]
fn counts_are_followed_by_a_noun_in_the_right_number() {
    for (path, text) in sources() {
        for noun in ["tasks", "workers", "attempts", "records", "children", "types", "errors", "partitions"] {
            for before in ["", "open ", "failed ", "queued "] {
                let plural = format!(")) \" {before}{noun}");
                assert!(!text.contains(&plural), "use `counted` for `{plural}` in {}", path.display());
            }
        }
    }
}

#[test]
fn dashes_of_missing_values_are_those_that_cards_leave_out() {
    for (path, text) in sources() {
        let is_plain = |line: &&str| line.contains("{ \"–\" }") && !line.contains("span.quiet");
        let lines: Vec<&str> = text.lines().filter(is_plain).collect();
        assert!(lines.is_empty() && !text.contains("unwrap_or(\"–\")"), "{lines:?} in {}", path.display());
    }
}

#[test]
fn errors_in_lists_show_code_as_code() {
    for (path, text) in sources() {
        let raw = "span.error { (first_line(";
        assert!(!text.contains(raw), "use `prose` for the text of an error instead of `{raw}` in {}", path.display());
    }
}
