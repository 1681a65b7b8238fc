//! The search language, `GET /v1/tasks?q=`, and suggestions.

use kafleet::documents::{ListSource, Suggestions, TaskPage};
use kafleet::model::event::Kind;
use serde_json::{Value, json};

use crate::api::fixture::{Fleet, fleet};
use crate::api::lists::{all, ids};

fn encoded(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

async fn matching_ids(fleet: &Fleet, query: &str) -> Vec<String> {
    ids(fleet, &format!("q={}", encoded(query))).await
}

async fn page(fleet: &Fleet, query: &str) -> TaskPage {
    fleet.get(&format!("/v1/tasks?q={}", encoded(query))).await
}

/// Tasks `a` (failed), `a:x` (failed), `b` (running), `c` (succeeded) and `d` (queued).
async fn some_tasks(fleet: &Fleet) {
    let create = async |id: &str, mut fields: Value| {
        let (parent, segment) = id.rsplit_once(':').map_or((None, id), |(parent, segment)| (Some(parent), segment));
        fields["type"] = fields.get("type").cloned().unwrap_or_else(|| json!("echo"));
        (fields["id"], fields["parent"]) = (json!(segment), json!(parent));
        fleet.create(fields).await;
    };
    create("a", json!({"name": "Nightly build", "tags": ["ci", "slow"], "creator": "ada"})).await;
    create("a:x", json!({"name": "unit tests", "tags": ["ci"]})).await;
    create("b", json!({"name": "build: \"main\"", "tags": ["cd", "with space"]})).await;
    create("c", json!({"options": {"schedule": "nightly"}, "creator": "schedule/nightly"})).await;
    create("d", json!({"type": "resize", "params": {"url": "http://h/", "width": 1}})).await;
    fleet.fail("a:x", "no answer from 10.0.0.7:80 after 30 s").await;
    fleet.succeed("a", json!(1)).await;
    fleet
        .publish_event("b", Kind::Started, |event| {
            event.attempt = 1;
            event.worker = Some("w-2".into());
        })
        .await;
    fleet.succeed("c", json!(1)).await;
    fleet.folded().await;
}

#[tokio::test]
async fn query_finds_the_tasks_that_fulfil_its_terms() {
    let fleet = fleet().await;
    some_tasks(&fleet).await;
    for (query, expected) in [
        (" ", vec!["a", "b", "c", "d"]),
        ("level:any", vec!["a", "a:x", "b", "c", "d"]),
        ("type:resize", vec!["d"]),
        ("type:resize,echo state:succeeded,queued", vec!["c", "d"]),
        ("-type:resize", vec!["a", "b", "c"]),
        ("state:failed", vec!["a"]),
        ("state:failed,running level:any", vec!["a", "a:x", "b"]),
        ("state:failed type:resize,echo level:any", vec!["a", "a:x"]),
        ("-state:failed,running", vec!["c", "d"]),
        ("own:failed level:any", vec!["a:x"]),
        ("state:failed -own:failed level:any", vec!["a"]),
        ("tag:ci", vec!["a"]),
        ("tag:ci,cd", vec!["a", "b"]),
        ("tag:ci tag:slow level:any", vec!["a"]),
        ("tag:ci -tag:slow level:any", vec!["a:x"]),
        ("tag:\"with space\"", vec!["b"]),
        ("creator:ada", vec!["a"]),
        ("schedule:nightly", vec!["c"]),
        ("worker:w-2", vec!["b"]),
        ("worker:w-1", vec!["a", "c"]),
        ("type:echo", vec!["a", "a:x", "b", "c"]),
        ("type:echo level:roots", vec!["a", "b", "c"]),
        ("error:\"no answer from 1.1.1.1:1 after 2 s\"", vec!["a:x"]),
        ("name:build", vec!["b"]),
        ("name_like:\"(?i)BUILD$\"", vec!["a"]),
        ("build", vec!["a", "b"]),
        ("\"a:\" level:any", vec!["a:x"]),
        ("build nightly", vec!["a"]),
        ("build -nightly", vec!["b"]),
        ("\"build: \\\"main\\\"\"", vec!["b"]),
        ("c", vec!["c"]),
        ("error:\"no answer from 1.1.1.1:1 after 2 s\" level:any", vec!["a:x"]),
        ("is:open", vec!["b", "d"]),
        ("is:ended", vec!["a", "c"]),
        ("is:failed is:root", vec!["a"]),
        ("-is:root", vec!["a:x"]),
        ("is:root,failed", vec!["a", "b", "c", "d"]),
        ("is:root,failed level:any", vec!["a", "a:x", "b", "c", "d"]),
        ("under:a", vec!["a", "a:x"]),
        ("under:a own:failed", vec!["a:x"]),
        ("under:a,c", vec!["a", "a:x", "c"]),
        ("-under:a", vec!["b", "c", "d"]),
        ("id:a,a:x,d", vec!["a", "a:x", "d"]),
        ("id:a,a:x,d is:open", vec!["d"]),
        ("-id:a", vec!["b", "c", "d"]),
        ("from:1h", vec!["a", "b", "c", "d"]),
        ("to:1h", vec![]),
        ("from:2000-01-01T00:00:00Z to:2100-01-01T00:00:00Z tag:ci", vec!["a"]),
    ] {
        assert_eq!(matching_ids(&fleet, query).await, expected, "{query}");
        let by_one = ids(&fleet, &format!("q={}&limit=1", encoded(query))).await;
        assert_eq!(by_one, expected, "{query} in pages of one");
    }
}

#[tokio::test]
async fn parameters_and_query_find_the_same() {
    let fleet = fleet().await;
    some_tasks(&fleet).await;
    for (parameters, query) in [
        ("type=echo&state=failed", "type:echo state:failed"),
        ("level=any&state=running", "level:any state:running"),
        ("tag=ci&level=any", "tag:ci level:any"),
        ("creator=ada", "creator:ada"),
        ("name=Nightly", "name:Nightly"),
        ("name_like=build%24", "name_like:\"build$\""),
        ("level=any&error=error", "level:any error:error"),
        ("root=a", "under:a"),
        ("from=2000-01-01T00:00:00Z", "from:2000-01-01T00:00:00Z"),
    ] {
        let by_query: Vec<String> =
            all(&fleet, &format!("q={}", encoded(query))).await.into_iter().map(|task| task.id).collect();
        let by_parameters: Vec<String> = all(&fleet, parameters).await.into_iter().map(|task| task.id).collect();
        assert_eq!(by_query, by_parameters, "{query}");
        assert!(!by_query.is_empty(), "{query}");
    }
}

#[tokio::test]
async fn several_ids_are_read_at_once_and_missing_ones_are_named() {
    let fleet = fleet().await;
    some_tasks(&fleet).await;
    let page = page(&fleet, "id:b,nothing,a:x,a,b,a:none").await;
    let tasks: Vec<&str> = page.tasks.iter().map(|task| task.id.as_str()).collect();
    assert_eq!(tasks, ["b", "a:x", "a"], "newest first, each once");
    assert_eq!(page.missing, ["nothing", "a:none"]);
    assert_eq!((page.source, page.scanned, page.next), (Some(ListSource::Ids), None, None));
}

#[tokio::test]
async fn answer_names_its_source_and_the_total_that_counters_know() {
    let fleet = fleet().await;
    some_tasks(&fleet).await;
    for (query, source, total, scanned) in [
        ("level:any state:failed", ListSource::States, Some(2), None),
        ("level:any state:failed,running type:echo,resize", ListSource::States, Some(3), None),
        ("level:any type:echo", ListSource::Trees, Some(4), Some(5)),
        ("level:any type:echo state:queued,succeeded", ListSource::Trees, Some(1), Some(5)),
        ("state:failed", ListSource::States, None, Some(2)),
        ("level:any state:failed tag:ci", ListSource::States, None, Some(2)),
        ("level:any", ListSource::Trees, None, None),
        ("level:any state:failed from:1h", ListSource::States, None, None),
        (" ", ListSource::Roots, None, None),
        ("tag:ci", ListSource::Roots, None, Some(4)),
        ("under:a", ListSource::Tree, None, None),
        ("under:a own:failed", ListSource::Tree, None, Some(2)),
    ] {
        let page = page(&fleet, query).await;
        assert_eq!((page.source, page.total, page.scanned), (Some(source), total, scanned), "{query}");
        assert_eq!(page.scanned_to.is_some(), scanned.is_some(), "{query}");
    }
}

#[tokio::test]
async fn search_that_finds_no_root_counts_the_tasks_of_other_levels() {
    let fleet = fleet().await;
    some_tasks(&fleet).await;
    for (query, other_levels) in [
        ("name:unit", Some((1, true))),
        ("own:failed", Some((1, true))),
        ("type:resize,echo own:failed level:roots", Some((1, true))),
        ("tag:nothing", None),
        ("state:failed", None),
        ("type:resize state:failed", None),
        (" ", None),
    ] {
        let page = page(&fleet, query).await;
        assert_eq!(page.other_levels.map(|other| (other.tasks, other.exact)), other_levels, "{query}");
    }
}

#[tokio::test]
async fn mistake_is_marked_in_the_problem() {
    let fleet = fleet().await;
    let problem = fleet.problem(&format!("/v1/tasks?q={}", encoded("größe stat:failed"))).await;
    assert_eq!((problem.status, problem.code.as_str()), (400, "bad_parameter"));
    assert!(problem.detail.contains("query parameter `q`: `stat` is not a qualifier"), "{}", problem.detail);
    assert_eq!(problem.span.map(|span| (span.start, span.end)), Some((6, 10)));
    assert_eq!(problem.hint.as_deref(), Some("did you mean `state`?"));
    for (query, expected) in [
        ("q=a&type=echo", "query parameter `type`: it cannot be combined with `q`"),
        ("q=from:1h+to:2h", "it must not be later than `to`"),
        ("q=under:none", "there is no task `none`"),
    ] {
        let problem = fleet.problem(&format!("/v1/tasks?{query}")).await;
        assert!(problem.detail.contains(expected), "{query}: {}", problem.detail);
    }
}

#[tokio::test]
async fn unfinished_search_is_completed() {
    let fleet = fleet().await;
    some_tasks(&fleet).await;
    let texts = async |query: &str| {
        let found: Suggestions = fleet.get(&format!("/v1/suggestions?{query}")).await;
        found.suggestions.into_iter().map(|suggestion| (suggestion.text, suggestion.tasks)).collect::<Vec<_>>()
    };
    let text = |text: &str, tasks| (text.to_owned(), tasks);
    assert_eq!(texts("").await.len(), 10);
    assert_eq!(texts("q=sta").await, [text("state:", None)]);
    assert_eq!(texts("q=type:").await, [text("echo", Some(4)), text("resize", Some(1))]);
    assert_eq!(texts("q=state:fa").await, [text("failed", Some(2))]);
    assert_eq!(texts("q=is:o").await, [text("open", None)]);
    assert_eq!(
        texts("q=tag:").await,
        [text("cd", Some(1)), text("ci", Some(1)), text("slow", Some(1)), text("\"with space\"", Some(1))],
        "only those of root tasks"
    );
    assert_eq!(texts("q=creator:a").await, [text("ada", Some(1))]);
    assert_eq!(texts("q=worker:").await, [text("w-1", Some(2)), text("w-2", Some(1))]);
    assert_eq!(texts("q=schedule:").await, [text("nightly", Some(1))]);
    let found: Suggestions = fleet.get("/v1/suggestions?q=ta+state:failed&at=2").await;
    assert_eq!((found.replace.start, found.replace.end), (0, 2));
    assert_eq!(found.suggestions[0].text, "tag:");
}
