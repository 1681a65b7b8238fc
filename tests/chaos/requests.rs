//! Requests from many clients: trees are created in batches, atomic or not, cancelled, retried, redriven, renamed and
//! paused; types are limited, and the service that some tasks call goes away and comes back. A request is not repeated
//! until it succeeds; every response is recorded, to be compared with the final state.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use kafleet::runtime::now_ms;
use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::apis::Apis;
use crate::fleet::TASK_PARTITIONS;

const BATCHES: &str = "/v1/batches";
const CLIENTS: u64 = 24;
/// Average pause between two trees of a client, in ms.
const PACE_MS: u64 = 2_000;
/// Maximum number of requests for a batch with an unknown outcome.
const REPEATS: usize = 4;
const TYPES: [&str; 3] = ["work", "keyed", "remote"];
/// Maximum time for which tasks wait.
const WAITS_MS: i64 = 3_000;

/// Outcomes of a task over all batches that contain it.
#[derive(Clone, Debug, Default)]
pub struct Item {
    pub accepted: u32,
    pub refused: u32,
    pub unknown: u32,
    /// Problem codes of rejections and unknown outcomes.
    pub codes: Vec<String>,
}

/// All responses.
#[derive(Default)]
pub struct Answers {
    pub items: Mutex<BTreeMap<String, Item>>,
    /// Accepted cancels: the task, and the reported position of the request.
    pub cancels: Mutex<Vec<(String, String)>>,
    /// Accepted retries: the task, and its new run.
    pub retries: Mutex<Vec<(String, u64)>>,
    /// Accepted changes: the task and its new name.
    pub names: Mutex<Vec<(String, String)>>,
    /// Accepted redrives, by dead letter.
    pub redrives: Mutex<BTreeMap<String, u32>>,
    /// Params of created tasks.
    pub params: Mutex<BTreeMap<String, Value>>,
    pub wrong: Mutex<Vec<String>>,
    pub calls: AtomicUsize,
    pub unanswered: AtomicUsize,
}

pub struct Requests {
    pub apis: Arc<Apis>,
    pub answers: Answers,
    /// Exists while the service of remote tasks is away.
    outage: PathBuf,
    is_over: AtomicBool,
}

/// Task of a tree to be created.
struct Twig {
    id: String,
    body: Value,
}

impl Requests {
    pub fn new(apis: Arc<Apis>, outage: PathBuf) -> Arc<Self> {
        Arc::new(Self { apis, answers: Answers::default(), outage, is_over: AtomicBool::new(false) })
    }

    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Runs all clients until the end is requested.
    pub async fn clients(self: Arc<Self>, mut rng: fastrand::Rng) {
        let mut all = tokio::task::JoinSet::new();
        for number in 0..CLIENTS {
            all.spawn(self.clone().client(number, rng.fork()));
        }
        for _ in 0..2 {
            all.spawn(self.clone().redriver(rng.fork()));
        }
        all.spawn(self.clone().pauser(rng.fork()));
        all.spawn(self.clone().limiter(rng.fork()));
        all.spawn(self.clone().outages(rng.fork()));
        while let Some(ended) = all.join_next().await {
            ended.unwrap();
        }
    }

    /// Sends one request. Returns `None` without a response.
    async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Option<(u16, Value)> {
        self.answers.calls.fetch_add(1, Ordering::Relaxed);
        let answer = self.apis.once(method.clone(), path, body).await;
        match &answer {
            None => drop(self.answers.unanswered.fetch_add(1, Ordering::Relaxed)),
            Some((500, body)) => self.answers.wrong.lock().push(format!("{method} {path}: 500: {body}")),
            Some(_) => {}
        }
        answer
    }

    async fn client(self: Arc<Self>, number: u64, mut rng: fastrand::Rng) {
        let mut trees = 0;
        while !self.is_over() {
            trees += 1;
            let tree = tree(&format!("o{number}-{trees}"), &mut rng);
            let atomic = rng.bool();
            self.create(&tree, atomic, rng.bool()).await;
            for _ in 0..rng.usize(0..4) {
                sleep(Duration::from_millis(rng.u64(20..1_500))).await;
                let id = &tree[rng.usize(..tree.len())].id;
                self.order(id, &mut rng).await;
            }
            sleep(Duration::from_millis(rng.u64(PACE_MS / 2..PACE_MS * 3 / 2))).await;
        }
    }

