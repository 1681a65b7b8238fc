//! A consumer group: members, assignments and committed offsets.
//!
//! A partition goes through `Offered` (not delivered to the member yet), `Held` and `Revoking` (the member must
//! release it) before its next owner gets it. Nothing here waits: pending changes stay in the member's
//! [`PollResult`] until it polls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Condvar;

use super::assignor::{MemberId, TargetAssignment, balance};
use super::topics::{self, Topics};
use crate::{BrokerError, Commit, CommitOutcomes, CommittedOffset, GroupEvent, Partition};

const MAX_METADATA_BYTES: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct ConsumerGroup {
    members: BTreeMap<MemberId, Member>,
    owners: BTreeMap<Partition, Assignment>,
    target: TargetAssignment,
    known_partitions: usize,
    /// Incremented with every change of members or partitions.
    generation: u64,
    offsets: BTreeMap<Partition, StoredCommit>,
    empty_since_ms: i64,
}

#[derive(Debug)]
struct Member {
    topics: BTreeSet<String>,
    waiter: Arc<Condvar>,
    /// The member is inside [`crate::Consumer::poll`], and therefore alive however long that call waits.
    polling: bool,
    seen_ms: i64,
    /// Generation of the member's last poll.
    generation: u64,
    /// The member has received its first assignment, which may be empty.
    got_first_assignment: bool,
    pending: PendingRebalance,
}

#[derive(Debug, Default)]
struct PendingRebalance {
    assigned: Vec<Partition>,
    revoked: Vec<Partition>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AssignmentPhase {
    /// The assignment is pending for the member's next poll.
    Offered,
    Held,
    /// The revocation is pending for the member's next poll.
    RevokePending,
    /// The member has received the revocation.
    Revoking,
}

#[derive(Clone, Copy, Debug)]
struct Assignment {
    member: MemberId,
    phase: AssignmentPhase,
}

#[derive(Debug)]
struct StoredCommit {
    committed: CommittedOffset,
    at_ms: i64,
}

/// Result of a member's poll.
pub(super) enum PollResult {
    Member(Vec<GroupEvent>),
    /// The member was evicted.
    Evicted,
}

impl ConsumerGroup {
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(super) fn join(&mut self, id: MemberId, topics: &[String], waiter: &Arc<Condvar>, all: &Topics, now_ms: i64) {
        let member = Member {
            topics: topics.iter().cloned().collect(),
            waiter: waiter.clone(),
            polling: false,
            seen_ms: now_ms,
            generation: 0,
            got_first_assignment: false,
            pending: PendingRebalance::default(),
        };
        self.members.insert(id, member);
        self.rebalance(all);
    }

    /// Removes a member; its partitions are reassigned at once.
    pub(super) fn leave(&mut self, id: MemberId, all: &Topics, now_ms: i64) {
        if self.members.remove(&id).is_none() {
            return;
        }
        self.owners.retain(|_, assignment| assignment.member != id);
        if self.members.is_empty() {
            self.empty_since_ms = now_ms;
        }
        self.rebalance(all);
    }

    /// Evicts members that have not polled for `timeout_ms`.
    pub(super) fn evict_silent(&mut self, all: &Topics, now_ms: i64, timeout_ms: i64) {
        let silent = |member: &Member| !member.polling && now_ms - member.seen_ms > timeout_ms;
        let ids: Vec<MemberId> = self.members.iter().filter(|(_, member)| silent(member)).map(|(id, _)| *id).collect();
        for id in ids {
            self.leave(id, all, now_ms);
        }
    }

    /// Returns the milliseconds until the next member may be evicted.
    pub(super) fn next_eviction_ms(&self, now_ms: i64, timeout_ms: i64) -> Option<u64> {
        let idle = self.members.values().filter(|member| !member.polling);
        idle.map(|member| (member.seen_ms + timeout_ms + 1 - now_ms).max(1) as u64).min()
    }

    /// Returns a member's pending events.
    pub(super) fn poll(&mut self, id: MemberId, now_ms: i64) -> PollResult {
        let Some(member) = self.members.get_mut(&id) else { return PollResult::Evicted };
        (member.polling, member.seen_ms, member.generation) = (true, now_ms, self.generation);
        let PendingRebalance { assigned, revoked } = std::mem::take(&mut member.pending);
        // A member without partitions receives its empty assignment once.
        let has_none = self.known_partitions > 0 && !self.target.values().any(|owner| *owner == id);
        let deliver_assignment = !assigned.is_empty() || (has_none && !member.got_first_assignment);
        member.got_first_assignment |= deliver_assignment;
        for (partitions, phase) in [(&assigned, AssignmentPhase::Held), (&revoked, AssignmentPhase::Revoking)] {
            for at in partitions {
                self.owners.insert(at.clone(), Assignment { member: id, phase });
            }
        }
        let events = [
            (!revoked.is_empty()).then_some(GroupEvent::Revoked(revoked)),
            deliver_assignment.then_some(GroupEvent::Assigned(assigned)),
        ];
        PollResult::Member(events.into_iter().flatten().collect())
    }

