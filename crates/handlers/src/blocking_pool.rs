//! Threads for blocking attempts, and for blocking calls made by attempts. Threads are reused. Concurrent attempts are
//! bounded by the slots of the type, one of which a stuck attempt continues to occupy; calls by [`MAX_CALLS`].

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use futures::FutureExt;
use parking_lot::{Condvar, Mutex};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use super::{Failure, RunFuture};

/// Idle time after which a thread ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum concurrent calls, including stuck ones; others wait.
const MAX_CALLS: usize = 512;

type Job = Box<dyn FnOnce() + Send>;

/// A pool of threads for the blocking work of a type.
pub struct BlockingPool(Arc<PoolState>);

struct PoolState {
    name: String,
    queue: Mutex<JobQueue>,
    /// Notified when a job is queued for an idle thread.
    more: Condvar,
    /// Permits for calls.
    permits: Arc<Semaphore>,
    /// Jobs that still block their threads although their attempts are over.
    stuck: Arc<AtomicUsize>,
}

#[derive(Default)]
struct JobQueue {
    jobs: VecDeque<Job>,
    /// Number of threads that wait for a job.
    idle: usize,
}

impl BlockingPool {
    /// Creates a pool without threads; they are named after the type.
    pub fn new(task_type: &str) -> Self {
        Self(Arc::new(PoolState {
            name: format!("kafleet-{task_type}"),
            queue: Mutex::default(),
            more: Condvar::new(),
            permits: Arc::new(Semaphore::new(MAX_CALLS)),
            stuck: Arc::default(),
        }))
    }

    /// Returns the number of threads blocked by jobs whose attempts are over.
    pub fn stuck(&self) -> usize {
        self.0.stuck.load(Ordering::SeqCst)
    }

    pub(crate) fn stuck_counter(&self) -> Arc<AtomicUsize> {
        self.0.stuck.clone()
    }

    /// Runs an attempt on its own thread. If the future is dropped, the attempt ends at its next `await`, and is
    /// stuck until then.
    pub(crate) fn run<T: Send + 'static>(&self, attempt: RunFuture<T>) -> RunFuture<T> {
        let (shared, runtime) = (self.0.clone(), Handle::current());
        Box::pin(async move {
            let (sender, receiver) = oneshot::channel();
            let (guard, job) = shared.new_job();
            shared.submit(Box::new(move || {
                let driven = AssertUnwindSafe(job.cancel.run_until_cancelled(attempt)).catch_unwind();
                let ended = runtime.block_on(driven);
                // Before the result is sent: its receiver assumes that the slot is free.
                job.finish();
                let _ = sender.send(ended);
            }))?;
            let ended = receiver.await;
            drop(guard);
            match ended {
                Ok(Ok(Some(answer))) => answer,
                Ok(Err(panic)) => resume_unwind(panic),
                Ok(Ok(None)) | Err(_) => Err(abandoned()),
            }
        })
    }

    /// Runs a blocking call. If the future is dropped, a call that has not started never does, and a running one is
    /// stuck until it returns.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let permit = self.0.permits.clone().acquire_owned().await.ok();
        let (sender, receiver) = oneshot::channel();
        let (guard, job) = self.0.new_job();
        let runtime = Handle::current();
        self.0.submit(Box::new(move || {
            let _entered = runtime.enter();
            let ended = (!job.cancel.is_cancelled()).then(|| catch_unwind(AssertUnwindSafe(call)));
            job.finish();
            drop(permit);
            let _ = sender.send(ended);
        }))?;
        let ended = receiver.await;
        drop(guard);
        match ended {
            Ok(Some(Ok(done))) => Ok(done),
            Ok(Some(Err(panic))) => resume_unwind(panic),
            Ok(None) | Err(_) => Err(abandoned()),
        }
    }
}

fn abandoned() -> Failure {
    Failure::retry("the attempt was abandoned").of_kind("interrupted")
}

impl PoolState {
    /// Creates the state of a job, for its thread, and the guard that abandons the job when it is dropped.
    fn new_job(self: &Arc<Self>) -> (AbandonGuard, Arc<JobState>) {
        let state = Arc::new(JobState {
            shared: self.clone(),
            state: AtomicU8::new(RUNNING),
            cancel: CancellationToken::new(),
        });
        (AbandonGuard(state.clone()), state)
    }

    /// Queues a job, and starts a thread for it unless an idle one can take it.
    fn submit(self: &Arc<Self>, job: Job) -> Result<(), Failure> {
        let mut queue = self.queue.lock();
        queue.jobs.push_back(job);
        if queue.idle >= queue.jobs.len() {
            self.more.notify_one();
            return Ok(());
        }
        let shared = self.clone();
        let started = std::thread::Builder::new().name(self.name.clone()).spawn(move || shared.serve());
        started.map(drop).map_err(|error| {
            queue.jobs.pop_back();
            Failure::retry(format!("cannot start a thread for the attempt: {error}")).of_kind("not_started")
        })
    }

    /// Runs a thread: executes jobs until none arrives within [`IDLE_TIMEOUT`].
    fn serve(&self) {
        loop {
            let job = {
                let mut queue = self.queue.lock();
                if queue.jobs.is_empty() {
                    queue.idle += 1;
                    self.more.wait_for(&mut queue, IDLE_TIMEOUT);
                    queue.idle -= 1;
                }
                queue.jobs.pop_front()
            };
            match job {
                Some(job) => job(),
                None => return,
            }
        }
    }
}

/// Queued or running, and awaited.
const RUNNING: u8 = 0;
/// No longer awaited, and not finished.
const ABANDONED: u8 = 1;
const DONE: u8 = 2;

/// State of a job, shared by its attempt and its thread.
struct JobState {
    shared: Arc<PoolState>,
    state: AtomicU8,
    cancel: CancellationToken,
}

impl JobState {
    fn finish(&self) {
        if self.state.swap(DONE, Ordering::SeqCst) == ABANDONED {
            self.shared.stuck.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn abandon(&self) {
        // Increment first: the thread may finish at any time, and decrements on completion.
        self.shared.stuck.fetch_add(1, Ordering::SeqCst);
        let was = self.state.compare_exchange(RUNNING, ABANDONED, Ordering::SeqCst, Ordering::SeqCst);
        match was {
            Ok(_) => self.cancel.cancel(),
            Err(_) => drop(self.shared.stuck.fetch_sub(1, Ordering::SeqCst)),
        }
    }
}

/// Abandons a job on drop. A finished job is unaffected.
struct AbandonGuard(Arc<JobState>);

impl Drop for AbandonGuard {
    fn drop(&mut self) {
        self.0.abandon();
    }
}
