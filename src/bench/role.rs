//! The roles of a benchmark, each run in a process of its own.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::{NOOP, ROUND_DEADLINE, kafka};
use crate::broker::kafka::raw::RawLoop;
use crate::config::{Bytes, Isolation, Names, Order, TrackerConfig, TypePolicy, WorkerConfig};
use crate::handlers::{AnswerFuture, Context, Handler, Misfit, Registered, Registry, Schema};
use crate::model::json::RawJson;
use crate::runtime::{Health, Shutdown};
use crate::store::redis::{Redis, RedisOptions};
use crate::telemetry::Metrics;
use crate::tracker::TrackerSetup;
use crate::worker::WorkerSetup;
use crate::worker::cell::Reentry;

/// One role with everything it needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Role {
    Raw {
        brokers: String,
        prefix: String,
        group: String,
        to: String,
        records: u64,
        output_bytes: usize,
    },
    Worker {
        brokers: String,
        prefix: String,
        events_partitions: u32,
        slots: u32,
        memory_limit: u64,
        order: Order,
        isolation: Isolation,
    },
    Tracker {
        brokers: String,
        redis: String,
        prefix: String,
        events_partitions: u32,
    },
}

/// Runs the role that the environment names.
pub fn run() -> anyhow::Result<()> {
    let role = std::env::var(super::process::ROLE).context("this verb is for the benchmark's own processes")?;
    let role: Role = serde_json::from_str(&role)?;
    crate::telemetry::init_logs("warn");
    match role {
        Role::Raw { brokers, prefix, group, to, records, output_bytes } => {
            let raw = RawLoop {
                group: &group,
                from: &Names::new(&prefix).tasks(NOOP),
                to: &to,
                records,
                output_bytes,
                prefetch_bytes: WorkerConfig::default().memory_limit.as_usize() / 4,
                commit_interval: Duration::from_millis(200),
            };
            Ok(kafka(&brokers)?.raw_loop(&raw, ROUND_DEADLINE)?)
        }
        role => tokio::runtime::Runtime::new()?.block_on(run_async(role)),
    }
}

async fn run_async(role: Role) -> anyhow::Result<()> {
    let shutdown = Shutdown::new();
    shutdown.on_signals()?;
    let (metrics, health) = (Metrics::new()?, Health::default());
    match role {
        Role::Worker { brokers, prefix, events_partitions, slots, memory_limit, order, isolation } => {
            let setup = WorkerSetup {
                broker: Arc::new(kafka(&brokers)?),
                registry: noop_registry(slots, order, isolation),
                types: Vec::new(),
                config: WorkerConfig { memory_limit: Bytes(memory_limit), ..WorkerConfig::default() },
                names: Names::new(&prefix),
                events_partitions,
                metrics,
                health,
                reentry: Reentry::of_this_process(),
            };
            crate::worker::run(setup, shutdown).await
        }
        Role::Tracker { brokers, redis, prefix, events_partitions } => {
            let options = RedisOptions { prefix: prefix.clone(), ..RedisOptions::new(redis) };
            let setup = TrackerSetup {
                broker: Arc::new(kafka(&brokers)?),
                store: Arc::new(Redis::connect(options)?),
                config: TrackerConfig::default(),
                names: Names::new(&prefix),
                events_partitions,
                metrics,
                health,
            };
            crate::tracker::run(setup, shutdown).await
        }
        Role::Raw { .. } => Ok(()),
    }
}

fn noop_registry(slots: u32, order: Order, isolation: Isolation) -> Registry {
    let mut registry = Registry::default();
    let policy = TypePolicy { concurrency: slots, order, isolation, ..TypePolicy::default() };
    registry.add(NOOP, Registered { handler: Arc::new(Noop), schema: Schema::any(), policy });
    registry
}

struct Noop;

impl Handler for Noop {
    fn start(&self, _: &RawJson, _: Context) -> Result<AnswerFuture, Misfit> {
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
