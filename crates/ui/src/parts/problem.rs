//! Problem documents of the API as pages.

use kafleet_documents::Problem;
use maud::{Markup, html};

use super::advice::{advice_text, detail_text, title_text};
use super::{View, prose};

/// Page on which an error is shown. Empty without a page of the table.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct ErrorPage<'a> {
    /// Path and name of the list to look at next.
    pub list: Option<(&'static str, &'static str)>,
    /// Path of the request, to which a login with another token leads back.
    pub path: &'a str,
}

/// Title, detail, hint and code of an error, what still works, and a link to go on.
pub(in super::super) fn problem_block(view: &View, problem: &Problem, page: ErrorPage<'_>) -> Markup {
    html! {
        section.problem {
            h1 { (title_text(problem)) }
            (notice(view, problem, None))
            @if let Some(other) = works(&problem.code) { p { (other) } }
            p {
                @if problem.status == 401 {
                    a href=(view.url("/login")) { "Log in" }
                } @else if problem.code == "forbidden" {
                    a href=(view.url_with("/login", &[("again", "1"), ("next", page.path)])) { "Log in with another token" } " · "
                    a href=(view.url("/")) { "Overview" }
                } @else if let Some((list, name)) = page.list {
                    a href=(view.url(list)) { "All " (name.to_lowercase()) }
                } @else {
                    a href=(view.url("/")) { "Overview" }
                }
            }
        }
    }
}

/// Title, detail, hint and code of an error in a form.
pub(in super::super) fn problem_text(view: &View, problem: &Problem) -> Markup {
    notice(view, problem, Some(title_text(problem)))
}

/// Detail, hint and code of an error. `title`: that of the error, unless it is the heading of the page.
fn notice(view: &View, problem: &Problem, title: Option<&str>) -> Markup {
    html! {
        div.notice.bad role="alert" {
            p {
                @if let Some(title) = title { strong { (title) ": " } }
                (prose(detail_text(problem)))
                @if let Some(pointer) = problem.pointer.as_deref().filter(|pointer| !pointer.is_empty()) {
                    " (at " code { (pointer) } ")"
                }
            }
            @if let Some(advice) = advice_text(Some(view), problem) { p { (advice) } }
            p.quiet.code { "code " code { (problem.code) } ", status " (problem.status) }
        }
    }
}

/// Details of several errors, each with its place.
pub(in super::super) fn problem_list(view: &View, problems: &[Problem]) -> Markup {
    html! {
        ul.plain {
            @for problem in problems {
                li {
                    (prose(detail_text(problem)))
                    @if let Some(pointer) = problem.pointer.as_deref().filter(|pointer| !pointer.is_empty()) {
                        " (at " code { (pointer) } ")"
                    }
                    @if let Some(advice) = advice_text(Some(view), problem) { " " span.quiet { (advice) } }
                }
            }
        }
    }
}

/// Pages that work without the missing service.
fn works(code: &str) -> Option<&'static str> {
    match code {
        "store_unavailable" => Some(
            "Without the store these still work: workers and kill switches. Tasks \
             continue to run, and nothing is lost: the store is a projection of the log.",
        ),
        "kafka_unavailable" => Some(
            "Without Kafka these still work: tasks, trees, timelines and logs, as of the last projected event. Actions \
             are refused until Kafka answers.",
        ),
        _ => None,
    }
}
