//! What the clock brings: retries, `started` of attempts that last, and notes.

use std::cmp::Reverse;
use std::time::Duration;

use tokio::time::Instant;

use super::{Dispatcher, Running};
use crate::model::event::Kind;
use crate::worker::attempt::output::FLUSH_INTERVAL;
use crate::worker::completions::DeliveryTag;
use crate::worker::decode::Input;

/// How often threads that are stuck are looked at.
const LOOK_AT_STUCK: Duration = Duration::from_millis(50);

impl Dispatcher {
    pub(super) fn next_due(&self) -> Option<Instant> {
        let started = self.unstarted.front().map(|(at, _)| *at);
        let sleeping = self.sleeping.peek().map(|Reverse(next)| next.until);
        // Nobody says when a thread is free again.
        let stuck = (self.stuck > 0).then(|| Instant::now() + LOOK_AT_STUCK);
        [started, sleeping, self.next_flush, self.limits.next_due(), stuck].into_iter().flatten().min()
    }

    pub(super) async fn do_due(&mut self) {
        let now = Instant::now();
        while let Some((_, number)) = self.unstarted.pop_front_if(|(at, _)| *at <= now) {
            self.report_started(number).await;
        }
        while self.sleeping.peek().is_some_and(|Reverse(next)| next.until <= now) {
            if let Some(Reverse(next)) = self.sleeping.pop() {
                self.queue.push_front(Input::Task(next.held));
            }
        }
        for mut held in self.limits.due(now).into_iter().rev() {
            held.paced = true;
            self.queue.push_front(Input::Task(held));
        }
        if self.next_flush.is_some_and(|at| at <= now) {
            self.next_flush = None;
            self.flush_all_notes().await;
            self.parts.meter.flush();
        }
        if self.next_flush.is_none() && !self.running.is_empty() {
            self.next_flush = Some(now + FLUSH_INTERVAL);
        }
    }

    pub(super) async fn report_started(&mut self, number: u64) {
        let Some(mut running) = self.running.remove(&number) else { return };
        self.write_started(&mut running).await;
        self.running.insert(number, running);
        self.next_flush.get_or_insert(Instant::now() + FLUSH_INTERVAL);
    }

    pub(super) async fn write_started(&mut self, running: &mut Running) {
        if running.started {
            return;
        }
        let mut event = self.event(Kind::Started, &running.held);
        event.at_ms = running.began_ms;
        event.attempt = running.held.attempts + 1;
        self.say(&mut running.held, event).await;
        running.started = true;
    }

    pub(super) async fn flush_notes(&mut self, running: &mut Running) {
        let notes = self.output.close(&running.cx);
        if !notes.is_empty() {
            self.write_started(running).await;
        }
        for event in notes {
            self.parts.events.report(&event, DeliveryTag::UNTRACKED, &mut self.scratch).await;
        }
    }

    /// A note on an attempt comes after its start, also where that would not have been told yet.
    pub(super) async fn flush_all_notes(&mut self) {
        if self.output.is_idle() {
            return;
        }
        while let Some((_, number)) = self.unstarted.pop_front() {
            self.report_started(number).await;
        }
        for event in self.output.flush_all() {
            self.parts.events.report(&event, DeliveryTag::UNTRACKED, &mut self.scratch).await;
        }
    }
}
