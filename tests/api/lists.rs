//! `GET /v1/tasks`.

use kafleet::documents::TaskPage;
use kafleet::model::event::Kind;
use kafleet_testkit::wait::eventually;
use serde_json::json;

use crate::api::fixture::{Fleet, fleet};

/// Waits until the clock shows a later millisecond than that of records written before.
pub async fn next_millisecond() {
    let now_ms = kafleet::runtime::now_ms();
    eventually("the clock advances", async || kafleet::runtime::now_ms() > now_ms).await;
}

/// All pages of a list.
pub async fn all(fleet: &Fleet, query: &str) -> Vec<kafleet::documents::Status> {
    let (mut tasks, mut next) = (Vec::new(), None::<String>);
    loop {
        let cursor = next.map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
        let page: TaskPage = fleet.get(&format!("/v1/tasks?{query}{cursor}")).await;
        tasks.extend(page.tasks);
        next = page.next;
        if next.is_none() {
            return tasks;
        }
    }
}

pub async fn ids(fleet: &Fleet, query: &str) -> Vec<String> {
    let mut ids: Vec<String> = all(fleet, query).await.into_iter().map(|task| task.id).collect();
    ids.sort();
    ids
}

#[tokio::test]
async fn roots_are_listed_newest_first_over_all_partitions() {
    let fleet = fleet().await;
    for n in 0..30 {
        fleet.echo(&format!("t{n:02}")).await;
    }
    fleet.echo("t00:child").await;
    for limit in [1, 7, 30, 200] {
        let tasks = all(&fleet, &format!("limit={limit}")).await;
        let seen: Vec<_> = tasks.iter().map(|task| (task.seen_at.clone(), task.id.clone())).collect();
        assert_eq!(seen.len(), 30, "limit {limit}");
        assert!(seen.windows(2).all(|pair| pair[0] > pair[1]), "limit {limit}: {seen:?}");
    }
    let page: TaskPage = fleet.get("/v1/tasks?limit=30").await;
    assert_eq!((page.next, page.scanned), (None, None), "a full last page has no cursor");
}

