//! Keeps one process of an app running: starts it again after its end, and replaces it.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use kafleet_runtime::Backoff;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::blame::{note_death, note_lasting};
use super::replacement::watch_memory;
use super::status::count_end;
use super::{AppPool, ProcessHandle};
use crate::process::{AppProcess, ProcessEnd, ProcessRequest, StartError};
use crate::session::SessionEvent;

/// Waits between failed starts.
const MIN_BACKOFF: Duration = Duration::from_millis(250);
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// Maximum time for a process to end after it was asked to end, or killed.
const END_DEADLINE: Duration = Duration::from_secs(13);

/// Maximum number of replaced processes, per process of the pool, that still finish their attempts.
const MAX_FINISHING: usize = 4;

/// Process with its supervisor. Dropping it kills the process.
pub(super) struct SupervisedProcess {
    pub handle: Arc<ProcessHandle>,
    /// `None` after the end.
    supervisor: Option<JoinHandle<ProcessEnd>>,
}

/// Reason to start another process.
enum Next {
    /// The process has ended, or gets no more attempts.
    Now,
    /// The process serves until its replacement is ready.
    Overlapping,
    /// The process was used up, and has ended before its replacement starts.
    Replaced,
    /// The pool is being stopped.
    Stop,
}

impl AppPool {
    /// Keeps process `number` running until the pool is stopped. `first`: process that is already running.
    pub(super) async fn keep_running(self: Arc<Self>, number: u32, mut first: Option<AppProcess>) {
        let mut backoff = Backoff::new(MIN_BACKOFF, MAX_BACKOFF);
        // Process that serves until its replacement is ready, and those that finish their attempts.
        let mut served: Option<SupervisedProcess> = None;
        let mut finishing: Vec<SupervisedProcess> = Vec::new();
        loop {
            let process = match first.take() {
                Some(process) => process,
                None => match self.start_unless_stopped(number, &mut backoff).await {
                    Some(process) => process,
                    None => break,
                },
            };
            let mut current = self.supervise(process, false);
            if let Some(old) = served.take() {
                old.handle.close(&self.state);
                let_finish(self.name(), &mut finishing, old);
            }
            let next = self.wait_for_replacement(&mut current).await;
            let has_run = current.handle.session.has_run();
            if has_run {
                backoff.reset();
            }
            match next {
                Next::Stop => {
                    served = Some(current);
                    break;
                }
                Next::Overlapping => served = Some(current),
                Next::Now | Next::Replaced => {
                    if current.supervisor.is_some() {
                        let_finish(self.name(), &mut finishing, current);
                    }
                    // A process that ended or retired before its first attempt may do so again.
                    if !has_run && matches!(next, Next::Now) {
                        self.pause(&mut backoff).await;
                    }
                }
            }
        }
        join_all(served.into_iter().chain(finishing).map(|process| self.end(process))).await;
    }

    /// Starts a process; repeats failed starts. Returns `None` if the pool is stopped.
    async fn start_unless_stopped(&self, number: u32, backoff: &mut Backoff) -> Option<AppProcess> {
        loop {
            let started = self.stop.run_until_cancelled(self.start_process(number)).await?;
            match started {
                Ok(process) => return Some(process),
                Err(error) => {
                    let reason = error.to_string();
                    tracing::error!(app = self.name(), process = number, %reason, "a process of an app cannot be started");
                    self.state.lock().last_failure = Some(reason);
                    count_end(self, "not_ready");
                    self.pause(backoff).await;
                }
            }
        }
    }

    async fn pause(&self, backoff: &mut Backoff) {
        self.stop.run_until_cancelled(tokio::time::sleep(backoff.next_wait())).await;
    }

    pub(super) async fn start_process(&self, number: u32) -> Result<AppProcess, StartError> {
        let (process, declaration) = self.program.start(number, &self.welcome).await?;
        match self.declaration.difference(&declaration) {
            None => Ok(process),
            Some(difference) => Err(StartError {
                app: self.name().to_owned(),
                reason: format!("has changed on disk: {difference}; hint: restart the worker"),
            }),
        }
    }

