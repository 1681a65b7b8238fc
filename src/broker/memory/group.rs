//! A consumer group: members, who owns what, what was committed.
//!
//! A partition goes through `Offered` (the member has to hear of it) → `Held` → `Revoking` (it has to be released), and
//! only then to its next owner. Nothing here waits; what a member has to be told lies in its [`PollResult`] until it polls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Condvar;

use super::assignor::{MemberId, Target, balance};
use super::topics::{self, Topics};
use crate::broker::{BrokerError, Commit, Committed, GroupEvent, Partition};

const MAX_METADATA_BYTES: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Group {
    members: BTreeMap<MemberId, Member>,
    owners: BTreeMap<Partition, Holding>,
    target: Target,
    known_partitions: usize,
    /// Goes up with every change of members or partitions.
    generation: u64,
    offsets: BTreeMap<Partition, Stored>,
    empty_since_ms: i64,
}

#[derive(Debug)]
struct Member {
    topics: BTreeSet<String>,
    waiter: Arc<Condvar>,
    /// Inside [`crate::broker::Consumer::poll`], so alive however long that waits.
    polling: bool,
    seen_ms: i64,
    /// The generation of its last poll.
    generation: u64,
    /// It has learnt of its first assignment, which may be empty.
    welcomed: bool,
    mail: PollResult,
}

#[derive(Debug, Default)]
struct PollResult {
    give: Vec<Partition>,
    take: Vec<Partition>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Lies in the member's mail.
    Offered,
    Held,
    /// The request to give it back lies in the member's mail.
    Wanted,
    /// The member knows that it has to give it back.
    Revoking,
}

#[derive(Clone, Copy, Debug)]
struct Holding {
    member: MemberId,
    phase: Phase,
}

#[derive(Debug)]
struct Stored {
    committed: Committed,
    at_ms: i64,
}

/// What a member learns when it polls.
pub(super) enum PendingRebalance {
    Member(Vec<GroupEvent>),
    /// It has been put out; these were its partitions.
    Out,
}

impl Group {
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub fn join(&mut self, id: MemberId, topics: &[String], waiter: &Arc<Condvar>, all: &Topics, now_ms: i64) {
        let member = Member {
            topics: topics.iter().cloned().collect(),
            waiter: waiter.clone(),
            polling: false,
            seen_ms: now_ms,
            generation: 0,
            welcomed: false,
            mail: PollResult::default(),
        };
        self.members.insert(id, member);
        self.rebalance(all);
    }

    /// Takes a member out; its partitions go to others at once.
    pub fn leave(&mut self, id: MemberId, all: &Topics, now_ms: i64) {
        if self.members.remove(&id).is_none() {
            return;
        }
        self.owners.retain(|_, holding| holding.member != id);
        if self.members.is_empty() {
            self.empty_since_ms = now_ms;
        }
        self.rebalance(all);
    }

    /// Puts out members that have not polled for `timeout_ms`.
    pub fn put_out_silent(&mut self, all: &Topics, now_ms: i64, timeout_ms: i64) {
        let silent = |member: &Member| !member.polling && now_ms - member.seen_ms > timeout_ms;
        let ids: Vec<MemberId> = self.members.iter().filter(|(_, member)| silent(member)).map(|(id, _)| *id).collect();
        for id in ids {
            self.leave(id, all, now_ms);
        }
    }

    /// Milliseconds until the next member falls silent.
    pub fn next_silence_ms(&self, now_ms: i64, timeout_ms: i64) -> Option<u64> {
        let idle = self.members.values().filter(|member| !member.polling);
        idle.map(|member| (member.seen_ms + timeout_ms + 1 - now_ms).max(1) as u64).min()
    }

