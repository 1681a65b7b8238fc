//! Every metric is documented and shown, and every alert has a heading in the runbook.

use std::collections::BTreeSet;

use super::{alerts, dashboard};

fn read(path: &str) -> String {
    std::fs::read_to_string(format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// Names of all metrics of this process.
fn registered() -> BTreeSet<String> {
    let files = ["lib.rs", "batches.rs", "otel/metrics.rs"].map(|file| read(&format!("crates/telemetry/src/{file}")));
    let source = files.concat();
    let names = source.split('"').filter(|text| text.starts_with("kafleet_") && *text != "kafleet_");
    names.filter(|text| !text.contains(' ')).map(str::to_owned).collect()
}

/// Names of metrics in PromQL, without the suffixes of histograms.
fn used(expr: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = expr.split(|c| !is_part(c)).filter(|word| word.starts_with("kafleet_"));
    let base = |word: &str| {
        ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word).to_owned()
    };
    words.map(base).collect()
}

#[test]
fn every_metric_is_documented() {
    let manual = read("docs/metrics.md");
    let names = registered();
    assert!(names.len() > 20, "{names:?}");
    let missing: Vec<_> = names.iter().filter(|name| !manual.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/metrics.md does not name {missing:?}");
}

#[test]
fn alerts_and_panels_use_all_metrics_and_no_unknown_ones() {
    let alerts = alerts::ALERTS.iter().flat_map(|alert| used(alert.expr));
    let shown: BTreeSet<String> = alerts.chain(dashboard::queries().flat_map(used)).collect();
    let registered = registered();
    let unknown: Vec<_> = shown.difference(&registered).collect();
    assert!(unknown.is_empty(), "not registered: {unknown:?}");
    // Shows only that the integrity check runs.
    let exceptions = ["kafleet_tracker_checked_records_total".to_owned()].into();
    let unseen: Vec<_> = registered.difference(&shown).filter(|name| !BTreeSet::contains(&exceptions, *name)).collect();
    assert!(unseen.is_empty(), "in no alert and no panel: {unseen:?}");
}

#[test]
fn every_alert_has_a_heading_in_the_runbook() {
    let runbook = read("docs/runbook.md");
    let headings: BTreeSet<&str> = runbook.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let missing: Vec<_> = alerts::ALERTS.iter().filter(|alert| !headings.contains(alert.name)).collect();
    assert!(missing.is_empty(), "docs/runbook.md lacks {missing:?}");
}
