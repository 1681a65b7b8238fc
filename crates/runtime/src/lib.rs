//! Process runtime: two-step shutdown, health, and access to the clock, tasks, threads and blocking calls, which come
//! from a [`simulated::Host`] in a simulation. `Instant` is tokio's everywhere: the system's, unless a test has paused
//! the clock.
//!
//! Invariant: code that runs in the simulation takes the time, tasks, threads and blocking calls from here. A
//! `tokio::spawn` elsewhere survives a simulated crash, and a clock read elsewhere does not follow the seed, so a
//! failing seed could not be repeated. [`now_ms`] is the time of the brokers, by which times of several machines can be
//! compared; [`local_ms`] is that of this machine, which may be wrong by a day.
//!
//! Read next: `simulated.rs` (what a simulation replaces), `clock.rs`, then `docs/architecture/clocks.md`.

#![warn(unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

pub mod clock;
pub mod error_text;
mod health;
pub mod simulated;
pub mod watch;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use clock::BrokerClock;
pub use health::{Health, PARTS};
use simulated::{HostedTask, host};

/// Raises the limit of open files to `limit`, or to the hard limit; returns the resulting limit.
pub fn raise_open_files(limit: u64) -> u64 {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 0 };
    let raised = limit.min(hard);
    if raised > soft && setrlimit(Resource::RLIMIT_NOFILE, raised, hard).is_ok() { raised } else { soft }
}

/// The clock of a process that follows the brokers' time.
static CLOCK: OnceLock<BrokerClock> = OnceLock::new();

/// Makes this process use the time of its brokers. Call it before the first connection; without it, as in tests,
/// [`now_ms`] returns the time of this machine.
pub fn follow_broker_clock() {
    CLOCK.get_or_init(BrokerClock::default);
}

/// Returns whether this process uses the time of its brokers.
pub fn follows_broker_clock() -> bool {
    host().is_some() || CLOCK.get().is_some()
}

/// Takes the time at which a broker appended a record that was just acknowledged or received.
pub fn observe_broker_time(append_ms: i64) {
    match host() {
        Some(host) => host.broker_clock().observe(append_ms),
        None => CLOCK.get().into_iter().for_each(|clock| clock.observe(append_ms)),
    }
}

/// Current time in epoch milliseconds: that of the brokers, once it is known.
pub fn now_ms() -> i64 {
    let broker_ms = match host() {
        Some(host) => host.broker_clock().now_ms(),
        None => CLOCK.get().and_then(BrokerClock::now_ms),
    };
    broker_ms.unwrap_or_else(local_ms)
}

/// Current time of this machine in epoch milliseconds, which may be wrong. Use [`now_ms`] for all but its comparison.
pub fn local_ms() -> i64 {
    if let Some(host) = host() {
        return host.now_ms();
    }
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Time by which this machine's clock is ahead of the brokers', in milliseconds; 0 while that is not known.
pub fn clock_ahead_ms() -> i64 {
    local_ms().saturating_sub(now_ms())
}

/// Time in which signals count as one: npm passes on the SIGINT of a terminal to a program that has received it too.
const REPEATED_SIGNAL_WINDOW: Duration = Duration::from_millis(200);

/// Shutdown signal of a process: first drain, then abort.
#[derive(Clone, Default)]
pub struct Shutdown {
    /// Take no new work and finish running attempts.
    pub drain: CancellationToken,
    /// Stop at once.
    pub abort: CancellationToken,
    /// Maximum time for running attempts, if it is shorter than that of the configuration.
    limit: Arc<OnceLock<Duration>>,
}

impl Shutdown {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn begin(&self) {
        self.drain.cancel();
    }

    /// Starts the drain; attempts that run for longer than `limit` are released.
    pub fn begin_within(&self, limit: Duration) {
        // Fails if there is a limit already, which holds.
        let _ = self.limit.set(limit);
        self.begin();
    }

    /// Returns the time for running attempts in a drain, for which the configuration allows `most`.
    pub fn drain_time(&self, most: Duration) -> Duration {
        self.limit.get().map_or(most, |limit| most.min(*limit))
    }

    pub fn abort(&self) {
        self.drain.cancel();
        self.abort.cancel();
    }

    pub fn is_draining(&self) -> bool {
        self.drain.is_cancelled()
    }

    /// Starts the drain on SIGTERM or SIGINT, and aborts on a second one that comes at least 200 ms later.
    pub fn on_signals(&self) -> std::io::Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let this = self.clone();
        tokio::spawn(async move {
            let mut next = async || tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} };
            next().await;
            this.begin();
            tracing::info!("shutting down: finishing running attempts; a second signal aborts");
            let repeated = async {
                loop {
                    next().await;
                }
            };
            let _ = tokio::time::timeout(REPEATED_SIGNAL_WINDOW, repeated).await;
            next().await;
            this.abort();
            tracing::warn!("aborting");
        });
        Ok(())
    }
}

