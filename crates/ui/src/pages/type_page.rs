//! Page of a task type.

use std::sync::Arc;

use kafleet_api::http::problem::ApiError;
use kafleet_api::service::context::{After, Paging};
use kafleet_api::service::queue::queue;
use kafleet_api::service::statistics::{DurationsQuery, FailuresBy, FailuresQuery};
use kafleet_api::service::{list as tasks, statistics, types, workers};
use kafleet_config::Role;
use kafleet_documents::{
    AdaptiveDocument, CircuitDocument, DurationStats, Failures, PartitionQueue, QueueDocument, Slowest, SlowestAttempt,
    TaskPage, TypeDocument, TypeLimits, WorkerDocument,
};
use kafleet_fleet::control::heartbeat::TypeStatus;
use kafleet_model::query::{Qualifier, TaskQuery, Term, Test, TreeLevel};
use kafleet_model::record::state::State;
use kafleet_runtime::now_ms;
use maud::{Markup, html};
use serde_json::Value;

use super::attention::numbers_text;
use super::changes::{changes_of, newest_requests};
use super::charts::charts_of;
use super::circuit_forms::{hosts_of, offer};
use super::overview::open_of;
use super::type_forms::{limits_panel, resume_button};
use super::types::condition_label;
use crate::parts::bar::{in_order, state_bar, usage};
use crate::parts::command::{commands, curl_get};
use crate::parts::facts::{codes, facts};
use crate::parts::failures::{self, group_row, uncounted_letters};
use crate::parts::histogram::histogram;
use crate::parts::limits::pause_text;
use crate::parts::notice::{empty, missing};
use crate::parts::queue::{age, flow_text, lag};
use crate::parts::schema_form::schema_outline;
use crate::parts::state::label;
use crate::parts::statistics::ms_text;
use crate::parts::table::table;
use crate::parts::tasks::{state_counts_of_types, task_table, worker_link};
use crate::parts::times::time;
use crate::parts::{View, count, counted, search_text, visible};
use crate::visit::{Body, PageAnswer, Visit, from_kafka, scan_time, stored};

const DAY_MS: i64 = 24 * 3_600_000;
/// Newest failed tasks of a type.
const LISTED_FAILED: usize = 10;

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let (view, name) = (&visit.view, &visit.segment);
    let (task_type, requests) = tokio::join!(stored(types::measured_type(&visit.api, name)), newest_requests(visit));
    let task_type = task_type?;
    let path = format!("/types/{name}");
    let changes = changes_of(requests.as_deref(), &workers::worker_list(&visit.api), Some(name));
    let (queue, failed, errors, slowest, durations, charts) = tokio::join!(
        sampled(visit, &task_type),
        stored(newest_failed(visit, name)),
        stored(statistics::failures(visit.context(), errors_query(name), After::default())),
        stored(slowest(visit, name)),
        stored(durations(visit, name)),
        charts_of(visit, &path, Some(name), &changes),
    );
    let main = html! {
        div.head { h1 { span.quiet { "Type " } (task_type.name) } (actions(visit, &task_type)) }
        (properties(view, &task_type, queue.as_ref()))
        @if view.may(Role::Operate) && task_type.topic { (limits_panel(visit, &task_type)) }
        (counts_of(view, &task_type))
        (charts.markup)
        (errors_of(view, errors))
        (workers_of(visit, name))
        (hosts_of(view, &task_type))
        (partitions(visit, name, queue.as_ref()))
        (durations_of(&durations))
        (slowest_of(view, slowest))
        (failed_of(view, failed))
        @if let Some(schema) = &task_type.schema { (schema_block("schema", "Schema of the params", schema)) }
        @if let Some(output) = &task_type.output { (schema_block("output", "Schema of the result", output)) }
        (commands(&[format!("kafleet stats {name}"), format!("kafleet stats {name} --durations --from 24h"), curl_get(&format!("/v1/types/{name}"))]))
    };
    Ok(Body::new(name.clone(), main).into())
}

/// Queue of a type with a topic.
async fn sampled(visit: &Visit, task_type: &TypeDocument) -> Option<Result<Arc<QueueDocument>, ApiError>> {
    if task_type.topic { Some(from_kafka(queue(&visit.api, &task_type.name)).await) } else { None }
}