    /// Creates a tree. With `repeat` the request is sent again with the same ids, and more often if its outcome is unknown.
    async fn create(&self, tree: &[Twig], atomic: bool, repeat: bool) {
        let params = tree.iter().map(|twig| (twig.id.clone(), twig.body["params"].clone()));
        self.answers.params.lock().extend(params);
        let items: Vec<&Value> = tree.iter().map(|twig| &twig.body).collect();
        let path = if atomic { format!("{BATCHES}?atomic=true") } else { BATCHES.to_owned() };
        for _ in 0..if repeat { REPEATS } else { 1 } {
            let answer = self.call(Method::POST, &path, Some(&json!(items))).await;
            if !self.note(tree, answer) {
                break;
            }
            sleep(Duration::from_millis(500)).await;
        }
        // The same request again creates nothing, whatever has become of the store.
        if repeat {
            let answer = self.call(Method::POST, &path, Some(&json!(items))).await;
            self.note(tree, answer);
        }
    }

    /// Records a response. Returns whether any outcome is unknown.
    fn note(&self, tree: &[Twig], answer: Option<(u16, Value)>) -> bool {
        let mut items = self.answers.items.lock();
        let mut unknown = false;
        for (n, twig) in tree.iter().enumerate() {
            let outcome = match &answer {
                None => Some("no answer"),
                Some((200, body)) => body["items"][n]["problem"]["code"].as_str(),
                Some((_, body)) => Some(body["code"].as_str().unwrap_or("no code")),
            };
            let item = items.entry(twig.id.clone()).or_default();
            match outcome {
                None => item.accepted += 1,
                Some(code) => {
                    let is_unknown =
                        matches!(code, "no answer" | "no code" | "outcome_unknown" | "not_announced" | "internal");
                    *(if is_unknown { &mut item.unknown } else { &mut item.refused }) += 1;
                    unknown |= is_unknown;
                    item.codes.push(code.to_owned());
                }
            }
        }
        unknown
    }

    /// Sends a random request about a task.
    async fn order(&self, id: &str, rng: &mut fastrand::Rng) {
        match rng.u8(..8) {
            0..=3 => self.cancel(id).await,
            4 | 5 => self.retry(id, rng.bool()).await,
            _ => self.change(id, rng).await,
        }
    }

    pub async fn cancel(&self, id: &str) {
        let path = format!("/v1/tasks/{id}/cancel");
        if let Some((202, body)) = self.call(Method::POST, &path, Some(&json!({"reason": "orders"}))).await {
            self.answers.cancels.lock().push((id.to_owned(), body["position"].as_str().unwrap_or_default().to_owned()));
        }
    }

    async fn retry(&self, id: &str, only_failed: bool) {
        let path = format!("/v1/tasks/{id}/retry");
        if let Some((202, body)) = self.call(Method::POST, &path, Some(&json!({"only_failed": only_failed}))).await {
            self.answers.retries.lock().push((id.to_owned(), body["run"].as_u64().unwrap_or_default()));
        }
    }

    async fn change(&self, id: &str, rng: &mut fastrand::Rng) {
        let name = format!("n{}", rng.u64(..));
        if let Some((200, _)) = self.call(Method::PATCH, &format!("/v1/tasks/{id}"), Some(&json!({"name": name}))).await
        {
            self.answers.names.lock().push((id.to_owned(), name));
        }
    }

    /// Redrives random dead letters. Two of these compete for the same ones.
    async fn redriver(self: Arc<Self>, mut rng: fastrand::Rng) {
        while !self.is_over() {
            sleep(Duration::from_millis(rng.u64(300..1_500))).await;
            let Some((200, page)) = self.call(Method::GET, "/v1/dead-letters?limit=10", None).await else { continue };
            for letter in page["letters"].as_array().into_iter().flatten() {
                let Some(letter) = letter["id"].as_str().filter(|_| rng.bool()) else { continue };
                if let Some((200, _)) =
                    self.call(Method::POST, &format!("/v1/dead-letters/{letter}/redrive"), None).await
                {
                    *self.answers.redrives.lock().entry(letter.to_owned()).or_default() += 1;
                }
            }
        }
    }

