//! Search for tasks: the form, its language, and mistakes in it.

use kafleet_documents::Problem;
use kafleet_model::query::{Qualifier, TaskQuery, Test, TreeLevel};
use maud::{Markup, html};

use super::{View, prose};

/// Form of a search, with its level and the language on demand. `query`: the search, unless it has a mistake.
pub(in super::super) fn search_form(view: &View, text: &str, query: Option<&TaskQuery>) -> Markup {
    html! {
        form.searching action=(view.url("/tasks")) role="search" aria-label="Tasks" {
            input #q name="q" type="search" value=(text) aria-label="Search" autocomplete="off" spellcheck="false"
                placeholder="state:failed from:2h" list="suggestions";
            @if let Some(query) = query { (levels(view, query)) }
            button.primary type="submit" { "Search" }
            @if !text.is_empty() { a.button href=(view.url("/tasks")) { "Clear" } }
        }
        details.more #language {
            summary { "Search language" }
            (language())
        }
    }
}

/// Levels of the tasks that a search finds. Searches for ids and trees concern all levels.
fn levels(view: &View, query: &TaskQuery) -> Markup {
    let is_fixed = query.terms.iter().any(|term| matches!(term.test, Test::Id(_) | Test::Under(_)));
    let link = |level: TreeLevel, text: &str| {
        let is_chosen = query.level() == level;
        let url = view.search(&query.clone().at_level(level).to_string());
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

/// Mistake in a search, marked in its text.
pub(in super::super) fn mistake(text: &str, problem: &Problem) -> Markup {
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
            @if let Some(hint) = &problem.hint { p { (prose(hint)) } }
        }
    }
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
            search_form(&view, text, Some(&query)).into_string()
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
        let marked = mistake("x stat:<b>", &problem).into_string();
        assert!(marked.contains("<code>x <mark>stat</mark>:&lt;b&gt;</code>"), "{marked}");
    }
}
