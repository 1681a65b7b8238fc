//! Sorted lists: `GET /v1/tasks?sort=`, and searches for types that indexes answer.

use kafleet::documents::{ListSource, SortedTasks, TaskPage, TaskSort};
use kafleet::model::event::Kind;
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::fixture::{Fleet, fleet};

fn ids(page: &TaskPage) -> Vec<&str> {
    page.tasks.iter().map(|task| task.id.as_str()).collect()
}

/// Tasks that were created as `a`, `b`, `c` and have been running since the opposite order.
async fn running_tasks() -> Fleet {
    let fleet = fleet().await;
    for id in ["a", "b", "c"] {
        fleet.echo(id).await;
    }
    for (id, at_ms) in [("c", 1_000), ("b", 2_000), ("a", 3_000)] {
        fleet
            .publish_event(id, Kind::Started, |event| {
                event.attempt = 1;
                event.at_ms = at_ms;
            })
            .await;
    }
    fleet.folded().await;
    fleet
}

#[tokio::test]
async fn tasks_are_listed_from_the_oldest_and_from_the_longest_in_their_state() {
    let fleet = running_tasks().await;
    for (sort, expected) in [("newest", ["c", "b", "a"]), ("oldest", ["a", "b", "c"]), ("longest", ["c", "b", "a"])] {
        let page: TaskPage = fleet.get(&format!("/v1/tasks?q=state:running&sort={sort}")).await;
        assert_eq!(ids(&page), expected, "{sort}");
        assert_eq!(page.sort.name(), sort);
        let sorted = (sort != "newest").then_some(SortedTasks { tasks: 3, all: true });
        assert_eq!(page.sorted, sorted, "{sort}");
    }
}

#[tokio::test]
async fn pages_of_a_sorted_list_have_each_task_once() {
    let fleet = running_tasks().await;
    for (sort, expected) in [("oldest", ["a", "b", "c"]), ("longest", ["c", "b", "a"])] {
        let mut found = Vec::new();
        let mut cursor = String::new();
        loop {
            let page: TaskPage = fleet.get(&format!("/v1/tasks?state=running&sort={sort}&limit=1{cursor}")).await;
            found.extend(page.tasks.into_iter().map(|task| task.id));
            let Some(next) = page.next else { break };
            cursor = format!("&cursor={next}");
        }
        assert_eq!(found, expected, "{sort}");
    }
}

#[tokio::test]
async fn order_that_compares_an_arbitrary_part_is_refused() {
    let fleet = running_tasks().await;
    for (query, sort, is_accepted) in [
        ("tag:x", "oldest", false),
        ("state:succeeded", "oldest", false),
        ("state:failed", "oldest", true),
        ("tag:x from:1h", "oldest", true),
        ("under:a", "oldest", true),
        ("state:queued", "longest", false),
        ("state:queued from:1h", "longest", true),
        ("state:failed", "longest", false),
        ("type:echo", "longest", false),
        ("state:retrying", "longest", true),
        ("state:running", "fastest", false),
    ] {
        let query: String = url::form_urlencoded::byte_serialize(query.as_bytes()).collect();
        let response = fleet.request(Method::GET, &format!("/v1/tasks?q={query}&sort={sort}")).send().await.unwrap();
        let status = response.status().as_u16();
        assert_eq!(status, if is_accepted { 200 } else { 400 }, "{query} {sort}");
        if !is_accepted {
            let problem: Value = response.json().await.unwrap();
            assert_eq!(problem["code"], json!("bad_parameter"));
            assert!(problem["detail"].as_str().unwrap().contains("`sort`"), "{problem}");
        }
    }
}

#[tokio::test]
async fn tasks_of_a_type_are_read_from_indexes_if_all_are_in_indexed_states() {
    let fleet = running_tasks().await;
    let page: TaskPage = fleet.get("/v1/tasks?q=type:echo").await;
    assert_eq!((page.source, page.total, page.scanned), (Some(ListSource::States), Some(3), None));
    assert_eq!(ids(&page), ["c", "b", "a"]);
    let none: TaskPage = fleet.get("/v1/tasks?q=type:nothing").await;
    assert_eq!((none.source, none.total, none.scanned), (Some(ListSource::States), Some(0), None));
    fleet.echo("d").await;
    fleet.folded().await;
    let queued: TaskPage = fleet.get("/v1/tasks?q=type:echo").await;
    assert_eq!((queued.source, queued.sort), (Some(ListSource::Trees), TaskSort::Newest));
    assert_eq!(ids(&queued), ["d", "c", "b", "a"]);
}
