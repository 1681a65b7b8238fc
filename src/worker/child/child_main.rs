//! A cell, from inside: what the binary does when it is started as one.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::{FutureExt, TryFutureExt};
use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tracing::Instrument;

use super::ARGV0;
use super::protocol::{FromChild, Handshake, TaskAssignment, ToChild, frame, receive_blocking, send_blocking};
use crate::handlers::blocking_pool::Threads;
use crate::handlers::builtin::in_child;
use crate::handlers::context::{Attempt, AttemptSink, AttemptStart, Note, TypeEnv};
use crate::handlers::{Answer, Child, Context, Failure, Registered, Registry, SharedState};
use crate::model::task::Trace;
use crate::model::task::id::TaskId;
use crate::worker::attempt;

/// Threads for async handlers, beside the one that listens.
const THREADS: usize = 2;
/// The worker is told of signs of life that come alone at most this often.
const ALIVE_INTERVAL: Duration = Duration::from_millis(20);

/// This process was started by a worker as one of its cells.
pub fn is_cell() -> bool {
    std::env::args_os().next().is_some_and(|name| name == ARGV0)
}

/// Serves the worker until it is gone or has no more use for this cell.
pub fn run(registry: &Registry) -> ExitCode {
    crate::telemetry::init_logs("info");
    match serve(registry) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: this process serves a worker, and cannot: {why}\n\nhint: it is started by `worker`, not by people");
            ExitCode::FAILURE
        }
    }
}

