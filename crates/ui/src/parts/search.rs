//! Search for tasks: the form, its language, and mistakes in it.

use kafleet_documents::Problem;
use kafleet_model::query::Qualifier;
use maud::{Markup, html};

use super::{View, prose};

/// Form of a search with the language on demand.
pub(in super::super) fn search_form(view: &View, text: &str) -> Markup {
    html! {
        form.searching action=(view.url("/tasks")) role="search" aria-label="Tasks" {
            input #q name="q" type="search" value=(text) aria-label="Search" autocomplete="off" spellcheck="false"
                placeholder="type:resize state:failed from:2h" list="suggestions";
            button.primary type="submit" { "Search" }
            @if !text.is_empty() { a.button href=(view.url("/tasks")) { "Clear" } }
        }
        details.more #language {
            summary { "Search language" }
            (language())
        }
    }
}

/// Terms of the search language.
pub(in super::super) fn language() -> Markup {
    html! {
        p {
            "Terms with a qualifier, such as " code { "type:resize,thumb state:failed -tag:test \"build main\"" }
            ". A comma means any of, a minus means not. Other words are the id of a task, or a part of the name. \
             Params are not searched: use tags."
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
    fn wrong_part_of_a_search_is_marked() {
        let problem = ApiError::new(Code::BadParameter, "`stat` is not a qualifier").span(2..6).document();
        let marked = mistake("x stat:<b>", &problem).into_string();
        assert!(marked.contains("<code>x <mark>stat</mark>:&lt;b&gt;</code>"), "{marked}");
    }
}
