//! Execution policy of a type: what follows from its settings.

use kafleet_model::retry::RetryPolicy;
use kafleet_model::task::Policy;
use kafleet_model::units::duration::Millis;

use super::{Bytes, Isolation, Order, TypePolicy};

/// Limit of failed attempts within a period, above which the type is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// Number of failed attempts within `period` that does not stop the type.
    pub max_failures: u32,
    /// Period in which failed attempts are counted.
    pub period: Millis,
}

/// Limits after which a child process is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildLimits {
    /// Number of attempts.
    pub tasks: u32,
    /// Memory limit; a process that holds more than half of it after an attempt is replaced.
    pub memory: Bytes,
}

impl TypePolicy {
    /// Error kinds that indicate an unavailable service: the default `trip_on` of types that call one.
    pub fn outage_kinds() -> Vec<String> {
        ["unreachable", "overloaded", "timeout"].map(str::to_owned).to_vec()
    }

    /// Concurrent attempts in this process.
    pub fn slots(&self) -> u32 {
        self.concurrency.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get() as u32))
    }

    /// Number of retries, and the waits between attempts.
    pub fn retry(&self) -> RetryPolicy {
        RetryPolicy {
            retries: self.retries,
            min_backoff: self.min_backoff,
            max_backoff: self.max_backoff,
            backoff_reset: self.backoff_reset,
        }
    }

    /// Number of failures that stops the type. `None`: no limit.
    pub fn alarm(&self) -> Option<Alarm> {
        self.max_failures.map(|max_failures| Alarm { max_failures, period: self.failure_period })
    }

    /// Limits of child processes; only with [`Isolation::Process`](super::Isolation).
    pub fn child_limits(&self) -> ChildLimits {
        ChildLimits { tasks: self.isolation_tasks, memory: self.isolation_memory }
    }

    /// Returns whether errors of a kind are retried, if it is in `retry_on` or `fail_on`. A name takes precedence over `*`.
    pub fn is_retried(&self, kind: &str) -> Option<bool> {
        let named = |list: &[String], name: &str| list.iter().any(|listed| listed == name);
        [kind, "*"].into_iter().find_map(|name| {
            (named(&self.fail_on, name).then_some(false)).or(named(&self.retry_on, name).then_some(true))
        })
    }

    /// Returns the first option of a task that contradicts an option of its type, and the reason. A shorter limit is no
    /// contradiction: it only ends the task earlier.
    pub fn contradiction(&self, policy: &Policy) -> Option<(&'static str, String)> {
        let min_backoff = policy.min_backoff.unwrap_or(self.min_backoff);
        let max_backoff = policy.max_backoff.unwrap_or(self.max_backoff);
        if (policy.min_backoff.is_some() || policy.max_backoff.is_some()) && min_backoff > max_backoff {
            let (field, hint) = match policy.min_backoff {
                Some(_) => ("min_backoff", "max_backoff"),
                None => ("max_backoff", "min_backoff"),
            };
            let reason = format!("`min_backoff` {min_backoff} is longer than `max_backoff` {max_backoff}");
            return Some((field, format!("{reason}, one of which is that of the type; give `{hint}` as well")));
        }
        let total_timeout = policy.total_timeout.or(self.total_timeout);
        let timeout = Some(policy.timeout.unwrap_or(self.timeout));
        let limits = [
            ("timeout", policy.timeout, "total_timeout", total_timeout),
            ("max_wait", policy.max_wait, "total_timeout", total_timeout),
            ("backoff_reset", policy.backoff_reset, "timeout", timeout),
        ];
        limits.into_iter().find_map(|(field, span, of, limit)| {
            let (span, limit) = span.zip(limit).filter(|(span, limit)| span > limit)?;
            Some((field, format!("`{span}` is longer than the `{of}` of the type, {limit}")))
        })
    }

    /// Contradictions of the policy in itself: key and reason.
    pub fn contradictions(&self) -> Vec<(&'static str, String)> {
        let limits = [
            ("min_backoff", Some(self.min_backoff), "max_backoff", self.max_backoff),
            ("stall_timeout", self.stall_timeout, "timeout", self.timeout),
            ("backoff_reset", self.backoff_reset, "timeout", self.timeout),
        ];
        let longer = limits.into_iter().filter_map(|(key, span, of, limit)| {
            let span = span.filter(|span| *span > limit)?;
            Some((key, format!("`{key}` {span} is longer than `{of}` {limit}")))
        });
        // The code of a Rust type may set one of the two, and the configuration the other.
        let masked = self.index.iter().filter(|pointer| is_masked(&self.mask, pointer));
        let masked =
            masked.map(|pointer| ("index", format!("`{pointer}` is in `mask` too: a masked value cannot be searched")));
        let key = self.unique.as_ref().and_then(|setting| setting.by.as_deref());
        let shown = key.filter(|pointer| is_masked(&self.mask, pointer));
        let shown = shown
            .map(|pointer| ("unique", format!("`{pointer}` is in `mask` too: ids of unique tasks show their key")));
        longer.chain(masked).chain(shown).chain(self.batch_problem()).collect()
    }

    /// Reason why the tasks of the type cannot run in batches, if `batch` is set: key and reason.
    fn batch_problem(&self) -> Option<(&'static str, String)> {
        let batch = self.batch.as_ref()?;
        if let Err(reason) = batch.check() {
            return Some(("batch", reason));
        }
        if self.order == Order::Partition {
            let reason =
                "order `partition` runs one task at a time, so that no batch forms: use order `key`, or remove `batch`";
            return Some(("batch", reason.into()));
        }
        (self.isolation == Isolation::Process).then(|| {
            (
                "batch",
                "attempts with `isolation = \"process\"` run one at a time in their processes: remove one of the two"
                    .into(),
            )
        })
    }
}

