//! Web UI: HTML pages rendered on the server, complete without JavaScript. With it, open pages follow changes
//! ([`live`], [`refresh`]).
//!
//! In: the state of an API ([`open`], which programs hand over as `ApiSetup.pages`), then the request of a page or the
//! submission of a form. Out: HTML, or after an action a redirect that names the position which the next page waits
//! for. A page shows what answered within two seconds, and says what is missing.
//!
//! Invariant: a form acts only if a page of this UI has submitted it and the role of the caller permits it. Otherwise
//! another site could cancel tasks in the name of a person who is logged in.
//!
//! Reading order: the [table](PAGES) of pages and forms → [`serve`] (one request) → [`visit`] (access of pages to the
//! services of the API) → [`pages`] (reads, one file per page) → [`parts`] (documents in, markup out). Read next:
//! `serve.rs`.

#![warn(unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

use std::sync::Arc;

use kafleet_api::Pages;
use kafleet_api::state::Api;
use kafleet_config::{Role, UiMode};
use live::{Live, mark_topics};
use parts::frame::Section;
use serve::missing_page;
use state::Ui;
use visit::{Show, Submit};

mod bundle;
mod cache;
mod forms;
mod icon;
mod live;
mod navigation;
mod outcome;
mod pages;
mod parts;
mod refresh;
mod refresh_limiter;
mod response;
mod serve;
mod session;
mod state;
mod suggest;
mod visit;
mod zone;

/// Page, or form with its action.
struct Page {
    /// Path below `api.ui.base_path`.
    pub path: &'static str,
    /// Required role.
    pub role: Role,
    /// Entry of the navigation that is marked as the current one.
    pub section: Section,
    /// Topic whose changes concern the page; `{}` is the first parameter of the path.
    pub topic: &'static str,
    pub show: Show,
    /// Action of the form.
    pub submit: Option<Submit>,
}

const fn page(path: &'static str, section: Section, topic: &'static str, show: Show) -> Page {
    Page { path, role: Role::Read, section, topic, show, submit: None }
}

/// Form. It has no live topic: input must not be replaced.
const fn form(path: &'static str, role: Role, section: Section, show: Show, submit: Submit) -> Page {
    Page { path, role, section, topic: "", show, submit: Some(submit) }
}

macro_rules! call {
    ($($handler:ident)::+) => {
        |visit| Box::pin($($handler)::+(visit))
    };
}

use Role::{Operate, Submit as SubmitRole};
use Section::{Failures, More, New, Overview, Schedules, Tasks, Types, Workers};
use pages::{
    audit, bulk, bulk_action, circuit_forms, dead_letter, dead_letter_forms, dead_letters, export, failures, help,
    kill_switches, log, new, new_many, overview, raw, schedule_forms, schedules, system, task, task_edit, task_forms,
    tasks, timeline, tree, type_forms, type_page, types, unique, views, workers,
};

