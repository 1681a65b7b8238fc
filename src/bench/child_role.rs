//! The roles of a benchmark, each run in a process of its own.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::{FAN, NOOP, ROUND_DEADLINE, Services, load};
use crate::api::ApiSetup;
use crate::broker::kafka::baseline::RawLoop;
use crate::config::{ApiConfig, Isolation, Names, Order, TopicsConfig, TypePolicy};
use crate::handlers::{AnswerFuture, Child, Context, Handler, ParamsError, Registered, Registry, Schema};
use crate::model::json::RawJson;
use crate::runtime::{Health, Shutdown};
use crate::telemetry::Metrics;
use crate::tracker::TrackerSetup;
use crate::worker::WorkerSetup;
use crate::worker::child::Reentry;

/// One role with everything it needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ChildRole {
    Raw {
        site: Services,
        prefix: String,
        group: String,
        to: String,
        records: u64,
        output_bytes: usize,
    },
    RawProduce {
        site: Services,
        prefix: String,
        records: u64,
        events: bool,
    },
    Publish {
        site: Services,
        prefix: String,
        events_partitions: u32,
        tasks: u64,
    },
    Worker {
        site: Services,
        prefix: String,
        events_partitions: u32,
        slots: u32,
        order: Order,
        isolation: Isolation,
        fan: bool,
    },
    /// A worker of several types whose attempts take a while.
    Napper {
        site: Services,
        prefix: String,
        events_partitions: u32,
        types: u32,
        slots: u32,
        nap_ms: u64,
    },
    Tracker {
        site: Services,
        prefix: String,
        events_partitions: u32,
    },
    Api {
        site: Services,
        prefix: String,
        events_partitions: u32,
        port: u16,
    },
}

/// Runs the role that the environment names.
pub fn run() -> anyhow::Result<()> {
    let role = std::env::var(super::process::ROLE).context("this verb is for the benchmark's own processes")?;
    let role: ChildRole = serde_json::from_str(&role)?;
    crate::telemetry::init_logs("warn");
    match role {
        ChildRole::Raw { site, prefix, group, to, records, output_bytes } => {
            let raw = RawLoop {
                group: &group,
                from: &Names::new(&prefix).tasks(NOOP),
                to: &to,
                records,
                output_bytes,
                prefetch_bytes: site.worker.memory_limit.as_usize() / 4,
                commit_interval: site.worker.commit_interval.into(),
            };
            Ok(site.kafka()?.raw_loop(&raw, ROUND_DEADLINE)?)
        }
        ChildRole::RawProduce { site, prefix, records, events } => load::raw_produce(&site, &prefix, records, events),
        role => tokio::runtime::Runtime::new()?.block_on(run_async(role)),
    }
}

async fn run_async(role: ChildRole) -> anyhow::Result<()> {
    let shutdown = Shutdown::new();
    shutdown.on_signals()?;
    let (metrics, health) = (Metrics::new()?, Health::default());
    match role {
        ChildRole::Worker { site, prefix, events_partitions, slots, order, isolation, fan } => {
            let setup = WorkerSetup {
                broker: Arc::new(site.kafka()?),
                registry: registry(slots, order, isolation, fan),
                types: Vec::new(),
                config: site.worker.clone(),
                names: Names::new(&prefix),
                events_partitions,
                metrics,
                health,
                reentry: Reentry::of_this_process(),
            };
            crate::worker::run(setup, shutdown).await
        }
        ChildRole::Napper { site, prefix, events_partitions, types, slots, nap_ms } => {
            let setup = WorkerSetup {
                broker: Arc::new(site.kafka()?),
                registry: nappers(types, slots, Duration::from_millis(nap_ms)),
                types: Vec::new(),
                config: site.worker.clone(),
                names: Names::new(&prefix),
                events_partitions,
                metrics,
                health,
                reentry: None,
            };
            crate::worker::run(setup, shutdown).await
        }
        ChildRole::Tracker { site, prefix, events_partitions } => {
            let setup = TrackerSetup {
                broker: Arc::new(site.kafka()?),
                store: Arc::new(site.redis(&prefix)?),
                config: site.tracker.clone(),
                lifetimes: Default::default(),
                task_retention: TopicsConfig::default().task_retention,
                topic_check: TopicsConfig::default().check_interval,
                names: Names::new(&prefix),
                events_partitions,
                metrics,
                health,
            };
            crate::tracker::run(setup, shutdown).await
        }
        ChildRole::Api { site, prefix, events_partitions, port } => {
            let setup = ApiSetup {
                broker: Arc::new(site.kafka()?),
                store: Arc::new(site.redis(&prefix)?),
                registry: Registry::default(),
                config: ApiConfig::default(),
                names: Names::new(&prefix),
                events_partitions,
                max_tree_age: TopicsConfig::default().max_tree_age,
                metrics,
                health,
            };
            crate::api::run(setup, tokio::net::TcpListener::bind(("127.0.0.1", port)).await?, shutdown).await
        }
        ChildRole::Publish { site, prefix, events_partitions, tasks } => {
            load::publish_tracked(&site, &prefix, events_partitions, tasks).await
        }
        ChildRole::Raw { .. } | ChildRole::RawProduce { .. } => Ok(()),
    }
}

fn registry(slots: u32, order: Order, isolation: Isolation, fan: bool) -> Registry {
    let mut registry = Registry::default();
    let policy = TypePolicy { concurrency: Some(slots), order, isolation, ..TypePolicy::default() };
    registry.add(NOOP, Registered { handler: Arc::new(Noop), schema: Schema::any(), policy: policy.clone() });
    if fan {
        registry.add(FAN, Registered { handler: Arc::new(Fan), schema: Schema::any(), policy });
    }
    registry
}

fn nappers(types: u32, slots: u32, nap: Duration) -> Registry {
    let mut registry = Registry::default();
    for name in super::memory::type_names(types) {
        let policy = TypePolicy { concurrency: Some(slots), ..TypePolicy::default() };
        registry.add(&name, Registered { handler: Arc::new(Napper(nap)), schema: Schema::any(), policy });
    }
    registry
}

/// Waits for so long.
struct Napper(Duration);

impl Handler for Napper {
    fn start(&self, _: &RawJson, _: Context) -> Result<AnswerFuture, ParamsError> {
        let nap = self.0;
        Ok(Box::pin(async move {
            tokio::time::sleep(nap).await;
            Ok(RawJson::null())
        }))
    }

    fn logs(&self) -> bool {
        false
    }
}

struct Noop;

impl Handler for Noop {
    fn start(&self, _: &RawJson, _: Context) -> Result<AnswerFuture, ParamsError> {
        Ok(Box::pin(std::future::ready(Ok(RawJson::null()))))
    }

    fn logs(&self) -> bool {
        false
    }

    /// The sample that does next to nothing.
    fn name_in_child<'a>(&'a self, _: &'a str) -> Option<&'a str> {
        Some("echo")
    }
}

/// Spawns as many no-op tasks as its params say.
struct Fan;

impl Handler for Fan {
    fn start(&self, params: &RawJson, cx: Context) -> Result<AnswerFuture, ParamsError> {
        let children = serde_json::from_str(params.text()).unwrap_or(0_u64);
        (0..children).for_each(|n| cx.spawn_child(Child::new(NOOP, n.into())));
        Ok(Box::pin(std::future::ready(Ok(RawJson::null()))))
    }
}
