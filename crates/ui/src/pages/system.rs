//! System: versions, and the lag of the projection by events partition.

use futures::future::join_all;
use kafleet_api::http::problem::ApiError;
use kafleet_api::service::workers;
use maud::{Markup, html};

use crate::parts::command::{commands, curl_get};
use crate::parts::count;
use crate::parts::facts::{facts, text};
use crate::parts::notice::missing;
use crate::parts::state::label;
use crate::parts::table::table;
use crate::visit::{Body, PAGE_DEADLINE, PageAnswer, Visit, from_kafka, stored};
use std::collections::BTreeMap;

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let partitions = visit.api.reads.partitions();
    let reads = partitions.iter().map(|partition| partition_lag(visit, *partition));
    let lags = join_all(reads).await;
    let main = html! {
        h1 { "System" }
        section.panel { (properties(visit, partitions.len())) }
        section.panel.compact #partitions {
            h2 { "Projection of events" }
            @if let Some(Err(error)) = lags.iter().find(|lag| lag.is_err()) {
                (missing("Some partitions", &error.clone().document()))
            }
            (partitions_table(&lags))
        }
        (commands(&["kafleet doctor".to_owned(), curl_get("/readyz"), curl_get("/metrics")]))
    };
    Ok(Body::new("System", main).into())
}

fn properties(visit: &Visit, partitions: usize) -> Markup {
    let names = &visit.api.topology.names;
    let versions = worker_versions(visit);
    let readiness = match visit.api.ops.ready() {
        Ok(()) => label("good", "✔\u{fe0e} ready"),
        Err(error) => html! { (label("bad", "✘\u{fe0e} not ready")) " " (error.document().detail) },
    };
    facts(&[
        ("This api", text(env!("CARGO_PKG_VERSION"))),
        ("Workers", (!versions.is_empty()).then(|| html! { (versions.join(", ")) })),
        ("Ready", Some(readiness)),
        ("Events topic", Some(html! { code { (names.events()) } ", " (partitions) " partitions" })),
        (
            "Control topic",
            Some(html! { code { (names.control()) } ", read to offset " (visit.api.fleet.control.last_applied() + 1) }),
        ),
    ])
}

/// Versions of the workers, each with their number.
fn worker_versions(visit: &Visit) -> Vec<String> {
    let mut versions: BTreeMap<String, usize> = BTreeMap::new();
    for worker in workers::worker_list(&visit.api).workers {
        *versions.entry(worker.version).or_default() += 1;
    }
    versions.iter().map(|(version, n)| format!("{version} on {}", count(n))).collect()
}

/// Offsets of an events partition.
struct Lag {
    partition: u32,
    projected: Option<i64>,
    end: i64,
}

async fn partition_lag(visit: &Visit, partition: u32) -> Result<Lag, ApiError> {
    let reads = &visit.api.reads;
    let (checkpoint, ends) =
        tokio::join!(stored(reads.checkpoint(partition)), from_kafka(reads.event_ends(partition, PAGE_DEADLINE)));
    let ends = ends?;
    let empty = (ends.low == ends.high).then_some(ends.high);
    Ok(Lag { partition, projected: checkpoint?.map(|checkpoint| checkpoint.offset).or(empty), end: ends.high })
}

fn partitions_table(lags: &[Result<Lag, ApiError>]) -> Markup {
    let rows: Vec<Markup> = lags.iter().flatten().map(partition_row).collect();
    table(&["Partition", "#Projected to", "#End", "#Offsets behind"], &rows)
}

fn partition_row(lag: &Lag) -> Markup {
    let behind = lag.end - lag.projected.unwrap_or_default();
    html! {
        tr {
            td { (lag.partition) }
            td.number {
                @match lag.projected {
                    Some(offset) => { (count(offset)) } None => { span.quiet { "not begun" } }
                }
            }
            td.number { (count(lag.end)) }
            // The end of a transaction takes an offset without an event.
            td.number { (count(behind.max(0))) }
        }
    }
}
