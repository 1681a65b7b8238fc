//! Task types: the list, and what lists of types have in common.

use std::collections::BTreeMap;
use std::sync::Arc;

use kafleet_api::http::problem::ApiError;
use kafleet_api::http::request::bad_parameter;
use kafleet_api::service::queue::brief_queues;
use kafleet_api::service::{flow, types};
use kafleet_documents::{QueueDocument, StatsPoint, TypeDocument};
use kafleet_model::record::state::State;
use maud::{Markup, Render, html};

use super::overview::open_of;
use crate::parts::bar::usage;
use crate::parts::command::{commands, curl_get};
use crate::parts::form::{Input, filter_buttons};
use crate::parts::natural::natural_order;
use crate::parts::notice::empty;
use crate::parts::queue::{queue_columns, trend};
use crate::parts::state::label;
use crate::parts::statistics::{failed, ms_text};
use crate::parts::table::{PagedList, dense_table};
use crate::parts::{View, count, counted, first_line, search_text, tally};
use crate::visit::{Body, Fields, PageAnswer, Visit, stored};

pub(super) const COLUMNS: &[&str] = &[
    "Type",
    "Condition|now",
    "#Open|now, all levels",
    "#Queued|now, all levels",
    "#Running|now, all levels",
    "#Lag|unfinished records in Kafka, at most 15 s ago",
    "#Oldest|oldest unfinished record in Kafka",
    "#In/min|tasks opened in the last full minute",
    "#Ended/min|tasks ended in the last full minute",
    "#Failed/min|tasks that failed by themselves in the last full minute, and their share of the ended",
    "Trend|last 5 full minutes",
    "#Wait p95|last full minute",
    "#Run p95|last full minute",
    "#Slots|now, used of those of the live workers, with the rate limit",
    "#Failed|all retained tasks that failed by themselves",
];

/// Types whose queues are sampled for a list.
const SAMPLED_TYPES: usize = 20;
pub(in super::super) async fn list(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let view = &visit.view;
    let choice = Choice::of(&visit.query)?;
    let (types, minutes) = tokio::join!(stored(types::measured_types(&visit.api)), last_minutes(visit));
    let types = types?.types;
    let has_types = !types.is_empty();
    let page = PagedList::new(choice.select(types, minutes.as_ref()), visit.page_number());
    let figures = Figures { minutes, queues: queues_of(visit, &page.items).await };
    let main = html! {
        h1 { "Types" }
        @if !has_types {
            (empty("No type has a topic or a task. Configure types in kafleet.toml, then create their topics:", &["kafleet topics apply"]))
        } @else {
            (choice.controls(view))
            section.panel { (listed(view, &page, &choice, &figures)) }
        }
        (commands(&["kafleet types", "kafleet backlog", "kafleet stats", &curl_get("/v1/types")].map(str::to_owned)))
    };
    Ok(Body::new("Types", main).into())
}

fn listed(view: &View, page: &PagedList<TypeDocument>, choice: &Choice<'_>, figures: &Figures) -> Markup {
    let rows: Vec<Markup> = page.items.iter().map(|listed| row(view, listed, figures)).collect();
    html! {
        @if rows.is_empty() { p.quiet { "No type has this text in its name, app or description." } }
        @else { (dense_table(COLUMNS, &rows)) }
        (page.pager_of(view, "/types", &choice.query(choice.sort), "types", choice.sort.words()))
    }
}

/// Order of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    Trouble,
    Name,
    Open,
    Opened,
    Failed,
    RunTime,
}

impl Sort {
    const ALL: [Self; 6] = [Self::Trouble, Self::Name, Self::Open, Self::Opened, Self::Failed, Self::RunTime];

    /// Value of the parameter `sort`.
    const fn name(self) -> &'static str {
        match self {
            Self::Trouble => "trouble",
            Self::Name => "name",
            Self::Open => "open",
            Self::Opened => "opened",
            Self::Failed => "failed",
            Self::RunTime => "run",
        }
    }

    const fn words(self) -> &'static str {
        match self {
            Self::Trouble => "those in trouble first",
            Self::Name => "by name",
            Self::Open => "most open tasks first",
            Self::Opened => "most tasks opened last minute first",
            Self::Failed => "most failed tasks first",
            Self::RunTime => "longest run time first",
        }
    }
}

