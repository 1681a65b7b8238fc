//! Notifications of a task: validation at submission, and their status, read from the task and its delivery tasks.

use futures::future::try_join_all;

use crate::api::Api;
use crate::api::documents::{CheckDue, Deliveries, Delivery, Outcome};
use crate::api::http::problem::{ApiError, Code};
use crate::api::read::consistency::TaskView;
use crate::model::json::RawJson;
use crate::model::outbox::EffectKind;
use crate::model::record::TaskRecord;
use crate::model::record::notifications;
use crate::model::record::notifications::NotificationLog;
use crate::model::record::state::State;
use crate::model::task::Rules;
use crate::model::task::action::{CALLBACK_TYPE, EMAIL_TYPE, Notification, NotificationRules};
use crate::model::task::delivery::{CallbackParams, EmailParams};
use crate::model::task::id::TaskId;
use crate::publish::time_text;
use crate::runtime::now_ms;

/// Time after which a delivery without a task record is reported as unknown instead of pending.
const ON_ITS_WAY_MS: i64 = 3_600_000;

impl Api {
    /// Rejects invalid notification rules, as far as this process knows the delivery types.
    pub fn check_notifications(&self, rules: &Rules, now_ms: i64) -> Result<(), ApiError> {
        let furthest = self.max_tree_age;
        let tells = rules.all_tells();
        for (at, checks) in tells.iter().map(|tells| (&tells.at, tells.checks)) {
            for (n, check) in checks.iter().enumerate() {
                if check.due_ms(now_ms).is_some_and(|due| due > now_ms.saturating_add(furthest.as_i64())) {
                    let why = format!("the check is due more than {furthest} from now, longer than a tree may stay open");
                    return Err(ApiError::new(Code::BadField, why).pointer(format!("{at}/checks/{n}")));
                }
            }
        }
        for (at, notification) in tells.iter().flat_map(NotificationRules::tellings) {
            let (kind, params) = params_of(notification);
            let misfit = self.registry.get(kind).and_then(|known| known.validate(&params));
            if let Some(misfit) = misfit {
                return Err(ApiError::new(Code::BadField, misfit.message).pointer(format!(
                    "{at}/{}{}",
                    notification.kind(),
                    misfit.pointer
                )));
            }
        }
        Ok(())
    }

    /// Rejects notifications whose delivery type has no topic.
    pub async fn check_notification_types(&self, rules: &Rules) -> Result<(), ApiError> {
        let mut checked: Vec<&str> = Vec::new();
        for (at, notification) in rules.all_tells().iter().flat_map(NotificationRules::tellings) {
            let (kind, _) = params_of(notification);
            if checked.contains(&kind) {
                continue;
            }
            checked.push(kind);
            self.check_type_exists(kind).await.map_err(|error| match error.is(Code::UnknownType) {
                true => ApiError::new(Code::UnknownType, format!("this fleet has no workers for {}s", notification.kind()))
                    .pointer(at)
                    .hint(match notification {
                        Notification::Callback(_) => {
                            "add `[callbacks]` to the configuration of the workers and run `kafleet topics apply`"
                        }
                        Notification::Email(_) => {
                            "add `[email]` to the configuration of the workers and run `kafleet topics apply`"
                        }
                    }),
                false => error,
            })?;
        }
        Ok(())
    }

    /// Reads the status of the deliveries. `None` if the task has no notification rules.
    pub async fn deliveries(&self, found: &TaskView) -> Result<Option<Deliveries>, ApiError> {
        let Some(log) = found.record.told.as_deref() else { return Ok(None) };
        let rules = found.record.policy.as_ref().map(|policy| policy.rules.clone()).unwrap_or_default();
        let items = log.deliveries.iter().rev().filter_map(|delivery| {
            let notification = delivery.rule.telling(&rules)?;
            Some(self.delivery(found, *delivery, notification.kind(), delivery.id(&found.id, notification)))
        });
        let items = try_join_all(items).await?;
        Ok(Some(Deliveries { items, unlisted: log.unlisted, refused: log.refused, checks_due: checks_due(log) }))
    }

    async fn delivery(
        &self,
        found: &TaskView,
        delivery: notifications::Delivery,
        kind: &str,
        id: String,
    ) -> Result<Delivery, ApiError> {
        let task = TaskId::parse(&id).map_err(|_| ApiError::internal())?;
        let is_queued = found.record.effects.iter().any(|effect| effect.what == EffectKind::NotifyAction(delivery));
        let task_record = if is_queued { None } else { self.read(&task).await?.map(|found| found.record) };
        let is_pending = is_queued || now_ms().saturating_sub(delivery.at_ms) < ON_ITS_WAY_MS;
        let record = task_record.as_ref();
        Ok(Delivery {
            id,
            rule: delivery.rule.to_string(),
            kind: kind.to_owned(),
            state: delivery.state,
            run: delivery.run,
            at: time_text(delivery.at_ms),
            outcome: outcome(record, is_pending),
            attempts: record.map_or(0, |record| record.attempt),
            error: record.and_then(|record| record.error.as_deref().cloned()),
            due_at: record.and_then(|record| record.due_ms.filter(|_| !record.state.is_terminal())).map(time_text),
        })
    }
}

fn outcome(notification: Option<&TaskRecord>, is_pending: bool) -> Outcome {
    match notification.map(|node| node.state) {
        None if is_pending => Outcome::Pending,
        None => Outcome::Unknown,
        Some(State::Succeeded) => Outcome::Delivered,
        Some(state) if state.is_terminal() => Outcome::Failed,
        Some(_) => Outcome::Pending,
    }
}

fn checks_due(log: &NotificationLog) -> Vec<CheckDue> {
    let due = log.checks.iter().enumerate();
    due.filter_map(|(number, due)| Some(CheckDue { number, at: time_text((*due)?) })).collect()
}

/// Returns the delivery type and its params, without the notification payload.
fn params_of(notification: Notification<'_>) -> (&'static str, RawJson) {
    let nothing = RawJson::null();
    let (kind, params) = match notification {
        Notification::Callback(callback) => (CALLBACK_TYPE, RawJson::of(&CallbackParams::new(callback, nothing))),
        Notification::Email(email) => (EMAIL_TYPE, RawJson::of(&EmailParams::new(email, nothing))),
    };
    (kind, params.unwrap_or_else(|_| RawJson::null()))
}
