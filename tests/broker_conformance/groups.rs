//! Groups: joining, handing over, committing.

use std::collections::HashSet;

use kafleet::broker::{BrokerError, GroupEvent, Partition};

use crate::Case;
use crate::kit::{DEADLINE, Kit, Member, commit, until};

pub const CASES: &[Case] = &[
    ("a_lone_member_gets_everything", a_lone_member_gets_everything),
    ("commits_carry_metadata_to_the_next_owner", commits_carry_metadata_to_the_next_owner),
    ("a_commit_tells_its_outcome_as_an_event", a_commit_tells_its_outcome_as_an_event),
    ("a_partition_moves_only_when_it_is_released", a_partition_moves_only_when_it_is_released),
    ("a_poll_for_no_records_hears_the_group", a_poll_for_no_records_hears_the_group),
    ("a_member_that_gives_back_may_still_commit", a_member_that_gives_back_may_still_commit),
    ("a_member_that_closes_leaves_at_once", a_member_that_closes_leaves_at_once),
    ("groups_do_not_know_each_other", groups_do_not_know_each_other),
    ("outsiders_commit_only_for_groups_without_members", outsiders_commit_only_for_groups_without_members),
    ("metadata_ends_at_4096_bytes", metadata_ends_at_4096_bytes),
    ("an_unknown_group_has_no_commits", an_unknown_group_has_no_commits),
];

fn partitions(topic: &str, count: i32) -> Vec<Partition> {
    (0..count).map(|index| Partition::new(topic, index)).collect()
}

fn a_lone_member_gets_everything(kit: &Kit) {
    let topic = kit.topic(3);
    for at in partitions(&topic, 3) {
        kit.fill(&at, [at.index.to_string()]);
    }
    let mut member = kit.member(&kit.name("g"), &topic);
    until("all records", || {
        member.step_and_pay();
        member.records.len() == 3
    });
    assert_eq!(member.held.iter().cloned().collect::<Vec<_>>(), partitions(&topic, 3));
    member.close();
}

fn commits_carry_metadata_to_the_next_owner(kit: &Kit) {
    let (topic, group) = (kit.topic(2), kit.name("g"));
    let [first, second] = [0, 1].map(|index| Partition::new(topic.as_str(), index));
    kit.fill(&first, ["0", "1", "2"]);
    let mut member = kit.member(&group, &topic);
    member.until_holding(2);
    member.commit(&[commit(&first, 2, "window=7")]);
    assert_eq!(kit.committed(&group, &first), Some((2, "window=7".to_owned())));
    assert_eq!(kit.committed(&group, &second), None);
    member.close();
    let mut next = kit.member(&group, &topic);
    next.until_holding(2);
    let found = next.consumer.committed(&[second, first], DEADLINE).unwrap();
    assert_eq!(found[0], None);
    assert_eq!(found[1].as_ref().map(|found| (found.offset, found.metadata.as_str())), Some((2, "window=7")));
    until("it goes on from the commit", || {
        next.step_and_pay();
        !next.records.is_empty()
    });
    assert_eq!(next.values(), ["2"]);
    next.close();
}

fn a_commit_tells_its_outcome_as_an_event(kit: &Kit) {
    let (topic, group) = (kit.topic(1), kit.name("g"));
    let at = Partition::new(topic.as_str(), 0);
    kit.fill(&at, ["0"]);
    let mut member = kit.member(&group, &topic);
    member.until_holding(1);
    member.consumer.commit(&[commit(&at, 1, "m")]).unwrap();
    let outcome = |member: &Member| {
        let found = member.events.iter().find(|event| matches!(event, GroupEvent::Committed { .. }));
        found.cloned()
    };
    until("the outcome comes", || {
        member.step_and_pay();
        outcome(&member).is_some()
    });
    assert_eq!(outcome(&member), Some(GroupEvent::Committed { result: Ok(()), partitions: vec![at.clone()] }));
    assert_eq!(kit.committed(&group, &at), Some((1, "m".to_owned())));
    member.close();
}

fn a_partition_moves_only_when_it_is_released(kit: &Kit) {
    let (topic, group) = (kit.topic(4), kit.name("g"));
    let mut old = kit.member(&group, &topic);
    old.until_holding(4);
    // A member may join from the moment it is made, polled or not.
    let mut new = kit.member(&group, &topic);
    until("half is asked back", || {
        new.step_and_pay();
        old.step();
        !old.owed.is_empty()
    });
    assert_eq!(old.owed.len(), 2, "no more than half, the rest goes on");
    for _ in 0..20 {
        new.step_and_pay();
        assert!(new.held.is_empty(), "handed over before it was released");
    }
    let moved = old.owed.clone();
    old.pay();
    until("the new member holds it", || {
        old.step_and_pay();
        new.step_and_pay();
        new.held.len() == 2
    });
    assert_eq!(new.held, moved);
    assert_eq!(old.held.len(), 2);
    for at in partitions(&topic, 4) {
        kit.fill(&at, [at.index.to_string()]);
    }
    until("both read", || {
        old.step_and_pay();
        new.step_and_pay();
        old.records.len() + new.records.len() == 4
    });
    assert_eq!((old.records.len(), new.records.len()), (2, 2));
    old.close();
    new.close();
}

