//! Named views of tasks: index, the list of a view, and forms that save, change and delete them.

use kafleet_api::http::problem::{ApiError, Code};
use kafleet_api::service::views::{self, ViewName, near_names};
use kafleet_config::Role;
use kafleet_documents::{SetView, TaskColumn, TaskColumns, TaskSort, ViewDocument, Views};
use kafleet_model::query::TaskQuery;
use maud::{Markup, Render, html};

use super::tasks::{search_page, shown};
use super::{form, form_page};
use crate::parts::command::{commands, curl, curl_get};
use crate::parts::form::{Form, Input, select};
use crate::parts::listing::Listing;
use crate::parts::notice::empty;
use crate::parts::table::table;
use crate::parts::times::time;
use crate::parts::words::search_title;
use crate::parts::{View, optional_text, visible};
use crate::visit::{Body, PageAnswer, Redirect, Visit, from_kafka, stored};

/// Views that the reader may see.
async fn visible_views(visit: &Visit) -> Result<Views, ApiError> {
    from_kafka(views::list(visit.context())).await
}

pub(in super::super) async fn list(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let main = index(&visit.view, &visible_views(visit).await?, None);
    Ok(Body::new("Views", main).into())
}

/// Index of the views. `missing`: name of a view that does not exist.
fn index(view: &View, views: &Views, missing: Option<&str>) -> Markup {
    let rows: Vec<Markup> = views.views.iter().map(|saved| row(view, saved)).collect();
    html! {
        div.head {
            h1 { "Views" }
            @if view.may(Role::Operate) { div.actions { a.button href=(view.url("/new-view")) data-dialog { "New view…" } } }
        }
        @if let Some(name) = missing { (missing_view(view, views, name)) }
        p { "A view is a search for tasks with its order and columns under a name." }
        @if rows.is_empty() {
            (empty("No view has been saved. To save one:", &["kafleet views set failed-today 'state:failed from:24h'"]))
        } @else {
            section.panel { (table(&["View", "Tasks", "Description", "Seen by", "By", "Changed", ""], &rows)) }
        }
        (commands(&["kafleet views".to_owned(), curl_get("/v1/views")]))
    }
}

fn missing_view(view: &View, views: &Views, name: &str) -> Markup {
    let near = near_names(views, name);
    html! {
        div.notice.attention role="alert" {
            p { "There is no view " code { (visible(name)) } "." }
            @if !near.is_empty() {
                p {
                    "Did you mean "
                    @for (n, name) in near.iter().enumerate() {
                        @if n > 0 { ", " } a href=(view.url(&format!("/v/{name}"))) { (name) }
                    }
                    "?"
                }
            }
        }
    }
}

fn row(view: &View, saved: &ViewDocument) -> Markup {
    let path = format!("/v/{}", saved.name);
    html! {
        tr id={ "v-" (saved.name) } {
            td.id { a href=(view.url(&path)) title=(visible(&saved.q)) { (saved.name) } }
            td.message { (visible(&tasks_of(saved))) }
            td.message { (visible(saved.description.as_deref().unwrap_or_default())) }
            td { (saved.role.name()) @if saved.role != Role::Admin { " and above" } }
            td { (optional_text(saved.by.as_deref())) }
            td.time { (time(&saved.changed_at)) }
            td.action {
                @if view.may(Role::Operate) {
                    a.button href=(view.url(&format!("{path}/edit"))) data-dialog { "Edit…" } " "
                    a.button href=(view.url(&format!("{path}/delete"))) data-dialog { "Delete…" }
                }
            }
        }
    }
}

/// Search and order of a view in a few words.
fn tasks_of(saved: &ViewDocument) -> String {
    let title = TaskQuery::parse(&saved.q).map(|query| search_title(&query)).unwrap_or_default();
    let tasks = if title.is_empty() { "all tasks" } else { &title };
    match saved.sort {
        TaskSort::Newest => tasks.to_owned(),
        sort => format!("{tasks}, {} first", sort.name()),
    }
}

