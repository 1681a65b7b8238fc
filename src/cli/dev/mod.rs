//! `dev`: a whole fleet in this process, on the broker and store in memory.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tokio::time::Instant;

use super::client::Client;
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::output::tell;
use super::setup::{CALL_DEADLINE, Setup, SetupOptions, told};
use super::wait::finish;
use crate::api::documents::CreateTask;
use crate::broker::shared_producer::SharedProducer;
use crate::broker::{Broker, TopicChange, memory};
use crate::config::TokenConfig;
use crate::control::schedules::ScheduleKey;
use crate::control::{CONTROL_VERSION, arrange};
use crate::handlers::Registry;
use crate::handlers::builtin::register_samples;
use crate::model::schedule::Schedule;
use crate::model::units::duration::Millis;
use crate::runtime::now_ms;
use crate::store::{Store, memory::Memory};
use crate::telemetry::init_logs;
use crate::topics::apply;

/// How long the first task may take, the start of all roles included.
const SAMPLE_WAIT: Millis = Millis::secs(30);
/// Enough to see how trees are spread, and quick to start.
const EVENTS_PARTITIONS: u32 = 4;
const TASK_PARTITIONS: u32 = 2;

mod demo;

#[derive(Debug, Args)]
pub struct DevArgs {
    /// Address of the api; port 0 takes any that is free [default: 127.0.0.1:8080, with --once any free port]
    #[arg(long, value_name = "HOST:PORT", env = "KAFLEET_API_LISTEN")]
    pub listen: Option<String>,
    /// Stop after the first task's result; the exit code says how it ended
    #[arg(long, conflicts_with = "no_sample")]
    pub once: bool,
    /// Submit no first task
    #[arg(long)]
    pub no_sample: bool,
    /// Keep a small, varied load of trees going, so that every verb has something to show
    #[arg(long, conflicts_with = "once")]
    pub demo: bool,
}

pub async fn dev(args: DevArgs, globals: &Globals, mut registry: Registry) -> Outcome {
    // The failures of the demo are meant.
    init_logs(if args.demo { "error" } else { "warn" });
    // Nobody but the first task needs to find an api that is gone in a moment.
    let listen = args.listen.or_else(|| args.once.then(|| "127.0.0.1:0".to_owned()));
    let wants =
        SetupOptions { api_listen: listen, unused: &["kafka", "redis", "ops"], handlers: true, ..SetupOptions::default() };
    let mut parts = Setup::load(globals, std::mem::take(&mut registry), wants)?;
    register_samples(&mut parts.registry);
    parts.config.ops.listen.clear();
    (parts.config.topics.events_partitions, parts.config.topics.task_partitions) = (EVENTS_PARTITIONS, TASK_PARTITIONS);
    if args.demo {
        demo::check(&parts.config.api.tokens)?;
        demo::configure(&mut parts.config);
        crate::handlers::builtin::demo::register(&mut parts.registry);
    }
    let listener = parts.bind_api().await?;
    let url = format!("http://{}", listener.local_addr().map_err(Failure::failed)?);
    let mut running = parts.enter().await?;
    let broker: Arc<dyn Broker> =
        memory::Memory::new(memory::MemoryOptions { heeds_retention: true, ..memory::MemoryOptions::default() });
    let store: Arc<dyn Store> = Arc::new(Memory::default());
    create_topics(&parts, broker.clone()).await?;
    apply_schedules(&parts, broker.clone()).await?;
    parts.start_tracker(&mut running, parts.tracker(broker.clone(), store.clone(), EVENTS_PARTITIONS));
    parts.start_worker(&mut running, parts.worker(broker.clone(), Vec::new(), EVENTS_PARTITIONS));
    parts.start_api(&mut running, parts.api(broker, store, EVENTS_PARTITIONS), listener);
    tell(banner(&url, &parts.registry, !parts.config.api.tokens.is_empty()));
    let client = Client::new(&url, strongest(&parts.config.api.tokens))?;
    if args.demo {
        tell(demo::banner(&url));
    }
    let first = async {
        let outcome = if args.no_sample { Ok(Code::Ok) } else { sample(&client, &parts, globals).await };
        if args.once || outcome.is_err() {
            parts.shutdown.begin();
        } else {
            tell("\nserving until ctrl-c");
        }
        outcome
    };
    let load = async {
        let playing = async {
            if args.demo {
                demo::Demo::new(&client).play().await
            }
        };
        tokio::select! { () = playing => {}, () = parts.shutdown.drain.cancelled() => {} }
    };
    let (outcome, stopped, ()) = tokio::join!(first, parts.until_stopped(running), load);
    stopped?;
    outcome.map(|code| if args.once { code } else { Code::Ok })
}

