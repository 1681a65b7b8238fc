//! Notification rules, evaluated on every change of a task's state. The notifications themselves are effects.

use super::records::Records;
use super::refresh::state_of;
use super::step_outcome::Step;
use super::{Change, LogPosition, Verdict};
use crate::model::event::{Event, Kind};
use crate::model::outbox::{Effect, EffectKind, MAX_NOTIFICATIONS};
use crate::model::record::notifications::{NotificationDelivery, NotificationLog, RuleRef};
use crate::model::record::state::State;
use crate::model::record::{HistoryEntry, TaskRecord};
use crate::model::task::id::TaskId;

/// Evaluates the rules after a recomputation of the state. When rules arrive late, the current state counts as just
/// reached.
pub(super) fn evaluate(node: &mut TaskRecord, cause: Change<'_>) {
    let Some(policy) =
        node.definition.policy.as_deref().filter(|policy| node.definition.announced && policy.rules.has_rules())
    else {
        return;
    };
    let latest_ms = node.times.seen_ms.saturating_add(cause.ages.lifetimes.max_tree_age_ms);
    let new_log = || {
        Box::new(NotificationLog::new(&policy.rules, node.times.created_at_ms.unwrap_or(node.times.seen_ms), latest_ms))
    };
    let mut log = node.notifications.take().unwrap_or_else(new_log);
    let now = node.state;
    let mut reached: Vec<RuleRef> = Vec::new();
    if log.state != now && now != State::Expected {
        (log.state, log.changes, log.since_ms) = (now, log.changes + 1, log.since_ms.max(cause.at_ms));
        let actions = policy.rules.actions.iter().zip(0..).filter(|(action, _)| action.on.contains(&now));
        reached.extend(actions.map(|(_, n)| RuleRef::Action(n)));
    }
    for rule in reached {
        let at_ms = log.since_ms;
        notify(node, &mut log, rule, cause.position.offset, at_ms);
    }
    if node.tree.root {
        node.tree.hold_ms = node.tree.hold_ms.max(log.last_check().unwrap_or_default());
    }
    node.notifications = Some(log);
}

/// Own states implied by an event but not reported by an earlier one: a quick attempt writes no `started`, and its
/// result may precede `submitted` in the log. Empty for tasks without notification rules.
pub(super) fn passed_states(node: &TaskRecord, event: &Event) -> Vec<(State, i64)> {
    let has_rules = node.definition.policy.as_deref().is_some_and(|policy| policy.rules.has_rules());
    if !has_rules || !node.definition.announced || node.is_external() || node.own.is_terminal() {
        return Vec::new();
    }
    let began_ms = match event.kind() {
        Kind::Started | Kind::Warned => Some(event.at_ms),
        Kind::Retrying | Kind::Succeeded | Kind::Failed | Kind::Cancelled | Kind::Expired => {
            event.payload.started_at_ms()
        }
        _ => return Vec::new(),
    };
    let is_first = node.notifications.as_deref().is_none_or(|log| log.changes == 0);
    let queued_ms = match node.own {
        _ if is_first => node.times.created_at_ms.or(began_ms),
        State::Scheduled => began_ms,
        _ => None,
    };
    let is_known = event.kind() == Kind::Started || matches!(node.own, State::Running | State::Warning);
    let running_ms = began_ms.filter(|_| !is_known);
    let passed = [(State::Queued, queued_ms), (State::Running, running_ms)];
    passed.into_iter().filter_map(|(state, at_ms)| Some((state, at_ms?))).collect()
}

/// Evaluates the rules on the states found by [`passed_states`], in order. The record's current states stay unchanged.
pub(super) fn notify_passed_states(node: &mut TaskRecord, passed: &[(State, i64)], cause: Change<'_>) {
    if passed.is_empty() {
        return;
    }
    let now = (node.own, node.state);
    for (own, at_ms) in passed {
        node.own = *own;
        node.state = state_of(node);
        evaluate(node, Change { at_ms: *at_ms, ..cause });
    }
    (node.own, node.state) = now;
}

/// Runs a due check against the state that the task has at this position of the log.
pub(super) fn run_check(node: &mut TaskRecord, number: Option<u32>, at_ms: i64, position: LogPosition) -> Step {
    let number = number.unwrap_or(u32::MAX) as usize;
    let Some(mut log) = node.notifications.take() else { return Step::of(Verdict::Ignored) };
    let due = log.checks.get_mut(number).and_then(Option::take);
    let check = node.definition.policy.as_ref().and_then(|policy| policy.rules.checks.get(number));
    let step = Step { in_history: false, ..Step::of(Verdict::Applied) };
    let (Some(_), Some(check)) = (due, check) else {
        node.notifications = Some(log);
        return Step { verdict: Verdict::Ignored, ..step };
    };
    let passed = check.expect.contains(&node.state);
    let expected: Vec<&str> = check.expect.iter().map(|state| state.name()).collect();
    let verdict = if passed { "passed" } else { "failed" };
    let message = format!("check {number} {verdict}: state is {}, expected {}", node.state, expected.join(" or "));
    if check.notification(passed).is_some() {
        let n = u8::try_from(number).unwrap_or(u8::MAX);
        notify(node, &mut log, if passed { RuleRef::Passed(n) } else { RuleRef::Failed(n) }, position.offset, at_ms);
    }
    node.notifications = Some(log);
    node.history.push(entry(node, at_ms, position, message));
    step
}

fn notify(node: &mut TaskRecord, log: &mut NotificationLog, rule: RuleRef, cause: i64, at_ms: i64) {
    let waiting = node.effects.iter().filter(|effect| effect.is_notification()).count();
    if waiting >= MAX_NOTIFICATIONS {
        log.refused = log.refused.saturating_add(1);
        return;
    }
    let delivery = NotificationDelivery { rule, run: node.run, change: log.changes, state: node.state, cause, at_ms };
    log.list(delivery);
    node.push_effect(Effect { cause, what: EffectKind::NotifyAction(delivery) });
}

fn entry(node: &TaskRecord, at_ms: i64, position: LogPosition, message: String) -> HistoryEntry {
    HistoryEntry::of_fold(Kind::Checked, node.run, (at_ms, position.offset), message)
}

impl Records {
    /// Extends the retention of a finished tree until the last check of any of its tasks has run.
    pub(super) fn extend_retention(&mut self, id: &TaskId, max_tree_age_ms: i64) {
        let Some(until) = self.node(id.as_str()).and_then(|node| node.notifications.as_ref()?.last_check()) else {
            return;
        };
        let Ok(root) = TaskId::parse(id.root()) else { return };
        let until = self
            .node(root.as_str())
            .map_or(until, |node| until.min(node.times.seen_ms.saturating_add(max_tree_age_ms)));
        if self.node(root.as_str()).is_some_and(|node| node.tree.hold_ms < until)
            && let Some(node) = self.node_mut(&root)
        {
            node.tree.hold_ms = until;
        }
    }
}
