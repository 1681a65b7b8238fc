//! Partition assignment: as even as the subscriptions allow, with the fewest possible moves.

use std::collections::{BTreeMap, BTreeSet};

use crate::Partition;

pub(super) type MemberId = u64;
pub(super) type TargetAssignment = BTreeMap<Partition, MemberId>;

/// Distributes `partitions` over members, given the topics each one subscribes to and the current assignment.
pub(super) fn balance(
    partitions: &[Partition],
    subscriptions: &BTreeMap<MemberId, BTreeSet<String>>,
    current: &TargetAssignment,
) -> TargetAssignment {
    let can_own =
        |member: &MemberId, at: &Partition| subscriptions.get(member).is_some_and(|topics| topics.contains(&*at.topic));
    let mut load: BTreeMap<MemberId, usize> = subscriptions.keys().map(|member| (*member, 0)).collect();
    let mut target = TargetAssignment::new();
    let (kept, free): (Vec<_>, Vec<_>) =
        partitions.iter().partition(|at| current.get(at).is_some_and(|member| can_own(member, at)));
    for at in kept {
        assign(&mut target, &mut load, at, current[at]);
    }
    for at in free {
        let least_loaded = load.iter().filter(|(member, _)| can_own(member, at)).min_by_key(|(_, count)| **count);
        if let Some((&member, _)) = least_loaded {
            assign(&mut target, &mut load, at, member);
        }
    }
    while let Some((at, to)) = next_move(&target, &load, can_own) {
        assign(&mut target, &mut load, &at, to);
    }
    target
}

fn assign(target: &mut TargetAssignment, load: &mut BTreeMap<MemberId, usize>, at: &Partition, to: MemberId) {
    if let Some(from) = target.insert(at.clone(), to) {
        load.entry(from).and_modify(|count| *count -= 1);
    }
    load.entry(to).and_modify(|count| *count += 1);
}

/// Returns a move from the most loaded owner to a member with at least two partitions fewer.
fn next_move(
    target: &TargetAssignment,
    load: &BTreeMap<MemberId, usize>,
    can_own: impl Fn(&MemberId, &Partition) -> bool,
) -> Option<(Partition, MemberId)> {
    let moves = target.iter().filter_map(|(at, owner)| {
        let (&to, &count) = load.iter().filter(|(member, _)| can_own(member, at)).min_by_key(|(_, count)| **count)?;
        (load[owner] >= count + 2).then(|| (load[owner], at, to))
    });
    moves.max_by_key(|(count, ..)| *count).map(|(_, at, to)| (at.clone(), to))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(count: i32, members: &[MemberId], current: &TargetAssignment) -> TargetAssignment {
        let partitions: Vec<Partition> = (0..count).map(|index| Partition::new("t", index)).collect();
        let subscriptions = members.iter().map(|member| (*member, BTreeSet::from(["t".to_owned()]))).collect();
        balance(&partitions, &subscriptions, current)
    }

    fn loads(target: &TargetAssignment) -> Vec<usize> {
        let mut counts = BTreeMap::new();
        for member in target.values() {
            *counts.entry(*member).or_insert(0) += 1;
        }
        let mut loads: Vec<usize> = counts.into_values().collect();
        loads.sort_unstable();
        loads
    }

    #[test]
    fn assignment_is_even_for_any_number_of_members() {
        for members in 1..10_u64 {
            let loads = loads(&spread(16, &(0..members).collect::<Vec<_>>(), &TargetAssignment::new()));
            assert_eq!(loads.iter().sum::<usize>(), 16);
            assert!(loads[loads.len() - 1] - loads[0] <= 1, "{loads:?}");
        }
    }

    #[test]
    fn rebalance_moves_as_few_partitions_as_possible() {
        let two = spread(9, &[1, 2], &TargetAssignment::new());
        let three = spread(9, &[1, 2, 3], &two);
        let moved = two.iter().filter(|(at, owner)| three[at] != **owner).count();
        assert_eq!((moved, loads(&three)), (3, vec![3, 3, 3]));
        let back = spread(9, &[1, 2], &three);
        assert!(three.iter().filter(|(_, owner)| **owner != 3).all(|(at, owner)| back[at] == *owner));
    }

    #[test]
    fn partitions_go_only_to_subscribers_of_their_topic() {
        let partitions = [Partition::new("a", 0), Partition::new("b", 0), Partition::new("c", 0)];
        let subscriptions =
            BTreeMap::from([(1, BTreeSet::from(["a".to_owned()])), (2, ["a", "b"].map(String::from).into())]);
        let target = balance(&partitions, &subscriptions, &TargetAssignment::new());
        assert_eq!(target, TargetAssignment::from([(partitions[0].clone(), 1), (partitions[1].clone(), 2)]));
    }
}
