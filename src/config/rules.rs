//! Checks of a whole configuration beyond the schema: values that must be consistent, and keys that kafleet sets itself.

use super::document::{Document, dotted, join};
use super::shape::Finding;
use super::{Config, api, apps, callbacks, email, kafka, log, ops, otel, topics, tracker, type_rules, worker};
use crate::model::schedule::{Spec, check_name};

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
    found.extend(inexact_numbers(document));
    found
}

/// Numbers of the tasks of schedules that would reach their handlers with other digits.
fn inexact_numbers(document: &Document) -> impl Iterator<Item = Finding> {
    let of_schedules = document.inexact.iter().filter(|(pointer, _)| pointer.starts_with("/schedules/"));
    of_schedules.map(|(pointer, text)| {
        Finding::new(
            pointer.clone(),
            format!("`{}`: a number of TOML cannot have all digits of `{text}`", dotted(pointer)),
        )
        .hint("write it as a string, or use `kafleet schedules create`, whose params are JSON")
    })
}

fn schedule(name: &str, spec: &Spec) -> Vec<Finding> {
    let top = join("/schedules", name);
    let named = check_name(name).err().map(|error| Finding::new(top.clone(), error));
    let errors = spec.errors().into_iter().map(|flaw| {
        let pointer = flaw.at.split('/').fold(top.clone(), |above, key| join(&above, key));
        let found = Finding::new(pointer.clone(), format!("`{}`: {}", dotted(&pointer), flaw.what));
        flaw.hint.map_or(found.clone(), |hint| found.hint(hint))
    });
    named.into_iter().chain(errors).collect()
}
