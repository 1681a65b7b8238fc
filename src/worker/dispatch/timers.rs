//! Timers of a dispatcher: delayed tasks, `started` events of attempts that last, output and metrics.

use std::time::Duration;

use tokio::time::Instant;

use super::Dispatcher;
use super::exits::Exits;
use super::running::RunningAttempts;

/// Interval of the check for stuck slots, which report no end.
const STUCK_CHECK_INTERVAL: Duration = Duration::from_millis(50);

impl Dispatcher {
    pub(super) fn next_due(&self) -> Option<Instant> {
        let stuck = (self.stuck_slots > 0).then(|| Instant::now() + STUCK_CHECK_INTERVAL);
        let circuit = self.tasks.circuit.next_due(self.clock.now);
        let limits = self.limits.next_due();
        let Exits { reporter, reports, .. } = &self.exits;
        let queue = self.tasks.queue.next_due();
        let timers =
            [self.running.next_due(), queue, reporter.next_flush(), limits, circuit, reports.next_due(), stuck];
        timers.into_iter().flatten().min()
    }

    pub(super) async fn run_due(&mut self) {
        let now = Instant::now();
        while let Some(id) = self.running.take_due(now) {
            announce_start(&mut self.running, &mut self.exits, id).await;
        }
        self.tasks.queue.wake_due(now);
        self.exits.reports.run_due(now);
        for mut in_flight in self.limits.take_due(now).into_iter().rev() {
            in_flight.admitted = true;
            self.tasks.queue.push_front(in_flight);
        }
        if self.exits.reporter.take_due_flush(now) {
            publish_output(&mut self.running, &mut self.exits).await;
            self.exits.reports.metrics.flush();
        }
        if !self.running.is_empty() {
            self.exits.reporter.schedule_flush(now);
        }
    }
}

async fn announce_start(running: &mut RunningAttempts, exits: &mut Exits, id: u64) {
    if let Some(running) = running.get_mut(id) {
        exits.reporter.publish_started(running).await;
        exits.reporter.schedule_flush(Instant::now());
    }
}

/// Publishes pending output, after the `started` events of all attempts, because output of an attempt comes after its
/// start.
async fn publish_output(running: &mut RunningAttempts, exits: &mut Exits) {
    if exits.reporter.output.is_idle() {
        return;
    }
    while let Some(id) = running.take_unannounced() {
        announce_start(running, exits, id).await;
    }
    exits.reporter.publish_pending_output().await;
}
