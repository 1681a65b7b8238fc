//! A worker that is killed: everybody is told, and nobody waits for it.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::inside::{brokers, unique_prefix};
use crate::processes::{HandlerEnv, Process};

const DEADLINE: Duration = Duration::from_secs(240);

/// Asks until the answer is as it should be.
fn until(what: &str, running: &mut [Process], mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !holds() {
        running.iter_mut().for_each(Process::check);
        assert!(Instant::now() < end, "not within {DEADLINE:?}: {what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_killed_worker_is_silent_and_a_cancel_does_not_wait_for_it() {
    let Some(brokers) = brokers() else { return };
    let types = "[tracker]\nworker_silent = \"5s\"\n[types.foreach]\nhandler = \"foreach\"\n";
    let fleet = HandlerEnv::new(Path::new(env!("CARGO_BIN_EXE_kafleet")), brokers, unique_prefix(), types);
    let mut running = [fleet.start("tracker"), fleet.start("api")];
    let mut worker = fleet.start("worker");
    let says = |arguments: &[&str]| {
        let told = fleet.command(arguments).output().unwrap().stdout;
        serde_json::from_slice::<Value>(&told).unwrap_or_default()
    };
    let is = |state: &'static str| move |told: Value| told["state"] == state;
    until("the api answers", &mut running, || says(&["types", "-o", "json"]).is_object());
    fleet.run(&["submit", "foreach", r#"{"count":2,"pause":"10m"}"#, "--id", "long"]);
    until("the task runs", &mut running, || is("running")(says(&["status", "long", "-o", "json"])));
    worker.kill();
    until("its task is told", &mut running, || says(&["why", "long", "-o", "json"])["findings"][0]["code"] == "worker_silent");
    until("it is shown as silent", &mut running, || says(&["workers", "-o", "json"])["workers"][0]["state"] == "silent");
    until("it may be taken over yet", &mut running, || is("running")(says(&["status", "long", "-o", "json"])));
    fleet.run(&["cancel", "long"]);
    until("the cancel does not wait for it", &mut running, || is("cancelled")(says(&["status", "long", "-o", "json"])));
}
