//! Durations and counts of the pages agree with the log, as read by [`log`], and state their scope.

mod log;

use std::collections::{BTreeMap, BTreeSet};

use kafleet::documents::Status;
use kafleet::model::units::time::time_text;
use kafleet::runtime::now_ms;

use crate::api::fixture::eventually;
use crate::ui::browser::{Browser, Page};
use crate::ui::shop::{Shop, shop};
use log::{Outcome, TaskLog};

/// Trees of the shop: one that failed, one with a continuation, and one whose payment waits for its next attempt.
const TREES: [&str; 4] = ["ada", "ken", "alan", "order"];

/// Tasks whose first attempt is written as `started`, and that have ended.
const ENDED: [&str; 3] = ["ada:charge", "ada:pack", "ken:pack"];

/// Open shop, with the continuation that the order `ken` has added.
async fn settled_shop() -> Shop {
    let shop = shop().await;
    eventually("the continuation", async || {
        let status = shop.fleet.request(reqwest::Method::GET, "/v1/tasks/ken:then").send().await.unwrap();
        status.json::<Status>().await.is_ok_and(|task| task.task_type.as_deref() == Some("mail"))
    })
    .await;
    shop.fleet.folded().await;
    shop
}

/// Text of HTML without its tags.
fn text_of(html: &str) -> String {
    let mut text = String::new();
    for part in html.split('<') {
        text.push(' ');
        text.push_str(part.split_once('>').map_or(part, |(_, text)| text));
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// HTML of the section with this heading.
fn section<'a>(page: &'a Page, heading: &str) -> &'a str {
    let (_, rest) = page.text.split_once(&format!("<h2>{heading}</h2>")).unwrap_or_default();
    rest.split_once("</section>").unwrap_or_default().0
}

/// Number of rows of a table with a heading.
fn rows(html: &str) -> usize {
    html.matches("<tr").count().saturating_sub(1)
}

/// Duration as pages write it: in the two largest units that matter.
fn duration_text(ms: i64) -> String {
    let seconds = ms / 1_000;
    match seconds {
        0 => format!("{ms} ms"),
        1..60 => format!("{seconds}.{} s", ms % 1_000 / 100),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
    }
}

/// Time of day to the millisecond, in UTC.
fn clock(ms: i64) -> String {
    time_text(ms)[11..23].to_owned()
}

#[tokio::test]
async fn attempts_and_history_of_a_task_agree_with_the_log() {
    let shop = settled_shop().await;
    let (log, browser) = (TaskLog::read(&shop.fleet), Browser::new(&shop.fleet));
    for (id, task) in TREES.iter().flat_map(|root| log.tree(root)) {
        let page = browser.open(&format!("/tasks/{id}")).await;
        let (attempts, history) = (task.attempts(), section(&page, "History"));
        assert_eq!(rows(section(&page, "Attempts")), attempts.len(), "{id}: {}", page.text);
        let shown = text_of(section(&page, "Attempts"));
        for attempt in &attempts {
            let texts =
                [attempt.started_ms.map(clock), attempt.ran_ms().map(duration_text), Some(attempt.outcome.into())];
            for text in texts.into_iter().flatten() {
                assert!(shown.contains(&text), "{id}, attempt {}: `{text}` is not in: {shown}", attempt.number);
            }
        }
        // The event of a continuation's record is the tracker's.
        if !task.events.is_empty() {
            assert_eq!(rows(history), task.history().count(), "{id}: {}", text_of(history));
        }
        for event in task.history() {
            // The tracker notes the record of a continuation when it has projected it.
            let is_shown = event.kind == "effect_done" || history.contains(&clock(event.at_ms));
            assert!(is_shown, "{id}: {} at {}", event.kind, clock(event.at_ms));
        }
    }
}

#[tokio::test]
async fn times_of_an_ended_task_agree_with_the_log() {
    let shop = settled_shop().await;
    let (log, browser) = (TaskLog::read(&shop.fleet), Browser::new(&shop.fleet));
    for id in ENDED {
        let task = &log.tasks[id];
        let (started, ended) = (task.started_ms().unwrap(), task.attempts().last().unwrap().ended_ms.unwrap());
        let shown = text_of(&browser.open(&format!("/tasks/{id}")).await.text).to_lowercase();
        for (word, ms) in [("waited", started - task.created_ms), ("ran", ended - started)] {
            let text = format!("{word} {}", duration_text(ms));
            assert!(shown.contains(&text), "{id}: `{text}` is not in: {shown}");
        }
    }
}

