//! States of a search as quick filters, with the numbers of tasks that are known.

use std::collections::BTreeMap;

use kafleet_documents::{TaskPage, TypeDocument};
use kafleet_model::query::{Condition, Qualifier, TaskQuery, Term, Test, TreeLevel};
use kafleet_model::record::state::{Category, State};
use maud::{Markup, html};

use super::bar::ORDER;
use super::listing::Listing;
use super::state::{tone, word};
use super::{View, count};

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
    let is_listed = |state: &State| {
        let is_known = counted.contains_key(state) || numbers.contains_key(state) || chosen.contains(state);
        is_known && permits(query, *state)
    };
    let url = |state: Option<State>| listing.url_of(view, &with_state(query, state));
    html! {
        nav.tabs aria-label="states" {
            a href=(url(None)) aria-current=[chosen.is_empty().then_some("page")] { "All" }
            @for state in ORDER.into_iter().filter(is_listed) {
                a class=(tone(state)) href=(url(Some(state)))
                    aria-current=[chosen.contains(&state).then_some("page")] {
                    (word(state))
                    @if let Some(number) = numbers.get(&state) { " " span.number { (count(*number)) } }
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

/// Returns whether a search can find tasks in a state.
pub(in super::super) fn finds(query: &TaskQuery, state: State) -> bool {
    let chosen = chosen_states(query);
    permits(query, state) && (chosen.is_empty() || chosen.contains(&state))
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

/// Returns whether tasks in a state can match a search, by its conditions on states. Those that the tabs replace are left out.
fn permits(query: &TaskQuery, state: State) -> bool {
    query.terms.iter().all(|term| match &term.test {
        Test::Is(conditions) if !conditions.contains(&Condition::Root) => {
            conditions.iter().any(|condition| is_met(*condition, state)) != term.negated
        }
        Test::State(states) if term.negated => !states.contains(&state),
        _ => true,
    })
}

const fn is_met(condition: Condition, state: State) -> bool {
    match condition {
        Condition::Open => !state.is_terminal(),
        Condition::Ended => state.is_terminal(),
        Condition::Failed => matches!(state.category(), Category::Failed),
        Condition::Root => true,
    }
}

/// Numbers of the search: those of the counters, which know tasks of all levels only, else those of the page, if it lists all
/// tasks. A part of a list says nothing about the whole one, and a list of some states nothing about the others.
fn numbers(
    query: &TaskQuery,
    chosen: &[State],
    counted: &BTreeMap<State, u64>,
    page: Option<&TaskPage>,
) -> BTreeMap<State, u64> {
    if is_counted(query) && query.level() == TreeLevel::Any {
        return counted.clone();
    }
    let is_whole = |page: &&TaskPage| page.next.is_none() && page.sorted.is_none_or(|sorted| sorted.all);
    let Some(page) = page.filter(is_whole) else { return BTreeMap::new() };
    let mut found = BTreeMap::<State, u64>::new();
    for task in page.tasks.iter().filter(|task| chosen.is_empty() || chosen.contains(&task.state)) {
        *found.entry(task.state).or_default() += 1;
    }
    found
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
        assert!(more.contains("failed</a>") && !more.contains("number"), "a part of a list counts nothing: {more}");
        assert!(
            drawn.find("failed").unwrap() < drawn.find("running").unwrap(),
            "failures are seen on a phone: {drawn}"
        );
        let open = tabs("is:open", Some(&page(&[State::Running], Some("x"))));
        assert!(!open.contains("failed") && !open.contains("succeeded"), "no open task is in these states: {open}");
        assert!(!tabs("-state:failed tag:ci", Some(&found)).contains("+state%3Afailed"));
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
