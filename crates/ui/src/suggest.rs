//! `GET /ui/suggestions?q=&at=`: completions of a search as whole texts. The same as those of the API, for a session.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use kafleet_api::http::answer::json_answer;
use kafleet_api::http::problem::ApiError;
use kafleet_api::read::suggest::suggest;
use kafleet_api::state::Api;
use kafleet_documents::{Suggestion, TextSpan};
use kafleet_runtime::now_ms;
use serde::Serialize;

use super::parts::count;
use super::response::with_security_headers;
use super::session;
use super::visit::{Fields, stored};

/// Completed search.
#[derive(Serialize)]
struct Choice {
    value: String,
    label: String,
}

pub(super) async fn answer(State(api): State<Arc<Api>>, request: Request) -> Response {
    with_security_headers(choices(&api, &request.into_parts().0).await.unwrap_or_else(IntoResponse::into_response))
}

async fn choices(api: &Api, head: &Parts) -> Result<Response, ApiError> {
    api.access.current().check_host(&head.headers)?;
    session::caller(&api.access.current(), &head.headers, now_ms())?;
    let query = Fields::parse(head.uri.query().unwrap_or_default().as_bytes());
    let text = query.get("q").unwrap_or_default();
    let at = query.number("at")?.unwrap_or_else(|| text.chars().count());
    let suggested = stored(suggest(&api.reads, &api.recent_values, api.types.declared_names(), text, at)).await?;
    let choices: Vec<Choice> =
        suggested.suggestions.iter().map(|suggestion| choice(text, &suggested.replace, suggestion)).collect();
    Ok(json_answer(200, &choices))
}

fn choice(text: &str, replace: &TextSpan, suggestion: &Suggestion) -> Choice {
    let before: String = text.chars().take(replace.start).collect();
    let after: String = text.chars().skip(replace.end).collect();
    let tasks = suggestion.tasks.map(|tasks| format!("{} tasks", count(tasks)));
    let label = suggestion.description.clone().or(tasks).unwrap_or_default();
    Choice { value: format!("{before}{}{after}", suggestion.text), label }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggestion_replaces_the_word_at_the_cursor() {
        let suggestion = Suggestion { text: "failed".into(), description: None, tasks: Some(1_200) };
        let made = choice("type:ä state:f tag:x", &TextSpan { start: 13, end: 14 }, &suggestion);
        assert_eq!((made.value.as_str(), made.label.as_str()), ("type:ä state:failed tag:x", "1,200 tasks"));
    }
}
