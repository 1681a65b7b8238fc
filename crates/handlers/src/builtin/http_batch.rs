//! Calls of a web service with several tasks: a batch of CloudEvents, answered by one.

use std::time::Instant;

use kafleet_model::json::RawJson;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};

use super::batch_answers::{in_order, with_kind};
use super::http::{Call, DEFAULT_TIMEOUT};
use crate::egress::kept_connections::KeepAliveClient;
use crate::failure::excerpt;
use crate::{Answer, BatchAnswer, BatchContext, Context, Failure, Item};

/// Media type of a batch of CloudEvents.
const BATCH_TYPE: &str = "application/cloudevents-batch+json";

/// Task in a request: a CloudEvent in structured mode.
#[derive(Serialize)]
struct TaskEvent<'a> {
    specversion: &'static str,
    id: &'a str,
    #[serde(rename = "type")]
    task_type: &'a str,
    source: &'static str,
    datacontenttype: &'static str,
    run: u32,
    attempt: u32,
    idempotencykey: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
    data: &'a RawJson,
}

/// Answer for a task: a CloudEvent with its id, whose other attributes are ignored.
#[derive(Deserialize)]
struct AnswerEvent {
    id: String,
    /// Outcome; `None`: ok.
    outcome: Option<EventOutcome>,
    /// Kind of the error.
    kind: Option<String>,
    /// Result, or the reason as a text.
    data: Option<RawJson>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EventOutcome {
    Ok,
    Retry,
    Wait,
    Fail,
    Dead,
}

impl AnswerEvent {
    fn read(self) -> (String, Answer) {
        let Self { id, outcome, kind, data } = self;
        let data = data.unwrap_or_else(RawJson::null);
        let message = || data.slice().string().map_or_else(|| data.text().to_owned(), Into::into);
        let failure = match outcome.unwrap_or(EventOutcome::Ok) {
            EventOutcome::Ok => return (id, Ok(data)),
            EventOutcome::Retry => Failure::retry(message()),
            EventOutcome::Wait => Failure::wait(None, message()),
            EventOutcome::Fail => Failure::fail(message()),
            EventOutcome::Dead => Failure::dead(message()),
        };
        (id, Err(with_kind(failure, kind)))
    }
}

impl Call {
    /// Calls the service with several tasks, unless all of them are cancelled before it answers.
    pub(super) async fn call_batch(
        &self,
        client: &KeepAliveClient,
        items: Vec<Item<RawJson>>,
        cx: BatchContext,
    ) -> BatchAnswer {
        tokio::select! {
            answer = self.send_batch(client, items, &cx) => answer,
            () = cx.cancelled().cancelled() => Err(Failure::cancelled()),
        }
    }

    /// Sends the tasks of a call. A status other than 2xx is the failure of the call.
    async fn send_batch(&self, client: &KeepAliveClient, items: Vec<Item<RawJson>>, cx: &BatchContext) -> BatchAnswer {
        let timeout = cx.deadline().map_or(DEFAULT_TIMEOUT, |at| at.saturating_duration_since(Instant::now()));
        let events: Vec<TaskEvent<'_>> = items.iter().map(event_of).collect();
        let body = serde_json::to_string(&events)
            .map_err(|error| Failure::fail(format!("the params are not JSON: {error}")).of_kind("bad_params"))?;
        let max_output = self.max_output.saturating_mul(items.len());
        let request = client.request(self.method.clone(), self.url.clone()).headers(self.batch_headers(items.len()));
        let body = self.response(client, request.timeout(timeout).body(body), max_output).await?;
        if body.trim_ascii().is_empty() {
            return Ok(items.iter().map(|_| Ok(RawJson::null())).collect());
        }
        let answers: Vec<AnswerEvent> = serde_json::from_slice(&body).map_err(|error| {
            let begins = excerpt(&body, 100);
            let hint =
                "answer with an array of CloudEvents such as [{\"id\": \"t-1\", \"data\": 7}], one for each task";
            let message = format!("the response is no batch of answers ({error}): `{begins}`; hint: {hint}");
            Failure::fail(message).of_kind("bad_output")
        })?;
        let missing = || Err(Failure::retry("the response has no answer for the task").of_kind("bad_output"));
        Ok(in_order(items.iter().map(|item| &item.cx), answers.into_iter().map(AnswerEvent::read).collect(), missing))
    }

    /// Returns the headers of a request, the configured ones last.
    fn batch_headers(&self, tasks: usize) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(BATCH_TYPE));
        headers.insert(HeaderName::from_static("kafleet-batch"), HeaderValue::from(tasks));
        headers.extend(self.headers.clone());
        headers
    }
}

fn event_of(item: &Item<RawJson>) -> TaskEvent<'_> {
    let cx: &Context = &item.cx;
    TaskEvent {
        specversion: "1.0",
        id: cx.id.as_str(),
        task_type: cx.task_type(),
        source: "kafleet",
        datacontenttype: "application/json",
        run: cx.run,
        attempt: cx.number,
        idempotencykey: cx.idempotency_key(),
        traceparent: cx.trace.as_ref().map(|trace| trace.parent.as_str()),
        data: &item.params,
    }
}
