//! System: versions, memory of the store, and the lag of the projection by events partition.

use std::collections::BTreeMap;

use futures::future::join_all;
use kafleet_api::http::problem::ApiError;
use kafleet_api::service::{system, workers};
use kafleet_documents::{ProjectionDocument, StoreMemory, SystemDocument};
use maud::{Markup, html};

use super::workers::known_version;
use crate::parts::bar::percent;
use crate::parts::command::{commands, curl_get};
use crate::parts::facts::{Fact, facts, text};
use crate::parts::notice::missing;
use crate::parts::state::label;
use crate::parts::table::table;
use crate::parts::times::{duration, optional_time, time};
use crate::parts::{bytes_text, count, counted, visible};
use crate::visit::{Body, PAGE_DEADLINE, PageAnswer, Visit, from_kafka, stored};

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let partitions = visit.api.reads.partitions();
    let reads = partitions.iter().map(|partition| progress(visit, *partition));
    let (partitions, memory) = tokio::join!(join_all(reads), stored(system::store_memory(&visit.api.reads)));
    let summary = system::summary(&visit.api);
    let main = html! {
        h1 { "System" }
        (tiles(&summary, &partitions, memory.as_deref().unwrap_or_default()))
        div.columns {
            div.column {
                section.panel #partitions {
                    h2 { "Projection of events" }
                    @if let Some(Err(error)) = partitions.iter().find(|read| read.is_err()) {
                        (missing("Some partitions", &error.clone().document()))
                    }
                    (partitions_table(&partitions, summary.fold_version))
                }
                (stores(&memory))
            }
            div.column {
                section.panel {
                    h2 { "This API and its fleet" }
                    (facts(&properties(visit, &summary, partitions.len())))
                    p {
                        a href="/metrics" { "Metrics" } " · " a href="/readyz" { "Readiness" } " · " a href="/openapi.json" { "OpenAPI" } " · "
                        a href=(visit.view.url("/help")) { "Help" }
                    }
                }
            }
        }
        (commands(&["kafleet doctor".to_owned(), curl_get("/v1/system"), curl_get("/readyz"), curl_get("/metrics")]))
    };
    Ok(Body::new("System", main).into())
}

/// Verdicts of the page in a few numbers. What is not known has no tile.
fn tiles(
    system: &SystemDocument,
    partitions: &[Result<ProjectionDocument, ApiError>],
    memory: &[StoreMemory],
) -> Markup {
    let behind: i64 = partitions.iter().flatten().map(ProjectionDocument::behind).sum();
    let (used, limit) =
        memory.iter().fold((0, 0), |(used, limit), server| (used + server.used_bytes, limit + server.limit_bytes));
    html! {
        section.tiles aria-label="state" {
            @match &system.not_ready {
                None => { (tile("well", "✔\u{fe0e} ready", "this API")) }
                Some(_) => { (tile("bad", "✘\u{fe0e} not ready", "this API")) }
            }
            @if partitions.iter().all(Result::is_ok) {
                (tile("", &count(behind), &format!("offsets behind, {}", counted(partitions.len() as u64, "partition", "partitions"))))
            }
            @if used > 0 {
                @let of = counted(memory.len() as u64, "server", "servers");
                @if limit > 0 { (tile("", &percent(used, limit), &format!("of the memory of Redis, {of}"))) }
                @else { (tile("", &bytes_text(used), &format!("memory of Redis, {of}"))) }
            }
        }
    }
}

fn tile(tone: &str, value: &str, name: &str) -> Markup {
    let class = format!("value {tone}");
    html! { div.tile { span class=(class.trim_end()) { (value) } span.name { (name) } } }
}

