//! What the control topic says to a lane: how many slots there are, and where a refused partition begins.

use tokio::time::Instant;

use super::{CALL_DEADLINE, RETRY_PAUSE, TypeConsumer, refused_part};
use crate::broker::{BrokerError, Commit, Committed, Partition, StartOffset};
use crate::config::RateBy;
use crate::control::{self, ControlKey};
use crate::model::offsets::{Completed, Mark, Metadata};
use crate::worker::consumer::assignment::Assignment;
use crate::worker::consumer::partition::{PartitionState, Phase};
use crate::worker::dispatch::Command;

/// Offsets that one partition may have handed out and not done, for so many slots.
pub fn window(slots: u32) -> u64 {
    (u64::from(slots) * 4).clamp(256, 10_000)
}

impl TypeConsumer {
    /// Looks at the orders when they have changed, or when a partition has been refused.
    pub(super) async fn apply_control(&mut self, now: Instant) {
        if self.stopping {
            // What is begun now would be given back by nobody.
            return;
        }
        let generation = self.parts.control.generation();
        let again = self.heed_again.is_some_and(|at| now >= at);
        if generation == self.heeded && !again {
            return;
        }
        (self.heeded, self.heed_again) = (generation, None);
        let (task_type, board) = (self.parts.task_type.clone(), self.parts.control.clone());
        let mut wanted = Vec::new();
        {
            let orders = board.orders();
            let rate = orders.rates.get(&*task_type).map(|limit| limit.rate).or(self.parts.policy.rate);
            self.parts.intake.by_key = rate.is_some_and(|rate| rate.by == RateBy::Key);
            let slots = orders.slots.get(&*task_type).and_then(|said| said.slots).unwrap_or_else(|| self.parts.policy.slots());
            self.window = window(slots);
            for share in self.shares.iter_mut().flatten() {
                share.set_window(self.window);
                let said = orders.offsets.get(&(task_type.to_string(), share.partition.index));
                let refused = share.phase == Phase::Refused;
                wanted.extend(said.filter(|_| refused).map(|said| (share.partition.clone(), share.slot, said.offset)));
            }
        }
        for (partition, slot, offset) in wanted {
            if let Err(error) = self.begin_at(&partition, slot, offset).await {
                tracing::warn!(%partition, offset, %error, "where to begin was told, and cannot be obeyed yet");
                self.heed_again = Some(now + RETRY_PAUSE);
            }
        }
    }

    /// Takes up a refused partition where people say, and removes the order.
    async fn begin_at(&mut self, partition: &Partition, slot: u32, offset: i64) -> Result<(), BrokerError> {
        let ends = self.parts.broker.ends(partition, CALL_DEADLINE)?;
        let offset = offset.clamp(ends.first, ends.end);
        let metadata = Metadata::encode(&Completed::starting_at(offset), Mark::Clean, offset, 0);
        let commit = Commit { partition: partition.clone(), offset, metadata: metadata.clone() };
        self.parts.consumer.commit_sync(&[commit])?;
        let committed = Committed { offset, metadata };
        self.parts.consumer.assign(&[(partition.clone(), StartOffset::At(offset))])?;
        self.parts.consumer.pause(std::slice::from_ref(partition), false)?;
        // Only now: of a partition that is no longer refused, nobody would ask again.
        self.command(Command::Open { slot });
        self.put(PartitionState::resume_from(partition.clone(), slot, offset, Some(&committed), self.window));
        self.parts.health.clear(&refused_part(&self.parts.task_type, partition.index));
        tracing::info!(%partition, offset, "begun where it was told to");
        let key = ControlKey::Offsets(self.parts.task_type.to_string(), partition.index);
        let parts = &self.parts;
        // It may stay: no partition is refused any more that it would apply to, until the next one.
        if let Err(error) = control::withdraw(&parts.link, &parts.names, &key).await {
            tracing::warn!(%partition, %error, "the order that was obeyed could not be removed");
        }
        Ok(())
    }

    /// Tells the dispatcher which partitions there are, for its part of fleet-wide limits and for heartbeats.
    pub(super) fn tell_portion(&mut self) {
        let shares = || self.shares.iter().flatten();
        let owned = || shares().map(|share| share.partition.index);
        let refused = || shares().filter(|share| share.phase == Phase::Refused).map(|share| share.partition.index);
        let same = |told: &[i32], now: &mut dyn Iterator<Item = i32>| now.eq(told.iter().copied());
        if self.told.of == self.partitions && same(&self.told.owned, &mut owned()) && same(&self.told.refused, &mut refused()) {
            return;
        }
        self.told = Assignment { owned: owned().collect(), of: self.partitions, refused: refused().collect() };
        self.command(Command::Own(self.told.clone()));
    }

    /// How many partitions the topic has. An error where the fleet-wide limit leaves some without a part.
    pub(super) fn count_partitions(&mut self) -> Result<(), BrokerError> {
        let topic = self.parts.names.tasks(&self.parts.task_type);
        let topics = self.parts.broker.topics(&topic, CALL_DEADLINE)?;
        let found = topics.into_iter().find(|info| info.name == topic);
        self.partitions = found.map(|info| info.partitions).ok_or(BrokerError::Unknown(topic))?;
        match self.parts.policy.max_concurrency {
            Some(limit) if limit < self.partitions => Err(BrokerError::Invalid(format!(
                "`max_concurrency` {limit} is below the {} partitions of the topic, of which each needs one: raise it",
                self.partitions
            ))),
            _ => Ok(()),
        }
    }
}
