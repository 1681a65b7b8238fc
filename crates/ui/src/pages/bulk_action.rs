//! Page of a bulk action: its specification, and what has become of the tasks.

use std::collections::BTreeMap;

use kafleet_api::http::problem::ApiError;
use kafleet_api::service::context::{After, MAX_PAGE, Paging};
use kafleet_api::service::{list, task};
use kafleet_config::Role;
use kafleet_documents::{BulkAction, BulkOptions, BulkProgress, BulkRefusal, Status, TaskPage};
use kafleet_model::query::{TaskQuery, Term, Test};
use kafleet_model::record::state::{Category, State};
use kafleet_model::task::TaskRunner;
use maud::{Markup, html};

use crate::parts::bar::outcome_bar;
use crate::parts::command::{commands, curl_get, quoted};
use crate::parts::facts::{code, facts, text};
use crate::parts::letters::{self, letter_link};
use crate::parts::notice::missing;
use crate::parts::state::{pill, tone, word};
use crate::parts::table::table;
use crate::parts::times::time;
use crate::parts::words::{in_words, search_title};
use crate::parts::{View, count, counted, prose, task_path, visible};
use crate::visit::{Body, PageAnswer, Visit, scan_time, stored, task_id};

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let status = stored(task::status(visit.context(), visit.id()?, After::default())).await?;
    let options = BulkOptions::of(&status).filter(|_| status.runner() == TaskRunner::BulkAction);
    let Some(options) = options else { return Ok(PageAnswer::Redirect(task_path(&visit.segment))) };
    let (view, progress) = (&visit.view, BulkProgress::of(&status));
    let now = stored(changed_tasks(visit, &progress)).await;
    let main = html! {
        (head(view, &status, &options))
        (specification(view, &status, &options))
        (outcome(&status, &progress))
        (present_states(view, &options, &progress, now))
        (refusals(view, &options, &progress))
        (commands(&[
            format!("kafleet status {}", quoted(&status.id)),
            curl_get(&format!("/v1/tasks/{}", status.id)),
        ]))
    };
    let title = format!("{} {}", action_word(options.action), title_of_selection(&options));
    Ok(PageAnswer::Page(Body { title, state: Some(status.state), main }))
}

/// Action as the beginning of a title.
pub(super) const fn action_word(action: BulkAction) -> &'static str {
    match action {
        BulkAction::Cancel => "Cancel",
        BulkAction::Retry => "Retry",
        BulkAction::RetryFailed => "Retry failed below",
        BulkAction::StartNow => "Start now",
        BulkAction::Redrive => "Redrive",
    }
}

/// Selection of a bulk action as a part of a title.
fn title_of_selection(options: &BulkOptions) -> String {
    if options.letters.is_some() || !options.ids.is_empty() {
        return options.selection();
    }
    let title = TaskQuery::parse(&options.q).map(|query| search_title(&query)).unwrap_or_default();
    if title.is_empty() { "tasks".to_owned() } else { title }
}

/// Selection of a bulk action in words.
pub(super) fn search_in_words(options: &BulkOptions) -> String {
    if let Some(letters) = &options.letters {
        return letters::in_words(letters);
    }
    if !options.ids.is_empty() {
        return counted(options.ids.len() as u64, "selected dead letter", "selected dead letters");
    }
    match TaskQuery::parse(&options.q) {
        Ok(query) => in_words(&query, options.error.as_deref()),
        Err(_) => options.q.clone(),
    }
}

fn head(view: &View, status: &Status, options: &BulkOptions) -> Markup {
    let is_open = !status.state.is_terminal();
    html! {
        div.head {
            div.title { h1 { "Bulk action: " (action_word(options.action)) } (pill(status.state)) }
            div.actions {
                @if view.may(Role::Operate) && is_open {
                    a.button href=(view.below_task(&status.id, "cancel")) data-dialog { "Cancel…" }
                }
            }
        }
    }
}

fn specification(view: &View, status: &Status, options: &BulkOptions) -> Markup {
    let at = |text: &Option<String>| text.as_deref().map(time);
    html! {
        section.panel {
            (facts(&[
                ("Tasks", Some(prose(&search_in_words(options)))),
                ("Search", Some(code(&options.selection()))),
                ("Changed params", options.patch.as_ref().map(|patch| code(&visible(patch.text())))),
                ("By", options.by.as_deref().and_then(|by| text(visible(by)))),
                ("Reason", options.reason.as_deref().and_then(|reason| text(visible(reason)))),
                ("Limit", text(counted(options.limit, "task", "tasks"))),
                ("Requested", at(&status.created_at)),
                ("Ended", at(&status.ended_at)),
                (
                    "Task",
                    Some(html! {
                        a href=(view.task(&status.id)) { code { (status.id) } }
                        @if let Some(name) = &status.task_type { span.quiet { " of type " (name) } }
                    }),
                ),
            ]))
        }
    }
}

