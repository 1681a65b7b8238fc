//! Rows of tasks.

use std::borrow::Cow;
use std::collections::BTreeMap;

use kafleet_api::read::causes::has_failed_below;
use kafleet_documents::{OwnFailed, Status, TaskSort};
use kafleet_model::record::state::State;
use maud::{Markup, html};

use super::clock::state_time;
use super::listing::Listing;
use super::progress::small_progress;
use super::state::{pill, word};
use super::task_columns::Layout;
use super::{View, count, first_line, prose};

/// Characters of an error in a row.
const ERROR_CHARS: usize = 80;

/// Rows of tasks, or cards on narrow screens. `prefix` keeps the ids of rows apart from those of other lists.
pub(in super::super) fn task_table(view: &View, prefix: &str, tasks: &[Status]) -> Markup {
    let causes = Causes::new();
    table(&Layout { view, prefix, causes: &causes, is_selectable: false, listing: None, sorts: &[] }, tasks)
}

/// Descendants through which listed tasks failed, by the id of the listed task.
pub(in super::super) type Causes = BTreeMap<String, Status>;

/// Tasks of a search.
pub(in super::super) struct FoundTasks<'a> {
    pub tasks: &'a [Status],
    pub listing: &'a Listing,
    /// Each order that the search permits.
    pub sorts: &'a [TaskSort],
    pub causes: &'a Causes,
    /// Number of matches, if it is known.
    pub total: Option<u64>,
}

/// Rows of tasks; with a form of actions on selected ones if the reader may act.
pub(in super::super) fn found_tasks(view: &View, found: &FoundTasks<'_>, may_act: bool) -> Markup {
    let FoundTasks { tasks, listing, sorts, causes, .. } = *found;
    let layout = Layout { view, prefix: "t", causes, is_selectable: may_act, listing: Some(listing), sorts };
    html! {
        @if may_act {
            form.choice action=(view.url("/bulk/new")) {
                (table(&layout, tasks))
                (selection_bar(found))
            }
        } @else { (table(&layout, tasks)) }
    }
}

/// Actions on the selected tasks. With the script, the bar appears with the selection.
fn selection_bar(found: &FoundTasks<'_>) -> Markup {
    html! {
        div.buttons role="toolbar" aria-label="selected tasks" {
            span.quiet.chosen { "the selected tasks" }
            label.all {
                input type="checkbox" name="all" value="yes"; " all "
                @if let Some(total) = found.total { (count(total)) " " } "that match the search"
            }
            input type="hidden" name="q" value=(found.listing.q);
            input type="hidden" name="selected" value="yes";
            button name="action" value="retry" { "Retry…" }
            button name="action" value="cancel" { "Cancel…" }
            button name="action" value="start_now" { "Start now…" }
            button.app type="button" data-press="copy-ids" { "Copy ids" }
            button.app type="button" data-press="clear-selection" { "Clear" }
        }
    }
}

fn table(layout: &Layout<'_>, tasks: &[Status]) -> Markup {
    html! {
        div.scroll {
            table.tasks {
                (layout.headings())
                tbody { @for task in tasks { (row(layout, task)) } }
            }
        }
    }
}

fn row(layout: &Layout<'_>, task: &Status) -> Markup {
    html! {
        tr id={ (layout.prefix) "-" (task.id) } data-task {
            @if layout.is_selectable {
                td.check { input type="checkbox" name="id" value=(task.id) aria-label={ "select " (task.id) }; }
            }
            (layout.values(task))
        }
    }
}

/// Children that have ended, and those without success also while the task is open: its end may be hours away.
pub(super) fn children(task: &Status) -> Markup {
    let children = &task.children;
    html! {
        // Before the counts, so that these end below each other.
        @if children.failed > 0 {
            span.error title="failed, expired or cancelled children" { (count(children.failed)) " ✘" } " "
        }
        @if children.total == 0 { span.quiet { "–" } }
        @else { (count(children.total - children.pending)) "/" (count(children.total)) }
    }
}

