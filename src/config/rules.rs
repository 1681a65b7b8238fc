//! Checks beyond the schema: values that must be consistent, and keys that kafleet sets itself.

use super::document::{Document, dotted, join};
use super::shape::{Finding, bad_value};
use super::{Bytes, Config, api, apps, callbacks, email, kafka, log, ops, otel, topics, tracker, type_rules, worker};
use crate::model::schedule::{Spec, check_name};
use crate::model::units::duration::Millis;

/// Minimum of all memory limits.
pub(super) const MIN_MEMORY: Bytes = Bytes(16 << 20);

/// Returns all problems of a configuration that fits the schema.
pub(super) fn problems(document: &Document, config: &Config) -> Vec<Finding> {
    let mut found = kafka::problems(document, &config.kafka);
    found.extend(super::redis::problems(document, &config.redis));
    found.extend(topics::problems(document, &config.topics));
    found.extend(worker::problems(document, &config.worker));
    found.extend(tracker::problems(document, &config.tracker));
    found.extend(api::problems(document, &config.api));
    found.extend(ops::problems(document, &config.ops));
    found.extend(log::problems(document, &config.log));
    found.extend(otel::problems(document, &config.otel));
    found.extend(apps::problems(document, &config.apps));
    found.extend(type_rules::problems(document, config));
    found.extend(config.callbacks.iter().flat_map(callbacks::problems));
    found.extend(config.email.iter().flat_map(email::problems));
    for (name, spec) in &config.schedules {
        found.extend(schedule(name, spec));
    }
    found
}

/// Reports durations of a section that are zero.
pub(super) fn positive<const N: usize>(
    document: &Document,
    section: &str,
    spans: [(&str, Option<Millis>); N],
) -> Vec<Finding> {
    let zero = spans.into_iter().filter(|(_, span)| *span == Some(Millis(0)));
    zero.map(|(key, _)| bad_value(document, &join(section, key), "longer than zero")).collect()
}

fn schedule(name: &str, spec: &Spec) -> Vec<Finding> {
    let top = join("/schedules", name);
    let named = check_name(name).err().map(|why| Finding::new(top.clone(), why));
    let errors = spec.errors().into_iter().map(|flaw| {
        let pointer = flaw.at.split('/').fold(top.clone(), |above, key| join(&above, key));
        let found = Finding::new(pointer.clone(), format!("`{}`: {}", dotted(&pointer), flaw.what));
        flaw.hint.map_or(found.clone(), |hint| found.hint(hint))
    });
    named.into_iter().chain(errors).collect()
}

/// Returns the expected form if a text is not an address to listen on.
pub(super) fn listen(text: &str) -> Option<&'static str> {
    (!is_server(text)).then_some("an address to listen on, such as `127.0.0.1:8080`, `[::]:8080` or `localhost:8080`")
}

pub(super) fn is_server(text: &str) -> bool {
    // librdkafka accepts a protocol prefix.
    let text = text.split_once("://").map_or(text, |(_, rest)| rest);
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let bracketed = host.starts_with('[') && host.ends_with(']');
    let host_fits = !host.is_empty() && (bracketed || !host.contains(':')) && !host.contains(char::is_whitespace);
    host_fits && port.parse::<u16>().is_ok()
}
