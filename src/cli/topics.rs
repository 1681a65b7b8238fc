//! `topics apply`: creates missing topics and updates their settings.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;

use super::apps::{self, TargetArgs};
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::output::{Field, Output, Rows};
use super::serve::StartArgs;
use super::setup::{Setup, SetupOptions, from_message};
use super::start_error::StartError;
use crate::broker::{Client, TopicChange, TopicOutcome};
use crate::handlers::Registry;
use crate::telemetry::init_logs;
use crate::topics::apply;

#[derive(Debug, Subcommand)]
pub(super) enum TopicsVerb {
    /// Create missing topics, update settings that differ, and report the changes
    Apply(ApplyArgs),
}

#[derive(Debug, Args)]
pub(super) struct ApplyArgs {
    #[command(flatten)]
    pub start: StartArgs,
    #[command(flatten)]
    pub app: TargetArgs,
}

/// Deadline for creating and altering all topics.
const APPLY_DEADLINE: Duration = Duration::from_secs(60);

pub(super) async fn topics(verb: TopicsVerb, globals: &Globals, registry: Registry) -> Outcome {
    let TopicsVerb::Apply(args) = verb;
    init_logs("warn");
    let mut setup = Setup::load(
        globals,
        registry,
        SetupOptions {
            unused: &["redis", "api", "types", "schedules", "callbacks", "email"],
            app: args.app.section()?,
            ..SetupOptions::default()
        },
    )?;
    apps::check(&mut setup).await?;
    let client = setup.kafka()?.client();
    wait_for_brokers(&setup, &client, args.start.start_timeout.into()).await?;
    let outcomes = apply(&client, &setup.config, &setup.registry, APPLY_DEADLINE).await;
    show(&globals.output(), &outcomes.map_err(|why| from_message(Code::Failed, &why.to_string()))?)
}

async fn wait_for_brokers(setup: &Setup, client: &Client, timeout: Duration) -> Result<(), Failure> {
    let what = format!("kafka at `{}`", setup.brokers());
    let hint = "check --brokers, KAFLEET_BROKERS or `[kafka]`";
    let attempt = |deadline| {
        let client = client.with_deadline(deadline);
        let prefix = setup.names.topics();
        async move { client.topics(&prefix).await.map(drop).map_err(StartError::from) }
    };
    setup.wait_for("kafka", &what, hint, timeout, attempt).await
}

fn show(output: &Output, outcomes: &[TopicOutcome]) -> Outcome {
    if output.is_json() {
        let document: Vec<_> = outcomes.iter().map(document).collect();
        output.json(&document)?;
    } else {
        output.table(rows(outcomes))?;
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
        let details = if details.is_empty() { Field::Empty } else { Field::Text(details.join(", ")) };
        rows.add([Field::Text(outcome.name.clone()), Field::from(change), details]);
    }
    rows
}

/// Returns the kind of a change and its details for display.
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
    fn table_has_a_line_per_topic() {
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
