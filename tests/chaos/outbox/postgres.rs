//! Postgres of its own that can be stopped without a checkpoint, as in a crash, and started again.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use kafleet::outbox::postgres::PostgresOutbox;

use crate::process::{Process, free_ports};
use crate::wait_until;

const READY_DEADLINE: Duration = Duration::from_secs(60);

pub struct Postgres {
    pub server: Process,
    pub url: String,
    data: tempfile::TempDir,
}

impl Postgres {
    /// Creates a database and starts its server.
    pub async fn start(folder: &Path) -> Self {
        let binaries = binaries();
        // The folder of the test may be closed to the user of Postgres.
        let data = tempfile::tempdir_in("/tmp").unwrap();
        if nix::unistd::geteuid().is_root() {
            let owned = Command::new("chown").arg("postgres").arg(data.path()).status().unwrap();
            assert!(owned.success(), "chown postgres {}", data.path().display());
        }
        let mut initdb = as_postgres(&binaries.join("initdb"));
        initdb.arg("-D").arg(data.path().join("data")).args(["-A", "trust", "-U", "kafleet", "--no-sync"]);
        let output = initdb.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let [port] = free_ports::<1>();
        let at = data.path().to_owned();
        let server = Process::new("postgres", folder.join("postgres.log"), move |_| {
            let mut command = as_postgres(&binaries.join("postgres"));
            command.arg("-D").arg(at.join("data")).arg("-k").arg(&at);
            command.args(["-p", &port.to_string(), "-h", "127.0.0.1", "-c", "fsync=off"]);
            command
        });
        let mut this = Self { server, url: format!("postgres://kafleet@127.0.0.1:{port}/postgres"), data };
        this.server.start();
        this.ready().await;
        this
    }

    /// Ends the server and all of its connections without a checkpoint, and starts it again, which replays its log.
    pub async fn crash(&mut self) {
        let ended = self.server.quit(READY_DEADLINE).await;
        assert!(ended, "Postgres has not ended: {}", self.server.log_tail());
        self.server.start();
    }

    pub async fn ready(&self) {
        let outbox = PostgresOutbox::new(&self.url).unwrap();
        let connects = || async { outbox.connect().await.ok() };
        wait_until("Postgres takes connections", READY_DEADLINE, connects, || self.server.log_tail()).await;
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // Its processes end by themselves when they miss the first one.
        self.server.kill();
        let _ = std::fs::remove_dir_all(self.data.path().join("data"));
    }
}

/// Folder of the newest server of the machine.
fn binaries() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let number = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
    let newest =
        versions.map(|entry| entry.path()).filter(|path| path.join("bin/postgres").exists()).max_by_key(number);
    newest.expect("no Postgres below /usr/lib/postgresql: `tests/services start` installs it").join("bin")
}

/// Postgres refuses to run as root: then it runs as the user that its package creates.
fn as_postgres(program: &Path) -> Command {
    let mut command = if nix::unistd::geteuid().is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.current_dir("/");
    command
}
