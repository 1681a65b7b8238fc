//! Reload of kafleet.toml, on SIGHUP or a change of the file: a role applies the keys that may change while it runs, and
//! logs for each changed key whether it is in effect or needs a restart. An invalid file changes nothing.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use futures::future::{Either, select};
use kafleet_api::{LiveAccess, check_access};
use kafleet_apps::pool::AppPool;
use kafleet_config::{ChangedKey, Config, LoadedConfig, TYPE_SETTINGS, changes, combine_policy};
use kafleet_fleet::control::{Policies, PolicyUpdates};
use kafleet_handlers::builtin::{HandlerEnv, register_config};
use kafleet_handlers::program_env::WithheldVariables;
use kafleet_telemetry::{LOG_FILTER, Metrics};

use serde_json::Value;
use tokio::task::JoinSet;

use super::reload_trigger::{Trigger, Triggers};
use super::setup::{ConfigSource, RoleEnd, Setup, read_config, set_slots};

/// Keys of `[types.<name>]` that an API shows.
const SHOWN_TYPE_KEYS: [&str; 3] = ["concurrency", "max_concurrency", "rate"];

/// Role whose configuration is reloaded.
#[derive(Clone, Debug)]
pub(super) enum Role {
    /// Worker that runs these types; empty: all.
    Worker(Vec<String>),
    Tracker,
    /// API that listens on this address.
    Api(SocketAddr),
    /// Worker of all types, tracker, and API that listens on this address.
    All(SocketAddr),
}

impl Role {
    /// Address of the API, if the role has one.
    fn api_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Api(address) | Self::All(address) => Some(*address),
            Self::Worker(_) | Self::Tracker => None,
        }
    }
}

/// Effect of a changed key on a running role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    Immediate,
    NeedsRestart,
    /// The named option or variable has precedence.
    OverriddenBy(&'static str),
}

/// Reason why the reloaded file is rejected.
#[derive(Debug)]
struct ReloadProblem {
    /// TOML key; empty if the message names it.
    key: String,
    location: String,
    message: String,
    hint: Option<String>,
}

/// Outcome of a reload.
type ReloadOutcome = Result<Vec<(String, Effect)>, Vec<ReloadProblem>>;

/// Reloads the configuration of a running role at each trigger, and on SIGHUP replaces the processes of its apps.
pub(super) fn watch(setup: &Setup, role: Role, mut triggers: Triggers, running: &mut JoinSet<RoleEnd>) {
    let mut reloader = Reloader::new(setup, role);
    let drain = setup.shutdown.drain.clone();
    running.spawn(async move {
        let reloads = async {
            let mut next = triggers.next().await;
            while let Some(trigger) = next {
                let replaces_apps = reloader.run() && trigger == Trigger::Signal;
                let apps = if replaces_apps { reloader.apps.clone() } else { Vec::new() };
                let replaced = futures::future::join_all(apps.iter().map(|pool| pool.reload()));
                // New code that cannot be started is retried without end: the next trigger does not wait for it.
                next = match select(pin!(triggers.next()), replaced).await {
                    Either::Left((next, _)) => next,
                    Either::Right((_, next)) => next.await,
                };
            }
        };
        drain.run_until_cancelled(reloads).await;
        ("reload", Ok(()))
    });
}

/// Configuration of a running role, and the handles that replace parts of it.
struct Reloader {
    role: Role,
    source: ConfigSource,
    /// Configuration in effect: that of the start, with the changes applied since.
    running: Value,
    /// Policies in effect.
    current: Policies,
    policies: PolicyUpdates,
    access: LiveAccess,
    apps: Vec<Arc<AppPool>>,
    metrics: Metrics,
}