async fn newest_failed(visit: &Visit, name: &str) -> Result<TaskPage, ApiError> {
    let tests = [
        Test::Text(Qualifier::Type, vec![name.to_owned()]),
        Test::State(vec![State::Failed]),
        Test::Level(TreeLevel::Any),
    ];
    let query = TaskQuery { terms: tests.map(|test| Term { negated: false, test }).into() };
    let page = Paging { cursor: None, limit: LISTED_FAILED };
    tasks::list(visit.context(), query, page, After::default(), scan_time()).await
}

fn counts_of(view: &View, task_type: &TypeDocument) -> Markup {
    let name = task_type.name.as_str();
    let counts = in_order(&task_type.counts);
    html! {
        section.panel #counts {
            h2 { "Tasks " span.quiet { "retained, with the states of the tasks below them" } }
            @if counts.is_empty() {
                (empty("No task of this type has been submitted yet. Submit one:", &[&format!("kafleet submit {name} '{{}}'")]))
            } @else {
                (state_bar(&task_type.counts))
                (state_counts_of_types(&counts, task_type.own_failed, |state| view.search(&search_text(&[("type", name), ("state", state.name()), ("level", "any")]))))
            }
        }
    }
}

fn schema_block(id: &str, title: &str, schema: &Value) -> Markup {
    html! {
        details.panel #(id) { summary { h2 { (title) } } (schema_outline(schema)) }
    }
}

fn actions(visit: &Visit, task_type: &TypeDocument) -> Markup {
    let view = &visit.view;
    let link = |page: &str, name: &str| {
        html! {
            a.button href=(view.url(&format!("/types/{}/{page}", task_type.name))) data-dialog { (name) }
        }
    };
    html! {
        div.actions {
            @if view.may(Role::Submit) { a.button href=(view.url_with("/new", &[("type", &task_type.name)])) { "Submit…" } }
            @if view.may(Role::Operate) && task_type.topic {
                @if task_type.paused.is_some() { (resume_button(visit, task_type)) } @else { (link("pause", "Pause…")) }
                @if let Some(text) = offer(task_type.worker_totals.as_ref(), task_type.circuit.as_ref()) { (link("circuit", text)) }
                a.button href=(view.url_with("/kill-switches/new", &[("type", &task_type.name)])) data-dialog { "Kill switch…" }
            }
        }
    }
}

fn properties(view: &View, task_type: &TypeDocument, queue: Option<&Result<Arc<QueueDocument>, ApiError>>) -> Markup {
    let queue = queue.and_then(|queue| queue.as_ref().ok());
    html! {
        section.panel {
            (facts(&[
                ("Condition", Some(condition_label(task_type))),
                ("Description", task_type.doc.as_ref().map(|doc| html! { (visible(doc)) })),
                ("App", task_type.app.as_ref().map(|app| html! { (visible(app)) })),
                ("Paused", task_type.paused.as_ref().map(pause_text)),
                ("Open", Some(html! { (count(open_of(&task_type.counts))) })),
                ("Backlog", Some(html! { (count(task_type.backlog)) span.quiet { " queued or running" } })),
                ("Lag", queue.map(|queue| lag_text(queue))),
                ("Oldest", queue.and_then(|queue| Some(age(queue.oldest_at.as_deref()?, queue.oldest_at_least)))),
                ("Slots", task_type.worker_totals.as_ref().map(|totals| usage(totals.in_flight, totals.slots))),
                ("Limits", Some(limits_text(&task_type.limits))),
                ("Adaptive limit", task_type.adaptive.as_ref().map(adaptive_text)),
                ("Circuit", task_type.circuit.as_ref().map(circuit_text)),
                ("Kill switches", codes(&task_type.kills).map(|names| html! { a href=(view.url("/kill-switches")) { (names) } })),
                ("Searched params", codes(&task_type.declared.index)),
                ("Masked", codes(&task_type.declared.mask)),
                ("Refused partitions", refused(task_type)),
                ("Flow", task_type.flow.as_ref().map(|flow| flow_text(flow, queue.map(|queue| &**queue), now_ms()))),
            ]))
        }
    }
}

/// Records in Kafka that no worker has finished.
fn lag_text(queue: &QueueDocument) -> Markup {
    html! {
        @if queue.lag == 0 { "0" } @else { (lag(queue.lag, queue.at_most)) }
        span.quiet { @if queue.lag == 1 { " unfinished record" } @else { " unfinished records" } }
    }
}

