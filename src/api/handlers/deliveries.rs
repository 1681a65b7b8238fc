//! What others have been told of a task: read together from the task and from the tasks that tell.

use futures::future::try_join_all;

use crate::api::Api;
use crate::api::documents::{CheckDue, Deliveries, Delivery, Outcome};
use crate::api::http::problem::{ApiError, Code};
use crate::api::read::consistency::TaskView;
use crate::handlers::builtin::callback;
use crate::handlers::builtin::callback::Callbacks;
use crate::handlers::builtin::email;
use crate::handlers::builtin::email::Emails;
use crate::model::json::RawJson;
use crate::model::outbox::EffectKind;
use crate::model::record::TaskRecord;
use crate::model::record::notifications;
use crate::model::record::notifications::NotificationLog;
use crate::model::record::state::State;
use crate::model::task::Rules;
use crate::model::task::action::{Notification, NotificationRules};
use crate::model::task::id::TaskId;
use crate::publish::time_text;
use crate::runtime::now_ms;

/// How long after its event a delivery that has no record is taken for one that is on its way.
const ON_ITS_WAY_MS: i64 = 3_600_000;

impl Api {
    /// Refuses what could not be told: as far as this process knows the types that tell.
    pub fn check_tells(&self, rules: &Rules, now_ms: i64) -> Result<(), ApiError> {
        let furthest = self.max_tree_age;
        let tells = rules.all_tells();
        for (at, checks) in tells.iter().map(|tells| (&tells.at, tells.checks)) {
            for (n, check) in checks.iter().enumerate() {
                if check.due_ms(now_ms).is_some_and(|due| due > now_ms.saturating_add(furthest.as_i64())) {
                    let why = format!("it would be more than {furthest} from now, and a tree may be open so long at most");
                    return Err(ApiError::new(Code::BadField, why).pointer(format!("{at}/checks/{n}")));
                }
            }
        }
        for (at, telling) in tells.iter().flat_map(NotificationRules::tellings) {
            let (kind, params) = params_of(telling);
            let misfit = self.registry.get(kind).and_then(|known| known.validate(&params));
            if let Some(misfit) = misfit {
                return Err(ApiError::new(Code::BadField, misfit.message).pointer(format!(
                    "{at}/{}{}",
                    telling.kind(),
                    misfit.pointer
                )));
            }
        }
        Ok(())
    }

    /// Refuses what nobody would tell.
    pub async fn check_deliverable(&self, rules: &Rules) -> Result<(), ApiError> {
        let mut asked: Vec<&str> = Vec::new();
        for (at, telling) in rules.all_tells().iter().flat_map(NotificationRules::tellings) {
            let (kind, _) = params_of(telling);
            if asked.contains(&kind) {
                continue;
            }
            asked.push(kind);
            self.check_known_type(kind).await.map_err(|refusal| match refusal.is(Code::UnknownType) {
                true => ApiError::new(Code::UnknownType, format!("this fleet has no workers for {}s", telling.kind()))
                    .pointer(at)
                    .hint(match telling {
                        Notification::Callback(_) => {
                            "add `[callbacks]` to the workers' configuration and run `kafleet topics apply`"
                        }
                        Notification::Email(_) => "add `[email]` to the workers' configuration and run `kafleet topics apply`",
                    }),
                false => refusal,
            })?;
        }
        Ok(())
    }

    /// None: nobody is to be told anything.
    pub async fn deliveries(&self, found: &TaskView) -> Result<Option<Deliveries>, ApiError> {
        let Some(told) = found.node.told.as_deref() else { return Ok(None) };
        let rules = found.node.policy.as_ref().map(|policy| policy.rules.clone()).unwrap_or_default();
        let items = told.deliveries.iter().rev().filter_map(|one| {
            let telling = one.rule.telling(&rules)?;
            Some(self.delivery(found, *one, telling.kind(), one.id(&found.id, telling)))
        });
        let items = try_join_all(items).await?;
        Ok(Some(Deliveries { items, unlisted: told.unlisted, refused: told.refused, checks_due: checks_due(told) }))
    }

    async fn delivery(
        &self,
        found: &TaskView,
        one: notifications::Delivery,
        kind: &str,
        id: String,
    ) -> Result<Delivery, ApiError> {
        let task = TaskId::parse(&id).map_err(|_| ApiError::internal())?;
        let waits = found.node.effects.iter().any(|effect| effect.what == EffectKind::NotifyAction(one));
        let telling = if waits { None } else { self.look(&task).await?.map(|found| found.node) };
        let on_its_way = waits || now_ms().saturating_sub(one.at_ms) < ON_ITS_WAY_MS;
        let told = telling.as_ref();
        Ok(Delivery {
            id,
            rule: one.rule.to_string(),
            kind: kind.to_owned(),
            state: one.state,
            run: one.run,
            at: time_text(one.at_ms),
            outcome: outcome(told, on_its_way),
            attempts: told.map_or(0, |node| node.attempt),
            error: told.and_then(|node| node.error.as_deref().cloned()),
            due_at: told.and_then(|node| node.due_ms.filter(|_| !node.state.is_terminal())).map(time_text),
        })
    }
}

fn outcome(telling: Option<&TaskRecord>, on_its_way: bool) -> Outcome {
    match telling.map(|node| node.state) {
        None if on_its_way => Outcome::Pending,
        None => Outcome::Unknown,
        Some(State::Succeeded) => Outcome::Delivered,
        Some(state) if state.is_terminal() => Outcome::Failed,
        Some(_) => Outcome::Pending,
    }
}

fn checks_due(told: &NotificationLog) -> Vec<CheckDue> {
    let due = told.checks.iter().enumerate();
    due.filter_map(|(number, due)| Some(CheckDue { number, at: time_text((*due)?) })).collect()
}

/// The type that tells it, and its params without what is told.
fn params_of(telling: Notification<'_>) -> (&'static str, RawJson) {
    let nothing = RawJson::null();
    let (kind, params) = match telling {
        Notification::Callback(callback) => (callback::TYPE, RawJson::of(&Callbacks::params(callback, nothing))),
        Notification::Email(email) => (email::TYPE, RawJson::of(&Emails::params(email, nothing))),
    };
    (kind, params.unwrap_or_else(|_| RawJson::null()))
}
