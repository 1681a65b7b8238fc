//! The worker of `dev`. When kafleet.toml or a source file of an app changes, the new code is started; once it is ready, the
//! worker starts again with it. A configuration that is invalid, or code that cannot be started, changes nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::{Broker, BrokerClient};
use kafleet_config::DEFAULT_FILE;
use kafleet_handlers::Registry;
use kafleet_handlers::builtin::register_samples;
use kafleet_runtime::{Shutdown, blocking};
use parking_lot::Mutex;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};

use super::sources::Sources;
use super::{apply_schedules, declare_types, reloaded, topology};
use crate::cli::app_attach::is_attach;
use crate::cli::apps;
use crate::cli::exit::Failure;
use crate::cli::offsets::move_commits;
use crate::cli::output::eprint_line;
use crate::cli::schedules::declared::declared;
use crate::cli::setup::{CALL_DEADLINE, RoleEnd, Setup};
use crate::cli::task_lines::TaskLines;
use crate::cli::topics::create_topics;

/// Interval at which the source files are polled.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Time without a further change after which the new code is started, as an editor may write several files; and the
/// maximum number of changes to wait for.
const SETTLED_AFTER: Duration = Duration::from_millis(200);
const MAX_CHANGES: usize = 25;
/// Time for running attempts to end before a reload or the end of `dev` interrupts them.
const DRAIN_DEADLINE: Duration = Duration::from_secs(1);
/// Time for interrupted attempts to answer before the worker of `dev` ends without them.
const ANSWER_DEADLINE: Duration = Duration::from_millis(500);
/// Time for the processes of the old code to end before they are killed.
const STOP_DEADLINE: Duration = Duration::from_secs(1);

/// Worker of `dev`, and all that its versions are made from.
pub(super) struct Live {
    /// Setup of the fleet, without apps and their types.
    pub base: Setup,
    /// Types of this binary.
    pub registry: Registry,
    pub is_demo: bool,
    /// Environment of the apps.
    pub environment: Vec<(&'static str, String)>,
    /// Whether each version also registers the sample types.
    pub has_samples: bool,
    /// Whether a line is printed for each start, log line and end of an attempt.
    pub shows_tasks: bool,
    pub broker: Arc<dyn Broker>,
    /// `None` with `--no-reload`.
    pub changes: Option<Changes>,
}

impl Live {
    /// Starts the apps, registers all types and creates their topics.
    pub(super) async fn open(&self) -> Result<Setup, Failure> {
        if let Some(Changes(sources)) = self.changes.clone() {
            blocking(move || sources.lock().starting()).await.map_err(Failure::failed)?;
        }
        let opened = self.open_version().await;
        if let Some(Changes(sources)) = &self.changes {
            match &opened {
                Ok(version) => sources.lock().started(&version.apps),
                Err(_) => sources.lock().failed(),
            }
        }
        opened
    }

    async fn open_version(&self) -> Result<Setup, Failure> {
        let mut version = self.base.clone();
        version.shutdown = Shutdown::new();
        apps::open(&mut version, &self.environment, true).await?;
        version.register()?;
        if self.shows_tasks {
            version.registry.observe(TaskLines::new());
        }
        if self.has_samples {
            register_samples(&mut version.registry);
        }
        // Before the old code is stopped.
        declared(&version)?;
        create_topics(&version, &self.broker.client(), CALL_DEADLINE).await?;
        Ok(version)
    }

    /// Runs a worker with the newest code that can be started, until the fleet is stopped.
    pub(super) async fn run(mut self, mut version: Setup) -> anyhow::Result<()> {
        loop {
            let mut roles = JoinSet::new();
            let worker = version.worker(self.broker.clone(), Vec::new(), topology(&version));
            version.start_worker(&mut roles, worker);
            let drain = self.base.shutdown.drain.clone();
            let next = tokio::select! {
                biased;
                ended = roles.join_next() => {
                    apps::stop(&version.apps).await;
                    return result(ended);
                }
                () = drain.cancelled() => None,
                next = self.next() => Some(next),
            };
            let Some(next) = next else { return self.stop(&version, roles).await };
            replace(&version, roles).await?;
            let broker = self.broker.client();
            move_groups(&version, &next, &broker).await.map_err(|error| anyhow::anyhow!(error.message))?;
            declare_types(&next, &broker).await.map_err(|error| anyhow::anyhow!(error.message))?;
            let applied = apply_schedules(&next, Some(&version), &broker).await;
            applied.map_err(|error| anyhow::anyhow!(error.message))?;
            eprint_line(format_args!("the new code serves the types {}", type_names(&next)));
            version = next;
        }
    }

    /// Waits until the configuration or the code has changed and the new code has started; returns the setup of the new
    /// version.
    async fn next(&mut self) -> Setup {
        let Some(changes) = self.changes.clone() else { return std::future::pending().await };
        let mut path = changes.next().await;
        loop {
            let opened = match self.take_over(&changes, &path) {
                Err(failure) => Err(failure),
                Ok(()) => tokio::select! {
                    biased;
                    opened = self.open() => opened,
                    // The start may take long, or not end.
                    changed = changes.next() => {
                        path = changed;
                        continue;
                    }
                },
            };
            match opened {
                Ok(next) => return next,
                Err(failure) => eprint_line(format_args!("{}\nthe old code serves on", failure.text())),
            }
            path = changes.next().await;
        }
    }

