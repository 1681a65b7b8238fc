//! Searches in words, for readers who check what an action concerns.

use std::fmt::Display;

use kafleet_model::error_fingerprint::ErrorFilter;
use kafleet_model::query::{Condition, Qualifier, QueryTime, TaskQuery, Term, Test, TreeLevel};
use kafleet_model::record::state::State;

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
        Test::Is(conditions) => {
            let names: Vec<&str> = conditions.iter().map(|condition| condition_word(*condition)).collect();
            format!("that are {}", names.join(" or "))
        }
        Test::Level(_) => return None,
        Test::From(time) => format!("first seen since {}", bound_in_words(*time)),
        Test::To(time) => format!("first seen before {}", bound_in_words(*time)),
        Test::Word(text) => format!("with `{text}` in the name or at the beginning of the id"),
    };
    Some(if *negated { format!("not {text}") } else { text })
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
}