    pub(super) fn end_poll(&mut self, id: MemberId, now_ms: i64) {
        if let Some(member) = self.members.get_mut(&id) {
            (member.polling, member.seen_ms) = (false, now_ms);
        }
    }

    /// Returns whether the partition is assigned to this member, and the member has received the assignment.
    pub(super) fn is_assigned(&self, id: MemberId, at: &Partition) -> bool {
        self.owners
            .get(at)
            .is_some_and(|assignment| assignment.member == id && assignment.phase != AssignmentPhase::Offered)
    }

    /// Releases partitions. A partition that is not being revoked stays assigned to the member, but is not read; no
    /// other member gets it.
    pub(super) fn release(&mut self, id: MemberId, partitions: &[Partition]) {
        for at in partitions.iter().filter(|at| self.is_revocation_pending(id, at)).collect::<Vec<_>>() {
            self.owners.remove(at);
            self.update_pending(id, |pending| pending.revoked.retain(|partition| partition != at));
        }
        self.advance_all();
    }

    /// Returns whether the partition is assigned to this member, but about to be revoked.
    pub(super) fn is_revocation_pending(&self, id: MemberId, at: &Partition) -> bool {
        let phase = self.owners.get(at).filter(|assignment| assignment.member == id).map(|assignment| assignment.phase);
        matches!(phase, Some(AssignmentPhase::RevokePending | AssignmentPhase::Revoking))
    }

    /// Returns whether the member has received the revocation; it gets no more records of the partition.
    pub(super) fn is_revoking(&self, id: MemberId, at: &Partition) -> bool {
        self.owners
            .get(at)
            .is_some_and(|assignment| assignment.member == id && assignment.phase == AssignmentPhase::Revoking)
    }

    /// Rebalances after partitions were added.
    pub(super) fn update_partitions(&mut self, all: &Topics) {
        let partitions = self.subscribed_partitions(all);
        if partitions.len() != self.known_partitions {
            self.rebalance(all);
        }
    }

    /// Recomputes the assignment after a change of members, topics or partitions.
    fn rebalance(&mut self, all: &Topics) {
        let subscriptions: BTreeMap<MemberId, BTreeSet<String>> =
            self.members.iter().map(|(id, member)| (*id, member.topics.clone())).collect();
        let partitions = self.subscribed_partitions(all);
        self.known_partitions = partitions.len();
        self.target = balance(&partitions, &subscriptions, &self.target);
        self.generation += 1;
        self.advance_all();
    }

    /// Returns the partitions of all topics with a subscribed member.
    fn subscribed_partitions(&self, all: &Topics) -> Vec<Partition> {
        let names: BTreeSet<&str> =
            self.members.values().flat_map(|member| &member.topics).map(String::as_str).collect();
        let topics = all.iter().filter(|(name, _)| names.contains(&***name));
        topics
            .flat_map(|(name, topic)| (0..topic.logs.len()).map(|index| Partition::new(name.clone(), index as i32)))
            .collect()
    }

    /// Moves every partition one step towards its target.
    fn advance_all(&mut self) {
        let held: Vec<(Partition, Assignment)> =
            self.owners.iter().map(|(at, assignment)| (at.clone(), *assignment)).collect();
        for (at, assignment) in held {
            let is_target = self.target.get(&at) == Some(&assignment.member);
            self.advance(&at, assignment, is_target);
        }
        let free: Vec<(Partition, MemberId)> = self
            .target
            .iter()
            .filter(|(at, _)| !self.owners.contains_key(at))
            .map(|(at, to)| (at.clone(), *to))
            .collect();
        for (at, member) in free {
            self.owners.insert(at.clone(), Assignment { member, phase: AssignmentPhase::Offered });
            self.update_pending(member, |pending| pending.assigned.push(at));
        }
    }

