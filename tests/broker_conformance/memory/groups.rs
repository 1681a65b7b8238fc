//! Consumer groups of the in-memory broker: rebalances whose events are not yet delivered, members that stop polling,
//! refused commits, and expired offsets.

use std::time::Duration;

use kafleet::broker::memory::{Faults, MemoryBroker, MemoryBrokerOptions};
use kafleet::broker::{BrokerError, ConsumerSpec, GroupEvent, Partition, StartOffset};

use super::{Case, Lab, SESSION_MS};
use crate::kit::{DEADLINE, Kit, Member, commit, eventually_blocking, spec};

pub const CASES: &[Case] = &[
    ("added_partitions_are_assigned", added_partitions_are_assigned),
    ("later_created_topic_is_assigned", later_created_topic_is_assigned),
    ("silent_member_is_evicted", silent_member_is_evicted),
    ("waiting_member_notices_a_dead_one", waiting_member_notices_a_dead_one),
    ("commit_between_rebalance_and_next_poll_is_refused", commit_between_rebalance_and_next_poll_is_refused),
    ("commit_for_foreign_partition_is_refused", commit_for_foreign_partition_is_refused),
    ("partition_being_revoked_delivers_no_records", partition_being_revoked_delivers_no_records),
    ("undelivered_revocation_is_withdrawn", undelivered_revocation_is_withdrawn),
    ("released_partition_stays_assigned_without_revocation", released_partition_stays_assigned_without_revocation),
    ("committed_offsets_of_empty_group_expire", committed_offsets_of_empty_group_expire),
    ("injected_fault_refuses_commit", injected_fault_refuses_commit),
    ("invalid_consumers_and_offsets_are_rejected", invalid_consumers_and_offsets_are_rejected),
];

fn added_partitions_are_assigned() {
    let lab = Lab::new();
    let topic = lab.kit.topic(1);
    let mut member = lab.kit.member("g", &topic);
    member.until_assigned(1);
    lab.kit.broker.apply_topics(&[spec(&topic, 3, &[])], DEADLINE).unwrap();
    member.until_assigned(3);
}

fn later_created_topic_is_assigned() {
    let lab = Lab::new();
    let mut member = lab.kit.member("g", "later");
    member.step();
    assert!(
        matches!(member.events.as_slice(), [GroupEvent::ClientError(BrokerError::Unknown(_))]),
        "{:?}",
        member.events
    );
    lab.kit.broker.apply_topics(&[spec("later", 2, &[])], DEADLINE).unwrap();
    member.until_assigned(2);
}

fn silent_member_is_evicted() {
    let lab = Lab::new();
    let topic = lab.kit.topic(2);
    let at = Partition::new(topic.as_str(), 0);
    lab.kit.fill(&at, ["0"]);
    let (mut silent, mut other) = (lab.kit.member("g", &topic), lab.kit.member("g", &topic));
    eventually_blocking("the member has read", || {
        silent.step();
        !silent.records.is_empty()
    });
    lab.advance_ms(SESSION_MS + 1);
    other.until_assigned(2);
    other.step();
    assert_eq!(other.values(), ["0"], "no offset was committed");
    assert!(matches!(silent.consumer.commit_sync(&[commit(&at, 1, "")]), Err(BrokerError::Refused(_))));
    lab.kit.fill(&at, ["1"]);
    let mut records = 0;
    let lost = silent.consumer.poll(10, Duration::ZERO, &mut |_| records += 1).unwrap();
    assert_eq!(
        (lost, records),
        (vec![GroupEvent::Lost((0..2).map(|index| Partition::new(topic.as_str(), index)).collect())], 0)
    );
    assert_eq!(
        silent.consumer.poll(10, Duration::ZERO, &mut |_| records += 1),
        Ok(vec![]),
        "rejoining waits for the release"
    );
    let all: Vec<Partition> = silent.assigned.iter().cloned().collect();
    silent.consumer.release(&all).unwrap();
    silent.assigned.clear();
    eventually_blocking("both members have a partition", || {
        silent.step_and_release();
        other.step_and_release();
        silent.assigned.len() == 1 && other.assigned.len() == 1
    });
}

