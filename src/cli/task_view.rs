//! A task as a card: one fact a line, only the facts there are.

use super::output::{Paint, one_line};
use crate::api::documents::{Children, Deliveries, Delivery, Outcome, Status, Tree};
use crate::model::event::ErrorInfo;
use crate::model::json::RawJson;
use crate::model::record::state::State;
use crate::runtime::now_ms;

/// JSON longer than this is shown over several lines.
const INLINE_JSON_CHARS: usize = 100;
/// Between a fact's name and the fact.
const INDENT: usize = 10;

/// The lines of a task's card, as of now.
pub fn card(task: &Status, paint: Paint) -> String {
    card_at(task, paint, now_ms())
}

fn card_at(task: &Status, paint: Paint, now_ms: i64) -> String {
    let mut facts = Facts { lines: Vec::new(), paint };
    facts.add("id", &task.id);
    facts.maybe("type", task.task_type.as_deref());
    facts.paint_add("state", &state_text(task, paint));
    facts.maybe("name", task.name.as_deref());
    facts.maybe("creator", task.creator.as_deref());
    facts.maybe("tags", Some(task.tags.join(", ")).filter(|tags| !tags.is_empty()).as_deref());
    facts.maybe("link", task.link.as_deref());
    facts.json("options", task.options.as_ref().and_then(|options| RawJson::of(options).ok()).as_ref());
    facts.maybe("attempt", attempt_text(task).as_deref());
    facts.maybe("created", task.created_at.as_deref());
    facts.maybe("seen", task.seen_at.as_deref());
    facts.maybe("due", task.due_at.as_deref());
    facts.maybe("started", started_text(task, now_ms).as_deref());
    facts.maybe("ended", ended_text(task).as_deref());
    facts.maybe("worker", task.worker.as_deref());
    facts.json("progress", task.progress.as_ref());
    facts.json("result", task.result.as_ref());
    facts.maybe("error", task.error.as_ref().map(error_text).as_deref());
    facts.maybe("children", children_text(&task.children).as_deref());
    facts.maybe("tree", tree_text(task).as_deref());
    facts.maybe("first", whose(task, &task.tree.started_at, &task.tree.started_by).as_deref());
    facts.maybe("last", whose(task, &task.tree.ended_at, &task.tree.ended_by).as_deref());
    task.deliveries.iter().flat_map(told_texts).for_each(|text| facts.add("told", &text));
    facts.lines.join("\n")
}

/// What others have been told, the oldest first, and what is still to come.
fn told_texts(told: &Deliveries) -> Vec<String> {
    let mut texts: Vec<String> = told.items.iter().rev().map(told_text).collect();
    let more = [(told.unlisted, "older ones"), (told.refused, "not made: too many were waiting")];
    texts.extend(more.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")));
    texts.extend(told.checks_due.iter().map(|check| format!("check {} is due {}", check.number, check.at)));
    texts
}

fn told_text(one: &Delivery) -> String {
    let how = match (one.outcome, &one.error) {
        (Outcome::Delivered, _) if one.attempts > 1 => format!("delivered at the {}. attempt", one.attempts),
        (Outcome::Delivered, _) => "delivered".to_owned(),
        (Outcome::Failed, Some(error)) => format!("failed: {}", error_text(error)),
        (Outcome::Failed, None) => "failed".to_owned(),
        (Outcome::Pending, Some(error)) => format!("pending: {}", error_text(error)),
        (Outcome::Pending, None) => "pending".to_owned(),
        (Outcome::Unknown, _) => "its record is no longer kept".to_owned(),
    };
    format!("{} by {} {} ({}): {how}", one.state, one.kind, one.id, one.rule)
}

struct Facts {
    lines: Vec<String>,
    paint: Paint,
}

impl Facts {
    fn add(&mut self, name: &str, value: &str) {
        self.paint_add(name, &one_line(value));
    }

    /// A value that may hold colours.
    fn paint_add(&mut self, name: &str, value: &str) {
        let name = self.paint.dim(&format!("{name:<INDENT$}"));
        self.lines.push(format!("{name}{value}"));
    }

    fn maybe(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.add(name, value);
        }
    }

    fn json(&mut self, name: &str, value: Option<&RawJson>) {
        let Some(value) = value else { return };
        let short = value.to_string();
        if short.chars().count() <= INLINE_JSON_CHARS {
            return self.add(name, &short);
        }
        let long = format!("{value:#}");
        self.paint_add(name, &long.lines().map(one_line).collect::<Vec<_>>().join(&format!("\n{:INDENT$}", "")));
    }
}

fn state_text(task: &Status, paint: Paint) -> String {
    let mut text = paint.state(task.state);
    if task.own_state != task.state {
        text.push_str(&format!(" (the task itself: {})", task.own_state));
    }
    if task.superseded {
        text.push_str(" (superseded: a later run of its parent did not spawn it again)");
    }
    text
}

