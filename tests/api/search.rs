//! Searches with `GET /v1/tasks`: filters, levels, combinations, and stability while tasks change.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use kafleet::config::{ApiConfig, TypePolicy};
use kafleet::documents::{Status, Suggestions, TaskPage, Types};
use kafleet::handlers::builtin::echo::Echo;
use kafleet::handlers::{Registry, TypeRegistration};
use kafleet::model::event::{Announcement, Event, Kind};
use kafleet::model::task::Policy;

use reqwest::Method;
use serde_json::json;

use crate::api::fixture::{Fleet, fleet, unfolded_with};
use crate::api::lists::{all, ids, next_millisecond};

/// Announces an `echo` task like its producer.
async fn announce(fleet: &Fleet, id: &str, name: &str, tag: &str) {
    let policy = Policy { name: Some(name.into()), tags: vec![tag.into()], ..Policy::default() };
    let answer = |event: &mut Event| {
        let task = Announcement {
            task_type: "echo".into(),
            created_at_ms: event.at_ms,
            position: None,
            hash: None,
            policy: Some(Box::new(policy)),
            asof: None,
            trace: None,
        };
        event.task = Some(Box::new(task));
    };
    fleet.publish_event(id, Kind::Submitted, answer).await;
}

#[tokio::test]
async fn names_and_errors_are_found_at_any_level() {
    let fleet = fleet().await;
    for (id, name, tag) in [
        ("a", "nightly build 12", "ci"),
        ("a:x", "nightly test 12", "ci"),
        ("a:x:y", "deploy", "cd"),
        ("b", "build", "ci"),
        ("c", "Nightly build", "ci"),
        ("c:z", "nightly test 7", "ci"),
    ] {
        announce(&fleet, id, name, tag).await;
    }
    fleet.succeed("a:x:y", serde_json::json!(1)).await;
    fleet.fail("a:x", "no answer from 10.0.0.7:80 after 30 s").await;
    fleet.fail("b", "no answer from 10.1.2.3:443 after 5 s").await;
    fleet.fail("c:z", "the disk is full").await;
    fleet.folded().await;
    for (query, found) in [
        ("level=any", vec!["a", "a:x", "a:x:y", "b", "c", "c:z"]),
        ("level=roots", vec!["a", "b", "c"]),
        ("name_like=^nightly", vec!["a"]),
        ("level=any&name_like=^nightly", vec!["a", "a:x", "c:z"]),
        ("level=any&name_like=(%3Fi)^nightly+build", vec!["a", "c"]),
        ("level=any&name_like=\\d{2}$&name=nightly", vec!["a", "a:x"]),
        ("level=any&tag=cd", vec!["a:x:y"]),
        ("level=any&type=echo&tag=ci&name_like=test", vec!["a:x", "c:z"]),
        ("level=any&state=queued", vec!["a", "c"]),
        ("level=any&state=failed", vec!["a:x", "b", "c:z"]),
        ("state=failed", vec!["b"]),
        ("state=failed&type=echo&level=any", vec!["a:x", "b", "c:z"]),
        ("state=failed&type=echo", vec!["a:x", "b", "c:z"]),
        ("state=failed&type=echo&level=roots", vec!["b"]),
        ("level=any&error=error", vec!["a:x", "b", "c:z"]),
        ("level=any&error=no+answer+from+1.1.1.1:8080+after+1+s", vec!["a:x", "b"]),
        ("level=any&state=failed&error=error:+no+answer+from+1.1.1.1:1+after+1+s", vec!["a:x", "b"]),
        ("error=no+answer+from+1.1.1.1:1+after+1+s", vec!["a:x", "b"]),
        ("error=no+answer+from+1.1.1.1:1+after+1+s&level=roots", vec!["b"]),
        ("root=a&error=error", vec!["a:x"]),
        ("root=a&name_like=test|deploy", vec!["a:x", "a:x:y"]),
    ] {
        let query =
            query.replace('^', "%5E").replace('\\', "%5C").replace('{', "%7B").replace('}', "%7D").replace('|', "%7C");
        assert_eq!(ids(&fleet, &query).await, found, "{query}");
        assert_eq!(ids(&fleet, &format!("{query}&limit=1")).await, found, "{query} in pages of one");
    }
    let trees: Vec<String> = all(&fleet, "level=any&limit=2").await.into_iter().map(|task| task.id).collect();
    assert_eq!(trees, ["c", "c:z", "b", "a", "a:x", "a:x:y"], "the newest tree first, parents before children");
}

