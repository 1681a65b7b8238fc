//! State of the control topic, and its meaning for a task.

use std::collections::{BTreeMap, BTreeSet};

use kafleet_broker::RecordRef;
use kafleet_config::MAX_SLOTS;
use kafleet_model::outbox::cancel_message;
use kafleet_model::task::TaskSpec;
use kafleet_model::task::id::{TaskId, check_type};
use kafleet_model::task::kill::KillSubject;
use kafleet_model::task::start::NextStart;
use serde::de::DeserializeOwned;

use super::record_value::{InvalidRecord, read};
use super::schedules::{ScheduleKey, ScheduleState};
use super::settings::apply_consumed;
use super::task_commands::{StartNow, TaskCommands};
use super::types::TypeRecords;
use super::views::ViewRecords;
use super::{
    AdaptiveRecord, Cancel, CircuitSetting, ControlKey, ForcedCircuit, Group, GroupRecords, Kill, Offsets, Pause,
    RateLimit, Slots,
};

/// Maximum number of kill switches; every task is checked against each.
pub const MAX_KILLS: usize = 100;

/// Maximum number of circuits of hosts that operators have set.
pub const MAX_HOST_CIRCUITS: usize = 1_000;

/// Contents of the control topic: the current record of each key, by type, task id or name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ControlState {
    /// Set by processes that run no tasks and therefore ignore commands about single tasks.
    without_task_commands: bool,
    cancels: TaskCommands<Cancel>,
    pub(super) starts: TaskCommands<StartNow>,
    pub paused: BTreeMap<String, Pause>,
    pub slots: BTreeMap<String, Slots>,
    /// Learned limits.
    pub adaptives: BTreeMap<String, AdaptiveRecord>,
    pub rates: BTreeMap<String, RateLimit>,
    pub circuits: BTreeMap<String, CircuitSetting>,
    /// Circuits of single hosts, by type and host.
    pub host_circuits: BTreeMap<(String, String), CircuitSetting>,
    pub kills: BTreeMap<String, Kill>,
    pub offsets: BTreeMap<(String, i32), Offsets>,
    groups: GroupRecords,
    /// Task partitions that a worker has consumed before, by type and number.
    pub consumed: BTreeSet<(String, i32)>,
    /// Number of times that the pause of each type has ended.
    resumes: BTreeMap<String, u64>,
    /// Declarations of types; empty in processes that do not use them.
    pub types: TypeRecords,
    /// Named views of tasks; empty in processes that do not use them.
    pub views: ViewRecords,
    with_schedules: bool,
    /// Recurring schedules; empty in processes that do not read them.
    pub plan: ScheduleState,
}

/// Reason why a task must not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cancellation {
    /// Stable code: `cancelled` or `killed`.
    pub kind: &'static str,
    pub message: String,
    /// Name of the API token that made the request.
    pub by: Option<String>,
}

impl ControlState {
    /// State for processes that run no tasks.
    pub fn without_task_commands() -> Self {
        Self { without_task_commands: true, ..Self::default() }
    }

    /// Includes schedules.
    pub fn with_schedules(self) -> Self {
        Self { with_schedules: true, ..self }
    }

    /// Includes named views.
    pub fn with_views(self) -> Self {
        Self { views: ViewRecords::kept(), ..self }
    }

    /// Includes the declarations of all types.
    pub fn with_types(self) -> Self {
        Self { types: TypeRecords::all(), ..self }
    }

    /// Includes the declarations of these types.
    pub fn with_types_of(self, types: BTreeSet<String>) -> Self {
        Self { types: TypeRecords::of(types), ..self }
    }

    /// Number of times that the pause of a type has ended. A pause and its end may both arrive between two looks at the
    /// state.
    pub fn resumes(&self, task_type: &str) -> u64 {
        self.resumes.get(task_type).copied().unwrap_or_default()
    }

