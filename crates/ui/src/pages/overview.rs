//! Overview of the fleet: troubles, open tasks, statistics, busiest types, newest errors.

use std::collections::BTreeMap;
use std::sync::Arc;

use kafleet_api::http::problem::ApiError;
use kafleet_api::read::failures::newest_failures;
use kafleet_api::service::statistics::{Series, StatsQuery};
use kafleet_api::service::{operations, schedules, types, workers};
use kafleet_config::Role;
use kafleet_documents::{
    Audit, FailureGroup, Failures, FlowVerdict, KillSwitchDocument, KillSwitches, ScheduleDocument, Schedules, Stats,
    TypeDocument, Types, WorkerDocument, WorkerState, WorkerTotals, Workers,
};
use kafleet_model::record::state::State;
use kafleet_model::units::duration::Millis;
use kafleet_runtime::now_ms;
use maud::{Markup, html};

use super::changes::{changes_of, last_hour, newest_requests, paused_by};
use super::charts::{cached_stats, charts_of};
use super::types::{Figures, last_minutes};
use crate::parts::bar::{in_order, state_bar};
use crate::parts::command::{commands, curl_get};
use crate::parts::failures::{self, group_query, group_row, is_back, is_new, kind_text};
use crate::parts::notice::{missing, no_task};
use crate::parts::state::label;
use crate::parts::statistics::{Tile, last_minute};
use crate::parts::table::{cards, table};
use crate::parts::tasks::{state_counts, type_link, worker_link};
use crate::parts::times::{millis, time};
use crate::parts::{View, count, counted, first_line, search_text, visible};
use crate::visit::{Body, PageAnswer, Visit, from_kafka, stored};

/// Types listed, those with the most open tasks.
const LISTED_TYPES: usize = 20;
/// Newest errors listed.
const LISTED_ERRORS: usize = 10;
/// Kinds of errors that need attention, and the time since their first task.
const NEW_ERRORS: usize = 5;
const NEW_ERROR_MS: i64 = 3_600_000;
/// Lag of the projection that needs attention.
const MAX_BEHIND_MS: i64 = 60_000;

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let (view, api) = (&visit.view, &visit.api);
    let (types, kills, schedules, failures, minutes, requests) = tokio::join!(
        stored(types::measured_types(api)),
        from_kafka(operations::list_kill_switches(visit.context())),
        stored(schedules::list(visit.context())),
        stored(newest_failures(&api.reads, LISTED_ERRORS)),
        last_minutes(visit),
        newest_requests(visit),
    );
    let workers = workers::worker_list(api);
    let changes = changes_of(requests.as_deref(), &workers, None);
    let busiest_types = types.as_ref().map_or_else(|_| Vec::new(), |types| busiest_of(&types.types));
    let (all, queues, charts) = tokio::join!(
        last_minute_of_all(visit),
        super::types::queues_of(visit, &busiest_types),
        charts_of(visit, "/", None, &changes),
    );
    let minute = all.as_ref().and_then(|stats| stats.series.first()?.points.last());
    let figures = Figures { minutes, queues };
    let troubles = Warnings {
        workers: &workers,
        types: types.as_ref().ok(),
        schedules: schedules.as_ref().ok(),
        kills: kills.as_ref().ok(),
        failures: failures.as_ref().ok(),
        projected_to: all.as_ref().map(|stats| stats.complete_to.as_str()),
        requests: requests.as_deref(),
    };
    let main = html! {
        h1.hidden { "Overview" }
        (attention(&troubles.items(view), troubles.all_is_well(&figures)))
        (last_hour(view, &changes))
        @match &types {
            Ok(types) => {
                (numbers(view, types, &workers, all.as_ref().map(|_| last_minute(view, minute, charts.past().as_ref()))))
                (charts.markup)
                (busiest(view, &busiest_types, &figures))
            }
            Err(error) => { (missing("Tasks and types", &error.clone().document())) }
        }
        (newest_errors(view, &failures))
        (commands(&["kafleet types".to_owned(), "kafleet stats".to_owned(), "kafleet failures".to_owned(), curl_get("/v1/stats")]))
    };
    Ok(Body::new("Overview", main).into())
}

