//! Main function of a child process, which runs the attempts of one task type for a worker. The binary calls [`run`]
//! instead of its usual main function if [`is_child_process`] returns true.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::{FutureExt, TryFutureExt};
use kafleet_handlers::blocking_pool::BlockingPool;
use kafleet_handlers::builtin::in_child;
use kafleet_handlers::context::{Attempt, AttemptSink, AttemptStart, TypeEnv};
use kafleet_handlers::note::Note;
use kafleet_handlers::{Answer, Child, Context, Failure, Registry, SharedState, TypeRegistration};
use kafleet_model::task::Trace;
use kafleet_model::task::id::TaskId;
use kafleet_model::task::limits::TaskLimits;
use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tracing::Instrument;

use super::ARGV0;
use super::protocol::{FromChild, Handshake, TaskAssignment, ToChild, frame, receive_blocking, send_blocking};
use crate::attempt;

/// Number of threads for async handlers, in addition to the main thread, which receives messages.
const THREADS: usize = 2;
/// Minimum time between two `Alive` messages.
const ALIVE_INTERVAL: Duration = Duration::from_millis(20);

/// Returns whether a worker started this process as a child process.
pub fn is_child_process() -> bool {
    std::env::args_os().next().is_some_and(|name| name == ARGV0)
}

/// Runs attempts until the worker ends or closes the connection to retire this process.
pub fn run(registry: &Registry) -> ExitCode {
    kafleet_telemetry::init_logs("info");
    match serve(registry) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!(
                "error: this child process cannot serve its worker: {error}\n\nhint: only `worker` may start this process"
            );
            ExitCode::FAILURE
        }
    }
}

