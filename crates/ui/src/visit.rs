//! Visit of a page: access to the reads and actions of the api, with the deadlines of pages.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use kafleet_api::http::problem::{ApiError, Code};
use kafleet_api::http::request::{bad_parameter, read_json};
use kafleet_api::service::context::{Name, RequestContext};
use kafleet_api::state::Api;
use kafleet_documents::Problem;
use kafleet_model::json::{JsonKind, RawJson};
use kafleet_model::record::state::State;
use kafleet_model::task::id::{TaskId, check_type};
use maud::Markup;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::live::Live;
use super::parts::View;
use super::parts::form::STEP;
use super::parts::notice::Verdicts;
use super::parts::times::entered_time;

/// Maximum wait of a page for the store or Kafka. What has not been answered by then is left out, with a note.
pub(super) const PAGE_DEADLINE: Duration = Duration::from_secs(2);

pub(super) type Show = for<'a> fn(&'a Visit) -> Pending<'a, PageAnswer>;
pub(super) type Submit = for<'a> fn(&'a Visit) -> Pending<'a, Redirect>;
pub(super) type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, ApiError>> + Send + 'a>>;

/// Response of a page.
pub(super) enum PageAnswer {
    Page(Body),
    /// Page in the place of something that does not exist.
    Missing(Body),
    /// Path below the base path.
    Redirect(String),
    Raw(Response),
}

/// Contents of a page.
pub(super) struct Body {
    pub title: String,
    /// State of the task shown, for the title of the window.
    pub state: Option<State>,
    pub main: Markup,
}

impl Body {
    pub(super) fn new(title: impl Into<String>, main: Markup) -> Self {
        Self { title: title.into(), state: None, main }
    }
}

impl From<Body> for PageAnswer {
    fn from(body: Body) -> Self {
        Self::Page(body)
    }
}

/// Page to show after an action.
pub(super) struct Redirect {
    /// Path below the base path.
    pub path: String,
    /// Position or control offset that the page must include.
    pub after: Option<After>,
    /// Code of the message.
    pub done: &'static str,
    /// Path below the base path of the task or the list in which the result stands, if that is another page.
    pub there: Option<String>,
    /// Verdicts about unique tasks that were submitted.
    pub verdicts: Option<Verdicts>,
}

impl Redirect {
    pub(super) fn new(path: impl Into<String>, done: &'static str) -> Self {
        Self { path: path.into(), after: None, done, there: None, verdicts: None }
    }

    /// Adds the page with the result of the action.
    pub(super) fn leading_to(self, there: impl Into<String>) -> Self {
        Self { there: Some(there.into()), ..self }
    }
}

pub(super) enum After {
    Position(String),
    Control(i64),
}

/// Names and values of a query or a form. Empty values count as absent.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields(Vec<(String, String)>);

impl Fields {
    pub(super) fn parse(text: &[u8]) -> Self {
        let pairs = url::form_urlencoded::parse(text).into_owned();
        Self(pairs.filter(|(_, value)| !value.trim().is_empty()).collect())
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn is_set(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Pairs of the named fields that are set.
    pub(super) fn select(&self, names: &[&str]) -> Vec<(String, String)> {
        names.iter().filter_map(|name| Some(((*name).to_owned(), self.get(name)?.to_owned()))).collect()
    }

    /// Pairs of the named fields that are set, with the times in `from` and `to` as epoch milliseconds. What is no time is left
    /// as it is, for the error of the API.
    pub(super) fn select_with_times(&self, names: &[&str]) -> Vec<(String, String)> {
        let resolved = |(name, value): (String, String)| match entered_time(&value) {
            Ok(at_ms) if matches!(name.as_str(), "from" | "to") => (name, at_ms.to_string()),
            _ => (name, value),
        };
        self.select(names).into_iter().map(resolved).collect()
    }

    /// Epoch milliseconds of a field: a time in the zone of the reader, or an age such as `2h`.
    pub(super) fn time_ms(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        entered_time(text).map(Some).map_err(|error| bad_parameter(name, &error))
    }

    /// Name of a type.
    pub(super) fn type_name(&self, name: &str) -> Result<Option<&str>, ApiError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        check_type(text).map(|()| Some(text)).map_err(|error| bad_parameter(name, &error))
    }

    /// Integer of a field.
    pub(super) fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, ApiError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let wrong =
            |_| ApiError::new(Code::BadField, format!("`{name}` is not a whole number")).pointer(format!("/{name}"));
        text.trim().parse().map(Some).map_err(wrong)
    }

    /// JSON of a field.
    pub(super) fn json(&self, name: &str) -> Result<Option<RawJson>, ApiError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        RawJson::parse(text.trim().as_bytes()).map(Some).map_err(|error| {
            let pointer = format!("/{name}{}", error.pointer().unwrap_or_default());
            ApiError::new(Code::BadJson, format!("`{name}`: {error}")).pointer(pointer)
        })
    }

    /// JSON object of a field; empty if the field is not set.
    pub(super) fn object(&self, name: &str) -> Result<BTreeMap<String, RawJson>, ApiError> {
        let Some(object) = self.json(name)? else { return Ok(BTreeMap::new()) };
        let wrong =
            || ApiError::new(Code::BadField, format!("`{name}` is not a JSON object")).pointer(format!("/{name}"));
        members(&object).ok_or_else(wrong)
    }
}