/// Numbers of the tasks that match, by what the action did with them.
fn outcome(status: &Status, progress: &BulkProgress) -> Markup {
    let BulkProgress { done, skipped, refused, .. } = progress;
    html! {
        section.panel #outcome {
            h2 { "Outcome " @if !status.state.is_terminal() { span.quiet { "so far" } } }
            (outcome_bar(&[
                (State::Succeeded, "done", *done),
                (State::Cancelled, "skipped", *skipped),
                (State::Failed, "refused", *refused),
            ]))
            p {
                strong { (count(done)) " done" } ", " (count(skipped)) " skipped"
                @if *skipped > 0 { ", as the action does not apply to " @if *skipped == 1 { "it" } @else { "them" } }
                ", " (count(refused)) " refused"
            }
            @if let Some(error) = &status.error { p.error { (visible(&error.message)) } }
        }
    }
}

/// Query for the changed tasks that the progress lists.
fn changed(progress: &BulkProgress) -> Option<TaskQuery> {
    let ids: Vec<_> = progress.changed.iter().filter_map(|id| task_id(id).ok()).collect();
    (!ids.is_empty()).then(|| TaskQuery { terms: vec![Term { negated: false, test: Test::Id(ids) }] })
}

async fn changed_tasks(visit: &Visit, progress: &BulkProgress) -> Result<TaskPage, ApiError> {
    let Some(query) = changed(progress) else { return Ok(TaskPage::default()) };
    let paging = Paging { cursor: None, limit: MAX_PAGE };
    list::list(visit.context(), query, paging, After::default(), scan_time()).await
}

/// States that the changed tasks have now.
fn present_states(
    view: &View,
    options: &BulkOptions,
    progress: &BulkProgress,
    now: Result<TaskPage, ApiError>,
) -> Markup {
    let page = match now {
        Ok(page) => page,
        Err(error) => return missing("The present states of the tasks", &error.document()),
    };
    let mut states: BTreeMap<State, u64> = BTreeMap::new();
    for task in &page.tasks {
        *states.entry(task.state).or_default() += 1;
    }
    let listed = progress.changed.len() as u64;
    html! {
        @if !states.is_empty() {
            section.panel #now {
                h2 {
                    "Now " @if progress.done > listed { span.quiet { "of the first " (counted(listed, "task", "tasks")) } }
                }
                ul.counts {
                    @for (state, number) in &states {
                        li {
                            a class=(tone(*state)) href=(search_of(view, progress, *state)) {
                                (count(number)) " " (state_now(options.action, *state))
                            }
                        }
                    }
                    @if !page.missing.is_empty() { li.quiet { (page.missing.len()) " removed" } }
                }
            }
        }
    }
}

/// State in words: tasks that were retried have failed again.
fn state_now(action: BulkAction, state: State) -> String {
    let is_retry = matches!(action, BulkAction::Retry | BulkAction::Redrive);
    if is_retry && state.category() == Category::Failed { format!("{} again", word(state)) } else { word(state) }
}

fn search_of(view: &View, progress: &BulkProgress, state: State) -> String {
    let mut query = changed(progress).unwrap_or_default();
    query.terms.push(Term { negated: false, test: Test::State(vec![state]) });
    view.search(&query.to_string())
}

/// Row of a refused task, or of a refused dead letter.
fn refusal_row(view: &View, action: BulkAction, refusal: &BulkRefusal) -> Markup {
    html! {
        tr {
            td.id {
                @if action == BulkAction::Redrive { (letter_link(view, &refusal.id)) }
                @else { a href=(view.task(&refusal.id)) { (refusal.id) } }
            }
            td.message { (prose(&refusal.cause)) }
        }
    }
}

fn refusals(view: &View, options: &BulkOptions, progress: &BulkProgress) -> Markup {
    let action = options.action;
    let rows: Vec<Markup> = progress.refusals.iter().map(|refusal| refusal_row(view, action, refusal)).collect();
    let subject = if action == BulkAction::Redrive { "Dead letter" } else { "Task" };
    html! {
        @if !progress.refusals.is_empty() {
            section.panel #refused {
                h2 {
                    "Refused " @if progress.refused > progress.refusals.len() as u64 {
                        span.quiet { "the first " (progress.refusals.len()) " of " (count(progress.refused)) }
                    }
                }
                (table(&[subject, "Cause"], &rows))
            }
        }
    }
}
