//! Tests of the format `kf2`, and of claims.

use std::ops::Range;

use proptest::prelude::*;

use super::*;
use crate::retry::RunProgress;

fn claims(runs: &[(i64, i64)]) -> Claims {
    Claims::covering(runs.iter().map(|(start, end)| *start..*end))
}

fn map_of(watermark: i64, done: &[i64]) -> CompletedOffsets {
    let mut map = CompletedOffsets::starting_at(watermark);
    done.iter().for_each(|offset| map.complete(*offset));
    map
}

/// Decodes an example in the documented format, written by hand.
#[test]
fn documented_example_is_decoded() {
    let meta = Metadata::decode(10_000, "kf2 open 2 14000 r:AAGfH5BO r:AQQC").unwrap();
    let pass_over = meta.pass_over.as_ref().unwrap();
    assert_eq!((meta.mark, meta.unclean_takeovers, pass_over.read, meta.window_end), (Mark::Open, 2, 14_000, 24_000));
    assert_eq!(pass_over.claims, claims(&[(10_000, 10_001), (14_000, 24_000)]));
    let started = [9_999, 10_000, 10_001, 13_999, 14_000, 23_999, 24_000].map(|offset| meta.may_have_started(offset));
    assert_eq!(started, [false, true, false, false, true, true, false]);
    let done: Vec<i64> = (10_000..10_010).filter(|&offset| meta.completed.is_done(offset)).collect();
    assert_eq!(done, [10_001, 10_002, 10_003, 10_004]);
    let empty = Metadata::decode(7, "kf2 clean 0 9 - -").unwrap();
    assert_eq!((empty.window_end, empty.mark, empty.may_have_started(7)), (7, Mark::Clean, false));
}

#[test]
fn malformed_metadata_is_refused() {
    let too_many = format!("r:{}", BASE64URL_NOPAD.encode(&[3, 1].repeat(MAX_CLAIM_RUNS + 1)));
    for bad in [
        "kf2 open 0 10 -",
        "kf2 open 0 10 - - - -",
        "kf3 open 0 10 - -",
        "kf2 maybe 0 10 - -",
        "kf2 open x 10 - -",
        "kf2 open 0 x - -",
        "kf2 open 0 -1 - -",
        "kf2 open 0 134217729 - -",
        "kf2 open 0 10 r: -",
        "kf2 open 0 10 r:AA -",
        "kf2 open 0 10 r:AAEB -",
        "kf2 open 0 10 r:AQA -",
        "kf2 open 0 10 r:AAEAAQ -",
        "kf2 open 0 10 r:!! -",
        "kf2 open 0 10 b:AA -",
        "kf2 open 0 10 r:AP____9_ -",
        &format!("kf2 open 0 10 {too_many} -"),
        "kf2 open 0 10 - q:AA",
        "kf2 open 0 10 - - w:!!",
    ] {
        assert_eq!(Metadata::decode(0, bad), None, "{bad:?}");
    }
    assert_eq!(Metadata::decode(11, "kf2 open 0 10 - -"), None, "reading on continues below the commit");
    assert!(Metadata::decode(0, "kf2 open 0 134217728 - -").is_some());
}

#[test]
fn claims_join_the_closest_runs() {
    // Distances of 1 to 40 between runs of one offset each.
    let mut at = 0;
    let runs: Vec<Range<i64>> = (1..=40)
        .map(|distance| {
            at += distance + 1;
            at..at + 1
        })
        .collect();
    let joined = Claims::covering(runs.clone());
    assert_eq!(joined.runs().len(), MAX_CLAIM_RUNS);
    assert!(runs.iter().all(|run| joined.contains(run.start)));
    // The runs with the smallest distances are one, and the others are as they were.
    assert_eq!(joined.runs()[1..], runs[9..]);
    let even = Claims::covering((0..100).map(|n| 10 * n..10 * n + 3));
    assert_eq!(even.runs().len(), MAX_CLAIM_RUNS, "equal distances too");
    assert_eq!(claims(&[(5, 5), (7, 9), (3, 4), (4, 6), (8, 12)]).runs(), [3..6, 7..12]);
}

