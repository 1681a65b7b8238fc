//! Checks of a whole configuration beyond the schema: values that must be consistent, and keys that kafleet sets itself.

use kafleet_model::schedule::{Spec, check_name};

use super::document::{Document, dotted, join};
use super::shape::UnlocatedProblem;
use super::{Config, api, apps, callbacks, email, kafka, log, ops, otel, outbox, topics, tracker, type_rules, worker};

/// Returns all problems of a configuration that fits the schema.
pub(super) fn problems(document: &Document, config: &Config) -> Vec<UnlocatedProblem> {
    let mut problems = kafka::problems(document, &config.kafka);
    problems.extend(super::redis::problems(document, &config.redis));
    problems.extend(topics::problems(document, &config.topics));
    problems.extend(worker::problems(document, &config.worker));
    problems.extend(tracker::problems(document, &config.tracker));
    problems.extend(api::problems(document, &config.api));
    problems.extend(ops::problems(document, &config.ops));
    problems.extend(log::problems(document, &config.log));
    problems.extend(otel::problems(document, &config.otel));
    problems.extend(apps::problems(document, &config.apps));
    problems.extend(type_rules::problems(document, config));
    problems.extend(config.callbacks.iter().flat_map(callbacks::problems));
    problems.extend(config.outbox.iter().flat_map(|outbox| outbox::problems(document, outbox)));
    problems.extend(config.email.iter().flat_map(email::problems));
    for (name, spec) in &config.schedules {
        problems.extend(schedule(name, spec));
    }
    problems.extend(inexact_numbers(document));
    problems
}

/// Numbers of the tasks of schedules that would reach their handlers with other digits.
fn inexact_numbers(document: &Document) -> impl Iterator<Item = UnlocatedProblem> {
    let of_schedules = document.inexact.iter().filter(|(pointer, _)| pointer.starts_with("/schedules/"));
    of_schedules.map(|(pointer, text)| {
        UnlocatedProblem::new(
            pointer.clone(),
            format!("`{}`: a number of TOML cannot have all digits of `{text}`", dotted(pointer)),
        )
        .hint("write it as a string, or use `kafleet schedules create`, whose params are JSON")
    })
}

fn schedule(name: &str, spec: &Spec) -> Vec<UnlocatedProblem> {
    let top = join("/schedules", name);
    let named = check_name(name).err().map(|error| UnlocatedProblem::new(top.clone(), error));
    let errors = spec.errors().into_iter().map(|flaw| {
        let pointer = flaw.at.split('/').fold(top.clone(), |above, key| join(&above, key));
        let problem = UnlocatedProblem::new(pointer.clone(), format!("`{}`: {}", dotted(&pointer), flaw.message));
        flaw.hint.map_or(problem.clone(), |hint| problem.hint(hint))
    });
    named.into_iter().chain(errors).collect()
}