fn properties(visit: &Visit, system: &SystemDocument, partitions: usize) -> Vec<Fact> {
    let versions = worker_versions(visit);
    let readiness = match &system.not_ready {
        None => label("good", "✔\u{fe0e} ready"),
        Some(reason) => html! { (label("bad", "✘\u{fe0e} not ready")) " " (visible(reason)) },
    };
    vec![
        ("Ready", Some(readiness)),
        ("This api", text(&system.version)),
        ("Started", Some(time(&system.started_at))),
        (
            "Workers",
            Some(html! { @if versions.is_empty() { span.quiet { "none" } } @else { (visible(&versions.join(", "))) } }),
        ),
        ("Fold version", Some(html! { (system.fold_version) span.quiet { " of this build" } })),
        (
            "Events topic",
            Some(html! { code { (system.events_topic) } ", " (counted(partitions as u64, "partition", "partitions")) }),
        ),
        (
            "Control topic",
            Some(html! { code { (system.control_topic) } ", read to offset " (count(system.control_read_to)) }),
        ),
        ("Open trees", Some(html! { "at most " (duration(system.max_tree_age_ms).trim_end_matches(" 0 h")) " old" })),
    ]
}

/// Versions of the workers, each with their number.
fn worker_versions(visit: &Visit) -> Vec<String> {
    let mut versions: BTreeMap<String, u64> = BTreeMap::new();
    for worker in workers::worker_list(&visit.api).workers {
        *versions.entry(worker.version).or_default() += 1;
    }
    let version = |stated: &str| known_version(stated).map_or_else(|| "–".to_owned(), str::to_owned);
    versions.iter().map(|(stated, n)| format!("{} on {}", version(stated), counted(*n, "worker", "workers"))).collect()
}

/// Memory of the servers of the store.
fn stores(memory: &Result<Vec<StoreMemory>, ApiError>) -> Markup {
    let row = |memory: &StoreMemory| {
        html! {
            tr {
                td.mono { (memory.server) }
                td.number { (bytes_text(memory.used_bytes)) }
                td.number { (bytes_text(memory.limit_bytes)) }
                td.number { (percent(memory.used_bytes, memory.limit_bytes)) }
            }
        }
    };
    html! {
        @match memory {
            Ok(memory) if memory.is_empty() => {}
            Ok(memory) => {
                section.panel #redis {
                    h2 { "Memory of Redis" }
                    (table(&["Server", "#Used", "#Limit|maxmemory: a full server refuses writes", "#Full"], &memory.iter().map(row).collect::<Vec<_>>()))
                }
            }
            Err(error) => { (missing("The memory of Redis", &error.clone().document())) }
        }
    }
}

async fn progress(visit: &Visit, partition: u32) -> Result<ProjectionDocument, ApiError> {
    let reads = &visit.api.reads;
    let (checkpoint, ends) =
        tokio::join!(stored(reads.checkpoint(partition)), from_kafka(reads.event_ends(partition, PAGE_DEADLINE)));
    let ends = ends?;
    Ok(system::projection(partition, checkpoint?, ends))
}

fn partitions_table(partitions: &[Result<ProjectionDocument, ApiError>], fold_version: u32) -> Markup {
    let rows: Vec<Markup> = partitions.iter().flatten().map(|read| partition_row(read, fold_version)).collect();
    table(&["Partition", "#Projected to", "#End", "#Offsets behind", "Newest event", "#Fold version"], &rows)
}

fn partition_row(partition: &ProjectionDocument, fold_version: u32) -> Markup {
    html! {
        tr {
            td { (partition.partition) }
            td.number {
                @match partition.projected {
                    Some(offset) => { (count(offset)) } None => { span.quiet { "not begun" } }
                }
            }
            td.number { (count(partition.end)) }
            td.number { (count(partition.behind())) }
            td.time { (optional_time(partition.log_time.as_deref())) }
            td.number {
                @match partition.fold_version {
                    Some(version) if version == fold_version => { (version) }
                    Some(version) => { (label("attention", &version.to_string())) }
                    None => { span.quiet { "–" } }
                }
            }
        }
    }
}