/// List of the tasks of a view. A name without a view leads to the index.
pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let saved = match saved_view(visit).await {
        Ok(saved) => saved,
        Err(error) if error.is(Code::UnknownView) || error.is(Code::BadView) => {
            let main = index(&visit.view, &visible_views(visit).await?, Some(&visit.segment));
            return Ok(PageAnswer::Missing(Body::new("Unknown view", main)));
        }
        Err(error) => return Err(error),
    };
    let listing = listing_of(&saved);
    let heading = (format!("{} · Tasks", saved.name), head(&visit.view, &saved));
    shown(visit, &listing, Some(heading), stored(search_page(visit, &listing))).await
}

async fn saved_view(visit: &Visit) -> Result<ViewDocument, ApiError> {
    let name: ViewName = visit.segment.parse()?;
    from_kafka(views::show(visit.context(), name)).await
}

fn listing_of(saved: &ViewDocument) -> Listing {
    let columns = (!saved.columns.is_empty()).then(|| TaskColumns(saved.columns.clone()));
    Listing { q: saved.q.clone(), sort: saved.sort, columns }
}

fn head(view: &View, saved: &ViewDocument) -> Markup {
    html! {
        div.head {
            div {
                h1 { (saved.name) }
                p.quiet {
                    (visible(saved.description.as_deref().unwrap_or_default())) " "
                    a href=(view.url("/v")) { "All views" }
                }
            }
            @if view.may(Role::Operate) {
                div.actions { a.button href=(view.url(&format!("/v/{}/edit", saved.name))) data-dialog { "Edit view…" } }
            }
        }
    }
}

pub(in super::super) async fn show_new(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let name = Input::new("name", "Name", visit.value("name")).required().hint("a-z, 0-9 and -, at most 40 characters");
    let mut inputs = vec![name.render()];
    inputs.extend(view_inputs(|field| visit.value(field).map(str::to_owned)));
    Ok(form_page(&Form {
        effect: html! { p { "The view is in the menu and at its own address, for all who may see it." } },
        inputs,
        back: "/v".into(),
        commands: vec!["kafleet views set NAME 'QUERY'".into(), curl("PUT", "/v1/views/NAME", Some("{\"q\": \"…\"}"))],
        ..form(visit, "/new-view", "", "Save as view", "Save")
    }))
}

const fn order_words(sort: TaskSort) -> &'static str {
    match sort {
        TaskSort::Newest => "newest first",
        TaskSort::Oldest => "oldest first",
        TaskSort::Longest => "longest in their state first",
    }
}

/// Inputs of a view with its present values.
fn view_inputs(value: impl Fn(&str) -> Option<String>) -> Vec<Markup> {
    let text =
        |name: &str, label: &str, hint: &str| Input::new(name, label, value(name).as_deref()).hint(hint).render();
    let sorts = TaskSort::ALL.map(|sort| (sort.name(), order_words(sort)));
    let names = TaskColumn::ALL.map(TaskColumn::name).join(", ");
    let roles = Role::ALL.map(|role| (role.name(), role.name()));
    vec![
        text("q", "Tasks", "a search, such as type:resize state:failed from:24h"),
        select("sort", "Order", &sorts, value("sort").as_deref().unwrap_or_default()),
        text("columns", "Columns", &format!("separated by commas, of {names}; default: those of the list of tasks")),
        text("description", "Description", ""),
        select("role", "Seen from this role up", &roles, value("role").as_deref().unwrap_or_default()),
    ]
}

pub(in super::super) async fn create(visit: &Visit) -> Result<Redirect, ApiError> {
    let name = visit.entered.get("name").unwrap_or_default().trim().to_owned();
    let known = visible_views(visit).await?.views;
    if known.iter().any(|view| view.name == name) {
        let reason = format!("the view `{name}` already exists: choose another name, or edit that view");
        return Err(ApiError::new(Code::BadField, reason).pointer("/name"));
    }
    save(visit, &name, "view_saved").await
}