fn waiting_member_notices_a_dead_one() {
    let memory = MemoryBroker::new(MemoryBrokerOptions {
        session_timeout: Duration::from_millis(200),
        ..MemoryBrokerOptions::default()
    });
    let kit = Kit::new(memory, "only");
    let topic = kit.topic(2);
    let mut dying = kit.member("g", &topic);
    dying.until_assigned(2);
    drop(dying);
    let mut member = kit.member("g", &topic);
    let events = member.consumer.poll(1, DEADLINE, &mut |_| {}).unwrap();
    assert!(matches!(events.as_slice(), [GroupEvent::Assigned(partitions)] if partitions.len() == 2), "{events:?}");
}

/// Returns two members of a group on a topic with two partitions, and partition 0. The second member has joined; the
/// first has owned both partitions until then and has not polled since.
fn pending_rebalance(lab: &Lab) -> (Member, Member, Partition) {
    let topic = lab.kit.topic(2);
    let (mut old, mut new) = (lab.kit.member("g", &topic), lab.kit.member("g", &topic));
    old.until_assigned(2);
    new.step();
    (old, new, Partition::new(topic, 0))
}

fn commit_between_rebalance_and_next_poll_is_refused() {
    let lab = Lab::new();
    let (mut old, _new, at) = pending_rebalance(&lab);
    let result = old.consumer.commit_sync(&[commit(&at, 0, "")]);
    assert!(matches!(&result, Err(error @ BrokerError::Refused(_)) if error.is_transient()), "{result:?}");
    old.step();
    assert_eq!(old.revoked.len(), 1);
    assert_eq!(old.consumer.commit_sync(&[commit(&at, 0, "")]), Ok(()));
}

fn commit_for_foreign_partition_is_refused() {
    let lab = Lab::new();
    let (mut old, mut new, _) = pending_rebalance(&lab);
    eventually_blocking("the partition has moved", || {
        old.step_and_release();
        new.step_and_release();
        new.assigned.len() == 1
    });
    let moved = new.assigned.first().cloned().unwrap();
    let both = [commit(old.assigned.first().unwrap(), 0, ""), commit(&moved, 0, "")];
    assert!(matches!(old.consumer.commit_sync(&both), Err(BrokerError::Refused(_))));
    assert_eq!(lab.kit.committed("g", &both[0].partition), None, "commits are atomic");
    old.consumer.commit(&both).unwrap();
    old.step();
    let Some(GroupEvent::Committed(outcomes)) = old.events.last() else { panic!("{:?}", old.events) };
    assert!(outcomes.iter().all(|(_, outcome)| matches!(outcome, Err(BrokerError::Refused(_)))), "{outcomes:?}");
    assert!(matches!(old.consumer.assign(&[(moved, StartOffset::Beginning)]), Err(BrokerError::Refused(_))));
}

fn partition_being_revoked_delivers_no_records() {
    let lab = Lab::new();
    let (mut old, _new, _) = pending_rebalance(&lab);
    old.step();
    let (revoked, kept) =
        (old.revoked.first().cloned().unwrap(), old.assigned.difference(&old.revoked).next().cloned().unwrap());
    lab.kit.fill(&revoked, ["the commit is visible to the next owner"]);
    lab.kit.fill(&kept, ["mine"]);
    old.consumer.assign(&[(revoked, StartOffset::Beginning)]).unwrap();
    old.step();
    old.step();
    assert_eq!(old.values(), ["mine"]);
}

fn undelivered_revocation_is_withdrawn() {
    let lab = Lab::new();
    let (mut old, new, at) = pending_rebalance(&lab);
    new.close();
    old.step();
    assert_eq!((old.revoked.len(), old.assigned.len()), (0, 2));
    lab.kit.fill(&at, ["still mine"]);
    old.step();
    assert_eq!(old.values(), ["still mine"]);
    assert_eq!(old.consumer.commit_sync(&[commit(&at, 1, "")]), Ok(()));
}

