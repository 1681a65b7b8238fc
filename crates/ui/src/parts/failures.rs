//! Failed tasks by type and error.

use kafleet_config::Role;
use kafleet_documents::{FailureGroup, Failures};
use kafleet_model::error_fingerprint::Fingerprint;
use maud::{Markup, html};

use super::chart::bars;
use super::tasks::{type_link, worker_link};
use super::times::{millis, time};
use super::{View, count, counted, encoded, first_line, prose, search_text};

/// Workers listed in a row.
const LISTED_WORKERS: usize = 3;

/// Query of the tasks of a group.
pub(in super::super) fn group_query(group: &FailureGroup) -> String {
    search_text(&[("type", &group.task_type), ("own", "failed,expired"), ("error", searched(group)), ("level", "any")])
}

/// Error of a group in a search: a kind by its text, if an index knows it as such, else a name.
fn searched(group: &FailureGroup) -> &str {
    match &group.kind {
        Some(kind) if is_kind(group) && !kind.is_empty() && !kind.contains(char::is_whitespace) => kind,
        _ => &group.error,
    }
}

/// Whether a group has all messages of a kind.
pub(in super::super) fn is_kind(group: &FailureGroup) -> bool {
    group.error.parse::<Fingerprint>().is_ok_and(|error| error == error.kind())
}

/// Name of the kind of a message.
pub(in super::super) fn kind_of(group: &FailureGroup) -> String {
    group.error.parse::<Fingerprint>().map_or_else(|_| group.error.clone(), |error| error.kind().to_string())
}

/// Kind of errors that state none.
const NO_KIND: &str = "error";

/// Words for a kind of errors; of errors without a kind the message of the newest one.
pub(in super::super) fn kind_text(group: &FailureGroup) -> String {
    kind_words(group.kind.as_deref(), newest_message(group))
}

/// Words for a kind of errors: where they state none, the message of one.
pub(in super::super) fn kind_words(kind: Option<&str>, message: &str) -> String {
    match kind {
        None => "no error was reported".to_owned(),
        Some("" | NO_KIND) => first_line(message, 60),
        Some(kind) => first_line(kind, 60),
    }
}

/// Whether the error has ended tasks before those that are failed now.
pub(in super::super) fn is_back(group: &FailureGroup) -> bool {
    // Times of documents are sorted like their texts.
    group.first_seen < group.first
}

/// Whether the error ended no task before this time, nor in the 24 hours before.
pub(in super::super) fn is_new(group: &FailureGroup, since_ms: i64) -> bool {
    millis(&group.first_seen).is_some_and(|first| first >= since_ms)
}

/// Columns of [`group_row`].
pub(in super::super) const COLUMNS: &[&str] = &[
    "#Tasks",
    "#Dead letters|unresolved, of all retained tasks",
    "Failed attempts, 24 h",
    "Type",
    "Error",
    "First",
    "Last",
    "Workers",
    "",
];

pub(in super::super) fn group_row(view: &View, group: &FailureGroup, at_least: bool) -> Markup {
    row(view, group, at_least, None)
}

/// Row of a group with a table of the messages of its kind.
pub(in super::super) fn kind_row(view: &View, group: &FailureGroup, at_least: bool, messages: &Messages<'_>) -> Markup {
    row(view, group, at_least, Some(messages))
}

/// Messages of a kind that are listed below it.
pub(in super::super) struct Messages<'a> {
    pub listed: Vec<&'a FailureGroup>,
    /// There may be more messages than were counted.
    pub at_least: bool,
    /// URL of the page with more of them.
    pub all: String,
}

fn row(view: &View, group: &FailureGroup, at_least: bool, messages: Option<&Messages<'_>>) -> Markup {
    let query = group_query(group);
    html! {
        tr id={ "f-" (group.task_type) "-" (group.error) } {
            td.number { (tasks(view, group, &query, at_least)) }
            td.number data-none[group.dead_letters == Some(0)] { (letters(view, group)) }
            td.spark { (bars(&group.attempts_by_hour, "bad", "failed attempts in an hour")) }
            td { (type_link(view, Some(&group.task_type))) }
            td.message {
                (error(view, group, &query))
                @if group.newest_superseded { span.quiet { " (superseded)" } }
                @if let Some(messages) = messages { (message_table(view, group, messages)) }
            }
            td.time {
                @if is_back(group) {
                    span.quiet title={ "first seen " (group.first_seen) } { "back since " }
                }
                (time(&group.first))
            }
            td.time { a href=(view.task(&group.newest)) title=(group.newest) { (time(&group.last)) } }
            td { (workers(view, &group.workers)) }
            td.action { (actions(view, group, &query)) }
        }
    }
}

