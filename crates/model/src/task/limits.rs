//! Limits that each new task must keep, by whichever way it is created: by a client of the API, a schedule, a handler, or a
//! producer with a record of its own. A task accepted here is not rejected later.

use super::action::Notification;
use super::continuation::{Continuation, check_continuation_ids};
use super::field::ArgumentKind;
use super::id::TaskId;
use super::{MAX_POLICY_BYTES, Policy, Rules};
use crate::json::plain_text;
use crate::units::duration::Millis;

/// Limits of a fleet for its tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskLimits {
    /// Longest time that a tree may stay open.
    pub max_tree_age: Millis,
    /// Maximum size of params, in bytes.
    pub max_params: usize,
}

/// JSON pointer to an invalid field, and the reason.
pub type Flaw = (String, String);

impl Default for TaskLimits {
    /// Limits of a fleet that configures none.
    fn default() -> Self {
        Self { max_tree_age: Millis::secs(30 * 86_400), max_params: 1 << 20 }
    }
}

/// Checks that the continuations of a task with this id can have ids.
///
/// # Errors
/// The first continuation without one.
pub fn check_then(id: &TaskId, policy: &Policy) -> Result<(), Flaw> {
    check_continuation_ids(id, &policy.rules.then, 0).map_err(|(at, error)| (format!("/then{at}"), error))
}

impl TaskLimits {
    /// No limits, for a process whose tasks another one checks.
    pub const UNLIMITED: Self = Self { max_tree_age: Millis(i64::MAX as u64), max_params: usize::MAX };