/// Documents with troubles that need an operator; None where they could not be read.
struct Warnings<'a> {
    workers: &'a Workers,
    types: Option<&'a Types>,
    schedules: Option<&'a Schedules>,
    kills: Option<&'a KillSwitches>,
    failures: Option<&'a Failures>,
    /// Time up to which all events are projected.
    projected_to: Option<&'a str>,
    /// Newest requests, which name who has paused a type.
    requests: Option<&'a Audit>,
}

/// Trouble that needs attention.
struct Trouble {
    /// Something fails or does not run, as opposed to what an operator has set.
    is_bad: bool,
    text: Markup,
}

impl Trouble {
    fn bad(text: Markup) -> Self {
        Self { is_bad: true, text }
    }

    fn attention(text: Markup) -> Self {
        Self { is_bad: false, text }
    }
}

impl Warnings<'_> {
    /// Returns what needs attention, the bad first.
    fn items(&self, view: &View) -> Vec<Trouble> {
        let workers = self.workers.workers.iter().filter(|worker| worker.state == WorkerState::Silent);
        let types = self.types.iter().flat_map(|types| &types.types);
        let schedules = self.schedules.iter().flat_map(|schedules| &schedules.schedules);
        let kills = self.kills.iter().flat_map(|kills| &kills.kills);
        let lag = self.projected_to.and_then(|to| projection_lag(view, to));
        let mut items: Vec<Trouble> = lag.into_iter().map(Trouble::bad).collect();
        items.extend(workers.map(|worker| Trouble::bad(silent(view, worker))));
        items.extend(types.flat_map(|task_type| type_troubles(view, task_type, self.requests)));
        items.extend(apps_down(view, self.workers).into_iter().map(Trouble::bad));
        items.extend(schedules.filter_map(|schedule| schedule_trouble(view, schedule)).map(Trouble::bad));
        items.extend(kills.map(|kill| Trouble::attention(kill_switch(view, kill))));
        let errors = self.failures.iter().flat_map(|failures| new_errors(view, failures));
        items.extend(errors.map(Trouble::bad));
        items.sort_by_key(|item| !item.is_bad);
        items
    }

    /// Sentence for a fleet without troubles. `None` if something could not be read.
    fn all_is_well(&self, figures: &Figures) -> Option<String> {
        let types = self.types?;
        let _ = (self.schedules?, self.kills?, self.failures?, self.projected_to?);
        let alive = self.workers.workers.iter().filter(|worker| worker.state == WorkerState::Alive).count() as u64;
        let waiting = || types.types.iter().filter(|listed| listed.topic && listed.backlog > 0);
        let backlog = if waiting().all(|listed| figures.queues.contains_key(&listed.name)) {
            format!("lag {}", count(figures.queues.values().map(|queue| queue.lag).sum::<u64>()))
        } else {
            format!("backlog {}", count(waiting().map(|listed| listed.backlog).sum::<u64>()))
        };
        Some(match alive {
            0 => format!("No worker runs; {backlog}, no new error"),
            alive => format!("All is well: {}, {backlog}, no new error", counted(alive, "worker", "workers")),
        })
    }
}

fn attention(items: &[Trouble], all_is_well: Option<String>) -> Markup {
    html! {
        @if !items.is_empty() {
            section.panel.attention #attention {
                h2 { "Needs attention" }
                ul.plain { @for item in items { li { (item.text) } } }
            }
        } @else if let Some(text) = all_is_well {
            p.panel.well #attention { (text) }
        }
    }
}

/// Trouble of trackers that are late, or of a partition that none projects.
fn projection_lag(view: &View, projected_to: &str) -> Option<Markup> {
    let behind = millis(projected_to).is_some_and(|to| to < now_ms() - MAX_BEHIND_MS);
    behind.then(|| {
        html! {
            (label("bad", "✘\u{fe0e} projection")) " is behind: complete to " (time(projected_to))
            ", so newer states and counts are missing here; see "
            a href=(view.url("/system")) { "System" }
        }
    })
}

