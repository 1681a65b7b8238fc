//! Exchange of messages with one process of an app, over any stream.
//!
//! [`Session::open`] returns the session and its driver, a future that reads until the stream ends. `Session::start`
//! registers an attempt under the next number and sends it; the driver ends it with the answer of the app. The owner of
//! the process then calls [`Session::fail_attempts`] with the cause of the end, which decides for each running attempt
//! whether it has failed or runs again.
//!
//! Invariant: reading never waits for a write or for Kafka. An app that writes a large message does not read meanwhile;
//! if the worker waited for it to read, neither would continue.
//!
//! Invariant: every attempt ends exactly once: by its answer, by the end of the process, or abandoned after its grace
//! period. An abandoned one keeps its slot (`stuck`) until the app answers or the process ends, because it still
//! executes.
//!
//! Read next: `attempt.rs`, `crates/apps/src/send_buffer.rs`, then `crates/apps/src/process.rs`.

mod attempt;
mod output;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kafleet_handlers::context::Restart;
use kafleet_handlers::note::Note;
use kafleet_handlers::output_tail::{OutputLine, OutputLines};
use kafleet_handlers::{CRASHED, Context, Failure};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use self::attempt::AttemptEntry;
pub use self::attempt::{AttemptAnswer, RunningAttempt};

use super::loaded_files::LoadedFiles;
use super::protocol::{self, FromApp, MAX_LINE_BYTES, Ready, ToApp, Violation, Welcome};
use super::send_buffer::SendBuffer;

/// Silence after which the event loop of an app counts as blocked.
const BLOCKED_AFTER: Duration = Duration::from_secs(5);
/// Size of a read, and the capacity of the buffer that is kept between messages, in bytes.
const READ_BYTES: usize = 64 << 10;

/// Connection to one process. Cheap to clone.
#[derive(Clone)]
pub struct Session(Arc<SessionState>);

struct SessionState {
    out: SendBuffer,
    /// Maximum size of a child's params, in bytes.
    max_params: u64,
    state: Mutex<SessionFields>,
    events: mpsc::UnboundedSender<SessionEvent>,
    files: LoadedFiles,
    /// Output of the process on its stdout and stderr. Not set in a simulation.
    output: OnceLock<OutputLines>,
}

struct SessionFields {
    phase: SessionPhase,
    /// Running attempts by number.
    attempts: FxHashMap<u64, AttemptEntry>,
    /// Attempts that ended for the worker without an answer, until the app answers them.
    stuck: FxHashMap<u64, StuckAttempt>,
    /// Number of the last attempt sent.
    last: u64,
    /// Unanswered `spawn` calls.
    calls: usize,
    /// Last sign that the app is not blocked: a pong, or that it has read something.
    last_sign: Instant,
    /// Position in the stream of what was written at the last ping that could not be sent.
    written_at_ping: u64,
    /// Whether the app reads cancels while attempts run, also after it gets no more attempts.
    is_responsive: bool,
}

enum SessionPhase {
    /// The app has not declared its types; the receiver waits for the declaration.
    Starting(oneshot::Sender<Result<Ready, String>>),
    Serving,
    /// No more attempts are sent.
    Closed,
}

/// Event of a session.
#[derive(Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// The app requests to get no more attempts, for this reason.
    Retired(String),
    /// The grace period of an attempt is over, and the app has not answered.
    Overrun,
    /// The process has ended, or closed its stream.
    Ended,
}

/// Reason for the end of the stream.
#[derive(Debug, PartialEq, Eq)]
pub enum StreamEndReason {
    Closed,
    /// The app has closed the stream without reading everything.
    Reset,
    Violated(Violation),
}

/// Cause of the end of a process, for the attempts that were running.
#[derive(Clone, Debug)]
pub enum Cause {
    /// The process ended by itself.
    Crashed,
    /// The process ended by itself, soon after it was ready.
    CrashedEarly,
    /// The process ended before it could read its only attempt.
    Unread,
    /// The worker killed the process because of its memory.
    OutOfMemory,
    /// The process violated the protocol.
    Garbled,
    /// The worker killed the process because of another attempt.
    Killed(Restart),
}