/// Error of a task, the one of a descendant through which it failed, or its progress and worker.
pub(super) fn detail(view: &View, task: &Status, cause: Option<&Status>) -> Markup {
    html! {
        (small_progress(task))
        @if has_failed_below(task) || task.error.is_some() {
            (error_of(view, task, cause))
        } @else if let Some(worker) = &task.worker {
            (worker_link(view, worker))
        }
    }
}

/// Error of a task, or the one of a descendant through which it failed.
pub(super) fn error_of(view: &View, task: &Status, cause: Option<&Status>) -> Markup {
    html! {
        @if has_failed_below(task) {
            (failed_below(view, task, cause))
        } @else if let Some(error) = &task.error {
            span.error[task.state != State::Cancelled].quiet[task.state == State::Cancelled]
                title=(first_line(&error.text(), 400)) { (prose(&first_line(&error.text(), ERROR_CHARS))) }
        }
    }
}

/// Number of the failed children of a task, and the error of a descendant that failed by itself.
fn failed_below(view: &View, task: &Status, cause: Option<&Status>) -> Markup {
    let children = &task.children;
    let error = cause.and_then(|cause| cause.error.as_ref()).map(|error| error.text());
    html! {
        span.error {
            @if children.failed > 0 { (count(children.failed)) " of " (count(children.total)) " failed" }
            @else { "a task below it failed" }
            @if let Some(cause) = cause {
                ": "
                a.error href=(view.task(&cause.id)) title={ (cause.id) ": " (first_line(error.as_deref().unwrap_or_default(), 400)) } {
                    @if let Some(name) = &cause.task_type { (name) " · " }
                    (prose(&first_line(error.as_deref().unwrap_or(cause.own_state.name()), ERROR_CHARS)))
                }
            }
        }
    }
}

pub(in super::super) fn type_link(view: &View, name: Option<&str>) -> Markup {
    html! {
        @match name {
            Some(name) => { a.plain href=(view.url(&format!("/types/{name}"))) { (name) } }
            None => { span.quiet { "–" } }
        }
    }
}

pub(in super::super) fn worker_link(view: &View, id: &str) -> Markup {
    html! { a.plain href=(view.url(&format!("/workers/{}", super::encoded(id)))) { (id) } }
}

/// Characters of an id above which only its last part is a heading.
const MAX_HEADING: usize = 80;
/// Maximum number of links to parents that are shown all.
const MAX_CRUMBS: usize = 8;
/// Characters of a parent that always have room.
const MAX_CRUMB: usize = 24;
/// Parents next to the task that are shown of a longer path.
const LAST_CRUMBS: usize = 4;

pub(in super::super) fn is_long(id: &str) -> bool {
    id.len() > MAX_HEADING
}

/// Characters at both ends of a long id in a list.
const LISTED_ENDS: usize = 30;

/// Id in a list: of a long one its beginning and its end.
pub(in super::super) fn middle_cut(id: &str) -> Cow<'_, str> {
    if !is_long(id) || !id.is_ascii() {
        return id.into();
    }
    format!("{}…{}", &id[..LISTED_ENDS], &id[id.len() - LISTED_ENDS..]).into()
}

/// Returns the part of an id that is its heading: of a long id the end, as the links to its parents show the rest.
pub(in super::super) fn short_id(id: &str) -> &str {
    if is_long(id) { id.rsplit(':').next().unwrap_or(id) } else { id }
}

/// Whether the style sheet may cut a part of an id.
fn is_cut(step: &str) -> bool {
    step.len() > MAX_CRUMB
}

