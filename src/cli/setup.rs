//! The only wiring: from what was typed and configured to brokers, stores, registries and running roles.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::exit::{Code, Failure};
use super::globals::Globals;
use crate::api::{self, ApiSetup};
use crate::broker::kafka::Kafka;
use crate::broker::{Broker, BrokerError};
use crate::config::{self, Config, Loaded, Names, Overrides, Scalar};
use crate::control::settings::{FleetSettingsError, read_control};
use crate::handlers::Registry;
use crate::handlers::builtin::{HandlerEnv, register_config, register_samples};
use crate::model::units::duration::Millis;
use crate::runtime::{Backoff, Health, Shutdown, blocking};
use crate::store::redis::{Redis, RedisOptions};
use crate::store::{Store, StoreError};
use crate::telemetry::Metrics;
use crate::topics::{Needs, TopicWatch};
use crate::tracker::{self, TrackerSetup};
use crate::worker::child::Reentry;
use crate::worker::{self, WorkerSetup};

/// For one answer of Kafka's or the store's.
pub const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// For an attempt to reach Kafka or the store at the end of the time to start in.
const SHORTEST_ATTEMPT: Duration = Duration::from_millis(200);
/// For an attempt that is over its time to say why.
const ATTEMPT_GRACE: Duration = Duration::from_millis(300);
/// On top of what running attempts may take at shutdown: for the last reports and for leaving the groups.
const LEAVE_GRACE: Duration = Duration::from_secs(15);
/// How long an api's producer gathers records.
const API_LINGER_MS: i64 = 1;
/// Between an abort and giving up on what does not stop.
const ABORT_GRACE: Duration = Duration::from_secs(5);

/// What the roles of a process share.
pub struct Setup {
    pub config: Config,
    /// Where the configuration's relative paths begin.
    folder: PathBuf,
    /// The configuration's file, for messages.
    file: String,
    pub registry: Registry,
    pub names: Names,
    pub metrics: Metrics,
    pub health: Health,
    pub shutdown: Shutdown,
}

/// What a verb makes of the configuration.
#[derive(Clone, Debug, Default)]
pub struct SetupOptions {
    pub api_listen: Option<String>,
    pub ops_listen: Option<String>,
    /// Sections that are of no concern: their secrets may be missing.
    pub unused: &'static [&'static str],
    /// Make the handlers of the configuration's types, with all that they need.
    pub handlers: bool,
    /// Attempts at once, for these types (none: all).
    pub slots: Option<(u32, Vec<String>)>,
}

/// Reads the configuration as this command line means it.
pub fn load_config(globals: &Globals, wants: &SetupOptions) -> Result<Loaded, Failure> {
    let overrides = Overrides {
        brokers: globals.brokers.clone(),
        redis: globals.redis.clone(),
        prefix: globals.prefix.clone(),
        api_listen: wants.api_listen.clone(),
        ops_listen: wants.ops_listen.clone(),
        unused: wants.unused,
    };
    config::load(globals.config.as_deref(), &overrides)
        .map_err(|problems| Failure::usage(format_args!("the configuration cannot be used\n{problems}")))
}

impl Setup {
    pub fn load(globals: &Globals, mut registry: Registry, wants: SetupOptions) -> Result<Self, Failure> {
        let Loaded { mut config, path, folder } = load_config(globals, &wants)?;
        if config.types.is_empty() && registry.types().next().is_none() {
            register_samples(&mut registry);
        }
        if let Some((slots, types)) = &wants.slots {
            set_slots(&mut config, &registry, *slots, types);
        }
        let file = path.map_or_else(|| "the configuration".to_owned(), |path| path.display().to_string());
        let metrics = Metrics::new().map_err(|why| Failure::failed(format_args!("no metrics: {why}")))?;
        let (names, health, shutdown) = (Names::new(&config.topics.prefix), Health::default(), Shutdown::new());
        let mut parts = Self { config, folder, file, registry, names, metrics, health, shutdown };
        if wants.handlers {
            parts.register()?;
        }
        Ok(parts)
    }

    /// Makes the handlers of the configuration's types.
    pub fn register(&mut self) -> Result<(), Failure> {
        let (callbacks, email) = (self.config.callbacks.as_ref(), self.config.email.as_ref());
        let around = HandlerEnv { dir: &self.folder, worker: &self.config.worker, callbacks, email };
        register_config(&mut self.registry, &self.config.types, &around).map_err(|problems| {
            let lines: Vec<String> = problems.iter().map(|problem| format!("{}: {problem}", self.file)).collect();
            Failure::usage(format_args!("the configuration cannot be used\n{}", lines.join("\n")))
        })
    }

