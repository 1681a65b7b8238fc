//! `topics apply`: creates missing topics, updates their settings, and declares the types.

use std::time::Duration;

use clap::{Args, Subcommand};
use kafleet_broker::{BrokerClient, TopicChange, TopicOutcome};
use kafleet_config::Names;
use kafleet_fleet::topics::{TypeChange, TypeOutcome, apply, declare};
use kafleet_handlers::Registry;
use kafleet_telemetry::init_logs;
use serde_json::json;

use super::app_target::TargetArgs;
use super::apps;
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::gone_types::{GoneType, HINT, with_backlogs};
use super::output::{Field, Output, Rows, eprint_line};
use super::serve::StartArgs;
use super::setup::{Setup, SetupOptions};
use super::start_error::StartError;

#[derive(Debug, Subcommand)]
pub(super) enum TopicsVerb {
    /// Create missing topics, update settings that differ, declare the types, and report the changes
    Apply(ApplyArgs),
}

#[derive(Debug, Args)]
pub(super) struct ApplyArgs {
    #[command(flatten)]
    pub start: StartArgs,
    /// Types whose apps are started for their declarations [default: all]
    #[arg(long, value_name = "TYPE,…", value_delimiter = ',')]
    pub types: Vec<String>,
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
            unused: &["redis", "outbox", "api", "types", "schedules", "callbacks", "email"],
            app: args.app.app()?,
            types: args.types.clone(),
            ..SetupOptions::default()
        },
    )?;
    apps::check(&mut setup).await?;
    let client = setup.kafka()?.client();
    wait_for_brokers(&setup, &client, args.start.start_timeout.into()).await?;
    let outcomes = apply(&client, &setup.config, &setup.registry, APPLY_DEADLINE).await;
    let outcomes = outcomes.map_err(|error| Failure::of_text(Code::Failed, &error.to_string()))?;
    let mut types = declared(&mut setup, &client).await?;
    if !args.types.is_empty() {
        // Types of apps that were not started are not missing in the configuration.
        types.retain(|outcome| outcome.change != TypeChange::Kept);
    }
    let gone = types.iter().filter(|outcome| outcome.change == TypeChange::Kept).map(|outcome| outcome.name.clone());
    let gone = with_backlogs(&client.with_deadline(APPLY_DEADLINE), &setup.names, gone.collect()).await;
    let gone = gone.map_err(|error| Failure::of_text(Code::Failed, &error.to_string()))?;
    show(&globals.output(), &setup.names, (&outcomes, &types), &gone)
}

/// Creates missing topics and declares the types, for a process that runs all roles. Waits for Kafka up to `timeout`.
///
/// # Errors
/// Kafka does not answer in time, or refuses a topic or a declaration.
pub(super) async fn create(setup: &Setup, client: &BrokerClient, timeout: Duration) -> Result<(), Failure> {
    wait_for_brokers(setup, client, timeout).await?;
    create_topics(setup, client, APPLY_DEADLINE).await?;
    let declared = declare(&client.with_deadline(APPLY_DEADLINE), &setup.config, &setup.registry).await;
    let declared = declared.map_err(|error| Failure::of_text(Code::Failed, &error.to_string()))?;
    let failed = declared.into_iter().find_map(|outcome| match outcome.change {
        TypeChange::Failed(error) => {
            Some(Failure::failed(format_args!("the type `{}` was not declared: {error}", outcome.name)))
        }
        _ => None,
    });
    failed.map_or(Ok(()), Err)
}

/// Creates missing topics and updates settings that differ.
pub(super) async fn create_topics(setup: &Setup, client: &BrokerClient, deadline: Duration) -> Result<(), Failure> {
    let outcomes = apply(client, &setup.config, &setup.registry, deadline).await;
    let outcomes = outcomes.map_err(|error| Failure::of_text(Code::Failed, &error.to_string()))?;
    let failed = outcomes.into_iter().find_map(|outcome| match outcome.change {
        TopicChange::Failed(error) => {
            Some(Failure::failed(format_args!("the topic `{}` was not created: {error}", outcome.name)))
        }
        _ => None,
    });
    failed.map_or(Ok(()), Err)
}

/// Declares the types of the configuration. Those that this binary cannot register, such as types of another Rust
/// binary, are left out.
async fn declared(setup: &mut Setup, client: &BrokerClient) -> Result<Vec<TypeOutcome>, Failure> {
    if let Err(error) = setup.register() {
        tracing::warn!(reason = %error.message, "some types are not declared: their params are checked by workers only");
    }
    let outcomes = declare(&client.with_deadline(APPLY_DEADLINE), &setup.config, &setup.registry).await;
    outcomes.map_err(|error| Failure::of_text(Code::Failed, &format!("the types were not declared: {error}")))
}