impl Reloader {
    fn new(setup: &Setup, role: Role) -> Self {
        let policies = setup.registry.types().map(|(name, registered)| (name.clone(), registered.policy.clone()));
        Self {
            role,
            source: setup.source.clone(),
            running: json_of(&setup.source.loaded),
            current: policies.collect(),
            policies: setup.policies.clone(),
            access: setup.access.clone(),
            apps: setup.apps.clone(),
            metrics: setup.metrics.clone(),
        }
    }

    /// Reloads the configuration and logs the outcome. Returns whether the file is valid.
    fn run(&mut self) -> bool {
        let reloaded = self.reload();
        let outcome = match &reloaded {
            Err(_) => "invalid",
            Ok(effects) if effects.is_empty() => "unchanged",
            Ok(effects) if effects.iter().any(|(_, effect)| *effect == Effect::NeedsRestart) => "restart_needed",
            Ok(_) => "applied",
        };
        self.metrics.config_reloads.with_label_values(&[outcome]).inc();
        match &reloaded {
            Ok(effects) => effects.iter().for_each(|(key, effect)| log_effect(key, *effect)),
            Err(problems) => problems.iter().for_each(log_problem),
        }
        tracing::info!(outcome, "reload: the configuration has been read again");
        reloaded.is_ok()
    }

    /// Applies a valid configuration. Returns the changed keys that concern the role.
    fn reload(&mut self) -> ReloadOutcome {
        let loaded = read_config(&self.source.globals, &self.source.options).map_err(invalid_file)?;
        let policies = self.new_policies(&loaded)?;
        if let Some(address) = self.role.api_address() {
            check_access(&loaded.config.api, address)
                .map_err(|error| vec![ReloadProblem::message(format!("{error:#}"))])?;
        }
        let new = json_of(&loaded.config);
        let changed = changes(&self.running, &new).into_iter().filter(|change| self.concerns(&change.path()));
        let with_effect = |change: ChangedKey| {
            let effect = self.effect(&change.path(), &policies);
            (change, effect)
        };
        let changed: Vec<(ChangedKey, Effect)> = changed.map(with_effect).collect();
        for (change, effect) in &changed {
            if *effect == Effect::Immediate {
                change.apply(&mut self.running);
            }
        }
        self.take_over(&loaded.config, &policies);
        Ok(changed.into_iter().map(|(change, effect)| (change.key(), effect)).collect())
    }

    fn take_over(&mut self, config: &Config, policies: &Policies) {
        for (name, policy) in &mut self.current {
            if let Some(new) = policies.get(name) {
                *policy = policy.reloaded(new);
            }
        }
        self.policies.replace(self.current.clone());
        if let Some(address) = self.role.api_address()
            && let Err(error) = self.access.replace(&config.api, address)
        {
            tracing::error!(%error, "the tokens of the reloaded configuration are invalid; the previous ones stay in effect");
        }
        kafleet_telemetry::set_log_filter(config.log.filter.as_deref());
    }

    /// Returns the policies of all types as a worker that starts now would have them.
    fn new_policies(&self, loaded: &LoadedConfig) -> Result<Policies, Vec<ReloadProblem>> {
        if matches!(self.role, Role::Tracker) {
            return Ok(Policies::new());
        }
        let mut config = loaded.config.clone();
        for (name, declared) in self.apps.iter().flat_map(|pool| &pool.declaration().types) {
            let combined = combine_policy(name, &declared.policy, config.types.get(name), &config.topics);
            config.types.insert(name.clone(), combined.map_err(invalid_messages)?);
        }
        if let Some((slots, types)) = &self.source.options.slots {
            set_slots(&mut config, &self.source.registry, *slots, types);
        }
        let mut registry = self.source.registry.clone();
        let env = HandlerEnv {
            dir: &loaded.folder,
            worker: &config.worker,
            callbacks: config.callbacks.as_ref(),
            email: config.email.as_ref(),
            withheld: &WithheldVariables::default(),
            has_unknown_types: self.apps.len() < config.apps.len(),
        };
        register_config(&mut registry, &config.types, &env).map_err(invalid_messages)?;
        Ok(registry.types().map(|(name, registered)| (name.clone(), registered.policy.clone())).collect())
    }

