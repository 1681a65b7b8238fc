//! Starts roles in this process, and waits for their ends.

use std::sync::Arc;
use std::time::Duration;

use kafleet_api::ApiSetup;
use kafleet_apps::container::Container;
use kafleet_apps::pool::guard_container;
use kafleet_broker::Broker;
use kafleet_config::Topology;
use kafleet_fleet::topics::{RequiredTopics, TopicWatch};
use kafleet_store::Store;
use kafleet_tracker::TrackerSetup;
use kafleet_worker::WorkerSetup;
use kafleet_worker::child::OwnExecutable;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::Setup;
use crate::cli::apps;
use crate::cli::exit::{Code, Failure};

/// Additional shutdown time after running attempts have ended, for their last events and for leaving the groups.
const LEAVE_GRACE: Duration = Duration::from_secs(15);
/// Time between an abort and giving up on tasks that do not stop.
const ABORT_GRACE: Duration = Duration::from_secs(5);

impl Setup {
    pub(in crate::cli) fn worker(
        &self,
        broker: Arc<dyn Broker>,
        types: Vec<String>,
        topology: Topology,
    ) -> WorkerSetup {
        WorkerSetup {
            broker,
            registry: self.registry.clone(),
            types,
            config: self.config.worker.clone(),
            topology,
            max_tree_age: self.config.topics.max_tree_age,
            metrics: self.metrics.clone(),
            health: self.health.clone(),
            policies: self.policies.clone(),
            tracer: self.tracing.as_ref().map(|(tracer, _)| tracer.clone()),
            own_executable: OwnExecutable::of_this_process(self.withheld.clone()),
        }
    }

    pub(in crate::cli) fn tracker(
        &self,
        broker: Arc<dyn Broker>,
        store: Arc<dyn Store>,
        topology: Topology,
    ) -> TrackerSetup {
        TrackerSetup {
            broker,
            store,
            config: self.config.tracker.clone(),
            lifetimes: self.config.lifetimes(),
            task_retention: self.config.topics.task_retention,
            topic_check: self.config.topics.check_interval,
            topology,
            metrics: self.metrics.clone(),
            tracer: self.tracing.as_ref().map(|(tracer, _)| tracer.clone()),
            health: self.health.clone(),
        }
    }

    pub(in crate::cli) fn api(&self, broker: Arc<dyn Broker>, store: Arc<dyn Store>, topology: Topology) -> ApiSetup {
        ApiSetup {
            pages: kafleet_ui::open,
            broker,
            store,
            registry: self.registry.clone(),
            config: self.config.api.clone(),
            access: self.access.clone(),
            policies: self.policies.clone(),
            topology,
            max_tree_age: self.config.topics.max_tree_age,
            metrics: self.metrics.clone(),
            tracer: self.tracing.as_ref().map(|(tracer, _)| tracer.clone()),
            health: self.health.clone(),
        }
    }

    pub(in crate::cli) fn start_worker(&self, running: &mut JoinSet<RoleEnd>, setup: WorkerSetup) {
        let all_types = setup.registry.types().map(|(name, _)| name);
        let types =
            all_types.filter(|name| setup.types.is_empty() || setup.types.iter().any(|chosen| **chosen == ***name));
        let needs = RequiredTopics::worker(&setup.topology, types.map(|name| &**name));
        let topics = self.watch_topics(&setup.broker, needs, "worker's topics");
        self.apps.iter().for_each(|pool| pool.serve(self.health.clone(), &self.metrics.apps));
        let guard = guard_container(self.apps.clone(), Container::of_this_process());
        let shutdown = self.shutdown.clone();
        running.spawn(async move {
            let _topics = topics;
            tokio::select! {
                biased;
                ended = kafleet_worker::run(setup, shutdown) => ("worker", ended),
                never = guard => match never {},
            }
        });
    }

    pub(in crate::cli) fn start_tracker(&self, running: &mut JoinSet<RoleEnd>, setup: TrackerSetup) {
        let shutdown = self.shutdown.clone();
        running.spawn(async move { ("tracker", kafleet_tracker::run(setup, shutdown).await) });
    }

    pub(in crate::cli) fn start_api(&self, running: &mut JoinSet<RoleEnd>, setup: ApiSetup, listener: TcpListener) {
        let needs = RequiredTopics::api(&setup.topology);
        let topics = self.watch_topics(&setup.broker, needs, "API's topics");
        let shutdown = self.shutdown.clone();
        running.spawn(async move {
            let _topics = topics;
            ("api", kafleet_api::run(setup, listener, shutdown).await)
        });
    }

    /// Checks topics until dropped. The tracker has its own check, because it stops projecting on problems.
    pub(in crate::cli) fn watch_topics(
        &self,
        broker: &Arc<dyn Broker>,
        needs: RequiredTopics,
        part: &'static str,
    ) -> TopicWatch {
        TopicWatch::start(&broker.client(), needs, self.health.clone(), part, self.config.topics.check_interval.into())
    }

    /// Waits until all roles have ended, and ends the apps. A role that fails stops the others.
    pub(in crate::cli) async fn run_until_stopped(&self, running: JoinSet<RoleEnd>) -> Result<(), Failure> {
        let outcome = self.wait_for_roles(running).await;
        tokio::select! { biased; () = apps::stop(&self.apps) => {}, () = self.shutdown.abort.cancelled() => {} }
        if let Some((_, exporter)) = &self.tracing {
            tokio::select! { biased; () = exporter.stop() => {}, () = self.shutdown.abort.cancelled() => {} }
        }
        outcome
    }

    async fn wait_for_roles(&self, mut running: JoinSet<RoleEnd>) -> Result<(), Failure> {
        let mut failed = None;
        let mut shutdown_overdue = std::pin::pin!(self.shutdown_overdue());
        loop {
            let ended = tokio::select! {
                ended = running.join_next() => ended,
                () = &mut shutdown_overdue => {
                    running.shutdown().await;
                    return Err(failed.unwrap_or_else(|| Failure::failed("some tasks did not stop in time and were aborted")));
                }
            };
            let Some(ended) = ended else { return failed.map_or(Ok(()), Err) };
            failed = failed.or_else(|| failure_of(ended, self.shutdown.is_draining()));
            if failed.is_some() {
                self.shutdown.begin();
            }
        }
    }

    /// Completes when the process is shutting down and both the drain and the abort have taken too long.
    async fn shutdown_overdue(&self) {
        self.shutdown.drain.cancelled().await;
        let drain = Duration::from(self.config.worker.drain_timeout) + LEAVE_GRACE;
        let _ = tokio::time::timeout(drain, self.shutdown.abort.cancelled()).await;
        self.shutdown.abort();
        tokio::time::sleep(ABORT_GRACE).await;
    }
}

/// Name of a role, and its result.
pub(in crate::cli) type RoleEnd = (&'static str, anyhow::Result<()>);

fn failure_of(ended: Result<RoleEnd, tokio::task::JoinError>, draining: bool) -> Option<Failure> {
    match ended {
        Ok((_, Ok(()))) if draining => None,
        Ok((role, Ok(()))) => Some(Failure::failed(format_args!("the {role} ended unexpectedly"))),
        Ok((role, Err(error))) => Some(Failure::of_text(Code::Failed, &format!("the {role} has failed: {error:#}"))),
        Err(error) => Some(Failure::failed(format_args!("a role ended with a panic: {error}"))),
    }
}
