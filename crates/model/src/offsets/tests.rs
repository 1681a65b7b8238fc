use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::retry::{RunProgress, Waits};

/// Decodes examples in the documented format, written by hand.
#[test]
fn documented_examples_are_decoded() {
    let meta = Metadata::decode(100, "kf1 open 10500 2 r:AwEEAg").unwrap();
    assert_eq!((meta.mark, meta.window_end, meta.unclean_takeovers), (Mark::Open, 10_500, 2));
    let done: Vec<i64> = (100..120).filter(|&offset| meta.completed.is_done(offset)).collect();
    assert_eq!(done, [103, 108, 109]);
    let bitmap = Metadata::decode(7, "kf1 clean 7 0 b:BQ").unwrap();
    assert_eq!((bitmap.completed.watermark(), bitmap.completed.is_done(9), bitmap.mark), (8, true, Mark::Clean));
    for bad in [
        "",
        "kf2 open 1 0 -",
        "kf1 maybe 1 0 -",
        "kf1 open x 0 -",
        "kf1 open 1 0 r:!!",
        "kf1 open 1 0 q:AA",
        "\u{0}ä",
        "kf1 open 1 0 r:_____w",
        "kf1 open 1 0 - x",
        "kf1 open 1 0 - w:!!",
        "kf1 open 1 0 - w:AQEB",
        "kf1 open 1 0 - w:AQ -",
    ] {
        assert_eq!(Metadata::decode(1, bad), None, "{bad:?}");
    }
}

#[test]
fn open_offsets_below_an_offset_are_counted() {
    let mut map = CompletedOffsets::starting_at(10);
    assert!((10..300).all(|offset| map.deliver(offset)));
    [10, 12, 13, 100, 250].into_iter().for_each(|offset| map.complete(offset));
    for offset in [0, 10, 11, 12, 13, 14, 64, 101, 250, 251, 300, 1_000] {
        let counted = (11..offset).filter(|&offset| !map.is_done(offset)).count() as u64;
        assert_eq!(map.open_below(offset), counted, "{offset}");
    }
}

#[test]
fn gaps_count_as_complete() {
    let mut map = CompletedOffsets::starting_at(10);
    assert!(map.deliver(12));
    assert_eq!(map.watermark(), 12);
    assert!(map.deliver(15));
    map.complete(15);
    assert_eq!(map.watermark(), 12);
    map.complete(12);
    assert_eq!(map.watermark(), 16);
    assert!(!map.deliver(15));
}

#[test]
fn skipped_offsets_count_as_complete_and_delivered_ones_do_not() {
    let mut map = CompletedOffsets::starting_at(10);
    assert!(map.deliver(10) && map.deliver(11));
    map.skip_to(20);
    assert_eq!(
        (map.watermark(), map.next(), map.is_done(12), map.is_done(19), map.is_done(11)),
        (10, 20, true, true, false)
    );
    map.skip_to(15);
    assert_eq!(map.next(), 20, "the position never decreases");
    map.complete(10);
    map.complete(11);
    assert_eq!(map.watermark(), 20);
    map.skip_to(40);
    assert_eq!((map.watermark(), map.deliver(39), map.deliver(40)), (40, false, true));
}

#[test]
fn gap_of_any_width_needs_no_memory() {
    let mut map = CompletedOffsets::starting_at(10);
    assert!(map.deliver(10));
    map.complete(10);
    assert!(map.deliver(1 << 50));
    assert_eq!((map.watermark(), map.words.len()), (1 << 50, 0));
    map.complete(1 << 50);
    assert_eq!(map.watermark(), (1 << 50) + 1);
}