/// Types that the URL asks for, and their order.
struct Choice<'a> {
    sort: Sort,
    text: Option<&'a str>,
}

impl<'a> Choice<'a> {
    fn of(query: &'a Fields) -> Result<Self, ApiError> {
        let named = |name: &str| Sort::ALL.into_iter().find(|sort| sort.name() == name);
        let unknown = || {
            let names = Sort::ALL.map(Sort::name).join(", ");
            bad_parameter("sort", &format!("use one of {names}"))
        };
        let sort = query.get("sort").map_or(Ok(Sort::Trouble), |name| named(name).ok_or_else(unknown))?;
        Ok(Self { sort, text: query.get("text").map(str::trim) })
    }

    /// Types with the text, in the order.
    fn select(&self, mut types: Vec<TypeDocument>, minutes: Option<&Minutes>) -> Vec<TypeDocument> {
        let text = self.text.map(str::to_lowercase).unwrap_or_default();
        let has_text = |part: &str| part.to_lowercase().contains(&text);
        types.retain(|listed| {
            has_text(&listed.name) || [&listed.app, &listed.doc].into_iter().flatten().any(|part| has_text(part))
        });
        let of_minute = |listed: &TypeDocument, value: fn(&StatsPoint) -> u64| {
            minutes.and_then(|minutes| minutes.points.get(&listed.name)).map_or(0, value)
        };
        let rank = |listed: &TypeDocument| match self.sort {
            Sort::Trouble => urgency(listed).into(),
            Sort::Name => 0,
            Sort::Open => u64::MAX - open_of(&listed.counts),
            Sort::Opened => u64::MAX - of_minute(listed, |minute| minute.opened),
            Sort::Failed => u64::MAX - listed.own_failed.map_or(0, |failed| failed.tasks),
            Sort::RunTime => u64::MAX - of_minute(listed, |minute| minute.run.p95.unwrap_or_default()),
        };
        types.sort_by(|one, other| natural_order(&one.name, &other.name));
        types.sort_by_cached_key(rank);
        types
    }

    /// Parameters of the list in this order.
    fn query(&self, sort: Sort) -> Vec<(&'static str, &'a str)> {
        let sort = (sort != Sort::Trouble).then(|| ("sort", sort.name()));
        self.text.map(|text| ("text", text)).into_iter().chain(sort).collect()
    }

    fn controls(&self, view: &View) -> Markup {
        html! {
            form.filters method="get" action=(view.url("/types")) role="search" aria-label="Filters" {
                (Input::new("text", "Text", self.text).hint("name, app or description").render())
                @if self.sort != Sort::Trouble { input type="hidden" name="sort" value=(self.sort.name()); }
                (filter_buttons(self.text.map(|_| view.url_with("/types", &Choice { text: None, ..*self }.query(self.sort))).as_deref()))
            }
            div.head.choices {
                nav.ranges aria-label="order" {
                    span.quiet { "sort by" }
                    @for sort in Sort::ALL {
                        a href=(view.url_with("/types", &self.query(sort))) title=(sort.words())
                            aria-current=[(sort == self.sort).then_some("true")] { (sort.name()) }
                    }
                }
            }
        }
    }
}

/// Figures of types beside their counts.
pub(super) struct Figures {
    /// Statistics of the last full minute. `None`: they cannot be read.
    pub minutes: Option<Minutes>,
    pub queues: BTreeMap<String, Arc<QueueDocument>>,
}

impl Figures {
    /// Statistics of a type in the last full minute, if they are known.
    fn minute_of(&self, name: &str) -> Option<StatsPoint> {
        self.minutes.as_ref()?.of(name)
    }
}

/// Statistics of types in one minute.
#[derive(Default)]
pub(super) struct Minutes {
    points: BTreeMap<String, StatsPoint>,
    /// Types without a point had no task in the minute, unless some types are left out.
    is_complete: bool,
}

