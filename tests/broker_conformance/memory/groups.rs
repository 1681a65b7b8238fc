//! Groups: news not heard yet, silence, commits that come too late or expire.

use std::time::Duration;

use kafleet::broker::memory::{Faults, Memory, MemoryOptions};
use kafleet::broker::{BrokerError, ConsumerSpec, GroupEvent, Partition, StartOffset};

use super::{Case, Lab, SESSION_MS};
use crate::kit::{DEADLINE, Kit, Member, commit, spec, until};

pub const CASES: &[Case] = &[
    ("added_partitions_are_shared_out", added_partitions_are_shared_out),
    ("a_topic_that_comes_later_is_shared_out", a_topic_that_comes_later_is_shared_out),
    ("a_silent_member_loses_its_partitions", a_silent_member_loses_its_partitions),
    ("a_dead_member_is_noticed_by_one_that_waits", a_dead_member_is_noticed_by_one_that_waits),
    ("no_commit_between_a_rebalance_and_the_next_poll", no_commit_between_a_rebalance_and_the_next_poll),
    ("no_commit_for_what_others_hold", no_commit_for_what_others_hold),
    ("nothing_is_read_while_it_is_being_given_back", nothing_is_read_while_it_is_being_given_back),
    ("a_request_that_was_not_heard_is_taken_back", a_request_that_was_not_heard_is_taken_back),
    ("a_partition_that_is_refused_stays_the_members", a_partition_that_is_refused_stays_the_members),
    ("commits_of_empty_groups_expire", commits_of_empty_groups_expire),
    ("a_refused_commit_is_on_purpose", a_refused_commit_is_on_purpose),
    ("bad_consumers_and_offsets_are_refused", bad_consumers_and_offsets_are_refused),
];

fn added_partitions_are_shared_out() {
    let lab = Lab::new();
    let topic = lab.kit.topic(1);
    let mut member = lab.kit.member("g", &topic);
    member.until_holding(1);
    lab.kit.broker.apply_topics(&[spec(&topic, 3, &[])], DEADLINE).unwrap();
    member.until_holding(3);
}

fn a_topic_that_comes_later_is_shared_out() {
    let lab = Lab::new();
    let mut member = lab.kit.member("g", "later");
    member.step();
    assert!(matches!(member.events.as_slice(), [GroupEvent::Trouble(BrokerError::Unknown(_))]), "{:?}", member.events);
    lab.kit.broker.apply_topics(&[spec("later", 2, &[])], DEADLINE).unwrap();
    member.until_holding(2);
}

fn a_silent_member_loses_its_partitions() {
    let lab = Lab::new();
    let topic = lab.kit.topic(2);
    let at = Partition::new(topic.as_str(), 0);
    lab.kit.fill(&at, ["0"]);
    let (mut silent, mut other) = (lab.kit.member("g", &topic), lab.kit.member("g", &topic));
    until("it has read", || {
        silent.step();
        !silent.records.is_empty()
    });
    lab.advance_ms(SESSION_MS + 1);
    other.until_holding(2);
    other.step();
    assert_eq!(other.values(), ["0"], "nothing was committed");
    assert!(matches!(silent.consumer.commit_sync(&[commit(&at, 1, "")]), Err(BrokerError::Refused(_))));
    lab.kit.fill(&at, ["1"]);
    let mut records = 0;
    let lost = silent.consumer.poll(10, Duration::ZERO, &mut |_| records += 1).unwrap();
    assert_eq!((lost, records), (vec![GroupEvent::Lost((0..2).map(|index| Partition::new(topic.as_str(), index)).collect())], 0));
    assert_eq!(silent.consumer.poll(10, Duration::ZERO, &mut |_| records += 1), Ok(vec![]), "it joins again after the release");
    let all: Vec<Partition> = silent.held.iter().cloned().collect();
    silent.consumer.release(&all).unwrap();
    silent.held.clear();
    until("it has its share again", || {
        silent.step_and_pay();
        other.step_and_pay();
        silent.held.len() == 1 && other.held.len() == 1
    });
}

fn a_dead_member_is_noticed_by_one_that_waits() {
    let memory = Memory::new(MemoryOptions { session_timeout: Duration::from_millis(200), ..MemoryOptions::default() });
    let kit = Kit::new(memory, "only");
    let topic = kit.topic(2);
    let mut dying = kit.member("g", &topic);
    dying.until_holding(2);
    drop(dying);
    let mut member = kit.member("g", &topic);
    let events = member.consumer.poll(1, DEADLINE, &mut |_| {}).unwrap();
    assert!(matches!(events.as_slice(), [GroupEvent::Assigned(partitions)] if partitions.len() == 2), "{events:?}");
}

