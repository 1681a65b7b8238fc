//! Timers of a dispatcher: waiting tasks, `started` events of attempts that last, output and metrics.

use std::time::Duration;

use tokio::time::Instant;

use super::Dispatcher;

/// Interval of the check for stuck slots, which report no end.
const STUCK_CHECK_INTERVAL: Duration = Duration::from_millis(50);

impl Dispatcher {
    pub(super) fn next_due(&self) -> Option<Instant> {
        let stuck = self.attempts.has_stuck().then(|| Instant::now() + STUCK_CHECK_INTERVAL);
        let exits = self.exits.reporter.next_flush().into_iter().chain(self.exits.reports.next_due()).min();
        let timers = [self.attempts.running.next_due(), self.admission.next_due(self.clock.now), exits, stuck];
        timers.into_iter().flatten().min()
    }

    pub(super) async fn run_due(&mut self) {
        let now = Instant::now();
        self.announce_starts(Some(now)).await;
        self.admission.run_due(now);
        self.exits.reports.run_due(now);
        if self.exits.reporter.take_due_flush(now) {
            if !self.exits.reporter.output.is_idle() {
                // The output of an attempt comes after its start.
                self.announce_starts(None).await;
                self.exits.reporter.publish_pending_output().await;
            }
            self.exits.reports.metrics.flush();
        }
        if !self.attempts.running.is_empty() {
            self.exits.reporter.schedule_flush(now);
        }
    }

    /// Publishes the `started` events that are due, or all.
    async fn announce_starts(&mut self, until: Option<Instant>) {
        while let Some(running) = self.attempts.running.next_unannounced(until) {
            self.exits.reporter.publish_started(running).await;
            self.exits.reporter.schedule_flush(Instant::now());
        }
    }
}
