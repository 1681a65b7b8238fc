//! Comparison of the configured types with their declarations on the control topic.

use std::collections::BTreeMap;

use kafleet_broker::BrokerClient;
use kafleet_fleet::control::types::read_types;
use kafleet_fleet::topics::{differing_types, gone_types};

use super::Diagnosis;
use crate::cli::gone_types::{GoneType, HINT as GONE_HINT, with_backlogs};
use crate::cli::setup::{CALL_DEADLINE, Setup};

const HINT: &str = "run `kafleet topics apply` with the configuration and the apps of the workers";

/// Reports types whose declarations are missing or differ from what the configuration and the apps declare.
pub(super) async fn check(client: &BrokerClient, setup: &Setup) -> Vec<Diagnosis> {
    let client = client.with_deadline(CALL_DEADLINE);
    let present = match read_types(&client, &setup.names).await {
        Ok(present) => present,
        Err(error) => return vec![Diagnosis::warning("declarations", error.to_string())],
    };
    let mut diagnoses = findings(&differing_types(&setup.config, &setup.registry, &present));
    // Types of apps that were not started are not gone.
    if setup.apps.len() == setup.config.apps.len() {
        match with_backlogs(&client, &setup.names, gone_types(&setup.config, &setup.registry, &present)).await {
            Ok(gone) => diagnoses.extend(gone.iter().filter_map(gone_finding)),
            Err(error) => diagnoses.push(Diagnosis::warning("declarations", error.to_string())),
        }
    }
    diagnoses
}

/// A type that is gone is a finding if tasks wait for it. Another configuration of the fleet may run them.
fn gone_finding(gone: &GoneType) -> Option<Diagnosis> {
    let hint = format!("{GONE_HINT}; if another configuration has it, its workers run them");
    let warning = || Diagnosis::warning(format!("type {}", gone.name), gone.message("this configuration")).hint(hint);
    (gone.waiting > 0).then(warning)
}

fn findings(differing: &BTreeMap<String, Option<Vec<&'static str>>>) -> Vec<Diagnosis> {
    let finding = |(name, parts): (&String, &Option<Vec<&'static str>>)| {
        let message = match parts {
            None => "it is not declared on the control topic: APIs that do not have it check no params".to_owned(),
            Some(parts) => format!("its declaration on the control topic differs in {}", parts.join(", ")),
        };
        Diagnosis::warning(format!("type {name}"), message).hint(HINT)
    };
    if differing.is_empty() {
        vec![Diagnosis::ok("declarations", "those of all types are as configured")]
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
        let diagnoses = findings(&[("a".to_owned(), None), ("b".to_owned(), Some(vec!["params", "doc"]))].into());
        assert!(
            diagnoses
                .iter()
                .all(|diagnosis| diagnosis.verdict == Verdict::Warning && diagnosis.hint.as_deref() == Some(HINT))
        );
        assert!(
            diagnoses[0].message.contains("not declared") && diagnoses[1].message.ends_with("differs in params, doc"),
            "{diagnoses:?}"
        );
        assert_eq!(findings(&BTreeMap::new())[0].verdict, Verdict::Ok);
        let gone = |waiting| gone_finding(&GoneType { name: "old".to_owned(), waiting });
        assert_eq!(gone(0), None, "another configuration may have it");
        let finding = gone(3).unwrap();
        assert_eq!(finding.message, "this configuration does not have the type `old`; about 3 of its tasks wait");
    }
}
