//! Text view of a task: one field per line, absent fields omitted.

use kafleet_documents::{Children, Deliveries, Delivery, DeliveryOutcome, Status, Tree};
use kafleet_model::event::ErrorInfo;
use kafleet_model::json::{JsonKind, JsonSlice, RawJson};
use kafleet_model::record::state::State;
use kafleet_model::task::parse_time;
use kafleet_runtime::now_ms;

use super::output::{Paint, one_line};

/// Maximum length of JSON shown on one line.
const INLINE_JSON_CHARS: usize = 100;
/// Column of the values.
const INDENT: usize = 10;

/// Renders a task as of now.
pub(super) fn render_task(task: &Status, paint: Paint) -> String {
    render_task_at(task, paint, now_ms())
}

fn render_task_at(task: &Status, paint: Paint, now_ms: i64) -> String {
    let mut fields = Fields { lines: Vec::new(), paint };
    fields.add("id", &task.id);
    fields.add_optional("type", task.task_type.as_deref());
    fields.add_painted("state", &state_text(task, paint));
    task.fields.labels().for_each(|(name, value)| fields.label(name, &value));
    fields.add_optional("attempt", attempt_text(task).as_deref());
    fields.add_optional("waits", (task.waits > 0).then(|| task.waits.to_string()).as_deref());
    fields.add_optional("restarts", interruptions_text(task).as_deref());
    fields.add_optional("created", task.created_at.as_deref());
    fields.add_optional("seen", task.seen_at.as_deref());
    fields.add_optional("due", task.due_at.as_deref());
    fields.add_optional("started", started_text(task, now_ms).as_deref());
    fields.add_optional("ended", ended_text(task).as_deref());
    fields.add_optional("worker", task.worker.as_deref());
    fields.json("progress", task.progress.as_ref());
    fields.json("result", task.result.as_ref());
    fields.add_optional("error", task.error.as_ref().map(error_text).as_deref());
    fields.add_optional("children", children_text(&task.children).as_deref());
    fields.add_optional("tree", tree_text(task).as_deref());
    fields.add_optional("first", boundary_text(task, &task.tree.started_at, &task.tree.started_by).as_deref());
    fields.add_optional("last", boundary_text(task, &task.tree.ended_at, &task.tree.ended_by).as_deref());
    task.deliveries.iter().flat_map(delivery_texts).for_each(|text| fields.add("notified", &text));
    fields.lines.join("\n")
}

/// Renders deliveries, oldest first, and due checks.
fn delivery_texts(deliveries: &Deliveries) -> Vec<String> {
    let mut texts: Vec<String> = deliveries.items.iter().rev().map(delivery_text).collect();
    let more = [(deliveries.unlisted, "older, not listed"), (deliveries.refused, "not created: too many were pending")];
    texts.extend(more.iter().filter(|(count, _)| *count > 0).map(|(count, label)| format!("{count} {label}")));
    texts.extend(deliveries.checks_due.iter().map(|check| format!("check {} due {}", check.number, check.at)));
    texts
}

fn delivery_text(delivery: &Delivery) -> String {
    let how = match (delivery.outcome, &delivery.error) {
        (DeliveryOutcome::Delivered, _) if delivery.attempts > 1 => {
            format!("delivered at attempt {}", delivery.attempts)
        }
        (DeliveryOutcome::Delivered, _) => "delivered".to_owned(),
        (DeliveryOutcome::Failed, Some(error)) => format!("failed: {}", error_text(error)),
        (DeliveryOutcome::Failed, None) => "failed".to_owned(),
        (DeliveryOutcome::Pending, Some(error)) => format!("pending: {}", error_text(error)),
        (DeliveryOutcome::Pending, None) => "pending".to_owned(),
        (DeliveryOutcome::Unknown, _) => "its record has expired".to_owned(),
    };
    format!("{} by {} {} ({}): {how}", delivery.state, delivery.kind, delivery.id, delivery.rule)
}

struct Fields {
    lines: Vec<String>,
    paint: Paint,
}

impl Fields {
    fn add(&mut self, name: &str, value: &str) {
        self.add_painted(name, &one_line(value));
    }

    /// Adds a value that may contain colour codes.
    fn add_painted(&mut self, name: &str, value: &str) {
        let name = self.paint.dim(&format!("{name:<width$} ", width = INDENT - 1));
        self.lines.push(format!("{name}{value}"));
    }

