//! Commands to a dispatcher: from its consumer, about assignments; from the control topic; from the heartbeat.

use kafleet_model::event::InterruptionReason;
use tokio::sync::oneshot;

use super::Dispatcher;
use super::exits::Exit;
use crate::consumer::assignment::Assignment;
use crate::heartbeat::TypeStatus;

/// A command to a dispatcher.
#[derive(Debug)]
pub(crate) enum Command {
    /// A new assignment uses this id.
    OpenAssignment { assignment_id: u32 },
    /// Release the tasks of the assignment that have not started.
    CloseAssignment { assignment_id: u32 },
    /// Release the tasks of the assignment that have not started, and stop its running attempts for a reason; their results no
    /// longer count.
    CancelAssignment { assignment_id: u32, reason: InterruptionReason },
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
            Command::OpenAssignment { assignment_id } => self.admission.assignments.open(assignment_id),
            Command::CloseAssignment { assignment_id } => self.close_assignment(assignment_id).await,
            Command::CancelAssignment { assignment_id, reason } => {
                self.close_assignment(assignment_id).await;
                // Also true of unacknowledged results, and of tasks on their way to the dead letters or the tracker.
                self.exits.unfinished = true;
                self.admission.assignments.cancel(assignment_id, reason);
                self.attempts.stop(|in_flight| in_flight.tag.assignment_id() == assignment_id);
            }
            Command::RetriesCommitted { assignment_id, recorded } => {
                self.admission.assignments.commit_retries(assignment_id, recorded);
            }
            Command::SetAssignment(assignment) => {
                self.admission.limits.set_assignment(assignment);
                self.apply_limits();
            }
            Command::ApplyControl => self.apply_control().await,
            // The sender may have stopped waiting.
            Command::Describe(reply) => drop(reply.send(self.describe())),
        }
    }

    async fn close_assignment(&mut self, assignment_id: u32) {
        self.admission.assignments.close(assignment_id);
        // Inputs handed out before the command: a type that starts nothing would not receive them.
        while let Ok(work) = self.work.try_recv() {
            self.receive(work).await;
        }
        for in_flight in self.admission.extract_assignment(assignment_id) {
            self.leave(in_flight, Exit::Released(None)).await;
        }
    }

    fn describe(&self) -> TypeStatus {
        TypeStatus {
            task_type: self.settings.task_type.to_string(),
            in_flight: self.attempts.running.slots() as u32,
            running: self.attempts.describe(),
            ..self.admission.status()
        }
    }
}