/// Counts attempts of a type that hold their slots without a result.
#[derive(Clone, Default)]
pub struct StuckCounter(pub Arc<std::sync::atomic::AtomicUsize>);

struct StuckAttempt(StuckCounter);

impl StuckCounter {
    /// Number of stuck attempts.
    pub fn count(&self) -> usize {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn add(&self) -> StuckAttempt {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        StuckAttempt(self.clone())
    }
}

impl Drop for StuckAttempt {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Reads the messages of an app.
struct MessageReader {
    session: Session,
}

/// Receiver of the declaration of an app.
pub type DeclarationReceiver = oneshot::Receiver<Result<Ready, String>>;

impl Session {
    /// Opens a session and sends the welcome. Returns the receiver of the declaration, or of the reason why the app
    /// cannot serve, and the driver. The app may add to `files`.
    pub fn open<R, W>(
        reader: R,
        writer: W,
        welcome: &Welcome,
        events: mpsc::UnboundedSender<SessionEvent>,
        files: LoadedFiles,
    ) -> (Self, DeclarationReceiver, impl Future<Output = StreamEndReason> + Send + use<R, W>)
    where
        R: AsyncRead + Send + Unpin,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let (sender, declared) = oneshot::channel();
        let state = SessionFields {
            phase: SessionPhase::Starting(sender),
            attempts: FxHashMap::default(),
            stuck: FxHashMap::default(),
            last: 0,
            calls: 0,
            last_sign: Instant::now(),
            written_at_ping: 0,
            is_responsive: false,
        };
        let session = Self(Arc::new(SessionState {
            out: SendBuffer::new(Box::new(writer)),
            max_params: welcome.limits.params,
            state: Mutex::new(state),
            events,
            files,
            output: OnceLock::new(),
        }));
        session.0.out.send(&protocol::line(&ToApp::Welcome(welcome)));
        let driver = MessageReader { session: session.clone() }.drive(reader);
        (session, declared, driver)
    }

    /// Ends the stream: the app finishes its attempts and exits. No more attempts are accepted.
    pub fn close(&self) {
        self.refuse_attempts();
        self.0.out.close();
    }

    /// Accepts no more attempts.
    pub fn refuse_attempts(&self) {
        self.0.state.lock().phase = SessionPhase::Closed;
    }

    /// Returns whether an attempt has been sent.
    pub fn has_run(&self) -> bool {
        self.0.state.lock().last > 0
    }

    /// Number of running attempts.
    pub fn running(&self) -> usize {
        self.0.state.lock().attempts.len()
    }

    /// Number of attempts that hold their slots without a result.
    pub fn stuck(&self) -> usize {
        self.0.state.lock().stuck.len()
    }

    /// Number of `spawn` calls without a reply.
    pub fn calls(&self) -> usize {
        self.0.state.lock().calls
    }

    /// Size of the messages that the app has not read, in bytes, without those in the buffer of the socket.
    pub fn unread_bytes(&self) -> usize {
        self.0.out.unwritten()
    }

    /// Sends a ping, unless earlier messages are not written yet. An app that reads these is not silent.
    pub fn ping(&self, now_ms: i64) {
        if self.0.out.is_idle() {
            self.0.out.send(&protocol::line(&ToApp::Ping { at: now_ms }));
            return;
        }
        let written = self.0.out.written();
        let mut state = self.0.state.lock();
        if state.written_at_ping != written {
            (state.written_at_ping, state.last_sign) = (written, Instant::now());
        }
    }

    /// Returns for how long the app has been silent, if its event loop counts as blocked: the time since the last pong,
    /// since the app has read earlier messages instead, or since it was ready.
    pub fn blocked_for(&self) -> Option<Duration> {
        let state = self.0.state.lock();
        let silence = state.last_sign.elapsed();
        (state.is_responsive && silence >= BLOCKED_AFTER).then_some(silence)
    }

