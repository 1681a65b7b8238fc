//! Execution policy of a type.

use super::{Bytes, Isolation, OnError, Order, ProgramVariables, Rate, TypeConfig};
use crate::model::retry::{DEFAULT_MAX_WAIT, RetryPolicy};
use crate::model::task::Policy;
use crate::model::units::duration::Millis;

/// Execution policy of a type: the settings of its code, overridden by `[types.<name>]`.
#[derive(Clone, Debug, PartialEq)]
pub struct TypePolicy {
    /// Concurrent attempts per worker. `None`: the number of cores; see [`TypePolicy::slots`].
    pub concurrency: Option<u32>,
    /// Concurrent attempts in all workers together.
    pub max_concurrency: Option<u32>,
    /// Limit of started attempts in all workers together. `None`: no limit.
    pub rate: Option<Rate>,
    /// Order in which tasks run.
    pub order: Order,
    /// Number of retries, and the waits between attempts.
    pub retry: RetryPolicy,
    /// Time after the first wait of a run from which on waits count as attempts.
    pub max_wait: Millis,
    /// Time limit of one attempt.
    pub timeout: Millis,
    /// Time limit of all attempts and waits together, from the task's creation.
    pub total_timeout: Option<Millis>,
    /// Time limit without progress, log line or heartbeat.
    pub stall_timeout: Option<Millis>,
    /// Consequence of a failed attempt.
    pub on_error: OnError,
    /// Kinds of errors that are retried or final, whatever the handler says.
    pub kinds: ErrorKinds,
    /// Number of failures that stops the type. `None`: no limit.
    pub alarm: Option<Alarm>,
    /// Kinds of errors that open the circuit of the type. Empty: the type has none.
    pub trip_on: Vec<String>,
    /// Names of headers of the task's record that are kept for the handler.
    pub keep_headers: Vec<String>,
    /// Isolation of attempts from each other.
    pub isolation: Isolation,
    /// Limits of child processes; only with [`Isolation::Process`].
    pub child_limits: ChildLimits,
    /// Environment variables of child processes.
    pub variables: ProgramVariables,
    /// Whether results are published to the type's results topic.
    pub publish_results: bool,
}

/// Kinds of errors that are retried or final, overriding the handler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorKinds {
    /// Kinds retried even if the handler declares them final; `*` is any kind not named.
    pub retry_on: Vec<String>,
    /// Kinds that are final even if the handler would retry them; `*` is any kind not named.
    pub fail_on: Vec<String>,
}

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

impl Alarm {
    /// Default period, 10 s.
    pub const PERIOD: Millis = Millis::secs(10);
}

impl Default for ChildLimits {
    fn default() -> Self {
        Self { tasks: 1_000, memory: Bytes(512 << 20) }
    }
}

impl ErrorKinds {
    /// Returns whether errors of a kind are retried, if it is listed. A name takes precedence over `*`.
    pub fn verdict(&self, kind: &str) -> Option<bool> {
        let named = |list: &[String], name: &str| list.iter().any(|known| known == name);
        [kind, "*"].into_iter().find_map(|name| {
            (named(&self.fail_on, name).then_some(false)).or(named(&self.retry_on, name).then_some(true))
        })
    }
}

impl Default for TypePolicy {
    fn default() -> Self {
        Self {
            concurrency: None,
            max_concurrency: None,
            rate: None,
            order: Order::None,
            retry: RetryPolicy::default(),
            max_wait: DEFAULT_MAX_WAIT,
            timeout: Millis::secs(120),
            total_timeout: None,
            stall_timeout: None,
            on_error: OnError::Retry,
            kinds: ErrorKinds::default(),
            alarm: None,
            trip_on: Vec::new(),
            keep_headers: Vec::new(),
            isolation: Isolation::None,
            child_limits: ChildLimits::default(),
            variables: ProgramVariables::default(),
            publish_results: false,
        }
    }
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

    /// Returns the policy with the values of another one that can change while a worker runs.
    pub fn reloaded(&self, new: &Self) -> Self {
        Self {
            concurrency: new.concurrency,
            max_concurrency: new.max_concurrency,
            rate: new.rate,
            retry: new.retry,
            max_wait: new.max_wait,
            timeout: new.timeout,
            total_timeout: new.total_timeout,
            stall_timeout: new.stall_timeout,
            on_error: new.on_error,
            kinds: new.kinds.clone(),
            alarm: new.alarm,
            trip_on: new.trip_on.clone(),
            order: self.order,
            keep_headers: self.keep_headers.clone(),
            isolation: self.isolation,
            child_limits: self.child_limits,
            variables: self.variables.clone(),
            publish_results: self.publish_results,
        }
    }