    /// Starts a role of a process that others look after: signals stop it, `/healthz` and the rest are served.
    pub async fn enter(&self) -> Result<JoinSet<Ended>, Failure> {
        self.shutdown.on_signals().map_err(|why| Failure::failed(format_args!("no signal handler: {why}")))?;
        let mut running = JoinSet::new();
        if !self.config.ops.listen.is_empty() {
            let listener = bind(&self.config.ops.listen, "--ops-listen").await?;
            let (metrics, health, shutdown) = (self.metrics.clone(), self.health.clone(), self.shutdown.clone());
            running.spawn(async move { ("ops", api::run_ops(listener, metrics, health, shutdown).await) });
        }
        Ok(running)
    }

    /// Binds the api's address; one that may not be served is refused before anything else happens.
    pub async fn bind_api(&self) -> Result<TcpListener, Failure> {
        let listener = bind(&self.config.api.listen, "--listen").await?;
        let address = listener.local_addr().map_err(Failure::failed)?;
        api::check_access(&self.config.api, address).map_err(|why| told(Code::Usage, &format!("{why:#}")))?;
        Ok(listener)
    }

    /// Callers wait for what they publish one by one, so it is gathered for a shorter time, unless `[kafka]` says how long.
    pub fn prefer_latency(&mut self) {
        let names = ["linger.ms", "queue.buffering.max.ms"];
        if !names.iter().any(|name| self.config.kafka.contains_key(*name)) {
            self.config.kafka.insert(names[0].to_owned(), Scalar::Integer(API_LINGER_MS));
        }
    }

    pub fn kafka(&self) -> Result<Arc<dyn Broker>, Failure> {
        let section = self.config.kafka.iter().map(|(key, value)| (key.clone(), value.to_string())).collect();
        let kafka = Kafka::new(&section).map_err(|why| Failure::usage(format_args!("`[kafka]` cannot be used: {why}")))?;
        Ok(Arc::new(kafka))
    }

    pub fn redis(&self) -> Result<Arc<dyn Store>, Failure> {
        Ok(Arc::new(self.redis_here()?))
    }

    /// The Redis of the configuration.
    pub fn redis_here(&self) -> Result<Redis, Failure> {
        let options = self.redis_options();
        Redis::connect(options).map_err(|why| Failure::usage(format_args!("`[redis]` cannot be used: {why}")))
    }

    /// Another one, with the user and the password of the configuration unless the URL names its own.
    pub fn redis_at(&self, url: &str) -> Result<Redis, Failure> {
        let mut options = RedisOptions { url: url.to_owned(), ..self.redis_options() };
        if url.contains('@') {
            (options.username, options.password) = (None, None);
        }
        Redis::connect(options).map_err(|why| told(Code::Usage, &why.to_string()))
    }

    fn redis_options(&self) -> RedisOptions {
        RedisOptions { prefix: self.config.topics.prefix.clone(), ..RedisOptions::from(&self.config.redis) }
    }

    /// Kafka's addresses, for messages.
    pub fn brokers(&self) -> String {
        self.config.kafka.get("bootstrap.servers").map(ToString::to_string).unwrap_or_default()
    }

    /// Waits until Kafka answers and the topics are applied; returns the number of events partitions.
    pub async fn wait_for_kafka(&self, broker: &Arc<dyn Broker>, timeout: Duration) -> Result<u32, Failure> {
        let (what, hint) = (format!("kafka at `{}`", self.brokers()), "check --brokers, KAFLEET_BROKERS or `[kafka]`");
        self.wait_for("kafka", &what, hint, timeout, |deadline| {
            let (broker, names) = (broker.clone(), self.names.clone());
            async move {
                let read = blocking(move || {
                    let control = read_control(&*broker, &names, deadline)?;
                    control.require_events_partitions(&names)
                });
                read.await.map_err(Trouble::Lasting)?.map_err(Trouble::from)
            }
        })
        .await
    }

    /// Waits until the store answers.
    pub async fn wait_for_store(&self, store: &Arc<dyn Store>, timeout: Duration) -> Result<(), Failure> {
        let hint = "check --redis, KAFLEET_REDIS or `[redis]`";
        self.wait_for("redis", "redis", hint, timeout, |_| {
            let store = store.clone();
            async move { store.check().await.map_err(Trouble::from) }
        })
        .await
    }

