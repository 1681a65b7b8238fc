//! Benchmarks with small sizes: their figures are complete, and every task is there once.

use serde_json::json;

use crate::cli::services::Fleet;

/// Neither 250 MiB of params nor many types, each with its own client, exceed the memory of the worker.
#[test]
fn worker_stays_within_its_memory_limit() {
    let Some(fleet) = Fleet::new() else { return };
    let sizes = ["--tasks", "20000", "--large", "250", "--types", "8", "--each", "500"];
    let limits = ["--memory-limit", "32MiB", "--ceiling", "200MiB", "-o", "json"];
    let report = fleet.run(&[&["bench", "memory"][..], &sizes, &limits].concat()).exits_with(0).json();
    let figures: Vec<_> =
        report["figures"].as_array().unwrap().iter().filter(|figure| figure["unit"] == "MiB").collect();
    assert_eq!((figures.len(), &report["checked"]), (3, &json!(true)), "{report}");
    // A process that had read all params would be above the limit.
    assert!(
        figures.iter().all(|figure| figure["max"].as_f64().is_some_and(|mib| (5.0..200.0).contains(&mib))),
        "{report}"
    );
}

/// All measurements, with few types and tasks.
#[test]
fn types_of_a_shared_group_are_measured() {
    let Some(fleet) = Fleet::new() else { return };
    let types = ["--types", "4", "--own", "2", "--partitions", "2", "--workers", "2", "--rounds", "1"];
    let load = ["--seconds", "1", "--rate", "50", "--flood", "1000", "--tasks", "3000", "-o", "json"];
    let report = fleet.run(&[&["bench", "types"][..], &types, &load].concat()).exits_with(0).json();
    assert_eq!(report["checked"], json!(true), "{report}");
    let figure = |name: &str| {
        let figures = report["figures"].as_array().unwrap();
        let found = figures.iter().find(|figure| figure["name"] == name);
        found.unwrap_or_else(|| panic!("{name}: {report}"))["median"].as_f64().unwrap()
    };
    let threads = |name: &str| figure(&format!("{name}: threads"));
    // One client and one poll loop for four types, against two of each for two types.
    assert!(threads("4 types in one group") < threads("2 types in groups of their own"), "{report}");
    assert!(figure("4 types in one group: connections") >= 1.0);
    assert!(figure("tasks of the others during the flood") > 0.0);
    assert!(figure("shared to own group") > 0.0);
    assert_eq!(figure("partitions of the restarted worker"), 4.0);
    assert_eq!(figure("repeated attempts"), 0.0);
}

/// The figures of speed are not checked: they depend on the machine.
#[test]
fn pages_of_the_ui_are_measured_against_their_budgets() {
    let Some(fleet) = Fleet::new() else { return };
    let sizes = ["--tasks", "300", "--reads", "20", "--tabs", "40", "--busy", "20", "--seconds", "2", "--changes", "3"];
    let report = fleet.run(&[&["bench", "ui"][..], &sizes, &["-o", "json"]].concat()).exits_with(0).json();
    let figures = report["figures"].as_array().unwrap();
    let budgets: Vec<_> = figures.iter().filter(|figure| figure["budget"].is_number()).collect();
    assert_eq!((budgets.len(), &report["checked"]), (9, &json!(true)), "{report}");
    assert!(
        figures.iter().any(|figure| figure["name"] == "refreshes of the tabs" && figure["median"] != 0.0),
        "{report}"
    );
    let page = budgets.iter().find(|figure| figure["name"] == "first page, compressed").unwrap();
    assert!(page["median"].as_f64() < page["budget"].as_f64(), "{page}");
}

/// A web service that is away for a while, called by real workers.
#[test]
fn outage_of_a_service_costs_few_attempts_and_no_task() {
    let Some(fleet) = Fleet::new() else { return };
    let outage = ["--away", "8", "--rate", "100", "--workers", "2", "--slots", "4", "-o", "json"];
    let report = fleet.run(&[&["bench", "overload"][..], &outage].concat()).exits_with(0).json();
    let figures = report["figures"].as_array().unwrap();
    let budgets: Vec<_> = figures.iter().filter(|figure| figure["budget"].is_number()).collect();
    assert_eq!((budgets.len(), &report["checked"]), (3, &json!(true)), "{report}");
    assert!(budgets.iter().all(|figure| figure["median"].as_f64() <= figure["budget"].as_f64()), "{report}");
    let failed = figures.iter().find(|figure| figure["name"] == "most failed attempts of a worker").unwrap();
    assert!(failed["median"].as_f64().unwrap() >= 5.0, "the service was away: {report}");
}

