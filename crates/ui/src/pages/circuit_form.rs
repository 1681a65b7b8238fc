//! Form of operators about the circuit of a type.

use kafleet_api::http::problem::{ApiError, Code};
use kafleet_api::service::operations;
use kafleet_documents::{CircuitState, SetCircuit};
use maud::html;

use super::types::find;
use super::{form, form_page};
use crate::parts::command::{curl, quoted};
use crate::parts::form::{Form, reason, select};
use crate::visit::{PageAnswer, Redirect, Visit};

/// Values of the form with their words.
const STATES: [(&str, &str); 3] = [
    ("auto", "each worker decides"),
    ("closed", "closed: it never opens"),
    ("open", "open: nothing starts, not even a probe"),
];

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let task_type = find(visit).await?;
    let name = &visit.segment;
    let now = task_type.circuit.as_ref().map_or("auto", |circuit| &*circuit.state);
    let totals = task_type.worker_totals.as_ref().filter(|totals| totals.circuit_open > 0);
    Ok(form_page(&Form {
        effect: html! {
            p { "Sets the circuit of " code { (name) } " in all workers, until it is left to each of them again." }
            @if let Some(totals) = totals {
                p { "It is open on " (totals.circuit_open) " of " (totals.workers) " workers: they start single probes only." }
            }
        },
        inputs: vec![
            select("state", "Circuit", &STATES, visit.value("state").unwrap_or(now)),
            reason(visit.value("reason")),
        ],
        commands: vec![
            format!("kafleet types circuit {} close --reason \"…\"", quoted(name)),
            curl("PUT", &format!("/v1/types/{name}/circuit"), Some("{\"state\": \"closed\", \"reason\": \"…\"}")),
        ],
        ..form(visit, &format!("/types/{name}"), "circuit", format!("Circuit of {name}"), "Set the circuit")
    }))
}

pub(in super::super) async fn set(visit: &Visit) -> Result<Redirect, ApiError> {
    let state = match visit.entered.get("state") {
        Some("open") => CircuitState::Open,
        Some("closed") => CircuitState::Closed,
        Some("auto") => CircuitState::Auto,
        _ => return Err(ApiError::new(Code::BadField, "`state` is not open, closed or auto").pointer("/state")),
    };
    operations::circuit(visit.context(), visit.subject(), SetCircuit { state, reason: visit.reason() }).await?;
    Ok(visit.after_control(format!("/types/{}", visit.segment), "circuit_set"))
}