/// Once the new owner has completed the first task, everything up to 300 is complete, before those offsets are
/// delivered again.
#[test]
fn gap_below_the_watermark_of_a_new_owner_is_skipped() {
    let mut map = CompletedOffsets::starting_at(100);
    (100..150).chain(151..301).for_each(|offset| assert!(map.deliver(offset)));
    (101..301).for_each(|offset| map.complete(offset));
    let text = Metadata::encode(&map, Mark::Open, 301, 0, &PendingRetries::default());
    let mut map = Metadata::decode(map.watermark(), &text).unwrap().completed;
    assert!(map.deliver(100));
    (101..150).for_each(|offset| assert!(!map.deliver(offset)));
    map.complete(100);
    assert!(!map.deliver(151));
    assert_eq!((map.watermark(), map.next()), (301, 152));
    (152..301).for_each(|offset| assert!(!map.deliver(offset)));
    assert!(map.deliver(303));
    map.complete(303);
    assert_eq!(map.watermark(), 304);
}

#[test]
fn redelivered_offset_is_not_accepted_again() {
    let mut map = CompletedOffsets::starting_at(10);
    assert!(map.deliver(10) && map.deliver(11));
    assert!(!map.deliver(10) && !map.deliver(11));
    assert_eq!(map.watermark(), 10);
}

proptest! {
    /// Compares watermark, answers and the metadata round trip with a plain set.
    #[test]
    fn agrees_with_a_set(start in 0i64..1000, gaps in prop::collection::vec(0i64..4, 1..400), picks in prop::collection::vec(any::<prop::sample::Index>(), 0..400)) {
        let mut map = CompletedOffsets::starting_at(start);
        let mut at = start;
        let mut delivered = Vec::new();
        for gap in gaps {
            at += gap;
            prop_assert!(map.deliver(at));
            delivered.push(at);
            at += 1;
        }
        let mut open: BTreeSet<i64> = delivered.iter().copied().collect();
        for pick in picks {
            let offset = *pick.get(&delivered);
            map.complete(offset);
            open.remove(&offset);
        }
        prop_assert_eq!(map.watermark(), open.first().copied().unwrap_or(at));
        for offset in start..at {
            prop_assert_eq!(map.is_done(offset), !open.contains(&offset));
        }
        let text = Metadata::encode(&map, Mark::Open, at, 0, &PendingRetries::default());
        prop_assert!(text.len() <= MAX_METADATA_BYTES);
        let read = Metadata::decode(map.watermark(), &text).unwrap();
        for offset in start..at + 100 {
            prop_assert_eq!(read.completed.is_done(offset), offset < at && !open.contains(&offset));
        }
    }

    /// A new owner receives the records from the commit on, with the same gaps, and completes some of them meanwhile.
    #[test]
    fn next_owner_agrees_with_a_set(start in 0i64..1000, gaps in prop::collection::vec(0i64..4, 1..200), before in prop::collection::vec(any::<prop::sample::Index>(), 0..200), picks in prop::collection::vec(any::<prop::sample::Index>(), 0..200)) {
        let mut map = CompletedOffsets::starting_at(start);
        let mut records = Vec::new();
        for gap in gaps {
            let at = records.last().map_or(start, |last| last + 1) + gap;
            map.deliver(at);
            records.push(at);
        }
        let mut open: BTreeSet<i64> = records.iter().copied().collect();
        for pick in before {
            let offset = *pick.get(&records);
            map.complete(offset);
            open.remove(&offset);
        }
        let text = Metadata::encode(&map, Mark::Open, map.next(), 0, &PendingRetries::default());
        let mut map = Metadata::decode(map.watermark(), &text).unwrap().completed;
        let mut picks = picks.into_iter();
        for (n, &offset) in records.iter().enumerate().filter(|(_, offset)| **offset >= map.watermark()).collect::<Vec<_>>() {
            prop_assert_eq!(map.deliver(offset), open.contains(&offset));
            if let Some(pick) = picks.next() {
                let done = *pick.get(&records[..=n]);
                if open.remove(&done) {
                    map.complete(done);
                }
            }
        }
        let end = records.last().map_or(start, |last| last + 1);
        prop_assert_eq!(map.watermark(), open.first().copied().unwrap_or(end));
        for offset in start..end {
            prop_assert_eq!(map.is_done(offset), !open.contains(&offset));
        }
    }

    /// Metadata fits and never claims an open offset, however much is complete above a stuck one.
    #[test]
    fn metadata_always_fits(step in 1usize..9, count in 1i64..200_000) {
        let mut map = CompletedOffsets::starting_at(5);
        (5..count + 5).for_each(|offset| { map.deliver(offset); });
        (6..count + 5).step_by(step).for_each(|offset| map.complete(offset));
        let text = Metadata::encode(&map, Mark::Late, count + 5, 1, &PendingRetries::default());
        prop_assert!(text.len() <= MAX_METADATA_BYTES, "{} bytes", text.len());
        let read = Metadata::decode(map.watermark(), &text).unwrap();
        for offset in (5..count + 5).step_by(37) {
            prop_assert!(map.is_done(offset) || !read.completed.is_done(offset));
        }
    }

    #[test]
    fn no_metadata_panics(offset in 0i64..i64::MAX, text in "(kf1 )?(open|late|clean)? ?[0-9]{0,4} ?[0-9]{0,3} ?[rb]?:?[A-Za-z0-9_-]{0,20}") {
        let _ = Metadata::decode(offset, &text);
    }
}

