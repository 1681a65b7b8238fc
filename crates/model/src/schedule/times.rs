//! Times at which a schedule fires: a pure function of its spec and the previous time.

use std::sync::LazyLock;

use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};

use super::cron::CronTimes;
use super::{Spec, SpecError};
use crate::task::id::clip;
use crate::task::parse_time;
use crate::units::duration::Millis;

/// Maximum jitter of a schedule.
pub const MAX_JITTER: Millis = Millis::secs(86_400);
const DEFAULT_ZONE: &str = "UTC";
const CRON_HINT: &str =
    "five fields: minute hour day-of-month month day-of-week, such as `0 3 * * MON-FRI`; six with seconds in front";

/// Time zones bundled with the build, so that all processes compute the same times regardless of the host's database.
static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// Time zone of this name.
pub fn time_zone(name: &str) -> Option<TimeZone> {
    ZONES.get(name).ok()
}

/// Names of all time zones, sorted.
pub fn zone_names() -> impl Iterator<Item = String> {
    ZONES.available().map(|name| name.to_string())
}

/// Parsed times of a schedule.
#[derive(Clone, Debug)]
pub struct Times {
    rule: Rule,
    /// Inclusive, epoch milliseconds.
    start_ms: Option<i64>,
    /// Exclusive.
    end_ms: Option<i64>,
    jitter: Millis,
}

#[derive(Clone, Debug)]
enum Rule {
    Cron(Box<CronTimes>),
    Every { ms: i64, anchor_ms: i64 },
}

impl Times {
    /// Parses the times of a spec, or returns all its invalid fields.
    pub fn of(spec: &Spec) -> Result<Self, Vec<SpecError>> {
        let mut errors = Vec::new();
        let start_ms = time("start_at", spec.start_at.as_deref(), &mut errors);
        let end_ms = time("end_at", spec.end_at.as_deref(), &mut errors);
        if start_ms.zip(end_ms).is_some_and(|(start, end)| end <= start) {
            errors.push(SpecError::new("end_at", "it is not after `start_at`"));
        }
        let jitter = spec.jitter.unwrap_or_default();
        if jitter > MAX_JITTER {
            errors.push(SpecError::new("jitter", format!("`{jitter}`: at most {MAX_JITTER} is allowed")));
        }
        let rule = rule(spec, start_ms, &mut errors);
        match rule {
            Some(rule) if errors.is_empty() => {
                let times = Self { rule, start_ms, end_ms, jitter };
                // Even the 29th of February recurs within a few years, so a rule without a first time never fires.
                let never = times.next_of_rule(Timestamp::UNIX_EPOCH.as_millisecond()).is_none();
                if never {
                    Err(vec![SpecError::new("cron", "it never fires: there is no such day")])
                } else {
                    Ok(times)
                }
            }
            _ => Err(errors),
        }
    }

    /// Rule in words: `at 03:00 every day`, `every 10 minutes`.
    pub(super) fn words(&self) -> String {
        match &self.rule {
            Rule::Cron(cron) => cron.words(),
            Rule::Every { ms, .. } => {
                let words = Millis(ms.unsigned_abs()).words();
                format!("every {}", words.strip_prefix("1 ").unwrap_or(&words))
            }
        }
    }

    /// First time after `after_ms`, epoch milliseconds; `None` if there is none.
    pub fn after(&self, after_ms: i64) -> Option<i64> {
        let floor = self.start_ms.map_or(after_ms, |start| after_ms.max(start - 1));
        self.next_of_rule(floor).filter(|time| self.end_ms.is_none_or(|end| *time < end))
    }

    /// Next times after `after_ms`, at most `most`.
    pub fn upcoming(&self, after_ms: i64, most: usize) -> Vec<i64> {
        std::iter::successors(self.after(after_ms), |time| self.after(*time)).take(most).collect()
    }