/// Note that no dead letters were counted. They are in Kafka alone.
pub(in super::super) fn uncounted_letters(failures: &Failures) -> Markup {
    html! {
        @if failures.other_dead_letters.is_none() {
            p.notice.attention { "The dead letters cannot be counted while Kafka does not answer. " code { "kafka_unavailable" } }
        }
    }
}

/// Unresolved dead letters of a group, with a link to their list.
fn letters(view: &View, group: &FailureGroup) -> Markup {
    html! {
        @match group.dead_letters {
            Some(0) => { span.quiet { "0" } }
            Some(number) => {
                a href=(view.url_with("/dead-letters", &letter_filter(group))) {
                    (count(number)) span.unit { @if number == 1 { " dead letter" } @else { " dead letters" } }
                }
            }
            None => { span.quiet title="not known now" { "–" } }
        }
    }
}

/// Filter of the dead letters of a group: by kind where it has all messages of one.
fn letter_filter(group: &FailureGroup) -> Vec<(&'static str, &str)> {
    let error = match group.kind.as_deref().filter(|kind| is_kind(group) && !kind.is_empty()) {
        Some(kind) => ("kind", kind),
        None => ("error", &*group.error),
    };
    vec![("type", &*group.task_type), error]
}

fn actions(view: &View, group: &FailureGroup, query: &str) -> Markup {
    let redrive = || {
        let mut fields = vec![("action", "redrive")];
        fields.extend(letter_filter(group));
        view.url_with("/bulk/new", &fields)
    };
    html! {
        @if view.may(Role::Operate) {
            a.button href=(view.url_with("/bulk/new", &[("action", "retry"), ("q", query)])) { "Retry…" }
            @if group.dead_letters.is_some_and(|number| number > 0) {
                " " a.button href=(redrive()) title="Run the tasks of the dead letters again, also with changed params" { "Redrive…" }
            }
        }
    }
}

/// Number of tasks in the range, and of all retained ones if they are more.
fn tasks(view: &View, group: &FailureGroup, query: &str, at_least: bool) -> Markup {
    html! {
        a.bad href=(view.search(query)) {
            @if at_least { "≥ " } (count(group.count)) span.unit { @if group.count == 1 { " task" } @else { " tasks" } }
        }
        @if group.retained > group.count { span.quiet { " of " (count(group.retained)) " retained" } }
    }
}

/// Error of a group: the message, or the kind with the message of its newest task.
fn error(view: &View, group: &FailureGroup, query: &str) -> Markup {
    let has_messages = is_kind(group) && group.messages != Some(1);
    let text = if has_messages { kind_text(group) } else { first_line(&group.text, 120) };
    html! {
        a.error href=(view.search(query)) title=(first_line(&group.text, 400)) { (prose(&text)) }
        @if has_messages && group.kind.as_deref().is_some_and(|kind| kind != NO_KIND) {
            span.quiet { " · " (prose(&first_line(newest_message(group), 100))) }
        }
    }
}

/// Message of the newest task of a group, without the kind of its error.
pub(in super::super) fn newest_message(group: &FailureGroup) -> &str {
    let message = group.kind.as_deref().and_then(|kind| group.text.strip_prefix(kind)?.strip_prefix(": "));
    message.unwrap_or(&group.text)
}

/// Number of the messages of a kind, as text.
fn messages_text(group: &FailureGroup, at_least: bool) -> String {
    let at_least = if at_least { "at least " } else { "" };
    format!("{at_least}{}", counted(group.messages.unwrap_or_default(), "message", "messages"))
}

fn message_table(view: &View, group: &FailureGroup, messages: &Messages<'_>) -> Markup {
    let number = group.messages.unwrap_or_default();
    html! {
        @if number > 1 {
            details.more id={ "m-" (group.task_type) "-" (group.error) } {
                summary { (messages_text(group, messages.at_least)) }
                table {
                    thead { tr {
                        th.number scope="col" { "Tasks" }
                        th.number scope="col" { "Dead letters" }
                        th scope="col" { "Message" }
                        th scope="col" { "Last" }
                        th scope="col" { span.hidden { "Actions" } }
                    } }
                    tbody { @for message in &messages.listed { (message_row(view, message)) } }
                }
                @if number > messages.listed.len() as u64 || messages.at_least {
                    p { a href=(messages.all) { "More messages of " (group.task_type) " · " (kind_text(group)) } }
                }
            }
        }
    }
}

fn message_row(view: &View, group: &FailureGroup) -> Markup {
    let query = group_query(group);
    html! {
        // Without an id: keys move between the rows of kinds, as these may be folded.
        tr {
            td.number { a.bad href=(view.search(&query)) { (count(group.count)) } }
            td.number { (letters(view, group)) }
            td.message { a.error href=(view.search(&query)) title=(first_line(&group.text, 400)) { (prose(&first_line(&group.text, 120))) } }
            td.time { a href=(view.task(&group.newest)) title=(group.newest) { (time(&group.last)) } }
            td.action { (actions(view, group, &query)) }
        }
    }
}

