//! Columns of lists of tasks: headings and values.

use kafleet_documents::{Status, TaskColumn, TaskSort};
use maud::{Markup, html};

use super::clock::state_time;
use super::listing::Listing;
use super::progress::small_progress;
use super::state::pill;
use super::tasks::{Causes, children, detail, error_of, is_long, middle_cut, type_link, worker_link};
use super::times::optional_time;
use super::{View, first_line, visible};

/// Length of an id up to which it stays on one line: a UUID with a short prefix.
const SHORT_ID: usize = 48;
/// Characters of a name in a row.
const NAME_CHARS: usize = 60;
/// Maximum number of tags in a row.
const MAX_TAGS: usize = 5;

/// List of tasks: its columns, and what its headings and rows lead to.
pub(in super::super) struct Layout<'a> {
    pub view: &'a View,
    /// Keeps the ids of rows apart from those of other lists.
    pub prefix: &'a str,
    pub causes: &'a Causes,
    pub is_selectable: bool,
    /// Search of the list, for its order and columns. `None`: the default columns.
    pub listing: Option<&'a Listing>,
    /// Each order that the search permits.
    pub sorts: &'a [TaskSort],
}

impl Layout<'_> {
    /// Columns that were chosen; the id leads to the task and is always one of them.
    fn chosen(&self) -> Option<Vec<TaskColumn>> {
        let columns = &self.listing?.columns.as_ref()?.0;
        let id = (!columns.contains(&TaskColumn::Id)).then_some(TaskColumn::Id);
        Some(id.into_iter().chain(columns.iter().copied()).collect())
    }

    pub(super) fn headings(&self) -> Markup {
        html! {
            thead {
                tr {
                    @if self.is_selectable {
                        th.check scope="col" {
                            span.hidden { "Select" }
                            input.app type="checkbox" data-whole-page aria-label="select all tasks of this page";
                        }
                    }
                    @match self.chosen() {
                        Some(columns) => { @for column in columns { (self.heading(column)) } }
                        None => { (self.default_headings()) }
                    }
                }
            }
        }
    }

    fn default_headings(&self) -> Markup {
        html! {
            th scope="col" { "State" }
            th scope="col" { "Task" }
            th scope="col" { "Type" }
            (self.heading(TaskColumn::Created))
            (self.heading(TaskColumn::Time))
            th.number scope="col" { "Children" }
            th scope="col" { "Worker or error" }
        }
    }

    fn heading(&self, column: TaskColumn) -> Markup {
        match column {
            TaskColumn::Created => self.sorted_heading("Created", TaskSort::Newest, TaskSort::Oldest),
            TaskColumn::Time => self.sorted_heading("Time", TaskSort::Newest, TaskSort::Longest),
            TaskColumn::Children => html! { th.number scope="col" { "Children" } },
            column => html! { th scope="col" { (title(column)) } },
        }
    }

    /// Heading that leads to an order, or back to the usual one.
    fn sorted_heading(&self, text: &str, usual: TaskSort, other: TaskSort) -> Markup {
        let Some(listing) = self.listing else { return html! { th scope="col" { (text) } } };
        let is_other = listing.sort == other;
        if !is_other && !self.sorts.contains(&other) {
            return html! { th scope="col" title=(unsorted_title(other)) { (text) } };
        }
        let (sort, arrow) = if is_other { (usual, " ↑") } else { (other, "") };
        let sorted = is_other.then_some("ascending");
        html! {
            th scope="col" aria-sort=[sorted] {
                a.plain href=(listing.url_sorted(self.view, sort)) title={ "sort: " (sort.name()) " first" } { (text) (arrow) }
            }
        }
    }

    pub(super) fn values(&self, task: &Status) -> Markup {
        let Some(columns) = self.chosen() else { return self.default_values(task) };
        html! {
            @for column in &columns {
                @match column {
                    TaskColumn::Id => { td.id { (self.id_link(task)) (superseded(task)) } }
                    column => { (self.value(*column, task)) }
                }
            }
        }
    }

    fn default_values(&self, task: &Status) -> Markup {
        html! {
            td { (pill(task.state)) }
            td.id {
                (self.id_link(task))
                @if let Some(name) = &task.fields.name { span.name { (first_line(name, NAME_CHARS)) } }
                (tags(self.view, task))
                (superseded(task))
            }
            td data-none[task.task_type.is_none()] { (type_link(self.view, task.task_type.as_deref())) }
            td.time { (optional_time(task.created_at.as_deref().or(task.seen_at.as_deref()))) }
            td.span data-none[task.state.is_terminal() && task.started_at.is_none()] { (state_time(self.view, task)) }
            td.number data-label="Children" data-none[task.children.total == 0] { (children(task)) }
            td.detail { (detail(self.view, task, self.causes.get(&task.id))) }
        }
    }

    fn value(&self, column: TaskColumn, task: &Status) -> Markup {
        let view = self.view;
        match column {
            TaskColumn::Id => html! { td.id { (self.id_link(task)) } },
            TaskColumn::Name => {
                html! { td.message { @if let Some(name) = &task.fields.name { (first_line(name, NAME_CHARS)) } } }
            }
            TaskColumn::Type => html! { td { (type_link(view, task.task_type.as_deref())) } },
            TaskColumn::State => html! { td { (pill(task.state)) } },
            TaskColumn::Created => time_value(task.created_at.as_deref().or(task.seen_at.as_deref())),
            TaskColumn::Started => time_value(task.started_at.as_deref()),
            TaskColumn::Ended => time_value(task.ended_at.as_deref()),
            TaskColumn::Time => html! { td.span { (state_time(view, task)) } },
            TaskColumn::Tags => html! { td { (tags(view, task)) } },
            TaskColumn::Children => {
                html! { td.number data-label="Children" data-none[task.children.total == 0] { (children(task)) } }
            }
            TaskColumn::Worker => {
                html! { td { @if let Some(worker) = &task.worker { (worker_link(view, worker)) } } }
            }
            TaskColumn::Error => html! { td.detail { (error_of(view, task, self.causes.get(&task.id))) } },
            TaskColumn::Progress => html! { td { (small_progress(task)) } },
            TaskColumn::Creator => {
                html! { td { (visible(task.fields.creator.as_deref().unwrap_or_default())) } }
            }
        }
    }

    fn id_link(&self, task: &Status) -> Markup {
        html! { a.whole[task.id.len() <= SHORT_ID] href=(self.view.task(&task.id)) title=[is_long(&task.id).then_some(&task.id)] { (middle_cut(&task.id)) } }
    }
}