    fn add_optional(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.add(name, value);
        }
    }

    /// Adds a text, a list of texts or other JSON, unless it is empty.
    fn label(&mut self, name: &str, value: &RawJson) {
        let slice = value.slice();
        match slice.kind() {
            JsonKind::Null => {}
            JsonKind::Array => {
                let items: Vec<_> = slice.elements().filter_map(JsonSlice::string).collect();
                self.add_optional(name, (!items.is_empty()).then(|| items.join(", ")).as_deref());
            }
            _ => match slice.string() {
                Some(text) => self.add(name, &text),
                None => self.json(name, Some(value)),
            },
        }
    }

    fn json(&mut self, name: &str, value: Option<&RawJson>) {
        let Some(value) = value else { return };
        let short = value.to_string();
        if short.chars().count() <= INLINE_JSON_CHARS {
            return self.add(name, &short);
        }
        let long = value.slice().pretty();
        self.add_painted(name, &long.lines().map(one_line).collect::<Vec<_>>().join(&format!("\n{:INDENT$}", "")));
    }
}

fn state_text(task: &Status, paint: Paint) -> String {
    let mut text = paint.state(task.state);
    if task.own_state != task.state {
        text.push_str(&format!(" (own state: {})", task.own_state));
    }
    if task.superseded {
        text.push_str(" (superseded: not spawned again by a later run of its parent)");
    }
    text
}

/// Number of starts that ended without an outcome.
fn interruptions_text(task: &Status) -> Option<String> {
    (task.interruptions > 0)
        .then(|| format!("{} (ended without an outcome, not counted as attempts)", task.interruptions))
}

fn attempt_text(task: &Status) -> Option<String> {
    match (task.attempt, task.run) {
        (0 | 1, 0 | 1) => None,
        (attempt, 0 | 1) => Some(attempt.to_string()),
        (attempt, run) => Some(format!("{attempt} of run {run}")),
    }
}

/// Returns the start time, with the elapsed time of a task that has not ended.
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

/// Formats the time between two RFC 3339 times.
fn took_text(from: &str, to: &str) -> Option<String> {
    since_text(from, millisecond(to)?)
}

/// Formats the time from an RFC 3339 time to `now_ms`; never negative, as the clocks may differ.
fn since_text(from: &str, now_ms: i64) -> Option<String> {
    Some(span_text(now_ms.saturating_sub(millisecond(from)?).max(0)))
}

fn millisecond(text: &str) -> Option<i64> {
    parse_time(text).ok()
}

/// Formats the duration of an ended task, the time until an attempt (`in 7 m 0 s`), or how long a task has been in its state
/// (`for 1.2 s`).
pub(super) fn state_time(task: &Status, now_ms: i64) -> Option<String> {
    let waits = matches!(task.state, State::Scheduled | State::Retrying);
    match task.due_at.as_deref().and_then(millisecond).filter(|_| waits) {
        Some(due) => Some(format!("in {}", span_text(due.saturating_sub(now_ms).max(0)))),
        None => {
            let since = task.state_since.as_deref().or(task.started_at.as_deref());
            let from = if task.state.is_terminal() { task.started_at.as_deref() } else { since };
            time_text(task.state, from, task.ended_at.as_deref(), now_ms)
        }
    }
}

/// Formats the duration of an ended task (`1.2 s`) or the elapsed time of a running one (`for 1.2 s`).
pub(super) fn time_text(state: State, started: Option<&str>, ended: Option<&str>, now_ms: i64) -> Option<String> {
    let started = started?;
    if state.is_terminal() { took_text(started, ended?) } else { Some(format!("for {}", since_text(started, now_ms)?)) }
}

/// Formats milliseconds in their two largest units.
pub(super) fn span_text(ms: i64) -> String {
    let secs = ms / 1_000;
    match secs {
        0 => format!("{ms} ms"),
        1..60 => format!("{}.{} s", secs, ms % 1_000 / 100),
        60..3_600 => format!("{} m {} s", secs / 60, secs % 60),
        3_600..86_400 => format!("{} h {} m", secs / 3_600, secs % 3_600 / 60),
        _ => format!("{} d {} h", secs / 86_400, secs % 86_400 / 3_600),
    }
}

