//! Consumer groups of a real Kafka: assignment, handover, commits.

use std::time::{Duration, Instant};

use kafleet::broker::{Broker, BrokerError, Commit, GroupEvent, StartOffset};
use kafleet_testkit::wait::eventually_blocking;

use super::{DEADLINE, Fixture, assigned, fixture, fixture_with, poll_until, unique};

/// Session timeouts longer than the tests' deadlines.
const LONG_SESSIONS: [(&str, &str); 1] = [("session.timeout.ms", "240000")];

#[test]
fn unassigned_partition_does_not_delay_the_others() {
    let Some(fixture) = fixture(2) else { return };
    fixture.publish(0..10);
    let mut member = fixture.member(&unique("group"));
    let (_, events) = poll_until(&mut *member, |_, events| assigned(events).len() == 2);
    assert_eq!(assigned(&events).len(), 2);

    // Partition 1 is never assigned; partition 0 is assigned late and alone.
    poll_until(&mut *member, {
        let mut rounds = 0;
        move |_, _| {
            rounds += 1;
            rounds > 3
        }
    });
    member.assign(&[(fixture.partition(0), StartOffset::Beginning)]).expect("assigned");

    let (values, _) = poll_until(&mut *member, |values, _| values.len() >= 10);
    assert_eq!(values, (0..10).collect::<Vec<u64>>());
    member.close(DEADLINE);
}

#[test]
fn partition_moves_only_after_its_release() {
    check_handover(fixture(4));
}

#[test]
fn partition_moves_only_after_its_release_with_consumer_protocol() {
    check_handover(fixture_with(4, &[("group.protocol", "consumer")]));
}

fn check_handover(fixture: Option<Fixture>) {
    let Some(fixture) = fixture else { return };
    let group = unique("group");
    let mut first = fixture.member(&group);
    let (_, events) = poll_until(&mut *first, |_, events| assigned(events).len() == 4);
    let starts: Vec<_> = assigned(&events).into_iter().map(|partition| (partition, StartOffset::Beginning)).collect();
    first.assign(&starts).expect("assigned");
    let mut second = fixture.member(&group);

    // Both poll until two of the first member's four partitions are revoked.
    let mut revoked = eventually_blocking("partitions are revoked", || {
        let events = first.poll(10, Duration::from_millis(50), &mut |_| {}).expect("a poll");
        assert_eq!(assigned(&second.poll(10, Duration::from_millis(50), &mut |_| {}).expect("a poll")), vec![]);
        events.into_iter().find_map(|event| match event {
            GroupEvent::Revoked(partitions) if !partitions.is_empty() => Some(partitions),
            _ => None,
        })
    });
    assert_eq!(revoked.len(), 2);
    first.release(&revoked[..1]).expect("released");
    poll_until(&mut *first, {
        let mut rounds = 0;
        move |_, _| {
            rounds += 1;
            rounds > 5
        }
    });
    let early = second.poll(10, Duration::from_millis(500), &mut |_| {}).expect("a poll");
    assert_eq!(assigned(&early), vec![], "received to another before all of it was released");
    first.release(&revoked[1..]).expect("released");

    let mut received = Vec::new();
    eventually_blocking("the second member has received both", || {
        first.poll(10, Duration::from_millis(50), &mut |_| {}).expect("a poll");
        received.extend(assigned(&second.poll(10, Duration::from_millis(50), &mut |_| {}).expect("a poll")));
        received.len() >= 2
    });
    received.sort();
    revoked.sort();
    assert_eq!(received, revoked);
    first.close(DEADLINE);
    second.close(DEADLINE);
}

#[test]
fn closing_with_a_pending_revocation_leaves_the_group() {
    let Some(fixture) = fixture_with(2, &LONG_SESSIONS) else { return };
    let group = unique("group");
    let mut first = fixture.member(&group);
    let (_, events) = poll_until(&mut *first, |_, events| assigned(events).len() == 2);
    first
        .assign(&assigned(&events).into_iter().map(|partition| (partition, StartOffset::End)).collect::<Vec<_>>())
        .expect("assigned");
    let mut second = fixture.member(&group);
    eventually_blocking("partitions are revoked", || {
        let events = first.poll(10, Duration::from_millis(50), &mut |_| {}).expect("a poll");
        second.poll(10, Duration::from_millis(50), &mut |_| {}).expect("a poll");
        events.iter().any(|event| matches!(event, GroupEvent::Revoked(_)))
    });

    let started = Instant::now();
    first.close(DEADLINE);

    assert!(started.elapsed() < DEADLINE / 2, "closing took {:?}", started.elapsed());
    // Both partitions move to the second member at once, not after a session timeout.
    poll_until(&mut *second, |_, events| assigned(events).len() == 2);
    second.close(DEADLINE);
}

#[test]
fn member_without_partitions_leaves_the_group_on_close() {
    let Some(fixture) = fixture_with(1, &LONG_SESSIONS) else { return };
    let group = unique("group");
    let mut first = fixture.member(&group);
    poll_until(&mut *first, |_, events| assigned(events).len() == 1);
    let mut second = fixture.member(&group);
    eventually_blocking("the second member has joined", || {
        first.poll(10, Duration::from_millis(50), &mut |_| {}).expect("a poll");
        let events = second.poll(10, Duration::from_millis(50), &mut |_| {}).expect("a poll");
        events.iter().any(|event| matches!(event, GroupEvent::Assigned(none) if none.is_empty()))
    });
    second.close(DEADLINE);
    first.close(DEADLINE);

    // External commits are accepted once the group has no members, well before a session timeout.
    let commit = [Commit { partition: fixture.partition(0), offset: 0, metadata: String::new() }];
    eventually_blocking("the group has no member", || fixture.kafka.set_group_offsets(&group, &commit, DEADLINE));
}

