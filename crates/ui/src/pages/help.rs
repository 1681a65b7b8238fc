//! Help: states, access, commands.

use kafleet_api::http::problem::ApiError;
use kafleet_model::record::state::State;
use maud::{Markup, html};

use crate::parts::search::language;
use crate::parts::state::pill;
use crate::visit::{Body, PageAnswer, Visit};

/// States with their meaning.
const MEANINGS: [(State, &str); State::COUNT] = [
    (State::Expected, "named by a child or an event, but not published yet"),
    (State::Scheduled, "starts at a later time"),
    (State::Queued, "in its topic, waits for a worker"),
    (State::Running, "a worker runs an attempt"),
    (State::Warning, "running, and the handler has reported a warning"),
    (State::Retrying, "an attempt failed; the next one follows after a backoff"),
    (State::Cancelling, "a cancel was requested; the attempt receives a request to stop"),
    (State::WaitingForChildren, "its own work is done; tasks below it are open"),
    (State::Succeeded, "it and all tasks below it have succeeded"),
    (State::Cancelled, "it, or a task below it, was cancelled"),
    (State::Expired, "it did not start in time, its record was removed, or its tree was too old"),
    (State::Failed, "its attempts are used up, its error is final, or a task below it failed"),
];

pub(in super::super) async fn show(_visit: &Visit) -> Result<PageAnswer, ApiError> {
    let main = html! {
        h1 { "Help" }
        section.panel {
            h2 { "States" }
            dl.facts.wide { @for (state, meaning) in MEANINGS { div { dt { (pill(state)) } dd { (meaning) } } } }
        }
        section.panel #search-language { h2 { "Search" } (language()) }
        (access())
        (shell_commands())
    };
    Ok(Body::new("Help", main).into())
}

fn access() -> Markup {
    html! {
        section.panel #access {
            h2 { "Access" }
            p {
                "Log in with a token of the api. Its role decides about actions: " code { "read" } " shows pages, "
                code { "submit" } " creates and changes tasks, " code { "operate" }
                " does everything else, and " code { "admin" } " also sees the values that types mask. Without configured tokens everyone who reaches this address may do everything; then it must be a loopback address."
            }
            p { "Requests are recorded with the name of the token: see " em { "By" } " in the history of a task." }
        }
    }
}

fn shell_commands() -> Markup {
    html! {
        section.panel {
            h2 { "Commands" }
            p { "Each page shows the commands that do the same. They need the address of the api and a token:" }
            pre { code { "export KAFLEET_API=http://127.0.0.1:8080\nexport KAFLEET_TOKEN=…" } }
            p { "All times are in UTC. A link to a page holds its whole state: a bookmark is a saved search." }
        }
    }
}
