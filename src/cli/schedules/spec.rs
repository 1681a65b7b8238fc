//! Arguments that describe a schedule.

use clap::Args;
use kafleet_model::schedule::{Overlap, Spec, Template};
use kafleet_model::task::id::clip;
use kafleet_model::task::parse_time;
use kafleet_model::units::duration::Millis;
use kafleet_model::units::time::time_text;

use crate::cli::exit::Failure;
use crate::cli::submit::{SCHEDULE, TaskArgs, json};

#[derive(Clone, Debug, Default, PartialEq, Args)]
pub(crate) struct SpecArgs {
    /// Cron expression: minute, hour, day of month, month, day of week; a sixth leading field is seconds; @hourly, …
    #[arg(long, value_name = "FIELDS", conflicts_with = "every")]
    pub cron: Option<String>,
    /// Interval in whole seconds: 30s, 10m, 1d
    #[arg(long, value_name = "DURATION")]
    pub every: Option<Millis>,
    /// Time zone of --cron, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE", conflicts_with = "every")]
    pub timezone: Option<String>,
    /// Policy while the previous task is running: skip, allow, buffer_one, replace [default: skip]
    #[arg(long, value_name = "POLICY", value_parser = overlap)]
    pub overlap: Option<Overlap>,
    /// Maximum age of times that are caught up after an outage [default: 1d]
    #[arg(long, value_name = "DURATION")]
    pub catch_up: Option<Millis>,
    /// Maximum random delay of each firing
    #[arg(long, value_name = "DURATION")]
    pub jitter: Option<Millis>,
    /// No firing before this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    pub start_at: Option<String>,
    /// No firing at or after this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    pub end_at: Option<String>,
}

fn overlap(text: &str) -> Result<Overlap, String> {
    let all = [Overlap::Skip, Overlap::Allow, Overlap::BufferOne, Overlap::Replace];
    let names = all.map(|overlap| format!("`{}`", overlap.name())).join(", ");
    all.into_iter()
        .find(|overlap| overlap.name() == text)
        .ok_or_else(|| format!("`{}` is not one of {names}", clip(text)))
}

/// Sets the params if they are given.
pub(super) fn set_params(spec: &mut Spec, params: Option<&str>) -> Result<(), Failure> {
    if let Some(params) = params {
        spec.task.params = json(params)?;
    }
    Ok(())
}

fn set<T>(field: &mut Option<T>, given: Option<T>) {
    if given.is_some() {
        *field = given;
    }
}

fn replace_list<T>(field: &mut Vec<T>, given: Vec<T>) {
    if !given.is_empty() {
        *field = given;
    }
}

impl SpecArgs {
    /// Overwrites the fields of a schedule whose options are given. `--cron` and `--every` replace each other.
    pub(crate) fn apply_to(self, spec: &mut Spec) -> Result<(), Failure> {
        let time = |text: Option<String>| {
            text.map(|text| parse_time(&text).map(time_text)).transpose().map_err(Failure::usage)
        };
        if self.every.is_some() {
            spec.cron = None;
            spec.timezone = None;
        }
        if self.cron.is_some() {
            spec.every = None;
        }
        set(&mut spec.cron, self.cron);
        set(&mut spec.every, self.every);
        set(&mut spec.timezone, self.timezone);
        set(&mut spec.catch_up, self.catch_up);
        set(&mut spec.jitter, self.jitter);
        set(&mut spec.start_at, time(self.start_at)?);
        set(&mut spec.end_at, time(self.end_at)?);
        spec.overlap = self.overlap.unwrap_or(spec.overlap);
        Ok(())
    }
}

/// Overwrites the fields of a schedule's tasks whose options are given. A list is replaced as a whole.
pub(super) fn apply_task_args(args: TaskArgs<SCHEDULE>, task: &mut Template) -> Result<(), Failure> {
    let actions = args.actions()?;
    let checks = args.checks()?;
    set(&mut task.key, args.key);
    set(&mut task.expires, args.expires);
    args.fields.changes()?.apply(&mut task.policy);
    replace_list(&mut task.policy.rules.actions, actions);
    replace_list(&mut task.policy.rules.checks, checks);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct TestCommand {
        #[command(flatten)]
        spec: SpecArgs,
        #[command(flatten)]
        task: TaskArgs<SCHEDULE>,
    }

    #[test]
    fn omitted_options_keep_their_values() {
        let mut spec =
            Spec { cron: Some("0 3 * * *".into()), timezone: Some("Europe/Berlin".into()), ..Spec::default() };
        spec.task.policy.tags = vec!["a".into()];
        let typed = TestCommand::parse_from([
            "x",
            "--overlap",
            "buffer_one",
            "--retries",
            "2",
            "--max-backoff",
            "5m",
            "--start-at",
            "2026-01-31T13:00:00+01:00",
        ]);
        typed.spec.apply_to(&mut spec).unwrap();
        apply_task_args(typed.task, &mut spec.task).unwrap();
        assert_eq!((spec.when().as_str(), spec.overlap), ("0 3 * * * Europe/Berlin", Overlap::BufferOne));
        assert_eq!(
            (spec.task.policy.retries, spec.task.policy.tags.len(), spec.start_at.as_deref()),
            (Some(2), 1, Some("2026-01-31T12:00:00.000Z"))
        );
        assert_eq!((spec.task.policy.min_backoff, spec.task.policy.max_backoff), (None, Some(Millis::secs(300))));
        TestCommand::parse_from(["x", "--every", "10m"]).spec.apply_to(&mut spec).unwrap();
        assert_eq!((spec.when().as_str(), spec.cron.is_some(), spec.timezone.is_some()), ("every 10m", false, false));
        let notified = TestCommand::parse_from([
            "x",
            "--callback",
            "https://a",
            "--check",
            r#"{"after": "1h", "expect": ["succeeded"]}"#,
        ]);
        apply_task_args(notified.task, &mut spec.task).unwrap();
        TestCommand::parse_from(["x", "--name", "n"]).task.actions().unwrap();
        assert_eq!(
            (spec.task.policy.rules.actions.len(), spec.task.policy.rules.checks.len(), spec.task.policy.tags.len()),
            (1, 1, 1)
        );
        assert!(overlap("both").unwrap_err().contains("`skip`, `allow`, `buffer_one`, `replace`"));
    }
}