fn retry(attempts: u32, waits: u32, due_ms: i64) -> PendingRetry {
    let waits = if waits == 0 { Waits::default() } else { Waits { number: waits, since_ms: due_ms - 900 } };
    PendingRetry { progress: RunProgress { attempts, waits, backoff_from: attempts / 2 }, due_ms }
}

#[test]
fn retries_that_do_not_fit_are_left_out_from_the_end() {
    let map = CompletedOffsets::starting_at(1_000);
    let mut retries = PendingRetries::default();
    (0..2_000).for_each(|n| retries.insert(1_000 + n, retry(1, 3, 1_800_000_000_000 + n)));
    let text = Metadata::encode(&map, Mark::Open, 9_000, 0, &retries);
    assert!(text.len() <= MAX_METADATA_BYTES && !Metadata::is_nearly_full(&text), "{}", text.len());
    let read = Metadata::decode(1_000, &text).unwrap().retries;
    assert!(read.len() >= 256, "{} fit", read.len());
    let expected: Vec<_> = (0..read.len() as i64).map(|n| retries.get(1_000 + n)).collect();
    assert_eq!((0..read.len() as i64).map(|n| read.get(1_000 + n)).collect::<Vec<_>>(), expected);
}

#[test]
fn map_leaves_room_for_retries() {
    let mut map = CompletedOffsets::starting_at(0);
    (0..400_000).for_each(|offset| assert!(map.deliver(offset)));
    (0..200_000).filter(|n| fastrand::Rng::with_seed(*n as u64).bool()).for_each(|n| map.complete(2 * n + 1));
    let mut retries = PendingRetries::default();
    (0..64).for_each(|n| retries.insert(4 * n, retry(2, 0, 1_800_000_000_000 + n)));
    let text = Metadata::encode(&map, Mark::Open, 400_000, 0, &retries);
    assert!(text.len() <= MAX_METADATA_BYTES && Metadata::is_nearly_full(&text));
    assert_eq!(Metadata::decode(map.watermark(), &text).unwrap().retries.len(), 64);
}

proptest! {
    #[test]
    fn retries_are_read_as_written(
        start in 0i64..1_000_000,
        entries in prop::collection::btree_map(0i64..20_000, (0u32..50, 0u32..5, 0i64..100_000_000), 0..60),
    ) {
        let mut retries = PendingRetries::default();
        for (offset, (attempts, waits, due)) in entries {
            retries.insert(start + offset, retry(attempts, waits, 1_800_000_000_000 + due));
        }
        let text = Metadata::encode(&CompletedOffsets::starting_at(start), Mark::Late, start, 2, &retries);
        prop_assert!(text.len() <= MAX_METADATA_BYTES);
        let read = Metadata::decode(start, &text).unwrap();
        prop_assert_eq!(&read.retries, &retries);
        prop_assert_eq!((read.mark, read.window_end, read.unclean_takeovers), (Mark::Late, start, 2));
    }
}
