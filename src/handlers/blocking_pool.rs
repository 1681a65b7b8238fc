//! Threads for attempts that block, and for what attempts do that blocks: one each, kept for the next one. The number of
//! attempts is bounded by the slots of the type: who starts attempts counts those that are stuck. Calls have a bound here.

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

use super::{AnswerFuture, Failure};

/// How long a thread waits for its next attempt before it ends.
const KEEP_IDLE: Duration = Duration::from_secs(10);
/// Calls at a time, stuck ones included; others wait.
const CALLS: usize = 512;

type Job = Box<dyn FnOnce() + Send>;

pub struct Threads(Arc<Shared>);

struct Shared {
    name: String,
    queue: Mutex<Queue>,
    more: Condvar,
    /// Room for calls.
    room: Arc<Semaphore>,
    /// Jobs whose attempts are over while they still block their threads.
    stuck: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    idle: usize,
}

impl Threads {
    pub fn new(task_type: &str) -> Self {
        let (queue, more, stuck) = Default::default();
        let room = Arc::new(Semaphore::new(CALLS));
        Self(Arc::new(Shared { name: format!("kafleet-{task_type}"), queue, more, room, stuck }))
    }

    pub fn stuck(&self) -> usize {
        self.0.stuck.load(Ordering::SeqCst)
    }

    /// Drives an attempt on a thread of its own. Dropped, it ends at the attempt's next `await`; until then it is stuck.
    pub fn run(&self, attempt: AnswerFuture) -> AnswerFuture {
        let (shared, runtime) = (self.0.clone(), Handle::current());
        Box::pin(async move {
            let (sender, receiver) = oneshot::channel();
            let (abandoning, own) = shared.watched();
            shared.submit(Box::new(move || {
                let driven = AssertUnwindSafe(own.over.run_until_cancelled(attempt)).catch_unwind();
                let ended = runtime.block_on(driven);
                // Before the end is told: whoever hears of it has the slot back.
                own.done();
                let _ = sender.send(ended);
            }))?;
            let ended = receiver.await;
            drop(abandoning);
            match ended {
                Ok(Ok(Some(answer))) => answer,
                Ok(Err(panic)) => resume_unwind(panic),
                Ok(Ok(None)) | Err(_) => Err(given_up()),
            }
        })
    }

    /// Makes a call that blocks. Dropped, it is not begun any more; what has begun is stuck until it ends.
    pub async fn call<T: Send + 'static>(&self, call: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
        let room = self.0.room.clone().acquire_owned().await.ok();
        let (sender, receiver) = oneshot::channel();
        let (abandoning, own) = self.0.watched();
        let runtime = Handle::current();
        self.0.submit(Box::new(move || {
            let _entered = runtime.enter();
            let ended = (!own.over.is_cancelled()).then(|| catch_unwind(AssertUnwindSafe(call)));
            own.done();
            drop(room);
            let _ = sender.send(ended);
        }))?;
        let ended = receiver.await;
        drop(abandoning);
        match ended {
            Ok(Some(Ok(done))) => Ok(done),
            Ok(Some(Err(panic))) => resume_unwind(panic),
            Ok(None) | Err(_) => Err(given_up()),
        }
    }
}

fn given_up() -> Failure {
    Failure::retry("the attempt was given up").of_kind("interrupted")
}

impl Shared {
    fn watched(self: &Arc<Self>) -> (Abandoning, Arc<Watch>) {
        let watch = Arc::new(Watch { shared: self.clone(), state: AtomicU8::new(RUNNING), over: CancellationToken::new() });
        (Abandoning(watch.clone()), watch)
    }

    fn submit(self: &Arc<Self>, job: Job) -> Result<(), Failure> {
        let mut queue = self.queue.lock();
        queue.jobs.push_back(job);
        if queue.idle >= queue.jobs.len() {
            self.more.notify_one();
            return Ok(());
        }
        let own = self.clone();
        let started = std::thread::Builder::new().name(self.name.clone()).spawn(move || own.serve());
        started.map(drop).map_err(|why| {
            queue.jobs.pop_back();
            Failure::retry(format!("no thread for the attempt could be started: {why}")).of_kind("not_started")
        })
    }

    /// One thread's life.
    fn serve(&self) {
        loop {
            let job = {
                let mut queue = self.queue.lock();
                if queue.jobs.is_empty() {
                    queue.idle += 1;
                    self.more.wait_for(&mut queue, KEEP_IDLE);
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

const RUNNING: u8 = 0;
const ABANDONED: u8 = 1;
const DONE: u8 = 2;

/// One job, as its attempt and its thread see it.
struct Watch {
    shared: Arc<Shared>,
    state: AtomicU8,
    over: CancellationToken,
}

impl Watch {
    fn done(&self) {
        if self.state.swap(DONE, Ordering::SeqCst) == ABANDONED {
            self.shared.stuck.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn abandon(&self) {
        // Counted first: the thread may be done at any time, and takes back what was counted.
        self.shared.stuck.fetch_add(1, Ordering::SeqCst);
        let was = self.state.compare_exchange(RUNNING, ABANDONED, Ordering::SeqCst, Ordering::SeqCst);
        match was {
            Ok(_) => self.over.cancel(),
            Err(_) => drop(self.shared.stuck.fetch_sub(1, Ordering::SeqCst)),
        }
    }
}

struct Abandoning(Arc<Watch>);

impl Drop for Abandoning {
    fn drop(&mut self) {
        self.0.abandon();
    }
}
