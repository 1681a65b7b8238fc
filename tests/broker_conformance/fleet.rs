//! A group under load: records keep coming while members come and go.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use kafleet::broker::Partition;

use crate::Case;
use crate::kit::{DEADLINE, Kit, Member, commit, keyed, text, until};

pub const CASES: &[Case] =
    &[("members_come_and_go_and_each_record_is_seen_once", members_come_and_go_and_each_record_is_seen_once)];

const RECORDS: u64 = 4000;
const PARTITIONS: u32 = 6;
const THREADS: usize = 3;
/// How many memberships a thread goes through.
const LIVES: usize = 3;

struct Tally {
    seen: Mutex<BTreeMap<String, usize>>,
    done: AtomicBool,
}

impl Tally {
    fn take(&self, member: &mut Member) {
        let mut seen = self.seen.lock().unwrap();
        for record in member.records.drain(..) {
            *seen.entry(text(&record).into_owned()).or_default() += 1;
        }
        self.done.fetch_or(seen.len() == RECORDS as usize, Ordering::Relaxed);
    }

    fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

fn members_come_and_go_and_each_record_is_seen_once(kit: &Kit) {
    let (topic, group) = (kit.topic(PARTITIONS), kit.name("g"));
    let tally = Tally { seen: Mutex::default(), done: AtomicBool::new(false) };
    std::thread::scope(|scope| {
        scope.spawn(|| produce(kit, &topic, &tally));
        for thread in 0..THREADS {
            let (tally, topic, group) = (&tally, &topic, &group);
            scope.spawn(move || {
                for life in 1..=LIVES {
                    live(kit, group, topic, tally, life == LIVES, thread);
                }
            });
        }
    });
    let seen = tally.seen.into_inner().unwrap();
    assert_eq!(seen.len(), RECORDS as usize);
    let repeated: Vec<_> = seen.iter().filter(|(_, count)| **count != 1).collect();
    assert!(repeated.is_empty(), "seen more than once: {repeated:?}");
}

/// Sends in step with the readers, so that every rebalance falls among records.
fn produce(kit: &Kit, topic: &str, tally: &Tally) {
    let (producer, _) = kit.producer();
    for token in 0..RECORDS {
        if token % 100 == 0 {
            until("the readers keep up", || tally.count() as u64 + 400 > token);
        }
        producer.send(&keyed(topic, &token.to_string(), &token.to_string()), token).unwrap();
    }
    producer.flush(DEADLINE).unwrap();
}

/// One membership: until it has read its share, or, the last one, until all is read.
fn live(kit: &Kit, group: &str, topic: &str, tally: &Tally, last: bool, thread: usize) {
    let mut member = kit.member(group, topic);
    let share = 100 + 40 * thread;
    let mut own = 0;
    until("this member's share is read", || {
        member.step();
        own += member.records.len();
        tally.take(&mut member);
        member.pay();
        tally.done.load(Ordering::Relaxed) || (!last && own >= share)
    });
    leave(member, tally);
}

/// Commits all that was read, and leaves; what comes in between is read as well.
fn leave(mut member: Member, tally: &Tally) {
    until("the last commit is accepted", || {
        tally.take(&mut member);
        let commits: Vec<_> = member.next.iter().map(|(at, offset): (&Partition, _)| commit(at, *offset, "")).collect();
        let accepted = commits.is_empty() || member.consumer.commit_sync(&commits).is_ok();
        if !accepted {
            member.step();
            tally.take(&mut member);
            member.pay();
        }
        accepted
    });
    member.close();
}
