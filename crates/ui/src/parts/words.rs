//! Searches in words: in full for readers who check what an action concerns, and short as titles.

use std::fmt::Display;

use kafleet_model::error_fingerprint::ErrorFilter;
use kafleet_model::query::{Condition, Qualifier, QueryTime, TaskQuery, Term, Test, TreeLevel};
use kafleet_model::record::state::State;
use kafleet_model::units::duration::Millis;

use super::state::word;
use super::times::time_in_words;

/// Search in words. `error`: text of the error, if the search has its name.
pub(in super::super) fn in_words(query: &TaskQuery, error: Option<&str>) -> String {
    let mut parts: Vec<String> = query.terms.iter().filter_map(|term| term_in_words(term, error)).collect();
    parts.push(match query.level() {
        TreeLevel::Roots => "roots only".to_owned(),
        TreeLevel::Any => "on all levels".to_owned(),
    });
    format!("tasks {}", parts.join(", "))
}

fn term_in_words(Term { negated, test }: &Term, error: Option<&str>) -> Option<String> {
    let text = match test {
        Test::Text(Qualifier::Error, errors) => format!("with the error {}", errors_in_words(errors, error)),
        Test::Text(qualifier, values) => format!("{} {}", of_field(*qualifier), quoted(values)),
        Test::State(states) => format!("in state {}", states_in_words(states)),
        Test::Own(states) => format!("that themselves are {}", states_in_words(states)),
        Test::Id(ids) if ids.len() > MAX_IDS => format!("with one of {} ids", ids.len()),
        Test::Id(ids) => format!("with the id {}", quoted(ids)),
        Test::Under(tops) => format!("in the tree of {}", quoted(tops)),
        Test::Is(conditions) => format!("that are {}", conditions_in_words(conditions)),
        Test::Level(_) => return None,
        Test::From(time) => format!("first seen since {}", bound_in_words(*time)),
        Test::To(time) => format!("first seen before {}", bound_in_words(*time)),
        Test::Word(text) => format!("with `{text}` in the name or at the beginning of the id"),
    };
    Some(if *negated { format!("not {text}") } else { text })
}

/// Search as a title, such as `failed charge, last hour`. Empty without conditions.
pub(in super::super) fn search_title(query: &TaskQuery) -> String {
    let mut parts = Vec::from_iter(title_subject(query));
    parts.extend(query.terms.iter().filter_map(title_part));
    if let Some(level) = query.named_level().filter(|level| query.clone().at_level(*level).named_level().is_some()) {
        parts.push(if level == TreeLevel::Roots { "roots" } else { "all levels" }.to_owned());
    }
    parts.join(", ")
}

/// States and types of the tasks that a search finds.
fn title_subject(query: &TaskQuery) -> Option<String> {
    let (mut words, mut types) = (Vec::new(), None);
    for term in query.terms.iter().filter(|term| !term.negated) {
        match &term.test {
            Test::State(states) | Test::Own(states) => words.push(states_in_words(states)),
            Test::Is(conditions) => words.push(conditions_in_words(conditions)),
            Test::Text(Qualifier::Type, names) => types = Some(names.join(" or ")),
            _ => {}
        }
    }
    words.dedup();
    let is_plain = words.is_empty() && types.is_none();
    words.push(types.unwrap_or_else(|| "tasks".to_owned()));
    (!is_plain).then(|| words.join(" "))
}

/// Condition of a title that is no part of its subject.
fn title_part(Term { negated, test }: &Term) -> Option<String> {
    let any = |values: &[String]| values.join(" or ");
    let text = match test {
        Test::State(_) | Test::Own(_) | Test::Is(_) | Test::Text(Qualifier::Type, _) if !negated => return None,
        Test::State(states) | Test::Own(states) => states_in_words(states),
        Test::Is(conditions) => conditions_in_words(conditions),
        Test::Text(Qualifier::Creator, values) => format!("by {}", any(values)),
        Test::Text(Qualifier::NameLike, values) => format!("name like {}", any(values)),
        Test::Text(qualifier, values) => format!("{} {}", qualifier.name(), any(values)),
        Test::Id(ids) if ids.len() > MAX_IDS => format!("{} ids", ids.len()),
        Test::Id(ids) => joined(ids),
        Test::Under(tops) => format!("tree of {}", joined(tops)),
        Test::Level(_) => return None,
        Test::From(QueryTime::Ago(age)) => format!("last {}", age_in_words(*age)),
        Test::From(QueryTime::At(at_ms)) => format!("since {}", time_in_words(*at_ms)),
        Test::To(time) => format!("before {}", bound_in_words(*time)),
        Test::Word(text) => format!("“{text}”"),
    };
    Some(if *negated { format!("not {text}") } else { text })
}