fn schedule_trouble(view: &View, schedule: &ScheduleDocument) -> Option<Markup> {
    let error = schedule.error.as_ref()?;
    let url = view.url(&format!("/schedules/{}", schedule.id));
    Some(html! {
        (label("bad", "✘\u{fe0e} schedule")) " " a href=(url) { (schedule.id) } " cannot fire: "
        (first_line(error, 200))
    })
}

fn kill_switch(view: &View, kill: &KillSwitchDocument) -> Markup {
    html! {
        (label("attention", "⊘\u{fe0e} kill switch")) " " a href=(view.url("/kill-switches")) { (kill.name) }
        " cancels matching tasks since " (time(&kill.since))
        @if let Some(reason) = &kill.reason { ": " (first_line(reason, 120)) }
    }
}

/// Kinds of errors that are new or back: the first task that is failed now ended in the last hour.
fn new_errors(view: &View, failures: &Failures) -> Vec<Markup> {
    let since = now_ms() - NEW_ERROR_MS;
    let has_begun = |group: &&FailureGroup| millis(&group.first).is_some_and(|first| first >= since);
    failures.groups.iter().filter(has_begun).take(NEW_ERRORS).map(|group| new_error(view, group, since)).collect()
}

fn new_error(view: &View, group: &FailureGroup, since_ms: i64) -> Markup {
    let is_new = is_new(group, since_ms);
    html! {
        (label("bad", if is_new { "✘\u{fe0e} new error" } else { "✘\u{fe0e} error" })) " "
        (type_link(view, Some(&group.task_type))) " · "
        a href=(view.search(&group_query(group))) title=(first_line(&group.text, 400)) { (kind_text(group)) }
        " in " (counted(group.count, "task", "tasks"))
        @if is_back(group) { " back since " } @else { " since " }
        (time(&group.first))
        ", such as " (first_line(&group.text, 120))
    }
}

/// Statistics of the last full minute over all types.
async fn last_minute_of_all(visit: &Visit) -> Option<Arc<Stats>> {
    let end = now_ms().div_euclid(60_000) * 60_000;
    let query =
        StatsQuery { series: Series::All, from_ms: Some(end - 60_000), to_ms: Some(end), step: Some(Millis::secs(60)) };
    stored(cached_stats(visit, query)).await.ok()
}

fn silent(view: &View, worker: &WorkerDocument) -> Markup {
    html! {
        (label("bad", "✘\u{fe0e} silent")) " worker " (worker_link(view, &worker.id)) " has sent no heartbeat since "
        (time(&worker.last_heartbeat_at))
    }
}

fn type_troubles(view: &View, task_type: &TypeDocument, requests: Option<&Audit>) -> Vec<Trouble> {
    let link = html! { a href=(view.url(&format!("/types/{}", task_type.name))) { (task_type.name) } };
    let mut items = Vec::new();
    if let Some(paused) = &task_type.paused {
        items.push(Trouble::attention(html! {
            (label("attention", "‖\u{fe0e} paused")) " " (link)
            @if let Some(by) = paused_by(requests, &task_type.name) { " by " (visible(by)) }
            " since " (time(&paused.since))
            @if let Some(reason) = &paused.reason { ": " (first_line(reason, 120)) }
            @if view.may(Role::Operate) {
                " " a href=(view.url(&format!("/types/{}/resume", task_type.name))) data-dialog { "Resume…" }
            }
        }));
    }
    items.extend(backlog_trouble(task_type, &link));
    match &task_type.worker_totals {
        Some(totals) => items.extend(worker_troubles(&link, totals)),
        None if task_type.topic && task_type.backlog > 0 => items.push(Trouble::bad(html! {
            (label("bad", "✘\u{fe0e} no worker")) " takes " (link) ": " (count(task_type.backlog)) " tasks are queued"
        })),
        None => {}
    }
    items
}

/// Backlog that has grown, or has not moved, for as long as the rates are measured. Without a worker that is the trouble.
fn backlog_trouble(task_type: &TypeDocument, link: &Markup) -> Option<Trouble> {
    let flow = task_type.flow.as_ref().filter(|_| task_type.worker_totals.is_some())?;
    let backlog = counted(flow.backlog, "task", "tasks");
    match flow.verdict {
        FlowVerdict::Growing => Some(Trouble::attention(html! {
            (label("attention", "▲\u{fe0e} backlog grows")) " " (link) ": " (backlog) " since " (time(&flow.since)) ", " (flow.text())
        })),
        FlowVerdict::Stalled => Some(Trouble::bad(html! {
            (label("bad", "✘\u{fe0e} stalled")) " " (link) ": " (backlog) ", and none has ended since " (time(&flow.since))
        })),
        _ => None,
    }
}