    /// Hands a member its mail.
    pub fn visit(&mut self, id: MemberId, now_ms: i64) -> PendingRebalance {
        let Some(member) = self.members.get_mut(&id) else { return PendingRebalance::Out };
        (member.polling, member.seen_ms, member.generation) = (true, now_ms, self.generation);
        let PollResult { give, take } = std::mem::take(&mut member.mail);
        // Where there are fewer partitions than members: it hears so once.
        let without = self.known_partitions > 0 && !self.target.values().any(|owner| *owner == id);
        let told = !give.is_empty() || (without && !member.welcomed);
        member.welcomed |= told;
        for (partitions, phase) in [(&give, Phase::Held), (&take, Phase::Revoking)] {
            for at in partitions {
                self.owners.insert(at.clone(), Holding { member: id, phase });
            }
        }
        let events = [(!take.is_empty()).then_some(GroupEvent::Revoked(take)), told.then_some(GroupEvent::Assigned(give))];
        PendingRebalance::Member(events.into_iter().flatten().collect())
    }

    pub fn end_visit(&mut self, id: MemberId, now_ms: i64) {
        if let Some(member) = self.members.get_mut(&id) {
            (member.polling, member.seen_ms) = (false, now_ms);
        }
    }

    /// The partition is this member's, and it has heard so.
    pub fn holds(&self, id: MemberId, at: &Partition) -> bool {
        self.owners.get(at).is_some_and(|holding| holding.member == id && holding.phase != Phase::Offered)
    }

    /// Where the group does not want it back, the partition stays the member's, unread: nobody else may take it.
    pub fn release(&mut self, id: MemberId, partitions: &[Partition]) {
        for at in partitions.iter().filter(|at| self.is_wanted_back(id, at)).collect::<Vec<_>>() {
            self.owners.remove(at);
            self.write(id, |mail| mail.take.retain(|wanted| wanted != at));
        }
        self.settle();
    }

    /// The partition is this member's, but the group has another use for it.
    pub fn is_wanted_back(&self, id: MemberId, at: &Partition) -> bool {
        let phase = self.owners.get(at).filter(|holding| holding.member == id).map(|holding| holding.phase);
        matches!(phase, Some(Phase::Wanted | Phase::Revoking))
    }

    /// The member knows that it has to give the partition back, so it gets no more records of it.
    pub fn is_revoking(&self, id: MemberId, at: &Partition) -> bool {
        self.owners.get(at).is_some_and(|holding| holding.member == id && holding.phase == Phase::Revoking)
    }

    /// Shares out partitions that have come into being.
    pub fn notice_topics(&mut self, all: &Topics) {
        let partitions = self.wanted(all);
        if partitions.len() != self.known_partitions {
            self.rebalance(all);
        }
    }

    /// Finds out again who should own what, after a change of members, topics or partitions.
    fn rebalance(&mut self, all: &Topics) {
        let wants: BTreeMap<MemberId, BTreeSet<String>> =
            self.members.iter().map(|(id, member)| (*id, member.topics.clone())).collect();
        let partitions = self.wanted(all);
        self.known_partitions = partitions.len();
        self.target = balance(&partitions, &wants, &self.target);
        self.generation += 1;
        self.settle();
    }

    /// The partitions of all topics that some member wants.
    fn wanted(&self, all: &Topics) -> Vec<Partition> {
        let wanted: BTreeSet<&str> = self.members.values().flat_map(|member| &member.topics).map(String::as_str).collect();
        let topics = all.iter().filter(|(name, _)| wanted.contains(&***name));
        topics.flat_map(|(name, topic)| (0..topic.logs.len()).map(|index| Partition::new(name.clone(), index as i32))).collect()
    }

    /// Moves every partition one step towards its target.
    fn settle(&mut self) {
        let held: Vec<(Partition, Holding)> = self.owners.iter().map(|(at, holding)| (at.clone(), *holding)).collect();
        for (at, holding) in held {
            let stays = self.target.get(&at) == Some(&holding.member);
            self.turn(&at, holding, stays);
        }
        let free: Vec<(Partition, MemberId)> =
            self.target.iter().filter(|(at, _)| !self.owners.contains_key(at)).map(|(at, to)| (at.clone(), *to)).collect();
        for (at, member) in free {
            self.owners.insert(at.clone(), Holding { member, phase: Phase::Offered });
            self.write(member, |mail| mail.give.push(at));
        }
    }