    async fn pauser(self: Arc<Self>, mut rng: fastrand::Rng) {
        while !self.is_over() {
            let name = TYPES[rng.usize(..TYPES.len())];
            self.call(Method::POST, &format!("/v1/types/{name}/pause"), None).await;
            sleep(Duration::from_millis(rng.u64(200..2_500))).await;
            self.call(Method::POST, &format!("/v1/types/{name}/resume"), None).await;
            sleep(Duration::from_millis(rng.u64(2_000..8_000))).await;
        }
    }

    /// Changes the limits of types.
    async fn limiter(self: Arc<Self>, mut rng: fastrand::Rng) {
        while !self.is_over() {
            let name = TYPES[rng.usize(..TYPES.len())];
            let limits = match rng.u8(..3) {
                0 => json!({}),
                1 => json!({"slots": rng.u32(1..8)}),
                _ => json!({"slots": rng.u32(1..40), "max_concurrency": rng.u32(TASK_PARTITIONS..TASK_PARTITIONS * 3)}),
            };
            self.call(Method::PUT, &format!("/v1/types/{name}/limits"), Some(&limits)).await;
            sleep(Duration::from_millis(rng.u64(1_000..5_000))).await;
        }
    }

    /// Takes the service of remote tasks away, and brings it back.
    async fn outages(self: Arc<Self>, mut rng: fastrand::Rng) {
        while !self.is_over() {
            sleep(Duration::from_millis(rng.u64(1_000..12_000))).await;
            std::fs::write(&self.outage, "").unwrap();
            sleep(Duration::from_millis(rng.u64(500..8_000))).await;
            std::fs::remove_file(&self.outage).unwrap();
        }
    }

    /// Resumes all types and resets their limits, so that all tasks can end.
    pub async fn reset(&self, until: Instant) {
        for name in TYPES {
            let resumed = self.apis.call(Method::POST, &format!("/v1/types/{name}/resume"), None, until).await;
            let limits = format!("/v1/types/{name}/limits");
            let reset = self.apis.call(Method::PUT, &limits, Some(&json!({})), until).await;
            self.answers.wrong.lock().extend([resumed, reset].into_iter().filter_map(Result::err));
        }
    }
}

/// Creates a root with a few tasks below it; some never end by themselves.
fn tree(root: &str, rng: &mut fastrand::Rng) -> Vec<Twig> {
    let mut body = json!({"type": TYPES[rng.usize(..TYPES.len())], "id": root, "params": work(rng), "fail_fast": rng.u8(..3) == 0});
    if rng.u8(..4) == 0 {
        body["then"] = json!([{"type": "work", "params": {"outcome": "succeed"}, "on": "ended"}]);
    }
    let mut tree = vec![Twig { id: root.to_owned(), body }];
    for n in 0..rng.usize(2..7) {
        let parent = tree[rng.usize(..tree.len())].id.clone();
        let body = json!({"type": TYPES[rng.usize(..TYPES.len())], "id": format!("k{n}"), "parent": parent, "params": work(rng)});
        tree.push(Twig { id: format!("{parent}:k{n}"), body });
    }
    tree
}

fn work(rng: &mut fastrand::Rng) -> Value {
    let outcome =
        ["succeed", "succeed", "succeed", "succeed", "succeed", "fail", "dead_letter", "fail_first_run", "hang"]
            [rng.usize(..9)];
    let failures = if rng.u8(..6) == 0 { rng.u32(1..3) } else { 0 };
    let ready_at_ms = if rng.u8(..6) == 0 { now_ms() + rng.i64(0..WAITS_MS) } else { 0 };
    json!({"outcome": outcome, "duration_ms": rng.u64(..300), "failures": failures, "ready_at_ms": ready_at_ms})
}
