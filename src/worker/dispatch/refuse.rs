//! Records and tasks that cannot be done: to the dead letters, with the reason.

use std::time::Duration;

use tokio::time::Instant;

use super::Dispatcher;
use crate::broker::Record;
use crate::handlers::Misfit;
use crate::model::event::{Announcement, ErrorInfo, Event, Kind};
use crate::model::id::TaskId;
use crate::model::task::{Position, Reject};
use crate::runtime::{self, now_ms};
use crate::worker::bury::{Body, Burial};
use crate::worker::intake::{Held, Rejected};
use crate::worker::notes::FLUSH_INTERVAL;
use crate::worker::ticket::Ticket;

impl Dispatcher {
    pub(super) fn refuse(&mut self, held: Box<Held>, (code, message, pointer): (&'static str, String, Option<String>)) {
        let mut event = self.event(Kind::Failed, &held);
        event.error = Some(Box::new(ErrorInfo::new(code, message.clone(), 0)));
        self.meter_rejected();
        self.pass_turn(&held);
        let ticket = held.ticket;
        let burial = self.burial(held, code, message, pointer);
        self.bury(burial, Some(event), ticket);
    }

    pub(super) fn bury_task(&mut self, held: Box<Held>, event: Event, code: &str, message: String) {
        self.desk.forget(&held.task.id, held.task.run);
        self.pass_turn(&held);
        let ticket = held.ticket;
        let burial = self.burial(held, code, message, None);
        self.bury(burial, Some(event), ticket);
    }

    pub(super) fn burial(&self, held: Box<Held>, code: &str, message: String, pointer: Option<String>) -> Burial {
        Burial {
            task_type: self.parts.task_type.clone(),
            key: held.task.id.as_str().as_bytes().to_vec(),
            task: Some((held.task.id.clone(), held.task.run)),
            code: code.to_owned(),
            message,
            pointer,
            body: Body::Task(held),
        }
    }

    pub(super) fn reject(&mut self, rejected: Box<Rejected>) {
        let Rejected { record, reject, ticket, .. } = &*rejected;
        let ticket = *ticket;
        if self.closed_slots.contains(&ticket.slot()) {
            self.parts.inbox.returned(ticket);
            return;
        }
        tracing::warn!(task_type = %self.parts.task_type, partition = record.partition, offset = record.offset, code = reject.code, reason = %reject.message, "not a task: to the dead letters");
        self.meter_rejected();
        let event = reject.task.as_ref().map(|(id, run)| self.rejection(id, *run, reject, record));
        let key = match &reject.task {
            Some((id, _)) => id.as_str().as_bytes().to_vec(),
            None => record.key.clone().unwrap_or_default(),
        };
        let burial = Burial {
            task_type: self.parts.task_type.clone(),
            key,
            task: reject.task.clone(),
            code: reject.code.to_owned(),
            message: reject.message.clone(),
            pointer: reject.pointer.clone(),
            body: Body::Record(rejected),
        };
        self.bury(burial, event, ticket);
    }

    fn meter_rejected(&mut self) {
        self.next_flush.get_or_insert(Instant::now() + FLUSH_INTERVAL);
        self.parts.meter.finished("rejected", Duration::ZERO);
    }

    pub(super) fn rejection(&self, id: &TaskId, run: u32, reject: &Reject, record: &Record) -> Event {
        let mut event = Event::new(Kind::Failed, id.clone(), run, now_ms());
        event.worker = Some(self.parts.reporter.worker.clone());
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
    pub(super) fn bury(&mut self, burial: Burial, event: Option<Event>, ticket: Ticket) {
        self.parts.meter.dead_letter(&burial.code);
        let (undertaker, inbox) = (self.parts.undertaker.clone(), self.parts.inbox.clone());
        let (burials, gone) = (self.burials.clone(), self.gone.clone());
        runtime::spawn(gone.run_until_cancelled_owned(async move {
            let Ok(permit) = burials.acquire_owned().await else { return };
            undertaker.bury(burial).await;
            match event {
                Some(event) => undertaker.reporter.report(&event, ticket, &mut Vec::new()).await,
                None => inbox.done(ticket),
            }
            drop(permit);
        }));
    }
}

/// Code, message and pointer of a dead letter whose params do not fit.
pub(super) fn burial_of(misfit: Misfit) -> (&'static str, String, Option<String>) {
    let at = if misfit.pointer.is_empty() { "the params".to_owned() } else { format!("`{}`", misfit.pointer) };
    ("schema", format!("{at} do not fit the type: {}", misfit.message), Some(misfit.pointer))
}