impl Minutes {
    pub(super) fn of(&self, name: &str) -> Option<StatsPoint> {
        self.points.get(name).cloned().or_else(|| self.is_complete.then(StatsPoint::default))
    }
}

#[cfg(test)]
impl Minutes {
    /// Minute of a single type.
    pub(super) fn of_type(name: &str, point: StatsPoint) -> Self {
        Self { points: [(name.to_owned(), point)].into(), is_complete: true }
    }
}

/// Queues of the types that are sampled for a list, first those with a backlog. Those without one may have records, too.
pub(super) async fn queues_of(visit: &Visit, listed: &[TypeDocument]) -> BTreeMap<String, Arc<QueueDocument>> {
    brief_queues(&visit.api, sampled_of(listed)).await
}

/// Names of the types that a list samples.
fn sampled_of(listed: &[TypeDocument]) -> Vec<String> {
    let mut with_topic: Vec<&TypeDocument> = listed.iter().filter(|listed| listed.topic).collect();
    with_topic.sort_by_key(|listed| listed.backlog == 0);
    with_topic.into_iter().take(SAMPLED_TYPES).map(|listed| listed.name.clone()).collect()
}

/// Rank of a type in the list: those in trouble first.
fn urgency(task_type: &TypeDocument) -> u8 {
    match condition(task_type).0 {
        "bad" => 0,
        "attention" => 1,
        _ => 2,
    }
}

/// Tone and words of a type's condition.
fn condition(task_type: &TypeDocument) -> (&'static str, String) {
    if task_type.paused.is_some() {
        return ("attention", "‖\u{fe0e} paused".to_owned());
    }
    match &task_type.worker_totals {
        Some(totals) if totals.stopped > 0 => {
            ("bad", format!("✘\u{fe0e} stopped on {} of {}", totals.stopped, totals.workers))
        }
        Some(totals) if totals.circuit_open > 0 => {
            ("attention", format!("‖\u{fe0e} circuit open on {} of {}", totals.circuit_open, totals.workers))
        }
        Some(totals) if !totals.refused.is_empty() => ("bad", "✘\u{fe0e} refused partitions".to_owned()),
        Some(totals) if totals.in_flight > 0 => ("good", "●\u{fe0e} working".to_owned()),
        Some(_) => ("neutral", "○\u{fe0e} idle".to_owned()),
        None if !task_type.topic => ("neutral", "·\u{fe0e} external".to_owned()),
        None if task_type.backlog > 0 => ("bad", "✘\u{fe0e} no worker".to_owned()),
        None => ("neutral", "○\u{fe0e} idle, no worker".to_owned()),
    }
}

/// Condition in a list; as a card, with the number of workers.
fn short_condition(task_type: &TypeDocument) -> Markup {
    let (tone, words) = condition(task_type);
    html! {
        (label(tone, &words))
        @if let Some(totals) = &task_type.worker_totals { span.unit { " " (counted(totals.workers, "worker", "workers")) } }
    }
}

/// Condition, with the number of workers beside it.
pub(super) fn condition_label(task_type: &TypeDocument) -> Markup {
    let (tone, words) = condition(task_type);
    html! {
        (label(tone, &words))
        @if let Some(totals) = &task_type.worker_totals { span.quiet { " " (counted(totals.workers, "worker", "workers")) } }
    }
}

