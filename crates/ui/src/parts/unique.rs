//! Box with the key of a unique task: the tasks that stand for it, and the submissions so far.

use kafleet_config::Role;
use kafleet_documents::{KeptTaskDocument, Status, UniqueKeyDocument};
use kafleet_model::query::quoted;
use kafleet_model::unique::id::TAG_END;
use kafleet_model::unique::{UniqueMode, UniqueRule};
use kafleet_model::units::duration::Millis;
use kafleet_model::units::time::time_text;
use maud::{Markup, html};

use super::copy::copied;
use super::facts::{Fact, facts};
use super::times::{millis, time};
use super::{View, count, search_text, visible};

/// Box of a unique task. `key`: what stands for its key; `None` once the key is forgotten.
pub(in super::super) fn unique_box(
    view: &View,
    status: &Status,
    rule: &UniqueRule,
    key: Option<&UniqueKeyDocument>,
) -> Markup {
    let rows: Vec<Fact> = vec![
        ("Key", rule.key().map(|key| copied(html! { code { (visible(key)) } }))),
        ("Mode", Some(html! { (rule.mode().name()) span.quiet { (mode_text(rule)) } })),
        ("This task", Some(standing(status, rule, key))),
        ("Open", key.map(|key| open_tasks(view, status, &key.open))),
        ("Kept", key.map(|key| kept_task(view, status, key.kept.as_ref()))),
        ("Submissions", key.map(submissions)),
        ("Last submission", key.and_then(|key| key.last_ask.as_deref()).map(time)),
        ("Last start", key.and_then(|key| key.last_start.as_deref()).map(time)),
    ];
    html! {
        section.panel #unique {
            div.head {
                h2 { "Unique" }
                div.actions {
                    @if let Some(url) = all_of_key(view, status) { a href=(url) { "All tasks of the key" } }
                    @if key.is_some() && view.may(Role::Operate) {
                        a.button href=(view.below_task(&status.id, "forget-key")) data-dialog { "Forget the key…" }
                    }
                }
            }
            (facts(&rows))
            @if key.is_none() { p.quiet { "No task stands for the key now: the next submission starts at once." } }
        }
    }
}

/// Search for the tasks of a key, whose ids have the same tag.
fn all_of_key(view: &View, status: &Status) -> Option<String> {
    let (tag, _) = status.id.split_once(TAG_END)?;
    let search = search_text(&[("type", status.task_type.as_deref()?), ("level", "roots")]);
    Some(view.search(&format!("{search} {}", quoted(&format!("{tag}{TAG_END}")))))
}

/// Times of the mode, in words.
fn mode_text(rule: &UniqueRule) -> String {
    let text = |ms: i64| Millis(ms.unsigned_abs()).to_string();
    match (rule.mode(), rule.for_ms(), rule.max_ms()) {
        (UniqueMode::Skip, 0, _) => ": submissions join the open task".to_owned(),
        (UniqueMode::Skip, ms, _) => {
            format!(": submissions join the open task, or the last one until {} after its start", text(ms))
        }
        (UniqueMode::Latest, ..) => ": the newest submission starts after the open task".to_owned(),
        (UniqueMode::Debounce, _, Some(max)) => {
            format!(
                ": starts {} after the newest submission, at most {} after the first",
                text(rule.window_ms()),
                text(max)
            )
        }
        (UniqueMode::Debounce, ..) => format!(": starts {} after the newest submission", text(rule.window_ms())),
        (UniqueMode::Throttle, ..) => format!(": starts at most once in {}", text(rule.window_ms())),
    }
}

/// Place of the task among those of its key.
fn standing(status: &Status, rule: &UniqueRule, key: Option<&UniqueKeyDocument>) -> Markup {
    const OVER: &str = "no longer stands for the key";
    let Some(key) = key else { return html! { (OVER) } };
    let kept = key.kept.as_ref().filter(|kept| kept.id == status.id);
    let joined_until = (key.last.as_deref() == Some(status.id.as_str())).then(|| remembered_until(rule, key)).flatten();
    html! {
        @if key.open.contains(&status.id) { "stands for the key while it is open" }
        @else if let Some(kept) = kept {
            @if kept.waits_for_open { "is kept until the open one has ended" } @else { "is kept until it is due" }
        }
        @else if let Some(until) = joined_until { "has ended; submissions before " (time(&until)) " join it" }
        @else { (OVER) }
    }
}

/// Time until which submissions join the task that started last, also after its end.
fn remembered_until(rule: &UniqueRule, key: &UniqueKeyDocument) -> Option<String> {
    let start_ms = key.last_start.as_deref().and_then(millis)?;
    let is_remembered = rule.mode() == UniqueMode::Skip && rule.for_ms() > 0;
    is_remembered.then(|| time_text(start_ms.saturating_add(rule.for_ms())))
}

