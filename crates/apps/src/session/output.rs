//! Output of attempts: progress, log, warnings, attachments, children and continuations.

use data_encoding::BASE64;
use kafleet_handlers::context::MAX_CHILDREN;
use kafleet_handlers::excerpt;
use kafleet_handlers::note::Note;
use kafleet_handlers::{Child, Context, Failure};
use kafleet_model::event::log_line::MAX_LINE_BYTES;
use kafleet_model::json::RawJson;
use kafleet_runtime::now_ms;

use super::attempt::{AttemptEntry, SpawnCall};
use super::{MessageReader, Session};
use crate::children::{bad_child, read_children, read_continuation};
use crate::protocol::{
    self, Attach, Continue, Log, MAX_CALLS, MAX_CHILDREN_BYTES, Progress, Reply, ReplyError, Spawn, SpawnedTasks,
    ToApp, Violation, Warn,
};

/// Maximum length of a warning, in characters.
const MAX_WARNING_CHARS: usize = 4_000;

impl MessageReader {
    pub(super) fn progress(&self, progress: Progress) -> Result<(), Violation> {
        let note = match RawJson::try_from(progress.value) {
            Ok(value) => Note::Progress(value),
            Err(error) => Note::Log(format!("a progress value was dropped: {error}")),
        };
        self.note(progress.n, progress.silent, note)
    }

    pub(super) fn log(&self, log: Log) -> Result<(), Violation> {
        for line in log.lines.iter().flat_map(|text| text.split('\n')) {
            let line = line[..line.floor_char_boundary(MAX_LINE_BYTES)].to_owned();
            let note = match log.stream {
                Some(stream) => Note::Output(stream, line),
                None => Note::Log(line),
            };
            self.note(log.n, log.silent, note)?;
        }
        Ok(())
    }

    pub(super) fn warn(&self, warn: Warn) -> Result<(), Violation> {
        let message = excerpt(warn.message.as_bytes(), MAX_WARNING_CHARS);
        self.note(warn.n, warn.silent, Note::Warning(message))
    }

    fn note(&self, n: u64, is_silent: bool, note: Note) -> Result<(), Violation> {
        if let Some(cx) = self.session.context(n)? {
            if !is_silent {
                cx.record_activity();
            }
            cx.sink().note(&cx, note);
        }
        Ok(())
    }

    pub(super) fn attach(&self, attach: Attach) -> Result<(), Violation> {
        let Some(cx) = self.session.context(attach.n)? else { return Ok(()) };
        let data = BASE64.decode(attach.data.as_bytes()).map_err(|error| format!("the data is not base64: {error}"));
        let attached =
            data.and_then(|data| cx.attach(&attach.name, &attach.media, data).map_err(|error| error.to_string()));
        if let Err(error) = attached {
            cx.log(format!("an attachment was dropped: {error}"));
        }
        Ok(())
    }

    pub(super) fn spawn(&self, spawn: Spawn) -> Result<(), Violation> {
        let Some(cx) = self.session.context(spawn.n)? else {
            if let Some(call) = spawn.call {
                self.session.reply(call, Err(Failure::cancelled()));
            }
            return Ok(());
        };
        cx.record_activity();
        match spawn.call {
            Some(call) => self.publish_now(spawn.n, call, cx, &spawn.tasks),
            None => self.add_children(spawn.n, &cx, &spawn.tasks),
        }
        Ok(())
    }

    fn read(&self, cx: &Context, tasks: &SpawnedTasks) -> Result<Vec<Child>, Failure> {
        read_children(&tasks.kept, cx, now_ms(), self.session.0.max_params)
    }

    /// Adds children that are published with the result. Children beyond the limits are not decoded.
    fn add_children(&self, n: u64, cx: &Context, tasks: &SpawnedTasks) {
        let accepted = self.session.with_entry(n, |entry| entry.accept_children(tasks)).unwrap_or_default();
        if !accepted {
            return;
        }
        match self.read(cx, tasks) {
            Ok(children) => children.into_iter().for_each(|child| cx.spawn_child(child)),
            Err(failure) => drop(self.session.with_entry(n, |entry| entry.refuse_children(failure))),
        }
    }

