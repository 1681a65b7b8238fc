//! Messages at the top of a page.

use kafleet_config::Role;
use maud::{Markup, html};

use super::View;
use super::advice::{advice_text, detail_text};

/// Messages after actions by code: URLs carry codes, never text.
const DONE: &[(&str, &str)] = &[
    ("submitted", "The task was submitted."),
    ("submitted_many", "The tasks were submitted."),
    ("unique_started", "The task was submitted. It stands for its key while it is open."),
    (
        "unique_kept",
        "Kept: the params were taken over, and this task starts once its key permits it. A newer submission replaces them.",
    ),
    (
        "unique_joined",
        "Joined: this task stands for the key already. Nothing else was submitted, and the params entered were dropped.",
    ),
    ("key_forgotten", "The key was forgotten: the next submission starts at once."),
    ("exists", "The same task already existed; nothing was submitted."),
    ("cancel_requested", "The cancel was requested. Running attempts receive a request to stop."),
    ("retried", "The retry was accepted: the task runs again."),
    ("retried_failed", "The retry was accepted: the failed tasks run again."),
    ("started", "The task starts now."),
    ("started_held", "The task starts now. What may still hold it is named below."),
    ("changed", "The task was changed."),
    ("appended", "The lines were appended to the log."),
    ("attached", "The attachment was stored."),
    ("paused", "Paused."),
    ("resumed", "Resumed."),
    ("circuit_set", "The circuit was set and sent to the workers."),
    ("limits_set", "The limits were set and sent to the workers."),
    ("limits_reset", "The limits of the configuration apply again."),
    ("kill_switch_on", "The kill switch is on: matching tasks are cancelled instead of started."),
    ("kill_switch_off", "The kill switch is off."),
    ("view_saved", "The view was saved."),
    ("view_deleted", "The view was deleted."),
    ("schedule_created", "The schedule was created."),
    ("schedule_changed", "The schedule was changed."),
    ("schedule_deleted", "The schedule was deleted. Its tasks stay."),
    ("triggered", "The run was requested from the tracker."),
    ("backfilled", "The backfill was requested from the tracker."),
    ("bulk_ordered", "The bulk action was requested."),
    ("redriven", "The dead letter was redriven: its task runs again."),
    ("dropped", "The dead letter was dropped."),
    ("dropped_partly", "Some dead letters were dropped; those still listed were refused or are more than the limit."),
];

/// Shown in place of a value that cannot be read, with the reason folded.
pub(in super::super) fn unknown_value(name: &str, problem: &kafleet_documents::Problem) -> Markup {
    html! {
        details.more {
            summary { (name) " are not known." }
            p.quiet { (super::prose(detail_text(problem))) " " code { (problem.code) } }
        }
    }
}

/// Outcome of an action.
pub(in super::super) fn done_notice(code: &str) -> Markup {
    let notice = DONE.iter().find(|(notice, _)| *notice == code);
    html! { @if let Some((_, text)) = notice { p.notice.good role="status" { (text) } } }
}

/// Shown while the change that led to the page is not in the store yet.
pub(in super::super) fn behind_notice() -> Markup {
    html! {
        p.notice.attention role="status" {
            "Not visible yet: the change is written, but the projection has not reached it. Reload in a moment; if it \
             stays, check that a tracker is running."
        }
    }
}

/// Shown while the store does not cover these events partitions.
pub(in super::super) fn incomplete_notice(partitions: &[u32]) -> Markup {
    let listed: Vec<String> = partitions.iter().map(u32::to_string).collect();
    html! {
        @if !partitions.is_empty() {
            p.notice.attention role="status" {
                "The store is incomplete: it has lost data of events partitions " (listed.join(", ")) ", or no tracker \
                 projects them. Tasks are missing here or outdated, and numbers are too low, until they are projected."
            }
        }
    }
}

/// Note about a block that could not be read.
pub(in super::super) fn missing(subject: &str, problem: &kafleet_documents::Problem) -> Markup {
    html! {
        p.notice.attention {
            (subject) " cannot be shown: " (super::prose(detail_text(problem))) " "
            code { (problem.code) }
            @if let Some(advice) = advice_text(None, problem) { span.quiet { " – " (advice) } }
        }
    }
}

/// Contents of an empty list: the reason, and commands that change it.
pub(in super::super) fn empty(text: &str, commands: &[&str]) -> Markup {
    empty_with(text, commands, &html! {})
}

/// Contents of an empty list of tasks, for readers who may submit one.
pub(in super::super) fn no_task(view: &View) -> Markup {
    let button = html! { a.button.primary href=(view.url("/new")) { "New task" } };
    let action = if view.may(Role::Submit) {
        button
    } else {
        html! {}
    };
    empty_with(
        "No task has been submitted yet. Submit one:",
        &["kafleet submit echo '{\"hello\": \"world\"}'"],
        &action,
    )
}

fn empty_with(text: &str, commands: &[&str], action: &Markup) -> Markup {
    html! {
        div.empty {
            p { (text) }
            @for command in commands { pre { code { (command) } } }
            (action)
        }
    }
}
