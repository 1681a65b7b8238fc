//! A killed worker is reported as silent, and a cancel of its task does not wait for it.

use std::path::Path;

use kafleet_testkit::names::unique;
use kafleet_testkit::processes::{ProcessFleet, eventually_running_blocking};
use serde_json::Value;

use crate::fleet::in_process::brokers;

#[test]
fn killed_worker_is_reported_and_its_task_can_be_cancelled() {
    let Some(brokers) = brokers() else { return };
    let types = "[tracker]\nworker_silent = \"5s\"\n[types.foreach]\nhandler = \"foreach\"\n";
    let fleet = ProcessFleet::new(Path::new(env!("CARGO_BIN_EXE_kafleet")), brokers, unique("fleet"), types);
    let mut running = [fleet.start("tracker"), fleet.start("api")];
    let mut worker = fleet.start("worker");
    let query = |arguments: &[&str]| {
        let output = fleet.command(arguments).output().unwrap().stdout;
        serde_json::from_slice::<Value>(&output).unwrap_or_default()
    };
    let has_state = |state: &'static str| move |status: Value| status["state"] == state;
    eventually_running_blocking("the API responds", &mut running, || query(&["types", "-o", "json"]).is_object());
    fleet.run(&["submit", "foreach", r#"{"count":2,"pause":"10m"}"#, "--id", "long"]);
    eventually_running_blocking("the task runs", &mut running, || {
        has_state("running")(query(&["status", "long", "-o", "json"]))
    });
    worker.kill();
    eventually_running_blocking("`why` reports the silent worker", &mut running, || {
        query(&["why", "long", "-o", "json"])["findings"][0]["code"] == "worker_silent"
    });
    eventually_running_blocking("the worker is listed as silent", &mut running, || {
        query(&["workers", "-o", "json"])["workers"][0]["state"] == "silent"
    });
    eventually_running_blocking("the task is still running, as another worker may take it over", &mut running, || {
        has_state("running")(query(&["status", "long", "-o", "json"]))
    });
    fleet.run(&["cancel", "long"]);
    eventually_running_blocking("the task is cancelled without its worker", &mut running, || {
        has_state("cancelled")(query(&["status", "long", "-o", "json"]))
    });
}
