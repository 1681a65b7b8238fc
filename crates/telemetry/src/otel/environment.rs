//! Settings of tracing: those of `[otel]`, overridden by the standard `OTEL_*` variables. As the OpenTelemetry specification
//! demands, a variable with an invalid value is ignored with a warning.

use std::collections::BTreeMap;
use std::time::Duration;

use kafleet_config::{OtelConfig, traces_url};

/// Longest deadline of an export that a variable may set.
const MAX_TIMEOUT: Duration = Duration::from_secs(60);

/// Settings of tracing of a process that has an endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct OtelSettings {
    /// URL to which spans are posted.
    pub url: String,
    /// Share of the traces that are sampled, from 0 to 1.
    pub sample: f64,
    /// Attributes of the resource, with `service.name`.
    pub resource: BTreeMap<String, String>,
    /// Headers of requests.
    pub headers: BTreeMap<String, String>,
    /// Deadline of an export.
    pub timeout: Duration,
}

/// Returns the settings, or `None` if tracing is off, and warnings about variables that are ignored.
pub fn settings(config: &OtelConfig, env: &dyn Fn(&str) -> Option<String>) -> (Option<OtelSettings>, Vec<String>) {
    let mut variables = Variables { env, warnings: Vec::new() };
    let is_off = variables.parse("OTEL_SDK_DISABLED", "`true` or `false`", |text| match text {
        _ if text.eq_ignore_ascii_case("true") => Some(true),
        _ if text.eq_ignore_ascii_case("false") => Some(false),
        _ => None,
    });
    let exports = variables.parse("OTEL_TRACES_EXPORTER", "`otlp` or `none`", |text| match text {
        "otlp" => Some(true),
        "none" => Some(false),
        _ => None,
    });
    let url = variables.url().or_else(|| Some(traces_url(config.endpoint.as_deref()?)));
    let Some(url) = url.filter(|_| is_off != Some(true) && exports != Some(false)) else {
        return (None, variables.warnings);
    };
    variables.check_protocol();
    let sample = variables.sample(config.sample);
    let mut headers = config.headers.clone();
    headers.extend(variables.list("OTEL_EXPORTER_OTLP_HEADERS", is_header));
    headers.extend(variables.list("OTEL_EXPORTER_OTLP_TRACES_HEADERS", is_header));
    let timeout = variables.timeout().unwrap_or(config.timeout.into());
    let resource = variables.resource(config);
    (Some(OtelSettings { url, sample, resource, headers, timeout }), variables.warnings)
}

fn is_header(name: &str, value: &str) -> bool {
    http::HeaderName::from_bytes(name.as_bytes()).is_ok() && http::HeaderValue::from_str(value).is_ok()
}

/// Environment variables, and warnings about the invalid ones.
struct Variables<'a> {
    env: &'a dyn Fn(&str) -> Option<String>,
    warnings: Vec<String>,
}

