//! Comparison of the configured types with their declarations on the control topic.

use std::collections::BTreeMap;

use super::Finding;
use crate::broker::BrokerClient;
use crate::cli::setup::{CALL_DEADLINE, Setup};
use crate::control::types::read_types;
use crate::topics::differing_types;

const HINT: &str = "run `kafleet topics apply` with the configuration and the apps of the workers";

/// Reports types whose declarations are missing or differ from what the configuration and the apps declare.
pub(super) async fn check(client: &BrokerClient, setup: &Setup) -> Vec<Finding> {
    match read_types(&client.with_deadline(CALL_DEADLINE), &setup.names).await {
        Ok(present) => findings(&differing_types(&setup.config, &setup.registry, &present)),
        Err(error) => vec![Finding::warning("declarations", error.to_string())],
    }
}

fn findings(differing: &BTreeMap<String, Option<Vec<&'static str>>>) -> Vec<Finding> {
    let finding = |(name, parts): (&String, &Option<Vec<&'static str>>)| {
        let what = match parts {
            None => "it is not declared on the control topic: APIs that do not have it check no params".to_owned(),
            Some(parts) => format!("its declaration on the control topic differs in {}", parts.join(", ")),
        };
        Finding::warning(format!("type {name}"), what).hint(HINT)
    };
    if differing.is_empty() {
        vec![Finding::ok("declarations", "those of all types are as configured")]
    } else {
        differing.iter().map(finding).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::Verdict;

    #[test]
    fn missing_and_different_declarations_are_warnings() {
        let found = findings(&[("a".to_owned(), None), ("b".to_owned(), Some(vec!["params", "doc"]))].into());
        assert!(found.iter().all(|one| one.verdict == Verdict::Warning && one.hint.as_deref() == Some(HINT)));
        assert!(
            found[0].what.contains("not declared") && found[1].what.ends_with("differs in params, doc"),
            "{found:?}"
        );
        assert_eq!(findings(&BTreeMap::new())[0].verdict, Verdict::Ok);
    }
}
