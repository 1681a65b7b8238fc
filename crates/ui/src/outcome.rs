//! Outcome of an action: the page that it leads to, and the message there.
//!
//! The URL of that page has codes, numbers, ids and paths of this UI, never texts: a link from
//! elsewhere can show no other message.

use kafleet_model::task::id::TaskId;
use kafleet_model::unique::AskVerdict;

use super::parts::notice::{ActionNotice, Verdicts};
use super::visit::{After, Fields, Redirect, Visit};

/// Maximum length of the path of a result, in bytes: servers and browsers refuse much longer headers.
const MAX_PATH: usize = 2_000;
/// Maximum number of joined tasks that a message names.
const MAX_NAMED: usize = 10;
/// Lists of tasks, which results may be.
const LISTS: [&str; 2] = ["/tasks", "/dead-letters"];
/// Beginning of the paths of single tasks.
const TASKS: &str = "/tasks/";

/// Names of the parameters.
const DONE: &str = "done";
const THERE: &str = "there";
const NAMED: &str = "joined_task";

/// URL, below the base path, of the page after an action.
pub(super) fn redirect_path(redirect: &Redirect) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    match &redirect.after {
        Some(After::Position(position)) => drop(query.append_pair("after", position)),
        Some(After::Control(offset)) => drop(query.append_pair("control", &offset.to_string())),
        None => {}
    }
    query.append_pair(DONE, redirect.done);
    if let Some(there) = redirect.there.as_deref().filter(|there| there.len() <= MAX_PATH) {
        query.append_pair(THERE, there);
    }
    if let Some(verdicts) = redirect.verdicts.as_ref().filter(|verdicts| !verdicts.is_empty()) {
        for (verdict, number) in verdicts.numbers().into_iter().filter(|(_, number)| *number > 0) {
            query.append_pair(verdict.name(), &number.to_string());
        }
        for id in verdicts.named.iter().take(MAX_NAMED) {
            query.append_pair(NAMED, id);
        }
    }
    let join = if redirect.path.contains('?') { '&' } else { '?' };
    format!("{}{join}{}", redirect.path, query.finish())
}

/// Message of the action that led to this page.
pub(super) fn done(visit: &Visit) -> Option<ActionNotice<'_>> {
    let query = &visit.query;
    let there = query.get(THERE).filter(|there| is_result(there));
    Some(ActionNotice { code: query.get(DONE)?, subject: &visit.segment, there, verdicts: verdicts(query) })
}

/// Returns whether a path is that of a list or of a task of this UI.
fn is_result(path: &str) -> bool {
    let page = path.split(['?', '#']).next().unwrap_or_default();
    LISTS.contains(&page) || page.starts_with(TASKS)
}

fn verdicts(query: &Fields) -> Verdicts {
    let number = |verdict: AskVerdict| query.get(verdict.name()).and_then(|number| number.parse().ok()).unwrap_or(0);
    let named = query.all(NAMED).filter(|id| TaskId::parse(id).is_ok()).take(MAX_NAMED).map(str::to_owned);
    Verdicts {
        started: number(AskVerdict::Started),
        kept: number(AskVerdict::Kept),
        joined: number(AskVerdict::Joined),
        named: named.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redirect(path: &str) -> Redirect {
        Redirect::new(path, "submitted_many")
    }

    #[test]
    fn result_is_a_page_of_tasks_or_dead_letters() {
        for (path, is_allowed) in [
            ("/tasks", true),
            ("/tasks?q=type%3Aecho", true),
            ("/tasks/order-42", true),
            ("/tasks/order-42/tree?only=open", true),
            ("/dead-letters?type=charge", true),
            ("/tasksx", false),
            ("//evil.example/tasks", false),
            ("https://evil.example/tasks/", false),
            ("/logout", false),
            ("javascript:alert(1)", false),
            ("", false),
        ] {
            assert_eq!(is_result(path), is_allowed, "{path}");
        }
    }

    #[test]
    fn url_has_the_result_and_the_verdicts() {
        let verdicts = Verdicts { started: 2, kept: 0, joined: 1, named: vec!["echo~k~~a".to_owned()] };
        let outcome = Redirect { verdicts: Some(verdicts.clone()), ..redirect("/tasks").leading_to("/tasks?q=id%3Aa") };
        let path = redirect_path(&outcome);
        assert_eq!(
            path,
            "/tasks?done=submitted_many&there=%2Ftasks%3Fq%3Did%253Aa&started=2&joined=1&joined_task=echo%7Ek%7E%7Ea"
        );
        let query = Fields::parse(path.split_once('?').unwrap().1.as_bytes());
        assert_eq!(super::verdicts(&query), verdicts);
        assert_eq!(query.get(THERE), Some("/tasks?q=id%3Aa"));
    }

    #[test]
    fn result_with_a_long_path_is_left_out() {
        let long = format!("/tasks?q={}", "a".repeat(MAX_PATH));
        assert_eq!(redirect_path(&redirect("/bulk/b?page=2").leading_to(long)), "/bulk/b?page=2&done=submitted_many");
    }
}