    /// Returns whether the role uses a key.
    fn concerns(&self, path: &[String]) -> bool {
        let section = path.first().map_or("", String::as_str);
        let (of_type, key) = (path.get(1), path.get(2).map(String::as_str));
        let sections: &[&str] = match &self.role {
            Role::Worker(types) if section == "types" => {
                return types.is_empty() || of_type.is_some_and(|name| types.contains(name));
            }
            Role::Tracker if section == "types" => return key == Some("retention"),
            Role::Api(_) if section == "types" => {
                return key.is_some_and(|key| ["handler", "schema"].contains(&key) || SHOWN_TYPE_KEYS.contains(&key));
            }
            Role::All(_) => return section != "schedules",
            Role::Worker(_) => &["kafka", "topics", "worker", "ops", "log", "otel", "apps", "callbacks", "email"],
            Role::Tracker => &["kafka", "redis", "topics", "tracker", "ops", "log", "otel"],
            Role::Api(_) => &["kafka", "redis", "topics", "api", "ops", "log", "otel", "callbacks", "email"],
        };
        sections.contains(&section)
    }

    /// Returns the effect of a changed key. `policies`: those of the new configuration.
    fn effect(&self, path: &[String], policies: &Policies) -> Effect {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        match (&self.role, &path[..]) {
            (_, ["log", "filter"]) if kafleet_telemetry::environment_sets_log_filter() => {
                Effect::OverriddenBy(LOG_FILTER)
            }
            (_, ["log", "filter"]) | (Role::Api(_) | Role::All(_), ["api", "tokens"]) => Effect::Immediate,
            (Role::Worker(_), ["types", name, "concurrency"]) if self.slots_override(name) => {
                Effect::OverriddenBy("--slots")
            }
            (Role::Worker(_) | Role::Api(_) | Role::All(_), ["types", name, key, ..])
                if is_live(key) && self.current.contains_key(*name) && policies.contains_key(*name) =>
            {
                Effect::Immediate
            }
            _ => Effect::NeedsRestart,
        }
    }

    /// Returns whether the command line sets the slots of a type.
    fn slots_override(&self, name: &str) -> bool {
        let slots = self.source.options.slots.as_ref();
        slots.is_some_and(|(_, types)| types.is_empty() || types.iter().any(|chosen| chosen == name))
    }
}

/// Returns whether a running worker takes over a key of `[types.<name>]`.
fn is_live(key: &str) -> bool {
    TYPE_SETTINGS.iter().any(|setting| setting.is_live && setting.key == key)
}

impl ReloadProblem {
    fn message(message: String) -> Self {
        Self { key: String::new(), location: String::new(), message, hint: None }
    }
}

/// Configuration as JSON; encoding it has no error case.
fn json_of(config: &Config) -> Value {
    serde_json::to_value(config).unwrap_or_default()
}

fn invalid_file(problems: kafleet_config::Problems) -> Vec<ReloadProblem> {
    let invalid = |problem: kafleet_config::ConfigProblem| ReloadProblem {
        key: problem.key,
        location: problem.location,
        message: problem.message,
        hint: problem.hint,
    };
    problems.0.into_iter().map(invalid).collect()
}

fn invalid_messages(messages: Vec<String>) -> Vec<ReloadProblem> {
    messages.into_iter().map(ReloadProblem::message).collect()
}

fn log_effect(key: &str, effect: Effect) {
    match effect {
        Effect::Immediate => tracing::info!(key, "reload: the changed key is in effect"),
        Effect::NeedsRestart => tracing::warn!(key, "reload: ignored a changed key that needs a restart"),
        Effect::OverriddenBy(by) => tracing::warn!(key, by, "reload: the changed key is overridden"),
    }
}