async fn create_topics(parts: &Setup, broker: Arc<dyn Broker>) -> Result<(), Failure> {
    let outcomes = apply(broker, &parts.config, &parts.registry, CALL_DEADLINE).await;
    let outcomes = outcomes.map_err(|why| told(Code::Failed, &why.to_string()))?;
    let failed = outcomes.into_iter().find_map(|outcome| match outcome.change {
        TopicChange::Failed(why) => Some(Failure::failed(format_args!("the topic `{}` was not created: {why}", outcome.name))),
        _ => None,
    });
    failed.map_or(Ok(()), Err)
}

/// Those of the configuration: there is nobody else who could apply them.
async fn apply_schedules(parts: &Setup, broker: Arc<dyn Broker>) -> Result<(), Failure> {
    let link = SharedProducer::open(broker, None).map_err(Failure::failed)?;
    let now = now_ms();
    for (name, spec) in &parts.config.schedules {
        let wanted = Schedule { v: CONTROL_VERSION, at_ms: now, from_ms: now, paused: None, applied: true, spec: spec.clone() };
        let told = arrange(&link, &parts.names, &ScheduleKey::Schedule(name.clone()), Some(&wanted)).await;
        told.map_err(|why| Failure::failed(format_args!("the schedule `{name}` was not applied: {why}")))?;
    }
    Ok(())
}

/// A first task: submitted over the api as anybody's, waited for, and shown.
async fn sample(client: &Client, parts: &Setup, globals: &Globals) -> Outcome {
    let params = json!({"hello": "world"});
    let task = CreateTask { task_type: "echo".into(), params, name: Some("a first task".into()), ..CreateTask::default() };
    let begun = Instant::now();
    let created = tokio::select! {
        created = client.create(&task, Duration::from(SAMPLE_WAIT)) => created?,
        () = parts.shutdown.drain.cancelled() => return Ok(Code::Ok),
    };
    finish(client, &globals.screen(), created, SAMPLE_WAIT, begun).await
}

/// The token of the configuration that may do most.
fn strongest(tokens: &[TokenConfig]) -> Option<&str> {
    tokens.iter().max_by_key(|token| token.role).map(|token| token.token.as_str())
}

fn banner(url: &str, registry: &Registry, tokens: bool) -> String {
    let types: Vec<&str> = registry.types().map(|(name, _)| &**name).collect();
    let token = if tokens { " -H 'authorization: Bearer TOKEN'" } else { "" };
    format!(
        "a whole fleet in this process; its memory goes with it\n\n  \
         api    {url}\n  \
         types  {}\n  \
         try    curl -s '{url}/v1/tasks?wait=10s' -H 'content-type: application/json'{token} \
         -d '{{\"type\":\"echo\",\"params\":{{\"hello\":\"world\"}}}}'\n",
        types.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_banner_can_be_pasted() {
        let mut registry = Registry::default();
        register_samples(&mut registry);
        let text = banner("http://127.0.0.1:8080", &registry, false);
        assert!(text.contains("  types  echo, foreach\n"), "{text}");
        let line = r#"curl -s 'http://127.0.0.1:8080/v1/tasks?wait=10s' -H 'content-type: application/json' -d '{"type":"echo","params":{"hello":"world"}}'"#;
        assert!(text.contains(line), "{text}");
        let text = banner("http://127.0.0.1:8080", &registry, true);
        assert!(text.contains("-H 'authorization: Bearer TOKEN' -d"), "{text}");
    }
}
