//! Form of operators that sets the circuit of a type: after a start of waiting tasks an open circuit may still hold them.

use std::collections::BTreeSet;

use kafleet_api::http::problem::ApiError;
use kafleet_api::service::{operations, workers};
use kafleet_config::Role;
use kafleet_documents::{CircuitDocument, HostDocument, TypeDocument, WorkerState, WorkerTotals};
use kafleet_model::task::action::CALLBACK_TYPE;
use maud::{Markup, Render, html};
use serde_json::json;

use super::type_page::circuit_text;
use super::types::find;
use super::{form, form_page};
use crate::parts::command::{curl, quoted};
use crate::parts::facts::facts;
use crate::parts::form::{Form, Input, reason, select};
use crate::parts::table::table;
use crate::parts::{View, count, counted, encoded, first_line, prose, visible};
use crate::visit::{PageAnswer, Redirect, Visit, document};

/// Reasons of workers that the form lists.
const LISTED_ERRORS: usize = 5;

/// States with the words of the command line, and their labels.
const STATES: [(&str, &str, &str); 3] = [
    ("closed", "close", "closed: it does not open"),
    ("auto", "auto", "automatic: each worker decides"),
    ("open", "open", "open: nothing starts, not even a probe"),
];

/// Text of the link on the page of a type; `None` while its circuit is closed and left to the workers.
pub(super) fn offer(totals: Option<&WorkerTotals>, circuit: Option<&CircuitDocument>) -> Option<&'static str> {
    let is_open = totals.is_some_and(|totals| totals.circuit_open > 0);
    match circuit.map(|circuit| circuit.state.as_str()) {
        Some("closed") => Some("Release the circuit…"),
        Some(_) => Some("Close the circuit…"),
        None => is_open.then_some("Close the circuit…"),
    }
}

/// Hosts of a type whose circuits are open in a worker or set by an operator.
pub(super) fn hosts_of(view: &View, task_type: &TypeDocument) -> Markup {
    let path = format!("/types/{}/circuit", task_type.name);
    let row = |host: &HostDocument| {
        html! {
            tr id={ "h-" (encoded(&host.host)) } {
                td { code { (visible(&host.host)) } }
                td { @match &host.circuit { Some(circuit) => { (circuit_text(circuit)) } None => { span.quiet { "automatic" } } } }
                td.number { (count(host.workers)) }
                td.number { (count(host.waiting)) }
                td { @if let Some(reason) = &host.reason { (prose(&first_line(reason, 120))) } }
                td {
                    @if view.may(Role::Operate) {
                        a href=(view.url_with(&path, &[("host", &host.host)])) data-dialog { "Set the circuit…" }
                    }
                }
            }
        }
    };
    let rows: Vec<Markup> = task_type.hosts.iter().map(row).collect();
    html! {
        @if !rows.is_empty() {
            section.panel #hosts {
                h2 { "Hosts with an open circuit, or one that is set" }
                (table(&["Host", "Set", "#Open on workers", "#Waiting there", "Last error", ""], &rows))
            }
        }
    }
}

fn host_input(host: Option<&str>) -> Markup {
    Input::new("host", "Host", host).hint("without one, the circuit of the type").render()
}

/// State of the circuit of a type, or of a host that it calls, with the errors that have opened it.
fn present_state(
    visit: &Visit,
    task_type: &TypeDocument,
    host: Option<&str>,
    circuit: Option<&CircuitDocument>,
) -> Markup {
    let open = match host {
        Some(host) => task_type.hosts.iter().find(|listed| listed.host == host).map_or(0, |listed| listed.workers),
        None => task_type.worker_totals.as_ref().map_or(0, |totals| totals.circuit_open),
    };
    let workers = task_type.worker_totals.as_ref().map_or(0, |totals| totals.workers);
    html! {
        section.panel {
            h2 { "Now" }
            (facts(&[
                ("Host", host.map(|host| html! { code { (visible(host)) } })),
                ("Set", Some(match circuit {
                    Some(circuit) => circuit_text(circuit),
                    None => html! { "automatic" span.quiet { ": each worker decides" } },
                })),
                ("Open", Some(html! {
                    @if open == 0 { "on no worker" }
                    @else { "on " (open) " of " (counted(workers, "worker", "workers")) ", which start single probes only" }
                })),
                ("Last errors", last_errors(visit, task_type, host)),
            ]))
        }
    }
}