/// Types without their app on some workers.
fn apps_down(view: &View, workers: &Workers) -> Vec<Markup> {
    let alive = workers.workers.iter().filter(|worker| worker.state == WorkerState::Alive);
    let mut down: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    for status in alive.flat_map(|worker| &worker.types) {
        if let Some(reason) = &status.app_down {
            down.entry(&status.task_type).or_insert((0, reason)).0 += 1;
        }
    }
    let item = |(name, (n, reason)): (&str, (usize, &str))| {
        html! {
            (label("bad", "✘\u{fe0e} app down")) " " (type_link(view, Some(name))) " on " (n)
            @if n == 1 { " worker: " } @else { " workers: " }
            (first_line(reason, 120))
        }
    };
    down.into_iter().map(item).collect()
}

fn worker_troubles(link: &Markup, totals: &WorkerTotals) -> Vec<Trouble> {
    let mut items = Vec::new();
    if totals.circuit_open > 0 {
        items.push(Trouble::attention(html! {
            (label("attention", "‖\u{fe0e} circuit open")) " " (link) " on " (totals.circuit_open) " of " (totals.workers)
            " workers: the service behind the type does not answer"
        }));
    }
    if totals.stopped > 0 {
        items.push(Trouble::bad(html! {
            (label("bad", "✘\u{fe0e} stopped")) " " (link) " on " (totals.stopped) " of " (totals.workers)
            " workers, after too many failures"
        }));
    }
    if !totals.refused.is_empty() {
        items.push(Trouble::bad(html! {
            (label("bad", "✘\u{fe0e} refused")) " " (link) " has partitions without a start offset: "
            (numbers_text(&totals.refused))
            "; see " code { "kafleet offsets init" }
        }));
    }
    items
}

pub(super) fn numbers_text(numbers: &[i32]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Totals over all types.
pub(super) fn totals<'a>(types: impl IntoIterator<Item = &'a TypeDocument>) -> BTreeMap<State, u64> {
    let mut totals = BTreeMap::new();
    for (state, n) in types.into_iter().flat_map(|task_type| &task_type.counts) {
        *totals.entry(*state).or_default() += n;
    }
    totals.retain(|_, n| *n > 0);
    totals
}

pub(super) fn open_of(counts: &BTreeMap<State, u64>) -> u64 {
    counts.iter().filter(|(state, _)| !state.is_terminal()).map(|(_, n)| n).sum()
}

/// Open tasks, the last full minute, and all retained tasks by state.
fn numbers(view: &View, types: &Types, workers: &Workers, minute: Option<Markup>) -> Markup {
    let totals = totals(&types.types);
    let open = Tile {
        url: view.search("is:open level:any"),
        value: count(open_of(&totals)),
        tone: "",
        name: "open tasks",
        change: None,
    };
    html! {
        section.tiles aria-label="totals" {
            (open.draw())
            @if let Some(minute) = minute { (minute) }
            (capacity(view, workers))
        }
        @if !totals.is_empty() {
            section.panel {
                h2 { "All retained tasks" }
                (state_bar(&totals))
                (state_counts(&in_order(&totals), |state| view.search(&search_text(&[("state", state.name()), ("level", "any")]))))
            }
        }
    }
}

/// Slots of the live workers.
fn capacity(view: &View, workers: &Workers) -> Markup {
    let alive: Vec<&WorkerDocument> =
        workers.workers.iter().filter(|worker| worker.state == WorkerState::Alive).collect();
    let slots = alive.iter().flat_map(|worker| &worker.types).map(|status| u64::from(status.slots)).sum::<u64>();
    let used = alive.iter().map(|worker| worker.in_flight).sum::<u64>();
    let noun = if alive.len() == 1 { "worker" } else { "workers" };
    html! {
        a.tile href=(view.url("/workers")) {
            span.value { (count(used)) span.quiet { " / " (count(slots)) } }
            span.name { "slots, " (count(alive.len())) " " (noun) }
        }
    }
}