/// Formats an error on one line.
pub(super) fn error_text(error: &ErrorInfo) -> String {
    let attempt = if error.attempt > 0 { format!(" (attempt {})", error.attempt) } else { String::new() };
    one_line(&format!("{}{attempt}", error.text()))
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

/// Formats the first start or last end in a tree, with the task's id.
fn boundary_text(task: &Status, at: &Option<String>, by: &Option<String>) -> Option<String> {
    let at = at.as_ref().filter(|_| task.tree.total > 1)?;
    Some(format!("{at} {}", by.as_deref().unwrap_or_default()))
}

/// Formats the task counts of a tree.
pub(super) fn tree_counts(tree: &Tree) -> String {
    let mut text = format!(
        "{} tasks: {} successful, {} pending, {} unsuccessful",
        tree.total, tree.successful, tree.pending, tree.failed
    );
    if let Some(ms) = tree.execution_ms {
        text.push_str(&format!(", took {}", span_text(ms)));
    }
    text
}

#[cfg(test)]
pub(super) mod samples {
    use super::*;

    /// Returns a finished echo task.
    pub(crate) fn status() -> Status {
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
    fn finished_task_is_rendered() {
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
        assert_eq!(render_task(&samples::status(), Paint(false)), expected);
    }

    #[test]
    fn open_task_shows_its_time_in_its_state() {
        let now_ms = millisecond("2026-01-31T12:01:02.000Z").unwrap();
        let time = |state: State, since: Option<&str>, due: Option<&str>| {
            let (state_since, due_at) = (since.map(str::to_owned), due.map(str::to_owned));
            state_time(&Status { state, state_since, due_at, ended_at: None, ..samples::status() }, now_ms)
        };
        let (since, due) = (Some("2026-01-31T12:00:22.000Z"), Some("2026-01-31T12:08:02.000Z"));
        assert_eq!(time(State::Queued, since, None).as_deref(), Some("for 40.0 s"));
        assert_eq!(time(State::Running, since, None).as_deref(), Some("for 40.0 s"), "the last attempt");
        assert_eq!(time(State::Running, None, None).as_deref(), Some("for 1 m 1 s"), "an older server");
        assert_eq!(time(State::Retrying, since, due).as_deref(), Some("in 7 m 0 s"));
        assert_eq!(state_time(&samples::status(), now_ms).as_deref(), Some("1.2 s"));
    }

    #[test]
    fn running_task_shows_elapsed_time() {
        let mut task = samples::status();
        task.state = State::Running;
        task.own_state = State::Running;
        task.ended_at = None;
        task.result = None;
        let now_ms = millisecond("2026-01-31T12:01:02.000Z").unwrap();
        let text = render_task_at(&task, Paint(false), now_ms);
        assert!(text.contains("started   2026-01-31T12:00:01.000Z (1 m 1 s ago)\n"), "{text}");
        let time = |state, ended| time_text(state, task.started_at.as_deref(), ended, now_ms);
        assert_eq!(time(State::Running, None).as_deref(), Some("for 1 m 1 s"));
        assert_eq!(time(State::Succeeded, Some("2026-01-31T12:00:02.250Z")).as_deref(), Some("1.2 s"));
        assert_eq!(time_text(State::Queued, None, None, now_ms), None);
        assert_eq!(
            time_text(State::Running, task.started_at.as_deref(), None, 0).as_deref(),
            Some("for 0 ms"),
            "another clock"
        );
    }

    #[test]
    fn default_error_kind_is_omitted() {
        let text = |kind| error_text(&ErrorInfo::new(kind, "no luck", 2));
        assert_eq!([text("error"), text("timeout")], ["no luck (attempt 2)", "timeout: no luck (attempt 2)"]);
    }

    #[test]
    fn deliveries_are_listed_oldest_first() {
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
        let text = render_task(&task, Paint(false));
        let deliveries: Vec<&str> = text.lines().filter(|line| line.starts_with("notified")).collect();
        let expected = [
            "notified  succeeded by callback callback-a (actions/0): delivered",
            "notified  running by callback callback-b (checks/0/failed): failed: http_status: `h` answered 500 (attempt 3)",
            "notified  2 older, not listed",
            "notified  check 1 due 2026-01-31T13:00:00.000Z",
        ];
        assert_eq!(deliveries, expected);
    }

    #[test]
    fn parent_waiting_for_children_is_rendered() {
        let mut task = samples::status();
        task.state = State::WaitingForChildren;
        task.attempt = 2;
        task.waits = 3;
        task.fields.0.name = Some("a\u{1b}[31mname".into());
        task.fields.0.tags = vec!["x".into(), "y".into()];
        task.started_at = None;
        task.ended_at = None;
        task.result = None;
        task.worker = None;
        task.error = Some(ErrorInfo::new("timeout", "took longer\nthan 1s", 1));
        task.children.total = 5;
        task.children.by_state = [(State::Failed, 1), (State::Queued, 4)].into();
        task.tree =
            Tree { total: 9, pending: 5, successful: 3, failed: 1, execution_ms: Some(61_000), ..Tree::default() };
        let expected = "\
id        cover-42
type      echo
state     waiting_for_children (own state: succeeded)
name      a [31mname
tags      x, y
attempt   2
waits     3
created   2026-01-31T12:00:00.000Z
seen      2026-01-31T12:00:00.500Z
error     timeout: took longer than 1s (attempt 1)
children  5: 4 queued, 1 failed
tree      9 tasks: 3 successful, 5 pending, 1 unsuccessful, took 1 m 1 s";
        assert_eq!(render_task(&task, Paint(false)), expected);
    }

    #[test]
    fn long_json_is_indented() {
        let mut task = samples::status();
        task.result = RawJson::of(&serde_json::json!({"words": vec!["lorem ipsum"; 9]})).ok();
        let text = render_task(&task, Paint(false));
        assert!(text.contains("result    {\n            \"words\": ["), "{text}");
    }

    #[test]
    fn durations_have_two_units() {
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
