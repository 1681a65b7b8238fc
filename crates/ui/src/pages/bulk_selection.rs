//! Selection of a bulk action in the fields of its form: tasks of a search or of ids, or dead letters.

use kafleet_api::http::problem::ApiError;
use kafleet_documents::{BulkAction, BulkPreview, BulkSelection, DeadLetterFilter};
use kafleet_model::json::RawJson;
use kafleet_model::query::{Qualifier, TaskQuery, Term, Test};
use kafleet_model::task::parse_time;
use kafleet_model::units::time::time_text;
use maud::{Markup, Render, html};

use super::bulk::ACTIONS;
use crate::parts::command::quoted;
use crate::parts::form::{Input, select};
use crate::parts::letters::{self, FILTERS, filter_inputs};
use crate::parts::words::in_words;
use crate::parts::{counted, search_text};
use crate::visit::{Fields, Visit};

/// Maximum number of values of a term of a search.
const MAX_VALUES: usize = 100;
/// Search for all root tasks.
pub(super) const ALL_ROOTS: &str = "level:roots";
const PATCH_HINT: &str =
    "a JSON merge patch of the params of each task, such as {\"currency\": \"EUR\"}; null removes a value";

/// Tasks or dead letters of an action.
pub(super) enum BulkTarget {
    Nothing,
    Search(String),
    Ids(Vec<String>),
    Letters(DeadLetterFilter),
}

/// Action with its selection.
pub(super) struct Selection {
    pub action: BulkAction,
    pub selected: BulkTarget,
    /// Change of the params, as it was entered.
    patch: Option<String>,
}

impl Selection {
    pub(super) fn of(visit: &Visit) -> Self {
        let name = visit.value("action").unwrap_or_default();
        let action = BulkAction::ALL.into_iter().find(|action| action.name() == name).unwrap_or(BulkAction::Retry);
        let fields = fields_of(visit);
        let selected = if action == BulkAction::Redrive { letters_of(fields) } else { tasks_of(fields) };
        Self { action, selected, patch: fields.get("patch").map(str::to_owned) }
    }

    pub(super) const fn is_empty(&self) -> bool {
        matches!(self.selected, BulkTarget::Nothing)
    }

    pub(super) fn is_redrive(&self) -> bool {
        self.action == BulkAction::Redrive
    }

    /// Type of the dead letters.
    pub(super) fn letter_type(&self) -> Option<&str> {
        match &self.selected {
            BulkTarget::Letters(filter) => Some(&filter.task_type),
            _ => None,
        }
    }

    /// Document of the API.
    pub(super) fn document(&self, visit: &Visit) -> Result<BulkSelection, ApiError> {
        let patch = if self.is_redrive() { fields_of(visit).json("patch")? } else { None };
        let patch = patch.map(RawJson::into_compact);
        let mut document = BulkSelection { action: self.action, q: None, ids: Vec::new(), letters: None, patch };
        match &self.selected {
            BulkTarget::Nothing => {}
            BulkTarget::Search(q) => document.q = Some(q.clone()),
            BulkTarget::Ids(ids) => document.ids.clone_from(ids),
            BulkTarget::Letters(filter) => document.letters = Some(filter.clone()),
        }
        Ok(document)
    }

    /// Selection in words. Errors that a search names are those of the tasks of the preview.
    pub(super) fn in_words(&self, preview: &BulkPreview) -> Option<String> {
        match &self.selected {
            BulkTarget::Search(q) => {
                let error = preview.tasks.iter().find_map(|task| task.error.as_deref());
                Some(in_words(&TaskQuery::parse(q).ok()?, error))
            }
            BulkTarget::Letters(filter) => Some(letters::in_words(filter)),
            BulkTarget::Ids(_) | BulkTarget::Nothing => None,
        }
    }

    /// Number of selected tasks or dead letters, as text.
    pub(super) fn counted(&self, number: u64) -> String {
        if self.is_redrive() {
            counted(number, "matching dead letter", "matching dead letters")
        } else {
            counted(number, "matching task", "matching tasks")
        }
    }

    /// Search for the tasks, as text.
    pub(super) fn text(&self) -> String {
        match &self.selected {
            BulkTarget::Nothing => String::new(),
            BulkTarget::Search(q) => q.clone(),
            BulkTarget::Ids(ids) => format!("id:{}", ids.join(",")),
            BulkTarget::Letters(filter) => filter.to_string(),
        }
    }

    /// Search for the selected tasks that also finds them in the states which the action gives them.
    pub(super) fn search_afterwards(&self) -> Option<String> {
        match &self.selected {
            BulkTarget::Search(q) => TaskQuery::parse(q).ok().map(|query| without_states(query).to_string()),
            BulkTarget::Letters(filter) => Some(search_text(&[("type", &filter.task_type), ("level", "any")])),
            BulkTarget::Ids(ids) if !self.is_redrive() && ids.len() <= MAX_VALUES => Some(self.text()),
            BulkTarget::Ids(_) | BulkTarget::Nothing => None,
        }
    }

