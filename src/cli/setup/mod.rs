//! Wiring of all roles: creates brokers, stores, registries and running roles from arguments and configuration.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kafleet_api::LiveAccess;
use kafleet_apps::pool::AppPool;
use kafleet_broker::Broker;
use kafleet_broker::kafka::Kafka;
use kafleet_config::{Config, LoadedConfig, Names, Overrides, Problems, RedisConfig, Scalar, Topology};
use kafleet_fleet::control::PolicyUpdates;
use kafleet_fleet::control::settings::read_control;
use kafleet_handlers::Registry;
use kafleet_handlers::builtin::{HandlerEnv, register_config, register_samples};
use kafleet_handlers::program_env::WithheldVariables;
use kafleet_model::units::duration::Millis;
use kafleet_runtime::error_text::single_line;
use kafleet_runtime::{Backoff, Health, Shutdown};
use kafleet_store::Store;
use kafleet_store::redis::{Redis, RedisOptions};
use kafleet_telemetry::otel::Exporter;
use kafleet_telemetry::{Metrics, Tracer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;

mod roles;

pub(in crate::cli) use roles::RoleEnd;

use super::app_target::{TargetApp, add_target};
use super::exit::{Code, Failure};
use super::globals::Globals;
use super::listener::{bind, bind_next};
use super::start_error::StartError;

/// Deadline of one call to Kafka or the store.
pub(in crate::cli) const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// Minimum time for an attempt to reach Kafka or the store, near the end of the start timeout.
const MIN_ATTEMPT: Duration = Duration::from_millis(200);
/// Additional time for an attempt to report its own error after its deadline.
const ATTEMPT_GRACE: Duration = Duration::from_millis(300);
/// Linger of an API's producer.
const API_LINGER_MS: i64 = 1;

/// Configuration, registry and shared state of the roles of a process.
#[derive(Clone)]
pub(in crate::cli) struct Setup {
    pub config: Config,
    /// Base folder of relative paths in the configuration.
    folder: PathBuf,
    /// Name of the configuration file, for messages.
    file: String,
    pub has_config_file: bool,
    /// Environment variables that programs do not inherit.
    pub withheld: WithheldVariables,
    pub registry: Registry,
    pub names: Names,
    pub metrics: Metrics,
    pub health: Health,
    pub shutdown: Shutdown,
    /// Apps that have been started for their declarations.
    pub apps: Vec<Arc<AppPool>>,
    pub source: ConfigSource,
    /// Replaces policies of the worker of this process.
    pub policies: PolicyUpdates,
    /// Replaces tokens of the API of this process.
    pub access: LiveAccess,
    /// Source of spans, and the thread that exports them. `None`: nothing is traced.
    pub tracing: Option<(Tracer, Arc<Exporter>)>,
}

/// Origin of a configuration, from which it can be read again.
#[derive(Clone, Default)]
pub(in crate::cli) struct ConfigSource {
    pub globals: Globals,
    pub options: SetupOptions,
    /// Configuration as it was read.
    pub loaded: Config,
    /// Types before those of the configuration.
    pub registry: Registry,
}

/// Overrides and needs of a verb with respect to the configuration.
#[derive(Clone, Debug, Default)]
pub(in crate::cli) struct SetupOptions {
    pub api_listen: Option<String>,
    pub ops_listen: Option<String>,
    /// Sections that the verb does not use: their secrets may be missing.
    pub unused: &'static [&'static str],
    /// Whether to create the handlers of the configured types.
    pub handlers: bool,
    /// Slots, and the types they apply to (empty: all).
    pub slots: Option<(u32, Vec<String>)>,
    /// App of the target on the command line.
    pub app: Option<TargetApp>,
    /// Types that the process serves; empty: all. Apps that serve none of them are not started.
    pub types: Vec<String>,
}

/// Reads the configuration with the overrides of the command line.
pub(in crate::cli) fn load_config(globals: &Globals, options: &SetupOptions) -> Result<LoadedConfig, Failure> {
    read_config(globals, options)
        .map_err(|problems| Failure::usage(format_args!("the configuration is invalid\n{problems}")))
}

