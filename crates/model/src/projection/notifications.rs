//! Notification rules, evaluated on every change of a task's state. The notifications themselves are effects.

use super::records::Records;
use super::refresh::state_of;
use super::step_outcome::Step;
use super::{Cause, LogPosition, Verdict};
use crate::event::{Event, Kind};
use crate::outbox::{Effect, EffectKind, MAX_NOTIFICATIONS};
use crate::record::notifications::{NotificationDelivery, NotificationLog, RuleRef};
use crate::record::state::State;
use crate::record::{HistoryEntry, TaskRecord};
use crate::task::id::TaskId;

/// Extra retention of a tree after its last check, which may run late, ms.
const CHECK_GRACE_MS: i64 = 3_600_000;

/// Evaluates the rules after a recomputation of the state. When rules arrive late, the current state counts as just
/// reached.
pub(super) fn evaluate(task: &mut TaskRecord, cause: Cause<'_>) {
    let Some(policy) =
        task.definition.policy.as_deref().filter(|policy| task.definition.announced && policy.rules.has_rules())
    else {
        return;
    };
    let latest_ms = task.times.seen_ms.saturating_add(cause.ages.lifetimes.max_tree_age_ms);
    let new_log = || {
        Box::new(NotificationLog::new(&policy.rules, task.times.created_at_ms.unwrap_or(task.times.seen_ms), latest_ms))
    };
    let mut log = task.notifications.take().unwrap_or_else(new_log);
    let now = task.state;
    let mut reached: Vec<RuleRef> = Vec::new();
    if log.state != now && now != State::Expected {
        (log.state, log.changes, log.since_ms) = (now, log.changes + 1, log.since_ms.max(cause.at_ms));
        let actions = policy.rules.actions.iter().zip(0..).filter(|(action, _)| action.on.contains(&now));
        reached.extend(actions.map(|(_, n)| RuleRef::Action(n)));
    }
    for rule in reached {
        let at_ms = log.since_ms;
        notify(task, &mut log, rule, cause.position.offset, at_ms);
    }
    if task.tree.root {
        task.tree.hold_ms = task.tree.hold_ms.max(log.last_check().map_or(0, |check_ms| check_ms + CHECK_GRACE_MS));
    }
    task.notifications = Some(log);
}

/// Own states implied by an event but not reported by an earlier one: a quick attempt writes no `started`, and its
/// result may precede `submitted` in the log. Empty for tasks without notification rules.
pub(super) fn passed_states(task: &TaskRecord, event: &Event) -> Vec<(State, i64)> {
    let has_rules = task.definition.policy.as_deref().is_some_and(|policy| policy.rules.has_rules());
    if !has_rules || !task.definition.announced || task.is_external() || task.own.is_terminal() {
        return Vec::new();
    }
    let began_ms = match event.kind() {
        Kind::Started | Kind::Warned => Some(event.at_ms),
        Kind::Retrying | Kind::Succeeded | Kind::Failed | Kind::Cancelled | Kind::Expired => {
            event.payload.started_at_ms()
        }
        _ => return Vec::new(),
    };
    let is_first = task.notifications.as_deref().is_none_or(|log| log.changes == 0);
    let queued_ms = match task.own {
        _ if is_first => task.times.created_at_ms.or(began_ms),
        State::Scheduled => began_ms,
        _ => None,
    };
    let is_known = event.kind() == Kind::Started || matches!(task.own, State::Running | State::Warning);
    let running_ms = began_ms.filter(|_| !is_known);
    let passed = [(State::Queued, queued_ms), (State::Running, running_ms)];
    passed.into_iter().filter_map(|(state, at_ms)| Some((state, at_ms?))).collect()
}

/// Evaluates the rules on the states found by [`passed_states`], in order. The record's current states stay unchanged.
pub(super) fn notify_passed_states(task: &mut TaskRecord, passed: &[(State, i64)], cause: Cause<'_>) {
    if passed.is_empty() {
        return;
    }
    let now = (task.own, task.state);
    for (own, at_ms) in passed {
        task.own = *own;
        task.state = state_of(task);
        evaluate(task, Cause { at_ms: *at_ms, ..cause });
    }
    (task.own, task.state) = now;
}

/// Runs a due check against the state that the task has at this position of the log.
pub(super) fn run_check(task: &mut TaskRecord, number: Option<u32>, at_ms: i64, position: LogPosition) -> Step {
    let number = number.unwrap_or(u32::MAX) as usize;
    let Some(mut log) = task.notifications.take() else { return Step::of(Verdict::Ignored) };
    let due = log.checks.get_mut(number).and_then(Option::take);
    let check = task.definition.policy.as_ref().and_then(|policy| policy.rules.checks.get(number));
    let step = Step { in_history: false, ..Step::of(Verdict::Applied) };
    let (Some(_), Some(check)) = (due, check) else {
        task.notifications = Some(log);
        return Step { verdict: Verdict::Ignored, ..step };
    };
    let passed = check.expect.contains(&task.state);
    let expected: Vec<&str> = check.expect.iter().map(|state| state.name()).collect();
    let verdict = if passed { "passed" } else { "failed" };
    let message = format!("check {number} {verdict}: state is {}, expected {}", task.state, expected.join(" or "));
    if check.notification(passed).is_some() {
        let n = u8::try_from(number).unwrap_or(u8::MAX);
        notify(task, &mut log, if passed { RuleRef::Passed(n) } else { RuleRef::Failed(n) }, position.offset, at_ms);
    }
    task.notifications = Some(log);
    task.history.push(entry(task, at_ms, position, message));
    step
}

fn notify(task: &mut TaskRecord, log: &mut NotificationLog, rule: RuleRef, cause: i64, at_ms: i64) {
    let waiting = task.effects.iter().filter(|effect| effect.is_notification()).count();
    if waiting >= MAX_NOTIFICATIONS {
        log.refused = log.refused.saturating_add(1);
        return;
    }
    let delivery = NotificationDelivery { rule, run: task.run, change: log.changes, state: task.state, cause, at_ms };
    log.list(delivery);
    task.push_effect(Effect { cause, kind: EffectKind::NotifyAction(delivery) });
}

fn entry(task: &TaskRecord, at_ms: i64, position: LogPosition, message: String) -> HistoryEntry {
    HistoryEntry::of_fold(Kind::Checked, task.run, (at_ms, position.offset), message)
}

impl Records {
    /// Extends the retention of a finished tree until the last check of any of its tasks has run.
    pub(super) fn extend_retention(&mut self, id: &TaskId, max_tree_age_ms: i64) {
        let Some(until) = self.task(id.as_str()).and_then(|task| task.notifications.as_ref()?.last_check()) else {
            return;
        };
        let Ok(root) = TaskId::parse(id.root()) else { return };
        let until = self
            .task(root.as_str())
            .map_or(until, |task| until.min(task.times.seen_ms.saturating_add(max_tree_age_ms)))
            .saturating_add(CHECK_GRACE_MS);
        if self.task(root.as_str()).is_some_and(|task| task.tree.hold_ms < until)
            && let Some(task) = self.task_mut(&root)
        {
            task.tree.hold_ms = until;
        }
    }
}
