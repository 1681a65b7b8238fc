//! What the group gives, asks back and takes away.

use tokio::time::Instant;

use super::{CALL_DEADLINE, GAP_LOOKS, RETRY_PAUSE, TypeConsumer, health_part, numbers, refused_part};
use crate::broker::{BrokerError, GroupEvent, Partition, StartOffset};
use crate::control::settings;
use crate::worker::completions::SLOTS;
use crate::worker::consumer::partition::{PartitionState, Phase};
use crate::worker::dispatch::Command;

impl TypeConsumer {
    pub(super) async fn group_event(&mut self, event: GroupEvent) {
        match event {
            GroupEvent::Assigned(partitions) => {
                tracing::info!(task_type = %self.parts.task_type, partitions = ?numbers(&partitions), "partitions assigned");
                self.assigned(partitions);
            }
            GroupEvent::Revoked(partitions) => {
                tracing::info!(task_type = %self.parts.task_type, partitions = ?numbers(&partitions), "partitions asked back");
                self.revoke(&partitions);
            }
            GroupEvent::Lost(partitions) => {
                tracing::warn!(task_type = %self.parts.task_type, partitions = ?numbers(&partitions), "partitions lost");
                self.lose(&partitions);
            }
            GroupEvent::Committed { result, .. } => self.commit_ended(result).await,
            GroupEvent::OutOfRange(partition) => {
                self.out_of_range.insert(partition);
                self.recover_again = None;
            }
            GroupEvent::Trouble(error) => self.trouble(&error),
        }
    }

    /// A worker that stops takes up nothing new: it leaves soon, and what it never took has another owner then.
    fn assigned(&mut self, partitions: Vec<Partition>) {
        if self.stopping {
            return;
        }
        if partitions.is_empty() && self.pending_start.is_empty() {
            self.parts.health.clear(&health_part(&self.parts.task_type));
        }
        self.pending_start.extend(partitions);
        self.place_again = Some(Instant::now());
    }

    pub(super) fn place_unplaced(&mut self, now: Instant) {
        if self.pending_start.is_empty() || self.place_again.is_some_and(|at| now < at) {
            return;
        }
        let partitions = std::mem::take(&mut self.pending_start);
        let part = health_part(&self.parts.task_type);
        match self.place(&partitions) {
            Ok(()) => self.parts.health.clear(&part),
            Err(error) => {
                self.parts.health.set(&part, format!("its partitions cannot be taken up yet: {error}"));
                self.trouble(&error);
                self.pending_start = partitions;
                self.place_again = Some(now + RETRY_PAUSE);
            }
        }
    }

    /// Finds where each partition was left, and takes it up there.
    pub(super) fn place(&mut self, partitions: &[Partition]) -> Result<(), BrokerError> {
        self.count_partitions()?;
        let committed = self.parts.consumer.committed(partitions, CALL_DEADLINE)?;
        let consumed = if committed.iter().all(Option::is_some) {
            Default::default()
        } else {
            settings::read_control(&*self.parts.broker, &self.parts.names, CALL_DEADLINE)?.consumed
        };
        let mut starts = Vec::new();
        for (partition, committed) in partitions.iter().zip(&committed) {
            let slot = self.free_slot();
            self.command(Command::Open { slot });
            let marked = consumed.contains(&(self.parts.task_type.to_string(), partition.index));
            let mut share = if committed.is_none() && marked {
                self.refuse(partition, "its commit is gone, though it has been consumed before");
                PartitionState::refused(partition.clone(), slot)
            } else {
                let first = match committed {
                    Some(committed) => committed.offset,
                    None => self.parts.broker.ends(partition, CALL_DEADLINE)?.first,
                };
                PartitionState::resume_from(partition.clone(), slot, first, committed.as_ref(), self.window)
            };
            if share.unclean_takeovers() > 0 {
                share.bound_suspects(self.parts.broker.ends(partition, CALL_DEADLINE)?.end);
                self.parts.metrics.worker.unclean_takeovers.with_label_values(&[&*self.parts.task_type]).inc();
                tracing::warn!(%partition, in_a_row = share.unclean_takeovers(), "taken over from a worker that did not give it back");
            }
            if let Some(until) = share.suspects_until() {
                tracing::warn!(%partition, until, "workers keep dying here: what was under way runs in child processes up to this offset");
            }
            let start = if share.phase == Phase::Refused { StartOffset::End } else { StartOffset::At(share.start()) };
            starts.push((partition.clone(), start));
            self.put(share);
        }
        self.parts.consumer.assign(&starts)?;
        let refused: Vec<Partition> = self
            .shares
            .iter()
            .flatten()
            .filter(|share| share.phase == Phase::Refused)
            .map(|share| share.partition.clone())
            .collect();
        if !refused.is_empty() {
            self.parts.consumer.pause(&refused, true)?;
        }
        Ok(())
    }

