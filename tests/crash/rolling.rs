//! Rolling restart of three worker processes under load, on a real Kafka.

use std::collections::{HashMap, HashSet};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kafleet::config::Isolation;
use kafleet::model::event::{Event, Kind as EventKind};
use kafleet_testkit::wait::eventually;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::crashing_handlers::{Act, crashing, params};
use crate::fleet::{Fleet, kafka};
use crate::local_workers::LocalWorkers;
use crate::tail::is_end;
use crate::{Case, block_on};

pub const CASES: &[Case] = &[("rolling_restart_repeats_nothing", rolling_restart_repeats_nothing)];

const PARTITIONS: u32 = 6;
const WORKERS: usize = 3;
/// Number of tasks per batch; batches are published until the last worker is replaced.
const BATCH: usize = 20;

/// Three workers, stopped and replaced one after the other.
struct Trio {
    workers: LocalWorkers,
    running: Vec<Child>,
    started: usize,
}

impl Trio {
    fn new(fleet: &Fleet) -> Self {
        let mut trio = Self { workers: LocalWorkers::new(fleet, PARTITIONS, ""), running: Vec::new(), started: 0 };
        (0..WORKERS).for_each(|_| trio.start());
        trio
    }

    fn start(&mut self) {
        self.running.push(self.workers.start(self.started));
        self.started += 1;
    }

    async fn stop_oldest(&mut self) {
        terminate(&self.running[0]);
        wait_exit(&mut self.running[0]).await;
        self.running.remove(0).wait().unwrap();
    }

    async fn stop_all(&mut self) {
        self.running.iter().for_each(terminate);
        for child in &mut self.running {
            wait_exit(child).await;
        }
        self.running.clear();
    }
}

/// Stops a worker as an orchestrator does.
fn terminate(child: &Child) {
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
}

/// Waits until a worker has ended by itself.
async fn wait_exit(child: &mut Child) {
    let status = eventually("a worker has stopped", async || child.try_wait().unwrap()).await;
    assert!(status.success(), "{status}");
}

impl Drop for Trio {
    fn drop(&mut self) {
        for child in &mut self.running {
            // The process may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- workers\n{}", self.workers.log_tails(self.started));
        }
    }
}

/// Publishes batches until `stop` is set; returns the number of tasks.
async fn publish_until_stopped(fleet: &Fleet, stop: &AtomicBool) -> usize {
    let mut batches = 0;
    while !stop.load(Ordering::Relaxed) {
        fleet.send_many("crashing", &format!("b{batches}-"), BATCH, &params(Act::Brief)).await;
        batches += 1;
        // A higher rate than two workers can process would only delay the end.
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    batches * BATCH
}

/// Waits until `count` different workers have finished tasks.
async fn wait_for_workers(fleet: &Fleet, count: usize) {
    let finished = |events: &[Event]| {
        let ends = events.iter().filter(|event| is_end(event));
        ends.filter_map(|event| event.worker.clone()).collect::<HashSet<_>>().len()
    };
    eventually(&format!("{count} workers have finished tasks"), async || {
        let workers = finished(&fleet.events.all());
        if workers >= count { Ok(()) } else { Err(workers) }
    })
    .await;
}

fn rolling_restart_repeats_nothing() {
    block_on(async {
        let Some(fleet) = kafka(PARTITIONS, &[crashing(Isolation::None)]).await else { return };
        let fleet = Arc::new(fleet);
        let stop = Arc::new(AtomicBool::new(false));
        let mut trio = Trio::new(&fleet);
        let publisher = fleet.clone();
        let stopped = stop.clone();
        let publishing = tokio::spawn(async move { publish_until_stopped(&publisher, &stopped).await });
        wait_for_workers(&fleet, WORKERS).await;
        for replaced in 1..=WORKERS {
            trio.stop_oldest().await;
            trio.start();
            wait_for_workers(&fleet, WORKERS + replaced).await;
        }
        stop.store(true, Ordering::Relaxed);
        let published = publishing.await.unwrap();
        let results = fleet.wait_for_results(published).await;
        trio.stop_all().await;
        assert_eq!(results.len(), published, "each task has one result");
        let lost: Vec<_> =
            results.iter().filter(|event| (event.kind(), event.attempt) != (EventKind::Succeeded, 1)).collect();
        assert!(lost.is_empty(), "{lost:#?}");
        let mut starts = HashMap::new();
        for event in fleet.events.all().iter().filter(|event| event.kind() == EventKind::Started) {
            *starts.entry(event.id.to_string()).or_insert(0) += 1;
        }
        assert!(starts.values().all(|count| *count == 1), "no task starts twice: {starts:?}");
        fleet.assert_clean("crashing").await;
    });
}