fn serve(registry: &Registry) -> io::Result<()> {
    let mut socket = take_socket()?;
    install_signal_handlers();
    let to_worker = Arc::new(Mutex::new(socket.try_clone()?));
    let ToChild::Handshake(handshake) = receive_blocking(&mut socket)? else {
        return Err(io::Error::other("the first message is not a handshake"));
    };
    let Some(registered) = in_child(registry, &handshake.handler) else {
        let reason =
            format!("this binary has no handler `{}` when it is started as a child process", handshake.handler);
        return send_blocking(&mut *to_worker.lock(), &FromChild::Unsupported(reason));
    };
    if let Err(reason) = registered.handler.prepare() {
        return send_blocking(&mut *to_worker.lock(), &FromChild::Unsupported(reason));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build()?;
    send_blocking(&mut *to_worker.lock(), &FromChild::Ready)?;
    let parent = Arc::new(ParentLink::new(to_worker));
    let runner = AttemptRunner { handshake, registered, state: registry.state().clone(), parent };
    let mut current: Option<Context> = None;
    loop {
        match receive_blocking(&mut socket) {
            Ok(ToChild::Attempt(assignment)) => current = Some(runner.start(*assignment, &runtime)?),
            Ok(ToChild::Cancel) => current.iter().for_each(|cx| cx.cancelled().cancel()),
            Ok(ToChild::Spawned(result)) => runner.parent.complete_spawn(result),
            Ok(ToChild::Handshake(_)) => return Err(io::Error::other("a second handshake was received")),
            // The worker has ended or retires this process.
            Err(_) => break,
        }
    }
    runtime.shutdown_background();
    Ok(())
}

/// Runs the attempts that the worker sends.
struct AttemptRunner {
    handshake: Handshake,
    registered: TypeRegistration,
    state: SharedState,
    parent: Arc<ParentLink>,
}

impl AttemptRunner {
    fn start(&self, assignment: TaskAssignment, runtime: &tokio::runtime::Runtime) -> io::Result<Context> {
        let cx = Context::begin(AttemptStart {
            id: assignment.id,
            run: assignment.run,
            number: assignment.number,
            deadline: assignment.left.map(|left| Instant::now() + left),
            trace: assignment.trace.map(|(parent, state)| Box::new(Trace { parent, state })),
            asof: assignment.asof,
            labels: assignment.labels.map(Arc::new),
            headers: assignment.headers,
            env: Arc::new(TypeEnv {
                task_type: self.handshake.task_type.as_str().into(),
                worker: assignment.worker.into(),
                state: self.state.clone(),
                sink: self.parent.clone(),
                limits: TaskLimits::UNLIMITED,
                blocking_pool: BlockingPool::new(&self.handshake.task_type),
            }),
        });
        self.parent.begin_attempt();
        send_blocking(&mut *self.parent.socket.lock(), &FromChild::Begun)?;
        let handler = self.registered.handler.clone();
        let parent = self.parent.clone();
        let attempt_cx = cx.clone();
        let span = attempt::span(handler.capabilities().is_silent, &cx);
        let attempt = async move {
            let answer = match attempt::start(&*handler, &assignment.params, &attempt_cx) {
                Ok(Ok(future)) => attempt::run_to_completion(future).await,
                Ok(Err(error)) => Err(Failure::of_params(&error)),
                Err(failure) => Err(failure),
            };
            parent.send_answer(answer, &attempt_cx);
        };
        runtime.spawn(attempt.instrument(span));
        Ok(cx)
    }
}

/// Result of a `spawn_now`.
type SpawnResult = Result<Vec<TaskId>, Failure>;

/// Connection to the worker, used by the running attempt.
struct ParentLink {
    socket: Arc<Mutex<UnixStream>>,
    /// Held during a `spawn_now` call: `pending_spawn` has room for one caller, and the replies carry no call id.
    spawn_calls: tokio::sync::Mutex<()>,
    /// Activity counter of the current attempt at its last note.
    reported_activity: AtomicU32,
    /// Time of the last `Alive` message.
    last_alive: Mutex<Option<Instant>>,
    /// Caller that waits for the result of `spawn_now`.
    pending_spawn: Mutex<Option<oneshot::Sender<SpawnResult>>>,
}

impl ParentLink {
    fn new(socket: Arc<Mutex<UnixStream>>) -> Self {
        Self {
            socket,
            spawn_calls: tokio::sync::Mutex::default(),
            reported_activity: AtomicU32::default(),
            last_alive: Mutex::default(),
            pending_spawn: Mutex::default(),
        }
    }

    /// Resets the state of the previous attempt, whose counters say nothing about the next one.
    fn begin_attempt(&self) {
        self.reported_activity.store(0, Ordering::Relaxed);
        *self.last_alive.lock() = None;
    }

    /// Sends a message of an attempt that has not ended. Write errors are ignored: they mean that the worker has ended,
    /// and then the receive loop ends this process.
    fn send(&self, attempt: &Attempt, message: &FromChild) {
        let Ok(bytes) = frame(message) else { return };
        let mut socket = self.socket.lock();
        if !attempt.has_ended() {
            let _ = socket.write_all(&bytes);
        }
    }

    /// Ends the attempt and sends its children, its continuations and the answer. A failed attempt sends only the
    /// answer.
    fn send_answer(&self, answer: Answer, cx: &Context) {
        let children = if answer.is_ok() { cx.take_spawned() } else { Vec::new() };
        let continuations = if answer.is_ok() { cx.take_continuations(0) } else { Ok(Vec::new()) };
        let bad = |error: io::Error| Failure::fail(error.to_string()).of_kind("bad_child");
        let outputs = child_messages(cx, children).and_then(|mut messages| {
            for continuation in continuations? {
                messages.extend(frame(&FromChild::Continuation(Box::new(continuation))).map_err(bad)?);
            }
            Ok(messages)
        });
        let (mut messages, answer) = match outputs {
            Ok(messages) => (messages, answer),
            Err(failure) => (Vec::new(), Err(failure)),
        };
        let last = frame(&FromChild::Answer(answer)).or_else(|error| {
            messages.clear();
            frame(&FromChild::Answer(Err(Failure::fail(error.to_string()).of_kind("result_too_large"))))
        });
        let mut socket = self.socket.lock();
        cx.end();
        let _ = socket.write_all(&messages);
        let _ = last.and_then(|last| socket.write_all(&last));
    }

    fn complete_spawn(&self, result: SpawnResult) {
        if let Some(pending) = self.pending_spawn.lock().take() {
            // The caller may have stopped waiting.
            let _ = pending.send(result);
        }
    }
}

/// Encodes children as messages. Their ids are set here, because an id contains a hash of the params as the handler
/// created them, before serialization.
fn child_messages(cx: &Context, children: Vec<Child>) -> Result<Vec<u8>, Failure> {
    let mut messages = Vec::new();
    for mut child in children {
        let id = cx.child_id(&child)?;
        child.segment = id.as_str().rsplit(':').next().map(str::to_owned);
        let bad = |error: io::Error| Failure::fail(format!("a child cannot be spawned: {error}")).of_kind("bad_child");
        messages.extend(frame(&FromChild::Child(Box::new(child))).map_err(bad)?);
    }
    Ok(messages)
}

impl AttemptSink for ParentLink {
    fn note(&self, attempt: &Attempt, note: Note) {
        let activity = attempt.activity();
        let counts = self.reported_activity.swap(activity, Ordering::Relaxed) != activity;
        self.send(attempt, &FromChild::Note { note, counts });
    }

    /// Sends `Alive` to the worker, at most once per [`ALIVE_INTERVAL`].
    fn report_activity(&self, attempt: &Attempt) {
        let now = Instant::now();
        let mut last = self.last_alive.lock();
        if last.is_none_or(|last| now.duration_since(last) > ALIVE_INTERVAL) {
            *last = Some(now);
            self.send(attempt, &FromChild::Alive);
        }
    }

    fn spawn_now<'a>(&'a self, attempt: &'a Context, children: Vec<Child>) -> BoxFuture<'a, SpawnResult> {
        async move {
            let _call = self.spawn_calls.lock().await;
            let mut messages = child_messages(attempt, children)?;
            let gone = |_| Failure::retry("the worker has ended").of_kind("interrupted");
            messages.extend(frame(&FromChild::SpawnNow).map_err(|error| Failure::retry(error.to_string()))?);
            let (sender, result) = oneshot::channel();
            *self.pending_spawn.lock() = Some(sender);
            {
                let mut socket = self.socket.lock();
                if attempt.has_ended() {
                    return Err(Failure::cancelled());
                }
                socket.write_all(&messages).map_err(|error| Failure::retry(error.to_string()))?;
            }
            result.map_err(gone).await?
        }
        .boxed()
    }
}

/// Takes the socket to the worker from stdin. Stdin becomes `/dev/null`, so that programs started by the handler do not
/// inherit the socket.
fn take_socket() -> io::Result<UnixStream> {
    let socket: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    let socket = UnixStream::from(socket);
    socket.local_addr()?;
    let null: OwnedFd = std::fs::File::open("/dev/null")?.into();
    // SAFETY: both descriptors are open, and no other thread reads stdin at this time.
    if unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&null), libc::STDIN_FILENO) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// Ignores termination signals sent to the whole process group: the worker decides when an attempt stops.
