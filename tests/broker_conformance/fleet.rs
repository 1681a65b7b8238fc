//! Group membership under load: records are produced while members join and leave.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use kafleet::broker::Partition;

use crate::Case;
use crate::kit::{DEADLINE, Kit, Member, commit, eventually_blocking, keyed, text};

pub const CASES: &[Case] =
    &[("each_record_is_read_once_across_rebalances", each_record_is_read_once_across_rebalances)];

const RECORDS: u64 = 4000;
const PARTITIONS: u32 = 6;
const THREADS: usize = 3;
/// Number of memberships per thread.
const MEMBERSHIPS: usize = 3;

struct Progress {
    seen: Mutex<BTreeMap<String, usize>>,
    done: AtomicBool,
}

impl Progress {
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

fn each_record_is_read_once_across_rebalances(kit: &Kit) {
    let (topic, group) = (kit.topic(PARTITIONS), kit.name("g"));
    let progress = Progress { seen: Mutex::default(), done: AtomicBool::new(false) };
    std::thread::scope(|scope| {
        scope.spawn(|| produce(kit, &topic, &progress));
        for thread in 0..THREADS {
            let (progress, topic, group) = (&progress, &topic, &group);
            scope.spawn(move || {
                for membership in 1..=MEMBERSHIPS {
                    run_membership(kit, group, topic, progress, membership == MEMBERSHIPS, thread);
                }
            });
        }
    });
    let seen = progress.seen.into_inner().unwrap();
    assert_eq!(seen.len(), RECORDS as usize);
    let repeated: Vec<_> = seen.iter().filter(|(_, count)| **count != 1).collect();
    assert!(repeated.is_empty(), "received more than once: {repeated:?}");
}

/// Produces at the readers' pace, so that rebalances happen between records.
fn produce(kit: &Kit, topic: &str, progress: &Progress) {
    let (producer, _) = kit.producer();
    for token in 0..RECORDS {
        if token % 100 == 0 {
            eventually_blocking("the readers keep up", || progress.count() as u64 + 400 > token);
        }
        producer.send(&keyed(topic, &token.to_string(), &token.to_string()), token).unwrap();
    }
    producer.flush(DEADLINE).unwrap();
}

/// Runs one membership until it has read its part or, for the last one, until everything is read.
fn run_membership(kit: &Kit, group: &str, topic: &str, progress: &Progress, last: bool, thread: usize) {
    let mut member = kit.member(group, topic);
    let share = 100 + 40 * thread;
    let mut received = 0;
    eventually_blocking("this member's part is read", || {
        member.step();
        received += member.records.len();
        progress.take(&mut member);
        member.release_revoked();
        progress.done.load(Ordering::Relaxed) || (!last && received >= share)
    });
    leave(member, progress);
}

/// Commits everything read and leaves, reading records that arrive in between.
fn leave(mut member: Member, progress: &Progress) {
    eventually_blocking("the last commit is accepted", || {
        progress.take(&mut member);
        let commits: Vec<_> = member.next.iter().map(|(at, offset): (&Partition, _)| commit(at, *offset, "")).collect();
        let accepted = commits.is_empty() || member.consumer.commit_sync(&commits).is_ok();
        if !accepted {
            member.step();
            progress.take(&mut member);
            member.release_revoked();
        }
        accepted
    });
    member.close();
}
