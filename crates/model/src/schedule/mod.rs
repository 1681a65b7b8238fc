//! Recurring schedules: [`times`] computes the times at which a schedule fires, [`step`] the decisions at those
//! times.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::json::RawJson;
use super::task::action::NotificationRules;
use super::task::continuation::check_continuations;
use super::task::document::{ScheduleFields, document};
use super::task::field::Scope;
use super::task::id::{TaskId, check_type, clip};
use super::task::{MAX_TEXT_CHARS, Policy, Rules};
use super::units::duration::Millis;

mod cron;
pub mod step;
mod times;

pub use times::{MAX_JITTER, Times, time_zone, zone_names};

/// Maximum length of a schedule's name, in characters.
pub const MAX_NAME_CHARS: usize = 96;
/// Maximum size of a schedule as JSON, in bytes: every worker reads past all schedules when it starts.
pub const MAX_SPEC_BYTES: usize = 16 << 10;
/// Default age up to which firings missed in an outage are caught up.
pub const CATCH_UP: Millis = Millis::secs(86_400);

/// Times at which a schedule fires, and the task created each time. Requires one of `cron` and `every`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ScheduleSpec")]
pub struct Spec {
    /// Five fields (minute, hour, day of month, month, day of week), or six with seconds in front; or `@hourly`, `@daily`,
    /// `@weekly`, `@monthly`, `@yearly`. `L`, `W` and `#` as usual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// Interval in whole seconds, counted from `start_at` or else from 1970-01-01T00:00:00Z: `every = "1h"` fires on
    /// the hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Millis>,
    /// Time zone of `cron` by its IANA name, such as `Europe/Berlin`. Default `UTC`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// No firing before this time (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_at: Option<String>,
    /// No firing at or after this time (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_at: Option<String>,
    /// Maximum random delay of each firing, always the same for the same schedule and time; at most 1d. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Millis>,
    #[serde(default)]
    pub overlap: Overlap,
    /// Maximum age of firings missed in an outage that are caught up. Default 1d.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catch_up: Option<Millis>,
    /// Task submitted by each firing.
    pub task: Template,
}

/// Behaviour when a schedule fires before the tree of its previous task has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// The new firing is skipped.
    #[default]
    Skip,
    /// Both tasks run.
    Allow,
    /// A single firing waits for the previous task to end; further ones are skipped.
    BufferOne,
    /// The previous task is cancelled.
    Replace,
}

impl Overlap {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Allow => "allow",
            Self::BufferOne => "buffer_one",
            Self::Replace => "replace",
        }
    }
}

/// Task template of a schedule: a task to submit, without the fields that each firing sets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
#[schemars(rename = "ScheduledTask")]
pub struct Template {
    #[serde(rename = "type")]
    pub task_type: String,
    #[serde(default)]
    pub params: RawJson,
    /// Ordering key; default: the task's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Time after the firing until which the task may start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Millis>,
    #[serde(flatten, skip_deserializing)]
    #[schemars(!skip_deserializing, with = "ScheduleFields")]
    pub policy: Policy,
}

document!(Template, Scope::Schedule, policy);

/// Owner of the schedules in kafleet.toml.
pub const CONFIG_OWNER: &str = "config";

/// Stored schedule: the value of `schedule/<name>` on the control topic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Schedule {
    pub v: u32,
    /// Time of writing, epoch milliseconds. For display only.
    #[serde(default)]
    pub at_ms: i64,
    /// Times up to this one do not fire. Set when the schedule is created or resumed, or its times change.
    pub from_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<SchedulePause>,
    /// Source that `kafleet schedules apply` has written it from: [`CONFIG_OWNER`], or `app/` and the name of an app. `None`:
    /// people manage it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Box<str>>,
    pub spec: Spec,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SchedulePause {
    #[serde(default)]
    pub at_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Name of the API token that made the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// Invalid field of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError {
    /// Path of the field from the spec on, such as `task/tags`.
    pub at: Cow<'static, str>,
    pub message: String,
    pub hint: Option<&'static str>,
}

impl SpecError {
    fn new(at: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { at: at.into(), message: message.into(), hint: None }
    }

    fn hint(self, hint: &'static str) -> Self {
        Self { hint: Some(hint), ..self }
    }
}

/// Checks the name of a schedule, which is the prefix of its tasks' ids.
pub fn check_name(name: &str) -> Result<(), String> {
    if name.len() <= MAX_NAME_CHARS && !name.contains(':') && TaskId::parse(name).is_ok() {
        return Ok(());
    }
    let allowed = format!("1 to {MAX_NAME_CHARS} characters of A-Z a-z 0-9 . _ ~ @ -, not `.` or `..`");
    Err(format!("`{}` cannot name a schedule: write {allowed}", clip(name)))
}

