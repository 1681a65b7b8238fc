//! Kill switches, which cancel tasks instead of starting them.
//!
//! A switch on params shows values of params, and the tasks that it cancels show which have them. So only a role that sees
//! masked values may compare them, and others see a switch without its masked values.

use std::str::FromStr;

use kafleet_documents::{KillSwitchDocument, KillSwitches, SetKillSwitch};
use kafleet_fleet::control::{CONTROL_VERSION, ControlKey, ControlRecord, Kill, MAX_KILLS, check_kill};
use kafleet_model::json::MASKED;
use kafleet_model::task::id::{check_type, clip};
use kafleet_model::task::kill::{KillMatch, KillParams, check_conditions};
use kafleet_model::units::time::time_text;
use kafleet_runtime::now_ms;

use super::context::{RequestContext, check_reason};
use super::operations::write_audited;
use crate::http::problem::{ApiError, Code};

/// Name of a kill switch: a tag, a prefix of task ids, or with params any name.
pub struct KillName(String);

impl KillName {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for KillName {
    type Err = ApiError;

    fn from_str(text: &str) -> Result<Self, ApiError> {
        check_kill(text).map_err(|error| ApiError::new(Code::BadKillSwitch, error))?;
        Ok(Self(text.to_owned()))
    }
}

/// Restrictions of a kill switch.
#[derive(Clone, Default)]
pub struct KillScope {
    pub task_type: Option<String>,
    pub matches: Option<KillMatch>,
    pub params: KillParams,
}

impl KillScope {
    /// Checks the restrictions as far as they depend on one another, and on what the caller may see. `error`: makes that of a field.
    pub(super) fn check(
        &self,
        context: &RequestContext,
        error: impl Fn(&str, &str) -> ApiError,
    ) -> Result<(), ApiError> {
        let task_type = self.task_type.as_deref();
        check_conditions(task_type, self.matches, &self.params).map_err(|(field, reason)| error(field, reason))?;
        let mask = context.api.reads.masks.of(task_type.unwrap_or_default());
        let masked = if context.role.sees_masked() { None } else { self.params.masked_pointer(&mask) };
        if let Some(pointer) = masked {
            let reason = format!("`{pointer}` shows a masked value: only the role `admin` may compare it");
            return Err(
                ApiError::new(Code::Forbidden, reason).hint("compare other params, or use a token with the role")
            );
        }
        match self.params.masked_value(&mask) {
            Some(pointer) => {
                Err(error("params", &format!("`{MASKED}` at `{pointer}` stands for a masked value: give the value")))
            }
            None => Ok(()),
        }
    }
}

/// Sets a kill switch, which cancels matching tasks instead of starting them.
pub async fn set_kill_switch(
    context: RequestContext,
    KillName(name): KillName,
    SetKillSwitch { matches, task_type, params, reason }: SetKillSwitch,
) -> Result<KillSwitchDocument, ApiError> {
    check_reason(reason.as_deref())?;
    let bad_field = |field: &str, reason: &str| ApiError::new(Code::BadField, reason).pointer(format!("/{field}"));
    if let Some(task_type) = &task_type {
        check_type(task_type).map_err(|error| bad_field("type", &error))?;
    }
    let api = &context.api;
    api.fleet.wait_for_control_state().await?;
    let scope = KillScope { task_type, matches, params };
    scope.check(&context, bad_field)?;
    let full = {
        let control = api.fleet.control.state();
        control.kills.len() >= MAX_KILLS && !control.kills.contains_key(&name)
    };
    if full {
        return Err(ApiError::new(Code::TooManyKillSwitches, format!("there are already {MAX_KILLS} kill switches"))
            .hint("delete one: DELETE /v1/kill-switches/{name}"));
    }
    let KillScope { task_type, matches, params } = scope;
    // Builds that do not know params look for a tag of this name.
    let matches = if params.is_empty() { matches } else { Some(KillMatch::Tag) };
    let new = Kill { v: CONTROL_VERSION, at_ms: now_ms(), matches, task_type, params, reason, by: context.caller() };
    let message = audit_text(&context, &new);
    let operation = context.operation("set_kill_switch", &name, message.as_deref());
    let record = Some(ControlRecord::Kill(new.clone()));
    write_audited(api, operation, vec![(ControlKey::Kill(name.clone()), record)]).await?;
    Ok(document(&context, &name, &new))
}

/// Deletes a kill switch, and returns it.
pub async fn delete_kill_switch(
    context: RequestContext,
    KillName(name): KillName,
) -> Result<KillSwitchDocument, ApiError> {
    let api = &context.api;
    api.fleet.wait_for_control_state().await?;
    let kill_switch = api.fleet.control.state().kills.get(&name).cloned();
    let Some(kill_switch) = kill_switch else {
        return Err(ApiError::new(Code::UnknownKillSwitch, format!("there is no kill switch `{name}`"))
            .hint("list them with GET /v1/kill-switches"));
    };
    let operation = context.operation("delete_kill_switch", &name, None);
    write_audited(api, operation, vec![(ControlKey::Kill(name.clone()), None)]).await?;
    Ok(document(&context, &name, &kill_switch))
}

/// Lists the active kill switches.
pub async fn list_kill_switches(context: RequestContext) -> Result<KillSwitches, ApiError> {
    context.api.fleet.wait_for_control_state().await?;
    let kills: Vec<(String, Kill)> =
        context.api.fleet.control.state().kills.iter().map(|(name, kill)| (name.clone(), kill.clone())).collect();
    Ok(KillSwitches { kills: kills.iter().map(|(name, kill)| document(&context, name, kill)).collect() })
}

/// Kill switch as the caller sees it.
fn document(context: &RequestContext, name: &str, kill: &Kill) -> KillSwitchDocument {
    let Kill { matches, task_type, params, reason, by, .. } = kill.clone();
    let sees_all = params.is_empty() || context.role.sees_masked();
    let mask = if sees_all { Vec::new() } else { context.api.reads.masks.of(task_type.as_deref().unwrap_or_default()) };
    KillSwitchDocument {
        name: name.to_owned(),
        matches: matches.filter(|_| params.is_empty()),
        task_type,
        params: params.masked(&mask),
        reason,
        since: time_text(kill.at_ms),
        by,
    }
}

/// Params of a kill switch without masked values, and its reason: for the audit log, which all roles see.
fn audit_text(context: &RequestContext, kill: &Kill) -> Option<String> {
    if kill.params.is_empty() {
        return kill.reason.clone();
    }
    let task_type = kill.task_type.as_deref().unwrap_or_default();
    let shown = kill.params.masked(&context.api.reads.masks.of(task_type));
    let texts: Vec<String> =
        shown.iter().map(|(pointer, value)| format!("`{pointer}` = {}", clip(&value.to_string()))).collect();
    let params = format!("params of {task_type}: {}", texts.join(", "));
    Some(match &kill.reason {
        Some(reason) => format!("{params}; {reason}"),
        None => params,
    })
}