pub(super) fn row(view: &View, task_type: &TypeDocument, figures: &Figures) -> Markup {
    let minute = figures.minute_of(&task_type.name);
    let of = |state: State| task_type.counts.get(&state).copied().unwrap_or_default();
    let number = |n: u64| html! { td.number { (tally(n)) } };
    let of_minute = |value: fn(&StatsPoint) -> u64| {
        html! { td.number { @match &minute { Some(minute) => { (tally(value(minute))) } None => { span.quiet { "–" } } } } }
    };
    html! {
        tr id={ "y-" (task_type.name) } {
            td.id {
                a href=(view.url(&format!("/types/{}", task_type.name))) { (task_type.name) }
                @if let Some(doc) = &task_type.doc { span.doc title=(first_line(doc, 400)) { (first_line(doc, 120)) } }
            }
            td.condition title=[workers_text(task_type)] { (short_condition(task_type)) }
            (number(open_of(&task_type.counts)))
            (number(of(State::Queued)))
            (number(of(State::Running) + of(State::Warning)))
            (queue_columns(figures.queues.get(&task_type.name).map(|queue| &**queue)))
            (of_minute(|minute| minute.opened))
            (of_minute(StatsPoint::ended))
            td.number { (failed_share(minute.as_ref())) }
            td { (trend(task_type.flow.as_ref())) }
            (percentile(minute.as_ref().and_then(|minute| minute.wait.p95)))
            (percentile(minute.as_ref().and_then(|minute| minute.run.p95)))
            td.number {
                (slots(task_type))
                @if let Some(rate) = task_type.limits.rate { span.doc { (rate.count) " per " (rate.per) } }
            }
            td.number { (failed_link(view, task_type)) }
        }
    }
}

/// Tasks that failed by themselves in a minute, and their share of those that ended.
fn failed_share(minute: Option<&StatsPoint>) -> Markup {
    html! {
        @match minute {
            Some(minute) if failed(minute) == 0 => { (tally(0)) }
            Some(minute) => {
                span.bad { (count(failed(minute))) }
                span.quiet { " (" (share(failed(minute), minute.ended())) ")" }
            }
            None => { span.quiet { "–" } }
        }
    }
}

/// Part of a whole in percent. A part that is not zero is not shown as such.
fn share(part: u64, of: u64) -> String {
    match part as f64 / of.max(1) as f64 * 100.0 {
        small if part > 0 && small < 0.1 => "< 0.1 %".to_owned(),
        percent => format!("{percent:.1} %"),
    }
}

/// Retained tasks that failed by themselves, as a link to them.
fn failed_link(view: &View, task_type: &TypeDocument) -> Markup {
    let search = || search_text(&[("type", &task_type.name), ("own", "failed,expired"), ("level", "any")]);
    html! {
        @match task_type.own_failed {
            Some(failed) if failed.tasks == 0 => { (tally(0)) }
            Some(failed) => { a.bad href=(view.search(&search())) { @if failed.at_least { "≥ " } (count(failed.tasks)) } }
            None => { span.quiet { "–" } }
        }
    }
}

/// Number of the live workers of a type, which a list shows as a tooltip.
fn workers_text(task_type: &TypeDocument) -> Option<String> {
    task_type.worker_totals.as_ref().map(|totals| counted(totals.workers, "live worker", "live workers"))
}

fn slots(task_type: &TypeDocument) -> Markup {
    match &task_type.worker_totals {
        Some(totals) => usage(totals.in_flight, totals.slots),
        None => html! { span.quiet { "–" } },
    }
}

fn percentile(ms: Option<u64>) -> Markup {
    html! {
        td.number { @match ms { Some(ms) => { (ms_text(ms)) } None => { span.quiet { "–" } } } }
    }
}

/// Statistics of each type in the last full minute. `None`: they cannot be read.
pub(super) async fn last_minutes(visit: &Visit) -> Option<Minutes> {
    let stats = stored(flow::last_minutes(&visit.api)).await.ok()?;
    let newest =
        stats.series.iter().filter_map(|series| Some((series.task_type.clone(), series.points.last()?.clone())));
    Some(Minutes { points: newest.collect(), is_complete: stats.left_out == 0 })
}

