//! Recurring schedules: when tasks are due, and what is done about it. [`times`] says when, [`step`] decides.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::task::action::{Action, Check, NotificationRules};
use super::task::continuation::{Continuation, check_thens};
use super::task::id::{TaskId, check_type, clip};
use super::task::{MAX_RETRIES, MAX_TEXT_CHARS, Rules, check_tags};
use super::units::duration::Millis;

pub mod step;
mod times;

pub use times::{MAX_JITTER, Times};

/// The longest name of a schedule.
pub const MAX_NAME_CHARS: usize = 96;
/// The largest schedule, in bytes of JSON: every worker reads past it when it starts.
pub const MAX_SPEC_BYTES: usize = 16 << 10;
/// Firings missed in an outage that are made up for, unless the schedule says otherwise.
pub const CATCH_UP: Millis = Millis::secs(86_400);

/// When a schedule fires, and which task it makes. One of `cron` and `every`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ScheduleSpec")]
pub struct Spec {
    /// Five fields (minute, hour, day of month, month, day of week), or six with seconds in front; or `@hourly`, `@daily`,
    /// `@weekly`, `@monthly`, `@yearly`. `L`, `W` and `#` as usual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// Every so often, in whole seconds, counted from `start_at`, or else from 1970-01-01T00:00:00Z: `every = "1h"` is on the hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Millis>,
    /// The zone that `cron` is read in, by its IANA name, such as `Europe/Berlin`. Default `UTC`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// Nothing before this time (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_at: Option<String>,
    /// Nothing at or after this time (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_at: Option<String>,
    /// Each firing comes up to so much later, always by the same for the same schedule and time; at most 1d. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Millis>,
    #[serde(default)]
    pub overlap: Overlap,
    /// What was missed in an outage is made up for if it is not older than this. Default 1d.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catch_up: Option<Millis>,
    /// What is submitted each time.
    pub task: Template,
}

/// What happens at a time when the task before has not ended, with everything below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// This time is left out.
    #[default]
    Skip,
    /// Both run.
    Allow,
    /// One firing waits for that end; further ones are left out.
    BufferOne,
    /// The one before is cancelled.
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

/// The task of a schedule: as a task that is submitted, without what each firing has of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ScheduledTask")]
pub struct Template {
    #[serde(rename = "type")]
    pub task_type: String,
    #[serde(default)]
    pub params: Value,
    /// Ordering key; default: the task's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Default: `schedule/` and the schedule's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creator: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// A JSON object; `schedule` and `scheduled_for` are added to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<Value>,
    /// Not to be started later than so long after it was fired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_backoff: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_backoff: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Millis>,
    /// The first failed child that `max_failed` does not allow cancels everything still open below, and the task itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fail_fast: bool,
    /// So many children may fail without failing the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_failed: Option<u32>,
    /// What follows it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub then: Vec<Continuation>,
    /// What is done when it comes into a state; at most 8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<Action>,
    /// Looks at its state at a time; at most 8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
}

/// A schedule as it is kept: the value of `schedule/<name>` on the control topic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Schedule {
    pub v: u32,
    /// When this was written, epoch milliseconds, for people.
    #[serde(default)]
    pub at_ms: i64,
    /// Only times after this are fired: when it was made, resumed, or given other times.
    pub from_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Paused>,
    /// It comes from a configuration file, by `kafleet schedules apply`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub applied: bool,
    pub spec: Spec,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "SchedulePause")]
pub struct Paused {
    #[serde(default)]
    pub at_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Something that a schedule cannot have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// Keys from the spec on, such as `task/tags`.
    pub at: &'static str,
    pub what: String,
    pub hint: Option<&'static str>,
}

impl Flaw {
    fn new(at: &'static str, what: impl Into<String>) -> Self {
        Self { at, what: what.into(), hint: None }
    }

    fn hint(self, hint: &'static str) -> Self {
        Self { hint: Some(hint), ..self }
    }
}

/// The name of a schedule is the beginning of its tasks' ids.
pub fn check_name(name: &str) -> Result<(), String> {
    if name.len() <= MAX_NAME_CHARS && !name.contains(':') && TaskId::parse(name).is_ok() {
        return Ok(());
    }
    let allowed = format!("1 to {MAX_NAME_CHARS} characters of A-Z a-z 0-9 . _ ~ @ -");
    Err(format!("`{}` cannot name a schedule: write {allowed}", clip(name)))
}

