//! Checks of existing topics against the configuration.

use std::time::Duration;

use tokio::time::Instant;

use super::{ApplyError, FleetSettings, FleetSettingsError, find, specs};
use crate::broker::{BrokerClient, BrokerError, TopicInfo, TopicSpec};
use crate::config::{Config, Names};
use crate::error_text::split_hint;
use crate::handlers::Registry;
use crate::model::units::duration::Millis;

const APPLY: &str = "run `kafleet topics apply`";
/// Kafka's own topic, which has as many replicas as the cluster allows, up to 3.
const CLUSTER_TOPIC: &str = "__consumer_offsets";
const SAFE_REPLICATION: u32 = 3;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The fleet works, but is at risk or not as configured.
    Warning,
    /// The fleet does not work.
    Error,
}

/// Problem with a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicFinding {
    pub severity: Severity,
    /// Name of the topic.
    pub subject: String,
    pub what: String,
    pub hint: String,
}

impl std::fmt::Display for TopicFinding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}`: {}\n  hint: {}", self.subject, self.what, self.hint)
    }
}

/// Compares existing topics with the required ones. An empty list means no problems. Waits for at most `deadline`.
pub async fn check(
    client: &BrokerClient,
    config: &Config,
    registry: &Registry,
    deadline: Duration,
) -> Result<Vec<TopicFinding>, BrokerError> {
    let begun = Instant::now();
    let client_in_time = || client.with_deadline(deadline.saturating_sub(begun.elapsed()));
    let names = Names::of(config);
    let present = client_in_time().topics(&names.topics()).await?;
    let cluster = client_in_time().topics(CLUSTER_TOPIC).await?;
    let copies = present.iter().chain(&cluster).map(|info| info.replication).max().unwrap_or(1);
    let mut findings = Vec::new();
    for spec in specs(config, registry) {
        findings.extend(compare(&spec, spec.name == names.events(), find(&present, &spec.name), copies));
    }
    if find(&present, &names.control()).is_some() {
        let control = super::read_control(&client_in_time(), &names).await;
        findings.extend(fleet(control, find(&present, &names.events()), config, &names));
    }
    Ok(findings)
}

/// Compares one topic with its spec. `copies`: highest replication of any topic; 0 skips the check of replication.
pub(super) fn compare(spec: &TopicSpec, is_events: bool, info: Option<&TopicInfo>, copies: u32) -> Vec<TopicFinding> {
    let comparison = Comparison { spec, is_events };
    match info {
        None => vec![comparison.finding(Severity::Error, "the topic does not exist".into(), APPLY)],
        Some(info) => comparison.findings(info, copies),
    }
}

/// Compares the recorded number of events partitions with the topic and the configuration.
fn fleet(
    control: Result<FleetSettings, FleetSettingsError>,
    events: Option<&TopicInfo>,
    config: &Config,
    names: &Names,
) -> Option<TopicFinding> {
    let recorded = match control.and_then(|control| control.require_events_partitions(names)) {
        Ok(recorded) => recorded,
        Err(why) => return Some(finding_of(names.control(), &why.to_string())),
    };
    let why = super::agree(events, Some(recorded), config.topics.events_partitions).err()?;
    let subject = if matches!(why, ApplyError::Changed { .. }) { names.events() } else { names.control() };
    Some(finding_of(subject, &why.to_string()))
}

/// Finding from an error text with its hint.
fn finding_of(subject: String, text: &str) -> TopicFinding {
    let (what, hint) = split_hint(text);
    TopicFinding { severity: Severity::Error, subject, what: what.to_owned(), hint: hint.unwrap_or(APPLY).to_owned() }
}

struct Comparison<'a> {
    spec: &'a TopicSpec,
    is_events: bool,
}

impl Comparison<'_> {
    fn finding(&self, severity: Severity, what: String, hint: &str) -> TopicFinding {
        TopicFinding { severity, subject: self.spec.name.clone(), what, hint: hint.to_owned() }
    }

    fn findings(&self, info: &TopicInfo, copies: u32) -> Vec<TopicFinding> {
        let mut found: Vec<_> = self.partitions(info).into_iter().chain(self.replication(info, copies)).collect();
        found.extend(self.in_sync(info));
        for (key, wanted) in &self.spec.config {
            found.extend(self.setting(key, wanted, info.setting(key)));
        }
        found
    }

    /// Checks the number of partitions, except for the events topic, which is compared with the recorded number
    /// instead.
    fn partitions(&self, info: &TopicInfo) -> Option<TopicFinding> {
        let present = info.partitions;
        let wanted = self.spec.partitions;
        let few = present < wanted && !self.is_events;
        few.then(|| self.finding(Severity::Warning, format!("{present} partitions, {wanted} are configured"), APPLY))
    }

    fn replication(&self, info: &TopicInfo, copies: u32) -> Option<TopicFinding> {
        let wanted = self.spec.replication.unwrap_or(copies.min(SAFE_REPLICATION));
        let what =
            || format!("replication is {}, expected {wanted}: the loss of a broker may lose records", info.replication);
        let hint = "raise it with Kafka's `kafka-reassign-partitions.sh`";
        (info.replication < wanted).then(|| self.finding(Severity::Warning, what(), hint))
    }

    fn in_sync(&self, info: &TopicInfo) -> Option<TopicFinding> {
        let in_sync = info.setting("min.insync.replicas")?;
        let lonely = info.replication >= SAFE_REPLICATION && in_sync.parse::<u32>().is_ok_and(|number| number < 2);
        let what = "`min.insync.replicas` is 1: a record may be acknowledged with a single copy";
        lonely.then(|| self.finding(Severity::Warning, what.into(), APPLY))
    }

    fn setting(&self, key: &str, wanted: &str, present: Option<&str>) -> Option<TopicFinding> {
        if is_sufficient(key, wanted, present) {
            return None;
        }
        let present = present.map_or("not set".to_owned(), |present| format!("`{}`", readable(key, present)));
        let what = format!("`{key}` is {present}, expected `{}`{}", readable(key, wanted), self.consequence(key));
        Some(self.finding(self.severity(key), what, APPLY))
    }

    fn severity(&self, key: &str) -> Severity {
        match key {
            "retention.ms" if !self.is_events => Severity::Warning,
            _ => Severity::Error,
        }
    }

    fn consequence(&self, key: &str) -> &'static str {
        match key {
            "retention.ms" if self.is_events => ": the log loses events of trees that are still in the store",
            "retention.ms" => ": records are removed too early",
            "max.message.bytes" => ": large records are refused",
            "message.timestamp.type" => ": timestamps must be set by the broker",
            "cleanup.policy" => ": needed records are removed, or obsolete ones kept",
            _ => "",
        }
    }
}

/// Returns whether a setting meets its requirement: equal, or with more retention or a larger limit than required.
pub(super) fn is_sufficient(key: &str, wanted: &str, present: Option<&str>) -> bool {
    match key {
        "retention.ms" => present.is_some_and(|present| keeps(present, wanted)),
        "max.message.bytes" => present.is_some_and(|present| at_least(present, wanted)),
        "cleanup.policy" => same_policies(present.unwrap_or("delete"), wanted),
        _ => present == Some(wanted),
    }
}

/// Retention of -1 is unlimited.
fn keeps(present: &str, wanted: &str) -> bool {
    present == "-1" || at_least(present, wanted)
}

fn at_least(present: &str, wanted: &str) -> bool {
    present.parse::<i64>().ok() >= wanted.parse::<i64>().ok()
}

fn same_policies(present: &str, wanted: &str) -> bool {
    let sorted = |text: &str| {
        let mut names: Vec<_> = text.split(',').map(|name| name.trim().to_owned()).collect();
        names.sort();
        names
    };
    sorted(present) == sorted(wanted)
}

fn readable(key: &str, value: &str) -> String {
    match value.parse::<u64>() {
        Ok(span) if key == "retention.ms" => Millis(span).to_string(),
        Ok(bytes) if key == "max.message.bytes" => crate::config::Bytes(bytes).to_string(),
        _ => value.to_owned(),
    }
}
