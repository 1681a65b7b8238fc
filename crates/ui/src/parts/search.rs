//! Search for tasks: the form, its language, and mistakes in it.

use kafleet_documents::Problem;
use kafleet_model::query::{Qualifier, TaskQuery, Test, TreeLevel};
use maud::{Markup, html};

use super::listing::Listing;
use super::pickers::{PickerNames, pickers};
use super::{View, prose};

/// Form of a search with its choices and its level, and the language on demand. `query`: the search, unless it has a mistake.
pub(in super::super) fn search_form(
    view: &View,
    listing: &Listing,
    query: Option<&TaskQuery>,
    names: &PickerNames,
) -> Markup {
    html! {
        form.searching action=(view.url("/tasks")) role="search" aria-label="Tasks" {
            input #search name="q" type="search" value=(listing.q) aria-label="Search" autocomplete="off" spellcheck="false"
                placeholder=(example(names)) list="suggestions";
            @if let Some(query) = query { (levels(view, listing, query)) }
            button.primary type="submit" { "Search" }
            @if !listing.q.is_empty() { a.button href=(view.url("/tasks")) { "Clear" } }
            (pickers(query, names))
            (listing.hidden_fields())
        }
        details.more #language {
            summary { "Search language" }
            (language())
        }
    }
}

/// Search for a type of this fleet.
fn example(names: &PickerNames) -> String {
    let of_type = names.types.first().map(|name| format!("type:{name} ")).unwrap_or_default();
    format!("{of_type}state:failed from:2h")
}

/// Levels of the tasks that a search finds. Searches for ids and trees concern all levels.
fn levels(view: &View, listing: &Listing, query: &TaskQuery) -> Markup {
    let is_fixed = query.terms.iter().any(|term| matches!(term.test, Test::Id(_) | Test::Under(_)));
    let link = |level: TreeLevel, text: &str| {
        let is_chosen = query.level() == level;
        let url = listing.url_of(view, &query.clone().at_level(level).to_string());
        html! { a href=(url) aria-current=[is_chosen.then_some("page")] { (text) } }
    };
    html! {
        @if !is_fixed {
            nav.ranges aria-label="levels" {
                span.quiet { "in:" } (link(TreeLevel::Roots, "roots")) (link(TreeLevel::Any, "all levels"))
            }
        }
    }
}

/// Terms of the search language.
pub(in super::super) fn language() -> Markup {
    html! {
        p {
            "Terms with a qualifier, such as " code { "type:resize,thumb state:failed -tag:test \"build main\"" }
            ". A comma means any of, a minus means not. Other words are the beginning of an id, or a part of the name. \
             Of params only the declared ones are searched: " code { "params.customer:Ada" } "."
        }
        p {
            "A search that names a type, an error, a worker, an id or a tree finds tasks of all levels, any other one roots; "
            code { "level:roots" } " and " code { "level:any" } " choose."
        }
        dl.keys {
            @for (_, name, description) in Qualifier::ALL { dt { code { (name) ":" } } dd { (description) } }
        }
    }
}

/// Mistake in a search, marked in its text. `url`: page of another search.
pub(in super::super) fn mistake(text: &str, problem: &Problem, url: impl Fn(&str) -> String) -> Markup {
    let (start, end) = problem.span.map_or((0, 0), |span| (span.start, span.end));
    let part = |from: usize, to: usize| text.chars().skip(from).take(to.saturating_sub(from)).collect::<String>();
    html! {
        div.notice.bad role="alert" {
            pre.mistake {
                code {
                    (part(0, start))
                    mark { @if start == end { "␣" } @else { (part(start, end)) } }
                    (part(end, usize::MAX))
                }
            }
            p { (prose(problem.detail.strip_prefix("query parameter `q`: ").unwrap_or(&problem.detail))) }
            @match problem.hint.as_deref().map(|hint| (hint, suggested(hint))) {
                Some((_, Some(word))) => {
                    @let corrected = format!("{}{word}{}", part(0, start), part(end, usize::MAX));
                    p { "did you mean " a href=(url(&corrected)) { code { (word) } } "?" }
                }
                Some((hint, None)) => { p { (prose(hint)) } }
                None => {}
            }
        }
    }
}

/// Word that a hint suggests instead of the marked part.
fn suggested(hint: &str) -> Option<&str> {
    hint.strip_prefix("did you mean `")?.strip_suffix("`?")
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafleet_api::http::problem::{ApiError, Code};

    #[test]
    fn level_of_a_search_is_shown_and_can_be_chosen() {
        let view = View::for_tests(kafleet_config::Role::Read);
        let form = |text: &str| {
            let query = TaskQuery::parse(text).unwrap_or_default();
            let listing = Listing { q: text.to_owned(), ..Listing::default() };
            search_form(&view, &listing, Some(&query), &PickerNames::default()).into_string()
        };
        let of_roots = form("tag:ci");
        assert!(of_roots.contains("href=\"/tasks?q=tag%3Aci\" aria-current=\"page\">roots</a>"), "{of_roots}");
        assert!(of_roots.contains("href=\"/tasks?q=tag%3Aci+level%3Aany\">all levels</a>"), "{of_roots}");
        let of_type = form("type:pack");
        assert!(of_type.contains("href=\"/tasks?q=type%3Apack\" aria-current=\"page\">all levels</a>"), "{of_type}");
        assert!(of_type.contains("href=\"/tasks?q=type%3Apack+level%3Aroots\">roots</a>"), "{of_type}");
        assert!(!form("under:a").contains("aria-label=\"levels\""), "a tree has all its levels");
    }

    #[test]
    fn wrong_part_of_a_search_is_marked() {
        let problem = ApiError::new(Code::BadParameter, "`stat` is not a qualifier").span(2..6).document();
        let marked = mistake("x stat:<b>", &problem, |_| String::new()).into_string();
        assert!(marked.contains("<code>x <mark>stat</mark>:&lt;b&gt;</code>"), "{marked}");
    }

    #[test]
    fn suggested_word_leads_to_the_corrected_search() {
        let problem = ApiError::new(Code::BadParameter, "`stat`").hint("did you mean `state`?").span(2..6).document();
        let view = View::for_tests(kafleet_config::Role::Read);
        let marked = mistake("x stat:failed", &problem, |text| view.search(text)).into_string();
        let link = "did you mean <a href=\"/tasks?q=x+state%3Afailed\"><code>state</code></a>?";
        assert!(marked.contains(link), "{marked}");
    }

    #[test]
    fn example_of_a_search_names_a_type_of_the_fleet() {
        let names = PickerNames { types: vec!["charge".into()], ..PickerNames::default() };
        assert_eq!(example(&names), "type:charge state:failed from:2h");
        assert_eq!(example(&PickerNames::default()), "state:failed from:2h");
    }
}
