//! Progress, log lines, warnings and attachments of running attempts, merged so that a verbose task costs few events.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kafleet_fleet::publish::Publisher;
use kafleet_handlers::context::{Attempt, AttemptSink};
use kafleet_handlers::note::Note;
use kafleet_handlers::{Child, Context, Failure};
use kafleet_model::event::log_line::{LogStream, MAX_EVENT_BYTES};
use kafleet_model::event::{Event, Payload};
use kafleet_model::json::RawJson;
use kafleet_model::record::attachment::{Attachment, MAX_COUNT};
use kafleet_model::task::id::TaskId;
use kafleet_runtime::now_ms;
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

use super::children::{child_task, publish_children};
use crate::observers::Observers;

/// Interval at which pending output is written.
pub(crate) const FLUSH_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum log size of one attempt, in bytes.
const MAX_ATTEMPT_BYTES: usize = 1 << 20;
/// Maximum size of a progress value, in bytes; a larger one is dropped and logged.
const MAX_PROGRESS_BYTES: usize = 16 << 10;

/// Pending output of the running attempts of one type.
pub(crate) struct OutputBuffer {
    publisher: Publisher,
    worker: Arc<str>,
    /// Observers of attempts, which get each log line as it is written.
    observers: Observers,
    /// Keyed by attempt ([`attempt_key`]), because several attempts of one task id may run at once.
    pending: Mutex<FxHashMap<usize, PendingOutput>>,
    /// Number of attempts with pending output; zero, the common case, avoids the lock.
    count: AtomicUsize,
    /// Children published by `spawn_now`, by task and run, while the task is in flight.
    early: Mutex<FxHashMap<(TaskId, u32), FxHashSet<TaskId>>>,
    /// Set by the first `spawn_now`. Until then `early` is empty, and `forget_children` does not lock it.
    ever_early: AtomicBool,
}

/// Output of one attempt that has not been published yet.
struct PendingOutput {
    id: TaskId,
    run: u32,
    attempt: u32,
    progress: Option<RawJson>,
    warning: Option<String>,
    attachments: Vec<Attachment>,
    lines: Vec<String>,
    /// Stream of each of `lines`.
    streams: Vec<Option<LogStream>>,
    /// Total bytes of `lines`.
    bytes: usize,
    /// Log bytes of this attempt that have already been published.
    logged: usize,
    /// Number of log lines dropped since the last event.
    dropped: u32,
}

