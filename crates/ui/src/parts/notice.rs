//! Messages at the top of a page.

use kafleet_config::Role;
use kafleet_model::unique::AskVerdict;
use maud::{Markup, html};

use super::advice::{advice_text, detail_text};
use super::{View, count, visible};

/// Place of the subject's id in a message.
const SUBJECT: &str = "{}";

/// Messages after actions by code: URLs carry codes, never text.
const DONE: &[(&str, &str)] = &[
    ("submitted", "The task was submitted."),
    ("submitted_many", "The tasks were submitted."),
    ("unique_started", "Started: the task {} was submitted. It stands for its key while it is open."),
    (
        "unique_kept",
        "Kept: the params were taken over, and {} starts once its key permits it. A newer submission replaces them.",
    ),
    (
        "unique_joined",
        "Joined {}: this task stands for the key already. Nothing else was submitted, and the params entered were dropped.",
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
pub(in super::super) struct ActionNotice<'a> {
    /// Code of the message.
    pub code: &'a str,
    /// Id of what the page shows.
    pub subject: &'a str,
    /// Path below the base path of the task or the list in which the result stands.
    pub there: Option<&'a str>,
    pub verdicts: Verdicts,
}

/// Numbers of unique tasks that were submitted, by verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Verdicts {
    pub started: u64,
    pub kept: u64,
    pub joined: u64,
    /// Ids of the first tasks that others have joined.
    pub named: Vec<String>,
}

impl Verdicts {
    /// Adds a submission for which a task stands.
    pub(in super::super) fn add(&mut self, verdict: AskVerdict, standing: &str) {
        match verdict {
            AskVerdict::Started => self.started += 1,
            AskVerdict::Kept => self.kept += 1,
            AskVerdict::Joined => {
                self.joined += 1;
                if !self.named.iter().any(|named| named == standing) {
                    self.named.push(standing.to_owned());
                }
            }
        }
    }

    pub(in super::super) const fn numbers(&self) -> [(AskVerdict, u64); 3] {
        [(AskVerdict::Started, self.started), (AskVerdict::Kept, self.kept), (AskVerdict::Joined, self.joined)]
    }

    pub(in super::super) const fn is_empty(&self) -> bool {
        self.started + self.kept + self.joined == 0
    }
}

/// Message about an action, with a link to its result if that stands elsewhere.
pub(in super::super) fn done_notice(view: &View, done: &ActionNotice<'_>) -> Markup {
    let notice = DONE.iter().find(|(notice, _)| *notice == done.code);
    html! {
        @if let Some((_, text)) = notice {
            p.notice.good role="status" {
                @match text.split_once(SUBJECT) {
                    Some((before, after)) => { (before) code { (visible(done.subject)) } (after) }
                    None => { (text) }
                }
                @if !done.verdicts.is_empty() { (verdicts_text(view, &done.verdicts)) }
                @if let Some(there) = done.there { " " a href=(view.url(there)) { "Go there" } }
            }
        }
    }
}

/// Numbers of unique tasks in words, with links to those that others have joined.
fn verdicts_text(view: &View, verdicts: &Verdicts) -> Markup {
    let numbers = verdicts.numbers().into_iter().filter(|(_, number)| *number > 0);
    let words = numbers.map(|(verdict, number)| {
        let word = match verdict {
            AskVerdict::Kept if number == 1 => "is kept",
            AskVerdict::Kept => "are kept",
            verdict => verdict.name(),
        };
        format!("{} {word}", count(number))
    });
    html! {
        " Of the unique ones, " (words.collect::<Vec<_>>().join(", "))
        @for (n, id) in verdicts.named.iter().enumerate() {
            @if n == 0 { " " } @else { ", " } a href=(view.task(id)) { code { (visible(id)) } }
        }
        "."
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(code: &str, there: Option<&str>, verdicts: Verdicts) -> String {
        let view = View { base: "/base".into(), ..View::for_tests(Role::Read) };
        done_notice(&view, &ActionNotice { code, subject: "echo~k~~<a", there, verdicts }).into_string()
    }

    #[test]
    fn message_leads_to_the_result() {
        let text = shown("bulk_ordered", Some("/tasks?q=type%3Aecho"), Verdicts::default());
        assert!(text.ends_with("requested. <a href=\"/base/tasks?q=type%3Aecho\">Go there</a></p>"), "{text}");
        assert!(!shown("bulk_ordered", None, Verdicts::default()).contains("<a"));
        assert_eq!(shown("<script>", Some("/tasks"), Verdicts::default()), "", "only known messages are shown");
    }

    #[test]
    fn verdict_about_a_unique_task_names_it() {
        for (code, start) in [
            ("unique_started", "Started: the task <code>echo~k~~&lt;a</code> was submitted."),
            ("unique_kept", "Kept: the params were taken over, and <code>echo~k~~&lt;a</code> starts"),
            ("unique_joined", "Joined <code>echo~k~~&lt;a</code>: this task stands for the key already."),
        ] {
            let text = shown(code, None, Verdicts::default());
            assert!(text.contains(start), "{text}");
        }
    }

    #[test]
    fn verdicts_about_many_tasks_are_counted_and_name_the_joined_ones() {
        let mut verdicts = Verdicts::default();
        verdicts.add(AskVerdict::Started, "a");
        verdicts.add(AskVerdict::Kept, "b");
        verdicts.add(AskVerdict::Joined, "c");
        verdicts.add(AskVerdict::Joined, "c");
        let text = shown("submitted_many", None, verdicts);
        let joined = "Of the unique ones, 1 started, 1 is kept, 2 joined <a href=\"/base/tasks/c\"><code>c</code></a>";
        assert!(text.contains(joined) && text.ends_with("</a>.</p>"), "{text}");
    }
}
