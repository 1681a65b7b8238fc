//! Bulk actions: the newest ones, and the form that requests one, with a preview of its effect.

use kafleet_api::http::problem::{ApiError, Code};
use kafleet_api::service::bulk;
use kafleet_api::service::context::PAGE;
use kafleet_config::Role;
use kafleet_documents::{
    BulkAction, BulkOptions, BulkPreview, BulkProgress, BulkSample, BulkSelection, Problem, Status, UnchangedTasks,
};
use kafleet_model::query::TaskQuery;
use maud::{Markup, Render, html};
use serde_json::{Map, Value, json};

use super::bulk_action::{action_word, search_in_words};
use super::form;
use crate::parts::command::{commands, curl, curl_get, quoted};
use crate::parts::form::{Form, Input, MAX_UNCONFIRMED, reason, select};
use crate::parts::notice::{empty, missing};
use crate::parts::search::mistake;
use crate::parts::state::pill;
use crate::parts::table::cards;
use crate::parts::tasks::type_link;
use crate::parts::times::optional_time;
use crate::parts::words::in_words;
use crate::parts::{View, count, counted, encoded, first_line, prose, visible};
use crate::visit::{Body, PageAnswer, Redirect, Visit, after_position, document, scan_time, stored};

/// Search for all root tasks.
const ALL_ROOTS: &str = "level:roots";

const ACTIONS: [(BulkAction, &str, &str); 4] = [
    (
        BulkAction::Retry,
        "Retry",
        "Tasks that have ended run again, in a new run. Parents that failed only because of a descendant are skipped.",
    ),
    (BulkAction::RetryFailed, "Retry failed below", "The failed tasks in the trees of the selected ones run again."),
    (
        BulkAction::Cancel,
        "Cancel",
        "Open tasks are cancelled with everything below them, and running attempts receive a request to stop. A parent \
         ends as cancelled too, at best, unless its `max_failed` allows that.",
    ),
    (
        BulkAction::StartNow,
        "Start now",
        "Tasks that wait for their start or their next attempt start now. Only the delay ends: a pause, an open circuit, the \
         order of keys, slots and rate limits still hold them.",
    ),
];

pub(in super::super) async fn list(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let view = &visit.view;
    let page = stored(bulk::newest(&visit.api, PAGE)).await?;
    let main = html! {
        div.head {
            h1 { "Bulk actions" }
            @if view.may(Role::Operate) { div.actions { a.button href=(view.url("/bulk/new")) { "New bulk action…" } } }
        }
        p.quiet { "Cancels, retries and starts of many tasks at once. Each is a task of its own, which can be cancelled." }
        @if page.tasks.is_empty() {
            (empty("No bulk action has been requested recently. Select tasks on the page of tasks, or:", &["kafleet bulk retry 'type:resize state:failed'"]))
        } @else {
            section.panel { (listed(view, &page.tasks)) }
        }
        (commands(&["kafleet bulk list".to_owned(), curl_get("/v1/bulk")]))
    };
    Ok(Body::new("Bulk actions", main).into())
}

fn listed(view: &View, tasks: &[Status]) -> Markup {
    let rows: Vec<Markup> = tasks.iter().map(|task| row(view, task)).collect();
    cards(&["Action", "Tasks", "#Done", "By", "Reason", "When"], &rows)
}

fn row(view: &View, task: &Status) -> Markup {
    let (options, progress) = (BulkOptions::of(task), BulkProgress::of(task));
    let title = task.fields.name.as_deref().unwrap_or_default();
    let action = options.as_ref().map_or("Bulk action", |options| action_word(options.action));
    html! {
        tr id={ "b-" (task.id) } {
            td { (pill(task.state)) " " a href=(view.url(&bulk_path(&task.id))) title=(first_line(title, 400)) { (action) } }
            td.message { @if let Some(options) = &options { (prose(&first_line(&search_in_words(options), 160))) } }
            td.number { (count(progress.done)) }
            td { (visible(task.fields.creator.as_deref().unwrap_or("–"))) }
            td.message { (first_line(options.and_then(|options| options.reason).as_deref().unwrap_or_default(), 120)) }
            td.time { (optional_time(task.created_at.as_deref().or(task.seen_at.as_deref()))) }
        }
    }
}

fn bulk_path(id: &str) -> String {
    format!("/bulk/{}", encoded(id))
}

/// Selected tasks: those of a search, or of ids.
struct Selection {
    action: BulkAction,
    q: Option<String>,
    ids: Vec<String>,
}