fn refused(task_type: &TypeDocument) -> Option<Markup> {
    let totals = task_type.worker_totals.as_ref().filter(|totals| !totals.refused.is_empty())?;
    Some(html! {
        (numbers_text(&totals.refused)) span.quiet {
            " – set their offsets with " code { "kafleet offsets init " (task_type.name) }
        }
    })
}

pub(super) fn limits_text(limits: &TypeLimits) -> Markup {
    let mut parts = Vec::new();
    parts.extend(limits.slots.map(|slots| counted(slots.into(), "slot a worker", "slots a worker")));
    parts.extend(limits.max_concurrency.map(|most| counted(most.into(), "attempt at once", "attempts at once")));
    parts.extend(limits.rate.map(|rate| format!("{} per {}", rate.count, rate.per)));
    html! {
        @if parts.is_empty() { span.quiet { "the defaults" } } @else { (parts.join(", ")) }
        @if !limits.live.is_empty() { span.quiet { " (set at run time: " (limits.live.join(", ")) ")" } }
    }
}

fn workers_of(visit: &Visit, name: &str) -> Markup {
    let all = workers::worker_list(&visit.api).workers;
    let rows: Vec<Markup> = all
        .iter()
        .filter_map(|worker| Some((worker, worker.types.iter().find(|status| status.task_type == name)?)))
        .map(|(worker, status)| worker_row(&visit.view, worker, status))
        .collect();
    html! {
        section.panel #workers {
            h2 { "Workers" }
            @if rows.is_empty() {
                p.quiet { "No worker takes this type. Start one with " code { "kafleet worker --types " (name) } "." }
            }
            @else { (table(&["Worker", "State", "#Slots", "#Fetched", "Partitions", "Stopped or open circuit"], &rows)) }
        }
    }
}

/// Partitions of the type's topic, with the tasks that hold back their commits.
fn partitions(visit: &Visit, name: &str, queue: Option<&Result<Arc<QueueDocument>, ApiError>>) -> Markup {
    let queue = match queue {
        None => return html! {},
        Some(Err(error)) => return missing("The partitions", &error.clone().document()),
        Some(Ok(queue)) => queue,
    };
    let workers = workers::worker_list(&visit.api).workers;
    let row = |partition: &PartitionQueue| {
        let takes = |worker: &&WorkerDocument| {
            worker.types.iter().any(|it| it.task_type == name && it.partitions.contains(&partition.partition))
        };
        partition_row(&visit.view, partition, workers.iter().find(takes))
    };
    let rows: Vec<Markup> = queue.partitions.iter().map(row).collect();
    html! {
        section.panel #partitions {
            h2 { "Partitions " span.quiet { "as of " (time(&queue.at)) } }
            (table(&["Partition", "#End", "#Finished to", "#Lag", "Oldest", "Held back by", "Worker"], &rows))
        }
    }
}

fn partition_row(view: &View, partition: &PartitionQueue, worker: Option<&WorkerDocument>) -> Markup {
    let none = || html! { span.quiet { "–" } };
    html! {
        tr id={ "p-" (partition.partition) } {
            td { (partition.partition) }
            td.number { (count(partition.end)) }
            td.number { (count(partition.done)) }
            td.number { (lag(partition.lag, partition.at_most)) }
            td.time { @match &partition.oldest_at { Some(at) => { (time(at)) } None => { (none()) } } }
            td.id {
                @if let Some(since) = &partition.open_transaction_since {
                    (label("bad", "open transaction")) " since " (time(since)) " "
                }
                @match &partition.held_by {
                    Some(id) => { a href=(view.task(id)) { (id) } }
                    None => { @if partition.open_transaction_since.is_none() { (none()) } }
                }
            }
            td { @match worker { Some(worker) => { (worker_link(view, &worker.id)) } None => { (none()) } } }
        }
    }
}

fn adaptive_text(adaptive: &AdaptiveDocument) -> Markup {
    html! {
        (format!("{:.1}", adaptive.limit)) span.quiet { @if adaptive.fixed { " as set" } @else { " as learned" } }
        @if let Some(at) = &adaptive.cut_at { ", last cut " (time(at)) }
        @if let Some(reason) = &adaptive.cut_reason { ": " (visible(reason)) }
    }
}

