//! Settings of topics on which the work depends, as the only table of them: `topics apply` sets them, `doctor` and each
//! role's readiness check them, and `docs/production.md` is generated from it.

use kafleet_broker::{TopicInfo, TopicSpec};
use kafleet_config::Bytes;
use kafleet_model::units::duration::Millis;

use super::check::Severity;

/// Maximum time until a segment of a compacted topic is closed, so that obsolete records are removed.
const MAX_SEGMENT: Millis = Millis::secs(7 * 86_400);
/// The same for the markers of outboxes, which a relay rewrites with each transaction and reads when it starts.
const MAX_OUTBOX_SEGMENT: Millis = Millis::secs(600);
/// Minimum time for which a tombstone remains, so that a reader of a compacted topic sees it.
const MIN_TOMBSTONES: Millis = Millis::secs(3_600);

/// Use of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Control,
    Events,
    Workers,
    Tasks,
    Dead,
    Results,
    Outbox,
}

impl Kind {
    const fn is_compacted(self) -> bool {
        matches!(self, Self::Control | Self::Workers | Self::Outbox)
    }

    /// Maximum time until a segment is closed; `None`: any.
    fn longest_segment(self) -> Option<Millis> {
        let longest = if self == Self::Outbox { MAX_OUTBOX_SEGMENT } else { MAX_SEGMENT };
        self.is_compacted().then_some(longest)
    }
}

/// Topic that a configuration requires.
#[derive(Clone, Debug)]
pub(super) struct RequiredTopic {
    pub name: String,
    pub kind: Kind,
    pub partitions: u32,
    pub replication: Option<u32>,
    /// `None`: any.
    pub retention: Option<Millis>,
    /// Size of the largest record, in bytes.
    pub max_bytes: u64,
}

/// Comparison of a setting with its required value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Equal,
    /// -1 means unlimited.
    AtLeast,
    AtMost,
    /// Words of a list, in any order.
    SameWords,
}

/// A setting of topics.
pub(super) struct TopicSetting {
    pub key: &'static str,
    /// Value of a topic without the setting, unless the broker reports another default.
    default: &'static str,
    /// Required value; `None`: any.
    required: fn(&RequiredTopic) -> Option<String>,
    rule: Rule,
    /// The setting is set when a topic is created. The others have good defaults, and some providers refuse to set them:
    /// they are set only if they are wrong.
    is_created: fn(Kind) -> bool,
    severity: fn(Kind) -> Severity,
    pub consequence: &'static str,
}

const ALWAYS: fn(Kind) -> bool = |_| true;
const NEVER: fn(Kind) -> bool = |_| false;
const ERROR: fn(Kind) -> Severity = |_| Severity::Error;
const WARNING: fn(Kind) -> Severity = |_| Severity::Warning;
/// A short log of events loses states for certain; other records may have been processed in time.
const OF_RETENTION: fn(Kind) -> Severity =
    |kind| if matches!(kind, Kind::Events) { Severity::Error } else { Severity::Warning };

/// All settings. Not listed are those that have no effect with these values, such as `message.timestamp.before.max.ms`.
pub(super) const SETTINGS: &[TopicSetting] = &[
    TopicSetting {
        key: "cleanup.policy",
        default: "delete",
        required: |topic| {
            let policy = match topic.kind {
                Kind::Control | Kind::Outbox => "compact",
                Kind::Workers => "compact,delete",
                Kind::Events | Kind::Tasks | Kind::Dead | Kind::Results => "delete",
            };
            Some(policy.to_owned())
        },
        rule: Rule::SameWords,
        is_created: ALWAYS,
        severity: ERROR,
        consequence: "needed records are removed, or obsolete ones kept",
    },
    TopicSetting {
        key: "retention.ms",
        default: "604800000",
        required: |topic| topic.retention.map(|span| span.as_i64().to_string()),
        rule: Rule::AtLeast,
        is_created: ALWAYS,
        severity: OF_RETENTION,
        consequence: "records are removed too early: tasks that have not run, events of trees that are still in the store",
    },
    TopicSetting {
        key: "retention.bytes",
        default: "-1",
        required: |topic| (!matches!(topic.kind, Kind::Control | Kind::Outbox)).then(|| "-1".to_owned()),
        rule: Rule::AtLeast,
        is_created: ALWAYS,
        severity: OF_RETENTION,
        consequence: "records are removed when the partition has grown to that size, whatever their age",
    },
    TopicSetting {
        key: "message.timestamp.type",
        default: "CreateTime",
        required: |_| Some("LogAppendTime".to_owned()),
        rule: Rule::Equal,
        is_created: ALWAYS,
        severity: ERROR,
        consequence: "the clock of each producer decides when records are removed or refused, and when tasks expire",
    },
    TopicSetting {
        key: "max.message.bytes",
        default: "1048588",
        required: |topic| Some(topic.max_bytes.to_string()),
        rule: Rule::AtLeast,
        is_created: ALWAYS,
        severity: ERROR,
        consequence: "large records are refused",
    },
    TopicSetting {
        key: "segment.bytes",
        default: "1073741824",
        required: |topic| Some(topic.max_bytes.to_string()),
        rule: Rule::AtLeast,
        is_created: NEVER,
        severity: ERROR,
        consequence: "larger records are refused",
    },
    TopicSetting {
        key: "segment.ms",
        default: "604800000",
        required: |topic| topic.kind.longest_segment().map(|span| span.as_i64().to_string()),
        rule: Rule::AtMost,
        is_created: |kind| matches!(kind, Kind::Outbox),
        severity: WARNING,
        consequence: "obsolete records are kept, and read by each process that starts",
    },
    TopicSetting {
        key: "delete.retention.ms",
        default: "86400000",
        required: |topic| topic.kind.is_compacted().then(|| MIN_TOMBSTONES.as_i64().to_string()),
        rule: Rule::AtLeast,
        is_created: NEVER,
        severity: WARNING,
        consequence: "a reader may miss that a command was removed",
    },
    TopicSetting {
        key: "unclean.leader.election.enable",
        default: "false",
        required: |_| Some("false".to_owned()),
        rule: Rule::Equal,
        is_created: NEVER,
        severity: WARNING,
        consequence: "acknowledged records are lost when a stale replica becomes the leader",
    },
    TopicSetting {
        key: "compression.type",
        default: "producer",
        required: |_| Some("producer".to_owned()),
        rule: Rule::Equal,
        is_created: NEVER,
        severity: WARNING,
        consequence: "the broker compresses each batch again",
    },
    TopicSetting {
        key: "remote.storage.enable",
        default: "false",
        required: |_| Some("false".to_owned()),
        rule: Rule::Equal,
        is_created: NEVER,
        severity: WARNING,
        consequence: "reads of older records wait for the remote storage, and fail with it",
    },
];

