//! Consumer whose calls follow rules.

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use kafleet_broker::{
    BrokerError, Commit, CommitOutcomes, CommittedOffset, Consumer, ConsumerSpec, GroupEvent, Partition, RecordRef,
    StartOffset,
};

use super::rule::{Effect, Rule};
use super::{Call, FaultRules, Verdict};

/// A consumer, as the conditions of rules see it.
pub struct Reader {
    pub spec: ConsumerSpec,
    /// Number of consumers of its group opened before it.
    pub number: usize,
    pub opened: Instant,
    /// Polls that have been decided about.
    pub polls: usize,
    /// Records delivered.
    pub records: usize,
}

pub(super) struct FaultyConsumer {
    inner: Box<dyn Consumer>,
    faults: FaultRules,
    reader: Reader,
    /// Error after which the consumer has to be replaced.
    failed: Option<BrokerError>,
    /// Partitions whose commit a rule has failed, until the outcome of the commit arrives.
    refused: CommitOutcomes,
    /// Outcomes of commits, with the times at which they arrive.
    outcomes: Vec<(Instant, CommitOutcomes)>,
}

impl FaultyConsumer {
    pub(super) fn new(inner: Box<dyn Consumer>, faults: FaultRules, spec: ConsumerSpec, number: usize) -> Self {
        let reader = Reader { spec, number, opened: Instant::now(), polls: 0, records: 0 };
        Self { inner, faults, reader, failed: None, refused: Vec::new(), outcomes: Vec::new() }
    }

    /// Polls for the records that the rule leaves.
    fn poll_under(
        &mut self,
        rule: Option<&Rule>,
        max: usize,
        wait: Duration,
        sink: &mut dyn FnMut(&RecordRef<'_>),
    ) -> Result<Vec<GroupEvent>, BrokerError> {
        let (max, left) = match rule.map(|rule| &rule.effect) {
            Some(Effect::AtMost(most)) => (max.min(*most), None),
            Some(Effect::Records(left)) => (max.min(left.load(SeqCst)), Some(left)),
            _ => (max, None),
        };
        let events = self.inner.poll(max, wait, &mut |record| {
            self.reader.records += 1;
            self.faults.shared.delivered.fetch_add(1, SeqCst);
            if let Some(left) = left {
                left.fetch_sub(1, SeqCst);
            }
            sink(record);
        })?;
        Ok(self.deliver_outcomes(events))
    }

    /// Delays the outcomes of commits as the rules say.
    fn deliver_outcomes(&mut self, events: Vec<GroupEvent>) -> Vec<GroupEvent> {
        let now = Instant::now();
        let mut delivered = Vec::new();
        for event in events {
            let GroupEvent::Committed(outcomes) = event else {
                delivered.push(event);
                continue;
            };
            let rule = self.faults.rule_for(&Call::CommitOutcome);
            let delay = rule.map_or(Duration::ZERO, |rule| match rule.effect {
                Effect::Delay(delay) => delay,
                _ => Duration::ZERO,
            });
            self.outcomes.push((now + delay, outcomes));
        }
        for (_, mut outcomes) in self.outcomes.extract_if(.., |(at, _)| *at <= now) {
            outcomes.append(&mut self.refused);
            delivered.push(GroupEvent::Committed(outcomes));
        }
        delivered
    }

    /// Splits a commit into the partitions that are committed and the errors of others; those of a rule that answers
    /// are in neither.
    fn split(&self, commits: &[Commit]) -> (Vec<Commit>, CommitOutcomes) {
        let mut made = Vec::new();
        let mut refused = CommitOutcomes::new();
        for commit in commits {
            match self.faults.judge(&Call::Commit(&self.reader, &commit.partition)) {
                Ok(Verdict::Answer(_)) => {}
                Ok(_) => made.push(commit.clone()),
                Err(error) => refused.push((commit.partition.clone(), Err(error))),
            }
        }
        (made, refused)
    }
}

impl Consumer for FaultyConsumer {
    fn poll(
        &mut self,
        max: usize,
        wait: Duration,
        sink: &mut dyn FnMut(&RecordRef<'_>),
    ) -> Result<Vec<GroupEvent>, BrokerError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let verdict = self.faults.judge(&Call::Poll(&self.reader)).inspect_err(|error| {
            self.failed = matches!(error, BrokerError::Fatal(_)).then(|| error.clone());
        })?;
        self.reader.polls += 1;
        match verdict {
            Verdict::Answer(value) => {
                let events: Vec<GroupEvent> = Verdict::answer(value);
                if events.is_empty() {
                    std::thread::sleep(wait);
                }
                Ok(events)
            }
            Verdict::Special(rule) => self.poll_under(Some(&rule), max, wait, sink),
            Verdict::Make | Verdict::LoseReply(_) => self.poll_under(None, max, wait, sink),
        }
    }

    fn assign(&mut self, starts: &[(Partition, StartOffset)]) -> Result<(), BrokerError> {
        self.faults.call(&Call::Assign(starts), || self.inner.assign(starts))
    }

    fn release(&mut self, partitions: &[Partition]) -> Result<(), BrokerError> {
        self.inner.release(partitions)
    }

    fn commit(&mut self, commits: &[Commit]) -> Result<(), BrokerError> {
        let (made, refused) = self.split(commits);
        if made.is_empty() && !commits.is_empty() {
            self.outcomes.extend((!refused.is_empty()).then(|| (Instant::now(), refused)));
            return Ok(());
        }
        self.refused.extend(refused);
        self.inner.commit(&made)
    }

    fn commit_sync(&mut self, commits: &[Commit]) -> Result<(), BrokerError> {
        let (made, refused) = self.split(commits);
        if !made.is_empty() {
            self.inner.commit_sync(&made)?;
        }
        refused.into_iter().next().map_or(Ok(()), |(_, outcome)| outcome)
    }

    fn committed(
        &mut self,
        partitions: &[Partition],
        deadline: Duration,
    ) -> Result<Vec<Option<CommittedOffset>>, BrokerError> {
        let call = Call::ReadCommits(&self.reader, partitions);
        self.faults.call(&call, || self.inner.committed(partitions, deadline))
    }

    fn pause(&mut self, partitions: &[Partition], paused: bool) -> Result<(), BrokerError> {
        self.inner.pause(partitions, paused)
    }

    fn hold(&mut self, topic: &str, held: bool) {
        self.inner.hold(topic, held);
    }

    fn positions(&mut self) -> Result<Vec<(Partition, i64)>, BrokerError> {
        self.inner.positions()
    }

    fn close(self: Box<Self>, deadline: Duration) {
        self.inner.close(deadline);
    }
}
