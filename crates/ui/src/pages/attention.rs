//! Troubles that need the attention of an operator, and the sentence of a fleet that needs none.

use std::collections::BTreeMap;

use kafleet_config::Role;
use kafleet_documents::{
    Audit, FailureGroup, Failures, FlowVerdict, KillSwitchDocument, KillSwitches, ScheduleDocument, Schedules,
    TypeDocument, Types, WorkerDocument, WorkerState, WorkerTotals, Workers,
};
use kafleet_model::record::state::State;
use kafleet_runtime::now_ms;
use maud::{Markup, html};

use super::changes::requested_by;
use super::stuck_attempts::{attempts_of, slow_attempts};
use super::types::{Figures, Minutes};
use crate::parts::failures::{group_query, is_back, is_new, kind_text, newest_message};
use crate::parts::queue::measured_minutes;
use crate::parts::state::label;
use crate::parts::tasks::{type_link, worker_link};
use crate::parts::times::{millis, time};
use crate::parts::{View, count, counted, encoded, first_line, prose, visible};

/// Kinds of errors that need attention, and the time since their first task.
const NEW_ERRORS: usize = 5;
const NEW_ERROR_MS: i64 = 3_600_000;
/// Lag of the projection that needs attention.
const MAX_BEHIND_MS: i64 = 60_000;

/// Documents with troubles that need an operator; None where they could not be read.
pub(super) struct Warnings<'a> {
    pub workers: &'a Workers,
    pub types: Option<&'a Types>,
    pub schedules: Option<&'a Schedules>,
    pub kills: Option<&'a KillSwitches>,
    pub failures: Option<&'a Failures>,
    /// Time up to which all events are projected.
    pub projected_to: Option<&'a str>,
    /// Statistics of the last full minute.
    pub minutes: Option<&'a Minutes>,
    /// Newest requests, which name who has paused a type.
    pub requests: Option<&'a Audit>,
}

/// Trouble that needs attention.
pub(super) struct Trouble {
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
    pub(super) fn items(&self, view: &View) -> Vec<Trouble> {
        let workers = self.workers.workers.iter().filter(|worker| worker.state == WorkerState::Silent);
        let types = self.types.iter().flat_map(|types| &types.types);
        let schedules = self.schedules.iter().flat_map(|schedules| &schedules.schedules);
        let kills = self.kills.iter().flat_map(|kills| &kills.kills);
        let lag = self.projected_to.and_then(|to| projection_lag(view, to));
        let mut items: Vec<Trouble> = lag.into_iter().map(Trouble::bad).collect();
        items.extend(workers.map(|worker| Trouble::bad(silent(view, worker))));
        items.extend(slow_attempts(view, self.workers, self.minutes).into_iter().map(Trouble::attention));
        items.extend(types.flat_map(|task_type| type_troubles(view, task_type, self.requests)));
        items.extend(apps_down(view, self.workers).into_iter().map(Trouble::bad));
        items.extend(schedules.filter_map(|schedule| schedule_trouble(view, schedule)).map(Trouble::bad));
        items.extend(kills.map(|kill| Trouble::attention(kill_switch(view, kill, self.requests))));
        let errors = self.failures.iter().flat_map(|failures| new_errors(view, failures));
        items.extend(errors.map(Trouble::bad));
        items.sort_by_key(|item| !item.is_bad);
        items
    }

    /// Sentence for a fleet without troubles, and whether it has workers. `None` if something could not be read.
    pub(super) fn all_is_well(&self, figures: &Figures) -> Option<(String, bool)> {
        let types = self.types?;
        let _ = (self.schedules?, self.kills?, self.failures?, self.projected_to?);
        let alive = self.workers.workers.iter().filter(|worker| worker.state == WorkerState::Alive).count() as u64;
        let waiting = || types.types.iter().filter(|listed| listed.topic && listed.backlog > 0);
        let backlog = if waiting().all(|listed| figures.queues.contains_key(&listed.name)) {
            format!("lag {}", count(figures.queues.values().map(|queue| queue.lag).sum::<u64>()))
        } else {
            format!("backlog {}", count(waiting().map(|listed| listed.backlog).sum::<u64>()))
        };
        let text = match alive {
            0 => format!("No worker runs; {backlog}, no new error"),
            alive => format!("All is well: {}, {backlog}, no new error", counted(alive, "worker", "workers")),
        };
        Some((text, alive > 0))
    }
}

