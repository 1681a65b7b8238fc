//! Large trees: pages read as little of them, and are as small, as of trees of a fifth of their size.

use futures::StreamExt;
use kafleet::model::event::{Announcement, Event, Payload};
use kafleet::runtime::now_ms;
use kafleet::store::memory::{MemoryStore, MemoryStoreOptions};
use kafleet_testkit::faults::store_calls;
use serde_json::Value;

use crate::api::fixture::{Fleet, fleet_on};
use crate::ui::browser::Browser;
use crate::ui::shop::Shop;
use crate::ui::visits::visits;

/// Failed leaves of a tree.
pub const FAILED: usize = 12;
/// Events on their way at once.
const IN_FLIGHT: usize = 1_000;
/// Tasks between two waits for the projection.
const CHUNK: usize = 20_000;

/// Tasks of two trees. Both are larger than what any page reads at most, which are the 10,000 tasks of a search, and have
/// more tasks on a level than any page lists.
const SMALL: usize = 12_000;
const LARGE: usize = 60_000;
/// Children of a task that has some.
const CHILDREN: usize = 100;
/// Calls of the store in which the visits of a page may differ: other work of the API goes on meanwhile.
const CHANCE_CALLS: usize = 30;
/// Bytes in which they may differ, such as by longer numbers.
const CHANCE_BYTES: usize = 4_000;
/// Age of the trees: within the hour that charts show, and not in the last minutes.
const AGE_MS: i64 = 1_200_000;
/// Size of any page.
const MAX_BYTES: usize = 400_000;

/// Fleet with room for a tree in its store: the default is that of a development machine.
pub async fn fleet_with_room(tasks: usize) -> Fleet {
    let store = MemoryStoreOptions { max_records: 2 * tasks, max_bytes: 8 << 30, ..MemoryStoreOptions::default() };
    fleet_on(MemoryStore::new(store)).await
}

/// Publishes a tree in which only some leaves have failed; returns their ids. `children`: those of each task that has some.
pub async fn publish_tree(fleet: &Fleet, tasks: usize, children: usize) -> Vec<String> {
    let parents: Vec<String> = (0..tasks.div_ceil(children)).map(|n| format!("order:p{n}")).collect();
    fleet.announce("order", "echo", None).await;
    for parent in &parents {
        fleet.announce(parent, "echo", None).await;
    }
    fleet.folded().await;
    let failed: Vec<String> = (0..FAILED).map(|n| format!("{}:failing-{n}", parents[n * 7 % parents.len()])).collect();
    for id in &failed {
        fleet.echo(id).await;
        fleet.fail(id, &format!("no answer from 10.0.0.{}", id.len())).await;
    }
    let leaves: Vec<String> =
        (0..tasks - parents.len() - FAILED - 1).map(|n| format!("{}:{n}", parents[n / children])).collect();
    for chunk in leaves.chunks(CHUNK) {
        let publish = |id: &String| succeed_at_once(fleet, id.clone());
        futures::stream::iter(chunk.iter().map(publish)).buffer_unordered(IN_FLIGHT).collect::<Vec<()>>().await;
        fleet.folded().await;
    }
    for parent in parents.iter().map(String::as_str).chain(["order"]) {
        fleet.succeed(parent, Value::Null).await;
    }
    fleet.folded().await;
    failed
}

/// Publishes an event that announces a task and reports its end.
async fn succeed_at_once(fleet: &Fleet, id: String) {
    let ended = Payload::Succeeded { started_at_ms: Some(now_ms()), output: None };
    let announce = |event: &mut Event| {
        event.attempt = 1;
        let (task_type, created_at_ms) = ("echo".into(), event.at_ms);
        let (position, hash, policy, asof, trace) = (None, None, None, None, None);
        event.task = Some(Box::new(Announcement { task_type, created_at_ms, position, hash, policy, asof, trace }));
    };
    fleet.publish_event(&id, ended, announce).await;
}

/// Cost of a page.
struct Cost {
    path: String,
    bytes: usize,
    calls: usize,
}

/// Visits all pages of a fleet with a tree of this size, all of whose events have the same time in the log.
async fn costs(tasks: usize, log_time_ms: i64) -> Vec<Cost> {
    let fleet = fleet_with_room(tasks).await;
    fleet.log_clock.stop_at(log_time_ms);
    publish_tree(&fleet, tasks, CHILDREN).await;
    let shop = Shop { fleet, bulk: "none".into() };
    let (browser, mut costs) = (Browser::new(&shop.fleet), Vec::new());
    for path in visits(&shop) {
        let reads = shop.fleet.faults.count(store_calls);
        let page = browser.get(&path).await;
        let calls = reads.hits();
        reads.lift();
        assert!(!page.status.is_server_error(), "{path}: {} {}", page.status, page.text);
        costs.push(Cost { path, bytes: page.bytes, calls });
    }
    costs
}

#[tokio::test]
async fn cost_of_a_page_does_not_grow_with_the_tree() {
    // Another number, such as 1000000, for a run by hand.
    let large = std::env::var("KAFLEET_TEST_TREE").map_or(LARGE, |number| number.parse().unwrap());
    // Statistics have the trees in the same minute, long before the visits, however long their publication takes.
    let log_time_ms = now_ms() - AGE_MS;
    let (small, large) = (costs(SMALL, log_time_ms).await, costs(large, log_time_ms).await);
    let mut grown = Vec::new();
    for (small, large) in small.iter().zip(&large) {
        // Previews of bulk actions count all tasks that match, until a time has passed.
        if large.path.starts_with("/bulk/new?") {
            continue;
        }
        let is_larger = large.bytes > small.bytes + CHANCE_BYTES || large.bytes > MAX_BYTES;
        if is_larger || large.calls > small.calls + CHANCE_CALLS {
            let Cost { path, bytes, calls } = large;
            grown.push(format!("{path}: {bytes} bytes, {calls} calls after {} and {}", small.bytes, small.calls));
        }
    }
    assert!(grown.is_empty(), "{grown:#?}");
}