impl Spec {
    /// All invalid fields of the schedule.
    pub fn errors(&self) -> Vec<SpecError> {
        let mut errors = Times::of(self).err().unwrap_or_default();
        errors.extend(self.task.errors());
        let bytes = serde_json::to_vec(self).map_or(0, |text| text.len());
        if bytes > MAX_SPEC_BYTES {
            let message = format!("the schedule has {bytes} bytes: at most {MAX_SPEC_BYTES} are allowed");
            errors.push(SpecError::new("task", message).hint("put the data elsewhere and pass a link"));
        }
        errors
    }

    /// Returns true if another spec fires at the same times.
    pub fn same_times(&self, other: &Self) -> bool {
        let timing = |spec: &Self| {
            let Self { cron, every, timezone, start_at, end_at, jitter, .. } = spec.clone();
            (cron, every, timezone, start_at, end_at, jitter)
        };
        timing(self) == timing(other)
    }

    /// Times in words, such as `at 03:00 every day, Europe/Berlin`; `None` if they are not valid.
    pub fn words(&self) -> Option<String> {
        let rule = Times::of(self).ok()?.words();
        let zone = self.timezone.as_deref().unwrap_or("UTC");
        let jitter = self.jitter.filter(|jitter| jitter.as_i64() > 0);
        let later = jitter.map_or_else(String::new, |jitter| format!(", up to {} later", jitter.words()));
        Some(if self.cron.is_some() { format!("{rule}, {zone}{later}") } else { format!("{rule}{later}") })
    }

    /// Description of the times for display.
    pub fn when(&self) -> String {
        match (&self.cron, self.every) {
            (Some(cron), _) => format!("{cron} {}", self.timezone.as_deref().unwrap_or("UTC")),
            (None, Some(every)) => format!("every {every}"),
            (None, None) => String::new(),
        }
    }
}

impl Template {
    fn errors(&self) -> Vec<SpecError> {
        let mut errors = Vec::new();
        errors.extend(check_type(&self.task_type).err().map(|error| SpecError::new("task/type", error)));
        if self.key.as_ref().is_some_and(|key| key.chars().count() > MAX_TEXT_CHARS) {
            errors.push(SpecError::new("task/key", format!("it has more than {MAX_TEXT_CHARS} characters")));
        }
        let at_task = |field: &str| format!("task/{field}");
        errors.extend(self.policy.errors().into_iter().map(|(field, error)| SpecError::new(at_task(&field), error)));
        let rules = &self.policy.rules;
        errors.extend(flaws(rules));
        let at_a_time = |has_rules: &&NotificationRules<'_>| has_rules.checks.iter().any(|check| check.at.is_some());
        for has_rules in rules.all_rules().iter().filter(at_a_time) {
            let message = "`at` is a single time, but a schedule creates many tasks";
            let at = if has_rules.at.is_empty() { "task/checks" } else { "task/then" };
            errors.push(SpecError::new(at, message).hint("give `after`, which counts from each firing"));
        }
        errors
    }
}

/// Invalid continuations and notifications of a schedule's tasks.
fn flaws(rules: &Rules) -> Vec<SpecError> {
    let flaw = |at: &'static str, (field, error): (String, String)| {
        SpecError::new(at, format!("`{}`: {error}", field.trim_start_matches('/')))
    };
    let mut flaws = Vec::new();
    flaws.extend(check_continuations(&rules.then).err().map(|refusal| flaw("task/then", refusal)));
    let notifications = [("task/actions", &rules.actions[..], &[][..]), ("task/checks", &[][..], &rules.checks[..])];
    for (at, actions, checks) in notifications {
        let refusal = NotificationRules { at: String::new(), actions, checks }.check().err();
        flaws.extend(refusal.map(|refusal| flaw(at, refusal)));
    }
    flaws
}

/// Time as written in ids: `20261121T030000Z`, with milliseconds unless it is a whole second.
pub fn stamp(at_ms: i64) -> String {
    let Ok(time) = jiff::Timestamp::from_millisecond(at_ms) else { return at_ms.to_string() };
    let second = time.strftime("%Y%m%dT%H%M%S");
    match at_ms.rem_euclid(1_000) {
        0 => format!("{second}Z"),
        millis => format!("{second}.{millis:03}Z"),
    }
}

/// Task id of one firing: the same time gives the same task.
pub fn task_of(schedule: &str, time_ms: i64) -> String {
    format!("{schedule}.{}", stamp(time_ms))
}

/// Task id of a manually triggered run.
pub fn run_of(schedule: &str, request: &str) -> String {
    format!("{schedule}.run-{request}")
}

#[cfg(test)]
mod tests;