#[tokio::test]
async fn cursor_continues_despite_new_tasks() {
    let fleet = fleet().await;
    for n in 0..10 {
        fleet.echo(&format!("old{n}")).await;
    }
    let first: TaskPage = fleet.get("/v1/tasks?limit=4").await;
    for n in 0..10 {
        fleet.echo(&format!("new{n}")).await;
    }
    let cursor = first.next.unwrap();
    let rest: TaskPage = fleet.get(&format!("/v1/tasks?limit=200&cursor={cursor}")).await;
    let mut seen: Vec<String> = first.tasks.into_iter().chain(rest.tasks).map(|task| task.id).collect();
    seen.sort();
    assert_eq!(seen, (0..10).map(|n| format!("old{n}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn filters_select_matching_tasks() {
    let fleet = fleet().await;
    for (id, task_type, name, creator, tags) in [
        ("a", "echo", "nightly build", "ann", vec!["ci", "night"]),
        ("b", "echo", "nightly test", "bob", vec!["ci"]),
        ("c", "human", "review", "ann", vec![]),
    ] {
        let external = task_type == "human";
        let body =
            json!({"type": task_type, "id": id, "name": name, "creator": creator, "tags": tags, "external": external});
        fleet.create(body).await;
    }
    fleet.fail("b", "no").await;
    fleet.folded().await;
    for (query, found) in [
        ("type=echo", vec!["a", "b"]),
        ("type=human", vec!["c"]),
        ("type=nothing", vec![]),
        ("state=failed", vec!["b"]),
        ("state=queued", vec!["a", "c"]),
        ("tag=ci", vec!["a", "b"]),
        ("tag=night", vec!["a"]),
        ("creator=ann", vec!["a", "c"]),
        ("creator=an", vec![]),
        ("name=nightly", vec!["a", "b"]),
        ("name=nightly%20t", vec!["b"]),
        ("tag=ci&creator=ann&type=echo&state=queued", vec!["a"]),
        ("tag=ci&creator=ann&state=failed", vec![]),
    ] {
        assert_eq!(ids(&fleet, query).await, found, "{query}");
        assert_eq!(ids(&fleet, &format!("{query}&limit=1")).await, found, "{query} in pages of one");
    }
    let page: TaskPage = fleet.get("/v1/tasks?tag=ci&limit=1").await;
    assert!(page.scanned.is_some_and(|scanned| scanned >= 1), "a search reports the number of scanned records");
}

#[tokio::test]
async fn level_of_a_list_defaults_to_that_of_its_filters() {
    let fleet = fleet().await;
    for id in ["r", "r:a", "r:a:b", "s"] {
        fleet.echo(id).await;
    }
    fleet.fail("r:a:b", "deep down").await;
    fleet.fail("s", "too").await;
    fleet.publish_event("r:a", Kind::Started, |event| event.attempt = 1).await;
    fleet.folded().await;
    // Filters that concern attempts, which tasks of every level have, list all levels.
    for (filter, level) in [
        ("", "roots"),
        ("state=failed&", "roots"),
        ("type=echo&", "any"),
        ("type=echo&state=failed&", "any"),
        ("error=error&", "any"),
    ] {
        let default = ids(&fleet, filter).await;
        assert_eq!(ids(&fleet, &format!("{filter}level={level}")).await, default, "`{filter}`: default level");
        let roots = ids(&fleet, &format!("{filter}level=roots")).await;
        assert!(roots.iter().all(|id| !id.contains(':')), "`{filter}` lists tasks below roots: {roots:?}");
    }
    assert_eq!(ids(&fleet, "type=echo&state=failed").await, ["r:a:b", "s"]);
    assert_eq!(ids(&fleet, "type=echo&state=running&level=any").await, ["r:a"]);
    assert_eq!(ids(&fleet, "type=echo&state=failed&level=roots").await, ["s"]);
    fleet.succeed("r:a", json!(1)).await;
    fleet.folded().await;
    assert!(ids(&fleet, "type=echo&state=running&level=any").await.is_empty());
}

#[tokio::test]
async fn time_ranges_are_exact() {
    let fleet = fleet().await;
    let mut seen = Vec::new();
    for n in 0..8 {
        let status = fleet.echo(&format!("t{n}")).await;
        seen.push((status.seen_at.unwrap(), status.id));
        // Times differ only once the log's clock advances.
        next_millisecond().await;
    }
    for (from, to) in [(0, 7), (2, 5), (3, 3), (6, 7)] {
        let query = format!("from={}&to={}", seen[from].0, seen[to].0).replace('+', "%2B");
        let within = seen.iter().filter(|(at, _)| *at >= seen[from].0 && *at < seen[to].0);
        let expected: Vec<String> = within.map(|(_, id)| id.clone()).collect();
        assert_eq!(ids(&fleet, &query).await, expected, "{query}");
        assert_eq!(ids(&fleet, &format!("{query}&limit=1")).await, expected, "{query} in pages of one");
        assert_eq!(ids(&fleet, &format!("{query}&type=echo")).await, expected, "{query} while scanning");
    }
}

#[tokio::test]
async fn tree_is_listed_parents_before_children() {
    let fleet = fleet().await;
    let tree = ["r", "r:a", "r:a:x", "r:a:x:deep", "r:a:y", "r:b", "r:c", "r:c:z"];
    for id in tree {
        fleet.echo(id).await;
    }
    fleet.echo("other").await;
    fleet.fail("r:a:y", "no").await;
    fleet.fail("r:c", "no").await;
    fleet.folded().await;
    for limit in [1, 2, 3, 50] {
        let found: Vec<String> =
            all(&fleet, &format!("root=r&limit={limit}")).await.into_iter().map(|task| task.id).collect();
        assert_eq!(found, tree, "limit {limit}");
    }
    assert_eq!(ids(&fleet, "root=r&state=failed").await, ["r:a:y"]);
    assert_eq!(ids(&fleet, "root=r:a&limit=1").await, ["r:a", "r:a:x", "r:a:x:deep", "r:a:y"]);
    let page: TaskPage = fleet.get("/v1/tasks?root=r&limit=2").await;
    let elsewhere = fleet.problem(&format!("/v1/tasks?root=other&cursor={}", page.next.unwrap())).await;
    assert_eq!(elsewhere.code, "bad_cursor");
}

#[tokio::test]
async fn search_stops_after_ten_thousand_records_and_continues() {
    let fleet = fleet().await;
    fleet.create(json!({"type": "echo", "id": "needle", "tags": ["needle"]})).await;
    fleet.folded().await;
    // Tasks of the same millisecond are sorted by id.
    next_millisecond().await;
    let events = (0..10_500).map(|n| fleet.announce_owned(format!("hay{n}")));
    futures::StreamExt::collect::<Vec<_>>(futures::StreamExt::buffered(futures::stream::iter(events), 1_000)).await;
    fleet.folded().await;
    // The scan is also limited in time, so the number of requests is not known.
    let (mut cursor, mut looked_at) = (String::new(), 0);
    let found = loop {
        let page: TaskPage = fleet.get(&format!("/v1/tasks?tag=needle{cursor}")).await;
        let scanned = page.scanned.expect("the list was scanned");
        looked_at += scanned;
        let Some(next) = page.next else { break page.tasks };
        assert!(page.tasks.is_empty() && page.stopped_early && (1..=10_000).contains(&scanned), "{scanned}");
        assert!(page.hint.is_some_and(|hint| hint.contains(&format!("stopped after scanning {scanned} tasks"))));
        cursor = format!("&cursor={next}");
    };
    assert_eq!((found.len(), looked_at), (1, 10_501));
    assert!(!cursor.is_empty(), "one request scans fewer records");
}
