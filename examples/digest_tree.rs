//! Application with its own task types: SHA-256 digests of all files under a directory, as a tree of tasks.
//!
//! ```sh
//! cargo run --example digest_tree -- dev
//! curl -s localhost:8080/v1/tasks -H 'content-type: application/json' \
//!      -d '{"type": "digest-tree", "id": "usr-share", "params": {"path": "/usr/share"}}'
//! curl -s localhost:8080/v1/tasks/usr-share          # `tree` counts all files and directories
//! ```
//!
//! A directory spawns a child for each of its entries; it is `succeeded` when all descendants are, and `failed` if any
//! file could not be read. Ids are derived from names, so that running a directory again under the same id is the same
//! tree.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use kafleet::handlers::{Child, Context, Failure, Task, TaskResult};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

/// Bytes per read.
const CHUNK_BYTES: usize = 128 * 1024;
/// Bytes between progress reports.
const PROGRESS_BYTES: u64 = 64 << 20;
/// Maximum length of a name in an id, so that deep paths usually fit into the 512 bytes of an id.
const MAX_NAME_CHARS: usize = 40;

/// Digests everything under a directory.
#[derive(Serialize, Deserialize, JsonSchema)]
struct DigestTree {
    path: PathBuf,
}

/// Number of entries of a directory.
#[derive(Serialize, JsonSchema)]
struct DirectoryCounts {
    directories: usize,
    files: usize,
    /// Symbolic links, sockets, pipes and devices.
    skipped: usize,
}

impl Task for DigestTree {
    const TYPE: &'static str = "digest-tree";
    type Output = DirectoryCounts;

    async fn run(self, cx: Context) -> TaskResult<DirectoryCounts> {
        let inner = cx.clone();
        cx.blocking(move || list(&self.path, &inner)).await
    }
}

fn list(directory: &Path, cx: &Context) -> TaskResult<DirectoryCounts> {
    let mut listed = DirectoryCounts { directories: 0, files: 0, skipped: 0 };
    for entry in fs::read_dir(directory).map_err(|error| unreadable(directory, &error))? {
        cx.check()?;
        let entry = entry.map_err(|error| unreadable(directory, &error))?;
        let path = entry.path();
        if path.to_str().is_none() {
            return Err(Failure::fail(format!(
                "`{}` has a name that is not UTF-8, which params cannot carry",
                path.display()
            )));
        }
        // Symbolic links are not followed, so that there are no cycles.
        let kind = entry.file_type().map_err(|error| unreadable(&path, &error))?;
        let child = if kind.is_dir() {
            listed.directories += 1;
            Child::of(&DigestTree { path: path.clone() })
        } else if kind.is_file() {
            listed.files += 1;
            Child::of(&DigestFile { path: path.clone() })
        } else {
            listed.skipped += 1;
            continue;
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        cx.spawn_child(child.id(segment(&name)).name(name.chars().take(200).collect::<String>()));
    }
    Ok(listed)
}

/// Returns the name if it is valid in an id, otherwise a hash of it.
fn segment(name: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '~' | '@' | '-');
    if name.len() <= MAX_NAME_CHARS && name.chars().all(fits) {
        return name.to_owned();
    }
    format!("~{}", &hex(&Sha256::digest(name.as_bytes()))[..16])
}

/// Digests one file.
#[derive(Serialize, Deserialize, JsonSchema)]
struct DigestFile {
    path: PathBuf,
}

#[derive(Serialize, JsonSchema)]
struct FileDigest {
    sha256: String,
    bytes: u64,
}

impl Task for DigestFile {
    const TYPE: &'static str = "digest-file";
    type Output = FileDigest;

    async fn run(self, cx: Context) -> TaskResult<FileDigest> {
        let inner = cx.clone();
        cx.blocking(move || digest(&self.path, &inner)).await
    }
}

fn digest(path: &Path, cx: &Context) -> TaskResult<FileDigest> {
    let mut file = File::open(path).map_err(|error| unreadable(path, &error))?;
    let mut sha = Sha256::new();
    let mut bytes = 0;
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        cx.check()?;
        let read = file.read(&mut chunk).map_err(|error| unreadable(path, &error))?;
        if read == 0 {
            return Ok(FileDigest { sha256: hex(&sha.finalize()), bytes });
        }
        sha.update(&chunk[..read]);
        bytes += read as u64;
        if bytes % PROGRESS_BYTES < read as u64 {
            cx.progress(json!({"bytes": bytes}));
        }
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    Failure::fail(format!("`{}` cannot be read: {error}", path.display()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn main() -> ExitCode {
    kafleet::app().task::<DigestTree>().task::<DigestFile>().main()
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use kafleet::handlers::testing::TestRun;

    use super::*;

    #[tokio::test]
    async fn directory_spawns_its_entries_under_readable_ids() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join("a.txt"), "abc").unwrap();
        fs::write(dir.path().join("a b"), "").unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("cycle")).unwrap();
        let outcome = TestRun::new().run(DigestTree { path: dir.path().into() }).await;
        assert_eq!(outcome.output(), json!({"directories": 1, "files": 2, "skipped": 1}));
        let mut children: Vec<_> =
            outcome.children.iter().map(|c| (c.segment.clone().unwrap(), c.task_type.to_string())).collect();
        children.sort();
        let named = |id: &str, kind: &str| (id.to_owned(), kind.to_owned());
        assert_eq!(children[..2], [named("a.txt", "digest-file"), named("sub", "digest-tree")]);
        assert!(children[2].0.starts_with('~') && children[2].0.len() == 17, "{children:?}");
    }

    #[tokio::test]
    async fn file_is_digested() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "abc").unwrap();
        let outcome = TestRun::new().run(DigestFile { path: file.path().into() }).await;
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(outcome.output(), json!({"sha256": sha256, "bytes": 3}));
    }

    #[tokio::test]
    async fn unreadable_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        for outcome in [
            TestRun::new().run(DigestFile { path: "/no/such/file".into() }).await,
            TestRun::new().run(DigestTree { path: "/no/such/file".into() }).await,
        ] {
            assert!(outcome.failure().message.starts_with("`/no/such/file` cannot be read: "), "{}", outcome.failure());
        }
        fs::write(dir.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9")), "").unwrap();
        let outcome = TestRun::new().run(DigestTree { path: dir.path().into() }).await;
        assert!(
            outcome.failure().message.contains("/caf\u{fffd}` has a name that is not UTF-8"),
            "{}",
            outcome.failure()
        );
    }
}