    /// Returns whether the app cannot have read its last attempt.
    pub fn is_attempt_unread(&self, end: &StreamEndReason) -> bool {
        self.0.out.is_attempt_unread(*end == StreamEndReason::Reset)
    }

    /// Sets the output of the process.
    pub fn set_output(&self, output: OutputLines) {
        // Fails if it is set.
        let _ = self.0.output.set(output);
    }

    /// Writes the output of the process to the log of the attempt that runs, if it is the only one.
    pub fn log_output(&self) {
        let lines = self.0.output.get().map(OutputLines::take).unwrap_or_default();
        if lines.is_empty() {
            return;
        }
        let only = {
            let state = self.0.state.lock();
            let is_only = state.attempts.len() == 1 && state.stuck.is_empty();
            state.attempts.values().next().filter(|_| is_only).map(|entry| entry.cx.clone())
        };
        if let Some(cx) = only {
            let notes = lines.into_iter().map(|OutputLine { stream, text }| Note::Output(stream, text));
            notes.for_each(|note| cx.sink().note(&cx, note));
        }
    }

    /// Ends all running attempts because the process has ended. `message` describes the end.
    pub fn fail_attempts(&self, cause: &Cause, message: &str) {
        self.log_output();
        let (attempts, stuck) = {
            let mut state = self.0.state.lock();
            state.phase = SessionPhase::Closed;
            (std::mem::take(&mut state.attempts), std::mem::take(&mut state.stuck))
        };
        let (unread, begun): (Vec<_>, Vec<_>) =
            attempts.into_values().partition(|entry| !self.0.out.is_begun(entry.start));
        unread.into_iter().for_each(|entry| entry.end(AttemptAnswer::unsent()));
        // A stuck attempt still executes, and may be the cause.
        let is_only = begun.len() == 1 && stuck.is_empty();
        drop(stuck);
        for entry in begun {
            entry.end(AttemptAnswer::of_cause(cause, message, is_only));
        }
    }

    fn with_entry<T>(&self, n: u64, change: impl FnOnce(&mut AttemptEntry) -> T) -> Option<T> {
        self.0.state.lock().attempts.get_mut(&n).map(change)
    }

    /// Returns the context of an attempt; `None` if it has ended.
    fn context(&self, n: u64) -> Result<Option<Context>, Violation> {
        let state = self.0.state.lock();
        state.check_number(n)?;
        Ok(state.attempts.get(&n).map(|entry| entry.cx.clone()))
    }

    fn report(&self, event: SessionEvent) {
        // The receiver is dropped when the process has ended.
        let _ = self.0.events.send(event);
    }
}

impl MessageReader {
    /// Reads until the stream ends or the app violates the protocol.
    async fn drive(self, reader: impl AsyncRead + Send + Unpin) -> StreamEndReason {
        let end = tokio::select! {
            biased;
            end = self.read_lines(reader) => end,
            violation = self.session.0.out.run() => StreamEndReason::Violated(violation),
        };
        self.session.refuse_attempts();
        end
    }

    async fn read_lines(&self, mut reader: impl AsyncRead + Send + Unpin) -> StreamEndReason {
        let mut buffer = Vec::with_capacity(READ_BYTES);
        // Bytes before it contain no line break.
        let mut scanned = 0;
        loop {
            match self.handle_lines(&buffer, scanned) {
                Ok(used) => buffer.drain(..used),
                Err(violation) => return StreamEndReason::Violated(violation),
            };
            if let Some(violation) = self.session.0.out.overflow() {
                return StreamEndReason::Violated(violation);
            }
            if buffer.len() > MAX_LINE_BYTES {
                let reason = format!("a line of more than {MAX_LINE_BYTES} bytes");
                return StreamEndReason::Violated(Violation(reason));
            }
            scanned = buffer.len();
            buffer.shrink_to(READ_BYTES);
            buffer.reserve(READ_BYTES);
            match reader.read_buf(&mut buffer).await {
                Ok(1..) => {}
                Ok(0) => return StreamEndReason::Closed,
                Err(reason) if reason.kind() == std::io::ErrorKind::ConnectionReset => return StreamEndReason::Reset,
                Err(_) => return StreamEndReason::Closed,
            }
        }
    }

