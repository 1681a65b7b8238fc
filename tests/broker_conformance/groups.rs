//! Consumer groups: joining, handing over partitions, committing.

use std::collections::HashSet;

use kafleet::broker::{BrokerError, Commit, GroupEvent, Partition};

use crate::Case;
use crate::kit::{DEADLINE, Kit, Member, commit, eventually_blocking};

pub const CASES: &[Case] = &[
    ("single_member_gets_all_partitions", single_member_gets_all_partitions),
    ("commit_metadata_reaches_the_next_owner", commit_metadata_reaches_the_next_owner),
    ("asynchronous_commit_reports_its_outcome", asynchronous_commit_reports_its_outcome),
    ("partition_moves_only_after_its_release", partition_moves_only_after_its_release),
    ("poll_for_zero_records_returns_group_events", poll_for_zero_records_returns_group_events),
    ("revoking_member_may_still_commit", revoking_member_may_still_commit),
    ("closing_member_leaves_the_group_at_once", closing_member_leaves_the_group_at_once),
    ("groups_are_independent", groups_are_independent),
    ("external_commit_requires_a_group_without_members", external_commit_requires_a_group_without_members),
    ("commit_metadata_is_limited_to_4096_bytes", commit_metadata_is_limited_to_4096_bytes),
    ("unknown_group_has_no_committed_offsets", unknown_group_has_no_committed_offsets),
    ("members_get_only_partitions_of_their_topics", members_get_only_partitions_of_their_topics),
    ("topic_moves_to_a_later_subscriber_and_the_others_stay", topic_moves_to_a_later_subscriber_and_the_others_stay),
    ("one_commit_covers_several_topics", one_commit_covers_several_topics),
    ("error_of_one_topic_commits_the_others", error_of_one_topic_commits_the_others),
    ("large_commit_of_many_partitions_succeeds", large_commit_of_many_partitions_succeeds),
    ("held_topic_does_not_delay_the_others", held_topic_does_not_delay_the_others),
    ("paused_topic_does_not_delay_the_others", paused_topic_does_not_delay_the_others),
];

fn partitions(topic: &str, count: i32) -> Vec<Partition> {
    (0..count).map(|index| Partition::new(topic, index)).collect()
}

fn single_member_gets_all_partitions(kit: &Kit) {
    let topic = kit.topic(3);
    for at in partitions(&topic, 3) {
        kit.fill(&at, [at.index.to_string()]);
    }
    let mut member = kit.member(&kit.name("g"), &topic);
    eventually_blocking("all records", || {
        member.step_and_release();
        member.records.len() == 3
    });
    assert_eq!(member.assigned.iter().cloned().collect::<Vec<_>>(), partitions(&topic, 3));
    member.close();
}

fn commit_metadata_reaches_the_next_owner(kit: &Kit) {
    let (topic, group) = (kit.topic(2), kit.name("g"));
    let [first, second] = [0, 1].map(|index| Partition::new(topic.as_str(), index));
    kit.fill(&first, ["0", "1", "2"]);
    let mut member = kit.member(&group, &topic);
    member.until_assigned(2);
    member.commit(&[commit(&first, 2, "window=7")]);
    assert_eq!(kit.committed(&group, &first), Some((2, "window=7".to_owned())));
    assert_eq!(kit.committed(&group, &second), None);
    member.close();
    let mut next = kit.member(&group, &topic);
    next.until_assigned(2);
    let committed_offsets = next.consumer.committed(&[second, first], DEADLINE).unwrap();
    assert_eq!(committed_offsets[0], None);
    assert_eq!(
        committed_offsets[1].as_ref().map(|commit| (commit.offset, commit.metadata.as_str())),
        Some((2, "window=7"))
    );
    eventually_blocking("the next member starts at the commit", || {
        next.step_and_release();
        !next.records.is_empty()
    });
    assert_eq!(next.values(), ["2"]);
    next.close();
}

