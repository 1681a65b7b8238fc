//! Choices that write the search language: type, state, kind of error and time.

use kafleet_model::query::{Qualifier, TaskQuery, Term, Test, quoted};
use kafleet_model::record::state::State;
use maud::{Markup, html};

use super::first_line;
use super::state::word;

/// Value of a choice without a condition. It is no value of the search language that has a meaning of its own.
const ANY: &str = "*";
/// Beginning of the field with the search of the form, which is not empty without a search either.
const WAS: &str = "=";
/// Ages that can be chosen, with their texts.
const AGES: [(&str, &str); 5] =
    [("15m", "last 15 min"), ("1h", "last hour"), ("1d", "last 24 h"), ("7d", "last 7 days"), ("30d", "last 30 days")];
/// Maximum number of options of a choice.
const MAX_OPTIONS: usize = 200;
/// Characters of an option.
const OPTION_CHARS: usize = 60;

/// Fields of the form, with their qualifiers and the text of the option without a condition.
const PICKERS: [(&str, Qualifier, &str); 4] = [
    ("type", Qualifier::Type, "any type"),
    ("state", Qualifier::State, "any state"),
    ("error", Qualifier::Error, "any error"),
    ("time", Qualifier::From, "any time"),
];

/// Names that can be chosen.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct PickerNames {
    pub types: Vec<String>,
    /// Kinds of errors.
    pub errors: Vec<String>,
}

impl PickerNames {
    /// Options of a choice: values in the search language with their texts.
    fn options(&self, qualifier: Qualifier) -> Vec<(String, String)> {
        let plain = |text: &String| (quoted(text), first_line(text, OPTION_CHARS));
        match qualifier {
            Qualifier::Type => self.types.iter().take(MAX_OPTIONS).map(plain).collect(),
            Qualifier::Error => self.errors.iter().take(MAX_OPTIONS).map(plain).collect(),
            Qualifier::State => State::ALL.iter().map(|state| (state.name().to_owned(), word(*state))).collect(),
            Qualifier::From => AGES.map(|(age, text)| (age.to_owned(), text.to_owned())).into(),
            _ => Vec::new(),
        }
    }
}

/// Choices beside a search, which show its conditions. `query`: the search, unless it has a mistake.
pub(in super::super) fn pickers(query: Option<&TaskQuery>, names: &PickerNames) -> Markup {
    let empty = TaskQuery::default();
    let query = query.unwrap_or(&empty);
    html! {
        div.pickers {
            @for (name, qualifier, any) in PICKERS {
                @let chosen = chosen(query, qualifier);
                @let options = names.options(qualifier);
                @let is_other = chosen != ANY && !options.iter().any(|(value, _)| *value == chosen);
                select name=(name) aria-label=(name) {
                    option value=(ANY) { (any) }
                    @if is_other { option value=(chosen) selected { (first_line(&chosen, OPTION_CHARS)) } }
                    @for (value, text) in &options { option value=(value) selected[*value == chosen] { (text) } }
                }
            }
            // The choices that differ from this search are the ones that were made.
            input type="hidden" name="was" value={ (WAS) (query) };
        }
    }
}

/// Values of a condition in the search language, if it has this qualifier and is not negated.
fn values_of(term: &Term, qualifier: Qualifier) -> Option<String> {
    let text = (!term.negated).then(|| term.to_string())?;
    text.strip_prefix(qualifier.name())?.strip_prefix(':').map(str::to_owned)
}

/// Value of a choice for a search.
fn chosen(query: &TaskQuery, qualifier: Qualifier) -> String {
    let values: Vec<String> = query.terms.iter().filter_map(|term| values_of(term, qualifier)).collect();
    if values.is_empty() { ANY.to_owned() } else { values.join(" and ") }
}

/// Search with the choices of a submitted form. `None`: none was made. A search with a mistake stays as it is.
pub(in super::super) fn with_choices<'a>(text: &str, field: impl Fn(&str) -> Option<&'a str>) -> Option<String> {
    if PICKERS.iter().all(|(name, ..)| field(name).is_none()) {
        return None;
    }
    let Ok(mut query) = TaskQuery::parse(text) else { return Some(text.to_owned()) };
    let was = field("was").and_then(|was| was.strip_prefix(WAS)).map(TaskQuery::parse);
    let was = was.unwrap_or_else(|| Ok(query.clone())).unwrap_or_default();
    let level = query.named_level();
    for (name, qualifier, _) in PICKERS {
        let Some(value) = field(name) else { continue };
        if chosen(&was, qualifier) != value {
            query = with_choice(query, qualifier, value);
        }
    }
    Some(level.map_or(query.clone(), |level| query.at_level(level)).to_string())
}

