//! Head of the pages of a task: parents, name, state, actions, and links to the other pages.

use kafleet_config::Role;
use kafleet_documents::Status;
use kafleet_model::record::state::Category;
use kafleet_model::task::TaskRunner;
use maud::{Markup, html};

use super::heading::heading;
use super::state::{pill, word};
use super::tasks::{breadcrumbs, short_id};
use super::{View, count, encoded, search_text};

/// Parents, state and actions of a task.
pub(in super::super) fn head(view: &View, status: &Status) -> Markup {
    html! {
        div.head {
            div {
                // The id of a root without a name is its heading.
                @if status.id.contains(':') || status.fields.name.is_some() { (breadcrumbs(view, &status.id)) }
                div.title {
                    (heading(status.fields.name.as_deref().unwrap_or_else(|| short_id(&status.id))))
                    (pill(status.state))
                    @if status.own_state != status.state { span.quiet { "(own: " (word(status.own_state)) ")" } }
                    @if status.superseded { span.quiet { "superseded" } }
                }
            }
            (actions(view, status))
        }
    }
}

fn actions(view: &View, status: &Status) -> Markup {
    let link =
        |page: &str, name: &str| html! { a.button href=(view.below_task(&status.id, page)) data-dialog { (name) } };
    let (is_open, runner) = (!status.state.is_terminal(), status.runner());
    html! {
        div.actions {
            @if runner == TaskRunner::BulkAction {
                a.button href=(view.url(&format!("/bulk/{}", encoded(&status.id)))) { "As a bulk action" }
            }
            @if view.may(Role::Operate) {
                @if is_open { (link("cancel", "Cancel…")) }
                @else if runner.can_be_retried() { (link("retry", "Retry…")) }
                @match (has_failed_tasks(status), is_open) {
                    (true, false) => { (link("retry-failed", "Retry failed…")) }
                    (true, true) => { a.button href=(retry_of_open_tree(view, &status.id)) { "Retry failed…" } }
                    (false, _) => {}
                }
            }
            @if view.may(Role::Submit) {
                @if status.waits_for_a_time() { (link("start-now", "Start now…")) }
                @if runner.can_be_changed() { (link("edit", "Edit…")) }
                @if runner.can_be_copied() {
                    a.button href=(view.url_with("/new", &[("like", &status.id)])) { "Submit a copy…" }
                }
            }
        }
    }
}

/// Whether a tree has failed tasks to retry, besides a task that cannot be retried itself.
fn has_failed_tasks(status: &Status) -> bool {
    let is_failed = status.state.category() == Category::Failed;
    let left_out = u64::from(is_failed && !status.runner().can_be_retried());
    status.tree.total > 1 && status.tree.failed > left_out
}

/// Bulk action on the tasks of an open tree that failed by themselves: a retry of the tree itself waits for its end.
fn retry_of_open_tree(view: &View, id: &str) -> String {
    let search = search_text(&[("under", id), ("own", "failed,expired"), ("level", "any")]);
    view.url_with("/bulk/new", &[("action", "retry"), ("q", &search)])
}

/// Pages of a task.
pub(in super::super) fn tabs(view: &View, status: &Status, current: &str) -> Markup {
    let (id, total) = (&status.id, status.tree.total);
    let tree = if total > 1 { format!("Tree {}", count(total)) } else { "Tree".to_owned() };
    let pages = [("tree", tree.as_str()), ("timeline", "Timeline"), ("log", "Log")];
    html! {
        nav.tabs aria-label="task" {
            a href=(view.task(id)) aria-current=[(current == "overview").then_some("page")] { "Overview" }
            @for (page, name) in pages {
                a href=(view.below_task(id, page)) aria-current=[(current == page).then_some("page")] { (name) }
            }
        }
    }
}