fn asynchronous_commit_reports_its_outcome(kit: &Kit) {
    let (topic, group) = (kit.topic(1), kit.name("g"));
    let at = Partition::new(topic.as_str(), 0);
    kit.fill(&at, ["0"]);
    let mut member = kit.member(&group, &topic);
    member.until_assigned(1);
    member.consumer.commit(&[commit(&at, 1, "m")]).unwrap();
    let outcome =
        |member: &Member| member.events.iter().find(|event| matches!(event, GroupEvent::Committed(_))).cloned();
    eventually_blocking("the outcome of the commit arrives", || {
        member.step_and_release();
        outcome(&member).is_some()
    });
    assert_eq!(outcome(&member), Some(GroupEvent::Committed(vec![(at.clone(), Ok(()))])));
    assert_eq!(kit.committed(&group, &at), Some((1, "m".to_owned())));
    member.close();
}

fn partition_moves_only_after_its_release(kit: &Kit) {
    let (topic, group) = (kit.topic(4), kit.name("g"));
    let mut old = kit.member(&group, &topic);
    old.until_assigned(4);
    // A member may join as soon as it is created, before its first poll.
    let mut new = kit.member(&group, &topic);
    eventually_blocking("half of the partitions are revoked", || {
        new.step_and_release();
        old.step();
        !old.revoked.is_empty()
    });
    assert_eq!(old.revoked.len(), 2, "only half is revoked; consumption of the rest continues");
    for _ in 0..20 {
        new.step_and_release();
        assert!(new.assigned.is_empty(), "a partition was handed over before its release");
    }
    let moved = old.revoked.clone();
    old.release_revoked();
    eventually_blocking("the new member has the partitions", || {
        old.step_and_release();
        new.step_and_release();
        new.assigned.len() == 2
    });
    assert_eq!(new.assigned, moved);
    assert_eq!(old.assigned.len(), 2);
    for at in partitions(&topic, 4) {
        kit.fill(&at, [at.index.to_string()]);
    }
    eventually_blocking("both read", || {
        old.step_and_release();
        new.step_and_release();
        old.records.len() + new.records.len() == 4
    });
    assert_eq!((old.records.len(), new.records.len()), (2, 2));
    old.close();
    new.close();
}

/// A consumer without room for records must still receive group events.
fn poll_for_zero_records_returns_group_events(kit: &Kit) {
    let (topic, group) = (kit.topic(2), kit.name("g"));
    let mut old = kit.member(&group, &topic);
    old.until_assigned(2);
    for at in partitions(&topic, 2) {
        kit.fill(&at, (0..200).map(|n| n.to_string()));
    }
    let mut new = kit.member(&group, &topic);
    eventually_blocking("one partition is revoked", || {
        new.step_and_release();
        old.poll(0);
        !old.revoked.is_empty()
    });
    assert!(old.records.len() < 10, "{} records that were not requested", old.records.len());
    eventually_blocking("all records are read", || {
        new.step_and_release();
        old.step_and_release();
        let read: HashSet<_> =
            old.records.iter().chain(&new.records).map(|record| (record.partition, record.offset)).collect();
        read.len() == 400
    });
    old.close();
    new.close();
}

fn revoking_member_may_still_commit(kit: &Kit) {
    let (topic, group) = (kit.topic(2), kit.name("g"));
    for at in partitions(&topic, 2) {
        kit.fill(&at, ["done", "not done"]);
    }
    let mut old = kit.member(&group, &topic);
    eventually_blocking("all records are read", || {
        old.step();
        old.records.len() == 4
    });
    let mut new = kit.member(&group, &topic);
    eventually_blocking("one partition is revoked", || {
        new.step_and_release();
        old.step();
        !old.revoked.is_empty()
    });
    let moved = old.revoked.first().cloned().unwrap();
    old.next.insert(moved.clone(), 1);
    old.release_revoked();
    eventually_blocking("the new owner starts at the last commit", || {
        old.step_and_release();
        new.step_and_release();
        !new.records.is_empty()
    });
    assert_eq!((new.assigned.first(), new.values()), (Some(&moved), vec!["not done".to_owned()]));
    old.close();
    new.close();
}