impl OutputBuffer {
    pub(crate) fn new(publisher: Publisher, worker: Arc<str>, observers: Observers) -> Self {
        Self {
            publisher,
            worker,
            observers,
            pending: Mutex::default(),
            count: AtomicUsize::new(0),
            early: Mutex::default(),
            ever_early: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Takes the pending output of all attempts as events.
    pub(crate) fn take_all(&self) -> Vec<Event> {
        let mut pending = self.pending.lock();
        pending.values_mut().flat_map(|pending| pending.take_events(&self.worker)).collect()
    }

    /// Ends an attempt and takes its last output as events; later output is ignored.
    pub(crate) fn close(&self, attempt: &Context) -> Vec<Event> {
        attempt.end();
        if self.is_idle() {
            return Vec::new();
        }
        let Some(mut pending) = self.pending.lock().remove(&attempt_key(attempt)) else { return Vec::new() };
        self.count.fetch_sub(1, Ordering::SeqCst);
        pending.take_events(&self.worker)
    }

    /// Returns whether an attempt of this task has called `spawn_now`.
    pub(crate) fn has_spawned(&self, id: &TaskId, run: u32) -> bool {
        self.early.lock().contains_key(&(id.clone(), run))
    }

    /// Forgets the children that `spawn_now` has published for a task that is no longer in flight.
    pub(crate) fn forget_children(&self, id: &TaskId, run: u32) {
        if self.ever_early.load(Ordering::Acquire) {
            self.early.lock().remove(&(id.clone(), run));
        }
    }
}

/// Identifies an attempt by its address, which is unique because an attempt stays in memory until it is closed.
fn attempt_key(attempt: &Attempt) -> usize {
    std::ptr::from_ref(attempt).addr()
}

impl PendingOutput {
    fn of(attempt: &Attempt) -> Self {
        Self {
            id: attempt.id.clone(),
            run: attempt.run,
            attempt: attempt.number,
            progress: None,
            warning: None,
            attachments: Vec::new(),
            lines: Vec::new(),
            streams: Vec::new(),
            bytes: 0,
            logged: 0,
            dropped: 0,
        }
    }

    fn add(&mut self, note: Note) {
        match note {
            Note::Progress(state) if state.text().len() > MAX_PROGRESS_BYTES => {
                let size = state.text().len();
                let reason =
                    format!("a progress value of {size} bytes was dropped: at most {MAX_PROGRESS_BYTES} are kept");
                self.log(None, reason);
            }
            Note::Progress(state) => self.progress = Some(state),
            Note::Warning(message) => self.warning = Some(message),
            Note::Log(line) => self.log(None, line),
            Note::Output(stream, line) => self.log(Some(stream), line),
            Note::Attachment(attachment) => self.attach(attachment),
        }
    }

    fn log(&mut self, stream: Option<LogStream>, line: String) {
        // With its line break, so that empty lines are limited too.
        let size = line.len() + 1;
        let room = MAX_EVENT_BYTES.saturating_sub(self.bytes);
        if size > room || self.logged + self.bytes + size > MAX_ATTEMPT_BYTES {
            self.dropped += 1;
            return;
        }
        self.bytes += size;
        self.lines.push(line);
        self.streams.push(stream);
    }

    /// Adds an attachment, or replaces one of the same name.
    fn attach(&mut self, attachment: Attachment) {
        self.attachments.retain(|existing| existing.name != attachment.name);
        if self.attachments.len() < MAX_COUNT {
            self.attachments.push(attachment);
        } else {
            let reason = format!("the attachment `{}` was dropped: a task keeps at most {MAX_COUNT}", attachment.name);
            self.log(None, reason);
        }
    }

    fn take_events(&mut self, worker: &Arc<str>) -> Vec<Event> {
        let mut events = Vec::new();
        let mut add = |payload, message| {
            let event = Event::new(payload, self.id.clone(), self.run, now_ms());
            events.push(Event { attempt: self.attempt, worker: Some(worker.clone()), message, ..event });
        };
        if let Some(message) = self.warning.take() {
            add(Payload::Warned, Some(message));
        }
        if let Some(value) = self.progress.take() {
            add(Payload::Progress { output: Some(value) }, None);
        }
        for attachment in std::mem::take(&mut self.attachments) {
            add(Payload::Attached { attachment: Some(Box::new(attachment)) }, None);
        }
        if !self.lines.is_empty() || self.dropped > 0 {
            self.logged += std::mem::take(&mut self.bytes);
            let lines = std::mem::take(&mut self.lines);
            let streams = streams_of(std::mem::take(&mut self.streams));
            let dropped = std::mem::take(&mut self.dropped);
            add(Payload::Log { lines, streams, dropped }, None);
        }
        events
    }
}

/// Streams of lines for an event; empty if no process wrote any of them.
fn streams_of(streams: Vec<Option<LogStream>>) -> Vec<Option<LogStream>> {
    if streams.iter().all(Option::is_none) { Vec::new() } else { streams }
}

impl AttemptSink for OutputBuffer {
    fn note(&self, attempt: &Attempt, mut note: Note) {
        match &mut note {
            Note::Log(text) | Note::Output(_, text) | Note::Warning(text) => attempt.hidden.hide_in(text),
            Note::Progress(state) => attempt.hidden.hide_in_json(state),
            Note::Attachment(_) => {}
        }
        if let Note::Log(line) | Note::Output(_, line) = &note
            && !attempt.has_ended()
        {
            self.observers.notify(|observer| observer.on_log(attempt, line));
        }
        let mut pending = self.pending.lock();
        // The count is incremented before `has_ended` is read, and `close` ends the attempt before it reads the count.
        // Either this call sees the end and drops the note, or `close` sees the count and waits for the lock.
        self.count.fetch_add(1, Ordering::SeqCst);
        let entry = pending.entry(attempt_key(attempt));
        let is_repeated = matches!(entry, Entry::Occupied(_));
        if attempt.has_ended() {
            self.count.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        entry.or_insert_with(|| PendingOutput::of(attempt)).add(note);
        if is_repeated {
            self.count.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn spawn_now<'a>(
        &'a self,
        attempt: &'a Context,
        children: Vec<Child>,
    ) -> BoxFuture<'a, Result<Vec<TaskId>, Failure>> {
        async move {
            let named = children
                .into_iter()
                .map(|child| child_task(attempt, child, &self.publisher.topology.names))
                .collect::<Result<Vec<_>, _>>()?;
            let ids: Vec<TaskId> = named.iter().map(|task| task.id.clone()).collect();
            let key = (attempt.id.clone(), attempt.run);
            self.ever_early.store(true, Ordering::Release);
            // Children published by an earlier attempt are not published again.
            let published = self.early.lock().entry(key.clone()).or_default().clone();
            let new = named.into_iter().filter(|task| !published.contains(&task.id)).collect();
            publish_children(&self.publisher, new, |id| {
                self.early.lock().entry(key.clone()).or_default().insert(id);
            })
            .await?;
            Ok(ids)
        }
        .boxed()
    }
}