async fn wait_for_brokers(setup: &Setup, client: &BrokerClient, timeout: Duration) -> Result<(), Failure> {
    let subject = format!("kafka at `{}`", setup.brokers());
    let hint = "check --brokers, KAFLEET_BROKERS or `[kafka]`";
    let attempt = |deadline| {
        let client = client.with_deadline(deadline);
        let prefix = setup.names.topics();
        async move { client.topics(&prefix).await.map(drop).map_err(StartError::from) }
    };
    setup.wait_for("kafka", &subject, hint, timeout, attempt).await
}

fn show(
    output: &Output,
    names: &Names,
    (topics, types): (&[TopicOutcome], &[TypeOutcome]),
    gone: &[GoneType],
) -> Outcome {
    if output.is_json() {
        let of_types = types.iter().map(|outcome| type_document(names, outcome));
        let document: Vec<_> = topics.iter().map(document).chain(of_types).collect();
        output.json(&document)?;
    } else {
        output.table(rows(topics, types))?;
    }
    gone.iter().for_each(|gone| eprint_line(hint_for(names, gone)));
    let failed = topics.iter().any(|outcome| matches!(outcome.change, TopicChange::Failed(_)));
    let undeclared = types.iter().any(|outcome| matches!(outcome.change, TypeChange::Failed(_)));
    Ok(if failed || undeclared { Code::Failed } else { Code::Ok })
}

/// Hint for the declaration of a type that the configuration does not have.
fn hint_for(names: &Names, gone: &GoneType) -> String {
    let (name, message) = (&gone.name, gone.message("this configuration"));
    let (tasks, dead) = (names.tasks(name), names.dead(name));
    format!(
        "hint: {message}; {HINT}; if no other configuration has it, `kafleet types forget {name}` deletes its \
         declaration. kafleet never deletes its topics `{tasks}` and `{dead}`; use `kafka-topics.sh --delete`"
    )
}

fn type_document(names: &Names, outcome: &TypeOutcome) -> serde_json::Value {
    let (change, details) = type_words(outcome);
    json!({"topic": names.control(), "type": outcome.name, "change": change, "details": details})
}

fn document(outcome: &TopicOutcome) -> serde_json::Value {
    let (change, details) = words(&outcome.change);
    json!({"topic": outcome.name, "change": change, "details": details})
}

fn rows(topics: &[TopicOutcome], types: &[TypeOutcome]) -> Rows {
    let mut rows = Rows::new(["TOPIC", "CHANGE", "DETAILS"]);
    let of_topics = topics.iter().map(|outcome| (outcome.name.clone(), words(&outcome.change)));
    let of_types = types.iter().map(|outcome| (format!("type {}", outcome.name), type_words(outcome)));
    for (name, (change, details)) in of_topics.chain(of_types) {
        let details = if details.is_empty() { Field::Empty } else { Field::Text(details.join(", ")) };
        rows.add([Field::Text(name), Field::from(change), details]);
    }
    rows
}

/// Returns the kind of a change of a declaration and its details for display.
fn type_words(outcome: &TypeOutcome) -> (&'static str, Vec<String>) {
    let (change, mut details) = match &outcome.change {
        TypeChange::Created => ("created", Vec::new()),
        TypeChange::Altered(parts) => ("altered", parts.iter().map(|part| (*part).to_owned()).collect()),
        TypeChange::Unchanged => ("unchanged", Vec::new()),
        TypeChange::Kept => ("kept", vec!["not in this configuration".to_owned()]),
        TypeChange::Failed(error) => ("failed", vec![error.to_string()]),
    };
    details.extend(outcome.left_out.iter().map(|part| format!("({part} omitted: too large)")));
    (change, details)
}

/// Returns the kind of a change and its details for display.
fn words(change: &TopicChange) -> (&'static str, Vec<String>) {
    match change {
        TopicChange::Created => ("created", Vec::new()),
        TopicChange::Altered(details) => ("altered", details.clone()),
        TopicChange::Unchanged => ("unchanged", Vec::new()),
        TopicChange::Failed(error) => ("failed", vec![error.to_string()]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::Paint;
    use kafleet_broker::BrokerError;

    #[test]
    fn table_has_a_line_per_topic_and_type() {
        let outcome = |name: &str, change| TopicOutcome { name: name.into(), change };
        let outcomes = [
            outcome("kafleet.control", TopicChange::Created),
            outcome("kafleet.events", TopicChange::Altered(vec!["retention.ms=1".into(), "partitions 8".into()])),
            outcome("kafleet.tasks.echo", TopicChange::Failed(BrokerError::Denied("no rights".into()))),
        ];
        let types = [
            TypeOutcome {
                name: "double".into(),
                change: TypeChange::Altered(vec!["params"]),
                left_out: vec!["output"],
            },
            TypeOutcome { name: "old".into(), change: TypeChange::Kept, left_out: Vec::new() },
        ];
        let expected = "\
TOPIC               CHANGE   DETAILS
kafleet.control     created  -
kafleet.events      altered  retention.ms=1, partitions 8
kafleet.tasks.echo  failed   not allowed: no rights
type double         altered  params, (output omitted: too large)
type old            kept     not in this configuration";
        assert_eq!(rows(&outcomes, &types).draw(Paint(false), false), expected);
    }
}
