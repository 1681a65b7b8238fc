//! What can be said of a schedule on the command line.

use clap::Args;

use crate::cli::exit::Failure;
use crate::cli::submit::{TaskArgs, json};
use crate::model::schedule::{Overlap, Spec, Template};
use crate::model::task::id::clip;
use crate::model::task::parse_time;
use crate::model::units::duration::Millis;
use crate::publish::time_text;

#[derive(Clone, Debug, Default, PartialEq, Args)]
pub struct SpecArgs {
    /// Minute, hour, day of month, month, day of week; six fields have seconds in front; @hourly, @daily, …
    #[arg(long, value_name = "FIELDS", conflicts_with = "every")]
    pub cron: Option<String>,
    /// Every so often, in whole seconds: 30s, 10m, 1d
    #[arg(long, value_name = "DURATION")]
    pub every: Option<Millis>,
    /// The zone of --cron, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE", conflicts_with = "every")]
    pub timezone: Option<String>,
    /// While the task before runs: skip, allow, buffer_one, replace [default: skip]
    #[arg(long, value_name = "POLICY", value_parser = overlap)]
    pub overlap: Option<Overlap>,
    /// What an outage has made older than this is not made up for [default: 1d]
    #[arg(long, value_name = "DURATION")]
    pub catch_up: Option<Millis>,
    /// Spread firings by up to so much
    #[arg(long, value_name = "DURATION")]
    pub jitter: Option<Millis>,
    /// Nothing before this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    pub start_at: Option<String>,
    /// Nothing at or after this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    pub end_at: Option<String>,
}

fn overlap(text: &str) -> Result<Overlap, String> {
    let all = [Overlap::Skip, Overlap::Allow, Overlap::BufferOne, Overlap::Replace];
    let names = all.map(|overlap| format!("`{}`", overlap.name())).join(", ");
    all.into_iter().find(|overlap| overlap.name() == text).ok_or_else(|| format!("`{}` is not one of {names}", clip(text)))
}

/// The params, if they are given.
pub fn set_params(spec: &mut Spec, params: Option<&str>) -> Result<(), Failure> {
    if let Some(params) = params {
        spec.task.params = json(params)?;
    }
    Ok(())
}

fn set<T>(place: &mut Option<T>, given: Option<T>) {
    if given.is_some() {
        *place = given;
    }
}

fn set_list<T>(place: &mut Vec<T>, given: Vec<T>) {
    if !given.is_empty() {
        *place = given;
    }
}

impl SpecArgs {
    /// Sets what is named.
    pub fn give(self, spec: &mut Spec) -> Result<(), Failure> {
        let time = |text: Option<String>| text.map(|text| parse_time(&text).map(time_text)).transpose().map_err(Failure::usage);
        if self.every.is_some() {
            (spec.cron, spec.timezone) = (None, None);
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

/// Sets what is named of its tasks.
pub fn give_task(args: TaskArgs, task: &mut Template) -> Result<(), Failure> {
    let (actions, checks) = (args.actions()?, args.checks()?);
    set(&mut task.key, args.key);
    set(&mut task.name, args.name);
    set(&mut task.creator, args.creator);
    set(&mut task.link, args.link);
    set(&mut task.options, args.options.as_deref().map(json).transpose()?);
    set(&mut task.expires, args.expires);
    set(&mut task.retries, args.retries);
    set(&mut task.min_backoff, args.min_backoff);
    set(&mut task.max_backoff, args.max_backoff);
    set(&mut task.timeout, args.timeout);
    set_list(&mut task.tags, args.tags);
    set_list(&mut task.actions, actions);
    set_list(&mut task.checks, checks);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        spec: SpecArgs,
        #[command(flatten)]
        task: TaskArgs,
    }

    #[test]
    fn what_is_not_named_stays() {
        let mut spec = Spec { cron: Some("0 3 * * *".into()), timezone: Some("Europe/Berlin".into()), ..Spec::default() };
        spec.task.tags = vec!["a".into()];
        let typed = Typed::parse_from([
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
        typed.spec.give(&mut spec).unwrap();
        give_task(typed.task, &mut spec.task).unwrap();
        assert_eq!((spec.when().as_str(), spec.overlap), ("0 3 * * * Europe/Berlin", Overlap::BufferOne));
        assert_eq!(
            (spec.task.retries, spec.task.tags.len(), spec.start_at.as_deref()),
            (Some(2), 1, Some("2026-01-31T12:00:00.000Z"))
        );
        assert_eq!((spec.task.min_backoff, spec.task.max_backoff), (None, Some(Millis::secs(300))));
        Typed::parse_from(["x", "--every", "10m"]).spec.give(&mut spec).unwrap();
        assert_eq!((spec.when().as_str(), spec.cron.is_some(), spec.timezone.is_some()), ("every 10m", false, false));
        let told = Typed::parse_from(["x", "--callback", "https://a", "--check", r#"{"after": "1h", "expect": ["succeeded"]}"#]);
        give_task(told.task, &mut spec.task).unwrap();
        Typed::parse_from(["x", "--name", "n"]).task.actions().unwrap();
        assert_eq!((spec.task.actions.len(), spec.task.checks.len(), spec.task.tags.len()), (1, 1, 1));
        assert!(overlap("both").unwrap_err().contains("`skip`, `allow`, `buffer_one`, `replace`"));
    }
}
