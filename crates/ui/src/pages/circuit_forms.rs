//! Form of operators that sets the circuit of a type: after a start of waiting tasks an open circuit may still hold them.

use kafleet_api::http::problem::ApiError;
use kafleet_api::service::operations;
use kafleet_documents::{CircuitDocument, WorkerTotals};
use maud::html;
use serde_json::json;

use super::types::find;
use super::{form, form_page};
use crate::parts::command::{curl, quoted};
use crate::parts::form::{Form, reason, select};
use crate::visit::{PageAnswer, Redirect, Visit, document};

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

/// State that the form proposes: without the setting of an operator each worker closes the circuit again by itself.
fn proposed(circuit: Option<&CircuitDocument>) -> &'static str {
    if circuit.is_some() { "auto" } else { "closed" }
}

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let task_type = find(visit).await?;
    let name = &visit.segment;
    let chosen = visit.entered.get("state").unwrap_or(proposed(task_type.circuit.as_ref()));
    let options = STATES.map(|(value, _, label)| (value, label));
    let word = STATES.iter().find(|(value, ..)| *value == chosen).map_or("auto", |(_, word, _)| *word);
    let body = format!("{{\"state\": \"{chosen}\", \"reason\": \"…\"}}");
    Ok(form_page(&Form {
        effect: html! {
            p {
                "Sets the circuit of " code { (name) } " in all workers. While it is open, tasks of the type wait, also those that \
                 were started now."
            }
            @if let Some(totals) = task_type.worker_totals.as_ref().filter(|totals| totals.circuit_open > 0) {
                p { "It is open on " (totals.circuit_open) " of " (totals.workers) " workers: they start single probes only." }
            }
        },
        inputs: vec![select("state", "Circuit", &options, chosen), reason(visit.value("reason"))],
        commands: vec![
            format!("kafleet types circuit {} {word} --reason \"…\"", quoted(name)),
            curl("PUT", &format!("/v1/types/{name}/circuit"), Some(&body)),
        ],
        ..form(visit, &format!("/types/{name}"), "circuit", format!("Circuit of {name}"), "Set the circuit")
    }))
}

pub(in super::super) async fn set(visit: &Visit) -> Result<Redirect, ApiError> {
    let body = json!({"state": visit.entered.get("state"), "reason": visit.reason()});
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