    /// Announces a change, and reads the configuration if it has changed.
    fn take_over(&mut self, changes: &Changes, path: &Path) -> Result<(), Failure> {
        let shown = std::env::current_dir().ok().and_then(|folder| path.strip_prefix(folder).ok()).unwrap_or(path);
        let is_config = changes.0.lock().config() == path;
        let started = if is_config { "starting with the new configuration" } else { "starting the new code" };
        eprint_line(format_args!("`{}` has changed: {started}", shown.display()));
        if is_config {
            self.base = reloaded(&self.base, self.registry.clone(), self.is_demo)?;
            *changes.0.lock() = Changes::sources(&self.base);
        }
        Ok(())
    }

    /// Stops the worker because the fleet stops; a second signal aborts it.
    async fn stop(&self, version: &Setup, mut roles: JoinSet<RoleEnd>) -> anyhow::Result<()> {
        let abort = &self.base.shutdown.abort;
        let running = running_text(version);
        if !running.is_empty() {
            let seconds = DRAIN_DEADLINE.as_secs();
            eprint_line(format_args!("waiting {seconds} s for running attempts ({running}); ctrl-c again aborts them"));
        }
        version.shutdown.begin_within(DRAIN_DEADLINE);
        let ended = tokio::select! {
            biased;
            ended = timeout(DRAIN_DEADLINE + ANSWER_DEADLINE, roles.join_next()) => ended.ok(),
            () = abort.cancelled() => None,
        };
        let ended = match ended {
            Some(ended) => ended,
            None => {
                version.shutdown.abort();
                roles.join_next().await
            }
        };
        // Processes that have not ended by then are killed.
        let stopped = timeout(STOP_DEADLINE, apps::stop(&version.apps));
        tokio::select! { biased; _ = stopped => {}, () = abort.cancelled() => {} }
        result(ended)
    }
}

/// Ends a worker whose code is replaced. Attempts that still run are released, and start again with the new code.
async fn replace(version: &Setup, mut roles: JoinSet<RoleEnd>) -> anyhow::Result<()> {
    version.shutdown.begin_within(DRAIN_DEADLINE);
    let ended = timeout(DRAIN_DEADLINE, roles.join_next()).await;
    // Processes that have not ended by then are killed, and their attempts end.
    let _ = timeout(STOP_DEADLINE, apps::stop(&version.apps)).await;
    match ended {
        Ok(ended) => result(ended),
        Err(_) => result(roles.join_next().await),
    }
}

/// Moves the commits of types whose consumer group is another one in the new version, as `offsets move` does: no worker
/// runs, and this fleet has no other.
async fn move_groups(version: &Setup, next: &Setup, broker: &BrokerClient) -> Result<(), Failure> {
    for (name, _) in next.registry.types() {
        let group = next.names.group_name(name);
        if version.registry.get(name).is_some() && version.names.group_name(name) != group {
            move_commits(&broker.with_deadline(CALL_DEADLINE), &next.names, name, group).await?;
        }
    }
    Ok(())
}

/// Numbers of running attempts by type, such as `greet 2, mail 1`.
fn running_text(version: &Setup) -> String {
    let running = |name: &str| version.metrics.tasks.in_flight.with_label_values(&[name]).get();
    let types = version.registry.types().map(|(name, _)| (name, running(name))).filter(|(_, running)| *running > 0);
    types.map(|(name, running)| format!("{name} {running}")).collect::<Vec<_>>().join(", ")
}

fn result(ended: Option<Result<RoleEnd, JoinError>>) -> anyhow::Result<()> {
    match ended {
        Some(Ok((_, result))) => result,
        Some(Err(panicked)) => Err(panicked.into()),
        None => Ok(()),
    }
}

fn type_names(setup: &Setup) -> String {
    setup.registry.types().map(|(name, _)| &**name).collect::<Vec<_>>().join(", ")
}

/// Changes of kafleet.toml and of the source files of all apps. Cheap to clone.
#[derive(Clone)]
pub(super) struct Changes(Arc<Mutex<Sources>>);

impl Changes {
    /// Starts watching the files of a setup.
    pub(super) fn of(setup: &Setup) -> Self {
        Self(Arc::new(Mutex::new(Self::sources(setup))))
    }

    fn sources(setup: &Setup) -> Sources {
        let config = setup.source.globals.config.as_deref().unwrap_or_else(|| Path::new(DEFAULT_FILE));
        // The code of an attached app is in another process.
        let apps = setup.config.apps.iter().filter(|(_, app)| !is_attach(&app.command));
        let sources = Sources::of(config, apps);
        if sources.is_partial() {
            eprint_line("warning: the folder of the app has too many files: changes of some of them are not noticed");
        }
        sources
    }

    /// Waits until a file has changed, and for some time nothing more. A change is kept if this future is dropped.
    async fn next(&self) -> PathBuf {
        loop {
            sleep(POLL_INTERVAL).await;
            for _ in 0..MAX_CHANGES {
                if !self.check().await {
                    break;
                }
                sleep(SETTLED_AFTER).await;
            }
            if let Some(first) = self.0.lock().take_change() {
                return first;
            }
        }
    }

    /// Returns whether a file has changed since the last check.
    async fn check(&self) -> bool {
        let sources = self.0.clone();
        blocking(move || sources.lock().check_again()).await.unwrap_or_default()
    }
}