/// Returns whether a mask contains a pointer, or a value around it.
pub fn is_masked(mask: &[String], pointer: &str) -> bool {
    let contains = |rest: &str| rest.is_empty() || rest.starts_with('/');
    mask.iter().any(|masked| pointer.strip_prefix(masked.as_str()).is_some_and(contains))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TypeConfig;

    #[test]
    fn named_kind_takes_precedence_over_wildcard() {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let policy = |retry_on, fail_on| TypePolicy {
            retry_on: list(retry_on),
            fail_on: list(fail_on),
            ..TypePolicy::default()
        };
        for (policy, timeout, panic) in [
            (policy(&["timeout"], &["*"]), Some(true), Some(false)),
            (policy(&["*"], &["panic"]), Some(true), Some(false)),
            (policy(&[], &[]), None, None),
        ] {
            assert_eq!((policy.is_retried("timeout"), policy.is_retried("panic")), (timeout, panic), "{policy:?}");
        }
    }

    #[test]
    fn empty_list_switches_the_circuit_off() {
        let code = TypePolicy { trip_on: TypePolicy::outage_kinds(), ..TypePolicy::default() };
        let with = |trip_on| code.clone().with(&TypeConfig { trip_on, ..TypeConfig::default() }).trip_on;
        assert_eq!(with(None), ["unreachable", "overloaded", "timeout"]);
        assert_eq!(with(Some(vec!["busy".to_owned()])), ["busy"]);
        assert!(with(Some(Vec::new())).is_empty());
    }

    #[test]
    fn limits_of_a_task_that_the_type_makes_unreachable_are_contradictions() {
        let span = |secs| Some(Millis::secs(secs));
        let kind = TypePolicy { total_timeout: span(60), timeout: Millis::secs(30), ..TypePolicy::default() };
        for (own, field) in [
            (Policy { min_backoff: span(10), ..Policy::default() }, Some("min_backoff")),
            (Policy { max_backoff: Some(Millis(10)), ..Policy::default() }, Some("max_backoff")),
            (Policy { min_backoff: span(10), max_backoff: span(20), ..Policy::default() }, None),
            (Policy { timeout: span(61), ..Policy::default() }, Some("timeout")),
            (Policy { timeout: span(61), total_timeout: span(70), ..Policy::default() }, None),
            (Policy { timeout: span(60), ..Policy::default() }, None),
            (Policy { total_timeout: span(5), ..Policy::default() }, None),
            (Policy { max_wait: span(61), ..Policy::default() }, Some("max_wait")),
            (Policy { backoff_reset: span(31), ..Policy::default() }, Some("backoff_reset")),
            (Policy { backoff_reset: span(31), timeout: span(40), ..Policy::default() }, None),
            (Policy::default(), None),
        ] {
            assert_eq!(kind.contradiction(&own).map(|(field, _)| field), field, "{own:?}");
        }
    }

    #[test]
    fn masked_param_of_the_code_cannot_be_indexed() {
        let code = TypePolicy { mask: vec!["/card".into()], ..TypePolicy::default() };
        let index = |pointer: &str| TypeConfig { index: vec![pointer.to_owned()], ..TypeConfig::default() };
        for (pointer, is_refused) in [("/card", true), ("/card/number", true), ("/cards", false), ("/customer", false)]
        {
            let keys: Vec<_> =
                code.clone().with(&index(pointer)).contradictions().into_iter().map(|(key, _)| key).collect();
            assert_eq!(keys, ["index"][..usize::from(is_refused)], "{pointer}");
        }
    }

    #[test]
    fn batches_need_a_type_whose_tasks_run_side_by_side() {
        let batch = Some(crate::BatchPolicy::default());
        let with = |order, isolation| TypePolicy { batch: batch.clone(), order, isolation, ..TypePolicy::default() };
        for (policy, is_refused) in [
            (with(Order::None, Isolation::None), false),
            (with(Order::Key, Isolation::None), false),
            (with(Order::Partition, Isolation::None), true),
            (with(Order::None, Isolation::Process), true),
        ] {
            let keys: Vec<_> = policy.contradictions().into_iter().map(|(key, _)| key).collect();
            assert_eq!(keys, ["batch"][..usize::from(is_refused)], "{policy:?}");
        }
    }

    #[test]
    fn configuration_overrides_the_code() {
        let written = TypeConfig { failure_period: Some(Millis(5)), ..TypeConfig::default() };
        assert_eq!(TypePolicy::default().with(&written).alarm(), None, "a period alone is not a limit");
        let policy = TypePolicy { max_failures: Some(3), ..TypePolicy::default() }.with(&written);
        assert_eq!(policy.alarm(), Some(Alarm { max_failures: 3, period: Millis(5) }));
    }
}
