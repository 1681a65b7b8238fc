//! `[otel]`: tracing with OpenTelemetry.

use std::collections::BTreeMap;

use kafleet_model::units::duration::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::document::{Document, join};
use super::shape::{UnlocatedProblem, bad_value};

/// Maximum length of a name, in characters.
const MAX_NAME_CHARS: usize = 255;

#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OtelConfig {
    /// URL of a collector that takes OTLP over HTTP, such as `http://otel-collector:4318`; `/v1/traces` is added. Default:
    /// none, nothing is traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Share of the traces that are sampled, from 0 to 1. A task with a valid `traceparent` follows its flag instead.
    pub sample: f64,
    /// `service.name` of the resource.
    pub service_name: String,
    /// Further attributes of the resource, such as `deployment.environment.name`.
    pub resource: BTreeMap<String, String>,
    /// Headers of requests to the collector; `${VARIABLE}` reads a value from the environment.
    pub headers: BTreeMap<String, String>,
    /// Deadline of a request to the collector: 100ms to 60s.
    pub timeout: Millis,
}

impl Default for OtelConfig {
    fn default() -> Self {
        Self {
            endpoint: None,
            sample: 0.01,
            service_name: "kafleet".into(),
            resource: BTreeMap::new(),
            headers: BTreeMap::new(),
            timeout: Millis::secs(10),
        }
    }
}

/// URL of traces below the base URL of a collector.
pub fn traces_url(base: &str) -> String {
    let base = base.trim_end_matches('/');
    let base = base.strip_suffix("/v1/traces").unwrap_or(base);
    format!("{base}/v1/traces")
}

pub(super) fn problems(document: &Document, otel: &OtelConfig) -> Vec<UnlocatedProblem> {
    let mut problems = Vec::new();
    if otel.endpoint.as_deref().is_some_and(|endpoint| !is_base_url(endpoint)) {
        let allowed = "an `http://` or `https://` URL without query, such as `http://otel-collector:4318`";
        problems.push(bad_value(document, "/otel/endpoint", allowed));
    }
    if !(0.0..=1.0).contains(&otel.sample) {
        problems.push(bad_value(document, "/otel/sample", "a number from 0 to 1"));
    }
    if !(1..=MAX_NAME_CHARS).contains(&otel.service_name.chars().count()) {
        problems.push(bad_value(document, "/otel/service_name", "a name of 1 to 255 characters"));
    }
    if !(Millis(100)..=Millis::secs(60)).contains(&otel.timeout) {
        problems.push(bad_value(document, "/otel/timeout", "100ms to 60s"));
    }
    for name in otel.resource.keys().filter(|name| name.is_empty() || name.chars().count() > MAX_NAME_CHARS) {
        let message = "an attribute's name has 1 to 255 characters";
        problems.push(UnlocatedProblem::new(join("/otel/resource", name), message));
    }
    for (name, value) in &otel.headers {
        let is_name = http::HeaderName::from_bytes(name.as_bytes()).is_ok();
        if !is_name || http::HeaderValue::from_str(value).is_err() {
            // The value may be a secret, and is not shown.
            let message = if is_name { "has a value that no header can have" } else { "is not a header's name" };
            problems.push(UnlocatedProblem::new(
                join("/otel/headers", name),
                format!("`{}` {message}", name.escape_default()),
            ));
        }
    }
    problems
}

fn is_base_url(text: &str) -> bool {
    url::Url::parse(text).is_ok_and(|url| {
        matches!(url.scheme(), "http" | "https") && url.has_host() && url.query().is_none() && url.fragment().is_none()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_of_traces_is_added_once() {
        for base in ["http://a:4318", "http://a:4318/", "http://a:4318/v1/traces", "http://a:4318/v1/traces/"] {
            assert_eq!(traces_url(base), "http://a:4318/v1/traces", "{base}");
        }
        assert_eq!(traces_url("https://a/b"), "https://a/b/v1/traces");
    }

    #[test]
    fn all_problems_of_the_section_are_reported() {
        let pointers = |otel: OtelConfig| {
            let document = Document::of(serde_json::json!({ "otel": otel }));
            problems(&document, &otel).into_iter().map(|problem| problem.pointer).collect::<Vec<_>>()
        };
        assert_eq!(pointers(OtelConfig::default()), [""; 0]);
        let pair = |name: &str, value: &str| [(name.to_owned(), value.to_owned())].into();
        let wrong = OtelConfig {
            endpoint: Some("collector:4318".into()),
            sample: 1.5,
            service_name: String::new(),
            resource: pair("", "a"),
            headers: pair("a b", "c"),
            timeout: Millis(1),
        };
        let expected = ["endpoint", "sample", "service_name", "timeout", "resource/", "headers/a b"];
        assert_eq!(pointers(wrong), expected.map(|key| format!("/otel/{key}")));
        for endpoint in ["ftp://a", "http://", "http://a?b", "http://a#b", "a"] {
            let otel = OtelConfig { endpoint: Some(endpoint.into()), ..OtelConfig::default() };
            assert_eq!(pointers(otel), ["/otel/endpoint"], "{endpoint}");
        }
        let secret = OtelConfig { headers: pair("authorization", "a\nb"), ..OtelConfig::default() };
        assert_eq!(pointers(secret), ["/otel/headers/authorization"]);
    }
}