pub(in super::super) async fn show_edit(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let saved = saved_view(visit).await?;
    let present = |field: &str| match field {
        "q" => Some(saved.q.clone()),
        "sort" => Some(saved.sort.name().to_owned()),
        "columns" => Some(TaskColumns(saved.columns.clone()).text()),
        "description" => saved.description.clone(),
        _ => Some(saved.role.name().to_owned()),
    };
    let is_entered = !visit.entered.is_empty();
    let value = |field: &str| if is_entered { visit.entered.get(field).map(str::to_owned) } else { present(field) };
    let path = format!("/v/{}", saved.name);
    Ok(form_page(&Form {
        effect: html! { p { "The view changes for all who see it." } },
        inputs: view_inputs(value),
        back: path.clone(),
        commands: vec![
            format!("kafleet views set {} 'QUERY'", saved.name),
            curl("PUT", &format!("/v1/views/{}", saved.name), Some("{\"q\": \"…\"}")),
        ],
        ..form(visit, &path, "edit", format!("Edit the view {}", saved.name), "Save")
    }))
}

pub(in super::super) async fn edit(visit: &Visit) -> Result<Redirect, ApiError> {
    save(visit, &visit.segment, "view_saved").await
}

async fn save(visit: &Visit, name: &str, done: &'static str) -> Result<Redirect, ApiError> {
    let view = entered_view(visit)?;
    views::set(visit.context(), name.parse()?, view).await?;
    Ok(visit.after_control(format!("/v/{name}"), done))
}

fn entered_view(visit: &Visit) -> Result<SetView, ApiError> {
    let given = |name: &str| visit.entered.get(name).map(str::trim);
    let wrong = |error: String, pointer: &str| ApiError::new(Code::BadField, error).pointer(pointer);
    let sort = given("sort").map(str::parse::<TaskSort>).transpose().map_err(|error| wrong(error, "/sort"))?;
    let columns = given("columns").map(str::parse::<TaskColumns>).transpose();
    let columns = columns.map_err(|error| wrong(error, "/columns"))?;
    let role = Role::ALL.into_iter().find(|role| Some(role.name()) == given("role"));
    Ok(SetView {
        q: given("q").unwrap_or_default().to_owned(),
        sort: sort.unwrap_or_default(),
        columns: columns.map(|columns| columns.0).unwrap_or_default(),
        description: given("description").map(str::to_owned),
        role: role.unwrap_or_default(),
    })
}

pub(in super::super) async fn show_delete(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let name = &visit.segment;
    Ok(form_page(&Form {
        effect: html! { p { "The view " code { (visible(name)) } " is deleted for all. Its tasks stay." } },
        back: "/v".into(),
        danger: true,
        commands: vec![
            format!("kafleet views delete {}", crate::parts::command::quoted(name)),
            curl("DELETE", &format!("/v1/views/{}", crate::parts::encoded(name)), None),
        ],
        ..form(
            visit,
            &format!("/v/{}", crate::parts::encoded(name)),
            "delete",
            format!("Delete the view {name}"),
            "Delete",
        )
    }))
}

pub(in super::super) async fn delete(visit: &Visit) -> Result<Redirect, ApiError> {
    views::delete(visit.context(), visit.segment.parse()?).await?;
    Ok(visit.after_control("/v", "view_deleted"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(q: &str, sort: TaskSort) -> ViewDocument {
        ViewDocument {
            name: "failed-charges".into(),
            q: q.into(),
            sort,
            columns: Vec::new(),
            description: Some("<b>of today</b>".into()),
            role: Role::Read,
            by: Some("ada".into()),
            changed_at: "2026-01-31T12:00:00.000Z".into(),
        }
    }

    #[test]
    fn index_describes_views_and_offers_changes_to_operators() {
        let views = Views { views: vec![saved("type:charge state:failed", TaskSort::Oldest)] };
        let drawn = index(&View::for_tests(Role::Operate), &views, None).into_string();
        for expected in
            ["href=\"/v/failed-charges\"", "failed charge, oldest first", "&lt;b&gt;of today", "ada", "Delete…"]
        {
            assert!(drawn.contains(expected), "{expected}: {drawn}");
        }
        assert!(!index(&View::for_tests(Role::Submit), &views, None).into_string().contains("Delete…"));
    }

    #[test]
    fn unknown_name_is_shown_with_near_ones() {
        let views = Views { views: vec![saved("", TaskSort::Newest)] };
        let drawn = index(&View::for_tests(Role::Read), &views, Some("charges")).into_string();
        assert!(drawn.contains("There is no view <code>charges</code>"), "{drawn}");
        assert!(drawn.contains("Did you mean <a href=\"/v/failed-charges\">failed-charges</a>?"), "{drawn}");
    }
}