pub(super) fn attention(items: &[Trouble], all_is_well: Option<(String, bool)>) -> Markup {
    html! {
        @if !items.is_empty() {
            section.panel.attention #attention {
                h2 { "Needs attention" }
                ul.plain { @for item in items { li { (item.text) } } }
            }
        } @else if let Some((text, has_workers)) = all_is_well {
            p.panel.well[has_workers] #attention { (text) }
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
        (prose(&first_line(error, 200)))
        (action(view, &format!("/schedules/{}/edit", schedule.id), "Edit…"))
    })
}

fn kill_switch(view: &View, kill: &KillSwitchDocument, requests: Option<&Audit>) -> Markup {
    html! {
        (label("attention", "⊘\u{fe0e} kill switch")) " " a href=(view.url("/kill-switches")) { (kill.name) }
        (by(requests, "set_kill_switch", &kill.name)) " cancels matching tasks since " (time(&kill.since))
        @if let Some(reason) = &kill.reason { ": " (first_line(reason, 120)) }
        (action(view, &format!("/kill-switches/{}/off", encoded(&kill.name)), "Switch off…"))
    }
}

/// Name of the user who has requested a change last, if it is known.
fn by(requests: Option<&Audit>, action: &str, target: &str) -> Markup {
    let by = requests.and_then(|requests| requested_by(requests, action, target));
    html! { @if let Some(by) = by { " by " (visible(by)) } }
}

/// Link to the form that ends a trouble, for those who may use it.
fn action(view: &View, path: &str, name: &str) -> Markup {
    html! { @if view.may(Role::Operate) { " " a href=(view.url(path)) data-dialog { (name) } } }
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
        a href=(view.search(&group_query(group))) title=(first_line(&group.text, 400)) { (prose(&kind_text(group))) }
        " in " (counted(group.count, "task", "tasks"))
        @if is_back(group) { " back since " } @else { " since " }
        (time(&group.first))
        // Of errors without a kind, the link is the message already.
        @let message = newest_message(group);
        @if !message.starts_with(kind_text(group).trim_end_matches('…')) { ", such as " (prose(&first_line(message, 120))) }
        @if view.may(Role::Operate) {
            " " a href=(view.url_with("/bulk/new", &[("action", "retry"), ("q", &group_query(group))])) { "Retry…" }
        }
    }
}

fn silent(view: &View, worker: &WorkerDocument) -> Markup {
    html! {
        (label("bad", "✘\u{fe0e} silent")) " worker " (worker_link(view, &worker.id)) " has sent no heartbeat since "
        (time(&worker.last_heartbeat_at)) (attempts_of(view, worker))
    }
}

fn type_troubles(view: &View, task_type: &TypeDocument, requests: Option<&Audit>) -> Vec<Trouble> {
    let link = html! { a href=(view.url(&format!("/types/{}", task_type.name))) { (task_type.name) } };
    let mut items = Vec::new();
    if let Some(paused) = &task_type.paused {
        items.push(Trouble::attention(html! {
            (label("attention", "‖\u{fe0e} paused")) " " (link)
            (by(requests, "pause_type", &task_type.name))
            " since " (time(&paused.since))
            @if let Some(reason) = &paused.reason { ": " (first_line(reason, 120)) }
            (action(view, &format!("/types/{}/resume", task_type.name), "Resume…"))
        }));
    }
    items.extend(backlog_trouble(task_type, &link));
    match &task_type.worker_totals {
        Some(totals) => items.extend(worker_troubles(view, &task_type.name, &link, totals)),
        None if task_type.topic && task_type.backlog > 0 => items.push(untaken(task_type, &link)),
        None => {}
    }
    items
}

/// Type with a backlog that no worker takes. While it is paused, that is what an operator may want.
fn untaken(task_type: &TypeDocument, link: &Markup) -> Trouble {
    let of = |state: State| task_type.counts.get(&state).copied().unwrap_or_default();
    let running = of(State::Running) + of(State::Warning);
    let text = |tone: &str, name: &str| {
        html! {
            (label(tone, name)) " takes " (link) ": " (count(of(State::Queued))) " queued"
            @if running > 0 { ", " (count(running)) " running when last heard of" }
        }
    };
    if task_type.paused.is_some() {
        Trouble::attention(text("neutral", "○\u{fe0e} no worker"))
    } else {
        Trouble::bad(text("bad", "✘\u{fe0e} no worker"))
    }
}

