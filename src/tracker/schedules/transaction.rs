//! What is written together: the events of tasks that are due, and the states that say so.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::presence;
use super::table::{Entry, Open, ScheduleRequestName, ScheduleTable};
use crate::control::schedules::{ScheduleKey, ScheduleRequest, Span};
use crate::model::event::{Event, Kind};
use crate::model::json::RawJson;
use crate::model::schedule::step::State;
use crate::model::schedule::{Overlap, Template, run_of, task_of};
use crate::model::task::id::TaskId;
use crate::model::task::{Policy, Rules};
use crate::publish::{NewTask, scheduled_event, time_text};
use crate::runtime::blocking;
use crate::tracker::TrackerSetup;
use crate::tracker::outbox::entry::{Message, event_message};

/// Records in one transaction: what is due beyond that comes with the next one.
const BURST: usize = 500;
/// Times of a backfill in one transaction.
const BACKFILL_STEP: usize = 100;
const SOURCE: &str = "kafleet/schedules";
const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// How long a topic that is missing is believed to be missing.
const MISSING_FOR: Duration = Duration::from_secs(2);
const CONTROL_PARTITION: i32 = 0;

/// What one transaction holds, and what is so once it is done.
#[derive(Default)]
pub struct ScheduleTransaction {
    pub messages: Vec<Message>,
    pub states: Vec<(String, State)>,
    /// What is left of requests; None: nothing.
    pub asks: Vec<(ScheduleRequestName, Option<ScheduleRequest>)>,
    pub orphans: Vec<String>,
    /// When what it fires was due.
    pub due: Vec<i64>,
    /// Why something that is due is not in it.
    pub held: Vec<String>,
    /// Something waits for something else than a time.
    pub waits: bool,
}

impl ScheduleTransaction {
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    fn is_full(&self) -> bool {
        self.messages.len() >= BURST
    }
}

pub struct TaskFactory {
    setup: Arc<TrackerSetup>,
    events: Arc<str>,
    control: Arc<str>,
    /// Whether topics exist, and when that was asked.
    topics: HashMap<String, (bool, Instant)>,
}

impl TaskFactory {
    pub fn new(setup: Arc<TrackerSetup>) -> Self {
        let (events, control) = (setup.names.events().into(), setup.names.control().into());
        Self { setup, events, control, topics: HashMap::new() }
    }

    /// Everything that is to be written now.
    pub async fn gather(&mut self, book: &mut ScheduleTable, now_ms: i64) -> Result<ScheduleTransaction, String> {
        let mut burst = ScheduleTransaction::default();
        for name in book.orphans.iter().take(BURST) {
            burst.messages.push(self.said(&ScheduleKey::State(name.clone()), None::<&State>)?);
            burst.orphans.push(name.clone());
        }
        for (name, entry) in &mut book.entries {
            if burst.is_full() {
                break;
            }
            self.times(name, entry, now_ms, &mut burst).await?;
        }
        let asks: Vec<ScheduleRequestName> =
            book.asks.iter().filter(|(_, open)| open.done.is_none()).map(|(name, _)| name.clone()).collect();
        for name in asks {
            if burst.is_full() {
                break;
            }
            self.ask(book, &name, now_ms, &mut burst).await?;
        }
        Ok(burst)
    }

    /// The times of a schedule that are due.
    async fn times(&mut self, name: &str, entry: &mut Entry, now_ms: i64, burst: &mut ScheduleTransaction) -> Result<(), String> {
        if entry.times.is_none() {
            burst.held.push(format!("the schedule `{name}` cannot fire: this build cannot read its times"));
        }
        let waiting = entry.state.waiting_ms.is_some();
        if entry.due_ms.is_none_or(|due| due > now_ms) && !waiting {
            return Ok(());
        }
        if let Some(why) = self.hindrance(name, &entry.schedule.spec.task).await? {
            burst.held.push(why);
            return Ok(());
        }
        let runs = entry.schedule.spec.overlap != Overlap::Allow && presence::runs(&self.setup, entry).await?;
        let Some(times) = &entry.times else { return Ok(()) };
        let mut state = entry.state.clone();
        let fires = state.step(name, &entry.schedule, times, runs, now_ms);
        burst.waits |= state.waiting_ms.is_some();
        if state == entry.state {
            return Ok(());
        }
        for fire in fires {
            burst.messages.extend(fire.replaces.and_then(|task| self.cancel(name, &task, now_ms)));
            burst.messages.push(self.task(name, &fire.task, &entry.schedule.spec.task, fire.time_ms, now_ms)?);
            burst.due.push(times.fires_at(name, fire.time_ms));
        }
        self.state(name, state, burst)
    }