#[tokio::test]
async fn timeline_and_counts_of_a_tree_agree_with_the_log() {
    let shop = settled_shop().await;
    let (log, browser) = (TaskLog::read(&shop.fleet), Browser::new(&shop.fleet));
    for root in TREES {
        let timeline = browser.open(&format!("/tasks/{root}/timeline")).await;
        for (id, task) in log.tree(root) {
            for attempt in task.attempts() {
                let Some(ms) = attempt.ran_ms() else { continue };
                let text = format!("attempt {}: {}, {}", attempt.number, attempt.outcome, duration_text(ms));
                assert!(timeline.text.contains(&text), "{id}: `{text}` is not in: {}", timeline.text);
            }
        }
        let outcomes: Vec<Outcome> = log.tree(root).map(|(id, _)| log.outcome(id)).collect();
        let of = |outcome| outcomes.iter().filter(|other| **other == outcome).count();
        let (succeeded, failed, open) = (of(Outcome::Succeeded), of(Outcome::Failed), of(Outcome::Open));
        let text = format!("{} tasks: {succeeded} succeeded, {failed} failed, {open} open", outcomes.len());
        let tree = text_of(&browser.open(&format!("/tasks/{root}/tree")).await.text);
        assert!(tree.contains(&text), "{root}: `{text}` is not in: {tree}");
    }
}

/// Headings and row of a type in a list of types, which is the only table with open tasks.
fn row_of_type<'a>(page: &'a Page, task_type: &str) -> (&'a str, &'a str) {
    let link = format!("href=\"/types/{task_type}\"");
    let row_at = |(at, _): (usize, &str)| {
        let start = page.text[..at].rfind("<tr")?;
        let row = page.text[start..].split_once("</tr>")?.0;
        let head = page.text[..start].rsplit_once("<thead")?.1.split_once("</thead>")?.0;
        (row.contains(&link) && text_of(head).contains("Open")).then_some((head, row))
    };
    let found = page.text.match_indices(&link).find_map(row_at);
    found.unwrap_or_else(|| panic!("{task_type} has no row in: {}", page.text))
}

/// Texts of the columns of the row of a type, by their headings.
fn columns(page: &Page, task_type: &str) -> BTreeMap<String, String> {
    let (head, row) = row_of_type(page, task_type);
    let texts = |html: &str, tag: &str| -> Vec<String> {
        let text = |part: &str| text_of(&format!("<{}", part.split_once(&format!("</{tag}>")).unwrap_or((part, "")).0));
        html.split(&format!("<{tag}")).skip(1).map(text).collect()
    };
    texts(head, "th").into_iter().zip(texts(row, "td")).collect()
}

/// Number at the beginning of a column; a dash is none.
fn number(row: &BTreeMap<String, String>, heading: &str) -> usize {
    let text = row.get(heading).unwrap_or_else(|| panic!("no column {heading}: {row:?}"));
    text.split(' ').next().unwrap_or_default().replace(',', "").parse().unwrap_or_default()
}

/// Number of the present minute.
fn minute() -> i64 {
    now_ms().div_euclid(60_000)
}

/// Opens a page, again if the minute ends meanwhile; returns it with the minute of its statistics.
async fn open_within_a_minute(browser: &Browser<'_>, path: &str) -> (Page, i64) {
    loop {
        let begun = minute();
        let page = browser.open(path).await;
        if minute() == begun {
            return (page, begun - 1);
        }
    }
}