fn released_partition_stays_assigned_without_revocation() {
    let lab = Lab::new();
    let topic = lab.kit.topic(1);
    let mut member = lab.kit.member("g", &topic);
    member.until_assigned(1);
    let at = Partition::new(topic.as_str(), 0);
    member.consumer.release(std::slice::from_ref(&at)).unwrap();
    lab.kit.fill(&at, ["unread"]);
    let mut other = lab.kit.member("g", &topic);
    for _ in 0..3 {
        member.step();
        other.step();
    }
    assert_eq!((member.values().len(), other.assigned.len()), (0, 0));
    assert_eq!(member.events.len(), 1, "the partition is not assigned again: {:?}", member.events);
    member.consumer.assign(&[(at, StartOffset::Beginning)]).unwrap();
    member.step();
    assert_eq!(member.values(), ["unread"]);
}

fn committed_offsets_of_empty_group_expire() {
    let lab = Lab::with(MemoryBrokerOptions {
        offsets_retention: Duration::from_secs(100),
        ..MemoryBrokerOptions::default()
    });
    let topic = lab.kit.topic(1);
    let at = Partition::new(topic.as_str(), 0);
    let mut member = lab.kit.member("g", &topic);
    member.until_assigned(1);
    member.commit(&[commit(&at, 0, "")]);
    for _ in 0..30 {
        lab.advance_ms(SESSION_MS);
        member.step();
    }
    lab.memory.expire_groups();
    assert!(lab.kit.committed("g", &at).is_some(), "a group with a member keeps its commits");
    member.close();
    lab.advance_ms(99_999);
    assert!(lab.kit.committed("g", &at).is_some());
    lab.advance_ms(1);
    assert_eq!(lab.kit.committed("g", &at), None);
    lab.kit.broker.set_group_offsets("g", &[commit(&at, 0, "")], DEADLINE).unwrap();
    lab.memory.expire_groups();
    assert_eq!(lab.kit.committed("g", &at), None);
}

fn injected_fault_refuses_commit() {
    let lab = Lab::new();
    let topic = lab.kit.topic(1);
    let at = Partition::new(topic.as_str(), 0);
    let mut member = lab.kit.member("g", &topic);
    member.until_assigned(1);
    lab.memory.set_faults(Faults { refuse_commit: 1.0, ..Faults::default() });
    assert!(matches!(member.consumer.commit_sync(&[commit(&at, 0, "")]), Err(BrokerError::Refused(_))));
    lab.memory.set_faults(Faults::default());
    assert_eq!(member.consumer.commit_sync(&[commit(&at, 0, "")]), Ok(()));
}

fn invalid_consumers_and_offsets_are_rejected() {
    let lab = Lab::new();
    let at = lab.partition();
    let topics = vec![at.topic.to_string()];
    for spec in [
        ConsumerSpec { group: Some("g".to_owned()), ..ConsumerSpec::default() },
        ConsumerSpec { topics, ..ConsumerSpec::default() },
    ] {
        assert!(matches!(lab.kit.broker.consumer(&spec).err(), Some(BrokerError::Invalid(_))), "{spec:?}");
    }
    for offset in [i64::MIN, -1, i64::MAX] {
        assert_eq!(lab.kit.broker.read_at(&at, offset, DEADLINE), Ok(None));
        let mut reader = lab.kit.reader(&[(at.clone(), StartOffset::At(offset))]);
        reader.step();
        assert_eq!(reader.events, [GroupEvent::OutOfRange(at.clone())], "{offset}");
    }
    let below = lab.kit.broker.set_group_offsets("g", &[commit(&at, -1, "")], DEADLINE);
    assert!(matches!(below, Err(BrokerError::Invalid(_))), "{below:?}");
}
