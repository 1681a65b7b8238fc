use std::collections::BTreeMap;

use proptest::prelude::*;

use super::forming::{BatchForming, GroupLimits};
use super::halving::{FailedCall, halves};

const LIMITS: GroupLimits = GroupLimits { max: 3, wait_ms: 20, max_bytes: 100 };

/// Runs calls until each item has its verdict. `fails`: a call with these items fails as a whole. Returns the number of calls,
/// and the verdicts of each item: whether it has succeeded.
fn run(items: Vec<usize>, fails: impl Fn(&[usize]) -> bool) -> (usize, BTreeMap<usize, Vec<bool>>) {
    let limits = GroupLimits { max: items.len(), ..LIMITS };
    let mut forming = BatchForming::new(limits);
    items.iter().for_each(|item| forming.join("", *item, 0, 0));
    let (mut calls, mut verdicts) = (0, BTreeMap::<usize, Vec<bool>>::new());
    while let Some(items) = forming.take_ready(LIMITS.wait_ms) {
        calls += 1;
        let failed = fails(&items);
        if failed && (FailedCall { items: items.len(), split: true, is_of_service: false }).is_halved() {
            forming.run_again(halves(items).into_iter());
        } else {
            items.into_iter().for_each(|item| verdicts.entry(item).or_default().push(!failed));
        }
    }
    assert!(forming.is_empty());
    (calls, verdicts)
}

#[test]
fn poison_of_a_hundred_is_found_within_fifteen_calls() {
    for poison in 0..100 {
        let (calls, verdicts) = run((0..100).collect(), |items| items.contains(&poison));
        assert!(calls <= 15, "{calls} calls for item {poison}");
        assert!(verdicts.iter().all(|(item, verdict)| *verdict == [*item != poison]), "{verdicts:?}");
    }
}

#[test]
fn hundred_bad_items_cost_one_call_less_than_two_for_each() {
    let (calls, verdicts) = run((0..100).collect(), |_| true);
    assert_eq!((calls, verdicts.len()), (199, 100));
}

