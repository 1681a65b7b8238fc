//! `dev`: runs a whole fleet in this process, on the in-memory broker and store.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use kafleet_api::ApiSetup;
use kafleet_broker::memory::{MemoryBroker, MemoryBrokerOptions};
use kafleet_broker::{Broker, BrokerClient};
use kafleet_config::{TokenConfig, Topology, changes};
use kafleet_documents::CreateTask;
use kafleet_fleet::control::schedules::ScheduleKey;
use kafleet_fleet::control::{self, CONTROL_VERSION, ControlKey, put_schedule};
use kafleet_fleet::topics::{TypeChange, declare};
use kafleet_handlers::Registry;
use kafleet_model::schedule::Schedule;
use kafleet_model::task::Policy;
use kafleet_model::units::duration::Millis;
use kafleet_runtime::now_ms;
use kafleet_store::{Store, memory::MemoryStore};
use kafleet_telemetry::{init_logs, set_log_filter};
use serde_json::json;
use tokio::time::Instant;

use super::app_target::{TargetApp, TargetArgs};
use super::apps::capacity_text;
use super::client::Client;
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::gone_types::{HINT, with_backlogs};
use super::output::eprint_line;
use super::schedules::declared::{DeclaredSchedule, declared, is_same};
use super::setup::{CALL_DEADLINE, Setup, SetupOptions};
use super::traces;
use super::wait::finish;

/// Maximum time of the sample task, including the start of all roles.
const SAMPLE_WAIT: Millis = Millis::secs(30);
/// Number of events partitions: enough to distribute trees, and quick to start.
const EVENTS_PARTITIONS: u32 = 4;
const TASK_PARTITIONS: u32 = 2;
/// Number of ports after the default one that are tried.
const MAX_PORTS: u16 = 20;

mod address;
mod demo;
mod example;
mod live;
mod sources;

use address::AddressFile;
pub(super) use address::url_in;
use live::{Changes, Live};

#[derive(Debug, Args)]
pub(super) struct DevArgs {
    /// Address of the API; port 0 for any free port [default: 127.0.0.1:8080 or the next free port, with --once any]
    #[arg(long, value_name = "HOST:PORT", env = "KAFLEET_API_LISTEN")]
    pub listen: Option<String>,
    /// Exit after the sample task; the exit code is its outcome
    #[arg(long, conflicts_with_all = ["no_sample", "target", "command"])]
    pub once: bool,
    /// Submit no sample task
    #[arg(long)]
    pub no_sample: bool,
    /// Run a small, varied load of trees, so that every verb has something to show
    #[arg(long, conflicts_with = "once")]
    pub demo: bool,
    /// Print no lines about tasks
    #[arg(long, short)]
    pub quiet: bool,
    /// Keep the code of apps when their source files change
    #[arg(long)]
    pub no_reload: bool,
    /// Run attempts without time limits, so that a debugger can stop them
    #[arg(long)]
    pub no_timeouts: bool,
    #[command(flatten)]
    pub app: TargetArgs,
}