fn log_problem(problem: &ReloadProblem) {
    let ReloadProblem { key, location, message, hint } = problem;
    tracing::error!(key, location, hint, "reload: the configuration is invalid, and nothing has changed: {message}");
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::cli::globals::Globals;
    use crate::cli::setup::SetupOptions;
    use kafleet_handlers::Registry;
    use kafleet_model::units::duration::Millis;

    /// Role with a configuration file.
    struct ReloadFixture {
        folder: tempfile::TempDir,
        reloader: Reloader,
    }

    const CONFIG: &str = "[types.echo]\nhandler = \"echo\"\nconcurrency = 2\norder = \"key\"\n\
        [[api.tokens]]\nname = \"ci\"\ntoken = \"0123456789abcdef\"\nrole = \"submit\"\n";

    impl ReloadFixture {
        fn new(role: Role, options: SetupOptions) -> Self {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(path(&folder), CONFIG).unwrap();
            let globals = Globals { config: Some(path(&folder)), ..Globals::default() };
            let options = SetupOptions { handlers: true, ..options };
            let setup = Setup::load(&globals, Registry::default(), options).unwrap();
            let mut reloader = Reloader::new(&setup, role);
            assert_eq!(reloader.reload().unwrap(), [], "the file has not changed");
            Self { folder, reloader }
        }

        fn worker() -> Self {
            Self::new(Role::Worker(Vec::new()), SetupOptions::default())
        }

        /// Replaces a part of the file and reloads it.
        fn change(&mut self, old: &str, new: &str) -> ReloadOutcome {
            let text = std::fs::read_to_string(path(&self.folder)).unwrap();
            assert!(text.contains(old), "{text}");
            std::fs::write(path(&self.folder), text.replace(old, new)).unwrap();
            self.reloader.reload()
        }

        fn metric(&self, outcome: &str) -> u64 {
            self.reloader.metrics.config_reloads.with_label_values(&[outcome]).get()
        }
    }

    fn path(folder: &tempfile::TempDir) -> PathBuf {
        folder.path().join("kafleet.toml")
    }

    fn effect(key: &str, effect: Effect) -> (String, Effect) {
        (key.to_owned(), effect)
    }

    #[test]
    fn worker_takes_over_policies_and_names_keys_that_need_a_restart() {
        let mut fixture = ReloadFixture::worker();
        let start = fixture.reloader.current["echo"].clone();
        let new = "concurrency = 5\ntimeout = \"7s\"\nmax_failures = 3\nrate = { count = 9 }";
        let changed = fixture.change("concurrency = 2\norder = \"key\"", new).unwrap();
        let expected = [
            effect("types.echo.concurrency", Effect::Immediate),
            effect("types.echo.max_failures", Effect::Immediate),
            effect("types.echo.order", Effect::NeedsRestart),
            effect("types.echo.timeout", Effect::Immediate),
        ];
        for key_effect in &expected {
            assert!(changed.contains(key_effect), "{key_effect:?} in {changed:?}");
        }
        assert!(changed.iter().any(|(key, effect)| key == "types.echo.rate.count" && *effect == Effect::Immediate));
        let policy = fixture.reloader.policies.newer("echo", &start).unwrap();
        assert_eq!((policy.slots(), policy.timeout, policy.order), (5, Millis::secs(7), start.order));
        assert_eq!(policy.max_failures, Some(3));
        // A changed `order` is reported again at each reload until the restart, unless it is changed back.
        assert_eq!(fixture.reloader.reload().unwrap(), [effect("types.echo.order", Effect::NeedsRestart)]);
        fixture.change("max_failures = 3", "order = \"key\"").unwrap();
        assert_eq!(fixture.reloader.reload().unwrap(), []);
        assert_eq!(fixture.reloader.policies.newer("echo", &start).unwrap().max_failures, None);
    }

    #[test]
    fn invalid_file_changes_nothing_and_names_key_value_and_what_is_allowed() {
        let mut fixture = ReloadFixture::worker();
        let start = fixture.reloader.current["echo"].clone();
        let problems = fixture.change("concurrency = 2", "concurrency = 0\ntimeout = \"1s\"").unwrap_err();
        let [problem] = &problems[..] else { panic!("{problems:?}") };
        assert_eq!(problem.key, "types.echo.concurrency");
        assert!(problem.message.contains("`0` is not a whole number from 1 to 100000"), "{}", problem.message);
        assert!(problem.location.ends_with("kafleet.toml:3"), "{}", problem.location);
        assert_eq!(fixture.reloader.policies.newer("echo", &start), None);
        assert!(!fixture.reloader.run() && fixture.metric("invalid") == 1);
        fixture.change("concurrency = 0", "concurrency = 2").unwrap();
        assert_eq!(fixture.reloader.policies.newer("echo", &start).unwrap().timeout, Millis::secs(1));
        assert!(fixture.reloader.run() && fixture.metric("unchanged") == 1);
        assert_eq!(fixture.metric("applied") + fixture.metric("restart_needed"), 0);
    }

    #[test]
    fn new_and_removed_types_need_a_restart() {
        let mut fixture = ReloadFixture::worker();
        let changed = fixture.change("[types.echo]", "[types.other]").unwrap();
        assert!(changed.len() > 4 && changed.iter().all(|(_, effect)| *effect == Effect::NeedsRestart), "{changed:?}");
    }

    #[test]
    fn command_line_overrides_a_reloaded_concurrency() {
        let options = SetupOptions { slots: Some((3, Vec::new())), ..SetupOptions::default() };
        let mut fixture = ReloadFixture::new(Role::Worker(Vec::new()), options);
        let start = fixture.reloader.current["echo"].clone();
        let changed = fixture.change("concurrency = 2", "concurrency = 9").unwrap();
        assert_eq!(changed, [effect("types.echo.concurrency", Effect::OverriddenBy("--slots"))]);
        assert_eq!((start.slots(), fixture.reloader.policies.newer("echo", &start)), (3, None));
    }

    #[test]
    fn roles_report_only_keys_that_they_use() {
        let mut tracker = ReloadFixture::new(Role::Tracker, SetupOptions::default());
        let mut worker = ReloadFixture::new(Role::Worker(vec!["other".into()]), SetupOptions::default());
        let new = "concurrency = 3\nretention = \"9d\"\n[tracker]\nobserve = false\n[worker]\ngrace = \"1s\"\n#";
        let in_tracker = tracker.change("concurrency = 2\n", new).unwrap();
        let restart = |key| effect(key, Effect::NeedsRestart);
        assert_eq!(in_tracker, [restart("tracker.observe"), restart("types.echo.retention")]);
        assert_eq!(worker.change("concurrency = 2\n", new).unwrap(), [restart("worker.grace")]);
    }

    #[test]
    fn api_withdraws_tokens_unless_it_would_be_open() {
        let mut local = ReloadFixture::new(Role::Api("127.0.0.1:1".parse().unwrap()), SetupOptions::default());
        let changed = local.change("0123456789abcdef", "fedcba9876543210").unwrap();
        assert_eq!(changed, [effect("api.tokens", Effect::Immediate)]);
        let access = local.reloader.access.clone();
        let is_known = |token: &str| access.current().token(token).is_some();
        assert!(is_known("fedcba9876543210") && !is_known("0123456789abcdef"));
        let mut public = ReloadFixture::new(Role::Api("0.0.0.0:1".parse().unwrap()), SetupOptions::default());
        let tokens = CONFIG.split_once("[[").unwrap().1;
        let problems = public.change(&format!("[[{tokens}"), "").unwrap_err();
        assert!(problems[0].message.contains("without tokens"), "{problems:?}");
        assert!(public.reloader.access.current().token("0123456789abcdef").is_some(), "nothing has changed");
    }
}