#[test]
fn full_map_and_claims_leave_room_for_retries() {
    let mut map = CompletedOffsets::starting_at(1 << 40);
    let watermark = map.watermark();
    (0..8_500).for_each(|n| map.complete(watermark + 2 * n + 1));
    let far = (0..MAX_CLAIM_RUNS as i64)
        .map(|n| watermark + (n + 1) * (2 * MAX_SPAN / 40)..watermark + (n + 1) * (2 * MAX_SPAN / 40) + 70_000);
    let pass_over = PassOverMetadata { read: watermark + 60_000_000, claims: Claims::covering(far) };
    let mut retries = PendingRetries::default();
    let progress = RunProgress { attempts: 2, ..RunProgress::default() };
    (0..64).for_each(|n| retries.insert(watermark + 4 * n, PendingRetry { progress, due_ms: 1_800_000_000_000 + n }));
    let text = Metadata::encode_pass_over(&map, Mark::Clean, &pass_over, u32::MAX, &retries);
    assert!(text.len() <= MAX_METADATA_BYTES && !Metadata::is_nearly_full(&text), "{} bytes", text.len());
    let read = Metadata::decode(watermark, &text).unwrap();
    assert_eq!((read.completed.done_above(), read.retries.len()), (8_500, 64));
    assert_eq!(read.pass_over.as_ref(), Some(&pass_over));
    map.complete(watermark + 17_021);
    let longer = Metadata::encode_pass_over(&map, Mark::Open, &pass_over, 0, &retries);
    assert!(Metadata::is_nearly_full(&longer));
}

fn any_runs() -> impl Strategy<Value = Vec<(i64, i64)>> {
    prop::collection::vec((0i64..100_000, 1i64..2_000).prop_map(|(start, length)| (start, start + length)), 0..60)
}

proptest! {
    /// Metadata is read as it was written, and names each offset that may be in flight.
    #[test]
    fn metadata_is_read_as_written(
        start in 0i64..1_000_000,
        done in prop::collection::btree_set(0i64..3_000, 0..200),
        runs in any_runs(),
        read in 0i64..60_000_000,
        attempts in prop::collection::btree_map(0i64..3_000, 1u32..50, 0..40),
        mark in prop::sample::select(vec![Mark::Open, Mark::Late, Mark::Clean]),
        takeovers in any::<u32>(),
    ) {
        let completed = map_of(start, &done.iter().map(|offset| start + offset).collect::<Vec<_>>());
        let watermark = completed.watermark();
        let wanted: Vec<_> = runs.iter().map(|(from, to)| watermark + from..watermark + to).collect();
        let pass_over = PassOverMetadata { read: watermark + read, claims: Claims::covering(wanted.clone()) };
        prop_assert!(wanted.iter().all(|run| pass_over.claims.contains(run.start) && pass_over.claims.contains(run.end - 1)));
        let mut retries = PendingRetries::default();
        for (offset, attempts) in attempts {
            let progress = RunProgress { attempts, ..RunProgress::default() };
            retries.insert(watermark + offset, PendingRetry { progress, due_ms: 1_800_000_000_000 });
        }
        let text = Metadata::encode_pass_over(&completed, mark, &pass_over, takeovers, &retries);
        prop_assert!(text.len() <= MAX_METADATA_BYTES);
        let decoded = Metadata::decode(watermark, &text).unwrap();
        prop_assert!((0..3_100).all(|n| decoded.completed.is_done(start + n) == completed.is_done(start + n)));
        prop_assert_eq!((decoded.mark, decoded.unclean_takeovers, &decoded.retries), (mark, takeovers, &retries));
        prop_assert_eq!(decoded.window_end, pass_over.claims.end().unwrap_or(watermark));
        prop_assert_eq!(decoded.pass_over, Some(pass_over));
    }

    #[test]
    fn claims_behave_as_sets(ours in any_runs(), theirs in any_runs(), at in prop::collection::vec(0i64..103_000, 50)) {
        let (one, other) = (claims(&ours), claims(&theirs));
        let common = one.intersection(&other);
        for offset in at {
            let is_given = ours.iter().any(|(from, to)| (*from..*to).contains(&offset));
            prop_assert!(!is_given || one.contains(offset));
            prop_assert_eq!(common.contains(offset), one.contains(offset) && other.contains(offset));
        }
        prop_assert!(one.runs().len() <= MAX_CLAIM_RUNS);
        prop_assert!(one.runs().windows(2).all(|pair| pair[0].end < pair[1].start));
    }

    #[test]
    fn no_text_of_the_second_format_panics(offset in 0i64..i64::MAX, text in "kf2 (open|late|clean)? ?[0-9]{0,4} ?[0-9]{0,12} ?[rb-]?:?[A-Za-z0-9_-]{0,20} ?[rb-]?:?[A-Za-z0-9_-]{0,20}") {
        let _ = Metadata::decode(offset, &text);
    }
}
