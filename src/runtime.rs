//! Starting and stopping: the two-step shutdown that every role obeys, health, and the clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Epoch milliseconds.
pub fn now_ms() -> i64 {
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

/// Runs a blocking call off the async threads. A panic in it becomes an error text.
pub async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(call).await.map_err(|why| format!("an internal call did not finish: {why}"))
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