pub(super) async fn dev(args: DevArgs, globals: &Globals, registry: Registry) -> Outcome {
    let shows_tasks = !args.quiet && !args.demo && !args.once;
    init_logs(log_filter(args.demo, shows_tasks));
    let target = args.app.app()?;
    let more_ports = if args.listen.is_none() && !args.once { MAX_PORTS } else { 0 };
    let has_target = target.is_some();
    let options = options(args.listen, args.once, target);
    let mut setup = Setup::load(globals, registry.clone(), options)?;
    setup.config.worker.no_timeouts = args.no_timeouts;
    traces::start(&mut setup)?;
    prepare(&mut setup, args.demo)?;
    let listener = setup.bind_api(more_ports).await?;
    let address = listener.local_addr().map_err(Failure::failed)?;
    let url = format!("http://{address}");
    let token = highest_role_token(&setup.config.api.tokens).map(str::to_owned);
    let broker: Arc<dyn Broker> =
        MemoryBroker::new(MemoryBrokerOptions { applies_retention: true, ..Default::default() });
    let live = Live {
        base: setup.clone(),
        registry,
        is_demo: args.demo,
        environment: environment(&url, token.as_ref()),
        has_samples: !has_target,
        shows_tasks,
        broker: broker.clone(),
        // Before the apps are started, so that no change is missed.
        changes: if args.no_reload { None } else { Some(Changes::of(&setup)) },
    };
    let version = live.open().await?;
    let mut running = setup.start_ops().await?;
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    declare_types(&version, &broker.client()).await?;
    apply_schedules(&version, None, &broker.client()).await?;
    setup.start_tracker(&mut running, setup.tracker(broker.clone(), store.clone(), topology(&setup)));
    // The API learns from declarations what apps declare, also after a reload.
    let api = ApiSetup { registry: version.registry.without_apps(), ..setup.api(broker, store, topology(&setup)) };
    setup.start_api(&mut running, api, listener);
    let _address_file = if args.once { None } else { write_address(address) };
    eprint_line(banner(&url, &version, token.is_some(), has_target));
    running.spawn(async move { ("worker", live.run(version).await) });
    let client = Client::new(&url, token.as_deref())?;
    args.demo.then(|| eprint_line(demo::banner(&url)));
    let first = async {
        let outcome = if args.no_sample || has_target { Ok(Code::Ok) } else { sample(&client, &setup, globals).await };
        if args.once || outcome.is_err() {
            setup.shutdown.begin();
        } else {
            eprint_line("\nserving until ctrl-c");
        }
        outcome
    };
    let load = async {
        if args.demo {
            setup.shutdown.drain.run_until_cancelled(demo::Demo::new(&client).play()).await;
        }
    };
    let (outcome, stopped, ()) = tokio::join!(first, setup.run_until_stopped(running), load);
    stopped?;
    outcome.map(|code| if args.once { code } else { Code::Ok })
}

fn options(listen: Option<String>, is_once: bool, app: Option<TargetApp>) -> SetupOptions {
    // With --once only the sample task uses the API, so its port does not matter.
    let api_listen = listen.or_else(|| is_once.then(|| "127.0.0.1:0".to_owned()));
    SetupOptions { api_listen, unused: &["kafka", "redis", "outbox", "ops"], app, ..SetupOptions::default() }
}

/// Log filter. Failures of the demo's tasks are intended; those of others have lines of their own.
fn log_filter(is_demo: bool, shows_tasks: bool) -> &'static str {
    match (is_demo, shows_tasks) {
        (true, _) => "error",
        (false, true) => "warn,kafleet_worker::dispatch::reports=error",
        (false, false) => "warn",
    }
}

/// Writes the address where other commands in this folder find it.
fn write_address(address: SocketAddr) -> Option<AddressFile> {
    let folder = std::env::current_dir().ok()?;
    let host = if address.ip().is_unspecified() { IpAddr::from(Ipv4Addr::LOCALHOST) } else { address.ip() };
    AddressFile::write(&folder, &format!("http://{}", SocketAddr::new(host, address.port())))
        .map_err(|reason| eprint_line(format_args!("warning: {reason}")))
        .ok()
}

/// Sections that take effect at the start of `dev`.
const FIXED_SECTIONS: [&str; 7] = ["kafka", "redis", "topics", "api", "tracker", "ops", "otel"];

/// Reads a changed configuration, and names the sections that keep their values.
fn reloaded(base: &Setup, registry: Registry, is_demo: bool) -> Result<Setup, Failure> {
    let mut new = base.reloaded(registry)?;
    prepare(&mut new, is_demo)?;
    let json = |setup: &Setup| serde_json::to_value(&setup.source.loaded).map_err(Failure::failed);
    let changed: BTreeSet<String> =
        changes(&json(base)?, &json(&new)?).iter().filter_map(|key| key.path().into_iter().next()).collect();
    for section in changed.iter().filter(|section| FIXED_SECTIONS.contains(&section.as_str())) {
        eprint_line(format_args!("`[{section}]` keeps its values until `dev` is started again"));
    }
    Ok(new)
}

fn topology(setup: &Setup) -> Topology {
    Topology::new(setup.names.clone(), EVENTS_PARTITIONS)
}

