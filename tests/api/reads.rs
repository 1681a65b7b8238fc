//! Reads of single tasks and their consistency.

use kafleet::broker::{Broker, Partition, ProducerRecord};
use kafleet::config::ApiConfig;
use kafleet::documents::{History, LogDocument, Params, StateDocument, Status, TaskPage, TreeNode};
use kafleet::model::event::log_line::LogStream;
use kafleet::model::event::{Kind, Payload};
use kafleet::model::json::RawJson;
use kafleet::model::record::state::State;
use kafleet::model::task::Position;
use kafleet_testkit::faults::read_checkpoints;
use reqwest::Method;
use serde_json::json;

use crate::api::client::refusal;
use crate::api::fixture::{DEADLINE, eventually, fleet, unfolded};
use crate::api::logs::texts;

#[tokio::test]
async fn status_contains_all_fields() {
    let fleet = fleet().await;
    fleet.echo("r").await;
    for child in ["r:a", "r:b", "r:c"] {
        fleet.echo(child).await;
    }
    fleet.publish_event("r:a", Payload::Progress { output: RawJson::of(&json!({"done": 3})).ok() }, |_| {}).await;
    fleet.succeed("r", json!({"n": 3})).await;
    fleet.succeed("r:b", json!(null)).await;
    let last = fleet.fail("r:c", "the disk is full").await;
    let root: Status = fleet.get(&format!("/v1/tasks/r?after={last}")).await;
    assert_eq!((root.state, root.own_state), (State::WaitingForChildren, State::Succeeded));
    assert_eq!(
        (root.children.total, root.children.pending, root.children.successful, root.children.failed),
        (3, 1, 1, 1)
    );
    assert_eq!(root.children.by_state[&State::Failed], 1);
    assert_eq!((root.tree.total, root.tree.pending), (4, 2));
    assert_eq!((root.worker.as_deref(), root.attempt), (Some("w-1"), 1));
    assert_eq!(root.result.unwrap(), json!({"n": 3}));
    assert!(root.ended_at.is_none() && root.tree.started_at.is_some());
    let child: Status = fleet.get("/v1/tasks/r:c").await;
    assert_eq!((child.state, child.error.unwrap().message.as_str()), (State::Failed, "the disk is full"));
    let end = fleet.succeed("r:a", json!(1)).await;
    let state: StateDocument = fleet.get(&format!("/v1/tasks/r/state?after={end}")).await;
    assert_eq!(state.state, State::Failed);
    let root: Status = fleet.get("/v1/tasks/r").await;
    assert_eq!((root.tree.ended_by.as_deref(), root.tree.failed), (Some("r:a"), 2));
    assert!(root.tree.execution_ms.is_some() && root.ended_at.is_some());
}

#[tokio::test]
async fn position_of_a_response_is_already_visible() {
    let fleet = fleet().await;
    let status = fleet.echo("a").await;
    let path = format!("/v1/tasks/a?after={}", status.position);
    let again = fleet.request(Method::GET, &path).send().await.unwrap();
    assert_eq!(again.status(), 200, "the position is already projected");
}

#[tokio::test]
async fn read_waits_for_the_requested_position() {
    let fleet = unfolded(ApiConfig::default()).await;
    let made = fleet.create(json!({"type": "echo", "id": "a"})).await;
    let path = format!("/v1/tasks/a?after={}", made.position);
    let reads = fleet.faults.count(read_checkpoints);
    let late = async {
        eventually("the read has found the store behind", async || reads.hits() > 0).await;
        fleet.track();
    };
    let (status, ()) = tokio::join!(fleet.get::<Status>(&path), late);
    assert_eq!(status.state, State::Queued);
    let position: Position = made.position.parse().unwrap();
    let far = format!("/v1/tasks/a?after={}:{}", position.partition, position.offset + 100);
    let far = refusal(fleet.request(Method::GET, &far)).await;
    assert_eq!((far.status, far.code.as_str()), (503, "not_visible_yet"));
    assert!(far.detail.contains("100 behind"), "{}", far.detail);
}

#[tokio::test]
async fn not_found_is_reported_only_without_projection_lag() {
    let fleet = unfolded(ApiConfig::default()).await;
    assert_eq!(fleet.problem("/v1/tasks/a").await.code, "not_found", "an empty log has no tasks");
    fleet.create(json!({"type": "echo", "id": "a"})).await;
    let answer = refusal(fleet.request(Method::GET, "/v1/tasks/a")).await;
    assert_eq!((answer.status, answer.code.as_str()), (503, "not_visible_yet"));
    assert!(answer.detail.contains("1 behind"), "{}", answer.detail);
    fleet.track();
    fleet.folded().await;
    assert_eq!(fleet.get::<Status>("/v1/tasks/a").await.state, State::Queued);
    let same_partition = (0..).map(|n| format!("no{n}")).find(|id| {
        fleet.publisher.topology.partition_of(&id.parse().unwrap())
            == fleet.publisher.topology.partition_of(&"a".parse().unwrap())
    });
    assert_eq!(fleet.problem(&format!("/v1/tasks/{}", same_partition.unwrap())).await.code, "not_found");
}

