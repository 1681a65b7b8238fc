//! `topics apply`: creates what is missing and corrects what differs.

use clap::Subcommand;
use serde_json::json;

use super::exit::{Code, Outcome};
use super::globals::Globals;
use super::output::{Field, Output, Rows};
use super::serve::StartArgs;
use super::setup::{Setup, SetupOptions, Trouble, told};
use crate::broker::{TopicChange, TopicOutcome};
use crate::handlers::Registry;
use crate::runtime::blocking;
use crate::telemetry::init_logs;
use crate::topics::apply;

#[derive(Debug, Subcommand)]
pub enum TopicsVerb {
    /// Create what is missing, correct what differs, and say what was done
    Apply(StartArgs),
}

/// For creating all topics.
const APPLY_DEADLINE: std::time::Duration = std::time::Duration::from_secs(60);

pub async fn topics(verb: TopicsVerb, globals: &Globals, registry: Registry) -> Outcome {
    let TopicsVerb::Apply(args) = verb;
    init_logs("warn");
    let parts = Setup::load(
        globals,
        registry,
        SetupOptions { unused: &["redis", "api", "types", "schedules", "callbacks", "email"], ..SetupOptions::default() },
    )?;
    let broker = parts.kafka()?;
    let what = format!("kafka at `{}`", parts.brokers());
    let hint = "check --brokers, KAFLEET_BROKERS or `[kafka]`";
    parts
        .wait_for("kafka", &what, hint, args.start_timeout.into(), |deadline| {
            let (broker, prefix) = (broker.clone(), parts.names.prefix.clone());
            async move {
                let asked = blocking(move || broker.topics(&prefix, deadline)).await;
                asked.map_err(Trouble::Lasting)?.map(drop).map_err(Trouble::from)
            }
        })
        .await?;
    let outcomes = apply(broker, &parts.config, &parts.registry, APPLY_DEADLINE).await;
    show(&globals.screen(), &outcomes.map_err(|why| told(Code::Failed, &why.to_string()))?)
}

fn show(screen: &Output, outcomes: &[TopicOutcome]) -> Outcome {
    if screen.is_json() {
        let document: Vec<_> = outcomes.iter().map(document).collect();
        screen.json(&document)?;
    } else {
        screen.table(rows(outcomes))?;
    }
    let failed = outcomes.iter().any(|outcome| matches!(outcome.change, TopicChange::Failed(_)));
    Ok(if failed { Code::Failed } else { Code::Ok })
}

fn document(outcome: &TopicOutcome) -> serde_json::Value {
    let (change, details) = words(&outcome.change);
    json!({"topic": outcome.name, "change": change, "details": details})
}

fn rows(outcomes: &[TopicOutcome]) -> Rows {
    let mut rows = Rows::new(["TOPIC", "CHANGE", "DETAILS"]);
    for outcome in outcomes {
        let (change, details) = words(&outcome.change);
        let details = if details.is_empty() { Field::Nothing } else { Field::Text(details.join(", ")) };
        rows.add([Field::Text(outcome.name.clone()), Field::from(change), details]);
    }
    rows
}

fn words(change: &TopicChange) -> (&'static str, Vec<String>) {
    match change {
        TopicChange::Created => ("created", Vec::new()),
        TopicChange::Altered(what) => ("altered", what.clone()),
        TopicChange::Unchanged => ("unchanged", Vec::new()),
        TopicChange::Failed(why) => ("failed", vec![why.to_string()]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::BrokerError;
    use crate::cli::output::Paint;

    #[test]
    fn every_topic_has_its_line() {
        let outcome = |name: &str, change| TopicOutcome { name: name.into(), change };
        let outcomes = [
            outcome("kafleet.control", TopicChange::Created),
            outcome("kafleet.events", TopicChange::Altered(vec!["retention.ms=1".into(), "partitions 8".into()])),
            outcome("kafleet.tasks.echo", TopicChange::Failed(BrokerError::Denied("no rights".into()))),
        ];
        let expected = "\
TOPIC               CHANGE   DETAILS
kafleet.control     created  -
kafleet.events      altered  retention.ms=1, partitions 8
kafleet.tasks.echo  failed   not allowed: no rights";
        assert_eq!(rows(&outcomes).draw(Paint(false), false), expected);
    }
}