fn closing_member_leaves_the_group_at_once(kit: &Kit) {
    let (topic, group) = (kit.topic(4), kit.name("g"));
    let (mut leaving, mut staying) = (kit.member(&group, &topic), kit.member(&group, &topic));
    eventually_blocking("both members have half of the partitions", || {
        leaving.step_and_release();
        staying.step_and_release();
        leaving.assigned.len() == 2 && staying.assigned.len() == 2
    });
    let begin = std::time::Instant::now();
    leaving.close();
    staying.until_assigned(4);
    assert!(begin.elapsed() < DEADLINE / 2, "the member left only at the end of its session: {:?}", begin.elapsed());
    staying.close();
}

fn groups_are_independent(kit: &Kit) {
    let topic = kit.topic(1);
    let at = Partition::new(topic.as_str(), 0);
    kit.fill(&at, ["x"]);
    let groups = [kit.name("g"), kit.name("g")];
    for group in &groups {
        let mut member = kit.member(group, &topic);
        eventually_blocking("the record", || {
            member.step_and_release();
            member.values() == ["x"]
        });
        member.commit(&[commit(&at, 1, group)]);
        member.close();
    }
    for group in groups {
        assert_eq!(kit.committed(&group, &at), Some((1, group)));
    }
}

fn external_commit_requires_a_group_without_members(kit: &Kit) {
    let (topic, group) = (kit.topic(1), kit.name("g"));
    let at = Partition::new(topic.as_str(), 0);
    kit.fill(&at, ["0", "1", "2"]);
    let set = |offset| kit.broker.set_group_offsets(&group, &[commit(&at, offset, "outside")], DEADLINE);
    set(1).unwrap();
    assert_eq!(kit.committed(&group, &at), Some((1, "outside".to_owned())));
    let mut member = kit.member(&group, &topic);
    eventually_blocking("the member starts at the externally committed offset", || {
        member.step_and_release();
        member.records.len() == 2
    });
    assert_eq!(member.values(), ["1", "2"]);
    let result = set(0);
    assert!(matches!(result, Err(BrokerError::Refused(_))), "{result:?}");
    assert_eq!(kit.committed(&group, &at), Some((1, "outside".to_owned())));
    member.close();
    eventually_blocking("the group has no members", || set(2).is_ok());
    assert_eq!(kit.committed(&group, &at), Some((2, "outside".to_owned())));
}

fn commit_metadata_is_limited_to_4096_bytes(kit: &Kit) {
    let (topic, group) = (kit.topic(1), kit.name("g"));
    let at = Partition::new(topic.as_str(), 0);
    let mut member = kit.member(&group, &topic);
    member.until_assigned(1);
    let (fits, too_long) = ("m".repeat(4096), "m".repeat(4097));
    member.commit(&[commit(&at, 0, &fits)]);
    let result = member.consumer.commit_sync(&[commit(&at, 0, &too_long)]);
    assert!(result.as_ref().is_err_and(|error| !error.is_transient()), "{result:?}");
    assert_eq!(kit.committed(&group, &at), Some((0, fits)));
    member.close();
}

fn unknown_group_has_no_committed_offsets(kit: &Kit) {
    let at = Partition::new(kit.topic(1), 0);
    assert_eq!(kit.committed(&kit.name("g"), &at), None);
}

/// Returns the topics of a member's partitions, one entry per partition.
fn assigned_topics(member: &Member) -> Vec<&str> {
    member.assigned.iter().map(|at| &*at.topic).collect()
}

/// Polls both members until all partitions are assigned as the condition requires.
#[track_caller]
fn until_divided(members: [&mut Member; 2], is_divided: impl Fn(&Member, &Member) -> bool) {
    let [first, second] = members;
    eventually_blocking("the partitions are divided", || {
        first.step_and_release();
        second.step_and_release();
        is_divided(first, second)
    });
}