fn install_signal_handlers() {
    extern "C" fn nothing(_: libc::c_int) {}
    // An empty signal handler instead of `SIG_IGN`, which programs started by the task's handler would inherit.
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        // SAFETY: the handler does nothing.
        let _ = unsafe { sigaction(signal, &action) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(parent: &Arc<ParentLink>) -> Context {
        parent.begin_attempt();
        Context::begin(AttemptStart {
            id: TaskId::parse("t").unwrap(),
            run: 1,
            number: 1,
            deadline: None,
            trace: None,
            asof: None,
            labels: None,
            headers: None,
            env: Arc::new(TypeEnv {
                task_type: "echo".into(),
                worker: "w".into(),
                state: SharedState::default(),
                sink: parent.clone(),
                limits: TaskLimits::UNLIMITED,
                blocking_pool: BlockingPool::new("echo"),
            }),
        })
    }

    #[test]
    fn first_note_of_each_attempt_counts_as_activity() {
        let (to_worker, mut worker) = UnixStream::pair().unwrap();
        let parent = Arc::new(ParentLink::new(Arc::new(Mutex::new(to_worker))));
        for n in 0..3 {
            let cx = attempt(&parent);
            cx.log("a line");
            let message = receive_blocking::<FromChild>(&mut worker).unwrap();
            assert!(matches!(message, FromChild::Note { counts: true, .. }), "attempt {n}: {message:?}");
            cx.end();
        }
    }
}
