//! Records and tasks that cannot be done: to the dead letters, with the reason.

use std::time::Duration;

use tokio::time::Instant;

use super::Dispatcher;
use crate::broker::Record;
use crate::handlers::ParamsError;
use crate::model::event::{Announcement, ErrorInfo, Event, Kind};
use crate::model::task::id::TaskId;
use crate::model::task::{Position, Reject};
use crate::runtime::{self, now_ms};
use crate::worker::attempt::output::FLUSH_INTERVAL;
use crate::worker::completions::DeliveryTag;
use crate::worker::dead_letter::{Body, DeadLetter};
use crate::worker::decode::{InFlight, Invalid};

impl Dispatcher {
    pub(super) fn refuse(&mut self, held: Box<InFlight>, (code, message, pointer): (&'static str, String, Option<String>)) {
        let mut event = self.event(Kind::Failed, &held);
        event.error = Some(Box::new(ErrorInfo::new(code, message.clone(), 0)));
        self.meter_rejected();
        self.pass_turn(&held);
        let tag = held.tag;
        let burial = self.burial(held, code, message, pointer);
        self.dead_letter(burial, Some(event), tag);
    }

    pub(super) fn dead_letter_task(&mut self, held: Box<InFlight>, event: Event, code: &str, message: String) {
        self.output.forget(&held.task.id, held.task.run);
        self.pass_turn(&held);
        let tag = held.tag;
        let burial = self.burial(held, code, message, None);
        self.dead_letter(burial, Some(event), tag);
    }

    pub(super) fn burial(&self, held: Box<InFlight>, code: &str, message: String, pointer: Option<String>) -> DeadLetter {
        DeadLetter {
            task_type: self.parts.task_type.clone(),
            key: held.task.id.as_str().as_bytes().to_vec(),
            task: Some((held.task.id.clone(), held.task.run)),
            code: code.to_owned(),
            message,
            pointer,
            body: Body::Task(held),
        }
    }

    pub(super) fn reject(&mut self, rejected: Box<Invalid>) {
        let Invalid { record, reject, tag, .. } = &*rejected;
        let tag = *tag;
        if self.closed_assignments.contains(&tag.slot()) {
            self.parts.inbox.returned(tag);
            return;
        }
        tracing::warn!(task_type = %self.parts.task_type, partition = record.partition, offset = record.offset, code = reject.code, reason = %reject.message, "not a task: to the dead letters");
        self.meter_rejected();
        let event = reject.task.as_ref().map(|(id, run)| self.rejection(id, *run, reject, record));
        let key = match &reject.task {
            Some((id, _)) => id.as_str().as_bytes().to_vec(),
            None => record.key.clone().unwrap_or_default(),
        };
        let burial = DeadLetter {
            task_type: self.parts.task_type.clone(),
            key,
            task: reject.task.clone(),
            code: reject.code.to_owned(),
            message: reject.message.clone(),
            pointer: reject.pointer.clone(),
            body: Body::Record(rejected),
        };
        self.dead_letter(burial, event, tag);
    }

    fn meter_rejected(&mut self) {
        self.next_flush.get_or_insert(Instant::now() + FLUSH_INTERVAL);
        self.parts.meter.finished("rejected", Duration::ZERO);
    }

    pub(super) fn rejection(&self, id: &TaskId, run: u32, reject: &Reject, record: &Record) -> Event {
        let mut event = Event::new(Kind::Failed, id.clone(), run, now_ms());
        event.worker = Some(self.parts.events.worker.clone());
        event.error = Some(Box::new(ErrorInfo::new(reject.code, reject.message.clone(), 0)));
        event.task = Some(Box::new(Announcement {
            task_type: self.parts.task_type.clone(),
            created_at_ms: record.timestamp_ms,
            position: Some(Position { partition: record.partition, offset: record.offset }),
            hash: None,
            policy: None,
            asof: None,
        }));
        event
    }

    /// Writes a dead letter, then the event, some at a time. The dispatcher does not wait for it: they are as many as were
    /// handed out at most, and what they hold is counted.
    pub(super) fn dead_letter(&mut self, burial: DeadLetter, event: Option<Event>, tag: DeliveryTag) {
        self.parts.meter.dead_letter(&burial.code);
        let (dead_letters, inbox) = (self.parts.dead_letters.clone(), self.parts.inbox.clone());
        let (burials, gone) = (self.burials.clone(), self.gone.clone());
        runtime::spawn(gone.run_until_cancelled_owned(async move {
            let Ok(permit) = burials.acquire_owned().await else { return };
            dead_letters.dead_letter(burial).await;
            match event {
                Some(event) => dead_letters.events.report(&event, tag, &mut Vec::new()).await,
                None => inbox.done(tag),
            }
            drop(permit);
        }));
    }
}

/// Code, message and pointer of a dead letter whose params do not fit.
pub(super) fn burial_of(misfit: ParamsError) -> (&'static str, String, Option<String>) {
    let at = if misfit.pointer.is_empty() { "the params".to_owned() } else { format!("`{}`", misfit.pointer) };
    ("schema", format!("{at} do not fit the type: {}", misfit.message), Some(misfit.pointer))
}