fn attempt_text(task: &Status) -> Option<String> {
    match (task.attempt, task.run) {
        (0 | 1, 0 | 1) => None,
        (attempt, 0 | 1) => Some(attempt.to_string()),
        (attempt, run) => Some(format!("{attempt} of run {run}")),
    }
}

/// With the time since then, while the task goes on.
fn started_text(task: &Status, now_ms: i64) -> Option<String> {
    let started = task.started_at.as_deref()?;
    let since = (!task.state.is_terminal()).then(|| since_text(started, now_ms)).flatten();
    Some(since.map_or_else(|| started.to_owned(), |since| format!("{started} ({since} ago)")))
}

fn ended_text(task: &Status) -> Option<String> {
    let ended = task.ended_at.as_deref()?;
    let took = task.started_at.as_deref().and_then(|started| took_text(started, ended));
    Some(took.map_or_else(|| ended.to_owned(), |took| format!("{ended} (took {took})")))
}

/// The span between two RFC 3339 times, for people.
fn took_text(from: &str, to: &str) -> Option<String> {
    since_text(from, millisecond(to)?)
}

/// The span from an RFC 3339 time to `now_ms`. The two may be of different clocks: it is never negative.
fn since_text(from: &str, now_ms: i64) -> Option<String> {
    Some(span_text(now_ms.saturating_sub(millisecond(from)?).max(0)))
}

fn millisecond(text: &str) -> Option<i64> {
    text.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_millisecond)
}

/// The time that a task has taken, or, while it goes on, since when it has been started: `1.2 s`, `for 1.2 s`.
pub fn time_text(state: State, started: Option<&str>, ended: Option<&str>, now_ms: i64) -> Option<String> {
    let started = started?;
    match state.is_terminal() {
        true => took_text(started, ended?),
        false => Some(format!("for {}", since_text(started, now_ms)?)),
    }
}

/// Milliseconds for people: the two largest units.
pub fn span_text(ms: i64) -> String {
    let secs = ms / 1_000;
    match secs {
        0 => format!("{ms} ms"),
        1..60 => format!("{}.{} s", secs, ms % 1_000 / 100),
        60..3_600 => format!("{} m {} s", secs / 60, secs % 60),
        3_600..86_400 => format!("{} h {} m", secs / 3_600, secs % 3_600 / 60),
        _ => format!("{} d {} h", secs / 86_400, secs % 86_400 / 3_600),
    }
}

/// An error on one line.
pub fn error_text(error: &ErrorInfo) -> String {
    let attempt = if error.attempt > 0 { format!(" (attempt {})", error.attempt) } else { String::new() };
    // Beside the word `error` this kind says nothing.
    let kind = Some(&error.kind).filter(|kind| kind.as_str() != "error").map(|kind| format!("{kind}: ")).unwrap_or_default();
    one_line(&format!("{kind}{}{attempt}", error.message))
}

fn children_text(children: &Children) -> Option<String> {
    if children.total == 0 {
        return None;
    }
    let states: Vec<String> =
        State::ALL.iter().filter_map(|state| Some(format!("{} {state}", children.by_state.get(state)?))).collect();
    Some(format!("{}: {}", children.total, states.join(", ")))
}

fn tree_text(task: &Status) -> Option<String> {
    (task.tree.total > 1).then(|| tree_counts(&task.tree))
}

/// When the first thing in a tree began, or the last one ended, and which.
fn whose(task: &Status, at: &Option<String>, by: &Option<String>) -> Option<String> {
    let at = at.as_ref().filter(|_| task.tree.total > 1)?;
    Some(format!("{at} {}", by.as_deref().unwrap_or_default()))
}

/// How far a whole tree is.
pub fn tree_counts(tree: &Tree) -> String {
    let mut text =
        format!("{} tasks: {} successful, {} pending, {} failed", tree.total, tree.successful, tree.pending, tree.failed);
    if let Some(ms) = tree.execution_ms {
        text.push_str(&format!(", took {}", span_text(ms)));
    }
    text
}

#[cfg(test)]
pub mod samples {
    use super::*;

