//! Help: states, words, searches, keys, times, access, commands.

use kafleet_api::http::problem::ApiError;
use kafleet_model::record::state::State;
use kafleet_model::schedule::zone_names;
use maud::{Markup, html};

use crate::parts::View;
use crate::parts::frame::key_list;
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

/// Words of the pages with their meaning.
const WORDS: [(&str, &str); 16] = [
    ("run", "one life of a task, from its submission or a retry by a person to its end"),
    ("attempt", "one execution by a worker; a run has several if attempts fail and are repeated"),
    ("created", "time of the submission"),
    ("waited", "time from the creation to the first start"),
    (
        "ran",
        "time from the first start of a run to its end, with its retries and waits, and with its children up to the last end",
    ),
    ("total", "time from the creation to the end"),
    ("run time", "in charts and lists of types: time of a single attempt that succeeded"),
    ("slot", "place for one attempt at a time; a worker has a number of them for each type"),
    ("lag", "records of a type in Kafka that no worker has finished"),
    ("oldest", "age of the oldest of these records"),
    ("held back", "a partition whose finished records cannot be committed, because an earlier one is not finished"),
    ("circuit", "pause of a type whose service fails: its tasks wait, and a few attempts find out whether it is back"),
    (
        "key",
        "of unique tasks: one task of a type and key is open at a time; further submissions join it, or one is kept",
    ),
    ("kept", "a unique task that starts when the open one of its key has ended, or when it is due"),
    ("dead letter", "copy of a record whose task failed or that could not be read; it can be run again or dropped"),
    ("projection", "state of the tasks as computed from the events; pages show it, and it may lag behind them"),
];

/// Searches to try.
const EXAMPLES: [(&str, &str); 6] = [
    ("state:failed from:1h", "failed in the last hour"),
    ("is:open", "not ended yet"),
    ("state:running level:any", "running now, on all levels"),
    ("own:failed error:Timeout", "failed by themselves with an error of this kind"),
    ("tag:ci -creator:nightly", "with a tag, but not of this creator"),
    ("schedule:nightly", "created by a schedule"),
];

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let view = &visit.view;
    let main = html! {
        h1 { "Help" }
        section.panel {
            h2 { "States" }
            dl.facts.wide { @for (state, meaning) in MEANINGS { div { dt { (pill(state)) } dd { (meaning) } } } }
        }
        section.panel #words {
            h2 { "Words" }
            dl.facts.wide { @for (word, meaning) in WORDS { div { dt { (word) } dd { (meaning) } } } }
        }
        section.panel #search-language { h2 { "Search" } (language()) (examples(view)) }
        section.panel #keys { h2 { "Keys" } p { "With JavaScript, except in fields and dialogs:" } (key_list()) }
        (time_zone(view))
        (access())
        (shell_commands())
    };
    Ok(Body::new("Help", main).into())
}

fn examples(view: &View) -> Markup {
    html! {
        p { "Examples:" }
        ul.plain {
            @for (search, meaning) in EXAMPLES {
                li { a href=(view.search(search)) { code { (search) } } " – " (meaning) }
            }
        }
    }
}

/// Choice of any time zone, which needs no script.
fn time_zone(view: &View) -> Markup {
    html! {
        section.panel #time-zone {
            h2 { "Times" }
            p {
                "Times are in " strong { (view.zone.name) } ". A time of today has its age, another one its date; the tooltip \
                 has all of it. Fields for times take " code { "2026-01-31 12:00" } " in this zone, " code { "12:00" } " of today, \
                 RFC 3339, or an age such as " code { "2h" } ". Searches take RFC 3339 or an age."
            }
            form.searching method="post" action=(view.url("/zone")) {
                input type="hidden" name="next" value=(view.url("/help"));
                input name="zone" list="zones" required aria-label="Time zone" placeholder="Europe/Berlin" autocomplete="off";
                datalist #zones { @for name in zone_names() { option value=(name) {} } }
                button type="submit" { "Show times in this zone" }
            }
        }
    }
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
            p { "A link to a page holds its whole state: a bookmark is a saved search." }
        }
    }
}