/// Two members of a group on a topic with two partitions; the second has joined, but the first has not heard of it.
fn unheard(lab: &Lab) -> (Member, Member, Partition) {
    let topic = lab.kit.topic(2);
    let (mut old, mut new) = (lab.kit.member("g", &topic), lab.kit.member("g", &topic));
    old.until_holding(2);
    new.step();
    (old, new, Partition::new(topic, 0))
}

fn no_commit_between_a_rebalance_and_the_next_poll() {
    let lab = Lab::new();
    let (mut old, _new, at) = unheard(&lab);
    let refused = old.consumer.commit_sync(&[commit(&at, 0, "")]);
    assert!(matches!(&refused, Err(error @ BrokerError::Refused(_)) if error.is_transient()), "{refused:?}");
    old.step();
    assert_eq!(old.owed.len(), 1);
    assert_eq!(old.consumer.commit_sync(&[commit(&at, 0, "")]), Ok(()));
}

fn no_commit_for_what_others_hold() {
    let lab = Lab::new();
    let (mut old, mut new, _) = unheard(&lab);
    until("it has moved", || {
        old.step_and_pay();
        new.step_and_pay();
        new.held.len() == 1
    });
    let moved = new.held.first().cloned().unwrap();
    let both = [commit(old.held.first().unwrap(), 0, ""), commit(&moved, 0, "")];
    assert!(matches!(old.consumer.commit_sync(&both), Err(BrokerError::Refused(_))));
    assert_eq!(lab.kit.committed("g", &both[0].partition), None, "a commit is all or nothing");
    old.consumer.commit(&both).unwrap();
    old.step();
    assert!(matches!(old.events.last(), Some(GroupEvent::Committed { result: Err(BrokerError::Refused(_)), .. })));
    assert!(matches!(old.consumer.assign(&[(moved, StartOffset::Beginning)]), Err(BrokerError::Refused(_))));
}

fn nothing_is_read_while_it_is_being_given_back() {
    let lab = Lab::new();
    let (mut old, _new, _) = unheard(&lab);
    old.step();
    let (owed, kept) = (old.owed.first().cloned().unwrap(), old.held.difference(&old.owed).next().cloned().unwrap());
    lab.kit.fill(&owed, ["for the next owner"]);
    lab.kit.fill(&kept, ["mine"]);
    old.consumer.assign(&[(owed, StartOffset::Beginning)]).unwrap();
    old.step();
    old.step();
    assert_eq!(old.values(), ["mine"]);
}

fn a_request_that_was_not_heard_is_taken_back() {
    let lab = Lab::new();
    let (mut old, new, at) = unheard(&lab);
    new.close();
    old.step();
    assert_eq!((old.owed.len(), old.held.len()), (0, 2));
    lab.kit.fill(&at, ["still mine"]);
    old.step();
    assert_eq!(old.values(), ["still mine"]);
    assert_eq!(old.consumer.commit_sync(&[commit(&at, 1, "")]), Ok(()));
}

fn a_partition_that_is_refused_stays_the_members() {
    let lab = Lab::new();
    let topic = lab.kit.topic(1);
    let mut member = lab.kit.member("g", &topic);
    member.until_holding(1);
    let at = Partition::new(topic.as_str(), 0);
    member.consumer.release(std::slice::from_ref(&at)).unwrap();
    lab.kit.fill(&at, ["unread"]);
    let mut other = lab.kit.member("g", &topic);
    for _ in 0..3 {
        member.step();
        other.step();
    }
    assert_eq!((member.values().len(), other.held.len()), (0, 0));
    assert_eq!(member.events.len(), 1, "it is not given again: {:?}", member.events);
    member.consumer.assign(&[(at, StartOffset::Beginning)]).unwrap();
    member.step();
    assert_eq!(member.values(), ["unread"]);
}

fn commits_of_empty_groups_expire() {
    let lab = Lab::with(MemoryOptions { offsets_retention: Duration::from_secs(100), ..MemoryOptions::default() });
    let topic = lab.kit.topic(1);
    let at = Partition::new(topic.as_str(), 0);
    let mut member = lab.kit.member("g", &topic);
    member.until_holding(1);
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

fn a_refused_commit_is_on_purpose() {
    let lab = Lab::new();
    let topic = lab.kit.topic(1);
    let at = Partition::new(topic.as_str(), 0);
    let mut member = lab.kit.member("g", &topic);
    member.until_holding(1);
    lab.memory.set_faults(Faults { refuse_commit: 1.0, ..Faults::default() });
    assert!(matches!(member.consumer.commit_sync(&[commit(&at, 0, "")]), Err(BrokerError::Refused(_))));
    lab.memory.set_faults(Faults::default());
    assert_eq!(member.consumer.commit_sync(&[commit(&at, 0, "")]), Ok(()));
}

fn bad_consumers_and_offsets_are_refused() {
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