/// Columns of [`root_row`].
pub(in super::super) const ROOT_COLUMNS: &[&str] =
    &["#Roots", "Type of the roots", "Type", "Error", "#Tasks", "First|of the tasks that were read", "Last", ""];

/// Errors below roots of a type. `at_least`: not all failed tasks were read.
pub(in super::super) fn root_row(view: &View, group: &FailureGroup, at_least: bool) -> Markup {
    let root_type = group.root_type.as_deref().unwrap_or_default();
    let kind = group.kind.as_deref().unwrap_or_default();
    html! {
        tr id={ "r-" (root_type) "-" (group.task_type) "-" (group.error) } {
            td.number { @if at_least { "≥ " } (count(group.roots.unwrap_or_default())) }
            td { (type_link(view, Some(root_type).filter(|name| !name.is_empty()))) }
            td { (type_link(view, Some(&group.task_type))) }
            td.message {
                a.error href=(view.url_with("/failures", &[("type", &group.task_type), ("kind", kind)]))
                    title=(first_line(&group.text, 400)) { (prose(&kind_text(group))) }
            }
            td.number { @if at_least { "≥ " } (count(group.count)) }
            td.time { (time(&group.first)) }
            td.time { a href=(view.task(&group.newest)) title=(group.newest) { (time(&group.last)) } }
            td.action { (retry_of_kind(view, group)) }
        }
    }
}

/// Link to the retry of all tasks with an error: a search does not know the type of the root.
fn retry_of_kind(view: &View, group: &FailureGroup) -> Markup {
    let query = group_query(group);
    let is_more = group.retained > group.count;
    html! {
        @if view.may(Role::Operate) {
            a.button href=(view.url_with("/bulk/new", &[("action", "retry"), ("q", &query)]))
                title=[is_more.then_some("All retained tasks with this error, below roots of any type")] {
                "Retry" @if is_more { " all " (count(group.retained)) } "…"
            }
        }
    }
}

/// Links from the error of a task to the tasks with the same error, and to its dead letter.
pub(in super::super) fn kin(view: &View, group: Option<&FailureGroup>, letter: Option<&str>) -> Markup {
    html! {
        @if group.is_some() || letter.is_some() {
            p.quiet {
                @if let Some(group) = group {
                    "same error: "
                    a href=(view.search(&group_query(group))) { (counted(group.count, "task", "tasks")) }
                    " · first " (time(&group.first_seen))
                }
                @if group.is_some() && letter.is_some() { " · " }
                @if let Some(letter) = letter {
                    "dead letter "
                    a href=(view.url(&format!("/dead-letters/{}", encoded(letter)))) { (letter) }
                }
            }
        }
    }
}