/// Types with tasks, those with the most open ones first.
fn busiest_of(listed: &[TypeDocument]) -> Vec<TypeDocument> {
    let mut listed: Vec<&TypeDocument> = listed.iter().filter(|listed| !listed.counts.is_empty()).collect();
    listed.sort_by_key(|listed| (std::cmp::Reverse(open_of(&listed.counts)), &listed.name));
    listed.into_iter().take(LISTED_TYPES).cloned().collect()
}

fn busiest(view: &View, listed: &[TypeDocument], figures: &Figures) -> Markup {
    let rows: Vec<Markup> = listed.iter().map(|listed| super::types::row(view, listed, figures)).collect();
    html! {
        section.panel #types {
            h2 { "Types with the most open tasks" }
            @if rows.is_empty() {
                (no_task(view))
            } @else {
                (table(super::types::COLUMNS, &rows))
            }
        }
    }
}

fn newest_errors(view: &View, failures: &Result<Failures, ApiError>) -> Markup {
    let rows = match failures {
        Ok(failures) => newest_rows(view, failures),
        Err(error) => return missing("The newest errors", &error.clone().document()),
    };
    html! {
        section.panel #errors {
            h2 { "Newest kinds of errors" }
            @if rows.is_empty() {
                p.quiet { "No retained task has failed." }
            } @else {
                (cards(failures::COLUMNS, &rows))
                p { a href=(view.url("/failures")) { "All failures" } }
            }
        }
    }
}

fn newest_rows(view: &View, failures: &Failures) -> Vec<Markup> {
    let mut groups: Vec<&FailureGroup> = failures.groups.iter().collect();
    // Times of documents are sorted like their texts.
    groups.sort_by(|a, b| b.last.cmp(&a.last));
    groups.iter().take(LISTED_ERRORS).map(|group| group_row(view, group, failures.at_least)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafleet_model::units::time::time_text;

    fn workers(states: &[WorkerState]) -> Workers {
        let worker = |(n, state): (usize, &WorkerState)| WorkerDocument {
            id: format!("w-{n}"),
            state: *state,
            age_ms: 0,
            last_heartbeat_at: time_text(now_ms()),
            clock_ahead_ms: 0,
            started_at: time_text(now_ms()),
            host: String::new(),
            pid: 1,
            version: "1".into(),
            held_bytes: 0,
            in_flight: 0,
            types: Vec::new(),
            running: Vec::new(),
        };
        Workers { workers: states.iter().enumerate().map(worker).collect() }
    }

    #[test]
    fn fleet_is_well_only_if_everything_could_be_read() {
        let workers = workers(&[WorkerState::Alive; 4]);
        let types = Types { types: Vec::new(), incomplete: Vec::new() };
        let (kills, schedules) = (KillSwitches { kills: Vec::new() }, Schedules { schedules: Vec::new() });
        let failures = Failures { groups: Vec::new(), errors: 0, at_least: false, since: None, incomplete: Vec::new() };
        let now = time_text(now_ms());
        let warnings = Warnings {
            workers: &workers,
            types: Some(&types),
            schedules: Some(&schedules),
            kills: Some(&kills),
            failures: Some(&failures),
            projected_to: Some(&now),
            requests: None,
        };
        let figures = Figures { minutes: BTreeMap::new(), queues: BTreeMap::new() };
        let well = warnings.all_is_well(&figures);
        assert_eq!(well.as_deref(), Some("All is well: 4 workers, lag 0, no new error"));
        assert_eq!(Warnings { failures: None, ..warnings }.all_is_well(&figures), None);
    }

    #[test]
    fn projection_that_is_a_minute_behind_needs_attention() {
        let view = View::for_tests(Role::Read);
        let lag = |behind_ms: i64| projection_lag(&view, &time_text(now_ms() - behind_ms)).map(|it| it.into_string());
        assert_eq!(lag(MAX_BEHIND_MS - 5_000), None);
        assert!(lag(MAX_BEHIND_MS + 5_000).is_some_and(|text| text.contains("is behind: complete to")));
    }
}