/// Whoever has no room for records still hears what the group wants.
fn a_poll_for_no_records_hears_the_group(kit: &Kit) {
    let (topic, group) = (kit.topic(2), kit.name("g"));
    let mut old = kit.member(&group, &topic);
    old.until_holding(2);
    for at in partitions(&topic, 2) {
        kit.fill(&at, (0..200).map(|n| n.to_string()));
    }
    let mut new = kit.member(&group, &topic);
    until("one is asked back", || {
        new.step_and_pay();
        old.poll(0);
        !old.owed.is_empty()
    });
    assert!(old.records.len() < 10, "{} records that were not asked for", old.records.len());
    until("all is read", || {
        new.step_and_pay();
        old.step_and_pay();
        let read: HashSet<_> = old.records.iter().chain(&new.records).map(|record| (record.partition, record.offset)).collect();
        read.len() == 400
    });
    old.close();
    new.close();
}

fn a_member_that_gives_back_may_still_commit(kit: &Kit) {
    let (topic, group) = (kit.topic(2), kit.name("g"));
    for at in partitions(&topic, 2) {
        kit.fill(&at, ["done", "not done"]);
    }
    let mut old = kit.member(&group, &topic);
    until("everything is read", || {
        old.step();
        old.records.len() == 4
    });
    let mut new = kit.member(&group, &topic);
    until("one is asked back", || {
        new.step_and_pay();
        old.step();
        !old.owed.is_empty()
    });
    let moved = old.owed.first().cloned().unwrap();
    old.next.insert(moved.clone(), 1);
    old.pay();
    until("the new owner goes on from the last commit", || {
        old.step_and_pay();
        new.step_and_pay();
        !new.records.is_empty()
    });
    assert_eq!((new.held.first(), new.values()), (Some(&moved), vec!["not done".to_owned()]));
    old.close();
    new.close();
}

fn a_member_that_closes_leaves_at_once(kit: &Kit) {
    let (topic, group) = (kit.topic(4), kit.name("g"));
    let (mut leaving, mut staying) = (kit.member(&group, &topic), kit.member(&group, &topic));
    until("both hold half", || {
        leaving.step_and_pay();
        staying.step_and_pay();
        leaving.held.len() == 2 && staying.held.len() == 2
    });
    let begin = std::time::Instant::now();
    leaving.close();
    staying.until_holding(4);
    assert!(begin.elapsed() < DEADLINE / 2, "that was the session's end, not a leave: {:?}", begin.elapsed());
    staying.close();
}

fn groups_do_not_know_each_other(kit: &Kit) {
    let topic = kit.topic(1);
    let at = Partition::new(topic.as_str(), 0);
    kit.fill(&at, ["x"]);
    let groups = [kit.name("g"), kit.name("g")];
    for group in &groups {
        let mut member = kit.member(group, &topic);
        until("the record", || {
            member.step_and_pay();
            member.values() == ["x"]
        });
        member.commit(&[commit(&at, 1, group)]);
        member.close();
    }
    for group in groups {
        assert_eq!(kit.committed(&group, &at), Some((1, group)));
    }
}

fn outsiders_commit_only_for_groups_without_members(kit: &Kit) {
    let (topic, group) = (kit.topic(1), kit.name("g"));
    let at = Partition::new(topic.as_str(), 0);
    kit.fill(&at, ["0", "1", "2"]);
    let set = |offset| kit.broker.set_group_offsets(&group, &[commit(&at, offset, "outside")], DEADLINE);
    set(1).unwrap();
    assert_eq!(kit.committed(&group, &at), Some((1, "outside".to_owned())));
    let mut member = kit.member(&group, &topic);
    until("it starts where the outsider said", || {
        member.step_and_pay();
        member.records.len() == 2
    });
    assert_eq!(member.values(), ["1", "2"]);
    let refused = set(0);
    assert!(matches!(refused, Err(BrokerError::Refused(_))), "{refused:?}");
    assert_eq!(kit.committed(&group, &at), Some((1, "outside".to_owned())));
    member.close();
    until("the group has no members", || set(2).is_ok());
    assert_eq!(kit.committed(&group, &at), Some((2, "outside".to_owned())));
}

fn metadata_ends_at_4096_bytes(kit: &Kit) {
    let (topic, group) = (kit.topic(1), kit.name("g"));
    let at = Partition::new(topic.as_str(), 0);
    let mut member = kit.member(&group, &topic);
    member.until_holding(1);
    let (fits, too_long) = ("m".repeat(4096), "m".repeat(4097));
    member.commit(&[commit(&at, 0, &fits)]);
    let refused = member.consumer.commit_sync(&[commit(&at, 0, &too_long)]);
    assert!(refused.as_ref().is_err_and(|error| !error.is_transient()), "{refused:?}");
    assert_eq!(kit.committed(&group, &at), Some((0, fits)));
    member.close();
}

fn an_unknown_group_has_no_commits(kit: &Kit) {
    let at = Partition::new(kit.topic(1), 0);
    assert_eq!(kit.committed(&kit.name("g"), &at), None);
}