impl Selection {
    fn of(visit: &Visit) -> Self {
        let name = visit.value("action").unwrap_or_default();
        let action = BulkAction::ALL.into_iter().find(|action| action.name() == name).unwrap_or(BulkAction::Retry);
        let fields = if visit.entered.is_empty() { &visit.query } else { &visit.entered };
        let ids = || fields.all("id").map(str::to_owned).collect();
        let q = fields.get("q").map(|q| q.trim().to_owned());
        // The list of tasks sends its search with its selected rows.
        match (fields.is_set("selected"), fields.is_set("all")) {
            (true, true) => Self { action, q: q.or_else(|| Some(ALL_ROOTS.to_owned())), ids: Vec::new() },
            (false, _) if q.is_some() => Self { action, q, ids: Vec::new() },
            _ => Self { action, q: None, ids: ids() },
        }
    }

    fn is_empty(&self) -> bool {
        self.q.is_none() && self.ids.is_empty()
    }

    fn body(&self) -> Map<String, Value> {
        let mut body = Map::from_iter([("action".to_owned(), json!(self.action))]);
        match &self.q {
            Some(q) => body.insert("q".to_owned(), q.as_str().into()),
            None => body.insert("ids".to_owned(), json!(self.ids)),
        };
        body
    }

    /// Search in words. Errors that it names are those of the tasks of the preview.
    fn in_words(&self, preview: &BulkPreview) -> Option<String> {
        let query = TaskQuery::parse(self.q.as_deref()?).ok()?;
        let error = preview.tasks.iter().find_map(|task| task.error.as_deref());
        Some(in_words(&query, error))
    }

    fn text(&self) -> String {
        self.q.clone().unwrap_or_else(|| format!("id:{}", self.ids.join(",")))
    }
}

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let selection = Selection::of(visit);
    let chooser = chooser(visit, &selection);
    if selection.is_empty() {
        let is_unselected = visit.query.is_set("selected");
        let main = html! {
            h1 { "New bulk action" }
            @if is_unselected { p.notice.attention role="status" { "No task was selected. Select tasks, or describe them by a search." } }
            (chooser)
        };
        return Ok(Body::new("New bulk action", main).into());
    }
    let preview = BulkSelection { action: selection.action, q: selection.q.clone(), ids: selection.ids.clone() };
    let form = match stored(bulk::preview(&visit.api, preview, scan_time())).await {
        Ok(preview) => request_form(visit, &selection, &preview),
        Err(error) => refused(&visit.view, &selection, &error.document()),
    };
    let main = html! { h1 { "New bulk action" } (chooser) (form) };
    Ok(Body::new("New bulk action", main).into())
}

fn refused(view: &View, selection: &Selection, problem: &Problem) -> Markup {
    let url = |q: &str| view.url_with("/bulk/new", &[("action", selection.action.name()), ("q", q)]);
    match (&selection.q, problem.span.is_some()) {
        (Some(text), true) => mistake(text, problem, url),
        _ => missing("The selection", problem),
    }
}

/// Form that chooses action and tasks.
fn chooser(visit: &Visit, selection: &Selection) -> Markup {
    let names: Vec<(&str, &str)> = ACTIONS.iter().map(|(action, name, _)| (action.name(), *name)).collect();
    let text = if selection.is_empty() { String::new() } else { selection.text() };
    let hint = "a search, such as type:resize state:failed from:2h";
    let search = Input::new("q", "Tasks", Some(&text)).required().hint(hint);
    html! {
        form.filters.choosing action=(visit.view.url("/bulk/new")) {
            (select("action", "Action", &names, selection.action.name()))
            div.wide { (search.render()) }
            div.buttons { button.primary[selection.is_empty()] type="submit" { "Preview" } }
        }
    }
}

/// Form that requests the action, with its effect.
fn request_form(visit: &Visit, selection: &Selection, preview: &BulkPreview) -> Markup {
    let (_, name, effect) =
        ACTIONS.iter().find(|(action, ..)| *action == selection.action).copied().unwrap_or(ACTIONS[0]);
    let default = default_limit(preview.changing).to_string();
    let limit = visit.entered.get("limit").unwrap_or(&default);
    Form {
        effect: effect_of(visit, selection, preview, effect),
        inputs: order_inputs(visit, selection, preview.changing, limit),
        danger: selection.action == BulkAction::Cancel,
        back: "/bulk".to_owned(),
        commands: order_commands(selection, limit),
        title: String::new(),
        ..form(visit, "/bulk", "new", "", button_text(name, preview))
    }
    .render()
}