/// A setting with another value than required.
pub(super) struct UnmetSetting {
    pub setting: &'static TopicSetting,
    pub present: String,
    pub required: String,
}

impl RequiredTopic {
    /// Spec of the topic at its creation.
    pub(super) fn spec(&self) -> TopicSpec {
        let created = SETTINGS.iter().filter(|setting| (setting.is_created)(self.kind));
        let config = created.filter_map(|setting| Some((setting.key.to_owned(), setting.required_by(self)?))).collect();
        TopicSpec { name: self.name.clone(), partitions: self.partitions, replication: self.replication, config }
    }

    /// Spec that corrects the settings of an existing topic, and does not shorten a retention or reduce a limit.
    pub(super) fn correction(&self, present: &TopicInfo) -> TopicSpec {
        let unmet = self.unmet(present).into_iter().map(|unmet| (unmet.setting.key.to_owned(), unmet.required));
        TopicSpec { config: unmet.collect(), ..self.spec() }
    }

    /// Settings of a topic that do not meet the requirements.
    pub(super) fn unmet(&self, info: &TopicInfo) -> Vec<UnmetSetting> {
        let compare = |setting: &'static TopicSetting| {
            let required = setting.required_by(self)?;
            let present = info.setting(setting.key).unwrap_or(setting.default);
            let is_met = setting.rule.is_met(present, &required);
            (!is_met).then(|| UnmetSetting { setting, present: present.to_owned(), required })
        };
        SETTINGS.iter().filter_map(compare).collect()
    }
}

impl TopicSetting {
    /// Value required for a topic; `None`: any.
    pub(super) fn required_by(&self, topic: &RequiredTopic) -> Option<String> {
        (self.required)(topic)
    }

    pub(super) fn severity(&self, kind: Kind) -> Severity {
        (self.severity)(kind)
    }

    /// Formats a value for people.
    pub(super) fn readable(&self, value: &str) -> String {
        match value.parse::<u64>() {
            Ok(span) if self.key.ends_with(".ms") => Millis(span).to_string(),
            Ok(bytes) if self.key.ends_with(".bytes") => Bytes(bytes).to_string(),
            _ => value.to_owned(),
        }
    }
}

impl Rule {
    fn is_met(self, present: &str, required: &str) -> bool {
        let (present_value, required_value) = (present.parse::<i64>().ok(), required.parse::<i64>().ok());
        match self {
            Self::Equal => present == required,
            Self::AtLeast => {
                present_value == Some(-1) || (required_value != Some(-1) && present_value >= required_value)
            }
            Self::AtMost => present_value <= required_value,
            Self::SameWords => words(present) == words(required),
        }
    }
}

fn words(text: &str) -> Vec<&str> {
    let mut words: Vec<&str> = text.split(',').map(str::trim).collect();
    words.sort_unstable();
    words
}

/// Table of the settings in Markdown, with the values for each topic of a fleet with the defaults.
pub(super) fn markdown(topics: &[RequiredTopic]) -> String {
    let mut text = "| setting | value | otherwise |\n|---|---|---|\n".to_owned();
    for setting in SETTINGS {
        let mut values: Vec<(String, Vec<String>)> = Vec::new();
        for topic in topics {
            let Some(required) = setting.required_by(topic) else { continue };
            let value = format!("{}`{}`", setting.rule.prefix(&required), setting.readable(&required));
            let name = format!("{:?}", topic.kind).to_lowercase();
            match values.iter_mut().find(|(present, _)| *present == value) {
                Some((_, names)) => names.push(name),
                None => values.push((value, vec![name])),
            }
        }
        let all = values.iter().any(|(_, names)| names.len() == topics.len());
        let values = values
            .into_iter()
            .map(|(value, names)| if all { value } else { format!("{value} ({})", names.join(", ")) });
        let values: Vec<String> = values.collect();
        text.push_str(&format!("| `{}` | {} | {} |\n", setting.key, values.join("; "), setting.consequence));
    }
    text
}

impl Rule {
    fn prefix(self, required: &str) -> &'static str {
        match self {
            Self::AtLeast if required != "-1" => "at least ",
            Self::AtMost => "at most ",
            _ => "",
        }
    }
}
