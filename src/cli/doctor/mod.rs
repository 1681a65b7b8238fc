//! `doctor`: checks configuration, Kafka, topics, committed offsets, clocks, the outbox, pending cancels, declarations of types, Redis,
//! the lag of the projection and the API, with a hint for each problem.

use clap::Args;
use kafleet_broker::BrokerClient;
use kafleet_config::{Config, Names};
use kafleet_fleet::control::{ControlState, ControlWatch, follow_control};
use kafleet_fleet::topics::{self, Severity};
use kafleet_handlers::Registry;
use kafleet_model::record::state::State;
use kafleet_telemetry::{init_logs, otel};
use serde::Serialize;
use serde_json::Value;

use positions::EventsLog;

use super::app_target::TargetArgs;
use super::apps;
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::output::{Paint, one_line};
use super::setup::{CALL_DEADLINE, Setup, SetupOptions, load_config};

/// Number of cancels on the control topic from which a warning is given.
const CANCELS_WARNING: usize = 10_000;
/// Sections without an effect on the checks; the first one if Redis is not checked.
const UNUSED: &[&str] = &["redis", "api", "types", "schedules", "callbacks", "email"];

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Do not check the API
    #[arg(long)]
    pub no_api: bool,
    /// Do not check Redis
    #[arg(long)]
    pub no_redis: bool,
    /// Types whose apps are started for their declarations [default: all]
    #[arg(long, value_name = "TYPE,…", value_delimiter = ',')]
    pub types: Vec<String>,
    #[command(flatten)]
    pub app: TargetArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Ok,
    Warning,
    Error,
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Diagnosis {
    verdict: Verdict,
    subject: String,
    #[serde(rename = "what")]
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl Diagnosis {
    fn new(verdict: Verdict, subject: impl Into<String>, message: impl Into<String>) -> Self {
        Self { verdict, subject: subject.into(), message: message.into(), hint: None }
    }

    fn ok(subject: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Verdict::Ok, subject, message)
    }

    fn error(subject: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Verdict::Error, subject, message)
    }

    fn warning(subject: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Verdict::Warning, subject, message)
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    fn of(subject: &str, failure: Failure) -> Self {
        Self { verdict: Verdict::Error, subject: subject.into(), message: failure.message, hint: failure.hint }
    }
}

pub(super) async fn doctor(args: DoctorArgs, globals: &Globals, registry: Registry) -> Outcome {
    init_logs("error");
    let unused = &UNUSED[usize::from(!args.no_redis)..];
    let options = SetupOptions { unused, app: args.app.app()?, types: args.types, ..SetupOptions::default() };
    let mut diagnoses = vec![configuration(globals, &options)];
    if let Ok(mut setup) = Setup::load(globals, registry, options) {
        diagnoses.extend(apps::check(&mut setup).await.err().map(|error| Diagnosis::of("apps", error)));
        diagnoses.extend(setup.register().err().map(|error| Diagnosis::of("types", error)));
        check_services(&setup, !args.no_redis, &mut diagnoses).await;
        diagnoses.extend(outbox::findings(&setup).await);
        diagnoses.extend(traces(&setup).await);
    }
    if !args.no_api {
        diagnoses.extend(api(globals).await);
    }
    show(&diagnoses, globals)
}

/// Checks Kafka and, if wanted, Redis.
async fn check_services(setup: &Setup, with_redis: bool, diagnoses: &mut Vec<Diagnosis>) {
    let client = match setup.kafka() {
        Ok(broker) => Some(broker.client()),
        Err(error) => {
            diagnoses.push(Diagnosis::of("kafka", error));
            None
        }
    };
    let log = match client {
        Some(client) if kafka(setup, &client, diagnoses).await => Some(EventsLog::new(client, setup)),
        _ => None,
    };
    if !with_redis {
        return;
    }
    let partitions = setup.config.topics.events_partitions;
    match setup.redis() {
        Ok(connected) => diagnoses.extend(store::findings(&*connected, partitions, log.as_ref()).await),
        Err(error) => diagnoses.push(Diagnosis::of("redis", error)),
    }
}

/// Checks that the collector of traces answers, if there is one.
async fn traces(setup: &Setup) -> Vec<Diagnosis> {
    let (settings, warnings) = otel::settings(&setup.config.otel, &|name| std::env::var(name).ok());
    let mut diagnoses: Vec<Diagnosis> = warnings.into_iter().map(|error| Diagnosis::warning("traces", error)).collect();
    if let Some(settings) = settings {
        diagnoses.push(match otel::probe(&settings).await {
            Ok(()) => {
                Diagnosis::ok("traces", format!("the collector answers; {} % are sampled", settings.sample * 100.0))
            }
            Err(error) => Diagnosis::warning("traces", error)
                .hint("check `otel.endpoint`: it takes OTLP over HTTP, usually on port 4318; tasks run without it"),
        });
    }
    diagnoses
}

fn configuration(globals: &Globals, options: &SetupOptions) -> Diagnosis {
    match load_config(globals, options) {
        Ok(loaded) => {
            let file = loaded.path.map_or_else(
                || "no file: all settings have their defaults".to_owned(),
                |path| path.display().to_string(),
            );
            Diagnosis::ok("configuration", file)
        }
        Err(failure) => Diagnosis::of("configuration", failure),
    }
}