fn open_tasks(view: &View, status: &Status, open: &[String]) -> Markup {
    html! {
        @if open.is_empty() { span.quiet { "none" } }
        @for (n, id) in open.iter().enumerate() { @if n > 0 { ", " } (task_of_key(view, status, id)) }
    }
}

fn kept_task(view: &View, status: &Status, kept: Option<&KeptTaskDocument>) -> Markup {
    html! {
        @match kept {
            None => { span.quiet { "none" } }
            Some(kept) => {
                (task_of_key(view, status, &kept.id))
                span.quiet {
                    // Times of documents are sorted like their texts.
                    @match (kept.waits_for_open, kept.due_at > kept.first_ask) {
                        (true, true) => { " after the open one, not before " (time(&kept.due_at)) }
                        (true, false) => { " after the open one" }
                        (false, _) => { " due " (time(&kept.due_at)) }
                    }
                    " · first submitted " (time(&kept.first_ask))
                }
            }
        }
    }
}

fn task_of_key(view: &View, status: &Status, id: &str) -> Markup {
    html! { @if status.id == *id { "this task" } @else { a href=(view.task(id)) { code { (id) } } } }
}

/// Numbers of submissions by verdict.
fn submissions(key: &UniqueKeyDocument) -> Markup {
    html! { (count(key.started)) " started · " (count(key.kept_asks)) " kept · " (count(key.joined)) " joined" }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "echo~k~~a";
    const AT: &str = "2026-01-31T13:13:04.000Z";

    fn status() -> Status {
        crate::parts::tests::status(serde_json::json!({"id": ID, "root": ID}))
    }

    fn key(open: &[&str], kept: Option<&str>) -> UniqueKeyDocument {
        UniqueKeyDocument {
            task_type: "echo".into(),
            key: "k".into(),
            tag: "echo~k".into(),
            open: open.iter().map(|id| (*id).to_owned()).collect(),
            kept: kept.map(|id| KeptTaskDocument {
                id: id.into(),
                due_at: AT.into(),
                waits_for_open: true,
                first_ask: AT.into(),
            }),
            last: open.first().map(|id| (*id).to_owned()),
            last_start: Some(AT.into()),
            last_ask: Some(AT.into()),
            started: 1,
            kept_asks: 2,
            joined: 1_234,
        }
    }

    fn shown(role: Role, key: Option<&UniqueKeyDocument>) -> String {
        unique_box(&View::for_tests(role), &status(), &UniqueRule::of_key("k"), key).into_string()
    }

    #[test]
    fn box_names_the_tasks_of_the_key_and_the_place_of_this_one() {
        let text = shown(Role::Operate, Some(&key(&[ID], Some("echo~k~~b"))));
        assert!(text.contains("stands for the key while it is open") && text.contains(">this task<"), "{text}");
        assert!(text.contains("href=\"/tasks/echo~k~~b\"") && text.contains("after the open one"), "{text}");
        assert!(text.contains("1 started · 2 kept · 1,234 joined"), "{text}");
        let kept = shown(Role::Operate, Some(&key(&["echo~k~~b"], Some(ID))));
        assert!(kept.contains("is kept until the open one has ended"), "{kept}");
        let other = shown(Role::Operate, Some(&key(&["echo~k~~b"], None)));
        assert!(other.contains("no longer stands for the key"), "{other}");
    }

    #[test]
    fn key_is_forgotten_by_operators_while_there_is_one() {
        let known = key(&[ID], None);
        assert!(shown(Role::Operate, Some(&known)).contains("/forget-key\""));
        assert!(!shown(Role::Submit, Some(&known)).contains("/forget-key\""));
        let forgotten = shown(Role::Operate, None);
        assert!(
            forgotten.contains("the next submission starts at once") && !forgotten.contains("/forget-key"),
            "{forgotten}"
        );
    }

    #[test]
    fn ended_task_is_joined_only_for_the_time_of_its_rule() {
        let rule = UniqueRule::of_key("k").with_for(Millis::secs(600));
        let ended = UniqueKeyDocument { open: Vec::new(), ..key(&[ID], None) };
        let text = standing(&status(), &rule, Some(&ended)).into_string();
        assert!(text.contains("submissions before <time datetime=\"2026-01-31T13:23:04.000Z\""), "{text}");
        let text = standing(&status(), &UniqueRule::of_key("k"), Some(&ended)).into_string();
        assert_eq!(text, "no longer stands for the key");
        let later = UniqueKeyDocument { last: Some("echo~k~~b".into()), ..ended };
        assert_eq!(standing(&status(), &rule, Some(&later)).into_string(), "no longer stands for the key");
    }

    #[test]
    fn tasks_of_a_key_are_found_by_the_beginning_of_their_ids() {
        let url = all_of_key(&View::for_tests(Role::Read), &status()).unwrap();
        assert_eq!(url, "/tasks?q=type%3Aecho+level%3Aroots+echo%7Ek%7E%7E");
    }
}
