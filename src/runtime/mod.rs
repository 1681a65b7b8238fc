//! Starting and stopping: the two-step shutdown that every role obeys, health, and what comes from the system: the clock,
//! tasks, threads, blocking calls. In a simulation that is a [`simulated::Host`]; `Instant` is tokio's everywhere, which
//! is the system's unless a test has stopped the clock.

pub mod simulated;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use simulated::{Hosted, host};

/// Raises how many files this process may have open, if it may and is not allowed so many; returns how many it is.
pub fn raise_open_files(wanted: u64) -> u64 {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 0 };
    let raised = wanted.min(hard);
    if raised > soft && setrlimit(Resource::RLIMIT_NOFILE, raised, hard).is_ok() { raised } else { soft }
}

/// Epoch milliseconds.
pub fn now_ms() -> i64 {
    if let Some(host) = host() {
        return host.now_ms();
    }
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Asks a role to stop: first to drain, then to abort.
#[derive(Clone, Default)]
pub struct Shutdown {
    /// Take no new work, finish what runs.
    pub drain: CancellationToken,
    /// Stop at once.
    pub abort: CancellationToken,
}

impl Shutdown {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn begin(&self) {
        self.drain.cancel();
    }

    pub fn abort(&self) {
        self.drain.cancel();
        self.abort.cancel();
    }

    pub fn is_draining(&self) -> bool {
        self.drain.is_cancelled()
    }

    /// SIGTERM or SIGINT begins the drain, a second one aborts.
    pub fn on_signals(&self) -> std::io::Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let this = self.clone();
        tokio::spawn(async move {
            for first in [true, false] {
                tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
                if first {
                    tracing::info!("stopping: finishing what runs; a second signal aborts");
                    this.begin();
                } else {
                    tracing::warn!("aborting");
                    this.abort();
                }
            }
        });
        Ok(())
    }
}

/// What stands in the way of being ready, by part of the process. Shared by a process's roles and its ops endpoint.
#[derive(Clone, Default)]
pub struct Health(Arc<Mutex<BTreeMap<String, String>>>);

impl Health {
    /// A part is not ready, for this reason.
    pub fn set(&self, part: &str, reason: impl Into<String>) {
        self.0.lock().insert(part.to_owned(), reason.into());
    }

    /// A part is ready.
    pub fn clear(&self, part: &str) {
        self.0.lock().remove(part);
    }

    /// Empty: ready.
    pub fn reasons(&self) -> Vec<(String, String)> {
        self.0.lock().iter().map(|(part, reason)| (part.clone(), reason.clone())).collect()
    }
}

/// Starts a task.
pub fn spawn<F>(task: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let Some(host) = host() else { return tokio::spawn(task) };
    let process = host.begun();
    let handle = tokio::spawn(Hosted::new(process, task));
    host.ends(process, handle.abort_handle());
    handle
}

/// Runs a loop that blocks on a thread of its own; the receiver hears its outcome, and nothing where it panics. The loop is
/// async for what it awaits, and for simulations, where it is a task: there it must wait with [`waiting`] and [`rest`].
pub fn thread<F>(name: &str, work: F) -> std::io::Result<oneshot::Receiver<F::Output>>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let (ended, end) = oneshot::channel();
    // Whoever waits no more does not need to know.
    let work = async move { drop(ended.send(work.await)) };
    if host().is_some() {
        spawn(work);
        return Ok(end);
    }
    let runtime = tokio::runtime::Handle::current();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || runtime.block_on(work))?;
    Ok(end)
}

/// How long a loop's next poll may wait, which is `wait`. In a simulation the loop waits here, so that others go on, and
/// the poll does not.
pub async fn waiting(wait: Duration) -> Duration {
    let Some(longest) = host().map(|host| host.takes(wait)) else { return wait };
    tokio::time::sleep(longest).await;
    Duration::ZERO
}

/// A pause of a loop that has a thread of its own.
pub async fn rest(pause: Duration) {
    if host().is_some() {
        return tokio::time::sleep(pause).await;
    }
    std::thread::sleep(pause);
}

/// Lets a blocking wait of a simulation pass. False: this is none, wait.
pub fn pass(wait: Duration) -> bool {
    host().map(|host| host.pass(wait)).is_some()
}

/// Runs a blocking call off the async threads. A panic in it becomes an error text.
pub async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    const LATENCY: Duration = Duration::from_millis(20);
    let Some(latency) = host().map(|host| host.takes(LATENCY)) else {
        return tokio::task::spawn_blocking(call).await.map_err(|why| format!("an internal call did not finish: {why}"));
    };
    // Whoever calls may die before the call is made, and after it without knowing what came of it.
    tokio::time::sleep(latency).await;
    let outcome = call();
    tokio::task::yield_now().await;
    Ok(outcome)
}

/// Waits between tries that grow from `first` to `most`.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    next: Duration,
    first: Duration,
    most: Duration,
}

impl Backoff {
    pub fn new(first: Duration, most: Duration) -> Self {
        Self { next: first, first, most }
    }

    /// The next wait, with up to 20 % on top.
    pub fn next_wait(&mut self) -> Duration {
        let wait = self.next.mul_f64(1.0 + 0.2 * fastrand::f64());
        self.next = (self.next * 2).min(self.most);
        wait
    }

    pub fn reset(&mut self) {
        self.next = self.first;
    }
}