#[test]
fn eager_protocol_reassigns_all_partitions() {
    let Some(fixture) = fixture_with(2, &[("partition.assignment.strategy", "range")]) else { return };
    fixture.publish(0..10);
    let group = unique("group");
    let mut first = fixture.member(&group);
    poll_until(&mut *first, |_, events| assigned(events).len() == 2);
    // Assigned one by one: partitions assigned earlier keep their position.
    first.assign(&[(fixture.partition(0), StartOffset::At(4))]).expect("assigned");
    let (values, _) = poll_until(&mut *first, |values, _| values.len() >= 6);
    assert_eq!(values, (4..10).collect::<Vec<u64>>());
    first.assign(&[(fixture.partition(1), StartOffset::Beginning)]).expect("assigned");
    fixture.publish(10..12);
    let (values, _) = poll_until(&mut *first, |values, _| values.len() >= 2);
    assert_eq!(values, vec![10, 11]);
    let mut second = fixture.member(&group);

    let (mut first_has, mut second_has) = (Vec::new(), Vec::new());
    let until = Instant::now() + DEADLINE;
    while first_has.len() != 1 || second_has.len() != 1 {
        assert!(Instant::now() < until, "first has {first_has:?}, second {second_has:?}");
        for (member, has) in [(&mut first, &mut first_has), (&mut second, &mut second_has)] {
            for event in member.poll(10, Duration::from_millis(50), &mut |_| {}).expect("a poll") {
                match event {
                    GroupEvent::Revoked(partitions) => {
                        has.clear();
                        member.release(&partitions).expect("released");
                    }
                    GroupEvent::Assigned(partitions) => has.clone_from(&partitions),
                    _ => {}
                }
            }
        }
    }
    assert_ne!(first_has, second_has);
    first.close(DEADLINE);
    second.close(DEADLINE);
}

#[test]
fn absent_member_loses_and_regains_its_partitions() {
    let settings = [("session.timeout.ms", "6000"), ("max.poll.interval.ms", "6000"), ("heartbeat.interval.ms", "500")];
    let Some(fixture) = fixture_with(1, &settings) else { return };
    let mut member = fixture.member(&unique("group"));
    poll_until(&mut *member, |_, events| assigned(events).len() == 1);
    member.assign(&[(fixture.partition(0), StartOffset::Beginning)]).expect("assigned");
    // Not a wait for a condition: the member must be absent for longer than its session, and no call may end that.
    std::thread::sleep(Duration::from_secs(8));

    let (_, events) =
        poll_until(&mut *member, |_, events| events.iter().any(|event| matches!(event, GroupEvent::Lost(_))));

    assert_eq!(events.last(), Some(&GroupEvent::Lost(vec![fixture.partition(0)])), "{events:?}");
    member.release(&[fixture.partition(0)]).expect("released");
    fixture.publish(0..3);
    poll_until(&mut *member, |_, events| assigned(events).len() == 1);
    member.assign(&[(fixture.partition(0), StartOffset::Beginning)]).expect("assigned");
    let (values, _) = poll_until(&mut *member, |values, _| values.len() >= 3);
    assert_eq!(values, vec![0, 1, 2]);
    member.close(DEADLINE);
}

#[test]
fn commit_reports_its_outcome_and_failed_partition() {
    let Some(fixture) = fixture(1) else { return };
    let group = unique("group");
    let mut member = fixture.member(&group);
    poll_until(&mut *member, |_, events| assigned(events).len() == 1);
    member.assign(&[(fixture.partition(0), StartOffset::Beginning)]).expect("assigned");
    let commit = |metadata: String| [Commit { partition: fixture.partition(0), offset: 0, metadata }];

    member.commit(&commit("note".into())).expect("started");
    let (_, events) = poll_until(&mut *member, |_, events| !events.is_empty());
    assert_eq!(events, vec![GroupEvent::Committed(vec![(fixture.partition(0), Ok(()))])]);
    let error = member.commit_sync(&commit("x".repeat(4097))).expect_err("too much metadata");
    assert!(matches!(error, BrokerError::TooLarge(_)), "{error:?}");
    assert!(error.to_string().contains(&fixture.topic), "{error}");
    member.commit_sync(&commit("y".repeat(4096))).expect("metadata of the maximum size");

    let outside = fixture.kafka.set_group_offsets(&group, &commit(String::new()), DEADLINE);
    assert!(matches!(outside, Err(BrokerError::Refused(_))), "{outside:?}");
    member.close(DEADLINE);
    fixture.kafka.set_group_offsets(&group, &commit("moved".into()), DEADLINE).expect("the group has no members");
    let committed = fixture.kafka.group_offsets(&group, &[fixture.partition(0)], DEADLINE).expect("an answer");
    assert_eq!(committed[0].as_ref().map(|committed| committed.metadata.as_str()), Some("moved"));
}