    /// Command that does the same.
    pub(super) fn command(&self, limit: &str) -> String {
        let patch = self.patch.as_ref().map_or_else(String::new, |patch| format!(" --patch {}", quoted(patch)));
        match &self.selected {
            BulkTarget::Letters(filter) => {
                let option = |(name, value): (&str, &str)| format!(" --{name} {}", quoted(value));
                let options: String = filter.conditions().into_iter().map(option).collect();
                format!("kafleet dead-letters redrive{options}{patch} --limit {limit}")
            }
            BulkTarget::Ids(ids) if self.is_redrive() => {
                let ids: String = ids.iter().map(|id| format!(" {}", quoted(id))).collect();
                format!("kafleet dead-letters redrive{ids}{patch}")
            }
            _ => {
                let action = self.action.name().replace('_', "-");
                format!("kafleet bulk {action} {} --limit {limit}", quoted(&self.text()))
            }
        }
    }

    /// Hidden fields of the selection.
    pub(super) fn hidden(&self) -> Vec<Markup> {
        let hidden = |name: &str, value: &str| html! { input type="hidden" name=(name) value=(value); };
        let mut inputs = vec![hidden("action", self.action.name())];
        match &self.selected {
            BulkTarget::Nothing => {}
            BulkTarget::Search(q) => inputs.push(hidden("q", q)),
            BulkTarget::Ids(ids) => inputs.extend(ids.iter().map(|id| hidden("id", id))),
            BulkTarget::Letters(filter) => {
                inputs.extend(filter.conditions().into_iter().map(|(name, value)| hidden(name, value)));
            }
        }
        inputs.extend(self.patch.as_deref().map(|patch| hidden("patch", patch)));
        inputs
    }

    /// Form that chooses the action and its selection.
    pub(super) fn chooser(&self, visit: &Visit) -> Markup {
        let names: Vec<(&str, &str)> = ACTIONS.iter().map(|(action, name, _)| (action.name(), *name)).collect();
        html! {
            form.filters.choosing action=(visit.view.url("/bulk/new")) {
                (select("action", "Action", &names, self.action.name()))
                @if self.is_redrive() { (self.letter_fields(visit)) } @else { div.wide { (self.search_field()) } }
                div.buttons { button.primary[self.is_empty()] type="submit" { "Preview" } }
            }
        }
    }

    fn search_field(&self) -> Markup {
        let hint = "a search, such as type:resize state:failed from:2h";
        Input::new("q", "Tasks", Some(&self.text())).required().hint(hint).render()
    }

    fn letter_fields(&self, visit: &Visit) -> Markup {
        let fields = fields_of(visit);
        html! {
            @if let BulkTarget::Ids(ids) = &self.selected {
                @for id in ids { input type="hidden" name="id" value=(id); }
                p.quiet { (counted(ids.len() as u64, "selected dead letter", "selected dead letters")) }
            } @else {
                (filter_inputs(&visit.view, |name| fields.get(name)))
                @if let Some(error) = fields.get("error") { input type="hidden" name="error" value=(error); }
            }
            div.wide {
                (Input::new("patch", "Changed params", self.patch.as_deref()).lines(2).hint(PATCH_HINT).render())
            }
        }
    }
}

/// Search without its conditions on states and errors, on the same level.
fn without_states(mut query: TaskQuery) -> TaskQuery {
    let level = query.level();
    let is_of_state = |test: &Test| {
        matches!(
            test,
            Test::State(_) | Test::Own(_) | Test::Is(_) | Test::Text(Qualifier::Error | Qualifier::Worker, _)
        )
    };
    query.terms.retain(|term| !is_of_state(&term.test));
    let query = query.at_level(level);
    if query.terms.is_empty() {
        return TaskQuery { terms: vec![Term { negated: false, test: Test::Level(level) }] };
    }
    query
}

/// Fields of a submitted form, or of its URL.
fn fields_of(visit: &Visit) -> &Fields {
    if visit.entered.is_empty() { &visit.query } else { &visit.entered }
}

fn tasks_of(fields: &Fields) -> BulkTarget {
    let q = fields.get("q").map(|q| q.trim().to_owned());
    // The list of tasks sends its search with its selected rows.
    match (fields.is_set("selected"), fields.is_set("all"), q) {
        (true, true, q) => BulkTarget::Search(q.unwrap_or_else(|| ALL_ROOTS.to_owned())),
        (false, _, Some(q)) => BulkTarget::Search(q),
        _ => ids_of(fields),
    }
}

fn ids_of(fields: &Fields) -> BulkTarget {
    let ids: Vec<String> = fields.all("id").map(str::to_owned).collect();
    if ids.is_empty() { BulkTarget::Nothing } else { BulkTarget::Ids(ids) }
}

fn letters_of(fields: &Fields) -> BulkTarget {
    let filters = fields.select_with_times(&FILTERS);
    let value = |name: &str| filters.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    // A time that cannot be read stays, and is refused.
    let time = |name| value(name).map(|text| parse_time(&text).map_or(text, time_text));
    match value("type") {
        Some(task_type) if !fields.is_set("id") => BulkTarget::Letters(DeadLetterFilter {
            task_type,
            code: value("code"),
            kind: value("kind"),
            error: value("error"),
            from: time("from"),
            to: time("to"),
        }),
        _ => ids_of(fields),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_afterwards_finds_the_tasks_in_other_states() {
        let afterwards = |q: &str| without_states(TaskQuery::parse(q).unwrap()).to_string();
        for (q, found) in [
            ("type:charge own:failed,expired error:PaymentDeclined level:any", "type:charge"),
            ("error:PaymentDeclined tag:a", "tag:a level:any"),
            ("state:queued", "level:roots"),
            ("under:order-42 own:failed -is:open", "under:order-42"),
            ("id:a,b", "id:a,b"),
        ] {
            assert_eq!(afterwards(q), found, "{q}");
        }
    }
}