#[tokio::test]
async fn marker_at_the_end_of_the_log_is_not_lag() {
    let fleet = fleet().await;
    let made = fleet.echo("a").await;
    let position: Position = made.position.parse().unwrap();
    let mut atomic = fleet.log.transactional_producer("test").unwrap();
    let event = kafleet::model::event::Event::new(Kind::Warned, "a".parse().unwrap(), 1, 0);
    let mut value = Vec::new();
    event.encode(&mut value).unwrap();
    let topic = fleet.names.events();
    let record = ProducerRecord {
        topic: &topic,
        partition: Some(position.partition),
        key: Some(b"a"),
        value: Some(&value),
        headers: &[],
    };
    let sent = atomic.send_all(&[record], DEADLINE).unwrap()[0];
    let end = fleet.log.watermarks(&Partition::new(topic.as_str(), sent.0), DEADLINE).unwrap().high;
    assert!(end > sent.1 + 1, "the transaction marker occupies an offset");
    fleet.log.hold_transactions("test", true);
    atomic.send_all(&[record; 10], DEADLINE).unwrap_err();
    assert!(fleet.log.end_transaction("test", false), "aborted records occupy offsets");
    let _: Status = fleet.get(&format!("/v1/tasks/a?after={}:{}", sent.0, sent.1)).await;
    let same = (0..).map(|n| format!("no{n}"));
    let unknown = same
        .take(1_000)
        .find(|id| fleet.publisher.topology.partition_of(&id.parse().unwrap()) as i32 == sent.0)
        .unwrap();
    assert_eq!(fleet.problem(&format!("/v1/tasks/{unknown}")).await.code, "not_found");
}

#[tokio::test]
async fn history_lists_events_and_marks_ignored_ones() {
    let fleet = fleet().await;
    fleet.echo("a").await;
    fleet.publish_event("a", Kind::Started, |event| (event.attempt, event.worker) = (1, Some("w-9".into()))).await;
    fleet.succeed("a", json!(1)).await;
    let last = fleet.fail("a", "too late").await;
    let history: History = fleet.get(&format!("/v1/tasks/a/history?after={last}")).await;
    let kinds: Vec<(&str, bool)> = history.events.iter().map(|event| (event.kind.as_str(), event.ignored)).collect();
    assert_eq!(kinds, [("submitted", false), ("started", false), ("succeeded", false), ("failed", true)]);
    assert_eq!((history.duplicates, history.dropped), (1, 0));
    assert_eq!(history.events[3].position, last.to_string());
    assert_eq!(
        (history.events[1].worker.as_deref(), history.events[3].message.as_deref()),
        (Some("w-9"), Some("too late"))
    );
}

#[tokio::test]
async fn log_lines_are_paged() {
    let fleet = fleet().await;
    fleet.echo("a").await;
    let lines: Vec<String> = (0..10).map(|n| format!("line {n}")).collect();
    let streams = vec![None, Some(LogStream::Stderr)];
    let last = fleet.publish_event("a", Payload::Log { lines, streams, dropped: 2 }, |_| {}).await;
    let page: LogDocument = fleet.get(&format!("/v1/tasks/a/log?from=4&limit=3&after={last}")).await;
    assert_eq!((page.from, texts(&page), page.total, page.dropped), (4, vec!["line 4", "line 5", "line 6"], 10, 2));
    let first: LogDocument = fleet.get("/v1/tasks/a/log?limit=3").await;
    let streams: Vec<Option<LogStream>> = first.lines.iter().map(|line| line.stream).collect();
    assert_eq!(streams, [None, Some(LogStream::Stderr), None]);
    let rest: LogDocument = fleet.get("/v1/tasks/a/log?from=10").await;
    assert_eq!((rest.lines.len(), rest.total), (0, 10));
}

#[tokio::test]
async fn children_are_paged_oldest_first() {
    let fleet = fleet().await;
    fleet.echo("r").await;
    let items: Vec<_> = (0..25).map(|n| json!({"type": "echo", "id": format!("c{n}"), "parent": "r"})).collect();
    let (_, outcome) = fleet.post("/v1/batches", json!(items)).await;
    assert_eq!(outcome["accepted"], 25);
    fleet.folded().await;
    let (mut seen, mut next, mut pages) = (Vec::new(), None::<String>, 0);
    loop {
        let cursor = next.map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
        let page: TaskPage = fleet.get(&format!("/v1/tasks/r/children?limit=10{cursor}")).await;
        seen.extend(page.tasks.iter().map(|task| (task.seen_at.clone(), task.id.clone())));
        pages += 1;
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    assert_eq!((seen.len(), pages), (25, 3));
    assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "in order, without duplicates: {seen:?}");
}

