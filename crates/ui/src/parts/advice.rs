//! Advice of pages about the problem codes of the API, whose hints name requests and parameters of programs.

use kafleet_api::http::problem::Code;
use kafleet_documents::Problem;
use maud::{Markup, html};

use super::{View, encoded, prose, task_path};

/// Advice of a page about a problem.
#[derive(Clone, Copy)]
enum Advice {
    /// The hint of the API, which readers of pages can follow too.
    Hint,
    Sentence(&'static str),
    /// A sentence, and a page that helps.
    Page(&'static str, PageLink),
}

/// Page that helps.
#[derive(Clone, Copy)]
enum PageLink {
    /// Path and text.
    To(&'static str, &'static str),
    /// Type that the hint names, with its schema.
    Schema,
    /// Task that the message names.
    Task,
    /// Schedule that the message names.
    Schedule,
}

/// Advice for each code. A new code decides here whether its hints are fit for pages.
#[rustfmt::skip]
const fn advice(code: Code) -> Advice {
    use Advice::{Hint, Page, Sentence};
    use PageLink::{Schedule, Schema, Task, To};
    match code {
        Code::BadJson | Code::UnknownField | Code::BadField | Code::BadId | Code::UnknownParameter | Code::BadParameter
        | Code::TooManyItems | Code::BadKillSwitch | Code::BadView | Code::BadRequest | Code::Unauthorized | Code::Forbidden
        | Code::ForbiddenHost | Code::ForbiddenOrigin | Code::ReadOnly | Code::NotFound | Code::UnknownParent
        | Code::NoParams | Code::MethodNotAllowed | Code::BodyTimeout | Code::AlreadyDropped | Code::AlreadyRedriven
        | Code::DuplicateId | Code::AlreadyFinished | Code::TooManyAttachments | Code::NotExternal | Code::NotChangeable
        | Code::UnreadableDeadLetter | Code::TooManyRuns | Code::ParamsUnreadable | Code::ParamsGone | Code::TooLarge
        | Code::UnsupportedMedia | Code::AmbiguousJson | Code::Rejected | Code::BadState | Code::MultipleTrees
        | Code::TooManyTimes | Code::LimitTooSmall | Code::Internal | Code::InProgress | Code::NotVisibleYet
        | Code::StoreUnavailable | Code::KafkaUnavailable | Code::OutcomeUnknown | Code::NotAnnounced
        | Code::Overloaded | Code::NotReady | Code::UnknownUnique | Code::UniqueRoot | Code::NotDecided => Hint,
        Code::BadCursor => Page("Start at the first page of the list.", To("/tasks", "All tasks")),
        Code::UnknownRoute => Sentence("The navigation leads to all pages."),
        Code::UnknownType => Page("Types are listed once they have a topic or were declared.", To("/types", "All types")),
        Code::UnknownAttachment => Page("The page of the task lists its attachments.", Task),
        Code::UnknownKillSwitch => Page("It may have been switched off.", To("/kill-switches", "All kill switches")),
        Code::TooManyKillSwitches => Page("Switch one off first.", To("/kill-switches", "All kill switches")),
        Code::UnknownView => Page("It may have been deleted.", To("/v", "All views")),
        Code::TooManyViews => Page("Delete one first.", To("/v", "All views")),
        Code::UnknownSchedule => Page("It may have been deleted.", To("/schedules", "All schedules")),
        Code::TooManySchedules => Page("Delete one first.", To("/schedules", "All schedules")),
        Code::DuplicateSchedule => Page("Choose another id, or edit the existing schedule.", Schedule),
        Code::DeadLetterSuperseded => Page("To run it again anyway, retry the task.", Task),
        Code::ExternalTask => Page("The failed tasks below it can be retried from its page.", Task),
        Code::NothingToRetry => Page("The task itself can be retried from its page, if workers run it.", Task),
        Code::NotFinished => {
            Page("Wait for it to end, or cancel it first. What failed below it can be retried from its page.", Task)
        }
        Code::Schema => Page("Correct the params.", Schema),
    }
}

/// Advice about a problem. With a view: and the link to a page that helps.
pub(in super::super) fn advice_text(view: Option<&View>, problem: &Problem) -> Option<Markup> {
    let hint = || problem.hint.as_deref().map(prose);
    // A suggestion such as `did you mean` knows more than the table.
    if problem.hint.as_deref().is_some_and(|hint| hint.starts_with("did you mean")) {
        return hint();
    }
    match code_of(problem).map_or(Advice::Hint, advice) {
        Advice::Hint => hint(),
        Advice::Sentence(text) => Some(html! { (text) }),
        Advice::Page(text, link) => Some(html! {
            (text)
            @if let Some((view, (path, text))) = view.zip(target(link, problem)) {
                " " a href=(view.url(&path)) { (text) }
            }
        }),
    }
}

/// Title of a problem, in words for readers of pages.
pub(in super::super) fn title_text(problem: &Problem) -> &str {
    match code_of(problem) {
        Some(Code::BadCursor) => "Invalid link",
        _ => &problem.title,
    }
}

/// Message of a problem, in words for readers of pages.
pub(in super::super) fn detail_text(problem: &Problem) -> &str {
    match code_of(problem) {
        Some(Code::BadCursor) => "the link leads to a part of a list that cannot be found",
        _ => problem.detail.strip_prefix("query parameter ").unwrap_or(&problem.detail),
    }
}

fn code_of(problem: &Problem) -> Option<Code> {
    Code::ALL.iter().copied().find(|code| code.name() == problem.code)
}

/// Path and text of a link. `None`: the problem does not name its subject.
fn target(link: PageLink, problem: &Problem) -> Option<(String, String)> {
    match link {
        PageLink::To(path, text) => Some((path.to_owned(), text.to_owned())),
        PageLink::Schema => {
            let name = in_backticks(problem.hint.as_deref()?)?;
            Some((format!("/types/{}#schema", encoded(name)), format!("Schema of {name}")))
        }
        PageLink::Task => in_backticks(&problem.detail).map(|id| (task_path(id), format!("Open {id}"))),
        PageLink::Schedule => {
            let id = in_backticks(&problem.detail)?;
            Some((format!("/schedules/{}", encoded(id)), format!("Schedule {id}")))
        }
    }
}

/// First value in backticks.
fn in_backticks(text: &str) -> Option<&str> {
    text.split('`').nth(1).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use kafleet_api::http::problem::ApiError;
    use kafleet_config::Role;

    use super::*;

    fn shown(error: ApiError) -> String {
        let view = View { base: "/fleet".into(), ..View::for_tests(Role::Submit) };
        advice_text(Some(&view), &error.document()).map(Markup::into_string).unwrap_or_default()
    }

    #[test]
    fn hints_for_programs_become_sentences_with_links() {
        for (code, detail, hint, expected) in [
            (
                Code::UnknownSchedule,
                "no `a`",
                "list them with GET /v1/schedules",
                "href=\"/fleet/schedules\">All schedules",
            ),
            (
                Code::Schema,
                "`width` is not a number",
                "GET /v1/types shows the schema of `pack`",
                "href=\"/fleet/types/pack#schema\">Schema of pack",
            ),
            (
                Code::NothingToRetry,
                "`a:b` has none",
                "a retry without `only_failed`",
                "href=\"/fleet/tasks/a:b\">Open a:b",
            ),
            (Code::DuplicateSchedule, "the schedule `n` exists", "PUT /v1/schedules/n", "href=\"/fleet/schedules/n\">"),
        ] {
            let text = shown(ApiError::new(code, detail).hint(hint));
            assert!(text.contains(expected) && !text.contains("/v1/") && !text.contains("only_failed"), "{text}");
        }
    }

    #[test]
    fn suggestion_of_the_api_is_kept() {
        let text = shown(ApiError::new(Code::UnknownType, "no type `reszie`").hint("did you mean `resize`?"));
        assert_eq!(text, "did you mean <code>resize</code>?");
        assert_eq!(shown(ApiError::new(Code::NotFound, "gone")), "");
    }
}