/// Adapts the configuration to a fleet in one process.
fn prepare(setup: &mut Setup, is_demo: bool) -> Result<(), Failure> {
    set_log_filter(setup.config.log.filter.as_deref());
    setup.config.ops.listen.clear();
    setup.config.topics.events_partitions = EVENTS_PARTITIONS;
    setup.config.topics.task_partitions = TASK_PARTITIONS;
    if is_demo { demo::prepare(setup) } else { Ok(()) }
}

/// Environment of apps, with which their clients find the API, and SDKs know that code may be reloaded.
fn environment(url: &str, token: Option<&String>) -> Vec<(&'static str, String)> {
    let token = token.map(|token| ("KAFLEET_TOKEN", token.clone()));
    token.into_iter().chain([("KAFLEET_API", url.to_owned()), ("KAFLEET_DEV", "1".to_owned())]).collect()
}

/// Declares the types of a version, and only these. Names types that are gone, with the tasks that wait for them.
async fn declare_types(setup: &Setup, broker: &BrokerClient) -> Result<(), Failure> {
    let failure = |reason: String| Failure::failed(format_args!("the types were not declared: {reason}"));
    let declared = declare(&broker.with_deadline(CALL_DEADLINE), &setup.config, &setup.registry).await;
    let declared = declared.map_err(|error| failure(error.to_string()))?;
    let producer = broker.shared_producer(None).await.map_err(|error| failure(error.to_string()))?;
    let gone = declared.into_iter().filter(|outcome| outcome.change == TypeChange::Kept).map(|outcome| outcome.name);
    let gone = with_backlogs(&broker.with_deadline(CALL_DEADLINE), &setup.names, gone.collect()).await;
    for gone in gone.map_err(|error| failure(error.to_string()))? {
        eprint_line(format_args!("{}; {HINT}", gone.message("the new code")));
        let deleted = control::delete(&producer, &setup.names, &ControlKey::Type(gone.name)).await;
        deleted.map_err(|error| failure(error.to_string()))?;
    }
    Ok(())
}

/// Writes the schedules of the configuration and of the apps, and deletes those of apps that are gone: `schedules apply`
/// cannot be run before this process. `earlier`: the version before.
async fn apply_schedules(version: &Setup, earlier: Option<&Setup>, broker: &BrokerClient) -> Result<(), Failure> {
    let producer = broker.shared_producer(None).await.map_err(Failure::failed)?;
    let (schedules, gone) = (declared(version)?, earlier.map(declared).transpose()?.unwrap_or_default());
    let now = now_ms();
    for (name, DeclaredSchedule { owner, spec }) in &schedules {
        // A schedule that is written again would begin with the present time.
        if gone.get(name).is_some_and(|earlier| is_same(&earlier.spec, spec)) {
            continue;
        }
        let owner = Some(owner.as_str().into());
        let schedule =
            Schedule { v: CONTROL_VERSION, at_ms: now, from_ms: now, paused: None, owner, spec: spec.clone() };
        let applied =
            put_schedule(&producer, &version.names, &ScheduleKey::Schedule(name.clone()), Some(&schedule)).await;
        applied.map_err(|error| Failure::failed(format_args!("the schedule `{name}` was not applied: {error}")))?;
    }
    for name in gone.keys().filter(|name| !schedules.contains_key(*name)) {
        let deleted =
            put_schedule(&producer, &version.names, &ScheduleKey::Schedule(name.clone()), None::<&Schedule>).await;
        deleted.map_err(|error| Failure::failed(format_args!("the schedule `{name}` was not deleted: {error}")))?;
    }
    Ok(())
}

/// Submits a sample task over the API, waits for its end, and prints it.
async fn sample(client: &Client, setup: &Setup, globals: &Globals) -> Outcome {
    let params = json!({"hello": "world"}).into();
    let policy = Policy { name: Some("a first task".into()), ..Policy::default() };
    let task = CreateTask { task_type: "echo".into(), params, policy, ..CreateTask::default() };
    let started = Instant::now();
    let created = tokio::select! {
        created = client.create(&task, Duration::from(SAMPLE_WAIT)) => created?,
        () = setup.shutdown.drain.cancelled() => return Ok(Code::Ok),
    };
    finish(client, &globals.output(), created, SAMPLE_WAIT, started).await
}

