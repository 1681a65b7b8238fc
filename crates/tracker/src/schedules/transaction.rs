//! Transactions of the scheduler: the events of due tasks and the states that record them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kafleet_fleet::control::schedules::{ScheduleKey, ScheduleRequest, ScheduleSpan};
use kafleet_fleet::publish::traced_event;
use kafleet_model::event::{CancelScope, Event, Payload};
use kafleet_model::schedule::step::ScheduleProgress;
use kafleet_model::schedule::{Overlap, Template, run_of, task_of};
use kafleet_model::task::TaskSpec;
use kafleet_model::task::id::TaskId;
use kafleet_model::units::time::time_text;
use serde::Serialize;
use serde_json::json;
use tokio::time::Instant;

use super::presence;
use super::table::{PendingRequest, ScheduleEntry, ScheduleRequestName, ScheduleTable};
use crate::error::TrackerError;
use crate::outbox::entry::{OutboxMessage, event_message};
use crate::setup::TrackerSetup;

/// Maximum records per transaction; the rest follows in the next one.
const MAX_TRANSACTION_RECORDS: usize = 500;
/// Times of a backfill per transaction.
const BACKFILL_STEP: usize = 100;
const SOURCE: &str = "kafleet/schedules";
/// Time for which a missing topic is not looked up again.
const MISSING_TTL: Duration = Duration::from_secs(2);
const CONTROL_PARTITION: i32 = 0;

/// Records of one transaction, and the changes to apply once it is committed.
#[derive(Default)]
pub(super) struct ScheduleTransaction {
    pub messages: Vec<OutboxMessage>,
    pub states: Vec<(String, ScheduleProgress)>,
    /// Remaining parts of requests; `None` deletes a request.
    pub requests: Vec<(ScheduleRequestName, Option<ScheduleRequest>)>,
    pub orphans: Vec<String>,
    /// Due times of the fired tasks.
    pub due: Vec<i64>,
    /// Types of the created tasks.
    pub types: Vec<String>,
    /// Reasons why due schedules are not included.
    pub blocked: Vec<String>,
    /// Something is blocked for another reason than time.
    pub waits: bool,
}

impl ScheduleTransaction {
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    fn is_full(&self) -> bool {
        self.messages.len() >= MAX_TRANSACTION_RECORDS
    }
}

pub(super) struct TaskFactory {
    setup: Arc<TrackerSetup>,
    events: Arc<str>,
    control: Arc<str>,
    /// Existence of topics, and the time of each lookup.
    topics: HashMap<String, (bool, Instant)>,
}

impl TaskFactory {
    pub(super) fn new(setup: Arc<TrackerSetup>) -> Self {
        let (events, control) = (setup.topology.names.events().into(), setup.topology.names.control().into());
        Self { setup, events, control, topics: HashMap::new() }
    }

    /// Collects everything to be written now.
    pub(super) async fn collect(
        &mut self,
        table: &mut ScheduleTable,
        now_ms: i64,
    ) -> Result<ScheduleTransaction, TrackerError> {
        let mut transaction = ScheduleTransaction::default();
        for name in table.orphans.iter().take(MAX_TRANSACTION_RECORDS) {
            transaction
                .messages
                .push(self.control_record(&ScheduleKey::State(name.clone()), None::<&ScheduleProgress>)?);
            transaction.orphans.push(name.clone());
        }
        for (name, entry) in &mut table.entries {
            if transaction.is_full() {
                break;
            }
            self.times(name, entry, now_ms, &mut transaction).await?;
        }
        let requests: Vec<ScheduleRequestName> =
            table.requests.iter().filter(|(_, open)| open.done.is_none()).map(|(name, _)| name.clone()).collect();
        for name in requests {
            if transaction.is_full() {
                break;
            }
            self.request(table, &name, now_ms, &mut transaction).await?;
        }
        Ok(transaction)
    }

    /// Adds the due times of a schedule.
    async fn times(
        &mut self,
        name: &str,
        entry: &mut ScheduleEntry,
        now_ms: i64,
        transaction: &mut ScheduleTransaction,
    ) -> Result<(), TrackerError> {
        if entry.times.is_none() {
            transaction.blocked.push(format!("the schedule `{name}` cannot fire: this build cannot parse its times"));
        }
        let waiting = entry.state.waiting_ms.is_some();
        if entry.due_ms.is_none_or(|due| due > now_ms) && !waiting {
            return Ok(());
        }
        if let Some(error) = self.blocking_reason(name, &entry.schedule.spec.task).await? {
            transaction.blocked.push(error);
            return Ok(());
        }
        let is_running = match entry.schedule.spec.overlap {
            Overlap::Allow => Some(false),
            _ => presence::is_running(&self.setup, entry).await?,
        };
        let Some(is_running) = is_running else {
            transaction.waits = true;
            return Ok(());
        };
        let Some(times) = &entry.times else { return Ok(()) };
        let mut state = entry.state.clone();
        let due_tasks = state.step(name, &entry.schedule, times, is_running, now_ms);
        transaction.waits |= state.waiting_ms.is_some();
        if state == entry.state {
            return Ok(());
        }
        for fire in due_tasks {
            if let Some(task) = &fire.replaces {
                transaction.messages.extend(self.cancel(name, task, now_ms)?);
            }
            transaction.messages.push(self.task(name, &fire.task, &entry.schedule.spec.task, fire.time_ms, now_ms)?);
            transaction.types.push(entry.schedule.spec.task.task_type.clone());
            transaction.due.push(times.firing_time_ms(name, fire.time_ms));
        }
        self.state(name, state, transaction)
    }