pub(super) async fn find(visit: &Visit) -> Result<TypeDocument, ApiError> {
    stored(types::type_of(&visit.api, &visit.segment)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn task_type(change: serde_json::Value) -> TypeDocument {
        let mut document = json!({"type": "a", "topic": true, "counts": {}, "backlog": 0});
        document.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        serde_json::from_value(document).unwrap()
    }

    fn names(query: &str, types: &[TypeDocument]) -> Vec<String> {
        let fields = Fields::parse(query.as_bytes());
        let chosen = Choice::of(&fields).ok().unwrap().select(types.to_vec(), None);
        chosen.into_iter().map(|listed| listed.name).collect()
    }

    #[test]
    fn types_are_sorted_and_filtered_as_the_url_asks() {
        let types = [
            task_type(json!({"type": "pack", "counts": {"queued": 3}, "doc": "Packs an Order"})),
            task_type(json!({"type": "mail", "backlog": 7, "counts": {"queued": 7}})),
            task_type(json!({"type": "charge", "own_failed": {"tasks": 2, "at_least": false}, "app": "shop"})),
        ];
        assert_eq!(names("", &types), ["mail", "charge", "pack"], "a queue without a worker is trouble");
        assert_eq!(names("sort=name", &types), ["charge", "mail", "pack"]);
        assert_eq!(names("sort=open", &types), ["mail", "pack", "charge"]);
        assert_eq!(names("sort=failed", &types), ["charge", "mail", "pack"]);
        assert_eq!(
            (names("text=order", &types), names("text=SHOP", &types)),
            (vec!["pack".into()], vec!["charge".into()])
        );
        assert!(Choice::of(&Fields::parse(b"sort=odd")).is_err());
        let numbered = ["supplier-10", "supplier-1", "supplier-2"].map(|name| task_type(json!({"type": name})));
        assert_eq!(names("", &numbered), ["supplier-1", "supplier-2", "supplier-10"]);
    }

    #[test]
    fn dash_stands_for_what_is_not_known_and_never_for_zero() {
        let listed = task_type(json!({"own_failed": {"tasks": 0, "at_least": false}}));
        let values = |minutes: Option<Minutes>| {
            let figures = Figures { minutes, queues: BTreeMap::new() };
            let drawn = row(&View::for_tests(kafleet_config::Role::Read), &listed, &figures).into_string();
            (drawn.matches(">0</span>").count(), drawn.matches(">–</span>").count())
        };
        let busy = StatsPoint { opened: 1, succeeded: 1, failed: 1, ..StatsPoint::default() };
        let minutes = |is_complete| Minutes { points: [("b".to_owned(), busy.clone())].into(), is_complete };
        // Open, queued, running and failed are known; lag, oldest, trend, percentiles and slots are not.
        assert_eq!(values(None), (4, 9), "without statistics");
        assert_eq!(values(Some(minutes(false))), (4, 9), "one of the types left out");
        assert_eq!(values(Some(minutes(true))), (7, 6), "no task in the minute");
        assert!(failed_share(Some(&busy)).into_string().contains("(50.0 %)"));
        assert_eq!([share(12, 30_000), share(0, 9), share(1, 1)], ["< 0.1 %", "0.0 %", "100.0 %"]);
    }

    #[test]
    fn list_samples_types_with_a_backlog_first() {
        let mut types: Vec<_> = (0..30).map(|n| task_type(json!({"type": format!("idle-{n}")}))).collect();
        types.push(task_type(json!({"type": "busy", "backlog": 2})));
        types.push(task_type(json!({"type": "external", "backlog": 2, "topic": false})));
        let names = sampled_of(&types);
        assert_eq!((names.len(), &names[..2]), (SAMPLED_TYPES, &["busy".to_owned(), "idle-0".to_owned()][..]));
    }

    #[test]
    fn words_for_a_type_without_a_worker_depend_on_its_backlog() {
        assert_eq!(condition(&task_type(json!({"backlog": 1}))), ("bad", "✘\u{fe0e} no worker".to_owned()));
        assert_eq!(condition(&task_type(json!({}))), ("neutral", "○\u{fe0e} idle, no worker".to_owned()));
    }

    #[test]
    fn row_shows_description_and_rate_limit() {
        let limits = json!({"slots": null, "max_concurrency": null, "live": [], "rate": {"count": 100, "per": "1s"}});
        let listed = task_type(json!({"doc": "Packs <b>", "limits": limits}));
        let figures = Figures { minutes: None, queues: BTreeMap::new() };
        let drawn = row(&View::for_tests(kafleet_config::Role::Read), &listed, &figures).into_string();
        assert!(drawn.contains(">Packs &lt;b&gt;</span>") && drawn.contains("100 per 1s"), "{drawn}");
    }
}