/// Returns the configured token with the highest role.
fn highest_role_token(tokens: &[TokenConfig]) -> Option<&str> {
    tokens.iter().max_by_key(|token| token.role).map(|token| token.token.as_str())
}

/// Returns the type and the params of the task that the banner proposes: of a target, its first type with an example.
fn proposed(registry: &Registry, has_target: bool) -> (&str, String) {
    let types = || registry.types().map(|(name, registered)| (&**name, registered)).filter(|_| has_target);
    let example = types().find_map(|(name, registered)| Some((name, example::params_of(registered)?)));
    let unknown = || types().next().map(|(name, _)| (name, "PARAMS".to_owned()));
    example.or_else(unknown).unwrap_or_else(|| ("echo", r#"{"hello":"world"}"#.to_owned()))
}

/// Addresses, types and an example of a fleet, with the numbers of attempts that its apps run at once.
fn banner(url: &str, version: &Setup, tokens: bool, has_target: bool) -> String {
    let addresses = addresses_and_types(url, &version.registry, tokens, has_target);
    let capacity = capacity_text(&version.apps).into_iter().map(|line| format!("\n{line}"));
    addresses + &capacity.collect::<String>()
}

fn addresses_and_types(url: &str, registry: &Registry, tokens: bool, has_target: bool) -> String {
    let types: Vec<&str> = registry.types().map(|(name, _)| &**name).collect();
    let token = if tokens { " -H 'authorization: Bearer TOKEN'" } else { "" };
    let (task_type, params) = proposed(registry, has_target);
    let params = params.replace('\'', r"'\''");
    format!(
        "a whole fleet in this process, in memory only\n\n  \
         ui     {url}/\n  \
         api    {url}\n  \
         types  {}\n  \
         try    curl -s '{url}/v1/tasks?wait=10s' -H 'content-type: application/json'{token} \
         -d '{{\"type\":\"{task_type}\",\"params\":{params}}}'\n",
        types.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafleet_handlers::builtin::echo::Echo;
    use kafleet_handlers::builtin::register_samples;
    use kafleet_handlers::{Schema, TypeRegistration};

    #[test]
    fn banner_has_a_command_to_paste() {
        let mut registry = Registry::default();
        register_samples(&mut registry);
        let text = addresses_and_types("http://127.0.0.1:8080", &registry, false, false);
        assert!(text.contains("  types  echo, foreach\n"), "{text}");
        let line = r#"curl -s 'http://127.0.0.1:8080/v1/tasks?wait=10s' -H 'content-type: application/json' -d '{"type":"echo","params":{"hello":"world"}}'"#;
        assert!(text.contains(line), "{text}");
        let text = addresses_and_types("http://127.0.0.1:8080", &registry, true, false);
        assert!(text.contains("-H 'authorization: Bearer TOKEN' -d"), "{text}");
    }

    #[test]
    fn banner_of_a_target_proposes_params_that_fit_the_schema() {
        let mut registry = Registry::default();
        let schema = json!({"type": "object", "required": ["name"], "properties": {"name": {"examples": ["Ada's"]}}});
        registry
            .add("greet", TypeRegistration { schema: Schema::compile(schema).unwrap(), ..TypeRegistration::new(Echo) });
        let text = addresses_and_types("http://127.0.0.1:8080", &registry, false, true);
        assert!(text.contains(r#"'{"type":"greet","params":{"name":"Ada'\''s"}}'"#), "{text}");

        let mut registry = Registry::default();
        let schema = json!({"type": "string", "pattern": "^[0-9]{4}$"});
        registry
            .add("pin", TypeRegistration { schema: Schema::compile(schema).unwrap(), ..TypeRegistration::new(Echo) });
        let text = addresses_and_types("http://127.0.0.1:8080", &registry, false, true);
        assert!(text.contains(r#"{"type":"pin","params":PARAMS}"#), "{text}");
    }
}