/// Reads the configuration as [`load_config`], with its problems.
pub(in crate::cli) fn read_config(globals: &Globals, options: &SetupOptions) -> Result<LoadedConfig, Problems> {
    let overrides = Overrides {
        brokers: globals.brokers.clone(),
        redis: globals.redis.clone(),
        postgres: globals.postgres.clone(),
        prefix: globals.prefix.clone(),
        api_listen: options.api_listen.clone(),
        ops_listen: options.ops_listen.clone(),
        unused: options.unused,
        types: options.types.clone(),
    };
    kafleet_config::load(globals.config.as_deref(), &overrides)
}

impl Setup {
    pub(in crate::cli) fn load(
        globals: &Globals,
        mut registry: Registry,
        options: SetupOptions,
    ) -> Result<Self, Failure> {
        let LoadedConfig { mut config, path, folder, variables } = load_config(globals, &options)?;
        let (globals, loaded) = (globals.clone(), config.clone());
        let source = ConfigSource { globals, options, loaded, registry: Registry::default() };
        if let Some(app) = &source.options.app {
            add_target(&mut config, app.clone())?;
        }
        if config.types.is_empty() && config.apps.is_empty() && registry.types().next().is_none() {
            register_samples(&mut registry);
        }
        let has_config_file = path.is_some();
        let file = path.map_or_else(|| "the configuration".to_owned(), |path| path.display().to_string());
        let metrics = Metrics::new().map_err(|error| Failure::failed(format_args!("no metrics: {error}")))?;
        let names = Names::of(&config);
        let has_handlers = source.options.handlers;
        let mut setup = Self {
            config,
            folder,
            file,
            has_config_file,
            withheld: WithheldVariables::new(variables),
            registry,
            names,
            metrics,
            health: Health::default(),
            shutdown: Shutdown::new(),
            apps: Vec::new(),
            source,
            policies: PolicyUpdates::default(),
            access: LiveAccess::default(),
            tracing: None,
        };
        if has_handlers {
            setup.register()?;
        }
        Ok(setup)
    }

    /// Reads the configuration again for a fleet that runs in this process. What its roles share stays, and so does what they
    /// were started with. `registry`: the types before those of the configuration.
    pub(in crate::cli) fn reloaded(&self, registry: Registry) -> Result<Self, Failure> {
        let mut new = Self::load(&self.source.globals, registry, self.source.options.clone())?;
        let Config { kafka, redis, topics, api, tracker, ops, otel, .. } = self.config.clone();
        new.config = Config { kafka, redis, topics, api, tracker, ops, otel, ..new.config };
        new.config.worker.no_timeouts = self.config.worker.no_timeouts;
        Ok(Self {
            names: Names::of(&new.config),
            metrics: self.metrics.clone(),
            health: self.health.clone(),
            shutdown: self.shutdown.clone(),
            policies: self.policies.clone(),
            access: self.access.clone(),
            tracing: self.tracing.clone(),
            ..new
        })
    }

    /// Creates and registers the handlers of the configured types.
    pub(in crate::cli) fn register(&mut self) -> Result<(), Failure> {
        self.source.registry = self.registry.clone();
        if let Some((slots, types)) = &self.source.options.slots {
            set_slots(&mut self.config, &self.registry, *slots, types);
        }
        let env = HandlerEnv {
            dir: &self.folder,
            worker: &self.config.worker,
            callbacks: self.config.callbacks.as_ref(),
            email: self.config.email.as_ref(),
            withheld: &self.withheld,
            has_unknown_types: self.apps.len() < self.config.apps.len(),
        };
        register_config(&mut self.registry, &self.config.types, &env).map_err(|problems| {
            let lines: Vec<String> = problems.iter().map(|problem| format!("{}: {problem}", self.file)).collect();
            Failure::usage(format_args!("the configuration is invalid\n{}", lines.join("\n")))
        })
    }