    /// Something that was asked for.
    async fn ask(
        &mut self,
        book: &mut ScheduleTable,
        name: &ScheduleRequestName,
        now_ms: i64,
        burst: &mut ScheduleTransaction,
    ) -> Result<(), String> {
        let Some(open) = book.asks.get_mut(name) else { return Ok(()) };
        // Its state is written once in a burst.
        let written = burst.states.iter().any(|(schedule, _)| *schedule == name.0);
        let Some(entry) = book.entries.get(&name.0).filter(|_| !written) else {
            return if written { Ok(()) } else { self.answered(name, None, burst) };
        };
        if let Some(why) = self.hindrance(&name.0, &entry.schedule.spec.task).await? {
            burst.held.push(why);
            return Ok(());
        }
        let mut state = entry.state.clone();
        let Some(span) = open.ask.backfill else {
            let task = TaskId::parse(&run_of(&name.0, &name.1)).map_err(|why| why.to_string())?;
            let Some(known) = self.known(open, std::slice::from_ref(&task), burst).await? else { return Ok(()) };
            self.answered(name, None, burst)?;
            if known.contains(&task) {
                // Whoever asked could not know that it was heard, and has asked again.
                return Ok(());
            }
            burst.messages.push(self.task(&name.0, task.as_str(), &entry.schedule.spec.task, open.ask.at_ms, now_ms)?);
            state.ran(task.as_str(), now_ms);
            return self.state(&name.0, state, burst);
        };
        self.backfill(name, entry, open, span, state, now_ms, burst).await
    }

    /// The next times of a backfill that have no task. Times that the schedule itself has yet to decide are not touched.
    #[expect(clippy::too_many_arguments, reason = "one step of one request, with all that it touches")]
    async fn backfill(
        &self,
        name: &ScheduleRequestName,
        entry: &Entry,
        open: &mut Open,
        span: Span,
        mut state: State,
        now_ms: i64,
        burst: &mut ScheduleTransaction,
    ) -> Result<(), String> {
        let Some(times) = &entry.times else { return self.answered(name, None, burst) };
        let undecided = state.next(&entry.schedule, times).filter(|_| entry.schedule.paused.is_none());
        let is_past = |time: &i64| *time <= span.to_ms.min(now_ms) && undecided.is_none_or(|first| *time < first);
        let mut due = times.upcoming(span.from_ms - 1, BACKFILL_STEP);
        due.retain(is_past);
        let (goes_on, last) = (due.len() == BACKFILL_STEP, due.last().copied().unwrap_or(span.to_ms));
        // One that waits for the end of another comes by itself.
        due.retain(|time| state.waiting_ms != Some(*time));
        let tasks: Result<Vec<TaskId>, _> = due.iter().map(|time| TaskId::parse(&task_of(&name.0, *time))).collect();
        let tasks = tasks.map_err(|why| why.to_string())?;
        let Some(known) = self.known(open, &tasks, burst).await? else { return Ok(()) };
        let missing: Vec<_> = due.iter().zip(&tasks).filter(|(_, task)| !known.contains(*task)).collect();
        for (time, task) in &missing {
            burst.messages.push(self.task(&name.0, task.as_str(), &entry.schedule.spec.task, **time, now_ms)?);
        }
        let rest = goes_on.then(|| ScheduleRequest { backfill: Some(Span { from_ms: last + 1, ..span }), ..open.ask.clone() });
        self.answered(name, rest, burst)?;
        if missing.is_empty() {
            return Ok(());
        }
        state.backfilled(last, missing.len() as u64, now_ms);
        self.state(&name.0, state, burst)
    }

    /// Those of these tasks that there are. None: not before more is folded.
    async fn known(
        &self,
        open: &mut Open,
        tasks: &[TaskId],
        burst: &mut ScheduleTransaction,
    ) -> Result<Option<HashSet<TaskId>>, String> {
        // What was fired before this moment is known once it is folded; whatever is fired after it makes it a later one.
        if open.ends.is_none() {
            open.ends = Some(presence::ends_of(&self.setup, tasks).await?);
        }
        if !presence::is_folded(&self.setup, open.ends.as_deref().unwrap_or_default()).await? {
            burst.waits = true;
            return Ok(None);
        }
        open.ends = None;
        presence::known(&self.setup, tasks).await.map(Some)
    }