#[tokio::test]
async fn numbers_of_types_agree_with_the_log() {
    let shop = settled_shop().await;
    let (log, browser) = (TaskLog::read(&shop.fleet), Browser::new(&shop.fleet));
    let (page, last_minute) = open_within_a_minute(&browser, "/types").await;
    for task_type in ["order", "charge", "pack", "mail"] {
        let row = columns(&page, task_type);
        let open = log.of_type(task_type).filter(|(id, _)| log.outcome(id) == Outcome::Open).count();
        let failed = log.of_type(task_type).filter(|(_, task)| task.own_outcome() == Outcome::Failed).count();
        assert_eq!((number(&row, "Open"), number(&row, "Failed")), (open, failed), "{task_type}: {row:?}");
    }
    // Types whose tasks are only opened and ended.
    for task_type in ["order", "charge"] {
        let row = columns(&page, task_type);
        let count = |kinds: &[&str]| {
            let events = log.of_type(task_type).flat_map(|(_, task)| &task.events);
            let is_counted = |event: &&log::LoggedEvent| event.log_ms.div_euclid(60_000) == last_minute;
            events.filter(is_counted).filter(|event| kinds.contains(&event.kind.as_str())).count()
        };
        let shown = ["In/min", "Ended/min", "Failed/min"].map(|heading| number(&row, heading));
        let expected = [count(&["submitted"]), count(&["succeeded", "failed"]), count(&["failed"])];
        assert_eq!(shown, expected, "{task_type}, of the last full minute: {row:?}");
    }
}

#[tokio::test]
async fn numbers_of_failures_agree_with_the_log() {
    let shop = settled_shop().await;
    let (log, browser) = (TaskLog::read(&shop.fleet), Browser::new(&shop.fleet));
    let failed = || log.tasks.values().filter(|task| task.own_outcome() == Outcome::Failed);
    let kinds: BTreeSet<(&str, &str)> = failed().map(|task| (task.task_type.as_str(), task.error_kind())).collect();
    let page = text_of(&browser.open("/failures").await.text);
    let text = format!("{} tasks, {} kinds of errors", failed().count(), kinds.len());
    assert!(page.contains(&text), "`{text}` is not in: {page}");
    for (task_type, kind) in kinds {
        let of_kind = failed().filter(|task| (task.task_type.as_str(), task.error_kind()) == (task_type, kind)).count();
        let page = text_of(&browser.open(&format!("/failures?type={task_type}&kind={kind}")).await.text);
        assert!(page.contains(&format!("{of_kind} task")), "{task_type} {kind}: {of_kind} tasks are not in: {page}");
    }
}

#[tokio::test]
async fn numbers_of_the_overview_agree_with_the_log() {
    let shop = settled_shop().await;
    let (log, browser) = (TaskLog::read(&shop.fleet), Browser::new(&shop.fleet));
    // The end of a bulk action is not an attempt's.
    let is_open = |id: &&String| **id != shop.bulk && log.outcome(id) == Outcome::Open;
    let open = log.tasks.keys().filter(is_open).count();
    let (page, _) = open_within_a_minute(&browser, "/").await;
    let text = text_of(&page.text);
    let ids: Vec<&String> = log.tasks.keys().filter(is_open).collect();
    assert!(text.contains(&format!("{open} open tasks")), "{open} open tasks, {ids:?}, are not in: {text}");
    for words in ["opened last minute", "ended last minute"] {
        assert!(text.contains(words), "`{words}` is not in: {text}");
    }
    let row = columns(&page, "charge");
    let failed = log.of_type("charge").filter(|(_, task)| task.own_outcome() == Outcome::Failed).count();
    assert_eq!(number(&row, "Failed"), failed, "{row:?}");
}

#[tokio::test]
async fn numbers_of_a_bulk_action_agree_with_the_log() {
    let shop = settled_shop().await;
    let log = TaskLog::read(&shop.fleet);
    let retried = log.tasks["parcel"].events.iter().filter(|event| event.kind == "retry_requested").count();
    let page = Browser::new(&shop.fleet).open(&format!("/bulk/{}", shop.bulk)).await;
    page.has(&[&format!("{retried} done")]);
}

#[tokio::test]
async fn every_number_of_a_type_states_its_scope() {
    let shop = settled_shop().await;
    let browser = Browser::new(&shop.fleet);
    for path in ["/", "/types"] {
        let page = browser.open(path).await;
        let (head, _) = row_of_type(&page, "charge");
        let headings: Vec<&str> = head.split("<th").filter(|heading| heading.contains("number")).collect();
        assert!(headings.len() >= 8, "{path}: {headings:?}");
        for heading in headings {
            assert!(heading.contains("title=\""), "{path}: the span of a number is not stated: {heading}");
        }
    }
}
