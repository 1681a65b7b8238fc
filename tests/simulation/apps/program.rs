//! Handle of a simulated process, as the worker has it.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kafleet::handlers::process::RunningProgram;
use nix::sys::signal::Signal;
use tokio::sync::{mpsc, oneshot};

use crate::journal::Journal;

/// Status of a process that was killed, as `wait` returns it.
pub const KILLED: i32 = Signal::SIGKILL as i32;

pub struct SimulatedProgram {
    pub pid: u32,
    pub journal: Arc<Journal>,
    pub signals: mpsc::UnboundedSender<Signal>,
    pub exit: oneshot::Receiver<i32>,
    pub status: Option<i32>,
}

impl RunningProgram for SimulatedProgram {
    fn pid(&self) -> u32 {
        self.pid
    }

    fn exit(&mut self) -> BoxFuture<'_, io::Result<ExitStatus>> {
        async {
            if self.status.is_none() {
                self.status = Some((&mut self.exit).await.unwrap_or(KILLED));
            }
            Ok(ExitStatus::from_raw(self.status.unwrap_or(KILLED)))
        }
        .boxed()
    }

    fn signal(&self, signal: Signal) {
        if signal == Signal::SIGKILL {
            self.journal.deaths.kill(self.pid);
        }
        // Fails if the process has ended.
        let _ = self.signals.send(signal);
    }
}

impl Drop for SimulatedProgram {
    fn drop(&mut self) {
        let _ = self.signals.send(Signal::SIGKILL);
    }
}