fn members_get_only_partitions_of_their_topics(kit: &Kit) {
    let group = kit.name("g");
    let (first_only, both, second_only) = (kit.topic(2), kit.topic(4), kit.topic(2));
    let mut first = kit.member_of(&group, &[&first_only, &both]);
    let mut second = kit.member_of(&group, &[&both, &second_only]);
    let count = |member: &Member, topic: &str| assigned_topics(member).iter().filter(|other| **other == topic).count();
    until_divided([&mut first, &mut second], |first, second| {
        let shared = (count(first, &both), count(second, &both));
        (count(first, &first_only), count(second, &second_only)) == (2, 2)
            && shared.0 + shared.1 == 4
            && shared.0.min(shared.1) > 0
    });
    assert_eq!((count(&first, &second_only), count(&second, &first_only)), (0, 0));
    first.close();
    eventually_blocking("the other member has all partitions of its topics", || {
        second.step_and_release();
        (count(&second, &both), count(&second, &second_only)) == (4, 2)
    });
    assert_eq!(count(&second, &first_only), 0, "a topic without a subscriber has no owner");
    second.close();
}

/// A member that joins with a further topic takes only what balance requires; both members keep reading.
fn topic_moves_to_a_later_subscriber_and_the_others_stay(kit: &Kit) {
    let group = kit.name("g");
    let (old_topic, new_topic) = (kit.topic(2), kit.topic(2));
    let mut old = kit.member_of(&group, &[&old_topic]);
    old.until_assigned(2);
    let mut new = kit.member_of(&group, &[&new_topic]);
    until_divided([&mut old, &mut new], |_, new| new.assigned.len() == 2);
    assert!(old.revoked.is_empty() && old.assigned.len() == 2, "{:?}", old.assigned);
    assert!(!old.events.iter().any(|event| matches!(event, GroupEvent::Revoked(gone) if !gone.is_empty())));
    for topic in [&old_topic, &new_topic] {
        partitions(topic, 2).iter().for_each(|at| kit.fill(at, [topic.as_str()]));
    }
    until_divided([&mut old, &mut new], |old, new| (old.records.len(), new.records.len()) == (2, 2));
    assert_eq!((old.values(), new.values()), (vec![old_topic.clone(); 2], vec![new_topic.clone(); 2]));
    old.close();
    new.close();
}

fn one_commit_covers_several_topics(kit: &Kit) {
    let group = kit.name("g");
    let topics = [kit.topic(1), kit.topic(2)];
    let mut member = kit.member_of(&group, &[&topics[0], &topics[1]]);
    member.until_assigned(3);
    let all: Vec<Partition> = [partitions(&topics[0], 1), partitions(&topics[1], 2)].concat();
    all.iter().for_each(|at| kit.fill(at, ["0", "1", "2"]));
    let commits: Vec<_> = all.iter().zip(1..).map(|(at, offset)| commit(at, offset, &format!("m{offset}"))).collect();
    member.commit(&commits);
    for (at, offset) in all.iter().zip(1..) {
        assert_eq!(kit.committed(&group, at), Some((offset, format!("m{offset}"))));
    }
    member.close();
}

/// Commits asynchronously and returns the outcome of each partition.
fn outcomes(member: &mut Member, commits: &[Commit]) -> Vec<(Partition, Result<(), BrokerError>)> {
    member.events.clear();
    member.consumer.commit(commits).unwrap();
    let mut batches = Vec::new();
    eventually_blocking("the outcomes of the commit", || {
        member.step_and_release();
        batches.extend(member.events.drain(..).filter_map(|event| match event {
            GroupEvent::Committed(outcomes) => Some(outcomes),
            _ => None,
        }));
        !batches.is_empty()
    });
    let mut outcomes = batches.concat();
    outcomes.sort_by(|a, b| a.0.cmp(&b.0));
    outcomes
}

