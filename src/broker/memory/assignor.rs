//! Who should own which partition: as even as the subscriptions allow, with as few moves as that takes.

use std::collections::{BTreeMap, BTreeSet};

use crate::broker::Partition;

pub(super) type MemberId = u64;
pub(super) type Target = BTreeMap<Partition, MemberId>;

/// Spreads `partitions` over members (each with the topics it wants), starting from who has them now.
pub(super) fn balance(partitions: &[Partition], wants: &BTreeMap<MemberId, BTreeSet<String>>, now: &Target) -> Target {
    let may = |member: &MemberId, at: &Partition| wants.get(member).is_some_and(|topics| topics.contains(&*at.topic));
    let mut load: BTreeMap<MemberId, usize> = wants.keys().map(|member| (*member, 0)).collect();
    let mut target = Target::new();
    let (kept, free): (Vec<_>, Vec<_>) = partitions.iter().partition(|at| now.get(at).is_some_and(|member| may(member, at)));
    for at in kept {
        give(&mut target, &mut load, at, now[at]);
    }
    for at in free {
        let idlest = load.iter().filter(|(member, _)| may(member, at)).min_by_key(|(_, held)| **held);
        if let Some((&member, _)) = idlest {
            give(&mut target, &mut load, at, member);
        }
    }
    while let Some((at, to)) = next_move(&target, &load, may) {
        give(&mut target, &mut load, &at, to);
    }
    target
}

fn give(target: &mut Target, load: &mut BTreeMap<MemberId, usize>, at: &Partition, to: MemberId) {
    if let Some(from) = target.insert(at.clone(), to) {
        load.entry(from).and_modify(|held| *held -= 1);
    }
    load.entry(to).and_modify(|held| *held += 1);
}

/// A partition whose owner holds at least two more than another member that may have it, from the fullest owner first.
fn next_move(
    target: &Target,
    load: &BTreeMap<MemberId, usize>,
    may: impl Fn(&MemberId, &Partition) -> bool,
) -> Option<(Partition, MemberId)> {
    let moves = target.iter().filter_map(|(at, owner)| {
        let (&to, &held) = load.iter().filter(|(member, _)| may(member, at)).min_by_key(|(_, held)| **held)?;
        (load[owner] >= held + 2).then(|| (load[owner], at, to))
    });
    moves.max_by_key(|(held, ..)| *held).map(|(_, at, to)| (at.clone(), to))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(count: i32, members: &[MemberId], now: &Target) -> Target {
        let partitions: Vec<Partition> = (0..count).map(|index| Partition::new("t", index)).collect();
        let wants = members.iter().map(|member| (*member, BTreeSet::from(["t".to_owned()]))).collect();
        balance(&partitions, &wants, now)
    }

    fn loads(target: &Target) -> Vec<usize> {
        let mut counts = BTreeMap::new();
        for member in target.values() {
            *counts.entry(*member).or_insert(0) += 1;
        }
        let mut loads: Vec<usize> = counts.into_values().collect();
        loads.sort_unstable();
        loads
    }

    #[test]
    fn spreads_evenly_for_any_number_of_members() {
        for members in 1..10_u64 {
            let loads = loads(&spread(16, &(0..members).collect::<Vec<_>>(), &Target::new()));
            assert_eq!(loads.iter().sum::<usize>(), 16);
            assert!(loads[loads.len() - 1] - loads[0] <= 1, "{loads:?}");
        }
    }

    #[test]
    fn moves_no_more_than_it_must() {
        let two = spread(9, &[1, 2], &Target::new());
        let three = spread(9, &[1, 2, 3], &two);
        let moved = two.iter().filter(|(at, owner)| three[at] != **owner).count();
        assert_eq!((moved, loads(&three)), (3, vec![3, 3, 3]));
        let back = spread(9, &[1, 2], &three);
        assert!(three.iter().filter(|(_, owner)| **owner != 3).all(|(at, owner)| back[at] == *owner));
    }

    #[test]
    fn gives_a_partition_only_to_who_wants_its_topic() {
        let partitions = [Partition::new("a", 0), Partition::new("b", 0), Partition::new("c", 0)];
        let wants = BTreeMap::from([(1, BTreeSet::from(["a".to_owned()])), (2, ["a", "b"].map(String::from).into())]);
        let target = balance(&partitions, &wants, &Target::new());
        assert_eq!(target, Target::from([(partitions[0].clone(), 1), (partitions[1].clone(), 2)]));
    }
}