fn joined(values: &[impl Display]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ")
}

fn age_in_words(age: Millis) -> String {
    match age.as_i64() {
        3_600_000 => "hour".to_owned(),
        86_400_000 => "day".to_owned(),
        _ => age.to_string(),
    }
}

fn conditions_in_words(conditions: &[Condition]) -> String {
    let names: Vec<&str> = conditions.iter().map(|condition| condition_word(*condition)).collect();
    names.join(" or ")
}

/// Ids of a search that are all named.
const MAX_IDS: usize = 3;

const fn of_field(qualifier: Qualifier) -> &'static str {
    match qualifier {
        Qualifier::Type => "of type",
        Qualifier::Tag => "with the tag",
        Qualifier::Creator => "created by",
        Qualifier::Name => "with a name that begins with",
        Qualifier::NameLike => "with a name like",
        Qualifier::Worker => "last run by",
        Qualifier::Schedule => "of the schedule",
        _ => "with",
    }
}

/// Errors as they are, or the text of an error that is given by its name.
fn errors_in_words(errors: &[String], known: Option<&str>) -> String {
    let is_name = |error: &str| ErrorFilter::new(error).fingerprint().is_some();
    match (errors, known) {
        ([name], Some(text)) if is_name(name) => format!("“{text}” and similar ones"),
        _ => quoted(errors),
    }
}

fn quoted(values: &[impl Display]) -> String {
    values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(" or ")
}

fn states_in_words(states: &[State]) -> String {
    states.iter().map(|state| word(*state)).collect::<Vec<_>>().join(" or ")
}

const fn condition_word(condition: Condition) -> &'static str {
    match condition {
        Condition::Open => "open",
        Condition::Ended => "ended",
        Condition::Failed => "without success",
        Condition::Root => "roots",
    }
}

fn bound_in_words(time: QueryTime) -> String {
    match time {
        QueryTime::At(at_ms) => time_in_words(at_ms),
        QueryTime::Ago(age) => format!("{age} ago"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_is_described_with_its_level_and_the_text_of_its_error() {
        for (text, words) in [
            ("tag:ci", "tasks with the tag `ci`, roots only"),
            (
                "type:pack,ship own:failed,expired -tag:test",
                "tasks of type `pack` or `ship`, that themselves are failed or expired, not with the tag `test`, on all levels",
            ),
            ("error:3622750a785a639a", "tasks with the error “Timeout: no answer” and similar ones, on all levels"),
            ("error:Timeout", "tasks with the error `Timeout`, on all levels"),
            ("id:a,b,c,d", "tasks with one of 4 ids, on all levels"),
            (
                "under:order is:open from:2h",
                "tasks in the tree of `order`, that are open, first seen since 2h ago, on all levels",
            ),
        ] {
            let query = TaskQuery::parse(text).unwrap();
            assert_eq!(in_words(&query, Some("Timeout: no answer")), words, "{text}");
        }
    }

    #[test]
    fn title_names_states_and_types_first() {
        for (text, title) in [
            ("", ""),
            ("state:failed type:charge from:1h", "failed charge, last hour"),
            ("type:pack,ship", "pack or ship"),
            ("state:waiting_for_children", "waiting for children tasks"),
            ("own:failed,expired type:charge level:any", "failed or expired charge"),
            ("is:open from:2h tag:ci -tag:test", "open tasks, last 2h, tag ci, not tag test"),
            ("state:failed level:any", "failed tasks, all levels"),
            ("type:pack level:roots", "pack, roots"),
            ("level:roots", ""),
            ("under:order-42 own:failed", "failed tasks, tree of order-42"),
            ("id:a,b,c,d", "4 ids"),
            ("\"build main\"", "“build main”"),
            ("-state:failed error:Timeout", "not failed, error Timeout"),
            ("creator:ada to:1h", "by ada, before 1h ago"),
        ] {
            assert_eq!(search_title(&TaskQuery::parse(text).unwrap()), title, "{text}");
        }
    }
}