    /// Handles signals and serves `/healthz`, `/readyz` and `/metrics`.
    pub(in crate::cli) async fn start_ops(&self) -> Result<JoinSet<RoleEnd>, Failure> {
        self.shutdown.on_signals().map_err(|error| Failure::failed(format_args!("no signal handler: {error}")))?;
        let mut running = JoinSet::new();
        if !self.config.ops.listen.is_empty() {
            let listener = bind(&self.config.ops.listen, "--ops-listen").await?;
            let metrics = self.metrics.clone();
            let health = self.health.clone();
            let shutdown = self.shutdown.clone();
            running.spawn(async move { ("ops", kafleet_api::run_ops(listener, metrics, health, shutdown).await) });
        }
        Ok(running)
    }

    /// Binds the API's address; refuses a public address without tokens before anything is started.
    /// `more_ports`: number of ports after the configured one to try if that is in use.
    pub(in crate::cli) async fn bind_api(&self, more_ports: u16) -> Result<TcpListener, Failure> {
        let listener = bind_next(&self.config.api.listen, "--listen", more_ports).await?;
        let address = listener.local_addr().map_err(Failure::failed)?;
        kafleet_api::check_access(&self.config.api, address)
            .map_err(|error| Failure::of_text(Code::Usage, &format!("{error:#}")))?;
        Ok(listener)
    }

    /// Lowers the linger, because callers wait for each record, unless `[kafka]` sets it.
    pub(in crate::cli) fn prefer_latency(&mut self) {
        let names = ["linger.ms", "queue.buffering.max.ms"];
        if !names.iter().any(|name| self.config.kafka.contains_key(*name)) {
            self.config.kafka.insert(names[0].to_owned(), Scalar::Integer(API_LINGER_MS));
        }
    }

    pub(in crate::cli) fn kafka(&self) -> Result<Arc<dyn Broker>, Failure> {
        kafleet_runtime::follow_broker_clock();
        let section = self.config.kafka.iter().map(|(key, value)| (key.clone(), value.to_string())).collect();
        let kafka =
            Kafka::new(&section).map_err(|error| Failure::usage(format_args!("`[kafka]` cannot be used: {error}")))?;
        Ok(Arc::new(kafka))
    }

    pub(in crate::cli) fn redis(&self) -> Result<Arc<dyn Store>, Failure> {
        Ok(Arc::new(self.configured_redis()?))
    }

    /// Connects to the Redis of the configuration.
    pub(in crate::cli) fn configured_redis(&self) -> Result<Redis, Failure> {
        let options = self.redis_options(&self.config.redis);
        Redis::connect(options).map_err(|error| Failure::usage(format_args!("`[redis]` cannot be used: {error}")))
    }

    /// Connects to another Redis, with the configured credentials unless the URL has its own.
    pub(in crate::cli) fn redis_at(&self, url: &str) -> Result<Redis, Failure> {
        let mut config = self.config.redis.clone();
        config.set_url(url);
        Redis::connect(self.redis_options(&config)).map_err(|error| Failure::of_text(Code::Usage, &error.to_string()))
    }

    fn redis_options(&self, config: &RedisConfig) -> RedisOptions {
        RedisOptions { prefix: self.config.topics.prefix.clone(), ..RedisOptions::from(config) }
    }

    /// Bootstrap servers, for messages.
    pub(in crate::cli) fn brokers(&self) -> String {
        self.config.kafka.get("bootstrap.servers").map(ToString::to_string).unwrap_or_default()
    }

    /// Waits until Kafka answers and the topics are applied; returns the topology of the fleet.
    pub(in crate::cli) async fn wait_for_kafka(
        &self,
        broker: &Arc<dyn Broker>,
        timeout: Duration,
    ) -> Result<Topology, Failure> {
        let subject = format!("kafka at `{}`", self.brokers());
        let hint = "check --brokers, KAFLEET_BROKERS or `[kafka]`";
        self.wait_for("kafka", &subject, hint, timeout, |deadline| {
            let client = broker.client().with_deadline(deadline);
            async move {
                let control = read_control(&client, &self.names).await?;
                Ok(control.topology(&self.names)?)
            }
        })
        .await
    }