fn serve(registry: &Registry) -> io::Result<()> {
    let mut line = take_line()?;
    install_signal_handlers();
    let say = Arc::new(Mutex::new(line.try_clone()?));
    let ToChild::Handshake(purpose) = receive_blocking(&mut line)? else { return Err(io::Error::other("no purpose was given")) };
    let Some(registered) = in_child(registry, &purpose.handler) else {
        let why = format!("this binary has no handler `{}` when it is started as a child process", purpose.handler);
        return send_blocking(&mut *say.lock(), &FromChild::Unsupported(why));
    };
    if let Err(why) = registered.handler.prepare() {
        return send_blocking(&mut *say.lock(), &FromChild::Unsupported(why));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build()?;
    send_blocking(&mut *say.lock(), &FromChild::Ready)?;
    let cell = Inside { purpose, registered, state: registry.state().clone(), voice: Arc::new(ParentLink::new(say)) };
    let mut current: Option<Context> = None;
    loop {
        match receive_blocking(&mut line) {
            Ok(ToChild::Attempt(assignment)) => current = Some(cell.begin(*assignment, &runtime)?),
            Ok(ToChild::Cancel) => current.iter().for_each(|cx| cx.cancelled().cancel()),
            Ok(ToChild::Spawned(answer)) => cell.voice.spawned(answer),
            Ok(ToChild::Handshake(_)) => return Err(io::Error::other("a second purpose was given")),
            // The worker has gone, or has no more use for this cell.
            Err(_) => break,
        }
    }
    runtime.shutdown_background();
    Ok(())
}

struct Inside {
    purpose: Handshake,
    registered: Registered,
    state: SharedState,
    voice: Arc<ParentLink>,
}

impl Inside {
    fn begin(&self, given: TaskAssignment, runtime: &tokio::runtime::Runtime) -> io::Result<Context> {
        let cx = Context::begin(AttemptStart {
            id: given.id,
            run: given.run,
            number: given.number,
            deadline: given.left.map(|left| Instant::now() + left),
            trace: given.trace.map(|(parent, state)| Box::new(Trace { parent, state })),
            asof: given.asof,
            scene: Arc::new(TypeEnv {
                task_type: self.purpose.task_type.as_str().into(),
                worker: given.worker.into(),
                state: self.state.clone(),
                outlet: self.voice.clone(),
                threads: Threads::new(&self.purpose.task_type),
            }),
        });
        send_blocking(&mut *self.voice.say.lock(), &FromChild::Begun)?;
        let (handler, voice, own) = (self.registered.handler.clone(), self.voice.clone(), cx.clone());
        let span = attempt::span(&*handler, &cx);
        let attempt = async move {
            let answer = match attempt::begin(&*handler, &given.params, &own) {
                Ok(Ok(future)) => attempt::to_its_end(future).await,
                Ok(Err(misfit)) => Err(Failure::dead(misfit.to_string()).of_kind("schema")),
                Err(failure) => Err(failure),
            };
            voice.answer(answer, &own);
        };
        runtime.spawn(attempt.instrument(span));
        Ok(cx)
    }
}

/// What became of a `spawn_now`.
type Spawned = Result<Vec<TaskId>, Failure>;

/// Speaks to the worker for the attempt that runs.
struct ParentLink {
    say: Arc<Mutex<UnixStream>>,
    /// One call at a time: the worker answers in turn.
    calls: tokio::sync::Mutex<()>,
    /// Signs of life that the worker knows of, and when it was last told of one that came alone.
    signs: AtomicU32,
    alive: Mutex<Option<Instant>>,
    called: Mutex<Option<oneshot::Sender<Spawned>>>,
}

impl ParentLink {
    fn new(say: Arc<Mutex<UnixStream>>) -> Self {
        let (calls, signs, alive, called) = Default::default();
        Self { say, calls, signs, alive, called }
    }

    /// A worker that does not listen any more is gone, and this process soon too.
    fn say(&self, attempt: &Attempt, word: &FromChild) {
        let Ok(message) = frame(word) else { return };
        let mut say = self.say.lock();
        if !attempt.has_ended() {
            let _ = say.write_all(&message);
        }
    }

    fn answer(&self, answer: Answer, cx: &Context) {
        let children = if answer.is_ok() { cx.take_spawned() } else { Vec::new() };
        let thens = if answer.is_ok() { cx.take_thens() } else { Ok(Vec::new()) };
        let said = named(cx, children).and_then(|mut messages| {
            for then in thens? {
                messages.extend(
                    frame(&FromChild::Continuation(Box::new(then)))
                        .map_err(|why| Failure::fail(why.to_string()).of_kind("bad_child"))?,
                );
            }
            Ok(messages)
        });
        let (mut messages, answer) = match said {
            Ok(messages) => (messages, answer),
            Err(failure) => (Vec::new(), Err(failure)),
        };
        let last = frame(&FromChild::Answer(answer)).or_else(|why| {
            messages.clear();
            frame(&FromChild::Answer(Err(Failure::fail(why.to_string()).of_kind("result_too_large"))))
        });
        let mut say = self.say.lock();
        cx.end();
        let _ = say.write_all(&messages);
        let _ = last.and_then(|last| say.write_all(&last));
    }

    fn spawned(&self, answer: Spawned) {
        if let Some(waiting) = self.called.lock().take() {
            // Whoever has stopped waiting does not need it.
            let _ = waiting.send(answer);
        }
    }
}

/// Children as messages. They are named here, where the params are as the handler made them.
fn named(cx: &Context, children: Vec<Child>) -> Result<Vec<u8>, Failure> {
    let mut messages = Vec::new();
    for mut child in children {
        let id = cx.name_child(&child)?;
        child.segment = id.as_str().rsplit(':').next().map(str::to_owned);
        let bad = |why: io::Error| Failure::fail(format!("a child cannot be spawned: {why}")).of_kind("bad_child");
        messages.extend(frame(&FromChild::Child(Box::new(child))).map_err(bad)?);
    }
    Ok(messages)
}

impl AttemptSink for ParentLink {
    fn note(&self, attempt: &Attempt, note: Note) {
        let signs = attempt.signs();
        let counts = self.signs.swap(signs, Ordering::Relaxed) != signs;
        self.say(attempt, &FromChild::Note { note, counts });
    }

    /// However often a handler says that it lives, the worker hears it some times a second.
    fn alive(&self, attempt: &Attempt) {
        let now = Instant::now();
        let mut last = self.alive.lock();
        if last.is_none_or(|last| now.duration_since(last) > ALIVE_INTERVAL) {
            *last = Some(now);
            self.say(attempt, &FromChild::Alive);
        }
    }

    fn spawn_now<'a>(&'a self, attempt: &'a Context, children: Vec<Child>) -> BoxFuture<'a, Spawned> {
        async move {
            let _turn = self.calls.lock().await;
            let mut messages = named(attempt, children)?;
            let gone = |_| Failure::retry("the worker is gone").of_kind("interrupted");
            messages.extend(frame(&FromChild::SpawnNow).map_err(|why| Failure::retry(why.to_string()))?);
            let (sender, answer) = oneshot::channel();
            *self.called.lock() = Some(sender);
            {
                let mut say = self.say.lock();
                if attempt.has_ended() {
                    return Err(Failure::cancelled());
                }
                say.write_all(&messages).map_err(|why| Failure::retry(why.to_string()))?;
            }
            answer.map_err(gone).await?
        }
        .boxed()
    }
}

/// The line to the worker is the standard input. What the handler starts does not get it.
fn take_line() -> io::Result<UnixStream> {
    let line: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    let line = UnixStream::from(line);
    line.local_addr()?;
    let nothing: OwnedFd = std::fs::File::open("/dev/null")?.into();
    // SAFETY: both descriptors are open, and nobody reads the standard input at this time.
    if unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&nothing), libc::STDIN_FILENO) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(line)
}

/// A stop is for the worker to tell: signals to everything that belongs to it do not end an attempt before its time. And
/// where memory is short, the kernel's choice is to fall on a cell.
fn install_signal_handlers() {
    extern "C" fn nothing(_: libc::c_int) {}
    // A handler, not `SIG_IGN`: programs that the handler starts do not inherit it.
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        // SAFETY: the handler does nothing.
        let _ = unsafe { sigaction(signal, &action) };
    }
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
}