    /// Handles the complete lines of the buffer; returns their length.
    fn handle_lines(&self, buffer: &[u8], scanned: usize) -> Result<usize, Violation> {
        let (mut start, mut from) = (0, scanned);
        while let Some(length) = buffer[from..].iter().position(|byte| *byte == b'\n') {
            let line = &buffer[start..from + length];
            if line.len() > MAX_LINE_BYTES {
                return Err(Violation(format!("a line of more than {MAX_LINE_BYTES} bytes")));
            }
            self.handle(protocol::parse(line)?)?;
            start = from + length + 1;
            from = start;
        }
        Ok(start)
    }

    fn handle(&self, message: FromApp) -> Result<(), Violation> {
        match message {
            FromApp::Ok(success) => self.session.succeed(success),
            FromApp::Error(error) => self.session.fail(error),
            FromApp::Progress(progress) => self.progress(progress),
            FromApp::Log(log) => self.log(log),
            FromApp::Warn(warn) => self.warn(warn),
            FromApp::Attach(attach) => self.attach(attach),
            FromApp::Heartbeat(heartbeat) => {
                self.session.context(heartbeat.n)?.iter().for_each(Context::heartbeat);
                Ok(())
            }
            FromApp::Spawn(spawn) => self.spawn(spawn),
            FromApp::Continue(message) => self.add_continuation(&message),
            FromApp::Pong(_) => {
                self.session.0.state.lock().last_sign = Instant::now();
                Ok(())
            }
            FromApp::Ready(ready) => self.declare(Ok(ready)),
            FromApp::Unable(unable) => self.declare(Err(unable.message)),
            FromApp::Retire(retire) => {
                let phase = std::mem::replace(&mut self.session.0.state.lock().phase, SessionPhase::Closed);
                if matches!(phase, SessionPhase::Serving) {
                    self.session.report(SessionEvent::Retired(retire.reason));
                }
                Ok(())
            }
            FromApp::Files(files) => {
                self.session.0.files.add(files.paths);
                Ok(())
            }
        }
    }

    fn declare(&self, declared: Result<Ready, String>) -> Result<(), Violation> {
        let mut state = self.session.0.state.lock();
        let phase = match &declared {
            Ok(_) => SessionPhase::Serving,
            Err(_) => SessionPhase::Closed,
        };
        match std::mem::replace(&mut state.phase, phase) {
            SessionPhase::Starting(sender) => {
                state.last_sign = Instant::now();
                state.is_responsive = declared.as_ref().is_ok_and(|ready| ready.responsive);
                // The receiver has stopped waiting if the start takes too long.
                let _ = sender.send(declared);
                Ok(())
            }
            SessionPhase::Serving => Err(Violation("a second `ready` or `unable`".to_owned())),
            // The worker ends the session.
            SessionPhase::Closed => {
                state.phase = SessionPhase::Closed;
                Ok(())
            }
        }
    }
}

impl SessionFields {
    fn check_number(&self, n: u64) -> Result<(), Violation> {
        if (1..=self.last).contains(&n) {
            return Ok(());
        }
        Err(Violation(format!("a message about the attempt {n}, which was never sent")))
    }
}

/// Failure of an attempt whose process has ended, if the attempt is responsible.
fn death(cause: &Cause, message: &str) -> Failure {
    let kind = match cause {
        Cause::Garbled => "garbled",
        _ => CRASHED,
    };
    Failure::retry(message).of_kind(kind)
}

#[cfg(test)]
mod tests;