pub(super) fn circuit_text(circuit: &CircuitDocument) -> Markup {
    html! {
        (circuit.state) " by " (visible(circuit.by.as_deref().unwrap_or("an operator"))) " since " (time(&circuit.since))
        @if let Some(reason) = &circuit.reason { ": " (visible(reason)) }
    }
}

fn worker_row(view: &View, worker: &WorkerDocument, status: &TypeStatus) -> Markup {
    html! {
        tr id={ "w-" (worker.id) } {
            td.id { (worker_link(view, &worker.id)) }
            td { (super::workers::state_label(worker.state)) }
            td.number { (usage(status.in_flight.into(), status.usable_slots())) }
            td.number { (count(status.waiting)) }
            td { (numbers_text(&status.partitions)) }
            td { (super::workers::reasons(status)) }
        }
    }
}

/// Distribution of the run times of a type in the last 24 hours, which the pages of some seconds share.
async fn durations(visit: &Visit, name: &str) -> Result<Arc<DurationStats>, ApiError> {
    let from_ms = Some(now_ms() - DAY_MS);
    let query = DurationsQuery { task_type: Some(name.to_owned()), from_ms, to_ms: None };
    visit.live.durations.get(Some(name.to_owned()), statistics::durations(visit.context(), query)).await
}

fn durations_of(durations: &Result<Arc<DurationStats>, ApiError>) -> Markup {
    html! {
        @match durations {
            Ok(stats) if stats.run.buckets.is_empty() => {}
            Ok(stats) => {
                section.panel #durations {
                    h2 { "Run times " span.quiet { "of successful attempts in the last 24 hours" } }
                    (histogram(&stats.run))
                }
            }
            Err(error) => { (missing("The run times", &error.clone().document())) }
        }
    }
}

/// Slowest attempts of a type in the last 24 hours.
async fn slowest(visit: &Visit, name: &str) -> Result<Slowest, ApiError> {
    statistics::slowest(visit.context(), Some(name), 24, 10).await
}

/// Query of the kinds of errors of a type.
fn errors_query(name: &str) -> FailuresQuery {
    let task_type = Some(name.to_owned());
    FailuresQuery { task_type, by: FailuresBy::Kind, limit: LISTED_FAILED, ..FailuresQuery::default() }
}

fn errors_of(view: &View, failures: Result<Failures, ApiError>) -> Markup {
    html! {
        @match failures {
            Ok(failures) if failures.groups.is_empty() => {}
            Ok(failures) => {
                @let rows: Vec<Markup> = failures.groups.iter().take(LISTED_FAILED).map(|group| group_row(view, group, failures.at_least)).collect();
                section.panel #errors { h2 { "Errors of failed tasks" } (uncounted_letters(&failures)) (table(failures::COLUMNS, &rows)) }
            }
            Err(error) => { (missing("The errors", &error.document())) }
        }
    }
}

fn slowest_of(view: &View, slowest: Result<Slowest, ApiError>) -> Markup {
    html! {
        @match slowest {
            Ok(slowest) if slowest.attempts.is_empty() => {}
            Ok(slowest) => {
                @let rows: Vec<Markup> = slowest.attempts.iter().map(|attempt| attempt_row(view, attempt)).collect();
                section.panel #slowest {
                    h2 { "Slowest attempts " span.quiet { "of the last 24 hours" } }
                    (table(&["Task", "#Run", "#Attempt", "#Ran", "Ended", "Worker"], &rows))
                }
            }
            Err(error) => { (missing("The slowest attempts", &error.document())) }
        }
    }
}

fn attempt_row(view: &View, attempt: &SlowestAttempt) -> Markup {
    html! {
        tr {
            td.id { a href=(view.task(&attempt.id)) { (attempt.id) } }
            td.number { (attempt.run) }
            td.number { (attempt.attempt) }
            td.number { (ms_text(attempt.took_ms)) }
            td.time { (time(&attempt.ended_at)) }
            td { @if let Some(worker) = &attempt.worker { (worker_link(view, worker)) } }
        }
    }
}

fn failed_of(view: &View, failed: Result<TaskPage, ApiError>) -> Markup {
    html! {
        @match failed {
            Ok(page) if page.tasks.is_empty() => {}
            Ok(page) => { section.panel #failed { h2 { "Newest failed tasks" } (task_table(view, "t", &page.tasks)) } }
            Err(error) => { (missing("The failed tasks", &error.document())) }
        }
    }
}