/// Backlog that has grown, or has not moved, for as long as the rates are measured. Without a worker that is the trouble.
fn backlog_trouble(task_type: &TypeDocument, link: &Markup) -> Option<Trouble> {
    let flow = task_type.flow.as_ref().filter(|_| task_type.worker_totals.is_some())?;
    let backlog = counted(flow.backlog, "task", "tasks");
    match flow.verdict {
        FlowVerdict::Growing => Some(Trouble::attention(html! {
            (label("attention", "▲\u{fe0e} backlog grows")) " " (link) ": " (backlog) ", " (flow.text()) " (" (measured_minutes(flow)) ")"
        })),
        FlowVerdict::Stalled => Some(Trouble::bad(html! {
            (label("bad", "✘\u{fe0e} stalled")) " " (link) ": " (backlog) ", and none has ended (" (measured_minutes(flow)) ")"
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

fn worker_troubles(view: &View, name: &str, link: &Markup, totals: &WorkerTotals) -> Vec<Trouble> {
    let mut items = Vec::new();
    if totals.circuit_open > 0 {
        items.push(Trouble::attention(html! {
            (label("attention", "‖\u{fe0e} circuit open")) " " (link) " on " (totals.circuit_open) " of " (totals.workers)
            " workers: the service behind the type does not answer"
            (action(view, &format!("/types/{name}/circuit"), "Close the circuit…"))
        }));
    }
    if totals.open_hosts > 0 {
        items.push(Trouble::attention(html! {
            (label("attention", "‖\u{fe0e} hosts open")) " " (link) " calls " (totals.open_hosts)
            @if totals.open_hosts == 1 { " receiver that does not answer" } @else { " receivers that do not answer" }
            (action(view, &format!("/types/{name}#hosts"), "Show them"))
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
        let failures = Failures::default();
        let now = time_text(now_ms());
        let warnings = Warnings {
            workers: &workers,
            types: Some(&types),
            schedules: Some(&schedules),
            kills: Some(&kills),
            failures: Some(&failures),
            projected_to: Some(&now),
            minutes: None,
            requests: None,
        };
        let figures = Figures { minutes: None, queues: BTreeMap::new() };
        let well = warnings.all_is_well(&figures);
        assert_eq!(well, Some(("All is well: 4 workers, lag 0, no new error".to_owned(), true)));
        assert_eq!(Warnings { failures: None, ..warnings }.all_is_well(&figures), None);
    }

    fn troubles_of(change: serde_json::Value) -> Vec<(bool, String)> {
        let mut document = serde_json::json!({"type": "pack", "topic": true, "backlog": 2,
            "counts": {"queued": 1, "running": 1}});
        document.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let task_type: TypeDocument = serde_json::from_value(document).unwrap();
        let troubles = type_troubles(&View::for_tests(Role::Read), &task_type, None);
        troubles.into_iter().map(|trouble| (trouble.is_bad, trouble.text.into_string())).collect()
    }

    #[test]
    fn type_without_a_worker_counts_queued_and_running_tasks_and_is_no_error_while_paused() {
        let working = troubles_of(serde_json::json!({}));
        assert!(matches!(&working[..], [(true, text)] if text.contains("1 queued, 1 running")), "{working:?}");
        let pause = serde_json::json!({"since": "2026-01-31T13:13:04.000Z", "reason": "replaced"});
        let paused = troubles_of(serde_json::json!({"paused": pause}));
        assert!(matches!(&paused[..], [(false, _), (false, _)]), "{paused:?}");
        assert!(!paused.iter().any(|(_, text)| text.contains("pill bad")), "{paused:?}");
    }

    #[test]
    fn growth_is_stated_with_the_measured_minutes() {
        let flow = serde_json::json!({"in_per_min": 9.0, "out_per_min": 1.0, "backlog": 2, "verdict": "growing",
            "since": "2026-01-31T13:10:00.000Z", "until": "2026-01-31T13:15:00.000Z"});
        let totals = serde_json::json!({"workers": 1, "slots": 1, "in_flight": 1, "fetched": 0, "stopped": 0,
            "circuit_open": 0, "refused": []});
        let growing = troubles_of(serde_json::json!({"flow": flow, "worker_totals": totals}));
        assert!(matches!(&growing[..], [(false, text)] if text.contains("(13:10 to 13:15)")), "{growing:?}");
    }

    #[test]
    fn projection_that_is_a_minute_behind_needs_attention() {
        let view = View::for_tests(Role::Read);
        let lag = |behind_ms: i64| projection_lag(&view, &time_text(now_ms() - behind_ms)).map(|it| it.into_string());
        assert_eq!(lag(MAX_BEHIND_MS - 5_000), None);
        assert!(lag(MAX_BEHIND_MS + 5_000).is_some_and(|text| text.contains("is behind: complete to")));
    }
}