/// Members of an object as they were entered; `None` for another value.
pub(super) fn members(value: &RawJson) -> Option<BTreeMap<String, RawJson>> {
    let value = value.slice();
    (value.kind() == JsonKind::Object)
        .then(|| value.members().map(|(name, value)| (name.into_owned(), value.into())).collect())
}

/// Authorized request of a page.
pub(super) struct Visit {
    pub api: Arc<Api>,
    pub live: Arc<Live>,
    /// Name of the token.
    pub by: Option<Arc<str>>,
    pub view: View,
    /// Path and query of the page.
    pub path: String,
    /// First parameter of the path.
    pub segment: String,
    /// Second parameter of the path.
    pub name: String,
    pub query: Fields,
    /// Fields of the submitted form.
    pub entered: Fields,
    /// Error of the submitted form.
    pub problem: Option<Problem>,
}

impl Visit {
    /// Entered or preset value of a form's field.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.entered.get(name).or_else(|| self.query.get(name))
    }

    /// Step of a form that shows it again instead of acting, as one of its buttons asks for: a check, a preview, other fields.
    pub(super) fn step(&self) -> Option<&str> {
        self.entered.get(STEP)
    }

    /// Number of the page of a list, from 1.
    pub(super) fn page_number(&self) -> usize {
        self.query.get("page").and_then(|number| number.parse().ok()).unwrap_or(1)
    }

    /// Caller of services.
    pub(super) fn context(&self) -> RequestContext {
        RequestContext { api: self.api.clone(), by: self.by.clone(), role: self.view.role }
    }

    /// Task of the page.
    pub(super) fn id(&self) -> Result<TaskId, ApiError> {
        task_id(&self.segment)
    }

    /// Type or schedule of the page.
    pub(super) fn subject(&self) -> Name {
        Name(self.segment.clone())
    }

    /// Reason entered in the form.
    pub(super) fn reason(&self) -> Option<String> {
        self.entered.get("reason").map(str::to_owned)
    }

    /// Redirect after a change of the control topic.
    pub(super) fn after_control(&self, path: impl Into<String>, done: &'static str) -> Redirect {
        let offset = self.api.fleet.control.last_applied();
        Redirect { after: Some(After::Control(offset)), ..Redirect::new(path, done) }
    }
}

/// Redirect after an action, to a page that includes its event at `position`.
pub(super) fn after_position(path: impl Into<String>, position: String, done: &'static str) -> Redirect {
    Redirect { after: Some(After::Position(position)), ..Redirect::new(path, done) }
}

pub(super) fn task_id(text: &str) -> Result<TaskId, ApiError> {
    TaskId::parse(text).map_err(|error| ApiError::new(Code::BadId, error.to_string()))
}

/// Reads entered JSON as a document.
pub(super) fn document<T: DeserializeOwned>(entered: &impl Serialize) -> Result<T, ApiError> {
    read_json(RawJson::of_plain(entered).text().as_bytes())
}

tokio::task_local! {
    /// End of the patience with the services that a page reads.
    static DEADLINE: Instant;
}

/// Runs the reads of a page, which end by this time.
pub(super) async fn until<T>(deadline: Instant, reads: impl Future<Output = T>) -> T {
    DEADLINE.scope(deadline, reads).await
}

/// Time for a search of a page, which ends with a part of the result while the page still waits for it.
pub(super) fn scan_time() -> Duration {
    deadline().saturating_duration_since(Instant::now()).mul_f64(0.8)
}

/// Waits for the store as long as the page may.
pub(super) fn stored<T>(read: impl Future<Output = Result<T, ApiError>>) -> impl Future<Output = Result<T, ApiError>> {
    // On the heap: a page awaits many reads at once, whose states would fill the stack of a thread together.
    in_time(Code::StoreUnavailable, "the store", Box::pin(read))
}

/// Waits for Kafka as long as the page may.
pub(super) fn from_kafka<T>(
    read: impl Future<Output = Result<T, ApiError>>,
) -> impl Future<Output = Result<T, ApiError>> {
    in_time(Code::KafkaUnavailable, "Kafka", Box::pin(read))
}

fn deadline() -> Instant {
    DEADLINE.try_with(|deadline| *deadline).unwrap_or_else(|_| Instant::now() + PAGE_DEADLINE)
}

async fn in_time<T>(code: Code, of: &str, read: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
    match tokio::time::timeout_at(deadline(), read).await {
        Ok(outcome) => outcome,
        Err(_) => {
            let detail = format!("no answer of {of} within {} s", PAGE_DEADLINE.as_secs());
            Err(ApiError::new(code, detail).hint("reload the page"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn reads_of_a_page_share_its_patience() {
        let begun = Instant::now();
        let reads = async {
            for _ in 0..3 {
                assert!(stored(std::future::pending::<Result<(), ApiError>>()).await.is_err());
            }
            stored(std::future::ready(Ok(7))).await
        };
        assert_eq!(until(begun + PAGE_DEADLINE, reads).await.ok(), Some(7), "what is there is shown");
        assert_eq!(begun.elapsed(), PAGE_DEADLINE);
    }
}