/// Links from the root to the task. Of a long path, the root and the last ones.
pub(in super::super) fn breadcrumbs(view: &View, id: &str) -> Markup {
    let ends: Vec<usize> = id.match_indices(':').map(|(at, _)| at).chain([id.len()]).collect();
    let starts = std::iter::once(0).chain(ends.iter().map(|end| end + 1));
    let steps: Vec<(&str, &str)> = starts.zip(&ends).map(|(start, end)| (&id[..*end], &id[start..*end])).collect();
    let hidden = if steps.len() > MAX_CRUMBS { 1..steps.len() - LAST_CRUMBS - 1 } else { 0..0 };
    html! {
        nav.crumbs aria-label="parents" {
            @for (n, (path, step)) in steps.iter().enumerate().filter(|(n, _)| !hidden.contains(n)) {
                @if n > 0 { span.quiet aria-hidden="true" { "›" } }
                @if n == hidden.end && n > 0 {
                    span.quiet { (hidden.len()) " more" } span.quiet aria-hidden="true" { "›" }
                }
                @let whole = is_cut(step).then_some(step);
                @if n + 1 == steps.len() { strong title=[whole] { (step) } }
                @else { a href=(view.task(path)) title=[whole] { (step) } }
            }
        }
    }
}

/// Row of a task in its tree.
pub(in super::super) fn tree_row(view: &View, node: &Status, level: usize, toggle: Option<(&str, bool)>) -> Markup {
    html! {
        tr id={ "t-" (node.id) } data-task {
            td.id {
                span class={ "indent i" (level.min(12)) } {}
                (toggle_link(&node.id, toggle))
                (step_link(view, node))
            }
            td { (pill(node.state)) }
            td { (type_link(view, node.task_type.as_deref())) }
            td.span { (state_time(view, node)) }
            td.number { (children(node)) }
            td.detail {
                (small_progress(node))
                @if let Some(error) = &node.error { span.error { (prose(&first_line(&error.text(), ERROR_CHARS))) } }
            }
        }
    }
}

/// Link to a task, with the last part of its id as the text.
fn step_link(view: &View, node: &Status) -> Markup {
    let step = node.id.rsplit(':').next().unwrap_or(&node.id);
    html! {
        a href=(view.task(&node.id)) title=(node.id) { (step) }
        @if let Some(name) = &node.fields.name { span.name { (first_line(name, 60)) } }
    }
}

/// Link that opens or closes the children of a task.
fn toggle_link(id: &str, toggle: Option<(&str, bool)>) -> Markup {
    html! {
        @match toggle {
            Some((url, is_open)) => {
                a.toggle href=(url) aria-expanded=(is_open)
                aria-label={ "children of " (id) } { @if is_open { "▾" } @else { "▸" } }
            }
            None => { span.toggle {} }
        }
    }
}

/// Counts by state, as links to the tasks.
pub(in super::super) fn state_counts(counts: &[(State, u64)], link: impl Fn(State) -> String) -> Markup {
    state_counts_of_types(counts, None, link)
}

/// Numbers of tasks of types by their state, which includes the tasks below them. `own_failed`: those that failed by themselves.
pub(in super::super) fn state_counts_of_types(
    counts: &[(State, u64)],
    own_failed: Option<OwnFailed>,
    link: impl Fn(State) -> String,
) -> Markup {
    let all_failed: u64 =
        counts.iter().filter(|(state, _)| matches!(state, State::Failed | State::Expired)).map(|(_, n)| n).sum();
    let own_failed = own_failed.filter(|own| own.tasks < all_failed);
    let last_failed =
        counts.iter().map(|(state, _)| *state).rfind(|state| matches!(state, State::Failed | State::Expired));
    html! {
        ul.counts {
            @for (state, n) in counts {
                li {
                    a class=(super::state::tone(*state)) href=(link(*state)) { (count(n)) " " (word(*state)) }
                    @if let Some(own) = own_failed.filter(|_| last_failed == Some(*state)) {
                        span.quiet title="the others failed through a task below them" {
                            " (" @if own.at_least { "at least " } (count(own.tasks)) " by themselves)"
                        }
                    }
                }
            }
        }
    }
}
