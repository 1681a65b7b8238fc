//! The example `digest_tree` on thousands of real files, with real Kafka and Redis and two worker processes, verified
//! with `sha256sum`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kafleet::model::record::TaskRecord;
use kafleet::model::record::rollup::children_of;
use kafleet::model::record::state::State;
use kafleet::model::task::id::TaskId;
use kafleet::model::task::partition::partition_of;
use kafleet::store::Store;
use kafleet_testkit::processes::{Process, ProcessFleet};
use kafleet_testkit::wait::eventually;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const MIN_FILES: u64 = 5_000;
const ROOT: &str = "job";

/// Contents of a directory as read by the test.
#[derive(Default)]
struct Tree {
    files: Vec<PathBuf>,
    directories: u64,
    bytes: u64,
}

/// Reads a directory recursively without following symbolic links. `None` if it cannot be read or named.
fn read_tree(directory: &Path) -> Option<Tree> {
    let mut tree = Tree { directories: 1, ..Tree::default() };
    for entry in fs::read_dir(directory).ok()? {
        let entry = entry.ok()?;
        let (path, kind) = (entry.path(), entry.file_type().ok()?);
        path.to_str()?;
        if kind.is_dir() {
            let below = read_tree(&path)?;
            tree.files.extend(below.files);
            tree.directories += below.directories;
            tree.bytes += below.bytes;
        } else if kind.is_file() {
            tree.bytes += entry.metadata().ok()?.len();
            tree.files.push(path);
        }
    }
    Some(tree)
}

/// Chooses the smallest directory with enough files, in the Rust toolchain or the system's shared data.
fn choose() -> (PathBuf, Tree) {
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output().unwrap();
    let sysroot = PathBuf::from(String::from_utf8(sysroot.stdout).unwrap().trim());
    let mut best: Option<(PathBuf, Tree)> = None;
    let mut ahead = vec![sysroot, PathBuf::from("/usr/share")];
    while let Some(directory) = ahead.pop() {
        let tree = read_tree(&directory);
        if tree.as_ref().is_some_and(|tree| (tree.files.len() as u64) < MIN_FILES) {
            continue;
        }
        let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
        ahead.extend(
            entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()),
        );
        if let Some(tree) = tree
            && best.as_ref().is_none_or(|(_, least)| tree.bytes < least.bytes)
        {
            best = Some((directory, tree));
        }
    }
    best.expect("a directory with enough files")
}

/// Returns the output of `sha256sum`.
fn sha256sum(files: &[PathBuf]) -> BTreeMap<PathBuf, String> {
    let mut sums = BTreeMap::new();
    for chunk in files.chunks(500) {
        let output = Command::new("sha256sum").arg("--zero").args(chunk).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for line in output.stdout.split(|byte| *byte == 0).filter(|line| !line.is_empty()) {
            let (sum, path) = std::str::from_utf8(line).unwrap().split_once("  ").unwrap();
            sums.insert(PathBuf::from(path), sum.to_owned());
        }
    }
    sums
}

/// Returns the id that the example assigns to a file: its path; names that are invalid or too long in an id are
/// replaced by the start of their hash.
fn id_of(base: &Path, file: &Path) -> TaskId {
    let segments = file.strip_prefix(base).unwrap().iter().map(|name| {
        let name = name.to_str().unwrap();
        let fits = |c: char| c.is_ascii_alphanumeric() || "._~@-".contains(c);
        let hash: String = Sha256::digest(name.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        if name.len() <= 40 && name.chars().all(fits) { name.to_owned() } else { format!("~{}", &hash[..16]) }
    });
    let id = segments.fold(ROOT.to_owned(), |id, segment| format!("{id}:{segment}"));
    TaskId::parse(&id).unwrap()
}

/// Builds an example with this test's profile and returns the binary.
pub fn build_example(name: &str) -> PathBuf {
    // …/<target>/<profile>/deps/<this test>
    let executable = std::env::current_exe().unwrap();
    let profile = executable.ancestors().nth(2).unwrap();
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--example", name, "--target-dir"]).arg(profile.parent().unwrap());
    build.current_dir(env!("CARGO_MANIFEST_DIR"));
    match profile.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => {}
        Some(name) => drop(build.args(["--profile", name])),
    }
    assert!(build.stdin(Stdio::null()).status().unwrap().success(), "the example builds");
    profile.join("examples").join(name)
}