#[tokio::test]
async fn tasks_are_found_by_declared_params() {
    let policy = TypePolicy { index: vec!["/customer".into(), "/order/id".into()], ..TypePolicy::default() };
    let declare = |registry: &mut Registry| {
        registry.add("echo", TypeRegistration { policy, ..TypeRegistration::new(Echo) });
    };
    let fleet = unfolded_with(ApiConfig::default(), declare).await;
    fleet.track();
    for (id, params) in [
        ("a", json!({"customer": "Ada, L.", "order": {"id": 42}})),
        ("b", json!({"customer": "Bob", "order": {"id": "42"}})),
        ("c", json!({"customer": ["Bob"]})),
    ] {
        fleet.create(json!({"type": "echo", "id": id, "params": params, "tags": ["shop"]})).await;
    }
    fleet.folded().await;
    for (query, expected) in [
        ("params.customer:Bob", vec!["b"]),
        ("params.customer:\"Ada, L.\"", vec!["a"]),
        ("params.order.id:42", vec!["a", "b"]),
        ("params.customer:bob", vec![]),
        ("-params.order.id:42", vec!["c"]),
        ("tag:shop params.customer:Bob", vec!["b"]),
    ] {
        let query: String = url::form_urlencoded::byte_serialize(query.as_bytes()).collect();
        assert_eq!(ids(&fleet, &format!("q={query}")).await, expected, "{query}");
    }
    let suggestions: Suggestions = fleet.get("/v1/suggestions?q=params.c").await;
    assert_eq!(suggestions.suggestions[0].text, "params.customer:");
    let values: Suggestions = fleet.get("/v1/suggestions?q=params.order.id:4").await;
    assert_eq!((values.suggestions[0].text.as_str(), values.suggestions[0].tasks), ("42", Some(2)));
    let types: Types = fleet.get("/v1/types").await;
    let echo = types.types.into_iter().find(|document| document.name == "echo").unwrap();
    assert_eq!(echo.declared.index, ["params.customer", "params.order.id"]);

    let own = json!({"type": "echo", "id": "d", "tags": ["params.customer=Bob"]});
    let (status, problem) = fleet.post("/v1/tasks", own).await;
    assert_eq!((status, problem["pointer"].as_str()), (400, Some("/tags")), "{problem}");
    for (tags, status) in
        [(json!(["new"]), 200), (json!(["new", "params.customer=Bob"]), 200), (json!(["params.x=1"]), 400)]
    {
        let request = fleet.request(Method::PATCH, "/v1/tasks/b").json(&json!({"tags": tags}));
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), status, "{tags}");
        if status == 200 {
            let changed: Status = answer.json().await.unwrap();
            assert_eq!(changed.fields.tags, ["new", "params.customer=Bob", "params.order.id=42"]);
        }
    }
}

/// Time ranges apply to the tasks, not to their trees.
#[tokio::test]
async fn new_task_in_an_old_tree_is_found_by_its_time() {
    let fleet = fleet().await;
    fleet.echo("old").await;
    next_millisecond().await;
    let between = fleet.echo("between").await.seen_at.unwrap();
    next_millisecond().await;
    let late = fleet.echo("old:late").await.seen_at.unwrap();
    assert_eq!(ids(&fleet, &format!("level=any&from={between}")).await, ["between", "old:late"]);
    assert_eq!(ids(&fleet, &format!("level=any&from={between}&to={late}")).await, ["between"]);
    assert_eq!(ids(&fleet, &format!("level=any&to={late}&limit=1")).await, ["between", "old"]);
}

#[tokio::test]
async fn invalid_searches_are_rejected_with_their_reasons() {
    let fleet = fleet().await;
    fleet.echo("r").await;
    for (query, expected) in [
        ("name_like=(", "unclosed group"),
        ("name_like=(a%7B1000%7D)%7B1000%7D", "compiled pattern is too large"),
        ("level=deep", "use `roots` or `any`"),
        ("level=any&root=r", "omit `level`"),
    ] {
        let problem = fleet.problem(&format!("/v1/tasks?{query}")).await;
        assert_eq!((problem.status, problem.code.as_str()), (400, "bad_parameter"), "{query}");
        assert!(problem.detail.contains(expected), "{query}: {}", problem.detail);
    }
}

/// A search returns each matching task exactly once over all pages, despite concurrent writes.
#[tokio::test]
async fn pages_are_stable_under_concurrent_changes() {
    let fleet = fleet().await;
    for seed in 0..3 {
        let mut random = fastrand::Rng::with_seed(seed);
        let tag = format!("t{seed}");
        let (mut stays, mut moves) = (BTreeSet::new(), Vec::new());
        for n in 0..80 {
            let id = match random.u8(..3) {
                0 => format!("s{seed}-{n}"),
                _ => format!("p{seed}-{}:c{n}", random.u32(..20)),
            };
            announce(&fleet, &id, "some name", &tag).await;
            if random.bool() {
                fleet.fail(&id, "no").await;
                stays.insert(id);
            } else {
                moves.push(id);
            }
        }
        fleet.folded().await;
        for query in [
            format!("level=any&state=failed&tag={tag}"),
            format!("level=any&tag={tag}&error=error&state=failed&type=echo"),
            format!("level=any&name_like=some+name&tag={tag}&error=no"),
        ] {
            let ended = AtomicBool::new(false);
            let (seen, ()) = tokio::join!(page_all(&fleet, &query, seed, &ended), churn(&fleet, &moves, seed, &ended));
            let unique: BTreeSet<&String> = seen.iter().collect();
            assert_eq!(unique.len(), seen.len(), "seed {seed}, {query}: a task is listed twice");
            let missed: Vec<&String> = stays.iter().filter(|id| !unique.contains(id)).collect();
            assert!(missed.is_empty(), "seed {seed}, {query}: {missed:?} are not listed");
        }
    }
}

async fn page_all(fleet: &Fleet, query: &str, seed: u64, ended: &AtomicBool) -> Vec<String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page: TaskPage = fleet.get(&format!("/v1/tasks?{query}&limit={}{cursor}", random.u32(1..6))).await;
        seen.extend(page.tasks.into_iter().map(|task| task.id));
        match page.next {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    ended.store(true, Ordering::SeqCst);
    seen
}

/// Adds tasks above and below, and makes tasks fail, run again and fail again.
async fn churn(fleet: &Fleet, moves: &[String], seed: u64, ended: &AtomicBool) {
    let mut random = fastrand::Rng::with_seed(seed);
    for n in 0..300 {
        if ended.load(Ordering::SeqCst) {
            return;
        }
        let id = &moves[random.usize(..moves.len())];
        match random.u8(..4) {
            0 => drop(fleet.fail(id, "no").await),
            1 => drop(fleet.publish_event(id, Kind::RetryRequested, |_| {}).await),
            2 => announce(fleet, &format!("n{seed}-{n}"), "some name", &format!("t{seed}")).await,
            _ => announce(fleet, &format!("{id}:n{n}"), "some name", &format!("t{seed}")).await,
        }
    }
}
