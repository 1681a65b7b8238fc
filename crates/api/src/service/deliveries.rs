//! Status of a task's notifications, read from the task's record and from its delivery tasks.

use futures::future::try_join_all;
use kafleet_documents::{CheckDue, Deliveries, Delivery, DeliveryOutcome};
use kafleet_model::outbox::EffectKind;
use kafleet_model::record::TaskRecord;
use kafleet_model::record::notifications;
use kafleet_model::record::notifications::NotificationLog;
use kafleet_model::record::state::State;
use kafleet_model::task::id::TaskId;
use kafleet_model::units::time::time_text;
use kafleet_runtime::now_ms;

use crate::http::problem::{ApiError, Code};
use crate::read::consistency::TaskView;
use crate::state::Api;

/// Time after which a delivery without a task record is reported as unknown instead of pending.
const ON_ITS_WAY_MS: i64 = 3_600_000;

/// Reads the status of the deliveries. `None` if the task has no notification rules.
pub(crate) async fn deliveries(api: &Api, task: &TaskView) -> Result<Option<Deliveries>, ApiError> {
    let Some(log) = task.record.notifications.as_deref() else { return Ok(None) };
    let rules = task.record.definition.policy.as_ref().map(|policy| policy.rules.clone()).unwrap_or_default();
    let items = log.deliveries.iter().rev().filter_map(|delivery| {
        let notification = delivery.rule.notification(&rules)?;
        Some(delivery_document(api, task, *delivery, notification.kind(), delivery.id(&task.id, notification)))
    });
    let items = try_join_all(items).await?;
    Ok(Some(Deliveries { items, unlisted: log.unlisted, refused: log.refused, checks_due: checks_due(log) }))
}

/// Record of a delivery's task; `None` also while the store does not cover its partition.
async fn delivery_record(api: &Api, id: &TaskId) -> Result<Option<TaskRecord>, ApiError> {
    match api.reads.read(id).await {
        Err(error) if error.is(Code::NotVisibleYet) => Ok(None),
        read => Ok(read?.map(|task| task.record)),
    }
}

async fn delivery_document(
    api: &Api,
    notifier: &TaskView,
    delivery: notifications::NotificationDelivery,
    kind: &str,
    id: String,
) -> Result<Delivery, ApiError> {
    let task = TaskId::parse(&id).map_err(|_| ApiError::internal())?;
    let is_queued = notifier.record.effects.iter().any(|effect| effect.kind == EffectKind::NotifyAction(delivery));
    let task_record = if is_queued { None } else { delivery_record(api, &task).await? };
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
        error: record.and_then(|record| record.outcome.error.as_deref().cloned()),
        due_at: record.and_then(|record| record.times.due_ms.filter(|_| !record.state.is_terminal())).map(time_text),
    })
}

fn outcome(notification: Option<&TaskRecord>, is_pending: bool) -> DeliveryOutcome {
    match notification.map(|task| task.state) {
        None if is_pending => DeliveryOutcome::Pending,
        None => DeliveryOutcome::Unknown,
        Some(State::Succeeded) => DeliveryOutcome::Delivered,
        Some(state) if state.is_terminal() => DeliveryOutcome::Failed,
        Some(_) => DeliveryOutcome::Pending,
    }
}

fn checks_due(log: &NotificationLog) -> Vec<CheckDue> {
    let due = log.checks.iter().enumerate();
    due.filter_map(|(number, due)| Some(CheckDue { number, at: time_text((*due)?) })).collect()
}