    /// Tries until it works, says what it waits for, and gives up at the deadline or when told to stop. An attempt is told how
    /// long it may take, and is not waited for any longer.
    pub async fn wait_for<T, F: Future<Output = Result<T, Trouble>>>(
        &self,
        part: &str,
        what: &str,
        hint: &str,
        timeout: Duration,
        mut attempt: impl FnMut(Duration) -> F,
    ) -> Result<T, Failure> {
        let end = Instant::now() + timeout;
        let mut backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));
        self.health.set(part, format!("waiting for {what}"));
        loop {
            let left = end.saturating_duration_since(Instant::now()).clamp(SHORTEST_ATTEMPT, CALL_DEADLINE);
            let unanswered = |_| Err(Trouble::Passing(format!("no answer within {:.1} s", left.as_secs_f32())));
            let tried = tokio::select! {
                tried = tokio::time::timeout(left + ATTEMPT_GRACE, attempt(left)) => tried.unwrap_or_else(unanswered),
                () = self.shutdown.drain.cancelled() => return Err(Failure::new(Code::Ok, "")),
            };
            let why = match tried {
                Ok(answer) => {
                    self.health.clear(part);
                    return Ok(answer);
                }
                Err(Trouble::Lasting(why)) => return Err(told(Code::Failed, &why)),
                Err(Trouble::Passing(why)) => why,
            };
            if Instant::now() >= end {
                let within = Millis(timeout.as_millis() as u64);
                let failure = told(Code::Unavailable, &format!("{what} was not ready within {within}: {why}"));
                return Err(if failure.hint.is_some() { failure } else { failure.hint(hint) });
            }
            tracing::warn!(reason = %why.replace("\n\n", " ("), "waiting for {what}");
            let pause = backoff.next_wait().min(end.saturating_duration_since(Instant::now()));
            tokio::select! { () = tokio::time::sleep(pause) => {}, () = self.shutdown.drain.cancelled() => {} }
        }
    }

    pub fn worker(&self, broker: Arc<dyn Broker>, types: Vec<String>, events_partitions: u32) -> WorkerSetup {
        WorkerSetup {
            broker,
            registry: self.registry.clone(),
            types,
            config: self.config.worker.clone(),
            names: self.names.clone(),
            events_partitions,
            metrics: self.metrics.clone(),
            health: self.health.clone(),
            reentry: Reentry::of_this_process(),
        }
    }

    pub fn tracker(&self, broker: Arc<dyn Broker>, store: Arc<dyn Store>, events_partitions: u32) -> TrackerSetup {
        TrackerSetup {
            broker,
            store,
            config: self.config.tracker.clone(),
            lifetimes: self.config.lifetimes(),
            task_retention: self.config.topics.task_retention,
            topic_check: self.config.topics.check_interval,
            names: self.names.clone(),
            events_partitions,
            metrics: self.metrics.clone(),
            health: self.health.clone(),
        }
    }

    pub fn api(&self, broker: Arc<dyn Broker>, store: Arc<dyn Store>, events_partitions: u32) -> ApiSetup {
        ApiSetup {
            broker,
            store,
            registry: self.registry.clone(),
            config: self.config.api.clone(),
            names: self.names.clone(),
            events_partitions,
            max_tree_age: self.config.topics.max_tree_age,
            metrics: self.metrics.clone(),
            health: self.health.clone(),
        }
    }

    pub fn start_worker(&self, running: &mut JoinSet<Ended>, setup: WorkerSetup) {
        let known = setup.registry.types().map(|(name, _)| name);
        let types = known.filter(|name| setup.types.is_empty() || setup.types.iter().any(|chosen| **chosen == ***name));
        let needs = Needs::worker(&setup.names, setup.events_partitions, types.map(|name| &**name));
        let topics = self.watch_topics(&setup.broker, needs, "worker's topics");
        let shutdown = self.shutdown.clone();
        running.spawn(async move {
            let _topics = topics;
            ("worker", worker::run(setup, shutdown).await)
        });
    }

    pub fn start_tracker(&self, running: &mut JoinSet<Ended>, setup: TrackerSetup) {
        let shutdown = self.shutdown.clone();
        running.spawn(async move { ("tracker", tracker::run(setup, shutdown).await) });
    }

    pub fn start_api(&self, running: &mut JoinSet<Ended>, setup: ApiSetup, listener: TcpListener) {
        let needs = Needs::api(&setup.names, setup.events_partitions);
        let topics = self.watch_topics(&setup.broker, needs, "api's topics");
        let shutdown = self.shutdown.clone();
        running.spawn(async move {
            let _topics = topics;
            ("api", api::run(setup, listener, shutdown).await)
        });
    }

    /// Checks topics until it is dropped. The tracker has a check of its own, because it folds only what it may.
    fn watch_topics(&self, broker: &Arc<dyn Broker>, needs: Needs, part: &'static str) -> TopicWatch {
        TopicWatch::start(broker.clone(), needs, self.health.clone(), part, self.config.topics.check_interval.into())
    }

    /// Until all roles have ended: when told to stop, or because one of them cannot go on, which stops the others.
    pub async fn until_stopped(&self, mut running: JoinSet<Ended>) -> Result<(), Failure> {
        let mut failed = None;
        let mut overdue = std::pin::pin!(self.overdue());
        loop {
            let ended = tokio::select! {
                ended = running.join_next() => ended,
                () = &mut overdue => {
                    running.shutdown().await;
                    return Err(failed.unwrap_or_else(|| Failure::failed("some work did not stop in time and was given up")));
                }
            };
            let Some(ended) = ended else { return failed.map_or(Ok(()), Err) };
            failed = failed.or_else(|| failure_of(ended, self.shutdown.is_draining()));
            if failed.is_some() {
                self.shutdown.begin();
            }
        }
    }

    /// Pends until told to stop, through the drain and the abort, then ends: what runs then does not stop by itself.
    async fn overdue(&self) {
        self.shutdown.drain.cancelled().await;
        let drain = Duration::from(self.config.worker.drain_timeout) + LEAVE_GRACE;
        let _ = tokio::time::timeout(drain, self.shutdown.abort.cancelled()).await;
        self.shutdown.abort();
        tokio::time::sleep(ABORT_GRACE).await;
    }
}