/// Waits until a role's own endpoint reports that it has its partitions.
async fn ready(address: &str, process: &mut Process) {
    let http = kafleet_testkit::http::client();
    eventually("the role is ready", async || {
        process.assert_running();
        let answer = http.get(format!("http://{address}/readyz")).send().await;
        if answer.is_ok_and(|answer| answer.status().is_success()) { Ok(()) } else { Err(process.log_tail()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn digests_match_sha256sum() {
    let Some((brokers, _)) = kafleet_testkit::services::kafka_and_redis() else { return };
    let (base, tree) = choose();
    eprintln!("{}: {} files, {} directories, {} bytes", base.display(), tree.files.len(), tree.directories, tree.bytes);
    let tail: String = std::iter::repeat_with(fastrand::alphanumeric).take(8).collect();
    let fleet = ProcessFleet::new(&build_example("digest_tree"), brokers, format!("d-{}", tail.to_lowercase()), "");
    let mut running = Vec::new();
    for role in ["worker", "worker", "tracker"] {
        let address = format!("127.0.0.1:{}", kafleet_testkit::redis::free_port());
        let mut process = fleet.start_with(role, &["--ops-listen", &address]);
        ready(&address, &mut process).await;
        running.push(process);
    }
    running.push(fleet.start("api"));
    let params = json!({ "path": base }).to_string();
    let status = submit(&fleet, &params, &mut running).await;
    let all = tree.files.len() as u64 + tree.directories;
    assert_eq!(status["state"], "succeeded", "{status}");
    assert_eq!((&status["tree"]["total"], &status["tree"]["successful"]), (&json!(all), &json!(all)));
    let store = fleet.redis.store(&fleet.prefix);
    let nodes = nodes_of(&store, fleet.events_partitions, &base, &tree.files).await;
    let workers: BTreeSet<_> = nodes.values().filter_map(|node| node.worker.clone()).collect();
    assert_eq!(workers.len(), 2, "both workers ran tasks");
    let sums = sha256sum(&tree.files);
    assert_eq!(sums.len(), tree.files.len());
    for (file, sum) in sums {
        let (node, bytes) = (&nodes[&file], fs::metadata(&file).unwrap().len());
        assert_eq!(node.state, State::Succeeded);
        let digested = node.outcome.output.as_ref().map(|output| output.value().unwrap());
        assert_eq!(digested, Some(json!({"sha256": sum, "bytes": bytes})), "{}", file.display());
    }
    let root = store
        .task_records(partition_of(ROOT.as_bytes(), fleet.events_partitions), &[TaskId::parse(ROOT).unwrap()])
        .await;
    let (_, _, below) = children_of(&root.unwrap().remove(0).unwrap().tree.below);
    assert_eq!((below.total(), below.get(State::Succeeded)), (all - 1, all - 1));
    counts_agree(&store, &fleet, &tree).await;
    running.iter_mut().for_each(Process::assert_running);
}

/// Submits the task as documented, once the API is ready, and waits for its end.
async fn submit(fleet: &ProcessFleet, params: &str, running: &mut [Process]) -> Value {
    ready(fleet.api.strip_prefix("http://").unwrap(), running.last_mut().unwrap()).await;
    let output = fleet.run(&["submit", "digest-tree", params, "--id", ROOT, "--wait=500s", "-o", "json"]);
    serde_json::from_str(&output).unwrap()
}

async fn nodes_of(store: &dyn Store, partitions: u32, base: &Path, files: &[PathBuf]) -> BTreeMap<PathBuf, TaskRecord> {
    let (partition, mut nodes) = (partition_of(ROOT.as_bytes(), partitions), BTreeMap::new());
    for chunk in files.chunks(1_000) {
        let ids: Vec<TaskId> = chunk.iter().map(|file| id_of(base, file)).collect();
        for (file, node) in chunk.iter().zip(store.task_records(partition, &ids).await.unwrap()) {
            nodes.insert(file.clone(), node.unwrap_or_else(|| panic!("no record of {}", file.display())));
        }
    }
    nodes
}

async fn counts_agree(store: &dyn Store, fleet: &ProcessFleet, tree: &Tree) {
    let counts = store.counts(&(0..fleet.events_partitions).collect::<Vec<_>>()).await.unwrap();
    let counts: Vec<_> = counts.iter().map(|count| (&*count.task_type, count.state, count.count)).collect();
    let (files, directories) = (tree.files.len() as u64, tree.directories);
    let done = State::Succeeded;
    assert_eq!(counts, [("digest-file", done, files), ("digest-tree", done, directories)]);
}