    /// Applies one record. A record that cannot be decoded is an error and changes nothing.
    pub fn apply_record(&mut self, record: &RecordRef<'_>) -> Result<(), InvalidRecord> {
        let Some(key) = record.key else { return Ok(()) };
        let key = std::str::from_utf8(key).map_err(|_| InvalidRecord::KeyEncoding)?;
        if self.with_schedules
            && let Some(key) = ScheduleKey::parse(key)?
        {
            return self.plan.apply_record(key, record);
        }
        if apply_consumed(&mut self.consumed, key, record.value) {
            return Ok(());
        }
        let Some(key) = ControlKey::parse(key)? else { return Ok(()) };
        match (key, record.value) {
            (ControlKey::Cancel(_) | ControlKey::Start(_), _) if self.without_task_commands => {}
            (ControlKey::Cancel(id), value) => self.cancels.apply_record(id, value, record.offset)?,
            (ControlKey::Start(id), value) => self.starts.apply_record(id, value, record.offset)?,
            (ControlKey::Pause(name), None) => {
                if self.paused.remove(&name).is_some() {
                    *self.resumes.entry(name).or_default() += 1;
                }
            }
            (ControlKey::Pause(name), value) => set(&mut self.paused, name, value, |_: &Pause| Ok(()))?,
            (ControlKey::Slots(name), value) => set(&mut self.slots, name, value, check_slots)?,
            (ControlKey::Adaptive(name), value) => set(&mut self.adaptives, name, value, check_adaptive)?,
            (ControlKey::Rate(name), value) => {
                set(&mut self.rates, name, value, |limit: &RateLimit| {
                    limit.rate.check().map_err(InvalidRecord::Value)
                })?;
            }
            (ControlKey::Circuit(name), value) => set(&mut self.circuits, name, value, |_: &CircuitSetting| Ok(()))?,
            (ControlKey::HostCircuit(name, host), value) => {
                let is_new = value.is_some() && !self.host_circuits.contains_key(&(name.clone(), host.clone()));
                if is_new && self.host_circuits.len() >= MAX_HOST_CIRCUITS {
                    return Err(InvalidRecord::TooMany { limit: MAX_HOST_CIRCUITS, records: "circuits of hosts" });
                }
                set(&mut self.host_circuits, (name, host), value, |_: &CircuitSetting| Ok(()))?;
            }
            (ControlKey::Kill(name), Some(_)) if self.kills.len() >= MAX_KILLS && !self.kills.contains_key(&name) => {
                return Err(InvalidRecord::TooMany { limit: MAX_KILLS, records: "kill switches" });
            }
            (ControlKey::Kill(name), value) => set(&mut self.kills, name, value, check_kill_switch)?,
            (ControlKey::Offsets(name, partition), value) => {
                let check = |at: &Offsets| match at.offset {
                    ..0 => Err(InvalidRecord::Value("its offset is negative".to_owned())),
                    _ => Ok(()),
                };
                set(&mut self.offsets, (name, partition), value, check)?;
            }
            (ControlKey::Group(name), value) => {
                let check = |group: &Group| check_type(&group.group).map_err(InvalidRecord::Value);
                set(&mut self.groups.0, name, value, check)?;
            }
            (ControlKey::Type(name), value) => self.types.apply_record(name, value)?,
            (ControlKey::View(name), value) => self.views.apply_record(name, value)?,
        }
        Ok(())
    }

