//! States of a search as quick filters, with the numbers of tasks that are known.

use std::collections::BTreeMap;

use kafleet_documents::{TaskPage, TypeDocument};
use kafleet_model::query::{Qualifier, TaskQuery, Term, Test, TreeLevel};
use kafleet_model::record::state::State;
use maud::{Markup, html};

use super::listing::Listing;
use super::state::{tone, word};
use super::{View, count};

/// Number of tasks in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Exact(u64),
    AtLeast(u64),
}

/// Tabs of a search. `types`: counters of all levels; `page`: tasks found, `None` if the page is not the first.
pub(in super::super) fn state_tabs(
    view: &View,
    listing: &Listing,
    query: &TaskQuery,
    types: Option<&[TypeDocument]>,
    page: Option<&TaskPage>,
) -> Markup {
    let chosen = chosen_states(query);
    let counted = counts_of(query, types.unwrap_or_default());
    let numbers = numbers(query, &chosen, &counted, page);
    let is_listed =
        |state: &State| counted.contains_key(state) || numbers.contains_key(state) || chosen.contains(state);
    let url = |state: Option<State>| listing.url_of(view, &with_state(query, state));
    html! {
        nav.tabs aria-label="states" {
            a href=(url(None)) aria-current=[chosen.is_empty().then_some("page")] { "All" }
            @for state in State::ALL.into_iter().filter(is_listed) {
                a class=(tone(state)) href=(url(Some(state)))
                    aria-current=[chosen.contains(&state).then_some("page")] {
                    (word(state))
                    @match numbers.get(&state) {
                        Some(Number::Exact(number)) => { " " span.number { (count(number)) } }
                        Some(Number::AtLeast(number)) => { " " span.number { "≥ " (count(number)) } }
                        None => {}
                    }
                }
            }
        }
    }
}

/// Search with other states.
fn with_state(query: &TaskQuery, state: Option<State>) -> String {
    let is_state = |term: &Term| matches!(term.test, Test::State(_)) && !term.negated;
    let mut terms: Vec<Term> = query.terms.iter().filter(|term| !is_state(term)).cloned().collect();
    terms.extend(state.map(|state| Term { negated: false, test: Test::State(vec![state]) }));
    TaskQuery { terms }.to_string()
}

/// States that the search selects.
fn chosen_states(query: &TaskQuery) -> Vec<State> {
    let states = query.terms.iter().filter_map(|term| match &term.test {
        Test::State(states) if !term.negated => Some(states),
        _ => None,
    });
    states.flatten().copied().collect()
}

/// Whether the search restricts only types, states and levels, which have counters.
fn is_counted(query: &TaskQuery) -> bool {
    query.terms.iter().all(|term| {
        !term.negated && matches!(term.test, Test::Text(Qualifier::Type, _) | Test::State(_) | Test::Level(_))
    })
}

/// Tasks of the types of a search by state, on all levels.
fn counts_of(query: &TaskQuery, listed: &[TypeDocument]) -> BTreeMap<State, u64> {
    let named = query.terms.iter().find_map(|term| match &term.test {
        Test::Text(Qualifier::Type, names) if !term.negated => Some(names),
        _ => None,
    });
    let is_selected = |listed: &&TypeDocument| named.is_none_or(|names| names.contains(&listed.name));
    let mut counts = BTreeMap::new();
    for (state, number) in listed.iter().filter(is_selected).flat_map(|listed| &listed.counts) {
        *counts.entry(*state).or_default() += number;
    }
    counts.retain(|_, number| *number > 0);
    counts
}

/// Numbers of the search: those of the counters, which know tasks of all levels only, else those of the page. A page of
/// some states knows nothing about the others.
fn numbers(
    query: &TaskQuery,
    chosen: &[State],
    counted: &BTreeMap<State, u64>,
    page: Option<&TaskPage>,
) -> BTreeMap<State, Number> {
    if is_counted(query) && query.level() == TreeLevel::Any {
        return counted.iter().map(|(state, number)| (*state, Number::Exact(*number))).collect();
    }
    let Some(page) = page else { return BTreeMap::new() };
    let is_whole = page.next.is_none() && page.sorted.is_none_or(|sorted| sorted.all);
    let mut found = BTreeMap::<State, u64>::new();
    for task in page.tasks.iter().filter(|task| chosen.is_empty() || chosen.contains(&task.state)) {
        *found.entry(task.state).or_default() += 1;
    }
    let number = |number| if is_whole { Number::Exact(number) } else { Number::AtLeast(number) };
    found.into_iter().map(|(state, found)| (state, number(found))).collect()
}

#[cfg(test)]
mod tests {
    use kafleet_config::Role;
    use serde_json::json;

    use super::*;
    use crate::parts::tests::status;

    fn page(states: &[State], next: Option<&str>) -> TaskPage {
        let task = |state: &State| status(json!({"state": state}));
        TaskPage { tasks: states.iter().map(task).collect(), next: next.map(str::to_owned), ..TaskPage::default() }
    }

    fn tabs(q: &str, page: Option<&TaskPage>) -> String {
        let view = View::for_tests(Role::Read);
        let listing = Listing { q: q.to_owned(), ..Listing::default() };
        let counts = json!({"failed": 24, "succeeded": 900});
        let pack = json!({"type": "pack", "topic": true, "counts": counts, "backlog": 0});
        let pack: TypeDocument = serde_json::from_value(pack).unwrap();
        state_tabs(&view, &listing, &TaskQuery::parse(q).unwrap(), Some(&[pack]), page).into_string()
    }

    #[test]
    fn tabs_stay_with_other_conditions_and_count_what_was_found() {
        let found = page(&[State::Failed, State::Failed, State::Running], None);
        let drawn = tabs("tag:ci", Some(&found));
        assert!(drawn.contains("href=\"/tasks?q=tag%3Aci+state%3Afailed\">failed <span class=\"number\">2</span></a>"));
        assert!(drawn.contains("succeeded</a>"), "a state without a number: {drawn}");
        assert!(drawn.contains("running <span class=\"number\">1</span>"), "{drawn}");
        let more = tabs("tag:ci from:1h", Some(&page(&[State::Failed], Some("x"))));
        assert!(more.contains("failed <span class=\"number\">≥ 1</span>"), "{more}");
        assert!(!tabs("tag:ci", None).contains("number"), "a later page counts nothing");
    }

    #[test]
    fn counters_are_used_on_all_levels_only() {
        let found = page(&[State::Failed], None);
        assert!(tabs("type:pack", Some(&found)).contains("failed <span class=\"number\">24</span>"));
        let roots = tabs("type:pack level:roots state:failed", Some(&found));
        assert!(roots.contains("failed <span class=\"number\">1</span>"), "{roots}");
        assert!(roots.contains("succeeded</a>"), "{roots}");
    }
}
