//! Named views of tasks, kept on the control topic.

use std::str::FromStr;

use kafleet_config::Role;
use kafleet_documents::{SetView, ViewDocument, Views};
use kafleet_fleet::control::views::{MAX_VIEWS, ViewRecord, check_view_name};
use kafleet_fleet::control::{CONTROL_VERSION, ControlKey, ControlRecord};
use kafleet_model::query::TaskQuery;
use kafleet_model::similar::similar;
use kafleet_model::units::time::time_text;
use kafleet_runtime::now_ms;

use super::context::RequestContext;
use super::list::can_sort;
use super::operations::write_audited;
use crate::http::problem::{ApiError, Code};
use crate::state::Api;

/// Maximum length of a description, in characters.
const MAX_DESCRIPTION: usize = 400;

/// Name of a view.
pub struct ViewName(String);

impl FromStr for ViewName {
    type Err = ApiError;

    fn from_str(text: &str) -> Result<Self, ApiError> {
        check_view_name(text).map_err(|error| ApiError::new(Code::BadView, error))?;
        Ok(Self(text.to_owned()))
    }
}

/// Lists the views that the caller may see, by name.
pub async fn list(RequestContext { api, role, .. }: RequestContext) -> Result<Views, ApiError> {
    api.fleet.wait_for_control_state().await?;
    let control = api.fleet.control.state();
    let visible = control.views.iter().filter(|(_, view)| view.role <= role);
    Ok(Views { views: visible.map(|(name, view)| document(name, view)).collect() })
}

/// Returns a view, if the caller may see it.
pub async fn show(
    RequestContext { api, role, .. }: RequestContext,
    ViewName(name): ViewName,
) -> Result<ViewDocument, ApiError> {
    api.fleet.wait_for_control_state().await?;
    find(&api, &name, role)
}

/// Creates or replaces a view.
pub async fn set(context: RequestContext, ViewName(name): ViewName, view: SetView) -> Result<ViewDocument, ApiError> {
    let record = record(&context, view)?;
    let api = &context.api;
    api.fleet.wait_for_control_state().await?;
    check_replaced(&context, &name)?;
    let operation = context.operation("set_view", &name, record.description.as_deref());
    let value = ControlRecord::View(Box::new(record.clone()));
    write_audited(api, operation, vec![(ControlKey::View(name.clone()), Some(value))]).await?;
    Ok(document(&name, &record))
}

/// Deletes a view, and returns it.
pub async fn delete(context: RequestContext, ViewName(name): ViewName) -> Result<ViewDocument, ApiError> {
    let api = &context.api;
    api.fleet.wait_for_control_state().await?;
    let deleted = find(api, &name, context.role)?;
    let operation = context.operation("delete_view", &name, None);
    write_audited(api, operation, vec![(ControlKey::View(name), None)]).await?;
    Ok(deleted)
}

/// Names of the views that a role sees which are similar to a name, or contain it.
pub fn near_names(views: &Views, name: &str) -> Vec<String> {
    let names = || views.views.iter().map(|view| view.name.as_str());
    let nearest = similar(name, names());
    let related = names().filter(|other| Some(*other) != nearest && (other.contains(name) || name.contains(*other)));
    nearest.into_iter().chain(related).map(str::to_owned).collect()
}

fn find(api: &Api, name: &str, role: Role) -> Result<ViewDocument, ApiError> {
    let control = api.fleet.control.state();
    if let Some(view) = control.views.get(name).filter(|view| view.role <= role) {
        return Ok(document(name, view));
    }
    let visible = control.views.iter().filter(|(_, view)| view.role <= role).map(|(name, _)| name.as_str());
    let error = ApiError::new(Code::UnknownView, format!("there is no view `{name}`"));
    Err(match similar(name, visible) {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None => error.hint("list them with GET /v1/views"),
    })
}

/// Checks that a view of this name may be stored.
fn check_replaced(context: &RequestContext, name: &str) -> Result<(), ApiError> {
    let control = context.api.fleet.control.state();
    if control.views.get(name).is_some_and(|present| present.role > context.role) {
        let reason = format!("the view `{name}` belongs to a higher role: choose another name");
        return Err(ApiError::new(Code::Forbidden, reason));
    }
    if control.views.is_full_for(name) {
        return Err(ApiError::new(Code::TooManyViews, format!("there are already {MAX_VIEWS} views"))
            .hint("delete one: DELETE /v1/views/{name}"));
    }
    Ok(())
}

/// Record of a valid view.
fn record(context: &RequestContext, view: SetView) -> Result<ViewRecord, ApiError> {
    let SetView { q, sort, columns, description, role } = view;
    let wrong = |error: String, pointer: &str| ApiError::new(Code::BadField, error).pointer(pointer);
    let query = TaskQuery::parse(&q).map_err(|mistake| {
        let error = wrong(mistake.to_string(), "/q");
        mistake.hint.into_iter().fold(error, ApiError::hint)
    })?;
    if !can_sort(&query, sort) {
        return Err(wrong(format!("the search does not permit the order `{}`", sort.name()), "/sort")
            .hint("name an indexed state, such as `state:failed`, a tree or a time in `q`"));
    }
    let description = description.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    if description.as_ref().is_some_and(|text| text.chars().count() > MAX_DESCRIPTION) {
        return Err(wrong(format!("the description is longer than {MAX_DESCRIPTION} characters"), "/description"));
    }
    let mut names = Vec::with_capacity(columns.len());
    for name in columns.iter().map(|column| column.name().to_owned()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(ViewRecord {
        v: CONTROL_VERSION,
        at_ms: now_ms(),
        q: query.to_string(),
        sort: Some(sort.name().to_owned()),
        columns: names,
        description,
        role,
        by: context.by.as_deref().map(str::to_owned),
    })
}

/// Document of a record. An order or a column that this build does not know is left out.
fn document(name: &str, view: &ViewRecord) -> ViewDocument {
    ViewDocument {
        name: name.to_owned(),
        q: view.q.clone(),
        sort: view.sort.as_deref().and_then(|sort| sort.parse().ok()).unwrap_or_default(),
        columns: view.columns.iter().filter_map(|column| column.parse().ok()).collect(),
        description: view.description.clone(),
        role: view.role,
        by: view.by.clone(),
        changed_at: time_text(view.at_ms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_the_similar_one_and_those_that_contain_it() {
        let view = |name: &str| ViewDocument {
            name: name.to_owned(),
            q: String::new(),
            sort: kafleet_documents::TaskSort::Newest,
            columns: Vec::new(),
            description: None,
            role: Role::Read,
            by: None,
            changed_at: String::new(),
        };
        let views = Views { views: ["charges", "failed-charges", "nightly"].map(view).into() };
        assert_eq!(near_names(&views, "chargse"), ["charges"]);
        assert_eq!(near_names(&views, "charge"), ["charges", "failed-charges"]);
        assert_eq!(near_names(&views, "zzz"), [""; 0]);
    }
}