/// Checks Kafka; returns whether the events partitions can be read.
async fn kafka(setup: &Setup, client: &BrokerClient, diagnoses: &mut Vec<Diagnosis>) -> bool {
    let brokers = setup.brokers();
    let present = match client.topics(&setup.names.topics()).await {
        Ok(present) => present,
        Err(error) => {
            let hint = if error.to_string().to_lowercase().contains("authentication") {
                "check `sasl.username`, `sasl.password` and `sasl.mechanism` in `[kafka]`"
            } else {
                "check --brokers, KAFLEET_BROKERS or `[kafka]`, and that Kafka is running"
            };
            diagnoses.push(Diagnosis::error("kafka", format!("`{brokers}`: {error}")).hint(hint));
            return false;
        }
    };
    diagnoses.push(Diagnosis::ok("kafka", format!("`{brokers}` answers")));
    diagnoses.extend(topic_findings(client, &setup.config, &setup.registry, present.len()).await);
    match positions::check_commits(client, &setup.config, &setup.registry, &present).await {
        Ok(findings) => diagnoses.extend(findings),
        Err(error) => diagnoses.push(Diagnosis::error("offsets", error.to_string())),
    }
    let log = EventsLog::new(client.clone(), setup);
    if log.watermarks().await.is_none() {
        return false;
    }
    diagnoses.push(live::check_clock(client, &setup.names).await);
    diagnoses.extend(live::check_transactions(client, &present).await);
    diagnoses.push(check_cancels(client, &setup.names).await);
    diagnoses.extend(declarations::check(client, setup).await);
    true
}

/// Reports the number of cancels that every worker holds in memory.
async fn check_cancels(client: &BrokerClient, names: &Names) -> Diagnosis {
    let watch = ControlWatch::new(ControlState::default());
    let _reading = follow_control(watch.clone(), client.broker().clone(), names, None);
    if let Err(error) = watch.wait_until_read_within(CALL_DEADLINE, names).await {
        return Diagnosis::warning("cancels", error.to_string());
    }
    cancel_count_finding(watch.state().cancels().len())
}

fn cancel_count_finding(count: usize) -> Diagnosis {
    let message = format!("every worker holds {count} in memory");
    if count < CANCELS_WARNING {
        return Diagnosis::ok("cancels", message);
    }
    Diagnosis::warning("cancels", message)
        .hint("a cancel is kept until workers have committed past its tasks: check that each type has workers (`kafleet types`)")
}

async fn topic_findings(client: &BrokerClient, config: &Config, registry: &Registry, count: usize) -> Vec<Diagnosis> {
    match topics::check(client, config, registry, CALL_DEADLINE * 2).await {
        Ok(findings) if findings.is_empty() => {
            vec![Diagnosis::ok("topics", format!("{count} with the prefix, all configured as required"))]
        }
        Ok(findings) => findings.into_iter().map(Diagnosis::from).collect(),
        Err(error) => vec![Diagnosis::error("topics", error.to_string())],
    }
}

impl From<topics::TopicFinding> for Diagnosis {
    fn from(given: topics::TopicFinding) -> Self {
        let verdict = match given.severity {
            Severity::Error => Verdict::Error,
            Severity::Warning => Verdict::Warning,
        };
        Self { verdict, subject: given.subject, message: given.message, hint: Some(given.hint) }
    }
}

/// Checks the API, and the workers that it reports.
async fn api(globals: &Globals) -> Vec<Diagnosis> {
    let client = match globals.client() {
        Ok(client) => client,
        Err(error) => return vec![Diagnosis::of("api", error)],
    };
    match client.get::<Value>(&["v1", "types"], &Vec::new()).await {
        Ok(_) => {
            let mut diagnoses = live::check_workers(&client).await;
            diagnoses.push(Diagnosis::ok("api", format!("`{}` answers", client.base())));
            diagnoses
        }
        Err(error) if error.code == Code::Denied => vec![Diagnosis::of("api", error)],
        Err(error) => vec![Diagnosis { verdict: Verdict::Warning, ..Diagnosis::of("api", error) }],
    }
}

fn show(diagnoses: &[Diagnosis], globals: &Globals) -> Outcome {
    let output = globals.output();
    output.json_or_line(&diagnoses, |diagnoses| text(diagnoses, output.paint))?;
    Ok(if diagnoses.iter().any(|diagnosis| diagnosis.verdict == Verdict::Error) { Code::Failed } else { Code::Ok })
}

fn text(diagnoses: &[Diagnosis], paint: Paint) -> String {
    let width = diagnoses.iter().map(|diagnosis| diagnosis.subject.chars().count()).max().unwrap_or(0);
    let mut lines = Vec::new();
    for diagnosis in diagnoses {
        let (word, hue) = match diagnosis.verdict {
            Verdict::Ok => ("ok     ", State::Succeeded),
            Verdict::Warning => ("warning", State::Warning),
            Verdict::Error => ("error  ", State::Failed),
        };
        let message: Vec<String> = diagnosis.message.lines().map(one_line).collect();
        let indent = format!("\n{:1$}", "", width + 11);
        lines.push(format!("{}  {:width$}  {}", paint.paint_as(hue, word), diagnosis.subject, message.join(&indent)));
        lines.extend(diagnosis.hint.as_ref().map(|hint| format!("{:2$}hint: {}", "", one_line(hint), width + 11)));
    }
    lines.join("\n")
}

mod declarations;
mod live;
mod outbox;
mod positions;
mod store;
#[cfg(test)]
mod tests;