/// Reasons for which workers have opened a circuit, each once.
fn last_errors(visit: &Visit, task_type: &TypeDocument, host: Option<&str>) -> Option<Markup> {
    let of_host = |host: &str| {
        let listed = task_type.hosts.iter().find(|listed| listed.host == host);
        BTreeSet::from_iter(listed.and_then(|listed| listed.reason.clone()))
    };
    let of_type = || {
        let workers = workers::worker_list(&visit.api).workers;
        let statuses =
            workers.iter().filter(|worker| worker.state == WorkerState::Alive).flat_map(|worker| &worker.types);
        let statuses = statuses.filter(|status| status.task_type == task_type.name);
        statuses.filter_map(|status| status.circuit.clone()).collect()
    };
    let reasons: BTreeSet<String> = host.map_or_else(of_type, of_host);
    (!reasons.is_empty()).then(|| {
        html! { @for reason in reasons.iter().take(LISTED_ERRORS) { p { (prose(&first_line(reason, 300))) } } }
    })
}

/// State that the form proposes: without the setting of an operator each worker closes the circuit again by itself.
fn proposed(circuit: Option<&CircuitDocument>) -> &'static str {
    if circuit.is_some() { "auto" } else { "closed" }
}

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let task_type = find(visit).await?;
    let name = &visit.segment;
    let host = visit.value("host").filter(|host| !host.is_empty());
    let of_host = host.and_then(|host| task_type.hosts.iter().find(|listed| listed.host == host));
    let present =
        if host.is_some() { of_host.and_then(|host| host.circuit.as_ref()) } else { task_type.circuit.as_ref() };
    let chosen = visit.entered.get("state").unwrap_or(proposed(present));
    let options = STATES.map(|(value, _, label)| (value, label));
    let word = STATES.iter().find(|(value, ..)| *value == chosen).map_or("auto", |(_, word, _)| *word);
    let member = host.map_or_else(String::new, |host| format!(", \"host\": {}", json!(host)));
    let option = host.map_or_else(String::new, |host| format!(" --host {}", quoted(host)));
    let body = format!("{{\"state\": \"{chosen}\"{member}, \"reason\": \"…\"}}");
    Ok(form_page(&Form {
        effect: html! {
            p {
                "Sets the circuit of " code { (name) } " in all workers. While it is open, tasks of the type wait, also those that \
                 were started now."
            }
        },
        beside: Some(present_state(visit, &task_type, host, present)),
        inputs: [
            Some(select("state", "Circuit", &options, chosen)),
            (name == CALLBACK_TYPE).then(|| host_input(host)),
            Some(reason(visit.value("reason"))),
        ]
        .into_iter()
        .flatten()
        .collect(),
        commands: vec![
            format!("kafleet types circuit {} {word}{option} --reason \"…\"", quoted(name)),
            curl("PUT", &format!("/v1/types/{name}/circuit"), Some(&body)),
        ],
        ..form(visit, &format!("/types/{name}"), "circuit", format!("Circuit of {name}"), "Set the circuit")
    }))
}

pub(in super::super) async fn set(visit: &Visit) -> Result<Redirect, ApiError> {
    let host = visit.entered.get("host").filter(|host| !host.is_empty());
    let body = json!({"state": visit.entered.get("state"), "host": host, "reason": visit.reason()});
    operations::circuit(visit.context(), visit.subject(), document(&body)?).await?;
    Ok(visit.after_control(format!("/types/{}", visit.segment), "circuit_set"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circuit_is_offered_while_it_is_open_or_set() {
        let of_state =
            |state: &str| CircuitDocument { state: state.into(), since: String::new(), reason: None, by: None };
        for (circuit_open, state, expected, chosen) in [
            (0, None, None, "closed"),
            (1, None, Some("Close the circuit…"), "closed"),
            (0, Some("open"), Some("Close the circuit…"), "auto"),
            (0, Some("closed"), Some("Release the circuit…"), "auto"),
        ] {
            let (totals, circuit) = (WorkerTotals { circuit_open, ..WorkerTotals::default() }, state.map(of_state));
            let found = (offer(Some(&totals), circuit.as_ref()), proposed(circuit.as_ref()));
            assert_eq!(found, (expected, chosen), "{circuit_open} {state:?}");
        }
    }
}