    /// A finished echo task.
    pub fn status() -> Status {
        let text = r#"{
            "id": "cover-42", "parent": null, "root": "cover-42", "type": "echo", "state": "succeeded", "own_state": "succeeded",
            "run": 1, "attempt": 1, "name": null, "creator": null, "tags": [], "link": null, "options": null, "external": false,
            "created_at": "2026-01-31T12:00:00.000Z", "seen_at": "2026-01-31T12:00:00.500Z", "started_at": "2026-01-31T12:00:01.000Z",
            "ended_at": "2026-01-31T12:00:02.250Z", "due_at": null, "progress": null, "result": {"hello": "world"}, "error": null,
            "children": {"total": 0, "pending": 0, "successful": 0, "failed": 0, "by_state": {}},
            "tree": {"total": 1, "pending": 0, "successful": 1, "failed": 0},
            "worker": "w-1", "record": "0:7", "position": "3:12", "duplicates": 0
        }"#;
        serde_json::from_str(text).expect("a status document")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finished_task() {
        let expected = "\
id        cover-42
type      echo
state     succeeded
created   2026-01-31T12:00:00.000Z
seen      2026-01-31T12:00:00.500Z
started   2026-01-31T12:00:01.000Z
ended     2026-01-31T12:00:02.250Z (took 1.2 s)
worker    w-1
result    {\"hello\":\"world\"}";
        assert_eq!(card(&samples::status(), Paint(false)), expected);
    }

    #[test]
    fn running_task_shows_elapsed_time() {
        let mut task = samples::status();
        (task.state, task.own_state, task.ended_at, task.result) = (State::Running, State::Running, None, None);
        let now_ms = millisecond("2026-01-31T12:01:02.000Z").unwrap();
        let text = card_at(&task, Paint(false), now_ms);
        assert!(text.contains("started   2026-01-31T12:00:01.000Z (1 m 1 s ago)\n"), "{text}");
        let time = |state, ended| time_text(state, task.started_at.as_deref(), ended, now_ms);
        assert_eq!(time(State::Running, None).as_deref(), Some("for 1 m 1 s"));
        assert_eq!(time(State::Succeeded, Some("2026-01-31T12:00:02.250Z")).as_deref(), Some("1.2 s"));
        assert_eq!(time_text(State::Queued, None, None, now_ms), None);
        assert_eq!(time_text(State::Running, task.started_at.as_deref(), None, 0).as_deref(), Some("for 0 ms"), "another clock");
    }

    #[test]
    fn error_kind_is_left_out_where_it_is_only_error() {
        let text = |kind| error_text(&ErrorInfo::new(kind, "no luck", 2));
        assert_eq!([text("error"), text("timeout")], ["no luck (attempt 2)", "timeout: no luck (attempt 2)"]);
    }

    #[test]
    fn what_others_have_been_told() {
        let mut task = samples::status();
        let text = r#"{
            "items": [
                {"id": "callback-b", "rule": "checks/0/failed", "kind": "callback", "state": "running", "run": 1,
                 "at": "2026-01-31T12:00:01.000Z", "outcome": "failed", "attempts": 3, "due_at": null,
                 "error": {"kind": "http_status", "message": "`h` answered 500", "attempt": 3}},
                {"id": "callback-a", "rule": "actions/0", "kind": "callback", "state": "succeeded", "run": 1,
                 "at": "2026-01-31T12:00:02.000Z", "outcome": "delivered", "attempts": 1, "error": null, "due_at": null}
            ],
            "unlisted": 2, "refused": 0, "checks_due": [{"number": 1, "at": "2026-01-31T13:00:00.000Z"}]
        }"#;
        task.deliveries = serde_json::from_str(text).unwrap();
        let text = card(&task, Paint(false));
        let told: Vec<&str> = text.lines().filter(|line| line.starts_with("told")).collect();
        let expected = [
            "told      succeeded by callback callback-a (actions/0): delivered",
            "told      running by callback callback-b (checks/0/failed): failed: http_status: `h` answered 500 (attempt 3)",
            "told      2 older ones",
            "told      check 1 is due 2026-01-31T13:00:00.000Z",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn a_parent_held_open_by_its_children() {
        let mut task = samples::status();
        task.state = State::WaitingForChildren;
        task.attempt = 2;
        (task.name, task.tags) = (Some("a\u{1b}[31mname".into()), vec!["x".into(), "y".into()]);
        (task.started_at, task.ended_at, task.result, task.worker) = (None, None, None, None);
        task.error = Some(ErrorInfo::new("timeout", "took longer\nthan 1s", 1));
        task.children.total = 5;
        task.children.by_state = [(State::Failed, 1), (State::Queued, 4)].into();
        task.tree = Tree { total: 9, pending: 5, successful: 3, failed: 1, execution_ms: Some(61_000), ..Tree::default() };
        let expected = "\
id        cover-42
type      echo
state     waiting_for_children (the task itself: succeeded)
name      a [31mname
tags      x, y
attempt   2
created   2026-01-31T12:00:00.000Z
seen      2026-01-31T12:00:00.500Z
error     timeout: took longer than 1s (attempt 1)
children  5: 4 queued, 1 failed
tree      9 tasks: 3 successful, 5 pending, 1 failed, took 1 m 1 s";
        assert_eq!(card(&task, Paint(false)), expected);
    }

    #[test]
    fn long_json_is_spread_out() {
        let mut task = samples::status();
        task.result = RawJson::of(&serde_json::json!({"words": vec!["lorem ipsum"; 9]})).ok();
        let text = card(&task, Paint(false));
        assert!(text.contains("result    {\n            \"words\": ["), "{text}");
    }

    #[test]
    fn spans_have_two_units() {
        for (ms, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_050, "1.0 s"),
            (59_999, "59.9 s"),
            (61_000, "1 m 1 s"),
            (3_720_000, "1 h 2 m"),
            (90_000_000, "1 d 1 h"),
        ] {
            assert_eq!(span_text(ms), text);
        }
    }
}