    /// Firing time of a scheduled time, with the jitter: the same for the same schedule.
    pub fn firing_time_ms(&self, schedule: &str, time_ms: i64) -> i64 {
        let spread = self.jitter.as_i64();
        if spread == 0 {
            return time_ms;
        }
        let later = fnv(schedule.bytes().chain(time_ms.to_le_bytes())) % (spread as u64 + 1);
        time_ms.saturating_add(later as i64)
    }

    /// Latest scheduled time that has certainly fired by `at_ms`.
    pub fn all_fired_at(&self, at_ms: i64) -> i64 {
        at_ms.saturating_sub(self.jitter.as_i64()).saturating_sub(1)
    }

    fn next_of_rule(&self, after_ms: i64) -> Option<i64> {
        match &self.rule {
            Rule::Every { ms, anchor_ms } => {
                let done = after_ms.checked_sub(*anchor_ms)?.div_euclid(*ms);
                anchor_ms.checked_add(done.checked_add(1)?.checked_mul(*ms)?)
            }
            Rule::Cron(cron) => Some(cron.next(Timestamp::from_millisecond(after_ms).ok()?)?.as_millisecond()),
        }
    }
}

fn rule(spec: &Spec, start_ms: Option<i64>, errors: &mut Vec<SpecError>) -> Option<Rule> {
    match (&spec.cron, spec.every) {
        (Some(_), Some(_)) => {
            errors.push(SpecError::new("every", "give `cron` or `every`, not both"));
            None
        }
        (None, None) => {
            errors.push(
                SpecError::new("cron", "it has neither `cron` nor `every`")
                    .hint("such as `cron = \"0 3 * * *\"` or `every = \"10m\"`"),
            );
            None
        }
        (Some(cron), None) => {
            let zone = zone(spec.timezone.as_deref().unwrap_or(DEFAULT_ZONE), errors);
            match CronTimes::parse(cron, zone.clone().unwrap_or(TimeZone::UTC)) {
                Ok(cron) => zone.map(|_| Rule::Cron(Box::new(cron))),
                Err(error) => {
                    let message = format!("`{}` is not a cron expression: {}", clip(cron), lower(&error));
                    errors.push(SpecError::new("cron", message).hint(CRON_HINT));
                    None
                }
            }
        }
        (None, Some(every)) => {
            if spec.timezone.is_some() {
                errors.push(
                    SpecError::new("timezone", "it is for `cron`: an interval is the same everywhere")
                        .hint("remove it"),
                );
            }
            let fits = every.0 >= 1_000 && every.0 % 1_000 == 0 && every <= MAX_EVERY;
            if !fits {
                errors.push(SpecError::new(
                    "every",
                    format!("`{every}` is not a number of whole seconds from 1s to {MAX_EVERY}"),
                ));
            }
            fits.then(|| Rule::Every { ms: every.as_i64(), anchor_ms: start_ms.unwrap_or(0).div_euclid(1_000) * 1_000 })
        }
    }
}

/// Maximum interval: about ten years.
const MAX_EVERY: Millis = Millis::secs(3_660 * 86_400);

fn time(at: &'static str, text: Option<&str>, errors: &mut Vec<SpecError>) -> Option<i64> {
    match parse_time(text?) {
        Ok(time) if Timestamp::from_millisecond(time).is_ok() => Some(time),
        Ok(_) => {
            errors.push(SpecError::new(at, "it is too far away"));
            None
        }
        Err(error) => {
            errors.push(SpecError::new(at, error));
            None
        }
    }
}

fn zone(name: &str, errors: &mut Vec<SpecError>) -> Option<TimeZone> {
    let zone = ZONES.get(name).ok();
    if zone.is_none() {
        let message = format!("`{}` is not a time zone", clip(name));
        errors.push(SpecError::new("timezone", message).hint("write its IANA name, such as `Europe/Berlin` or `UTC`"));
    }
    zone
}

/// Adapts a message of the cron parser to lower case without a full stop.
fn lower(text: &str) -> String {
    let text =
        text.trim_start_matches("Component error: ").trim_start_matches("Invalid pattern: ").trim_end_matches('.');
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

/// FNV-1a: small, and stable across builds.
fn fnv(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