    /// A number that no share has; one that long ago had it is forgotten.
    fn free_slot(&mut self) -> u32 {
        let taken = |slot: u32| self.shares.iter().flatten().any(|share| share.slot == slot);
        let slot = (0..SLOTS).map(|n| (self.next_slot + n) % SLOTS).find(|slot| !taken(*slot)).unwrap_or_default();
        self.next_slot = (slot + 1) % SLOTS;
        slot
    }

    pub(super) fn refuse(&mut self, partition: &Partition, why: &str) {
        let Partition { topic, index } = partition;
        let task_type = &self.parts.task_type;
        let told = format!("partition {index} of `{topic}` is not worked on: {why}");
        let hint = format!("kafleet offsets init {task_type}/{index} --at earliest|OFFSET|TIME");
        tracing::error!(%hint, "{told}");
        self.parts.health.set(&refused_part(task_type, *index), format!("{told}; `{hint}` says where to begin"));
        // It may have been told already where to begin.
        self.heed_again = Some(Instant::now());
    }

    pub(super) fn revoke(&mut self, partitions: &[Partition]) {
        let deadline = Instant::now() + self.parts.drain_timeout;
        self.pending_start.retain(|pending_start| !partitions.contains(pending_start));
        let mut unknown = Vec::new();
        for partition in partitions {
            match self.share(partition.index) {
                Some(share) if share.phase != Phase::Refused => {
                    share.revoke(deadline);
                    let slot = share.slot;
                    self.command(Command::Recall { slot });
                }
                // Nothing runs there.
                _ => {
                    self.take(partition.index);
                    unknown.push(partition.clone());
                }
            }
        }
        self.recall_batch();
        if !unknown.is_empty() {
            self.release(&unknown);
        }
    }

    /// What waits in the batch for revoked partitions was counted as handed out, and is not.
    pub(super) fn recall_batch(&mut self) {
        for work in std::mem::take(&mut self.batch) {
            let share = self.shares.iter_mut().flatten().find(|share| share.slot == work.tag().slot());
            match share {
                Some(share) if share.phase == Phase::Active => self.batch.push(work),
                Some(share) => share.returned(),
                None => {}
            }
        }
    }

    pub(super) fn lose(&mut self, partitions: &[Partition]) {
        self.pending_start.retain(|pending_start| !partitions.contains(pending_start));
        for partition in partitions {
            if let Some(share) = self.take(partition.index) {
                self.command(Command::Cancel { slot: share.slot });
            }
        }
        self.recall_batch();
        self.release(partitions);
    }

