//! Indexes and pages.

use super::*;

pub async fn indexes_are_ordered(fixture: &Fixture) {
    let children = Index::Children(id("p"));
    let members = Index::Members { task_type: "echo".into(), state: State::Running };
    let scattered =
        [entry(5, "p:b"), entry(9, "p:a"), entry(5, "p:B"), entry(-1, "p:z"), entry(5, "p:a-"), entry(5, "p:a")];
    let oldest_first = ["p:z", "p:B", "p:a-", "p:b", "p:a"];
    for index in [&children, &members, &Index::Roots] {
        assert_eq!(fixture.store.page(0, index, None, 10).await.unwrap(), [], "nothing yet");
        // The last entry moves `p:a` to another score: a member has only one.
        fixture.put(0, adds(index, scattered[..5].iter().cloned())).await;
    }
    assert_eq!(ids(&fixture.store.page(0, &children, None, 10).await.unwrap()), oldest_first);
    let newest_first: Vec<_> = oldest_first.into_iter().rev().collect();
    for index in [&members, &Index::Roots] {
        assert_eq!(ids(&fixture.store.page(0, index, None, 10).await.unwrap()), newest_first);
        assert_eq!(ids(&fixture.store.page(0, index, None, 2).await.unwrap()), newest_first[..2]);
        assert_eq!(fixture.store.page(0, index, None, 0).await.unwrap(), []);
    }
    assert_eq!(fixture.store.page(0, &children, None, 1).await.unwrap(), [entry(-1, "p:z")]);
}

pub async fn task_moves_between_indexes(fixture: &Fixture) {
    let members = |state| Index::Members { task_type: "echo".into(), state };
    let (running, failed) = (members(State::Running), members(State::Failed));
    fixture.put(0, adds(&running, [entry(1, "a"), entry(2, "b")])).await;
    let mut changes = adds(&failed, [entry(1, "a")]);
    changes.removed = vec![(running.clone(), entry(1, "a")), (running.clone(), entry(3, "never-there"))];
    fixture.put(0, changes).await;
    assert_eq!(ids(&fixture.store.page(0, &running, None, 10).await.unwrap()), ["b"]);
    assert_eq!(ids(&fixture.store.page(0, &failed, None, 10).await.unwrap()), ["a"]);
    let other_type = Index::Members { task_type: "other".into(), state: State::Failed };
    assert_eq!(fixture.store.page(0, &other_type, None, 10).await.unwrap(), []);
}

pub async fn pages_continue_after_removed_entries(fixture: &Fixture) {
    for index in [Index::Roots, Index::Children(id("p"))] {
        let all: Vec<Entry> = (0..10).map(|n| entry(n / 3, &format!("t{n}"))).collect();
        fixture.put(0, adds(&index, all.clone())).await;
        fixture.put(0, removes(&index, [all[4].clone()])).await;
        let after = fixture.store.page(0, &index, Some(&all[4]), 3).await.unwrap();
        let expect = if index == Index::Roots { ["t3", "t2", "t1"] } else { ["t5", "t6", "t7"] };
        assert_eq!(ids(&after), expect);
        // Positions without an entry: before, behind and between all others.
        let (first, last) = (entry(-5, "x"), entry(99, "x"));
        let (before_all, behind_all) = if index == Index::Roots { (&last, &first) } else { (&first, &last) };
        assert_eq!(fixture.store.page(0, &index, Some(before_all), 99).await.unwrap().len(), 9);
        assert_eq!(fixture.store.page(0, &index, Some(behind_all), 99).await.unwrap(), []);
        let between = fixture.store.page(0, &index, Some(&entry(1, "t3a")), 1).await.unwrap();
        assert_eq!(ids(&between), if index == Index::Roots { ["t3"] } else { ["t5"] });
    }
}

/// Pages through an index to its end.
async fn read_all_pages(store: &dyn Store, index: &Index, limit: usize) -> Vec<Entry> {
    let mut all: Vec<Entry> = Vec::new();
    loop {
        let page = store.page(0, index, all.last(), limit).await.unwrap();
        if page.is_empty() {
            return all;
        }
        assert!(page.len() <= limit);
        // Yield to the concurrent writer.
        tokio::task::yield_now().await;
        all.extend(page);
    }
}

pub async fn pages_are_exact_when_all_entries_share_a_time(fixture: &Fixture) {
    for index in [Index::Children(id("p")), Index::Roots] {
        let all: Vec<Entry> = (0..4_000).map(|n| entry(7, &format!("t{n:05}"))).collect();
        fixture.put(0, adds(&index, all.clone())).await;
        let mut pages = read_all_pages(&*fixture.store, &index, 333).await;
        if index == Index::Roots {
            pages.reverse();
        }
        assert_eq!(pages, all);
        // The entry to continue after has been removed, among thousands with the same time.
        fixture.put(0, removes(&index, [all[2_000].clone()])).await;
        let next = fixture.store.page(0, &index, Some(&all[2_000]), 1).await.unwrap();
        assert_eq!(ids(&next), [if index == Index::Roots { "t01999" } else { "t02001" }]);
    }
}

pub async fn pages_are_stable_under_writes(fixture: &Fixture) {
    for index in [Index::Roots, Index::Children(id("p"))] {
        // Permanent entries, with temporary ones in between, many of them with the same time.
        let stays: Vec<Entry> = (0..600).map(|n| entry(n / 200, &format!("t{n:04}"))).collect();
        let checkpoint = fixture.put(0, adds(&index, stays.clone())).await;
        let (done, written) = (AtomicBool::new(false), AtomicI64::new(0));
        let write_concurrently = write_concurrently(fixture, &index, checkpoint, &done, &written);
        let walks = async {
            let mut walks = 0;
            while walks < 15 || written.load(Ordering::Relaxed) <= 10 {
                walks += 1;
                let pages = read_all_pages(&*fixture.store, &index, 50).await;
                let in_order =
                    |pair: &[Entry]| if index == Index::Roots { pair[0] > pair[1] } else { pair[0] < pair[1] };
                assert!(pages.windows(2).all(in_order), "out of order, or twice");
                let pages: BTreeSet<Entry> = pages.into_iter().collect();
                let missed: Vec<_> = stays.iter().filter(|entry| !pages.contains(entry)).collect();
                assert!(missed.is_empty(), "missed {missed:?}");
            }
            done.store(true, Ordering::Relaxed);
        };
        let writes_on = tokio::time::timeout(DEADLINE, async { tokio::join!(walks, write_concurrently) }).await;
        assert!(writes_on.is_ok(), "only {written:?} batches were written meanwhile");
    }
}

/// Adds and removes entries all over an index until `stop` is set; counts the batches.
async fn write_concurrently(
    fixture: &Fixture,
    index: &Index,
    from: Checkpoint,
    done: &AtomicBool,
    written: &AtomicI64,
) {
    let (mut writer, found) = fixture.open(0).await;
    assert_eq!(found, Some(from));
    let mut at = from;
    let mut batches = 0;
    while !done.load(Ordering::Relaxed) {
        let entries: Vec<Entry> =
            (0..20).map(|n| entry((batches + n) % 3, &format!("t{:04}x", (batches * 37 + n * 31) % 600))).collect();
        for changes in [adds(index, entries.clone()), removes(index, entries)] {
            let to = checkpoint(at.offset + 1);
            writer.apply(&changes, Some(at), to).await.unwrap();
            at = to;
            batches += 1;
        }
        written.store(batches, Ordering::Relaxed);
        tokio::task::yield_now().await;
    }
}
