//! Checks of existing topics against the configuration.

use std::time::Duration;

use kafleet_broker::{BrokerClient, BrokerError, TopicInfo};
use kafleet_config::{Config, Names};
use kafleet_handlers::Registry;
use kafleet_runtime::error_text::split_hint;
use tokio::time::Instant;

use super::settings::{Kind, RequiredTopic, UnmetSetting};
use super::{ApplyError, FleetSettings, FleetSettingsError, find, required_topics};

const APPLY_HINT: &str = "run `kafleet topics apply`";
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
    pub message: String,
    pub hint: String,
}

impl std::fmt::Display for TopicFinding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}`: {}\n  hint: {}", self.subject, self.message, self.hint)
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
    for topic in required_topics(config, registry) {
        findings.extend(compare(&topic, find(&present, &topic.name), copies));
    }
    if find(&present, &names.control()).is_some() {
        let control = super::read_control(&client_in_time(), &names).await;
        findings.extend(fleet(control, find(&present, &names.events()), config, &names));
    }
    Ok(findings)
}

/// Compares one topic with its requirements. `copies`: highest replication of any topic; 0 skips the check of replication.
pub(super) fn compare(required: &RequiredTopic, info: Option<&TopicInfo>, copies: u32) -> Vec<TopicFinding> {
    let comparison = Comparison(required);
    match info {
        None => vec![comparison.finding(Severity::Error, "the topic does not exist".into(), APPLY_HINT)],
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
    let recorded = match control.and_then(|control| control.topology(names)) {
        Ok(topology) => topology.events_partitions,
        Err(error) => return Some(finding_of(names.control(), &error.to_string())),
    };
    let error = super::agree(events, Some(recorded), config.topics.events_partitions).err()?;
    let subject = if matches!(error, ApplyError::Changed { .. }) { names.events() } else { names.control() };
    Some(finding_of(subject, &error.to_string()))
}

/// Finding from an error text with its hint.
fn finding_of(subject: String, text: &str) -> TopicFinding {
    let (message, hint) = split_hint(text);
    TopicFinding {
        severity: Severity::Error,
        subject,
        message: message.to_owned(),
        hint: hint.unwrap_or(APPLY_HINT).to_owned(),
    }
}

struct Comparison<'a>(&'a RequiredTopic);

impl Comparison<'_> {
    fn finding(&self, severity: Severity, message: String, hint: &str) -> TopicFinding {
        TopicFinding { severity, subject: self.0.name.clone(), message, hint: hint.to_owned() }
    }

    fn findings(&self, info: &TopicInfo, copies: u32) -> Vec<TopicFinding> {
        let mut findings: Vec<_> = self.partitions(info).into_iter().chain(self.replication(info, copies)).collect();
        findings.extend(self.in_sync(info));
        findings.extend(self.0.unmet(info).into_iter().map(|unmet| self.setting(&unmet)));
        findings
    }

    /// Checks the number of partitions, except for the events topic, which is compared with the recorded number
    /// instead.
    fn partitions(&self, info: &TopicInfo) -> Option<TopicFinding> {
        let present = info.partitions;
        let configured = self.0.partitions;
        let few = present < configured && self.0.kind != Kind::Events;
        few.then(|| {
            self.finding(Severity::Warning, format!("{present} partitions, {configured} are configured"), APPLY_HINT)
        })
    }

    fn replication(&self, info: &TopicInfo, copies: u32) -> Option<TopicFinding> {
        let configured = self.0.replication.unwrap_or(copies.min(SAFE_REPLICATION));
        let message = || {
            format!("replication is {}, expected {configured}: the loss of a broker may lose records", info.replication)
        };
        let hint = "raise it with Kafka's `kafka-reassign-partitions.sh`";
        (info.replication < configured).then(|| self.finding(Severity::Warning, message(), hint))
    }

    /// Checks the number of replicas that must have a record against the number of replicas.
    fn in_sync(&self, info: &TopicInfo) -> Option<TopicFinding> {
        let in_sync: u32 = info.setting("min.insync.replicas")?.parse().ok()?;
        let replication = info.replication;
        let lower = "lower it with Kafka's `kafka-configs.sh`";
        if in_sync > replication {
            let message =
                format!("`min.insync.replicas` is {in_sync} of {replication} replicas: every record is refused");
            return Some(self.finding(Severity::Error, message, lower));
        }
        if in_sync == replication && replication > 1 {
            let message = format!(
                "`min.insync.replicas` is {in_sync} of {replication} replicas: records are refused while a broker is down"
            );
            return Some(self.finding(Severity::Warning, message, lower));
        }
        let message = "`min.insync.replicas` is 1: a record may be acknowledged with a single copy";
        let is_lonely = replication >= SAFE_REPLICATION && in_sync < 2;
        is_lonely.then(|| self.finding(Severity::Warning, message.into(), APPLY_HINT))
    }

    fn setting(&self, unmet: &UnmetSetting) -> TopicFinding {
        let UnmetSetting { setting, present, required } = unmet;
        let (present, expected) = (setting.readable(present), setting.readable(required));
        let message = format!("`{}` is `{present}`, expected `{expected}`: {}", setting.key, setting.consequence);
        self.finding(setting.severity(self.0.kind), message, APPLY_HINT)
    }
}
