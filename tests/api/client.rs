//! Client of a tested API.

use std::time::Instant;

use kafleet::documents::{Problem, Status};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::api::fixture::DEADLINE;

pub struct Client {
    pub base: String,
    pub http: reqwest::Client,
}

impl Client {
    pub fn new(base: String) -> Self {
        // No root certificates: reading those of the system takes longer than most of a test.
        Self { base, http: kafleet_testkit::http::client() }
    }

    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base))
    }

    /// Reads like a patient client: retries while the projection lags.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> T {
        let begun = Instant::now();
        loop {
            let answer = self.request(Method::GET, path).send().await.unwrap();
            let (status, text) = (answer.status(), answer.text().await.unwrap());
            if is_behind(&text) && begun.elapsed() < DEADLINE {
                continue;
            }
            assert_eq!(status, StatusCode::OK, "GET {path}: {text}");
            return serde_json::from_str(&text).unwrap_or_else(|error| panic!("GET {path}: {error}: {text}"));
        }
    }

    pub async fn problem(&self, path: &str) -> Problem {
        problem(self.request(Method::GET, path)).await
    }

    /// Creates a task and returns its status.
    pub async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        let answer = self.request(Method::POST, path).json(&body).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    /// Creates a task and checks that it is new.
    pub async fn create(&self, body: Value) -> Status {
        let (status, answer) = self.post("/v1/tasks", body).await;
        assert_eq!(status, 201, "{answer}");
        serde_json::from_value(answer).unwrap()
    }

    /// Creates an `echo` task with this id and waits until it is projected.
    pub async fn echo(&self, id: &str) -> Status {
        let (parent, id) = id.rsplit_once(':').map_or((None, id), |(parent, id)| (Some(parent), id));
        let made = self.create(json!({"type": "echo", "id": id, "parent": parent})).await;
        self.get(&format!("/v1/tasks/{}?after={}", made.id, made.position)).await
    }
}

/// Sends a request that must be rejected; retries while the projection lags.
pub async fn problem(request: RequestBuilder) -> Problem {
    let begun = Instant::now();
    loop {
        let Some(again) = request.try_clone() else { return refusal(request).await };
        let answer = refusal(again).await;
        if answer.code != "not_visible_yet" || begun.elapsed() > DEADLINE {
            return answer;
        }
    }
}

fn is_behind(text: &str) -> bool {
    serde_json::from_str::<Problem>(text).is_ok_and(|answer| answer.code == "not_visible_yet")
}

/// Sends a request once that must be rejected, and checks the problem document.
pub async fn refusal(request: RequestBuilder) -> Problem {
    let answer = request.send().await.unwrap();
    let status = answer.status();
    let media = answer.headers().get("content-type").map(|value| value.to_str().unwrap().to_owned());
    let text = answer.text().await.unwrap();
    assert_eq!(media.as_deref(), Some("application/problem+json"), "{status}: {text}");
    let problem: Problem = serde_json::from_str(&text).unwrap();
    assert_eq!(problem.status, status.as_u16(), "{text}");
    assert!(!problem.title.is_empty() && !problem.detail.is_empty(), "{text}");
    problem
}