fn error_of_one_topic_commits_the_others(kit: &Kit) {
    let group = kit.name("g");
    let mut topics = [kit.topic(1), kit.topic(1), kit.topic(1)];
    topics.sort();
    let mut member = kit.member_of(&group, &[&topics[0], &topics[1], &topics[2]]);
    member.until_assigned(3);
    // The second topic has no such partition.
    let all =
        [(&topics[0], 0), (&topics[1], 7), (&topics[2], 0)].map(|(topic, index)| Partition::new(topic.as_str(), index));
    for round in 1..=2 {
        let commits = outcomes(&mut member, &all.each_ref().map(|at| commit(at, round, "m")));
        let names: Vec<Partition> = commits.iter().map(|(at, _)| at.clone()).collect();
        assert_eq!(names, all);
        assert!(matches!(&commits[1].1, Err(BrokerError::Unknown(_))), "{commits:?}");
        assert_eq!((&commits[0].1, &commits[2].1), (&Ok(()), &Ok(())));
        for at in [&all[0], &all[2]] {
            assert_eq!(kit.committed(&group, at), Some((round, "m".to_owned())));
        }
    }
    assert!(matches!(
        member.consumer.commit_sync(&all.each_ref().map(|at| commit(at, 3, "m"))),
        Err(BrokerError::Unknown(_))
    ));
    assert_eq!(kit.committed(&group, &all[2]), Some((3, "m".to_owned())), "also committed synchronously");
    member.close();
}

/// The metadata of all partitions together exceeds the largest batch that Kafka's offsets topic accepts.
fn large_commit_of_many_partitions_succeeds(kit: &Kit) {
    const COUNT: i32 = 300;
    let (topic, group) = (kit.topic(COUNT as u32), kit.name("g"));
    let all = partitions(&topic, COUNT);
    let of = |offset: i64| -> Vec<Commit> { all.iter().map(|at| commit(at, offset, &"x".repeat(4096))).collect() };
    let mut member = kit.member(&group, &topic);
    member.until_assigned(COUNT as usize);
    let commits = outcomes(&mut member, &of(1));
    assert_eq!(commits.iter().filter(|(_, outcome)| outcome.is_ok()).count(), COUNT as usize, "{:?}", commits[0]);
    member.consumer.commit_sync(&of(2)).unwrap();
    let committed = member.consumer.committed(&all, DEADLINE).unwrap();
    assert!(committed.iter().all(|commit| commit.as_ref().is_some_and(|commit| commit.offset == 2)));
    member.close();
    eventually_blocking("the group has no members", || kit.broker.set_group_offsets(&group, &of(3), DEADLINE).is_ok());
    assert_eq!(kit.committed(&group, &all[299]).map(|(offset, _)| offset), Some(3));
}

/// Polls until all records of the second topic are read, while those of the first are held back.
fn read_only_second(member: &mut Member, topics: &[String; 2]) {
    let of = |member: &Member, topic: &str| member.records.iter().filter(|record| *record.topic == *topic).count();
    let before = of(member, &topics[0]);
    eventually_blocking("the records of the other topic", || {
        member.step_and_release();
        of(member, &topics[1]) == 400
    });
    assert!(of(member, &topics[0]) < before + 10, "{} records that were held back", of(member, &topics[0]) - before);
}

#[track_caller]
fn read_all(member: &mut Member) {
    eventually_blocking("all records, each once", || {
        member.step_and_release();
        member.records.len() >= 800
    });
    let read: HashSet<_> = member.records.iter().map(|at| (at.topic.clone(), at.partition, at.offset)).collect();
    assert_eq!((read.len(), member.records.len()), (800, 800));
}

/// Holds one of two topics back while both are filled, and delivers it again.
fn check_held(kit: &Kit, hold: impl Fn(&mut Member, &str, bool)) {
    let topics = [kit.topic(2), kit.topic(2)];
    let mut member = kit.member_of(&kit.name("g"), &[&topics[0], &topics[1]]);
    member.until_assigned(4);
    hold(&mut member, &topics[0], true);
    for topic in &topics {
        partitions(topic, 2).iter().for_each(|at| kit.fill(at, (0..200).map(|n| n.to_string())));
    }
    read_only_second(&mut member, &topics);
    hold(&mut member, &topics[0], false);
    read_all(&mut member);
    member.close();
}

fn held_topic_does_not_delay_the_others(kit: &Kit) {
    check_held(kit, |member, topic, held| member.consumer.hold(topic, held));
}

fn paused_topic_does_not_delay_the_others(kit: &Kit) {
    check_held(kit, |member, topic, held| member.consumer.pause(&partitions(topic, 2), held).unwrap());
}
