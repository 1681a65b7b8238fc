//! Overview of the fleet: troubles, open tasks, statistics, busiest types, newest errors.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use kafleet_api::http::problem::ApiError;
use kafleet_api::service::statistics::{Series, StatsQuery, newest_failures};
use kafleet_api::service::{kill_switches, schedules, types, workers};
use kafleet_documents::{
    FailureGroup, Failures, OwnFailed, Stats, TypeDocument, Types, WorkerDocument, WorkerState, Workers,
};
use kafleet_model::record::state::State;
use kafleet_model::units::duration::Millis;
use kafleet_model::worker_status::slots_of_worker;
use kafleet_runtime::now_ms;
use maud::{Markup, html};

use super::attention::{Warnings, attention};
use super::changes::{changes_of, last_hour, newest_requests};
use super::charts::{cached_stats, charts_of};
use super::types::{Figures, last_minutes};
use crate::parts::bar::{in_order, state_bar};
use crate::parts::command::{commands, curl_get};
use crate::parts::failures::{self, group_row, uncounted_letters};
use crate::parts::natural::natural_order;
use crate::parts::notice::{missing, no_task};
use crate::parts::statistics::{Tile, last_minute};
use crate::parts::table::{dense_table, table};
use crate::parts::tasks::state_counts_of_types;
use crate::parts::{View, count, search_text};
use crate::visit::{Body, PageAnswer, Visit, from_kafka, stored};

/// Types listed: those with the most open tasks, and those with the most failed ones.
const BUSIEST_TYPES: usize = 5;
const FAILING_TYPES: usize = 3;
/// Search for the tasks that are counted as open.
const OPEN: &str = "is:open -state:expected level:any";
/// Newest errors listed.
const LISTED_ERRORS: usize = 10;

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let (view, api) = (&visit.view, &visit.api);
    let (types, kills, schedules, failures, minutes, requests) = tokio::join!(
        stored(types::measured_types(api)),
        from_kafka(kill_switches::list_kill_switches(visit.context())),
        stored(schedules::list(visit.context())),
        stored(newest_failures(api, LISTED_ERRORS)),
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
        minutes: figures.minutes.as_ref(),
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
            }
            Err(error) => { (missing("Tasks and types", &error.clone().document())) }
        }
        (newest_errors(view, &failures))
        @if types.is_ok() { (busiest(view, &busiest_types, &figures)) }
        (commands(&["kafleet types".to_owned(), "kafleet stats".to_owned(), "kafleet failures".to_owned(), curl_get("/v1/stats")]))
    };
    Ok(Body::new("Overview", main).into())
}

/// Statistics of the last full minute over all types.
async fn last_minute_of_all(visit: &Visit) -> Option<Arc<Stats>> {
    let end = now_ms().div_euclid(60_000) * 60_000;
    let query =
        StatsQuery { series: Series::All, from_ms: Some(end - 60_000), to_ms: Some(end), step: Some(Millis::secs(60)) };
    stored(cached_stats(visit, query)).await.ok()
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

/// Number of published tasks that have not ended. Expected ones are not among them: most have no type yet, and so no counter.
pub(super) fn open_of(counts: &BTreeMap<State, u64>) -> u64 {
    let is_open = |state: &State| !state.is_terminal() && *state != State::Expected;
    counts.iter().filter(|(state, _)| is_open(state)).map(|(_, n)| n).sum()
}

/// Open tasks, the last full minute, and all retained tasks by state.
fn numbers(view: &View, types: &Types, workers: &Workers, minute: Option<Markup>) -> Markup {
    let totals = totals(&types.types);
    let open = Tile {
        url: view.search(OPEN),
        value: count(open_of(&totals)),
        tone: "",
        name: "open tasks",
        title: "published tasks that have not ended, now, on all levels".to_owned(),
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
                h2 { "All retained tasks " span.quiet { "with the states of the tasks below them" } }
                (state_bar(&totals))
                (state_counts_of_types(&in_order(&totals), own_failed(types), |state| view.search(&search_text(&[("state", state.name()), ("level", "any")]))))
            }
        }
    }
}