    /// Why a schedule cannot fire, if it cannot.
    async fn hindrance(&mut self, name: &str, task: &Template) -> Result<Option<String>, String> {
        let topic = self.setup.names.tasks(&task.task_type);
        let exists = match self.topics.get(&topic) {
            Some((true, _)) => true,
            Some((false, asked)) if asked.elapsed() < MISSING_FOR => false,
            _ => {
                let (broker, wanted) = (self.setup.broker.clone(), topic.clone());
                let infos = blocking(move || broker.topics(&wanted, CALL_DEADLINE)).await?.map_err(|error| error.to_string())?;
                let exists = infos.iter().any(|info| info.name == topic);
                self.topics.insert(topic.clone(), (exists, Instant::now()));
                exists
            }
        };
        let hint = "hint: add its type and run `kafleet topics apply`";
        Ok((!exists).then(|| format!("the schedule `{name}` cannot fire: the topic `{topic}` does not exist ({hint})")))
    }

    /// The event of a task that may start at once.
    fn task(&self, schedule: &str, task: &str, template: &Template, time_ms: i64, now_ms: i64) -> Result<Message, String> {
        let id = TaskId::parse(task).map_err(|why| why.to_string())?;
        let new = new_task(schedule, id, template, time_ms, now_ms)?;
        let event = scheduled_event(new, SOURCE, now_ms, now_ms).map_err(|why| why.to_string())?;
        Ok(self.event(&event))
    }

    /// None: there is nothing to cancel.
    fn cancel(&self, schedule: &str, task: &str, now_ms: i64) -> Option<Message> {
        let mut event = Event::new(Kind::CancelRequested, TaskId::parse(task).ok()?, 1, now_ms);
        event.message = Some(format!("replaced by the next task of the schedule `{schedule}`"));
        Some(self.event(&event))
    }

    fn event(&self, event: &Event) -> Message {
        event_message(&self.events, presence::partition(&self.setup, &event.id), event)
    }

    fn state(&self, name: &str, state: State, burst: &mut ScheduleTransaction) -> Result<(), String> {
        burst.messages.push(self.said(&ScheduleKey::State(name.to_owned()), Some(&state))?);
        burst.states.push((name.to_owned(), state));
        Ok(())
    }

    fn answered(
        &self,
        name: &ScheduleRequestName,
        rest: Option<ScheduleRequest>,
        burst: &mut ScheduleTransaction,
    ) -> Result<(), String> {
        burst.messages.push(self.said(&ScheduleKey::ScheduleRequest(name.0.clone(), name.1.clone()), rest.as_ref())?);
        burst.asks.push((name.clone(), rest));
        Ok(())
    }

    fn said<T: Serialize>(&self, key: &ScheduleKey, value: Option<&T>) -> Result<Message, String> {
        let value = value.map(serde_json::to_vec).transpose().map_err(|why| why.to_string())?;
        Ok(Message::plain(self.control.clone(), CONTROL_PARTITION, key.to_string(), value))
    }
}

fn new_task(schedule: &str, id: TaskId, template: &Template, time_ms: i64, now_ms: i64) -> Result<NewTask, String> {
    let params = RawJson::of(&template.params).map_err(|why| why.to_string())?;
    let mut options: Map<String, Value> = template.options.as_ref().and_then(Value::as_object).cloned().unwrap_or_default();
    options.insert("schedule".into(), json!(schedule));
    options.insert("scheduled_for".into(), json!(time_text(time_ms)));
    let mut new = NewTask::new(&template.task_type, params);
    new.id = Some(id);
    new.key = template.key.clone();
    new.policy = Policy {
        expires_at_ms: template.expires.map(|span| now_ms.saturating_add(span.as_i64())),
        retries: template.retries,
        min_backoff: template.min_backoff,
        max_backoff: template.max_backoff,
        timeout: template.timeout,
        name: template.name.clone(),
        creator: Some(template.creator.clone().unwrap_or_else(|| format!("schedule/{schedule}"))),
        tags: template.tags.clone(),
        link: template.link.clone(),
        rules: Rules { options: Some(options.into()), ..template.rules() },
        ..Policy::default()
    };
    Ok(new)
}