/// Spawns a task.
pub fn spawn<F>(task: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    if host().is_none() {
        return tokio::spawn(task);
    }
    spawn_on(&Handle::current(), task)
}

/// Spawns a task on another runtime.
pub fn spawn_on<F>(runtime: &Handle, task: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let Some(host) = host() else { return runtime.spawn(task) };
    let process = host.begun();
    let handle = runtime.spawn(HostedTask::new(process, task));
    host.ends(process, handle.abort_handle());
    handle
}

/// Spawns a task that ends when the guard is dropped.
pub fn spawn_guarded(task: impl Future<Output = ()> + Send + 'static) -> DropGuard {
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    spawn(async move {
        tokio::select! {
            biased;
            () = stopped.cancelled() => {}
            () = task => {}
        }
    });
    stop.drop_guard()
}

/// Runs a blocking loop on its own thread; the receiver gets its result, or an error if it panics. The loop is async
/// because it awaits other tasks, and because it is a task in simulations: it must wait with [`waiting`] and [`pause_thread`].
pub fn thread<F>(name: &str, work: F) -> std::io::Result<oneshot::Receiver<F::Output>>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let (ended, end) = oneshot::channel();
    // The receiver may have been dropped.
    let work = async move { drop(ended.send(work.await)) };
    if host().is_some() {
        spawn(work);
        return Ok(end);
    }
    let runtime = Handle::current();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || runtime.block_on(work))?;
    Ok(end)
}

/// Runtime with one thread of its own, for tasks that mostly wake each other: passed between threads, each wake-up would
/// cost two switches. It ends, with its tasks, when it is dropped.
pub struct RuntimeThread {
    handle: Handle,
    _stop: DropGuard,
}

impl RuntimeThread {
    /// Starts the thread. A simulation has none: the tasks run on its own.
    ///
    /// # Errors
    /// The runtime or the thread cannot be created.
    pub fn start(name: &str) -> std::io::Result<Self> {
        if host().is_some() {
            return Ok(Self { handle: Handle::current(), _stop: CancellationToken::new().drop_guard() });
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (handle, stop) = (runtime.handle().clone(), CancellationToken::new());
        let stopped = stop.clone();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || runtime.block_on(stopped.cancelled_owned()))?;
        Ok(Self { handle, _stop: stop.drop_guard() })
    }

    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

/// Returns the timeout for a loop's next poll: `wait`, or zero in a simulation, where the loop waits here instead so that
/// other tasks run.
pub async fn waiting(wait: Duration) -> Duration {
    let Some(longest) = host().map(|host| host.takes(wait)) else { return wait };
    tokio::time::sleep(longest).await;
    Duration::ZERO
}

/// Pauses a loop that runs on its own thread.
pub async fn pause_thread(pause: Duration) {
    if host().is_some() {
        return tokio::time::sleep(pause).await;
    }
    std::thread::sleep(pause);
}

/// Advances the time of a simulation by a blocking wait; returns false outside a simulation, where the caller waits.
pub fn pass(wait: Duration) -> bool {
    host().map(|host| host.pass(wait)).is_some()
}

/// Runs a blocking call on the blocking thread pool. A panic becomes an error message.
pub async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    const SIMULATED_LATENCY: Duration = Duration::from_millis(20);
    let Some(latency) = host().map(|host| host.takes(SIMULATED_LATENCY)) else {
        return tokio::task::spawn_blocking(call)
            .await
            .map_err(|error| format!("an internal call panicked or was aborted: {error}"));
    };
    // The caller may be dropped before the call, or after it without receiving its result.
    tokio::time::sleep(latency).await;
    let outcome = call();
    tokio::task::yield_now().await;
    Ok(outcome)
}

/// Exponential backoff from `first` to `max`.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    next: Duration,
    first: Duration,
    max: Duration,
}

impl Backoff {
    pub fn new(first: Duration, max: Duration) -> Self {
        Self { next: first, first, max }
    }

    /// Returns the next wait, plus a random 0 to 20 %.
    pub fn next_wait(&mut self) -> Duration {
        let wait = self.next.mul_f64(1.0 + 0.2 * fastrand::f64());
        self.next = (self.next * 2).min(self.max);
        wait
    }

    pub fn reset(&mut self) {
        self.next = self.first;
    }
}
