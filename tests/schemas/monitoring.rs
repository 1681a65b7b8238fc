//! Alerts and the dashboard in the helm chart are those of this build.

use std::path::Path;

use kafleet::telemetry::{alerts, dashboard};

/// Compares a file of the chart with its expected content, or writes it if `KAFLEET_UPDATE` is set.
fn check(name: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("helm/kafleet/files").join(name);
    if std::env::var_os("KAFLEET_UPDATE").is_some() {
        std::fs::write(&path, expected).unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(text == expected, "{} is out of date: run the test with KAFLEET_UPDATE=1", path.display());
}

#[test]
fn alerts_of_the_chart_are_current() {
    check("alerts.yaml", &alerts::rules("docs/runbook.md"));
}

#[test]
fn dashboard_of_the_chart_is_current() {
    check("dashboard.json", &format!("{:#}\n", dashboard::dashboard()));
}