    fn advance(&mut self, at: &Partition, Assignment { member, phase }: Assignment, is_target: bool) {
        match phase {
            AssignmentPhase::Offered if !is_target => {
                self.owners.remove(at);
                self.update_pending(member, |pending| pending.assigned.retain(|offered| offered != at));
            }
            AssignmentPhase::Held if !is_target => {
                self.owners.insert(at.clone(), Assignment { member, phase: AssignmentPhase::RevokePending });
                self.update_pending(member, |pending| pending.revoked.push(at.clone()));
            }
            AssignmentPhase::RevokePending if is_target => {
                self.owners.insert(at.clone(), Assignment { member, phase: AssignmentPhase::Held });
                self.update_pending(member, |pending| pending.revoked.retain(|partition| partition != at));
            }
            AssignmentPhase::Offered
            | AssignmentPhase::Held
            | AssignmentPhase::RevokePending
            | AssignmentPhase::Revoking => {}
        }
    }

    fn update_pending(&mut self, id: MemberId, update: impl FnOnce(&mut PendingRebalance)) {
        if let Some(member) = self.members.get_mut(&id) {
            update(&mut member.pending);
            member.waiter.notify_all();
        }
    }

    /// Commits for a member. An invalid offset does not concern the others.
    pub(super) fn commit(
        &mut self,
        name: &str,
        id: MemberId,
        commits: &[Commit],
        all: &Topics,
        now_ms: i64,
    ) -> Result<CommitOutcomes, BrokerError> {
        let Some(member) = self.members.get(&id) else {
            return Err(BrokerError::Refused(format!(
                "this consumer is not a member of `{name}`; hint: poll to join it"
            )));
        };
        let is_foreign =
            |commit: &&Commit| topics::log(all, &commit.partition).is_ok() && !self.is_assigned(id, &commit.partition);
        if let Some(foreign) = commits.iter().find(is_foreign) {
            return Err(BrokerError::Refused(format!("`{}` is not this member's", foreign.partition)));
        }
        // As in Kafka, commits between a rebalance and the member's next poll carry an old generation. A member that
        // is still revoking partitions delays the rebalance, and may commit until it has released them.
        let is_revoking = self
            .owners
            .values()
            .any(|assignment| assignment.member == id && assignment.phase == AssignmentPhase::Revoking);
        if member.generation != self.generation && !is_revoking {
            return Err(BrokerError::Refused(format!("`{name}` is being rebalanced; hint: poll, then commit again")));
        }
        let outcomes = commits.iter().map(|commit| {
            let outcome = check_commit(commit, all);
            if outcome.is_ok() {
                self.store(std::slice::from_ref(commit), now_ms);
            }
            (commit.partition.clone(), outcome)
        });
        Ok(outcomes.collect())
    }

    /// Commits from outside the group.
    pub(super) fn commit_externally(
        &mut self,
        name: &str,
        commits: &[Commit],
        all: &Topics,
        now_ms: i64,
    ) -> Result<(), BrokerError> {
        if !self.members.is_empty() {
            let members = self.members.len();
            return Err(BrokerError::Refused(format!("`{name}` has {members} members; hint: stop them first")));
        }
        commits.iter().try_for_each(|commit| check_commit(commit, all))?;
        self.store(commits, now_ms);
        Ok(())
    }

    fn store(&mut self, commits: &[Commit], at_ms: i64) {
        for Commit { partition, offset, metadata } in commits {
            let committed = CommittedOffset { offset: *offset, metadata: metadata.clone() };
            self.offsets.insert(partition.clone(), StoredCommit { committed, at_ms });
        }
    }

    pub(super) fn committed(&self, partitions: &[Partition]) -> Vec<Option<CommittedOffset>> {
        partitions.iter().map(|at| self.offsets.get(at).map(|stored| stored.committed.clone())).collect()
    }

    pub(super) fn clear_offsets_if_empty(&mut self) {
        if self.members.is_empty() {
            self.offsets.clear();
        }
    }

    /// Removes committed offsets older than `retention_ms` from an empty group; the age counts from the last member's
    /// departure.
    pub(super) fn expire(&mut self, now_ms: i64, retention_ms: i64) {
        if self.members.is_empty() {
            let since = self.empty_since_ms;
            self.offsets.retain(|_, stored| now_ms - stored.at_ms.max(since) < retention_ms);
        }
    }
}

fn check_commit(Commit { partition, offset, metadata }: &Commit, all: &Topics) -> Result<(), BrokerError> {
    topics::log(all, partition)?;
    if *offset < 0 {
        return Err(BrokerError::Invalid(format!("offset {offset} of `{partition}` is below 0")));
    }
    if metadata.len() > MAX_METADATA_BYTES {
        let len = metadata.len();
        return Err(BrokerError::Invalid(format!(
            "{len} bytes of metadata for `{partition}`; the limit is {MAX_METADATA_BYTES}"
        )));
    }
    Ok(())
}