#[tokio::test]
async fn tree_is_limited_by_depth_and_size() {
    let fleet = fleet().await;
    for id in ["r", "r:a", "r:b", "r:a:x", "r:a:y", "r:a:x:deep"] {
        fleet.echo(id).await;
    }
    let shape = |tree: &TreeNode| -> String {
        fn write(node: &TreeNode, out: &mut String) {
            out.push_str(node.id.rsplit(':').next().unwrap());
            if !node.below.is_empty() {
                out.push('(');
                node.below.iter().for_each(|child| write(child, out));
                out.push(')');
            }
            if node.omitted > 0 {
                out.push_str(&format!("+{}", node.omitted));
            }
            out.push(' ');
        }
        let mut text = String::new();
        write(tree, &mut text);
        text.trim_end().replace(" )", ")")
    };
    let whole: TreeNode = fleet.get("/v1/tasks/r/tree").await;
    assert_eq!(shape(&whole), "r(a(x(deep) y) b)");
    assert_eq!((whole.tree.total, whole.children.total), (6, 2));
    for (query, answer) in [
        ("depth=0", "r+2"),
        ("depth=1", "r(a+2 b)"),
        ("depth=2", "r(a(x+1 y) b)"),
        ("depth=64", "r(a(x(deep) y) b)"),
        ("limit=1", "r(a+2)+1"),
        ("limit=2", "r(a+2 b)"),
        ("limit=3", "r(a(x+1)+1 b)"),
        ("limit=5", "r(a(x(deep) y) b)"),
    ] {
        let tree: TreeNode = fleet.get(&format!("/v1/tasks/r/tree?{query}")).await;
        assert_eq!(shape(&tree), answer, "{query}");
    }
    let sub: TreeNode = fleet.get("/v1/tasks/r:a/tree").await;
    assert_eq!(shape(&sub), "a(x(deep) y)");
}

#[tokio::test]
async fn params_are_read_while_kafka_retains_them() {
    let fleet = fleet().await;
    let made = fleet.create(json!({"type": "resize", "id": "a", "params": {"url": "u", "width": 3}})).await;
    let status: Status = fleet.get(&format!("/v1/tasks/a?after={}", made.position)).await;
    let params: Params = fleet.get("/v1/tasks/a/params").await;
    assert_eq!(params.params, json!({"url": "u", "width": 3}));
    let position: Position = status.record.unwrap().parse().unwrap();
    let topic = Partition::new(fleet.names.tasks("resize"), position.partition);
    fleet.log.truncate_before(&topic, position.offset + 1).unwrap();
    let answer = fleet.problem("/v1/tasks/a/params").await;
    assert_eq!((answer.status, answer.code.as_str()), (410, "params_gone"));
}

#[tokio::test]
async fn params_of_foreign_producers_are_read() {
    let fleet = fleet().await;
    let producer = fleet.publisher.producer();
    let topic = fleet.names.tasks("echo");
    let send = async |value: &str, headers: &[(&str, &[u8])]| {
        let record =
            ProducerRecord { topic: &topic, partition: Some(0), key: None, value: Some(value.as_bytes()), headers };
        producer.deliver(record, DEADLINE).await.unwrap()
    };
    let structured = r#"{"specversion":"1.0","id":"ce","source":"s","type":"echo","data":{"inside":1}}"#;
    let position = send(structured, &[("content-type", b"application/cloudevents+json")]).await;
    fleet.announce("ce", "echo", Some(position)).await;
    let position = send("not json", &[("ce_id", b"bad")]).await;
    fleet.announce("bad", "echo", Some(position)).await;
    let position = send("1", &[("ce_id", b"somebody-else")]).await;
    fleet.announce("moved", "echo", Some(position)).await;
    fleet.publish_event("lone:child", Kind::Started, |_| {}).await;
    fleet.folded().await;
    let params: Params = fleet.get("/v1/tasks/ce/params").await;
    assert_eq!(params.params, json!({"inside": 1}));
    let unreadable = fleet.problem("/v1/tasks/bad/params").await;
    assert_eq!((unreadable.status, unreadable.code.as_str()), (409, "params_unreadable"));
    assert_eq!(fleet.problem("/v1/tasks/moved/params").await.code, "params_gone", "the offset holds another record");
    assert_eq!(fleet.problem("/v1/tasks/lone/params").await.code, "no_params", "the task was never published");
}