    /// Publishes children in the background and replies.
    fn publish_now(&self, n: u64, call: u64, cx: Context, tasks: &SpawnedTasks) {
        let children = match check_count(tasks.count).and_then(|()| self.read(&cx, tasks)) {
            Ok(children) => children,
            Err(failure) => return self.session.reply(call, Err(failure)),
        };
        let is_full = {
            let mut state = self.session.0.state.lock();
            let is_full = state.calls >= MAX_CALLS;
            state.calls += usize::from(!is_full);
            is_full
        };
        if is_full {
            let reason = format!("{MAX_CALLS} calls are not answered yet; hint: wait for their replies");
            return self.session.reply(call, Err(Failure::retry(reason).of_kind("too_many_calls")));
        }
        let slot = CallSlot(self.session.clone());
        let publication = kafleet_runtime::spawn(async move {
            let published = cx.spawn_now(children).await;
            let published = published.map(|ids| ids.iter().map(|id| id.as_str().to_owned()).collect());
            slot.0.reply(call, published);
            drop(slot);
        });
        let publication = SpawnCall(publication);
        self.session.with_entry(n, |entry| {
            entry.calls.retain(|call| !call.0.is_finished());
            entry.calls.push(publication);
        });
    }

    pub(super) fn add_continuation(&self, message: &Continue) -> Result<(), Violation> {
        let Some(cx) = self.session.context(message.n)? else { return Ok(()) };
        cx.record_activity();
        match read_continuation(&message.task) {
            Ok(continuation) => cx.then(continuation),
            Err(failure) => drop(self.session.with_entry(message.n, |entry| entry.refuse_children(failure))),
        }
        Ok(())
    }
}

impl AttemptEntry {
    /// Counts children. Returns false if the attempt fails because of its children.
    fn accept_children(&mut self, tasks: &SpawnedTasks) -> bool {
        self.children = self.children.saturating_add(tasks.count);
        self.children_bytes = self.children_bytes.saturating_add(tasks.bytes);
        if self.bad_children.is_none() {
            self.bad_children = check_count(self.children).and_then(|()| check_bytes(self.children_bytes)).err();
        }
        self.bad_children.is_none()
    }

    /// Fails the attempt when it is answered, unless it fails because of other children.
    fn refuse_children(&mut self, error: Failure) {
        self.bad_children.get_or_insert(error);
    }
}

fn check_count(children: usize) -> Result<(), Failure> {
    let error = || bad_child(&format!("the attempt spawned {children} children: at most {MAX_CHILDREN} are allowed"));
    if children > MAX_CHILDREN { Err(error()) } else { Ok(()) }
}

fn check_bytes(bytes: usize) -> Result<(), Failure> {
    let reason = "the unpublished children of the attempt have more than";
    let reason = || bad_child(&format!("{reason} {MAX_CHILDREN_BYTES} bytes; hint: publish them at once"));
    if bytes > MAX_CHILDREN_BYTES { Err(reason()) } else { Ok(()) }
}

impl Session {
    fn reply(&self, call: u64, published: Result<Vec<String>, Failure>) {
        let reply = match published {
            Ok(ids) => Reply { call, ids: Some(ids), error: None },
            Err(failure) => {
                let error = ReplyError { kind: failure.kind.into_owned(), message: failure.message };
                Reply { call, ids: None, error: Some(error) }
            }
        };
        let line = protocol::line(&ToApp::Reply(reply));
        if line.len() <= protocol::MAX_LINE_BYTES {
            return self.0.out.send_reply(&line);
        }
        let failure = bad_child("the reply is too large; hint: publish fewer children at once");
        self.reply(call, Err(failure));
    }
}

/// Place among the unanswered calls, freed when dropped.
struct CallSlot(Session);

impl Drop for CallSlot {
    fn drop(&mut self) {
        self.0.0.state.lock().calls -= 1;
    }
}