    /// Processes a request.
    async fn request(
        &mut self,
        table: &mut ScheduleTable,
        name: &ScheduleRequestName,
        now_ms: i64,
        transaction: &mut ScheduleTransaction,
    ) -> Result<(), TrackerError> {
        let Some(open) = table.requests.get_mut(name) else { return Ok(()) };
        // A state is written at most once per transaction.
        let written = transaction.states.iter().any(|(schedule, _)| *schedule == name.0);
        let Some(entry) = table.entries.get(&name.0).filter(|_| !written) else {
            return if written { Ok(()) } else { self.update_request(name, None, transaction) };
        };
        if let Some(error) = self.blocking_reason(&name.0, &entry.schedule.spec.task).await? {
            transaction.blocked.push(error);
            return Ok(());
        }
        let mut state = entry.state.clone();
        let Some(span) = open.request.backfill else {
            let task = TaskId::parse(&run_of(&name.0, &name.1))?;
            let Some(existing) = self.existing_tasks(open, std::slice::from_ref(&task), transaction).await? else {
                return Ok(());
            };
            self.update_request(name, None, transaction)?;
            if existing.contains(&task) {
                // The request was repeated by a client that received no answer.
                return Ok(());
            }
            transaction.messages.push(self.task(
                &name.0,
                task.as_str(),
                &entry.schedule.spec.task,
                open.request.at_ms,
                now_ms,
            )?);
            transaction.types.push(entry.schedule.spec.task.task_type.clone());
            state.record_run(task.as_str(), now_ms);
            return self.state(&name.0, state, transaction);
        };
        self.backfill(name, entry, open, span, state, now_ms, transaction).await
    }

    /// Adds the next times of a backfill that have no task. Times that the schedule has yet to decide on are left
    /// out.
    #[expect(clippy::too_many_arguments, reason = "one step of one request with all its context")]
    async fn backfill(
        &self,
        name: &ScheduleRequestName,
        entry: &ScheduleEntry,
        open: &mut PendingRequest,
        span: ScheduleSpan,
        mut state: ScheduleProgress,
        now_ms: i64,
        transaction: &mut ScheduleTransaction,
    ) -> Result<(), TrackerError> {
        let Some(times) = &entry.times else { return self.update_request(name, None, transaction) };
        let undecided = state.next(&entry.schedule, times).filter(|_| entry.schedule.paused.is_none());
        let is_past = |time: &i64| *time <= span.to_ms.min(now_ms) && undecided.is_none_or(|first| *time < first);
        let mut due = times.upcoming(span.from_ms.saturating_sub(1), BACKFILL_STEP);
        due.retain(is_past);
        let (goes_on, last) = (due.len() == BACKFILL_STEP, due.last().copied().unwrap_or(span.to_ms));
        // A time that waits for the end of another task fires by itself.
        due.retain(|time| state.waiting_ms != Some(*time));
        let tasks: Result<Vec<TaskId>, _> = due.iter().map(|time| TaskId::parse(&task_of(&name.0, *time))).collect();
        let tasks = tasks?;
        let Some(existing) = self.existing_tasks(open, &tasks, transaction).await? else { return Ok(()) };
        let missing: Vec<_> = due.iter().zip(&tasks).filter(|(_, task)| !existing.contains(*task)).collect();
        for (time, task) in &missing {
            transaction.messages.push(self.task(&name.0, task.as_str(), &entry.schedule.spec.task, **time, now_ms)?);
            transaction.types.push(entry.schedule.spec.task.task_type.clone());
        }
        let next_wait = goes_on.then(|| ScheduleRequest {
            backfill: Some(ScheduleSpan { from_ms: last + 1, ..span }),
            ..open.request.clone()
        });
        self.update_request(name, next_wait, transaction)?;
        if missing.is_empty() {
            return Ok(());
        }
        state.record_backfill(last, missing.len() as u64, now_ms);
        self.state(&name.0, state, transaction)
    }