fn workers(view: &View, ids: &[String]) -> Markup {
    let more = ids.len().saturating_sub(LISTED_WORKERS);
    html! {
        @for (n, id) in ids.iter().take(LISTED_WORKERS).enumerate() {
            @if n > 0 { ", " } (worker_link(view, id))
        }
        @if more > 0 { span.quiet { " and " (more) " more" } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> View {
        View::for_tests(Role::Operate)
    }

    fn group(error: Fingerprint) -> FailureGroup {
        FailureGroup {
            task_type: "charge".into(),
            error: error.to_string(),
            kind: Some("PaymentDeclined".into()),
            text: "PaymentDeclined: card of Ada".into(),
            count: 43,
            retained: 43,
            dead_letters: Some(40),
            messages: Some(10),
            root_type: None,
            roots: None,
            first: "2026-11-01T07:45:00Z".into(),
            last: "2026-11-01T07:50:00Z".into(),
            first_seen: "2026-11-01T07:45:00Z".into(),
            newest: "order-1:charge".into(),
            newest_superseded: false,
            workers: vec![],
            attempts_by_hour: vec![0; 24],
        }
    }

    fn declined() -> Fingerprint {
        Fingerprint::of_kind("PaymentDeclined")
    }

    #[test]
    fn errors_without_a_kind_have_one_text_in_all_lists() {
        let group = FailureGroup {
            kind: Some("error".into()),
            text: "error: no answer from 10.0.0.7".into(),
            ..group(Fingerprint::of_kind("error"))
        };
        assert_eq!(kind_text(&group), "no answer from 10.0.0.7");
        for row in [group_row(&view(), &group, false), root_row(&view(), &group, false)].map(Markup::into_string) {
            assert!(row.contains(">no answer from 10.0.0.7</a>") && !row.contains(">error</a>"), "{row}");
        }
    }

    #[test]
    fn error_below_roots_has_its_first_time_and_the_retry_of_all_with_it() {
        let below = FailureGroup { root_type: Some("order".into()), roots: Some(4), count: 5, ..group(declined()) };
        let row = root_row(&view(), &below, false).into_string();
        assert!(row.contains("2026-11-01T07:45:00Z") && row.contains("2026-11-01T07:50:00Z"), "{row}");
        assert!(row.contains("Retry all 43…") && row.contains("/bulk/new?action=retry&amp;q=type%3Acharge"), "{row}");
        assert!(
            root_row(&view(), &FailureGroup { count: 43, ..below.clone() }, false).into_string().contains(">Retry…<")
        );
        assert!(!root_row(&View::for_tests(Role::Read), &below, false).into_string().contains("Retry"));
    }

    #[test]
    fn kind_is_searched_and_retried_by_its_text() {
        assert_eq!(group_query(&group(declined())), "type:charge own:failed,expired error:PaymentDeclined level:any");
        let of_two_words = FailureGroup { kind: Some("card declined".into()), ..group(declined()) };
        assert_eq!(
            group_query(&of_two_words),
            format!("type:charge own:failed,expired error:{} level:any", declined()),
            "only an index of one word is known"
        );
        let message = group(declined().with_message("card of Ada"));
        assert!(group_query(&message).contains(&message.error));
        assert_eq!(kind_of(&message), declined().to_string());
    }

    #[test]
    fn kind_lists_its_messages_below_it() {
        let message = group(declined().with_message("card of Ada"));
        let messages =
            Messages { listed: vec![&message], at_least: false, all: "/failures?kind=PaymentDeclined".into() };
        let row = kind_row(&view(), &group(declined()), false, &messages).into_string();
        assert!(row.contains(">PaymentDeclined</a><span class=\"quiet\"> · card of Ada</span>"), "{row}");
        assert!(row.contains("<summary>10 messages</summary>") && row.contains("More messages of charge"), "{row}");
        assert_eq!(row.matches("Retry…").count(), 2, "on either level");
        let single = FailureGroup { messages: Some(1), ..group(declined()) };
        let row = kind_row(&view(), &single, false, &messages).into_string();
        assert!(row.contains(">PaymentDeclined: card of Ada</a>") && !row.contains("<details"), "{row}");
    }

    #[test]
    fn count_of_a_range_comes_before_that_of_all() {
        let row = group_row(&view(), &FailureGroup { count: 3, ..group(declined()) }, false).into_string();
        assert!(
            row.contains(">3<span class=\"unit\"> tasks</span></a><span class=\"quiet\"> of 43 retained</span>"),
            "{row}"
        );
    }

    #[test]
    fn dead_letters_of_a_group_are_listed_and_redriven_by_its_kind_or_its_message() {
        let kind = group_row(&view(), &group(declined()), false).into_string();
        assert!(kind.contains("href=\"/dead-letters?type=charge&amp;kind=PaymentDeclined\">40<span"), "{kind}");
        assert!(kind.contains("href=\"/bulk/new?action=redrive&amp;type=charge&amp;kind=PaymentDeclined\""), "{kind}");
        let message = group(declined().with_message("card of Ada"));
        let row = group_row(&view(), &message, false).into_string();
        assert!(row.contains(&format!("/dead-letters?type=charge&amp;error={}\"", message.error)), "{row}");
        for number in [None, Some(0)] {
            let row =
                group_row(&view(), &FailureGroup { dead_letters: number, ..group(declined()) }, false).into_string();
            assert!(!row.contains("Redrive") && row.contains("Retry"), "{row}");
        }
        let row = group_row(&View::for_tests(Role::Read), &group(declined()), false).into_string();
        assert!(!row.contains("Redrive"), "{row}");
    }

    #[test]
    fn error_of_a_task_leads_to_its_kin() {
        let message = group(declined().with_message("card of Ada"));
        let line = kin(&view(), Some(&message), Some("charge:0:2")).into_string();
        assert!(line.contains(">43 tasks</a> · first <time") && line.contains("/dead-letters/charge:0:2"), "{line}");
        assert_eq!(kin(&view(), None, None).into_string(), "");
    }

    #[test]
    fn error_that_was_seen_before_is_back() {
        let before = FailureGroup { first_seen: "2026-11-01T07:38:00Z".into(), ..group(declined()) };
        let at = |text: &str| millis(text).unwrap();
        assert!(is_back(&before) && !is_back(&group(declined())));
        assert!(!is_new(&before, at("2026-11-01T07:40:00Z")), "its first task was retried");
        assert!(is_new(&group(declined()), at("2026-11-01T07:40:00Z")));
        assert!(group_row(&view(), &before, false).into_string().contains("back since "));
    }
}