    /// Checks the id and the options of a task that is created now.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn check(&self, id: &TaskId, policy: &Policy, now_ms: i64) -> Result<(), Flaw> {
        if *policy == Policy::default() {
            return Ok(());
        }
        self.check_policy(policy, now_ms)?;
        check_then(id, policy)
    }

    /// Checks the options of a task whose id makes no difference.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn check_policy(&self, policy: &Policy, now_ms: i64) -> Result<(), Flaw> {
        if let Some((field, error)) = policy.errors().into_iter().next() {
            return Err((format!("/{field}"), error));
        }
        policy.rules.check_all()?;
        let bytes = plain_text(&policy.rules).len();
        if bytes > MAX_POLICY_BYTES {
            return Err((
                "/options".into(),
                format!("the options have {bytes} bytes: at most {MAX_POLICY_BYTES} are allowed"),
            ));
        }
        self.check_times(policy, now_ms)?;
        self.check_durations(policy, "")?;
        self.check_rules(&policy.rules, "", now_ms)
    }

    /// Checks continuations that a handler adds to a task which has `first` of them already.
    ///
    /// # Errors
    /// The first invalid field, from the list on.
    pub fn check_added(&self, id: &TaskId, first: usize, added: &[Continuation], now_ms: i64) -> Result<(), Flaw> {
        check_continuation_ids(id, added, first)?;
        self.check_continuations(added, "", now_ms)
    }

    fn check_times(&self, policy: &Policy, now_ms: i64) -> Result<(), Flaw> {
        let latest_ms = now_ms.saturating_add(self.max_tree_age.as_i64());
        let late = |verb| {
            format!("the task would {verb} more than {} from now, longer than a tree may stay open", self.max_tree_age)
        };
        match (policy.not_before_ms, policy.expires_at_ms) {
            (Some(start), _) if start > latest_ms => Err(("/delay".into(), late("start"))),
            (_, Some(expires)) if expires > latest_ms => Err(("/expires".into(), late("expire"))),
            (Some(start), Some(expires)) if expires <= start => {
                Err(("/expires".into(), "the task would expire before its start time".into()))
            }
            _ => Ok(()),
        }
    }

    fn check_durations(&self, policy: &Policy, at: &str) -> Result<(), Flaw> {
        let is_duration = |kind| kind == ArgumentKind::Duration;
        let fields = Policy::fields().filter(|field| field.argument.is_some_and(|argument| is_duration(argument.kind)));
        for field in fields.filter(|field| policy.is_set(field)) {
            let value = policy.value(field);
            let span = value.slice().string().and_then(|text| Millis::parse(&text).ok());
            self.check_duration(span, || format!("{at}/{}", field.name))?;
        }
        Ok(())
    }

    fn check_duration(&self, span: Option<Millis>, at: impl FnOnce() -> String) -> Result<(), Flaw> {
        match span.filter(|span| *span > self.max_tree_age) {
            Some(span) => Err((at(), format!("`{span}` is longer than a tree may stay open, {}", self.max_tree_age))),
            None => Ok(()),
        }
    }

    fn check_rules(&self, rules: &Rules, at: &str, now_ms: i64) -> Result<(), Flaw> {
        for (n, check) in rules.checks.iter().enumerate() {
            let latest_ms = now_ms.saturating_add(self.max_tree_age.as_i64());
            if check.due_ms(now_ms).is_some_and(|due_ms| due_ms > latest_ms) {
                let reason = "the check is due more than";
                let reason = format!("{reason} {} from now, longer than a tree may stay open", self.max_tree_age);
                return Err((format!("{at}/checks/{n}"), reason));
            }
        }
        for (pointer, notification) in rules.own_rules().notifications() {
            let timeout = match notification {
                Notification::Callback(callback) => callback.timeout,
                Notification::Email(email) => email.timeout,
            };
            self.check_duration(timeout, || format!("{at}{pointer}/{}", notification.kind()))?;
        }
        self.check_continuations(&rules.then, &format!("{at}/then"), now_ms)
    }

    /// Checks the size of params. Joined with results they have a limit of their own.
    ///
    /// # Errors
    /// The reason.
    pub fn check_params(&self, bytes: usize) -> Result<(), String> {
        if bytes > self.max_params {
            Err(format!("the params have {bytes} bytes: at most {} are allowed", self.max_params))
        } else {
            Ok(())
        }
    }

    fn check_continuations(&self, continuations: &[Continuation], at: &str, now_ms: i64) -> Result<(), Flaw> {
        for (n, then) in continuations.iter().enumerate() {
            let at = format!("{at}/{n}");
            if !then.with_results {
                self.check_params(plain_text(&then.params).len()).map_err(|error| (format!("{at}/params"), error))?;
            }
            self.check_durations(&then.policy, &at)?;
            self.check_rules(&then.policy.rules, &at, now_ms)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::task::continuation::ids_below;
    use crate::task::field::Scope;
    use crate::task::{MAX_TAGS, RecordSource, read_task};

    const NOW: i64 = 1_800_000_000_000;

    fn flaw(policy: &Policy) -> Flaw {
        TaskLimits::default().check(&TaskId::parse("a").unwrap(), policy, NOW).unwrap_err()
    }

    fn with_rules(rules: &str) -> Policy {
        Policy { rules: serde_json::from_str(rules).unwrap(), ..Policy::default() }
    }

    #[test]
    fn every_duration_of_a_task_is_bounded_by_the_age_of_a_tree() {
        let fields: Vec<_> = Policy::fields()
            .filter(|field| field.argument.is_some_and(|argument| argument.kind == ArgumentKind::Duration))
            .collect();
        assert!(fields.len() >= 6, "{fields:?}");
        for field in fields {
            let values = serde_json::json!({field.name: "31d"});
            let policy: Policy = serde_json::from_value(values).unwrap();
            let (at, error) = flaw(&policy);
            assert!(
                at == format!("/{}", field.name) && error.contains("longer than a tree may stay open"),
                "{at}: {error}"
            );
            if field.is_in(Scope::Continue) {
                let then = format!(r#"{{"then":[{{"type":"a","then":[{{"type":"b","{}":"31d"}}]}}]}}"#, field.name);
                assert_eq!(flaw(&with_rules(&then)).0, format!("/then/0/then/0/{}", field.name));
            }
        }
    }

    fn ids() -> impl Strategy<Value = TaskId> {
        let segments = prop::collection::vec(1_usize..=128, 1..=64);
        let text =
            |lengths: Vec<usize>| lengths.into_iter().map(|length| "x".repeat(length)).collect::<Vec<_>>().join(":");
        prop_oneof![
            segments.prop_map(text),
            (62_usize..=64).prop_map(|levels| vec!["x"; levels].join(":")),
            (480_usize..=512).prop_map(|bytes| [
                "x".repeat(128),
                "y".repeat(128),
                "z".repeat(128),
                "x".repeat(bytes - 387)
            ]
            .join(":")),
        ]
        .prop_filter_map("an id", |text| TaskId::parse(&text).ok())
    }

    fn continuations() -> impl Strategy<Value = Vec<Continuation>> {
        let timeout = prop::option::of(prop::sample::select(vec![0_u64, 1, 30 * 86_400_000, 31 * 86_400_000]));
        let leaf = timeout.prop_map(|timeout| {
            let mut then = Continuation::new("a", serde_json::Value::Null);
            then.policy.timeout = timeout.map(Millis);
            vec![then]
        });
        leaf.prop_recursive(18, 40, 9, |below| {
            prop::collection::vec(below, 0..=9).prop_map(|lists| {
                let with = |list| lists_of(list);
                lists.into_iter().map(with).collect()
            })
        })
    }

    fn lists_of(below: Vec<Continuation>) -> Continuation {
        let mut then = Continuation::new("b", serde_json::Value::Null);
        then.policy.rules.then = below;
        then
    }

    fn count(continuations: &[Continuation]) -> usize {
        continuations.iter().map(|then| 1 + count(&then.policy.rules.then)).sum()
    }

    proptest! {
        /// A task that passes is read from its record as it was, and each of its continuations has an id.
        #[test]
        fn what_passes_is_accepted_inside(
            id in ids(), then in continuations(), timeout in prop::option::of(0_u64..3_000_000_000), retries in prop::option::of(0_u32..2_000),
        ) {
            let rules = Rules { then, ..Rules::default() };
            let policy = Policy { rules, timeout: timeout.map(Millis), retries, ..Policy::default() };
            if TaskLimits::default().check(&id, &policy, NOW).is_ok() {
                let mut headers = vec![("ce_id", id.to_string())];
                headers.extend(id.parent().map(|parent| ("ce_parent", parent.to_owned())));
                policy.headers(&mut |name, text| headers.extend(text.map(|text| (name, text.into_owned()))));
                let position = crate::task::Position { partition: 0, offset: 0 };
                let source = RecordSource { task_type: &"a".into(), position, timestamp_ms: NOW, value: Some(b"1") };
                let read = read_task(&source, headers.iter().map(|(name, text)| (*name, Some(text.as_bytes()))));
                let read = read.unwrap_or_else(|error| panic!("{error:?}"));
                let decoded = read.policy.map(|policy| *policy).unwrap_or_default();
                prop_assert_eq!(&decoded, &policy);
                let mut below = Vec::new();
                ids_below(&id, &decoded.rules.then, 0, &mut below);
                prop_assert_eq!(below.len(), count(&policy.rules.then));
            }
        }
    }

    #[test]
    fn flaws_have_their_pointer() {
        let callback = r#"{"callback":{"url":"https://a","timeout":"31d"}}"#;
        for (policy, at) in [
            (Policy { tags: vec!["a".into(); MAX_TAGS + 1], ..Policy::default() }, "/tags"),
            (Policy { not_before_ms: Some(NOW + 31 * 86_400_000), ..Policy::default() }, "/delay"),
            (Policy { expires_at_ms: Some(NOW + 31 * 86_400_000), ..Policy::default() }, "/expires"),
            (Policy { not_before_ms: Some(NOW + 2), expires_at_ms: Some(NOW + 1), ..Policy::default() }, "/expires"),
            (with_rules(r#"{"then":[{"type":"A"}]}"#), "/then/0/type"),
            (with_rules(&format!(r#"{{"actions":[{callback}]}}"#)), "/actions/0/callback"),
            (
                with_rules(&format!(r#"{{"then":[{{"type":"a","actions":[{callback}]}}]}}"#)),
                "/then/0/actions/0/callback",
            ),
            (
                with_rules(
                    r#"{"checks":[{"after":"31d","expect":["succeeded"],"failed":{"callback":{"url":"https://a"}}}]}"#,
                ),
                "/checks/0",
            ),
        ] {
            assert_eq!(flaw(&policy).0, at);
        }
    }
}