    /// Returns the existing tasks among these; `None` if more must be folded first.
    async fn existing_tasks(
        &self,
        open: &mut PendingRequest,
        tasks: &[TaskId],
        transaction: &mut ScheduleTransaction,
    ) -> Result<Option<HashSet<TaskId>>, TrackerError> {
        // Tasks fired before this moment are known once it is folded; firing more tasks resets it.
        if open.ends.is_none() {
            open.ends = Some(presence::current_ends(&self.setup, tasks).await?);
        }
        if !presence::is_folded(&self.setup, open.ends.as_deref().unwrap_or_default()).await? {
            transaction.waits = true;
            return Ok(None);
        }
        open.ends = None;
        Ok(Some(presence::existing_tasks(&self.setup, tasks).await?))
    }

    /// Reason why a schedule cannot fire, if any.
    async fn blocking_reason(&mut self, name: &str, task: &Template) -> Result<Option<String>, TrackerError> {
        let topic = self.setup.topology.names.tasks(&task.task_type);
        let exists = match self.topics.get(&topic) {
            Some((true, _)) => true,
            Some((false, asked)) if asked.elapsed() < MISSING_TTL => false,
            _ => {
                let infos = self.setup.broker.client().topics(&topic).await?;
                let exists = infos.iter().any(|info| info.name == topic);
                self.topics.insert(topic.clone(), (exists, Instant::now()));
                exists
            }
        };
        let hint = "hint: add its type and run `kafleet topics apply`";
        Ok((!exists).then(|| format!("the schedule `{name}` cannot fire: the topic `{topic}` does not exist ({hint})")))
    }

    /// Builds the event of a task that may start at once.
    fn task(
        &self,
        schedule: &str,
        task: &str,
        template: &Template,
        time_ms: i64,
        now_ms: i64,
    ) -> Result<OutboxMessage, TrackerError> {
        let id = TaskId::parse(task)?;
        let task = new_task(schedule, id, template, time_ms, now_ms);
        let tracer = self.setup.tracer.as_ref();
        let traced = tracer.map(|tracer| (tracer, &self.setup.topology.names));
        let (event, span) = traced_event(task, SOURCE, now_ms, traced)?;
        if let Some((tracer, span)) = tracer.zip(span) {
            // A transaction that is repeated writes the same span again.
            tracer.finish(span);
        }
        self.event(&event)
    }

    /// Builds the cancel of a replaced task; `None` if its id is invalid.
    fn cancel(&self, schedule: &str, task: &str, now_ms: i64) -> Result<Option<OutboxMessage>, TrackerError> {
        let Ok(id) = TaskId::parse(task) else { return Ok(None) };
        let mut event = Event::new(Payload::CancelRequested(CancelScope::default()), id, 1, now_ms);
        event.message = Some(format!("replaced by the next task of the schedule `{schedule}`"));
        self.event(&event).map(Some)
    }

    fn event(&self, event: &Event) -> Result<OutboxMessage, TrackerError> {
        let partition = self.setup.topology.partition_of(&event.id);
        Ok(event_message(&self.events, partition, event)?)
    }

    fn state(
        &self,
        name: &str,
        state: ScheduleProgress,
        transaction: &mut ScheduleTransaction,
    ) -> Result<(), TrackerError> {
        transaction.messages.push(self.control_record(&ScheduleKey::State(name.to_owned()), Some(&state))?);
        transaction.states.push((name.to_owned(), state));
        Ok(())
    }

    fn update_request(
        &self,
        name: &ScheduleRequestName,
        next_wait: Option<ScheduleRequest>,
        transaction: &mut ScheduleTransaction,
    ) -> Result<(), TrackerError> {
        transaction.messages.push(
            self.control_record(&ScheduleKey::ScheduleRequest(name.0.clone(), name.1.clone()), next_wait.as_ref())?,
        );
        transaction.requests.push((name.clone(), next_wait));
        Ok(())
    }

    fn control_record<T: Serialize>(
        &self,
        key: &ScheduleKey,
        value: Option<&T>,
    ) -> Result<OutboxMessage, TrackerError> {
        let value = value.map(serde_json::to_vec).transpose()?;
        Ok(OutboxMessage::plain(self.control.clone(), CONTROL_PARTITION, key.to_string(), value))
    }
}

fn new_task(schedule: &str, id: TaskId, template: &Template, time_ms: i64, now_ms: i64) -> TaskSpec {
    let mut policy = template.policy.clone();
    let options = policy.rules.options.get_or_insert_with(|| json!({}).into());
    options.set("schedule", json!(schedule));
    options.set("scheduled_for", json!(time_text(time_ms)));
    policy.creator.get_or_insert_with(|| format!("schedule/{schedule}"));
    policy.expires_at_ms = template.expires.map(|span| now_ms.saturating_add(span.as_i64()));
    let mut task = TaskSpec::new(id, template.task_type.as_str(), template.params.clone());
    task.key = template.key.clone().map(Into::into);
    task.set_policy(policy);
    task
}