/// A role's name and how it ended.
pub type Ended = (&'static str, anyhow::Result<()>);

fn failure_of(ended: Result<Ended, tokio::task::JoinError>, draining: bool) -> Option<Failure> {
    match ended {
        Ok((_, Ok(()))) if draining => None,
        Ok((role, Ok(()))) => Some(Failure::failed(format_args!("the {role} ended although nobody stopped it"))),
        Ok((role, Err(why))) => Some(told(Code::Failed, &format!("the {role} cannot go on: {why:#}"))),
        Err(why) => Some(Failure::failed(format_args!("a role ended with a panic: {why}"))),
    }
}

/// Why something does not work yet, or will not.
pub enum Trouble {
    Passing(String),
    Lasting(String),
}

impl From<FleetSettingsError> for Trouble {
    /// Missing topics may be about to be applied.
    fn from(error: FleetSettingsError) -> Self {
        match &error {
            FleetSettingsError::Missing(_) | FleetSettingsError::NotApplied(_) | FleetSettingsError::Late { .. } => {
                Self::Passing(error.to_string())
            }
            FleetSettingsError::Broker(inner) => Self::of_broker(inner, &error),
            FleetSettingsError::Newer { .. } | FleetSettingsError::Unreadable { .. } => Self::Lasting(error.to_string()),
        }
    }
}

impl From<BrokerError> for Trouble {
    fn from(error: BrokerError) -> Self {
        Self::of_broker(&error, &error)
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Unavailable(_) => Self::Passing(error.to_string()),
            _ => Self::Lasting(error.to_string()),
        }
    }
}

impl Trouble {
    fn of_broker(error: &BrokerError, text: &dyn Display) -> Self {
        match error {
            BrokerError::Denied(_) | BrokerError::Invalid(_) => Self::Lasting(text.to_string()),
            _ => Self::Passing(text.to_string()),
        }
    }
}

/// A message that may bring its own hint.
pub fn told(code: Code, text: &str) -> Failure {
    match text.split_once("\n\nhint: ") {
        Some((message, hint)) => Failure::new(code, message).hint(hint.trim_end()),
        None => Failure::new(code, text),
    }
}

/// Slots typed on the command line win over the configuration.
fn set_slots(config: &mut Config, registry: &Registry, slots: u32, types: &[String]) {
    let in_code = registry.types().map(|(name, _)| name.to_string());
    let known: Vec<String> = in_code.chain(config.types.keys().cloned()).collect();
    for name in known.into_iter().filter(|name| types.is_empty() || types.contains(name)) {
        config.types.entry(name).or_default().concurrency = Some(slots);
    }
}

/// Opens a listener, or says what to do about it.
async fn bind(address: &str, flag: &str) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|why| {
        let failure = |text: String| Failure::failed(text);
        match why.kind() {
            std::io::ErrorKind::AddrInUse => failure(format!("`{address}` is taken by another process"))
                .hint(format_args!("choose another address with {flag}, or port 0 for any that is free")),
            std::io::ErrorKind::PermissionDenied => failure(format!("`{address}` may not be listened on: {why}"))
                .hint(format_args!("choose a port above 1023 with {flag}")),
            _ => Failure::usage(format_args!("cannot listen on `{address}`: {why}"))
                .hint(format_args!("write {flag} as 127.0.0.1:8080")),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts() -> Setup {
        let config = Config::default();
        Setup {
            names: Names::new(&config.topics.prefix),
            config,
            folder: PathBuf::new(),
            file: String::new(),
            registry: Registry::default(),
            metrics: Metrics::new().unwrap(),
            health: Health::default(),
            shutdown: Shutdown::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn start_timeout_bounds_an_attempt_that_gets_no_answer() {
        let begun = Instant::now();
        let never = |_| std::future::pending::<Result<(), Trouble>>();
        let failure = parts().wait_for("kafka", "kafka", "", Duration::from_secs(3), never).await.unwrap_err();
        assert!(failure.message.contains("not ready within 3s: no answer"), "{}", failure.message);
        assert!((3..=4).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    }
}
