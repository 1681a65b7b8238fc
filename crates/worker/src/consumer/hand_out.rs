//! Hands inputs out to the dispatcher, in batches and fairly over the partitions.

use tokio::sync::mpsc;

use super::partition::Phase;
use super::partition_table::PartitionTable;
use crate::decode::Input;
use crate::dispatch::HAND_OUT;

/// The next batch for the dispatcher.
#[derive(Default)]
pub(super) struct HandOut {
    batch: Vec<Input>,
    /// The dispatcher has ended.
    pub closed: bool,
}

impl HandOut {
    /// Sends a batch, if the dispatcher has room and there are inputs.
    pub(super) fn send(&mut self, work: &mpsc::Sender<Vec<Input>>, partitions: &mut PartitionTable) {
        if self.batch.is_empty() {
            self.fill_batch(partitions);
        }
        if self.batch.is_empty() {
            return;
        }
        match work.try_send(std::mem::take(&mut self.batch)) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(batch)) => self.batch = batch,
            Err(mpsc::error::TrySendError::Closed(_)) => self.closed = true,
        }
    }

    /// Returns whether no batch waits for the dispatcher.
    pub(super) fn is_empty(&self) -> bool {
        self.batch.is_empty() && !self.closed
    }

    /// Takes inputs from the partitions in turn, so that none waits for another.
    fn fill_batch(&mut self, partitions: &mut PartitionTable) {
        let mut more = true;
        while more && self.batch.len() < HAND_OUT {
            more = false;
            for state in partitions.iter_mut() {
                for _ in 0..HAND_OUT / 8 {
                    let Some(input) = state.pop() else { break };
                    self.batch.push(input);
                    more = true;
                }
            }
        }
    }

    /// Removes inputs of partitions that are no longer active from the batch; they count as not handed out.
    pub(super) fn recall(&mut self, partitions: &mut PartitionTable) {
        for input in std::mem::take(&mut self.batch) {
            match partitions.by_assignment_mut(input.tag().assignment_id()) {
                Some(state) if state.phase == Phase::Active => self.batch.push(input),
                Some(state) => state.release(),
                None => {}
            }
        }
    }
}
