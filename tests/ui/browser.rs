//! Client that requests pages and submits forms like a browser without JavaScript.

use std::time::Instant;

use kafleet::config::{ApiConfig, Role, TokenConfig, UiConfig};
use reqwest::{Method, StatusCode};

use crate::api::fixture::{DEADLINE, Fleet, unfolded};

/// Response to a request of a page.
pub struct Page {
    pub status: StatusCode,
    pub text: String,
    /// Size of the body as it was sent.
    pub bytes: usize,
    pub headers: reqwest::header::HeaderMap,
}

impl Page {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Returns whether the page is a document for people, and not a file, a text or a redirect.
    pub fn is_document(&self) -> bool {
        self.header("content-type").starts_with("text/html") && self.header("content-disposition").is_empty()
    }

    /// Checks that the page contains each text.
    pub fn has(&self, texts: &[&str]) -> &Self {
        for text in texts {
            assert!(self.text.contains(text), "`{text}` is missing in: {}", self.text);
        }
        self
    }

    pub fn lacks(&self, texts: &[&str]) -> &Self {
        for text in texts {
            assert!(!self.text.contains(text), "`{text}` is in: {}", self.text);
        }
        self
    }
}

/// Browser of one user.
pub struct Browser<'a> {
    pub fleet: &'a Fleet,
    http: reqwest::Client,
    /// Sent with every request.
    pub headers: Vec<(&'static str, String)>,
}

impl<'a> Browser<'a> {
    pub fn new(fleet: &'a Fleet) -> Self {
        let http = kafleet_testkit::http::client_without_redirects();
        Self { fleet, http, headers: vec![("accept", "text/html".into())] }
    }

    /// Browser with a bearer token of a role.
    pub fn of_role(fleet: &'a Fleet, role: Role) -> Self {
        let mut browser = Self::new(fleet);
        browser.headers.push(("authorization", format!("Bearer {}", token(role))));
        browser
    }

    pub async fn send(&self, method: Method, path: &str, extra: &[(&str, &str)], body: Option<&str>) -> Page {
        let mut request = self.http.request(method, format!("{}{path}", self.fleet.base));
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        for (name, value) in extra {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.header("content-type", "application/x-www-form-urlencoded").body(body.to_owned());
        }
        let response = request.send().await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.bytes().await.unwrap();
        Page { status, headers, bytes: body.len(), text: String::from_utf8_lossy(&body).into_owned() }
    }

    pub async fn get(&self, path: &str) -> Page {
        self.send(Method::GET, path, &[], None).await
    }

    /// Opens a page that must exist; waits while the projection lags.
    pub async fn open(&self, path: &str) -> Page {
        let begun = Instant::now();
        loop {
            let page = self.get(path).await;
            if page.status == StatusCode::OK || begun.elapsed() > DEADLINE {
                assert_eq!(page.status, StatusCode::OK, "{path}: {}", page.text);
                return page;
            }
        }
    }

    /// Submits a form from a page of the UI.
    pub async fn post(&self, path: &str, body: &str) -> Page {
        self.send(Method::POST, path, &[("sec-fetch-site", "same-origin")], Some(body)).await
    }

    /// Submits a form that must succeed, and opens the page it leads to.
    pub async fn submit(&self, path: &str, body: &str) -> Page {
        let page = self.post(path, body).await;
        assert_eq!(page.status, StatusCode::SEE_OTHER, "{path}: {}", page.text);
        self.open(page.header("location")).await
    }
}

pub fn token(role: Role) -> String {
    format!("token-of-role-{role:?}").to_lowercase()
}

/// Configuration with a token per role.
pub fn with_tokens(ui: UiConfig) -> ApiConfig {
    let token = |role: Role| TokenConfig { name: format!("{role:?}").to_lowercase(), token: token(role), role };
    let tokens = Role::ALL.map(token).to_vec();
    ApiConfig { tokens, ui, ..ApiConfig::default() }
}

/// Fleet with a token per role.
pub async fn guarded_fleet() -> Fleet {
    let fleet = unfolded(with_tokens(UiConfig::default())).await;
    fleet.track();
    fleet
}