fn time_value(text: Option<&str>) -> Markup {
    html! { td.time { (optional_time(text)) } }
}

fn superseded(task: &Status) -> Markup {
    html! { @if task.superseded { span.quiet { " superseded" } } }
}

/// Tags as links to the tasks that have them.
fn tags(view: &View, task: &Status) -> Markup {
    let tags = &task.fields.tags;
    html! {
        @if !tags.is_empty() {
            span.tags {
                @for tag in tags.iter().take(MAX_TAGS) {
                    a.tag href=(view.search(&super::search_text(&[("tag", tag)]))) { (first_line(tag, 24)) }
                }
                @if tags.len() > MAX_TAGS { span.quiet { "+" (tags.len() - MAX_TAGS) } }
            }
        }
    }
}

const fn title(column: TaskColumn) -> &'static str {
    match column {
        TaskColumn::Id => "Task",
        TaskColumn::Name => "Name",
        TaskColumn::Type => "Type",
        TaskColumn::State => "State",
        TaskColumn::Created => "Created",
        TaskColumn::Started => "Started",
        TaskColumn::Ended => "Ended",
        TaskColumn::Time => "Time",
        TaskColumn::Tags => "Tags",
        TaskColumn::Children => "Children",
        TaskColumn::Worker => "Worker",
        TaskColumn::Error => "Error",
        TaskColumn::Progress => "Progress",
        TaskColumn::Creator => "Creator",
    }
}

/// Reason for a heading that leads to no order.
const fn unsorted_title(sort: TaskSort) -> &'static str {
    match sort {
        TaskSort::Longest => {
            "sorted by time with an open state that has an index, such as state:running, or with from: or under:"
        }
        TaskSort::Newest | TaskSort::Oldest => {
            "sorted by age with a state that has an index, such as state:failed, or with from: or under:"
        }
    }
}