    /// Circuits of a type's hosts that operators have set.
    pub fn hosts_of<'a>(&'a self, task_type: &'a str) -> impl Iterator<Item = (&'a str, ForcedCircuit)> {
        self.host_settings(task_type).map(|(host, setting)| (host, setting.state))
    }

    /// Settings of the circuits of a type's hosts.
    pub fn host_settings<'a>(&'a self, task_type: &'a str) -> impl Iterator<Item = (&'a str, &'a CircuitSetting)> {
        let from = (task_type.to_owned(), String::new());
        let of_type = self.host_circuits.range(from..).take_while(move |((name, _), _)| name == task_type);
        of_type.map(|((_, host), setting)| (host.as_str(), setting))
    }

    /// Returns the name of the consumer group that contains a type's commits: the type's own name, unless it shares one.
    pub fn group_of<'a>(&'a self, task_type: &'a str) -> &'a str {
        self.groups.group_of(task_type)
    }

    /// Records of the types' consumer groups.
    pub fn groups(&self) -> &GroupRecords {
        &self.groups
    }

    /// Returns true if there are cancels or kill switches, so that tasks must be checked against them.
    pub fn concerns_tasks(&self) -> bool {
        !self.cancels.is_empty() || !self.kills.is_empty()
    }

    /// Active requests to start tasks now, by task.
    pub fn starts(&self) -> impl ExactSizeIterator<Item = (&str, &StartNow)> {
        self.starts.iter()
    }

    /// Returns whether a request ends the wait of a task before this start.
    pub fn starts_now(&self, id: &TaskId, next_start: NextStart) -> bool {
        self.starts.get(id.as_str()).is_some_and(|start| start.next_start == next_start)
    }

    /// Active cancels by task.
    pub fn cancels(&self) -> impl ExactSizeIterator<Item = (&str, &Cancel)> {
        self.cancels.iter()
    }

    /// Reason why a task that has not started must not start.
    pub fn forbids(&self, task: &TaskSpec) -> Option<Cancellation> {
        self.cancels_task(task).or_else(|| self.kills_task(task))
    }

    /// Reason why a task must end, running or not.
    pub fn cancels_task(&self, task: &TaskSpec) -> Option<Cancellation> {
        if self.cancels.is_empty() {
            return None;
        }
        let asof = task.asof.unwrap_or(-1);
        let applies = |cancel: &&Cancel| asof < cancel.asof;
        let cancel_of = |path: &str| self.cancels.get(path);
        let of_task = cancel_of(task.id.as_str()).filter(applies).map(|cancel| (cancel, task.id.as_str()));
        let above = || {
            let mut above = task.id.ancestors().filter_map(|path| Some((cancel_of(path)?, path)));
            above.find(|(cancel, _)| cancel.subtree && applies(cancel))
        };
        let (cancel, named) = of_task.or_else(above)?;
        let with = Some(named).filter(|named| *named != task.id.as_str());
        let message = cancel_message(with, "", cancel.reason.as_deref());
        Some(Cancellation { kind: "cancelled", message, by: cancel.by.clone() })
    }

    fn kills_task(&self, task: &TaskSpec) -> Option<Cancellation> {
        let tags = task.policy.as_ref().map_or(&[][..], |policy| &policy.tags);
        let subject = KillSubject { id: &task.id, task_type: &task.task_type, tags, params: Some(&task.params) };
        let (name, kill) = self.kill_of(&subject)?;
        let params =
            if kill.params.is_empty() { String::new() } else { format!(" for params {}", kill.params.pointers_text()) };
        let reason = kill.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        let message = format!("the kill switch `{name}` is on{params}{reason}");
        Some(Cancellation { kind: "killed", message, by: None })
    }

    /// Kill switches that can affect tasks of a type.
    pub fn kills_in(&self, task_type: &str) -> impl Iterator<Item = &str> {
        let concerns = move |kill: &Kill| kill.task_type.as_deref().is_none_or(|only| only == task_type);
        self.kills.iter().filter(move |(_, kill)| concerns(kill)).map(|(name, _)| name.as_str())
    }

    /// Returns whether a kill switch compares the params of a type's tasks.
    pub fn compares_params(&self, task_type: &str) -> bool {
        self.kills.values().any(|kill| !kill.params.is_empty() && kill.task_type.as_deref() == Some(task_type))
    }

    /// Kill switch that affects a task.
    pub fn kill_of(&self, task: &KillSubject<'_>) -> Option<(&str, &Kill)> {
        self.kills.iter().map(|(name, kill)| (name.as_str(), kill)).find(|(name, kill)| kill.rule(name).concerns(task))
    }
}

/// Checks a kill switch: a switch with params and without a type would make workers read the params of all tasks.
fn check_kill_switch(kill: &Kill) -> Result<(), InvalidRecord> {
    match &kill.task_type {
        None if !kill.params.is_empty() => Err(InvalidRecord::Value("it has params and no type".to_owned())),
        _ => Ok(()),
    }
}

fn check_adaptive(record: &AdaptiveRecord) -> Result<(), InvalidRecord> {
    let limit = record.learned.limit;
    if limit.is_finite() && limit > 0.0 {
        return Ok(());
    }
    Err(InvalidRecord::Value(format!("its limit is {limit}; it must be above 0")))
}

fn check_slots(limit: &Slots) -> Result<(), InvalidRecord> {
    if let Some(error) = limit.adaptive.and_then(|adaptive| adaptive.check().err()) {
        return Err(InvalidRecord::Value(error));
    }
    let reason = match (limit.slots, limit.max_concurrency) {
        (None, None) if limit.adaptive.is_none() => {
            "it has none of `slots`, `max_concurrency` and `adaptive`".to_owned()
        }
        (Some(0), _) | (_, Some(0)) => "a limit of 0 is not allowed: pause the type instead".to_owned(),
        (Some(slots), _) if slots > MAX_SLOTS => format!("{slots} slots: at most {MAX_SLOTS} are allowed"),
        _ => return Ok(()),
    };
    Err(InvalidRecord::Value(reason))
}

fn set<K: Ord, T: DeserializeOwned>(
    map: &mut BTreeMap<K, T>,
    key: K,
    value: Option<&[u8]>,
    check: impl Fn(&T) -> Result<(), InvalidRecord>,
) -> Result<(), InvalidRecord> {
    match value {
        Some(value) => {
            let record = read::<T>(value)?;
            check(&record)?;
            map.insert(key, record);
        }
        None => {
            map.remove(&key);
        }
    }
    Ok(())
}