impl Spec {
    /// Everything that is wrong with it.
    pub fn flaws(&self) -> Vec<Flaw> {
        let mut flaws = Times::of(self).err().unwrap_or_default();
        flaws.extend(self.task.flaws());
        let bytes = serde_json::to_vec(self).map_or(0, |text| text.len());
        if bytes > MAX_SPEC_BYTES {
            let what = format!("the schedule has {bytes} bytes: at most {MAX_SPEC_BYTES} are allowed");
            flaws.push(Flaw::new("task", what).hint("put the data elsewhere and pass a link"));
        }
        flaws
    }

    /// Whether another spec has the same times.
    pub fn same_times(&self, other: &Self) -> bool {
        let timing = |spec: &Self| {
            let Self { cron, every, timezone, start_at, end_at, jitter, .. } = spec.clone();
            (cron, every, timezone, start_at, end_at, jitter)
        };
        timing(self) == timing(other)
    }

    /// When it fires, for people.
    pub fn when(&self) -> String {
        match (&self.cron, self.every) {
            (Some(cron), _) => format!("{cron} {}", self.timezone.as_deref().unwrap_or("UTC")),
            (None, Some(every)) => format!("every {every}"),
            (None, None) => String::new(),
        }
    }
}

impl Template {
    fn flaws(&self) -> Vec<Flaw> {
        let mut flaws = Vec::new();
        flaws.extend(check_type(&self.task_type).err().map(|why| Flaw::new("task/type", why)));
        flaws.extend(check_tags(&self.tags).err().map(|why| Flaw::new("task/tags", why)));
        let texts =
            [("task/key", &self.key), ("task/name", &self.name), ("task/creator", &self.creator), ("task/link", &self.link)];
        for (at, text) in texts {
            if text.as_ref().is_some_and(|text| text.chars().count() > MAX_TEXT_CHARS) {
                flaws.push(Flaw::new(at, format!("it has more than {MAX_TEXT_CHARS} characters")));
            }
        }
        if self.options.as_ref().is_some_and(|options| !options.is_object()) {
            flaws.push(Flaw::new("task/options", "it must be an object"));
        }
        if self.retries.is_some_and(|retries| retries > MAX_RETRIES) {
            flaws.push(Flaw::new("task/retries", format!("at most {MAX_RETRIES} retries are allowed")));
        }
        if self.timeout == Some(Millis(0)) {
            flaws.push(Flaw::new("task/timeout", "an attempt needs some time"));
        }
        if self.min_backoff.zip(self.max_backoff).is_some_and(|(min, max)| min > max) {
            flaws.push(Flaw::new("task/min_backoff", "it is longer than `max_backoff`"));
        }
        let told = |(at, why): (String, String)| format!("`{}`: {why}", at.trim_start_matches('/'));
        flaws.extend(check_thens(&self.then).err().map(|flaw| Flaw::new("task/then", told(flaw))));
        let tells = [("task/actions", &self.actions[..], &[][..]), ("task/checks", &[][..], &self.checks[..])];
        for (at, actions, checks) in tells {
            let flaw = NotificationRules { at: String::new(), actions, checks }.check().err();
            flaws.extend(flaw.map(|flaw| Flaw::new(at, told(flaw))));
        }
        let rules = self.rules();
        for tells in rules.all_tells().iter().filter(|tells| tells.checks.iter().any(|check| check.at.is_some())) {
            let what = "`at` is one time, and the schedule makes many tasks";
            let at = if tells.at.is_empty() { "task/checks" } else { "task/then" };
            flaws.push(Flaw::new(at, what).hint("give `after`: so long after each firing"));
        }
        flaws
    }

    /// The rules of its tasks.
    pub fn rules(&self) -> Rules {
        Rules {
            options: self.options.clone(),
            fail_fast: self.fail_fast,
            max_failed: self.max_failed,
            then: self.then.clone(),
            actions: self.actions.clone(),
            checks: self.checks.clone(),
            ..Rules::default()
        }
    }
}

/// A time as it is written in ids: `20261121T030000Z`, with milliseconds where it is not a whole second.
pub fn stamp(at_ms: i64) -> String {
    let Ok(time) = jiff::Timestamp::from_millisecond(at_ms) else { return at_ms.to_string() };
    let second = time.strftime("%Y%m%dT%H%M%S");
    match at_ms.rem_euclid(1_000) {
        0 => format!("{second}Z"),
        millis => format!("{second}.{millis:03}Z"),
    }
}

/// The task of one firing: the same time is the same task.
pub fn task_of(schedule: &str, time_ms: i64) -> String {
    format!("{schedule}.{}", stamp(time_ms))
}

/// The task of a run that was asked for.
pub fn run_of(schedule: &str, ask: &str) -> String {
    format!("{schedule}.run-{ask}")
}

#[cfg(test)]
mod tests;
