//! `doctor`: checks configuration, Kafka, topics, committed offsets, clocks, pending cancels, declarations of types, Redis,
//! the lag of the projection and the API, with a hint for each problem.

use clap::Args;
use serde::Serialize;
use serde_json::Value;

use positions::EventsLog;

use super::apps::{self, TargetArgs};
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::output::{Paint, one_line};
use super::setup::{CALL_DEADLINE, Setup, SetupOptions, load_config};
use crate::broker::BrokerClient;
use crate::config::{Config, Names};
use crate::control::{ControlState, ControlWatch, keep};
use crate::handlers::Registry;
use crate::model::record::state::State;
use crate::telemetry::{init_logs, otel};
use crate::topics::{self, Severity};

/// Number of cancels on the control topic from which a warning is given.
const MANY_CANCELS: usize = 10_000;
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
struct Finding {
    verdict: Verdict,
    subject: String,
    what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl Finding {
    fn new(verdict: Verdict, subject: impl Into<String>, what: impl Into<String>) -> Self {
        Self { verdict, subject: subject.into(), what: what.into(), hint: None }
    }

    fn ok(subject: impl Into<String>, what: impl Into<String>) -> Self {
        Self::new(Verdict::Ok, subject, what)
    }

    fn error(subject: impl Into<String>, what: impl Into<String>) -> Self {
        Self::new(Verdict::Error, subject, what)
    }

    fn warning(subject: impl Into<String>, what: impl Into<String>) -> Self {
        Self::new(Verdict::Warning, subject, what)
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    fn of(subject: &str, failure: Failure) -> Self {
        Self { verdict: Verdict::Error, subject: subject.into(), what: failure.message, hint: failure.hint }
    }
}

pub(super) async fn doctor(args: DoctorArgs, globals: &Globals, registry: Registry) -> Outcome {
    init_logs("error");
    let unused = &UNUSED[usize::from(!args.no_redis)..];
    let options = SetupOptions { unused, app: args.app.section()?, types: args.types, ..SetupOptions::default() };
    let mut found = vec![configuration(globals, &options)];
    if let Ok(mut setup) = Setup::load(globals, registry, options) {
        found.extend(apps::check(&mut setup).await.err().map(|error| Finding::of("apps", error)));
        found.extend(setup.register().err().map(|error| Finding::of("types", error)));
        check_services(&setup, !args.no_redis, &mut found).await;
        found.extend(traces(&setup).await);
    }
    if !args.no_api {
        found.extend(api(globals).await);
    }
    show(&found, globals)
}

/// Checks Kafka and, if wanted, Redis.
async fn check_services(setup: &Setup, with_redis: bool, found: &mut Vec<Finding>) {
    let client = match setup.kafka() {
        Ok(broker) => Some(broker.client()),
        Err(error) => {
            found.push(Finding::of("kafka", error));
            None
        }
    };
    let log = match client {
        Some(client) if kafka(setup, &client, found).await => Some(EventsLog::new(client, setup)),
        _ => None,
    };
    if !with_redis {
        return;
    }
    let partitions = setup.config.topics.events_partitions;
    match setup.redis() {
        Ok(connected) => found.extend(store::findings(&*connected, partitions, log.as_ref()).await),
        Err(error) => found.push(Finding::of("redis", error)),
    }
}

/// Checks that the collector of traces answers, if there is one.
async fn traces(setup: &Setup) -> Vec<Finding> {
    let (settings, warnings) = otel::settings(&setup.config.otel, &|name| std::env::var(name).ok());
    let mut found: Vec<Finding> = warnings.into_iter().map(|error| Finding::warning("traces", error)).collect();
    if let Some(settings) = settings {
        found.push(match otel::probe(&settings).await {
            Ok(()) => {
                Finding::ok("traces", format!("the collector answers; {} % are sampled", settings.sample * 100.0))
            }
            Err(error) => Finding::warning("traces", error)
                .hint("check `otel.endpoint`: it takes OTLP over HTTP, usually on port 4318; tasks run without it"),
        });
    }
    found
}

fn configuration(globals: &Globals, options: &SetupOptions) -> Finding {
    match load_config(globals, options) {
        Ok(loaded) => {
            let file = loaded.path.map_or_else(
                || "no file: all settings have their defaults".to_owned(),
                |path| path.display().to_string(),
            );
            Finding::ok("configuration", file)
        }
        Err(failure) => Finding::of("configuration", failure),
    }
}

/// Checks Kafka; returns whether the events partitions can be read.
async fn kafka(setup: &Setup, client: &BrokerClient, found: &mut Vec<Finding>) -> bool {
    let brokers = setup.brokers();
    let present = match client.topics(&setup.names.topics()).await {
        Ok(present) => present,
        Err(error) => {
            let hint = if error.to_string().to_lowercase().contains("authentication") {
                "check `sasl.username`, `sasl.password` and `sasl.mechanism` in `[kafka]`"
            } else {
                "check --brokers, KAFLEET_BROKERS or `[kafka]`, and that Kafka is running"
            };
            found.push(Finding::error("kafka", format!("`{brokers}`: {error}")).hint(hint));
            return false;
        }
    };
    found.push(Finding::ok("kafka", format!("`{brokers}` answers")));
    found.extend(topic_findings(client, &setup.config, &setup.registry, present.len()).await);
    match positions::check_commits(client, &setup.config, &setup.registry, &present).await {
        Ok(findings) => found.extend(findings),
        Err(error) => found.push(Finding::error("offsets", error.to_string())),
    }
    let log = EventsLog::new(client.clone(), setup);
    if log.watermarks().await.is_none() {
        return false;
    }
    found.push(live::check_clock(client, &setup.names).await);
    found.extend(live::check_transactions(client, &present).await);
    found.push(check_cancels(client, &setup.names).await);
    found.extend(declarations::check(client, setup).await);
    true
}

/// Reports the number of cancels that every worker holds in memory.
async fn check_cancels(client: &BrokerClient, names: &Names) -> Finding {
    let watch = ControlWatch::new(ControlState::default());
    let _reading = keep(watch.clone(), client.broker().clone(), names, None);
    if let Err(error) = watch.whole_within(CALL_DEADLINE, names).await {
        return Finding::warning("cancels", error.to_string());
    }
    cancel_count_finding(watch.state().cancels().len())
}

fn cancel_count_finding(count: usize) -> Finding {
    let what = format!("every worker holds {count} in memory");
    if count < MANY_CANCELS {
        return Finding::ok("cancels", what);
    }
    Finding::warning("cancels", what)
        .hint("a cancel is kept until workers have committed past its tasks: check that each type has workers (`kafleet types`)")
}

async fn topic_findings(client: &BrokerClient, config: &Config, registry: &Registry, count: usize) -> Vec<Finding> {
    match topics::check(client, config, registry, CALL_DEADLINE * 2).await {
        Ok(findings) if findings.is_empty() => {
            vec![Finding::ok("topics", format!("{count} with the prefix, all configured as required"))]
        }
        Ok(findings) => findings.into_iter().map(Finding::from).collect(),
        Err(error) => vec![Finding::error("topics", error.to_string())],
    }
}

impl From<topics::TopicFinding> for Finding {
    fn from(given: topics::TopicFinding) -> Self {
        let verdict = match given.severity {
            Severity::Error => Verdict::Error,
            Severity::Warning => Verdict::Warning,
        };
        Self { verdict, subject: given.subject, what: given.what, hint: Some(given.hint) }
    }
}

/// Checks the API, and the workers as it knows them.
async fn api(globals: &Globals) -> Vec<Finding> {
    let client = match globals.client() {
        Ok(client) => client,
        Err(error) => return vec![Finding::of("api", error)],
    };
    match client.get::<Value>(&["v1", "types"], &Vec::new()).await {
        Ok(_) => {
            let mut found = live::check_workers(&client).await;
            found.push(Finding::ok("api", format!("`{}` answers", client.base())));
            found
        }
        Err(error) if error.code == Code::Denied => vec![Finding::of("api", error)],
        Err(error) => vec![Finding { verdict: Verdict::Warning, ..Finding::of("api", error) }],
    }
}

fn show(found: &[Finding], globals: &Globals) -> Outcome {
    let output = globals.output();
    output.json_or_line(&found, |found| text(found, output.paint))?;
    Ok(if found.iter().any(|one| one.verdict == Verdict::Error) { Code::Failed } else { Code::Ok })
}

fn text(found: &[Finding], paint: Paint) -> String {
    let width = found.iter().map(|one| one.subject.chars().count()).max().unwrap_or(0);
    let mut lines = Vec::new();
    for one in found {
        let (word, hue) = match one.verdict {
            Verdict::Ok => ("ok     ", State::Succeeded),
            Verdict::Warning => ("warning", State::Warning),
            Verdict::Error => ("error  ", State::Failed),
        };
        let what: Vec<String> = one.what.lines().map(one_line).collect();
        let indent = format!("\n{:1$}", "", width + 11);
        lines.push(format!("{}  {:width$}  {}", paint.paint_as(hue, word), one.subject, what.join(&indent)));
        lines.extend(one.hint.as_ref().map(|hint| format!("{:2$}hint: {}", "", one_line(hint), width + 11)));
    }
    lines.join("\n")
}

mod declarations;
mod live;
mod positions;
mod store;
#[cfg(test)]
mod tests;