#[rustfmt::skip]
static PAGES: &[Page] = &[
    page("/", Overview, "fleet", call!(overview::show)),
    page("/tasks", Tasks, "fleet", call!(tasks::show)),
    page("/search", Tasks, "", call!(tasks::search_on)),
    page("/export", Tasks, "", call!(export::show)),
    page("/tasks/{id}", Tasks, "tree:{}", call!(task::show)),
    page("/tasks/{id}/tree", Tasks, "tree:{}", call!(tree::show)),
    page("/tasks/{id}/tree/mermaid", Tasks, "", call!(raw::diagram)),
    page("/tasks/{id}/timeline", Tasks, "tree:{}", call!(timeline::show)),
    page("/tasks/{id}/log", Tasks, "tree:{}", call!(log::show)),
    page("/tasks/{id}/log/raw", Tasks, "", call!(raw::log)),
    page("/tasks/{id}/params", Tasks, "", call!(raw::params)),
    page("/tasks/{id}/result", Tasks, "", call!(raw::result)),
    page("/tasks/{id}/attachments/{name}", Tasks, "", call!(raw::attachment)),
    form("/tasks/{id}/cancel", Operate, Tasks, call!(task_forms::show_cancel), call!(task_forms::cancel)),
    form("/tasks/{id}/retry", Operate, Tasks, call!(task_forms::show_retry), call!(task_forms::retry)),
    form("/tasks/{id}/retry-failed", Operate, Tasks, call!(task_forms::show_retry_failed), call!(task_forms::retry_failed)),
    form("/tasks/{id}/start-now", SubmitRole, Tasks, call!(task_edit::show_start), call!(task_edit::start)),
    form("/tasks/{id}/edit", SubmitRole, Tasks, call!(task_edit::show_edit), call!(task_edit::edit)),
    form("/tasks/{id}/append", SubmitRole, Tasks, call!(task_edit::show_append), call!(task_edit::append)),
    form("/tasks/{id}/attach", SubmitRole, Tasks, call!(task_edit::show_attach), call!(task_edit::attach)),
    form("/tasks/{id}/forget-key", Operate, Tasks, call!(unique::show_forget), call!(unique::forget)),
    form("/new", SubmitRole, New, call!(new::show), call!(new::submit)),
    form("/new/many", SubmitRole, New, call!(new_many::show), call!(new_many::submit)),
    page("/failures", Failures, "fleet", call!(failures::show)),
    page("/dead-letters", Failures, "fleet", call!(dead_letters::list)),
    form("/dead-letters/drop", Operate, Failures, call!(dead_letter_forms::show_drop_many), call!(dead_letter_forms::drop_many)),
    page("/dead-letters/{letter}", Failures, "fleet", call!(dead_letter::show)),
    form("/dead-letters/{letter}/redrive", Operate, Failures, call!(dead_letter_forms::show_redrive), call!(dead_letter_forms::redrive)),
    form("/dead-letters/{letter}/edit", Operate, Failures, call!(dead_letter_forms::show_edit), call!(dead_letter_forms::edit)),
    form("/dead-letters/{letter}/drop", Operate, Failures, call!(dead_letter_forms::show_drop), call!(dead_letter_forms::drop)),
    page("/types", Types, "fleet", call!(types::list)),
    page("/types/{type}", Types, "type:{}", call!(type_page::show)),
    form("/types/{type}/pause", Operate, Types, call!(type_forms::show_pause), call!(type_forms::pause)),
    form("/types/{type}/resume", Operate, Types, call!(type_forms::show_resume), call!(type_forms::resume)),
    form("/types/{type}/limits", Operate, Types, call!(type_forms::show_limits), call!(type_forms::limits)),
    form("/types/{type}/circuit", Operate, Types, call!(circuit_forms::show), call!(circuit_forms::set)),
    page("/workers", Workers, "workers", call!(workers::list)),
    page("/workers/{id}", Workers, "workers", call!(workers::show)),
    page("/schedules", Schedules, "control", call!(schedules::list)),
    page("/schedules/{id}", Schedules, "control", call!(schedules::show)),
    form("/new-schedule", Operate, Schedules, call!(schedule_forms::show_create), call!(schedule_forms::create)),
    form("/schedules/{id}/edit", Operate, Schedules, call!(schedule_forms::show_edit), call!(schedule_forms::edit)),
    form("/schedules/{id}/pause", Operate, Schedules, call!(schedule_forms::show_pause), call!(schedule_forms::pause)),
    form("/schedules/{id}/resume", Operate, Schedules, call!(schedule_forms::show_resume), call!(schedule_forms::resume)),
    form("/schedules/{id}/trigger", Operate, Schedules, call!(schedule_forms::show_trigger), call!(schedule_forms::trigger)),
    form("/schedules/{id}/backfill", Operate, Schedules, call!(schedule_forms::show_backfill), call!(schedule_forms::backfill)),
    form("/schedules/{id}/delete", Operate, Schedules, call!(schedule_forms::show_delete), call!(schedule_forms::delete)),
    page("/kill-switches", More, "control", call!(kill_switches::list)),
    form("/kill-switches/new", Operate, More, call!(kill_switches::show_new), call!(kill_switches::create)),
    form("/kill-switches/{name}/off", Operate, More, call!(kill_switches::show_off), call!(kill_switches::off)),
    page("/v", More, "control", call!(views::list)),
    page("/v/{name}", Tasks, "fleet", call!(views::show)),
    form("/new-view", Operate, More, call!(views::show_new), call!(views::create)),
    form("/v/{name}/edit", Operate, More, call!(views::show_edit), call!(views::edit)),
    form("/v/{name}/delete", Operate, More, call!(views::show_delete), call!(views::delete)),
    page("/bulk", More, "fleet", call!(bulk::list)),
    page("/bulk/{id}", More, "tree:{}", call!(bulk_action::show)),
    form("/bulk/new", Operate, More, call!(bulk::show), call!(bulk::request)),
    page("/audit", More, "fleet", call!(audit::show)),
    page("/system", More, "fleet", call!(system::show)),
    page("/help", More, "", call!(help::show)),
];

/// Paths of all pages and forms below `api.ui.base_path`, with the names of their parameters in braces.
pub fn paths() -> impl Iterator<Item = &'static str> {
    PAGES.iter().map(|page| page.path)
}

/// Opens the UI over an API, with its live updates. `None`: it is switched off.
pub fn open(api: &Arc<Api>) -> Option<Pages> {
    let live = Arc::<Live>::default();
    match api.ui.mode {
        UiMode::Off => None,
        UiMode::Full | UiMode::ReadOnly => Some(Pages {
            router: serve::router(&api.ui).with_state(Ui { api: api.clone(), live: live.clone() }),
            has_root: api.ui.base_path.is_empty(),
            missing: missing_page,
            listening: mark_topics(live, api.reads.notices.clone(), api.fleet.control.clone()),
        }),
    }
}
