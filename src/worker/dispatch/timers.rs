//! Timers of a dispatcher: delayed tasks, `started` events of attempts that last, output and metrics.

use std::time::Duration;

use tokio::time::Instant;

use super::Dispatcher;
use super::outcome::report_suppressed_failures;
use super::running::RunningAttempts;
use super::tasks::Tasks;

/// Interval of the check for stuck slots, which report no end.
const STUCK_CHECK_INTERVAL: Duration = Duration::from_millis(50);

impl Dispatcher {
    pub(super) fn next_due(&self) -> Option<Instant> {
        let stuck = (self.stuck_slots > 0).then(|| Instant::now() + STUCK_CHECK_INTERVAL);
        let Tasks { queue, reporter, .. } = &self.tasks;
        let circuit = self.tasks.circuit.next_due(self.clock.now);
        let limits = self.limits.next_due();
        let log = self.tasks.failure_log.next_report();
        let timers = [self.running.next_due(), queue.next_due(), reporter.next_flush(), limits, circuit, log, stuck];
        timers.into_iter().flatten().min()
    }

    pub(super) async fn run_due(&mut self) {
        let now = Instant::now();
        while let Some(id) = self.running.take_due(now) {
            announce_start(&mut self.running, &mut self.tasks, id).await;
        }
        self.tasks.queue.wake_due(now);
        report_suppressed_failures(&mut self.tasks, now);
        for mut in_flight in self.limits.take_due(now).into_iter().rev() {
            in_flight.admitted = true;
            self.tasks.queue.push_front(in_flight);
        }
        if self.tasks.reporter.take_due_flush(now) {
            publish_output(&mut self.running, &mut self.tasks).await;
            self.tasks.metrics.flush();
        }
        if !self.running.is_empty() {
            self.tasks.reporter.schedule_flush(now);
        }
    }
}

async fn announce_start(running: &mut RunningAttempts, tasks: &mut Tasks, id: u64) {
    if let Some(running) = running.get_mut(id) {
        tasks.reporter.publish_started(running).await;
        tasks.reporter.schedule_flush(Instant::now());
    }
}

/// Publishes pending output, after the `started` events of all attempts, because output of an attempt comes after its
/// start.
async fn publish_output(running: &mut RunningAttempts, tasks: &mut Tasks) {
    if tasks.reporter.output.is_idle() {
        return;
    }
    while let Some(id) = running.take_unannounced() {
        announce_start(running, tasks, id).await;
    }
    tasks.reporter.publish_pending_output().await;
}
