//! Pages: each reads documents of the api and renders them with [`super::parts`].

use maud::{Render, html};

use super::parts::form::{Form, Input, STEP};
use super::visit::{Body, PageAnswer, Visit};

pub(super) mod attention;
pub(super) mod audit;
pub(super) mod bulk;
pub(super) mod bulk_action;
mod bulk_selection;
pub(super) mod changes;
pub(super) mod charts;
pub(super) mod circuit_forms;
pub(super) mod dead_letter;
pub(super) mod dead_letter_forms;
pub(super) mod dead_letters;
pub(super) mod export;
pub(super) mod failures;
pub(super) mod help;
pub(super) mod kill_switches;
pub(super) mod log;
pub(super) mod login;
pub(super) mod new;
pub(super) mod new_many;
pub(super) mod overview;
mod params_input;
pub(super) mod raw;
mod schedule_definition;
pub(super) mod schedule_forms;
pub(super) mod schedules;
mod stuck_attempts;
pub(super) mod system;
pub(super) mod task;
pub(super) mod task_edit;
pub(super) mod task_forms;
pub(super) mod tasks;
pub(super) mod timeline;
pub(super) mod tree;
pub(super) mod type_forms;
pub(super) mod type_page;
pub(super) mod types;
pub(super) mod unique;
pub(super) mod views;
pub(super) mod workers;

/// Form below the page of its subject, or at it if `page` is empty; to be completed.
fn form<'a>(
    visit: &'a Visit,
    subject: &str,
    page: &str,
    title: impl Into<String>,
    button: impl Into<String>,
) -> Form<'a> {
    Form {
        view: &visit.view,
        title: title.into(),
        effect: html! {},
        action: if page.is_empty() { subject.to_owned() } else { format!("{subject}/{page}") },
        inputs: Vec::new(),
        button: button.into(),
        danger: false,
        more_buttons: html! {},
        back: subject.to_owned(),
        problem: visit.problem.as_ref(),
        beside: None,
        commands: Vec::new(),
    }
}

/// Form with the values entered, for a page that cannot be read. `path` is that of the form with the base path.
pub(super) fn plain_form(visit: &Visit, path: &str) -> PageAnswer {
    let path = path.strip_prefix(visit.view.base.as_str()).unwrap_or(path);
    let lines = |value: &str| if value.contains('\n') { 10 } else { 0 };
    let input = |(name, value)| Input::new(name, name, Some(value)).lines(lines(value)).render();
    form_page(&Form {
        effect: html! { p { "The page of this form cannot be read now. These are the values entered." } },
        inputs: visit.entered.iter().filter(|(name, _)| *name != STEP).map(input).collect(),
        ..form(visit, path, "", "Not submitted", "Submit again")
    })
}

fn form_page(form: &Form<'_>) -> PageAnswer {
    Body::new(form.title.clone(), form.render()).into()
}
