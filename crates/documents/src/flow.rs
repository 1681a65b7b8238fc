//! Document of the flow of a type: tasks that come in and go out, and what becomes of its backlog.

use kafleet_model::units::number::grouped;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

/// Rates of a type over its last full minutes of log time, and the verdict on its backlog.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Flow")]
pub struct FlowDocument {
    /// Attempts that became due, a minute: tasks that became open, and retries. Scheduled tasks count when they are
    /// created.
    pub in_per_min: f64,
    /// Attempts that were finished, a minute: tasks that ended or were dropped, and attempts that are retried.
    pub out_per_min: f64,
    /// Number of queued and running tasks, at all levels. Scheduled, retrying and waiting tasks are not among them.
    pub backlog: u64,
    pub verdict: FlowVerdict,
    /// Estimated milliseconds until the backlog is empty, at these rates. Only while it is `draining`.
    #[serde(default)]
    pub drained_in_ms: Option<u64>,
    /// Start of the minutes that were measured.
    pub since: String,
    /// End of the minutes that were measured.
    #[serde(default)]
    pub until: String,
    /// Reason of the verdict `unknown`, and of `stalled` if no worker takes the type.
    #[serde(default)]
    pub reason: Option<String>,
}

/// Verdict on the backlog of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FlowVerdict {
    /// More comes in than goes out, in most of the minutes: the backlog will not drain.
    Growing,
    /// No attempt has been finished in the minutes, while tasks were queued, or no worker takes the queued tasks.
    Stalled,
    /// About as much comes in as goes out.
    Steady,
    /// More goes out than comes in.
    Draining,
    /// No task is queued.
    KeepingUp,
    /// The type is paused.
    Paused,
    /// The minutes do not show it, see `reason`.
    Unknown,
}

impl FlowVerdict {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Growing => "growing",
            Self::Stalled => "stalled",
            Self::Steady => "steady",
            Self::Draining => "draining",
            Self::KeepingUp => "keeping up",
            Self::Paused => "paused",
            Self::Unknown => "unknown",
        }
    }
}

impl FlowDocument {
    /// Change of the backlog, in tasks a minute.
    pub fn change_per_min(&self) -> f64 {
        self.in_per_min - self.out_per_min
    }

    /// Sentence such as `in 183, out 173 a minute: +10, will not drain`.
    pub fn text(&self) -> String {
        format!("in {}, out {} a minute: {}", rate(self.in_per_min), rate(self.out_per_min), self.verdict_text())
    }

    /// Verdict in a few words, such as `+10, will not drain`.
    pub fn verdict_text(&self) -> String {
        match (self.verdict, self.drained_in_ms, &self.reason) {
            (FlowVerdict::Growing, ..) => format!("+{}, will not drain", rate(self.change_per_min())),
            (FlowVerdict::Draining, Some(ms), _) => format!("drained in {}", about(ms)),
            (FlowVerdict::Unknown | FlowVerdict::Stalled, _, Some(reason)) => {
                format!("{}, {reason}", self.verdict.name())
            }
            (verdict, ..) => verdict.name().to_owned(),
        }
    }

    /// Time until the backlog is empty, such as `5 min`.
    pub fn drained_in_text(&self) -> Option<String> {
        self.drained_in_ms.map(about)
    }
}

/// Rate with one decimal below 10, and with thousands separators.
pub fn rate(rate: f64) -> String {
    let text = if rate < 10.0 { format!("{rate:.1}") } else { format!("{rate:.0}") };
    let whole = text.strip_suffix(".0").unwrap_or(&text);
    if rate >= 1_000.0 { grouped(whole) } else { whole.to_owned() }
}

/// Estimated duration in its largest unit, at least a second.
fn about(ms: u64) -> String {
    match ms {
        0..MINUTE_MS => format!("{} s", ms.div_ceil(1_000).max(1)),
        MINUTE_MS..HOUR_MS => format!("{} min", ms.div_ceil(MINUTE_MS)),
        HOUR_MS..DAY_MS => format!("{} h", ms.div_ceil(HOUR_MS)),
        _ => format!("{} d", ms.div_ceil(DAY_MS)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_states_rates_and_verdict() {
        let flow = |in_per_min, out_per_min, verdict, drained_in_ms| FlowDocument {
            in_per_min,
            out_per_min,
            backlog: 63,
            verdict,
            drained_in_ms,
            since: String::new(),
            until: String::new(),
            reason: Some("the type is new".into()),
        };
        let growing = flow(183.0, 173.2, FlowVerdict::Growing, None);
        assert_eq!(growing.text(), "in 183, out 173 a minute: +9.8, will not drain");
        assert_eq!(
            flow(2.0, 7.5, FlowVerdict::Draining, Some(270_000)).text(),
            "in 2, out 7.5 a minute: drained in 5 min"
        );
        assert_eq!(flow(0.0, 0.0, FlowVerdict::Unknown, None).verdict_text(), "unknown, the type is new");
        assert_eq!(flow(1.0, 1.0, FlowVerdict::KeepingUp, None).verdict_text(), "keeping up");
        assert_eq!([0.25, 9.96, 173.4, 6_000.0, 1_234_567.0].map(rate), ["0.2", "10", "173", "6,000", "1,234,567"]);
        assert_eq!([1, 59_001, 3_600_000, 90_000_000].map(about), ["1 s", "60 s", "1 h", "2 d"]);
    }
}