/// Tasks of all types that failed by themselves. `None` if a type's number was not read.
fn own_failed(types: &Types) -> Option<OwnFailed> {
    types.types.iter().try_fold(OwnFailed::default(), |sum, listed| {
        let own = listed.own_failed?;
        Some(OwnFailed { tasks: sum.tasks + own.tasks, at_least: sum.at_least || own.at_least })
    })
}

/// Slots of the live workers.
fn capacity(view: &View, workers: &Workers) -> Markup {
    let alive: Vec<&WorkerDocument> =
        workers.workers.iter().filter(|worker| worker.state == WorkerState::Alive).collect();
    let slots = alive.iter().map(|worker| slots_of_worker(&worker.types)).sum::<u64>();
    let used = alive.iter().map(|worker| worker.in_flight).sum::<u64>();
    let noun = if alive.len() == 1 { "worker" } else { "workers" };
    html! {
        a.tile href=(view.url("/workers")) title="slots in use, of those of the live workers" {
            span.value { (count(used)) span.quiet { " / " (count(slots)) } }
            span.name { "slots, " (count(alive.len())) " " (noun) }
        }
    }
}

/// Types with the most open tasks, then others with the most tasks that failed by themselves.
fn busiest_of(listed: &[TypeDocument]) -> Vec<TypeDocument> {
    let own_failed = |listed: &TypeDocument| listed.own_failed.map_or(0, |own| own.tasks);
    let mut listed: Vec<&TypeDocument> = listed.iter().filter(|listed| !listed.counts.is_empty()).collect();
    listed.sort_by(|one, other| natural_order(&one.name, &other.name));
    listed.sort_by_key(|listed| Reverse(open_of(&listed.counts)));
    let mut others = listed.split_off(listed.len().min(BUSIEST_TYPES));
    others.sort_by_key(|listed| Reverse(own_failed(listed)));
    listed.into_iter().chain(others.into_iter().take(FAILING_TYPES)).cloned().collect()
}

fn busiest(view: &View, listed: &[TypeDocument], figures: &Figures) -> Markup {
    let rows: Vec<Markup> = listed.iter().map(|listed| super::types::row(view, listed, figures)).collect();
    html! {
        section.panel #types {
            div.head {
                h2 { "Types with the most open tasks, and with the most failed ones" }
                a href=(view.url("/types")) { "All types" }
            }
            @if rows.is_empty() {
                (no_task(view))
            } @else {
                (dense_table(super::types::COLUMNS, &rows))
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
                @if let Ok(failures) = failures { (uncounted_letters(failures)) }
                (table(failures::COLUMNS, &rows))
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
    use kafleet_model::query::TaskQuery;

    use super::*;

    #[test]
    fn types_that_fail_are_among_the_listed_ones() {
        let listed = |name: String, counts: serde_json::Value, failed: u64| -> TypeDocument {
            let own = serde_json::json!({"tasks": failed, "at_least": false});
            let document =
                serde_json::json!({"type": name, "topic": true, "counts": counts, "backlog": 0, "own_failed": own});
            serde_json::from_value(document).unwrap()
        };
        let mut types: Vec<_> =
            (0..20).map(|n| listed(format!("supplier-{n}"), serde_json::json!({"queued": 2}), 0)).collect();
        types.push(listed("charge".into(), serde_json::json!({"failed": 9}), 9));
        let names: Vec<String> = busiest_of(&types).into_iter().map(|listed| listed.name).collect();
        let open = ["supplier-0", "supplier-1", "supplier-2", "supplier-3", "supplier-4"];
        assert_eq!(names[..6], [&open[..], &["charge"]].concat()[..]);
        assert_eq!(names.len(), BUSIEST_TYPES + FAILING_TYPES);
    }

    #[test]
    fn open_tasks_are_counted_as_their_link_finds_them() {
        let counts =
            BTreeMap::from([(State::Expected, 66), (State::Queued, 8), (State::Running, 2), (State::Failed, 9)]);
        assert_eq!(open_of(&counts), 10);
        let query = TaskQuery::parse(OPEN).unwrap();
        let found = |state: &State| crate::parts::state_tabs::finds(&query, *state);
        assert_eq!(counts.iter().filter(|(state, _)| found(state)).map(|(_, n)| n).sum::<u64>(), 10);
    }
}
