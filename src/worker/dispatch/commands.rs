//! Commands to a dispatcher: from its consumer, about assignments; from the control topic; from the heartbeat.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use super::Dispatcher;
use super::exits::Exit;
use super::queue::split;
use crate::model::event::InterruptionReason;
use crate::worker::consumer::assignment::Assignment;
use crate::worker::decode::InFlight;
use crate::worker::heartbeat::{MAX_RUNNING, RunningTask, TypeStatus};

/// A command to a dispatcher.
#[derive(Debug)]
pub(crate) enum Command {
    /// A new assignment uses this id.
    OpenAssignment { assignment_id: u32 },
    /// Release the tasks of the assignment that have not started.
    CloseAssignment { assignment_id: u32 },
    /// Also stop its running attempts, for a reason; their results no longer count.
    CancelAssignment { assignment_id: u32, why: InterruptionReason },
    /// The retries of the assignment up to this number are committed.
    RetriesCommitted { assignment_id: u32, recorded: u64 },
    /// The worker owns these partitions now.
    SetAssignment(Assignment),
    /// The control state has changed.
    ApplyControl,
    /// Return the status of the type.
    Describe(oneshot::Sender<TypeStatus>),
}

impl Dispatcher {
    pub(super) async fn handle_command(&mut self, command: Command) {
        match command {
            Command::OpenAssignment { assignment_id } => self.tasks.assignments.open(assignment_id),
            Command::CloseAssignment { assignment_id } => self.close_assignment(assignment_id).await,
            Command::CancelAssignment { assignment_id, why } => {
                self.close_assignment(assignment_id).await;
                // Also true of unacknowledged results, and of tasks on their way to the dead letters or the tracker.
                self.exits.unfinished = true;
                self.tasks.assignments.cancel(assignment_id, why);
                let running =
                    self.running.iter().filter(|running| running.in_flight.tag.assignment_id() == assignment_id);
                running.for_each(|running| running.stop());
            }
            Command::RetriesCommitted { assignment_id, recorded } => {
                self.tasks.assignments.commit_retries(assignment_id, recorded);
            }
            Command::SetAssignment(assignment) => {
                self.limits.set_assignment(assignment);
                self.apply_limits();
            }
            Command::ApplyControl => self.apply_control().await,
            // The sender may have stopped waiting.
            Command::Describe(reply) => drop(reply.send(self.describe())),
        }
    }

    async fn close_assignment(&mut self, assignment_id: u32) {
        self.tasks.assignments.close(assignment_id);
        // Inputs handed out before the command: a type that starts nothing would not receive them.
        while let Ok(work) = self.work.try_recv() {
            self.receive(work).await;
        }
        for tag in self.tasks.queue.extract_invalid(assignment_id) {
            self.tasks.completions.release(tag);
        }
        let tasks = self.extract(&mut |in_flight| in_flight.tag.assignment_id() == assignment_id);
        for in_flight in tasks {
            self.leave(in_flight, Exit::Released(None)).await;
        }
    }

    /// Takes out the selected tasks of all that do not run.
    pub(super) fn extract(&mut self, is_selected: &mut dyn FnMut(&InFlight) -> bool) -> VecDeque<Box<InFlight>> {
        let mut taken = self.limits.extract(is_selected);
        taken.extend(self.tasks.queue.extract(is_selected));
        taken.extend(split(&mut self.quarantine.waiting, is_selected));
        taken
    }

    fn describe(&self) -> TypeStatus {
        let task_type = self.tasks.task_type.to_string();
        let running = self.running.iter().take(MAX_RUNNING).map(|running| RunningTask {
            id: running.in_flight.task.id.to_string(),
            task_type: task_type.clone(),
            attempt: running.attempt(),
            started_ms: running.started_at_ms,
        });
        let assignment = self.limits.assignment();
        TypeStatus {
            slots: self.limits.slots() as u32,
            in_flight: self.running.len() as u32,
            waiting: self.tasks.queue.waiting() as u32,
            paused: self.limits.is_paused(),
            partitions: assignment.owned.clone(),
            stopped: self.tasks.circuit.stopped().cloned(),
            circuit: self.tasks.circuit.open_reason(),
            app_down: self.permits.down_reason(),
            refused: assignment.refused.clone(),
            running: running.collect(),
            task_type,
            ..TypeStatus::default()
        }
    }
}