    /// Waits until the store answers.
    pub(in crate::cli) async fn wait_for_store(
        &self,
        store: &Arc<dyn Store>,
        timeout: Duration,
    ) -> Result<(), Failure> {
        let hint = "check --redis, KAFLEET_REDIS or `[redis]`";
        self.wait_for("redis", "redis", hint, timeout, |_| {
            let store = store.clone();
            async move { store.check().await.map_err(StartError::from) }
        })
        .await
    }

    /// Repeats `attempt` until it succeeds, the timeout is over or the process is stopped, and logs the reason for
    /// waiting. Each attempt gets the time it may take, and is dropped after it.
    pub(in crate::cli) async fn wait_for<T, F: Future<Output = Result<T, StartError>>>(
        &self,
        part: &str,
        subject: &str,
        hint: &str,
        timeout: Duration,
        mut attempt: impl FnMut(Duration) -> F,
    ) -> Result<T, Failure> {
        let end = Instant::now() + timeout;
        let mut backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));
        self.health.set(part, format!("waiting for {subject}"));
        loop {
            let left = end.saturating_duration_since(Instant::now()).clamp(MIN_ATTEMPT, CALL_DEADLINE);
            let no_answer = |_| Err(StartError::Transient(format!("no answer within {:.1} s", left.as_secs_f32())));
            let outcome = tokio::select! {
                outcome = tokio::time::timeout(left + ATTEMPT_GRACE, attempt(left)) => outcome.unwrap_or_else(no_answer),
                () = self.shutdown.drain.cancelled() => return Err(Failure::new(Code::Ok, "")),
            };
            let error = match outcome {
                Ok(answer) => {
                    self.health.clear(part);
                    return Ok(answer);
                }
                Err(StartError::Permanent(error)) => return Err(Failure::of_text(Code::Failed, &error)),
                Err(StartError::Transient(error)) => error,
            };
            if Instant::now() >= end {
                let within = Millis(timeout.as_millis() as u64);
                let failure =
                    Failure::of_text(Code::Unavailable, &format!("{subject} was not ready within {within}: {error}"));
                return Err(if failure.hint.is_some() { failure } else { failure.hint(hint) });
            }
            tracing::warn!(reason = single_line(&error), "waiting for {subject}");
            let pause = backoff.next_wait().min(end.saturating_duration_since(Instant::now()));
            tokio::select! { () = tokio::time::sleep(pause) => {}, () = self.shutdown.drain.cancelled() => {} }
        }
    }
}

/// Overrides the slots of the configuration with those of the command line.
pub(in crate::cli) fn set_slots(config: &mut Config, registry: &Registry, slots: u32, types: &[String]) {
    let in_code = registry.types().map(|(name, _)| name.to_string());
    let all_types: Vec<String> = in_code.chain(config.types.keys().cloned()).collect();
    for name in all_types.into_iter().filter(|name| types.is_empty() || types.contains(name)) {
        config.types.entry(name).or_default().concurrency = Some(slots);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup() -> Setup {
        let config = Config::default();
        Setup {
            has_config_file: false,
            names: Names::of(&config),
            config,
            folder: PathBuf::new(),
            file: String::new(),
            withheld: WithheldVariables::default(),
            registry: Registry::default(),
            metrics: Metrics::new().unwrap(),
            health: Health::default(),
            shutdown: Shutdown::new(),
            apps: Vec::new(),
            source: ConfigSource::default(),
            policies: PolicyUpdates::default(),
            access: LiveAccess::default(),
            tracing: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn start_timeout_bounds_an_unanswered_attempt() {
        let begun = Instant::now();
        let never = |_| std::future::pending::<Result<(), StartError>>();
        let failure = setup().wait_for("kafka", "kafka", "", Duration::from_secs(3), never).await.unwrap_err();
        assert!(failure.message.contains("not ready within 3s: no answer"), "{}", failure.message);
        assert!((3..=4).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    }
}