/// Replaces the conditions of a qualifier by a value in the search language. A wrong value changes nothing.
fn with_choice(mut query: TaskQuery, qualifier: Qualifier, value: &str) -> TaskQuery {
    let is_replaced = |term: &Term| {
        values_of(term, qualifier).is_some() || (qualifier == Qualifier::From && matches!(term.test, Test::To(_)))
    };
    let new = match value {
        ANY => Vec::new(),
        value => match TaskQuery::parse(&format!("{}:{value}", qualifier.name())) {
            Ok(new) => new.terms,
            Err(_) => return query,
        },
    };
    let at = query.terms.iter().position(is_replaced).unwrap_or(query.terms.len());
    query.terms.retain(|term| !is_replaced(term));
    let at = at.min(query.terms.len());
    drop(query.terms.splice(at..at, new));
    query
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(text: &str, fields: &[(&str, &'static str)]) -> Option<String> {
        with_choices(text, |name| fields.iter().find(|(field, _)| *field == name).map(|(_, value)| *value))
    }

    #[test]
    fn choice_becomes_a_condition_of_the_search() {
        for (text, fields, expected) in [
            ("", &[("type", "charge")][..], "type:charge"),
            ("tag:ci", &[("type", "charge")], "tag:ci type:charge"),
            ("tag:ci", &[("state", "failed"), ("was", "=tag:ci")], "tag:ci state:failed"),
            ("type:a tag:ci", &[("type", "b"), ("was", "=type:a tag:ci")], "type:b tag:ci"),
            ("type:a tag:ci", &[("type", "*"), ("was", "=type:a tag:ci")], "tag:ci"),
            ("from:2h to:1h x", &[("time", "1d"), ("was", "=from:2h to:1h x")], "from:1d x"),
            ("error:a error:b", &[("error", "\"no answer\""), ("was", "=error:a error:b")], "error:\"no answer\""),
            (
                "state:failed,expired",
                &[("state", "failed,expired"), ("was", "=state:failed,expired")],
                "state:failed,expired",
            ),
            ("type:a level:roots", &[("type", "*"), ("was", "=type:a level:roots")], ""),
        ] {
            assert_eq!(merged(text, fields).as_deref(), Some(expected), "{text} {fields:?}");
        }
        assert_eq!(merged("type:a", &[]), None, "no choice");
    }

    #[test]
    fn typed_condition_wins_over_a_choice_that_was_not_changed() {
        let fields = [("type", "*"), ("state", "failed"), ("was", "=state:failed")];
        assert_eq!(merged("state:failed type:charge", &fields).as_deref(), Some("state:failed type:charge"));
        assert_eq!(merged("type:charge", &fields).as_deref(), Some("type:charge"), "the typed search has no state");
        let fields = [("type", "*"), ("state", "*"), ("was", "=")];
        assert_eq!(merged("type:charge", &fields).as_deref(), Some("type:charge"), "the form had no search");
    }

    #[test]
    fn mistakes_are_left_to_the_page() {
        assert_eq!(merged("stat:failed", &[("type", "a")]).as_deref(), Some("stat:failed"));
        assert_eq!(merged("tag:ci", &[("type", "A B"), ("was", "=tag:ci")]).as_deref(), Some("tag:ci"));
    }

    #[test]
    fn conditions_of_the_search_are_chosen_also_if_they_are_not_listed() {
        let names = PickerNames { types: vec!["pack".into()], errors: vec!["no answer".into()] };
        let query = TaskQuery::parse("type:pack,ship error:\"no answer\" from:1h -state:failed").unwrap();
        let drawn = pickers(Some(&query), &names).into_string();
        for expected in [
            "<option value=\"pack,ship\" selected>pack,ship</option>",
            "<option value=\"&quot;no answer&quot;\" selected>no answer</option>",
            "<option value=\"1h\" selected>last hour</option>",
            "<option value=\"*\">any state</option>",
        ] {
            assert!(drawn.contains(expected), "{expected}: {drawn}");
        }
        assert!(!drawn.contains("value=\"failed\" selected"), "{drawn}");
    }
}