proptest! {
    /// Also for failures without a pattern, as of a service that fails now and then.
    #[test]
    fn each_item_gets_one_verdict(number in 1_usize..200, seed: u64, of_eight in 0_u64..=8) {
        let fails = |items: &[usize]| {
            let mixed = items.iter().fold(seed, |mixed, item| (mixed ^ *item as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            (mixed >> 32) % 8 < of_eight
        };
        let (calls, verdicts) = run((0..number).collect(), fails);
        prop_assert!(calls < 2 * number, "{calls} calls for {number} items");
        prop_assert!((0..number).all(|item| verdicts.get(&item).is_some_and(|verdict| verdict.len() == 1)), "{verdicts:?}");
    }

    /// Groups have items of one key, in their order, and are as large as the limits allow.
    #[test]
    fn each_item_leaves_once_in_a_group_within_the_limits(
        steps in prop::collection::vec((0_usize..3, 0_u64..70, 0_u64..15, prop::bool::weighted(0.3)), 1..60),
    ) {
        let mut forming = BatchForming::new(LIMITS);
        let (mut now_ms, mut added, mut left) = (0, Vec::new(), Vec::new());
        for (n, (key, bytes, pause, takes)) in steps.iter().copied().enumerate() {
            now_ms += pause;
            forming.join(["", "a", "b"][key], (n, key, bytes, now_ms), bytes, now_ms);
            added.push(n);
            if takes && let Some(group) = forming.take_ready(now_ms) {
                let is_full = group.len() == LIMITS.max;
                let bytes: u64 = group.iter().map(|(_, _, bytes, _)| bytes).sum();
                prop_assert!(group.len() <= LIMITS.max && (bytes <= LIMITS.max_bytes || group.len() == 1));
                prop_assert!(group.iter().all(|(_, key, ..)| *key == group[0].1), "{group:?}");
                prop_assert!(group.is_sorted());
                // Ready because of its number, its age, its size, or the next item, for which it had no room.
                let (last, key, ..) = group[group.len() - 1];
                let next = steps[last + 1..=n].iter().find(|step| step.0 == key).map_or(0, |step| step.1);
                let is_large = bytes + next >= LIMITS.max_bytes;
                prop_assert!(is_full || is_large || group[0].3 + LIMITS.wait_ms <= now_ms);
                left.extend(group.iter().map(|(n, ..)| *n));
            }
            prop_assert_eq!(forming.len(), added.len() - left.len());
        }
        while let Some(group) = forming.take_ready(now_ms + LIMITS.wait_ms) {
            left.extend(group.iter().map(|(n, ..)| *n));
        }
        left.sort_unstable();
        prop_assert_eq!(left, added);
    }
}

#[test]
fn group_is_ready_when_it_is_full_or_old() {
    let mut forming = BatchForming::new(LIMITS);
    forming.join("a", 1, 10, 0);
    forming.join("b", 2, 10, 5);
    assert_eq!((forming.has_ready(19), forming.next_due_ms(19)), (false, Some(20)));
    assert_eq!((forming.has_ready(20), forming.next_due_ms(20)), (true, None));
    for item in 3..=5 {
        forming.join("b", item, 10, 10);
    }
    assert_eq!(forming.take_ready(11), Some(vec![2, 3, 4]), "full");
    assert_eq!(forming.take_ready(11), None, "the rest of `b` waits");
    assert_eq!(forming.take_ready(20), Some(vec![1]), "old");
    assert_eq!((forming.len(), forming.next_due_ms(20)), (1, Some(30)));
}

#[test]
fn due_group_grows_until_it_is_taken() {
    let mut forming = BatchForming::new(LIMITS);
    forming.join("", 1, 10, 0);
    forming.join("", 2, 10, 30);
    assert_eq!(forming.take_ready(30), Some(vec![1, 2]));
}

#[test]
fn item_that_is_too_large_for_a_group_begins_another_one() {
    let mut forming = BatchForming::new(LIMITS);
    for (item, bytes) in [(1, 60), (2, 60), (3, 500), (4, 1)] {
        forming.join("", item, bytes, 0);
    }
    let groups: Vec<_> = std::iter::from_fn(|| forming.take_ready(20)).collect();
    assert_eq!(groups, [vec![1], vec![2], vec![3], vec![4]]);
}

#[test]
fn parts_of_a_failed_call_stay_apart_and_start_first() {
    let mut forming = BatchForming::new(LIMITS);
    forming.join("", 9, 1, 0);
    forming.add_alone(8, 1);
    forming.run_again(halves(vec![1, 2, 3]).into_iter());
    let groups: Vec<_> = std::iter::from_fn(|| forming.take_ready(20)).collect();
    assert_eq!(groups, [vec![1, 2], vec![3], vec![9], vec![8]]);
}

#[test]
fn extracted_items_leave_their_groups() {
    let mut forming = BatchForming::new(LIMITS);
    for item in 1..=4 {
        forming.join("", item, 1, 0);
    }
    forming.run_again([vec![5], vec![6, 7]].into_iter());
    let mut taken = forming.extract(&mut |item| [2, 4, 5].contains(item));
    taken.sort_unstable();
    assert_eq!((taken, forming.len()), (vec![2, 4, 5], 4));
    forming.join("", 8, 1, 5);
    let groups: Vec<_> = std::iter::from_fn(|| forming.take_ready(25)).collect();
    assert_eq!(
        groups,
        [vec![6, 7], vec![1, 3], vec![8]],
        "the open group was empty, and a new one is as old as its item"
    );
    assert!(forming.is_empty());
}

#[test]
fn failures_of_the_service_and_of_single_items_are_not_halved() {
    let call = |items, split, is_of_service| FailedCall { items, split, is_of_service }.is_halved();
    assert!(call(2, true, false));
    assert!(!call(1, true, false) && !call(2, false, false) && !call(2, true, true));
}