    fn turn(&mut self, at: &Partition, Holding { member, phase }: Holding, stays: bool) {
        match phase {
            Phase::Offered if !stays => {
                self.owners.remove(at);
                self.write(member, |mail| mail.give.retain(|offered| offered != at));
            }
            Phase::Held if !stays => {
                self.owners.insert(at.clone(), Holding { member, phase: Phase::Wanted });
                self.write(member, |mail| mail.take.push(at.clone()));
            }
            Phase::Wanted if stays => {
                self.owners.insert(at.clone(), Holding { member, phase: Phase::Held });
                self.write(member, |mail| mail.take.retain(|wanted| wanted != at));
            }
            Phase::Offered | Phase::Held | Phase::Wanted | Phase::Revoking => {}
        }
    }

    fn write(&mut self, id: MemberId, write: impl FnOnce(&mut PollResult)) {
        if let Some(member) = self.members.get_mut(&id) {
            write(&mut member.mail);
            member.waiter.notify_all();
        }
    }

    /// A commit by a member: all of it or nothing.
    pub fn commit(&mut self, name: &str, id: MemberId, commits: &[Commit], all: &Topics, now_ms: i64) -> Result<(), BrokerError> {
        check(commits, all)?;
        let Some(member) = self.members.get(&id) else {
            return Err(BrokerError::Refused(format!("this consumer is not a member of `{name}`; hint: poll to join it")));
        };
        if let Some(foreign) = commits.iter().find(|commit| !self.holds(id, &commit.partition)) {
            return Err(BrokerError::Refused(format!("`{}` is not this member's", foreign.partition)));
        }
        // As in Kafka: between a rebalance and the member's next poll its commits carry an old generation, but one that
        // is giving partitions back keeps everybody else waiting and may commit until it has released them.
        let giving_back = self.owners.values().any(|holding| holding.member == id && holding.phase == Phase::Revoking);
        if member.generation != self.generation && !giving_back {
            return Err(BrokerError::Refused(format!("`{name}` is being rebalanced; hint: poll, then commit again")));
        }
        self.store(commits, now_ms);
        Ok(())
    }

    /// A commit from outside.
    pub fn commit_outside(&mut self, name: &str, commits: &[Commit], all: &Topics, now_ms: i64) -> Result<(), BrokerError> {
        if !self.members.is_empty() {
            let members = self.members.len();
            return Err(BrokerError::Refused(format!("`{name}` has {members} members; hint: stop them first")));
        }
        check(commits, all)?;
        self.store(commits, now_ms);
        Ok(())
    }

    fn store(&mut self, commits: &[Commit], at_ms: i64) {
        for Commit { partition, offset, metadata } in commits {
            let committed = Committed { offset: *offset, metadata: metadata.clone() };
            self.offsets.insert(partition.clone(), Stored { committed, at_ms });
        }
    }

    pub fn committed(&self, partitions: &[Partition]) -> Vec<Option<Committed>> {
        partitions.iter().map(|at| self.offsets.get(at).map(|stored| stored.committed.clone())).collect()
    }

    pub fn forget_if_empty(&mut self) {
        if self.members.is_empty() {
            self.offsets.clear();
        }
    }

    /// Without members, forgets commits that are older than `retention_ms`, counted from the last member's leave.
    pub fn expire(&mut self, now_ms: i64, retention_ms: i64) {
        if self.members.is_empty() {
            let since = self.empty_since_ms;
            self.offsets.retain(|_, stored| now_ms - stored.at_ms.max(since) < retention_ms);
        }
    }
}

fn check(commits: &[Commit], all: &Topics) -> Result<(), BrokerError> {
    for Commit { partition, offset, metadata } in commits {
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
    }
    Ok(())
}