    /// Returns the first option of a task that contradicts an option of its type, and the reason. A shorter limit is no
    /// contradiction: it only ends the task earlier.
    pub fn contradiction(&self, own: &Policy) -> Option<(&'static str, String)> {
        let min_backoff = own.min_backoff.unwrap_or(self.retry.min_backoff);
        let max_backoff = own.max_backoff.unwrap_or(self.retry.max_backoff);
        if (own.min_backoff.is_some() || own.max_backoff.is_some()) && min_backoff > max_backoff {
            let (field, hint) = match own.min_backoff {
                Some(_) => ("min_backoff", "max_backoff"),
                None => ("max_backoff", "min_backoff"),
            };
            let why = format!("`min_backoff` {min_backoff} is longer than `max_backoff` {max_backoff}");
            return Some((field, format!("{why}, one of which is that of the type; give `{hint}` as well")));
        }
        let total_timeout = own.total_timeout.or(self.total_timeout);
        let timeout = Some(own.timeout.unwrap_or(self.timeout));
        let limits = [
            ("timeout", own.timeout, "total_timeout", total_timeout),
            ("max_wait", own.max_wait, "total_timeout", total_timeout),
            ("backoff_reset", own.backoff_reset, "timeout", timeout),
        ];
        limits.into_iter().find_map(|(field, span, of, limit)| {
            let (span, limit) = span.zip(limit).filter(|(span, limit)| span > limit)?;
            Some((field, format!("`{span}` is longer than the `{of}` of the type, {limit}")))
        })
    }

    /// Contradictions of the policy in itself: key and reason.
    pub fn contradictions(&self) -> Vec<(&'static str, String)> {
        let RetryPolicy { min_backoff, max_backoff, backoff_reset, .. } = self.retry;
        let limits = [
            ("min_backoff", Some(min_backoff), "max_backoff", max_backoff),
            ("stall_timeout", self.stall_timeout, "timeout", self.timeout),
            ("backoff_reset", backoff_reset, "timeout", self.timeout),
        ];
        let longer = limits.into_iter().filter_map(|(key, span, of, limit)| {
            let span = span.filter(|span| *span > limit)?;
            Some((key, format!("`{key}` {span} is longer than `{of}` {limit}")))
        });
        longer.collect()
    }

    /// Overrides the policy with the values that are set in a section of the configuration.
    pub fn with(self, config: &TypeConfig) -> Self {
        let non_empty = |set: &Vec<String>, own: Vec<String>| if set.is_empty() { own } else { set.clone() };
        let period = config.failure_period.or(self.alarm.map(|alarm| alarm.period)).unwrap_or(Alarm::PERIOD);
        let max_failures = config.max_failures.or(self.alarm.map(|alarm| alarm.max_failures));
        Self {
            concurrency: config.concurrency.or(self.concurrency),
            max_concurrency: config.max_concurrency.or(self.max_concurrency),
            rate: config.rate.or(self.rate),
            order: config.order.unwrap_or(self.order),
            retry: RetryPolicy {
                retries: config.retries.unwrap_or(self.retry.retries),
                min_backoff: config.min_backoff.unwrap_or(self.retry.min_backoff),
                max_backoff: config.max_backoff.unwrap_or(self.retry.max_backoff),
                backoff_reset: config.backoff_reset.or(self.retry.backoff_reset),
            },
            max_wait: config.max_wait.unwrap_or(self.max_wait),
            timeout: config.timeout.unwrap_or(self.timeout),
            total_timeout: config.total_timeout.or(self.total_timeout),
            stall_timeout: config.stall_timeout.or(self.stall_timeout),
            on_error: config.on_error.unwrap_or(self.on_error),
            kinds: ErrorKinds {
                retry_on: non_empty(&config.retry_on, self.kinds.retry_on),
                fail_on: non_empty(&config.fail_on, self.kinds.fail_on),
            },
            alarm: max_failures.map(|max_failures| Alarm { max_failures, period }),
            trip_on: config.trip_on.clone().unwrap_or(self.trip_on),
            keep_headers: non_empty(&config.keep_headers, self.keep_headers),
            isolation: config.isolation.unwrap_or(self.isolation),
            child_limits: ChildLimits {
                tasks: config.isolation_tasks.unwrap_or(self.child_limits.tasks),
                memory: config.isolation_memory.unwrap_or(self.child_limits.memory),
            },
            variables: if config.variables().is_default() { self.variables } else { config.variables() },
            publish_results: config.publish_results || self.publish_results,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_kind_takes_precedence_over_wildcard() {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let kinds = ErrorKinds { retry_on: list(&["timeout"]), fail_on: list(&["*"]) };
        assert_eq!(["timeout", "panic"].map(|kind| kinds.verdict(kind)), [Some(true), Some(false)]);
        let kinds = ErrorKinds { retry_on: list(&["*"]), fail_on: list(&["panic"]) };
        assert_eq!(["timeout", "panic"].map(|kind| kinds.verdict(kind)), [Some(true), Some(false)]);
        assert_eq!(ErrorKinds::default().verdict("panic"), None);
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
    fn configuration_overrides_the_code() {
        let written = TypeConfig { failure_period: Some(Millis(5)), ..TypeConfig::default() };
        assert_eq!(TypePolicy::default().with(&written).alarm, None, "a period alone is not a limit");
        let in_code = Alarm { max_failures: 3, period: Alarm::PERIOD };
        let policy = TypePolicy { alarm: Some(in_code), ..TypePolicy::default() }.with(&written);
        assert_eq!(policy.alarm, Some(Alarm { max_failures: 3, period: Millis(5) }));
    }
}