impl Variables<'_> {
    /// Value of a variable; an empty one counts as not set.
    fn get(&self, name: &str) -> Option<String> {
        (self.env)(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    fn parse<T>(&mut self, name: &str, allowed: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let text = self.get(name)?;
        let value = parse(&text);
        if value.is_none() {
            self.warnings.push(format!("`{name}` is ignored: its value is not {allowed}"));
        }
        value
    }

    /// Returns the URL of the endpoint: the variable for traces is used as it is, the common one is the base of the path.
    fn url(&mut self) -> Option<String> {
        let allowed = "an `http://` or `https://` URL";
        let is_url = |text: &str| url::Url::parse(text).is_ok_and(|url| url.scheme().starts_with("http"));
        let of_traces = |text: &str| is_url(text).then(|| text.to_owned());
        let base = |text: &str| is_url(text).then(|| traces_url(text));
        let url = self.parse("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", allowed, of_traces);
        url.or_else(|| self.parse("OTEL_EXPORTER_OTLP_ENDPOINT", allowed, base))
    }

    /// Warns about protocols other than OTLP over HTTP with protobuf, the only one.
    fn check_protocol(&mut self) {
        for name in ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"] {
            let allowed = "`http/protobuf`, the only protocol here; its usual port is 4318";
            if self.get(name).is_some() {
                self.parse(name, allowed, |text| (text == "http/protobuf").then_some(()));
                return;
            }
        }
    }

    fn sample(&mut self, configured: f64) -> f64 {
        let allowed = "a number from 0 to 1";
        let argument = self.parse("OTEL_TRACES_SAMPLER_ARG", allowed, |text| {
            text.parse().ok().filter(|share| (0.0..=1.0).contains(share))
        });
        let allowed = "`always_on`, `always_off` or `traceidratio`, or one of them after `parentbased_`";
        let sample = self.parse("OTEL_TRACES_SAMPLER", allowed, |text| {
            match text.strip_prefix("parentbased_").unwrap_or(text) {
                "always_on" => Some(1.0),
                "always_off" => Some(0.0),
                "traceidratio" => Some(argument.unwrap_or(1.0)),
                _ => None,
            }
        });
        sample.unwrap_or(configured)
    }

    fn timeout(&mut self) -> Option<Duration> {
        let allowed = "a number of milliseconds from 1 to 60000";
        let parse = |text: &str| {
            let timeout = text.parse().map(Duration::from_millis).ok()?;
            (!timeout.is_zero() && timeout <= MAX_TIMEOUT).then_some(timeout)
        };
        let timeout = self.parse("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", allowed, parse);
        timeout.or_else(|| self.parse("OTEL_EXPORTER_OTLP_TIMEOUT", allowed, parse))
    }

    /// Returns a list such as `a=1,b=2`, with percent-encoded values.
    fn list(&mut self, name: &str, is_valid: fn(&str, &str) -> bool) -> Vec<(String, String)> {
        let pair = |text: &str| {
            let (key, value) = text.split_once('=')?;
            let (key, value) = (key.trim(), percent_decoded(value.trim())?);
            (!key.is_empty() && is_valid(key, &value)).then(|| (key.to_owned(), value))
        };
        let pairs = |text: &str| text.split(',').filter(|part| !part.trim().is_empty()).map(pair).collect();
        self.parse(name, "a list such as `a=1,b=2`", pairs).unwrap_or_default()
    }

    /// Returns the attributes of the resource: those of the process, of the configuration, and of the environment; later
    /// values override earlier ones.
    fn resource(&mut self, config: &OtelConfig) -> BTreeMap<String, String> {
        let defaults = [
            ("service.name".to_owned(), config.service_name.clone()),
            ("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
            ("telemetry.sdk.language".to_owned(), "rust".to_owned()),
            ("telemetry.sdk.name".to_owned(), "kafleet".to_owned()),
        ];
        let mut resource = BTreeMap::from(defaults);
        resource.extend(config.resource.clone());
        resource.extend(self.list("OTEL_RESOURCE_ATTRIBUTES", |_, _| true));
        resource.extend(self.get("OTEL_SERVICE_NAME").map(|name| ("service.name".to_owned(), name)));
        resource
    }
}

/// Decodes percent-encoded characters, such as `%41`; `None` if the result is not UTF-8.
fn percent_decoded(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| *first == b'%');
        let decoded = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(decoded.unwrap_or(*first));
        rest = if decoded.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafleet_model::units::duration::Millis;

    fn with(config: &OtelConfig, variables: &[(&str, &str)]) -> (Option<OtelSettings>, Vec<String>) {
        let get =
            |name: &str| variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| (*value).to_owned());
        settings(config, &get)
    }

    fn config() -> OtelConfig {
        OtelConfig {
            endpoint: Some("http://collector:4318".into()),
            sample: 0.25,
            resource: [("deployment.environment.name".to_owned(), "test".to_owned())].into(),
            headers: [("x-a".to_owned(), "1".to_owned())].into(),
            timeout: Millis::secs(3),
            ..OtelConfig::default()
        }
    }

    #[test]
    fn tracing_is_off_without_an_endpoint() {
        assert_eq!(with(&OtelConfig::default(), &[]), (None, Vec::new()));
        for off in [("OTEL_SDK_DISABLED", "TRUE"), ("OTEL_TRACES_EXPORTER", "none")] {
            assert_eq!(with(&config(), &[off]), (None, Vec::new()), "{off:?}");
        }
    }

    #[test]
    fn configuration_is_used_without_variables() {
        let (settings, warnings) = with(&config(), &[("OTEL_SERVICE_NAME", " ")]);
        let settings = settings.unwrap();
        assert_eq!((settings.url.as_str(), settings.sample), ("http://collector:4318/v1/traces", 0.25));
        assert_eq!((settings.resource["service.name"].as_str(), settings.timeout), ("kafleet", Duration::from_secs(3)));
        assert_eq!((settings.headers["x-a"].as_str(), warnings), ("1", Vec::new()));
    }

    #[test]
    fn standard_variables_override_the_configuration() {
        let (settings, warnings) = with(
            &config(),
            &[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://other:1/base/"),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
                ("OTEL_EXPORTER_OTLP_HEADERS", "x-b=a%20b,x-a=2"),
                ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-a=3"),
                ("OTEL_EXPORTER_OTLP_TIMEOUT", "1500"),
                ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
                ("OTEL_TRACES_SAMPLER_ARG", "0.5"),
                ("OTEL_SERVICE_NAME", "orders"),
                ("OTEL_RESOURCE_ATTRIBUTES", "service.name=x,team=a"),
            ],
        );
        let settings = settings.unwrap();
        assert_eq!((settings.url.as_str(), settings.sample), ("https://other:1/base/v1/traces", 0.5));
        assert_eq!((settings.headers["x-a"].as_str(), settings.headers["x-b"].as_str()), ("3", "a b"));
        assert_eq!((settings.resource["service.name"].as_str(), settings.resource["team"].as_str()), ("orders", "a"));
        assert_eq!((settings.resource["deployment.environment.name"].as_str(), warnings), ("test", Vec::new()));
        assert_eq!(settings.timeout, Duration::from_millis(1_500));
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t:1/own");
        let (settings, _) = with(&OtelConfig::default(), &[traces, ("OTEL_TRACES_SAMPLER", "always_on")]);
        assert_eq!(settings.map(|settings| (settings.url, settings.sample)), Some(("http://t:1/own".into(), 1.0)));
    }

    #[test]
    fn invalid_variables_are_ignored_with_a_warning() {
        for (name, value, allowed) in [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317", "URL"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "nothing", "URL"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a b=1", "a=1,b=2"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "1h", "milliseconds"),
            ("OTEL_RESOURCE_ATTRIBUTES", "team", "a=1,b=2"),
            ("OTEL_TRACES_SAMPLER", "jaeger_remote", "always_on"),
            ("OTEL_TRACES_SAMPLER_ARG", "1.5", "0 to 1"),
            ("OTEL_TRACES_EXPORTER", "zipkin", "otlp"),
            ("OTEL_SDK_DISABLED", "yes", "true"),
        ] {
            let (settings, warnings) = with(&config(), &[(name, value)]);
            assert_eq!(settings, with(&config(), &[]).0, "{name}");
            let [warning] = &warnings[..] else { panic!("{name}: {warnings:?}") };
            assert!(warning.contains(name) && warning.contains(allowed), "{warning}");
        }
    }
}
