//! Events of released versions: they stay readable, and project to the same stored bytes until the fold version rises.

use sha2::{Digest, Sha256};

use super::*;

/// Log of events as released versions have written them. Never changed; a new version adds lines at the end.
const RELEASED: &str = include_str!("released_events.jsonl");
/// Fold version, and SHA-256 of what it stores for the log.
const STORED: (u32, &str) = (20, "d3d21ee854c1d205444260836b9b8790b565201ccc2cad635712b1dd56c68959");
/// Kinds by their number in stored histories. Never changed; new kinds are added at the end.
const NUMBERED: [&str; 27] = [
    "submitted",
    "scheduled",
    "released",
    "started",
    "progress",
    "log",
    "warned",
    "retrying",
    "interrupted",
    "succeeded",
    "failed",
    "cancelled",
    "expired",
    "cancel_requested",
    "retry_requested",
    "reported",
    "patched",
    "attached",
    "detached",
    "effect_done",
    "dead_dropped",
    "worker_silent",
    "checked",
    "operated",
    "tick",
    "settings",
    "asked",
];

fn released() -> Vec<Event> {
    RELEASED
        .lines()
        .map(|line| Event::decode(line.as_bytes()).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

/// SHA-256 of all stored bytes.
fn hash_of(store: &ProjectedStore) -> String {
    let mut sha = Sha256::new();
    let records =
        store.task_records.values().chain(store.deferred.values()).chain(&store.requests).chain(store.keys.values());
    records.for_each(|bytes| sha.update(bytes));
    store.aggregates.values().for_each(|aggregate| sha.update(aggregate.encode().unwrap()));
    store.error_summaries.values().for_each(|errors| sha.update(errors.encode().unwrap()));
    store.overview.iter().for_each(|overview| sha.update(overview.encode().unwrap()));
    store.index.iter().chain(store.logs.values().flatten()).for_each(|text| sha.update(text));
    data_encoding::HEXLOWER.encode(&sha.finalize())
}

#[test]
fn stored_bytes_change_only_with_the_fold_version() {
    let found = (FOLD_VERSION, hash_of(&fold_log(&released(), 1, 0)));
    assert_eq!(
        (found.0, found.1.as_str()),
        STORED,
        "the released events project to other bytes: raise FOLD_VERSION, and write it and the hash to STORED"
    );
}

#[test]
fn stored_numbers_of_kinds_never_change() {
    let names: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
    assert_eq!(names[..NUMBERED.len()], NUMBERED, "a new kind is the last one of the table");
    for kind in Kind::ALL.iter().copied().chain([Kind::Unknown]) {
        assert_eq!(Kind::of_number(kind.number()), kind);
    }
    assert_eq!(Kind::of_number(Kind::ALL.len() as u8), Kind::Unknown, "kind of a newer build");
}

#[test]
fn released_events_are_of_all_kinds() {
    let kinds: BTreeSet<&str> = released().iter().map(|event| event.kind().name()).collect();
    let missing: Vec<_> = NUMBERED.iter().filter(|name| !kinds.contains(*name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