/// Text of the button; empty if no task would change.
fn button_text(name: &str, preview: &BulkPreview) -> String {
    match preview.changing {
        0 if preview.exact => String::new(),
        1 => format!("{name} 1 task"),
        changing => format!("{name} {} tasks", count(changing)),
    }
}

fn order_inputs(visit: &Visit, selection: &Selection, changing: u64, limit: &str) -> Vec<Markup> {
    let hidden = |name: &str, value: &str| html! { input type="hidden" name=(name) value=(value); };
    let mut inputs = vec![hidden("action", selection.action.name()), hidden("expected", &changing.to_string())];
    match &selection.q {
        Some(q) => inputs.push(hidden("q", q)),
        None => inputs.extend(selection.ids.iter().map(|id| hidden("id", id))),
    }
    let limit_hint = "when more would change, the action stops there and fails";
    inputs.push(Input::new("limit", "Limit", Some(limit)).required().hint(limit_hint).render());
    if changing > MAX_UNCONFIRMED {
        let label = format!("To confirm, type {changing}");
        inputs.push(Input::new("confirm", &label, visit.entered.get("confirm")).required().render());
    }
    inputs.push(reason(visit.value("reason")));
    inputs
}

fn order_commands(selection: &Selection, limit: &str) -> Vec<String> {
    let action = selection.action.name().replace('_', "-");
    let body = Value::Object(selection.body()).to_string();
    vec![
        format!("kafleet bulk {action} {} --limit {limit}", quoted(&selection.text())),
        curl("POST", "/v1/bulk", Some(&body)),
    ]
}

fn effect_of(visit: &Visit, selection: &Selection, preview: &BulkPreview, effect: &str) -> Markup {
    let view = &visit.view;
    html! {
        @if let Some(words) = selection.in_words(preview) { p.quiet { (prose(&words)) } }
        p {
            strong { @if !preview.exact { "At least " } (count(preview.changing)) }
            " of " (counted(preview.matching, "matching task", "matching tasks"))
            " would change" @if !preview.exact { "; looked at " (count(preview.scanned)) " tasks, and there are more" } "."
        }
        @if !preview.unchanged.is_empty() {
            p { "The others stay as they are:" }
            ul.plain {
                @for UnchangedTasks { cause, tasks } in &preview.unchanged { li { (count(tasks)) ": " (visible(cause)) } }
            }
        }
        p { (prose(effect)) }
        @if !preview.tasks.is_empty() { (sample(view, preview)) }
    }
}

/// First tasks that would change.
fn sample(view: &View, preview: &BulkPreview) -> Markup {
    let rows: Vec<Markup> = preview.tasks.iter().map(|task| sample_row(view, task)).collect();
    html! {
        @if preview.changing > rows.len() as u64 { p.quiet { "The first " (rows.len()) " that would change:" } }
        (cards(&["State", "Task", "Type", "Error"], &rows))
    }
}

fn sample_row(view: &View, task: &BulkSample) -> Markup {
    html! {
        tr {
            td { (pill(task.state)) }
            td.id {
                a href=(view.task(&task.id)) { (task.id) }
                @if let Some(name) = &task.name { span.name { (first_line(name, 60)) } }
            }
            td { (type_link(view, task.task_type.as_deref())) }
            td.message { @if let Some(error) = &task.error { span.error { (first_line(error, 120)) } } }
        }
    }
}

/// Number of tasks of the preview, and a tenth more.
fn default_limit(changing: u64) -> u64 {
    changing.saturating_add(changing.div_ceil(10)).max(1)
}

pub(in super::super) async fn request(visit: &Visit) -> Result<Redirect, ApiError> {
    let expected = visit.entered.number::<u64>("expected")?.unwrap_or_default();
    if expected > MAX_UNCONFIRMED && visit.entered.number::<u64>("confirm")? != Some(expected) {
        let reason = format!("the action concerns {expected} tasks: type this number to confirm it");
        return Err(ApiError::new(Code::BadField, reason).pointer("/confirm"));
    }
    let mut body = Selection::of(visit).body();
    body.extend(visit.entered.number::<u64>("limit")?.map(|limit| ("limit".to_owned(), limit.into())));
    body.extend(visit.entered.get("reason").map(|reason| ("reason".to_owned(), reason.into())));
    let task = bulk::request(visit.context(), document(&body)?).await?;
    Ok(after_position(bulk_path(&task.id), task.position, "bulk_ordered"))
}