/// With a transaction that stays open, so that rows committed late are measured too.
#[test]
fn outbox_is_measured_beside_plain_inserts() {
    let Some(fleet) = Fleet::new() else { return };
    let Some(postgres) = kafleet_testkit::services::address("KAFLEET_TEST_POSTGRES").filter(|url| url != "none") else {
        return kafleet_testkit::services::skip("KAFLEET_TEST_POSTGRES is none");
    };
    let sizes = ["--rows", "2000", "--rounds", "1", "--seconds", "1", "--rate", "200", "--open-transaction"];
    let at = ["--postgres", &postgres, "-o", "json"];
    let report = fleet.run(&[&["bench", "outbox"][..], &sizes, &at].concat()).exits_with(0).json();
    assert!(report["checked"] == true && report["ratio"].as_f64().unwrap() > 0.0, "{report}");
    let figures = report["figures"].as_array().unwrap();
    let names: Vec<_> = figures.iter().map(|figure| figure["name"].as_str().unwrap()).collect();
    for name in ["committed and relayed", "committed without a relay", "commit to queued p50", "commit to queued p99"] {
        assert!(names.contains(&name), "{name}: {report}");
    }
    assert!(figures.iter().all(|figure| figure["median"].as_f64().unwrap() > 0.0), "{report}");
    let refused = ["--postgres", "postgres://nobody@127.0.0.1:1/none"];
    let ran = fleet.run(&[&["bench", "outbox"][..], &refused].concat()).exits_with(1);
    ran.stderr_has(&["cannot use Postgres for the benchmark"]);
}

/// A receiver that does not answer holds the callbacks of the others back no longer than its first calls.
#[test]
fn dead_receiver_is_measured_beside_nine_others() {
    let Some(fleet) = Fleet::new() else { return };
    let sizes = ["--rounds", "1", "--seconds", "3", "--rate", "100", "-o", "json"];
    let report = fleet.run(&[&["bench", "receivers"][..], &sizes].concat()).exits_with(0).json();
    assert_eq!((&report["checked"], report["figures"].as_array().unwrap().len()), (&json!(true), 6), "{report}");
    let longest = &report["figures"][2];
    assert_eq!(longest["name"], "delivered to the others, one is dead: max");
    // A call to the dead one takes 30 s.
    assert!(longest["max"].as_f64().unwrap() < 10_000.0, "{report}");
}

/// A call of 2 ms with up to 100 tasks is worth many with one, and a task whose calls fail takes no attempt of its neighbours.
#[test]
fn batches_are_measured_beside_single_calls() {
    let Some(fleet) = Fleet::new() else { return };
    let report = fleet.run(&["bench", "batch", "--tasks", "50000", "--rounds", "1", "-o", "json"]).exits_with(0).json();
    let figures = report["figures"].as_array().unwrap();
    let further = figures.iter().find(|figure| figure["name"] == "further attempts beside a bad task");
    assert_eq!((&report["checked"], &further.unwrap()["median"]), (&json!(true), &json!(0.0)), "{report}");
    assert!(report["ratio"].as_f64().unwrap() > 2.0, "{report}");
}

#[test]
fn app_is_measured_with_and_without_kafka() {
    let Some(fleet) = Fleet::new() else { return };
    let sizes = ["--tasks", "20000", "--rounds", "1", "--seconds", "1", "--slots", "10", "-o", "json"];
    let report = fleet.run(&[&["bench", "app"][..], &sizes].concat()).exits_with(0).json();
    let names: Vec<_> = report["figures"].as_array().unwrap().iter().map(|figure| figure["name"].clone()).collect();
    let of_budgets = ["worker rate", "worker CPU", "latency at 1000/s: median", "latency at 1000/s: p99"];
    let of_deaths = ["death known after: median", "memory per process: worker", "memory per process: app"];
    for name in of_budgets.into_iter().chain(of_deaths).chain(["loop rate", "loop CPU", "worker to loop"]) {
        assert!(names.contains(&json!(name)), "{name}: {report}");
    }
    assert!(report["checked"] == true && report["ratio"].as_f64().unwrap() > 0.0, "{report}");
}
