//! A rolling restart of three worker processes under load, on a real Kafka.

use std::collections::{HashMap, HashSet};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kafleet::config::Isolation;
use kafleet::model::event::{Event, Kind as EventKind};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::fleet::{Fleet, kafka, pause};
use crate::risky::{Act, params, risky};
use crate::site::Site;
use crate::tail::is_end;
use crate::{Case, block_on};

pub const CASES: &[Case] = &[("a_rolling_restart_repeats_nothing", a_rolling_restart_repeats_nothing)];

const PARTITIONS: u32 = 6;
const WORKERS: usize = 3;
/// Tasks published at once, again and again until the last worker is replaced.
const BATCH: usize = 20;
const PATIENCE: Duration = Duration::from_secs(150);

/// Three workers; each is stopped and replaced, one after the other.
struct Trio {
    site: Site,
    running: Vec<Child>,
    started: usize,
}

impl Trio {
    fn new(fleet: &Fleet) -> Self {
        let mut trio = Self { site: Site::new(fleet, PARTITIONS, ""), running: Vec::new(), started: 0 };
        (0..WORKERS).for_each(|_| trio.start());
        trio
    }

    fn start(&mut self) {
        self.running.push(self.site.start(self.started));
        self.started += 1;
    }

    async fn stop_oldest(&mut self) {
        terminate(&self.running[0]);
        end_well(&mut self.running[0]).await;
        self.running.remove(0).wait().unwrap();
    }

    async fn stop_all(&mut self) {
        self.running.iter().for_each(terminate);
        for child in &mut self.running {
            end_well(child).await;
        }
        self.running.clear();
    }
}

/// As an orchestrator does it.
fn terminate(child: &Child) {
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
}

/// It has to end by itself.
async fn end_well(child: &mut Child) {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return assert!(status.success(), "{status}");
        }
        assert!(Instant::now() < until, "a worker has not stopped within {PATIENCE:?}");
        pause().await;
    }
}

impl Drop for Trio {
    fn drop(&mut self) {
        for child in &mut self.running {
            // It may be gone.
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- workers\n{}", self.site.talk(self.started));
        }
    }
}

/// Publishes until it is told to stop; returns how many.
async fn publish_on(fleet: &Fleet, stop: &AtomicBool) -> usize {
    let mut batches = 0;
    while !stop.load(Ordering::Relaxed) {
        fleet.send_many("risky", &format!("b{batches}-"), BATCH, &params(Act::Brief)).await;
        batches += 1;
        // More than two of the workers can do would only wait for the end.
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    batches * BATCH
}

/// Waits until so many different workers have finished tasks.
async fn wait_for_workers(fleet: &Fleet, count: usize) {
    let finished = |events: &[Event]| {
        let ends = events.iter().filter(|event| is_end(event));
        ends.filter_map(|event| event.worker.clone()).collect::<HashSet<_>>().len()
    };
    let until = Instant::now() + PATIENCE;
    loop {
        let workers = finished(&fleet.events.all());
        if workers >= count {
            return;
        }
        assert!(Instant::now() < until, "{workers} of {count} workers have finished tasks");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn a_rolling_restart_repeats_nothing() {
    block_on(async {
        let Some(fleet) = kafka(PARTITIONS, &[risky(Isolation::None)]).await else { return };
        let fleet = Arc::new(fleet);
        let stop = Arc::new(AtomicBool::new(false));
        let mut trio = Trio::new(&fleet);
        let (publisher, told) = (fleet.clone(), stop.clone());
        let publishing = tokio::spawn(async move { publish_on(&publisher, &told).await });
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
        assert_eq!(results.len(), published, "each is told once");
        let burnt: Vec<_> = results.iter().filter(|event| (event.kind, event.attempt) != (EventKind::Succeeded, 1)).collect();
        assert!(burnt.is_empty(), "{burnt:#?}");
        let mut starts = HashMap::new();
        for event in fleet.events.all().iter().filter(|event| event.kind == EventKind::Started) {
            *starts.entry(event.id.to_string()).or_insert(0) += 1;
        }
        assert!(starts.values().all(|count| *count == 1), "none is begun twice: {starts:?}");
        fleet.assert_clean("risky").await;
    });
}