    pub(super) fn supervise(self: &Arc<Self>, process: AppProcess, is_spare: bool) -> SupervisedProcess {
        let (requests, receiver) = mpsc::unbounded_channel();
        let handle = self.add(&process, requests, is_spare);
        let (pool, supervised) = (self.clone(), handle.clone());
        let supervisor = kafleet_runtime::spawn(async move {
            let end = tokio::select! {
                biased;
                end = process.run(receiver, |event| pool.process_event(&supervised, event)) => end,
                never = watch_memory(&pool, &supervised) => match never {},
                never = note_lasting(&pool, &supervised) => match never {},
            };
            pool.state.lock().remove(supervised.id);
            note_death(&pool, &supervised, &end);
            note_end(&pool, &supervised, &end);
            end
        });
        SupervisedProcess { handle, supervisor: Some(supervisor) }
    }

    /// Closes a process after any event: it gets no more attempts, and is replaced.
    fn process_event(&self, process: &ProcessHandle, event: SessionEvent) {
        let app = self.name();
        match event {
            SessionEvent::Ended => {}
            SessionEvent::Retired(reason) => {
                tracing::info!(app, pid = process.pid, %reason, "a process of an app retires");
            }
            SessionEvent::Overrun => {
                tracing::warn!(app, pid = process.pid, "an attempt did not stop in time; its process is replaced");
            }
        }
        process.close(&self.state);
        process.replace.notify_one();
    }

    async fn wait_for_replacement(&self, current: &mut SupervisedProcess) -> Next {
        let handle = current.handle.clone();
        tokio::select! {
            biased;
            () = self.stop.cancelled() => return Next::Stop,
            () = handle.replace.notified() => {}
            () = current.ended() => return Next::Now,
        }
        let is_used_up = {
            let state = self.state.lock();
            state.table.is_used_up(handle.id) && !state.table.is_closed(handle.id)
        };
        match is_used_up {
            true if self.settings.overlap => Next::Overlapping,
            true => {
                handle.close(&self.state);
                tokio::select! {
                    biased;
                    () = self.stop.cancelled() => Next::Stop,
                    () = current.ended() => Next::Replaced,
                }
            }
            false => Next::Now,
        }
    }

    /// Ends a process; its running attempts may finish for some seconds.
    pub(super) async fn end(&self, mut process: SupervisedProcess) {
        // Fails if the process has ended.
        let _ = process.handle.requests.send(ProcessRequest::Stop);
        let _ = timeout(END_DEADLINE, process.ended()).await;
    }
}

/// Keeps a replaced process until its attempts have ended. If there are too many, kills the oldest, whose attempts run
/// again: waiting for it would leave the app without a process.
fn let_finish(app: &str, finishing: &mut Vec<SupervisedProcess>, process: SupervisedProcess) {
    finishing.retain(|process| !process.has_ended());
    finishing.push(process);
    if finishing.len() > MAX_FINISHING {
        let oldest = finishing.remove(0);
        let pid = oldest.handle.pid;
        tracing::warn!(
            app,
            pid,
            "{MAX_FINISHING} younger processes are finishing too: the oldest is killed, and its attempts run again"
        );
    }
}

/// Logs and counts the end of a process, and keeps the reason if it has not served.
fn note_end(pool: &AppPool, process: &ProcessHandle, end: &ProcessEnd) {
    let (app, pid, reason) = (pool.name(), process.pid, &end.message);
    count_end(pool, end.reason());
    if end.is_expected {
        tracing::info!(app, pid, %reason, "a process of an app has ended");
        return;
    }
    tracing::warn!(app, pid, %reason, "a process of an app has died");
    if !process.is_steady() {
        pool.state.lock().last_failure = Some(reason.clone());
    }
}

impl SupervisedProcess {
    fn has_ended(&self) -> bool {
        self.supervisor.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the end of the process.
    pub(super) async fn ended(&mut self) {
        if let Some(supervisor) = &mut self.supervisor {
            // After a panic the process has been dropped, which kills it.
            let _ = supervisor.await;
            self.supervisor = None;
        }
    }
}

impl Drop for SupervisedProcess {
    fn drop(&mut self) {
        // Fails if the process has ended.
        let _ =
            self.handle.requests.send(ProcessRequest::Kill("the worker killed the process to replace it".to_owned()));
    }
}