    /// Gives back what has been drained, or whose time is over: one last commit, then nothing. A refused partition stays until
    /// the worker stops or the group takes it.
    pub(super) fn settle_revoked(&mut self, now: Instant) {
        // The outstanding commit first: two must not overtake one another.
        if self.commit.is_some() || self.refused_last.as_ref().is_some_and(|refused| now < refused.again) {
            return;
        }
        let settled: Vec<&mut PartitionState> = self
            .shares
            .iter_mut()
            .flatten()
            .filter(|share| share.is_settled(now) && (share.phase != Phase::Refused || self.stopping))
            .collect();
        if settled.is_empty() {
            return;
        }
        let partitions: Vec<Partition> = settled.iter().map(|share| share.partition.clone()).collect();
        let late: Vec<u32> = settled.iter().filter(|share| share.outstanding() > 0).map(|share| share.slot).collect();
        let worked_on = settled.into_iter().filter(|share| share.phase != Phase::Refused);
        let commits: Vec<_> = worked_on.map(PartitionState::final_commit).collect();
        late.into_iter().for_each(|slot| self.command(Command::Cancel { slot }));
        if self.commit_last(&commits, now) {
            partitions.iter().for_each(|partition| drop(self.take(partition.index)));
            self.release(&partitions);
        }
    }

    /// Passes the end of what was read where it holds no task: nothing is left to do there, and the group's lag says so.
    pub(super) fn pass_gaps(&mut self, now: Instant) {
        if now < self.gaps_again {
            return;
        }
        self.gaps_again = now + GAP_LOOKS;
        let Ok(places) = self.parts.consumer.positions() else { return };
        for (partition, place) in places {
            let share = self.share(partition.index).filter(|share| matches!(share.phase, Phase::Starting | Phase::Active));
            share.into_iter().for_each(|share| share.skip_to(place));
        }
    }

    /// Partitions whose place lies outside their log are told once: each is tried until it is read again.
    pub(super) fn recover_astray(&mut self, now: Instant) {
        if self.out_of_range.is_empty() || self.recover_again.is_some_and(|at| now < at) {
            return;
        }
        self.recover_again = Some(now + RETRY_PAUSE);
        for partition in std::mem::take(&mut self.out_of_range) {
            let Err(error) = self.recover(&partition) else { continue };
            self.trouble(&error);
            let Partition { topic, index } = &partition;
            let told =
                format!("partition {index} of `{topic}` is not read: its place lies outside its log, and cannot be moved yet");
            self.parts.health.set(&refused_part(&self.parts.task_type, *index), format!("{told}: {error}"));
            self.out_of_range.insert(partition);
        }
    }

    fn recover(&mut self, partition: &Partition) -> Result<(), BrokerError> {
        // What is given back, or has been, takes no records any more.
        let reading = |share: &&mut PartitionState| matches!(share.phase, Phase::Starting | Phase::Active);
        let Some(read_to) = self.share(partition.index).filter(reading).map(|share| share.read_to()) else { return Ok(()) };
        let ends = self.parts.broker.ends(partition, CALL_DEADLINE)?;
        if read_to > ends.end {
            self.made_anew(partition, read_to, ends.end);
            return Ok(());
        }
        self.parts.consumer.assign(&[(partition.clone(), StartOffset::At(read_to.max(ends.first)))])?;
        let gone = ends.first - read_to;
        if gone > 0 {
            // The next commit passes them, which tells trackers that no worker has them.
            self.share(partition.index).into_iter().for_each(|share| share.skip_to(ends.first));
            tracing::error!(%partition, offsets = gone, "retention has removed tasks that nobody had worked on; going on at the log's start");
        }
        self.parts.health.clear(&refused_part(&self.parts.task_type, partition.index));
        Ok(())
    }

    /// Other records have the offsets now: what is still under way has nothing to do with them.
    fn made_anew(&mut self, partition: &Partition, read_to: i64, end: i64) {
        self.refuse(partition, &format!("offset {read_to} lies behind its end {end}: was the topic made anew?"));
        if let Some(share) = self.take(partition.index) {
            self.command(Command::Cancel { slot: share.slot });
            // Not the old number: a late answer would be taken for one of whoever begins here.
            let slot = self.free_slot();
            self.put(PartitionState::refused(partition.clone(), slot));
        }
        if let Err(error) = self.parts.consumer.pause(std::slice::from_ref(partition), true) {
            self.trouble(&error);
        }
    }
}
