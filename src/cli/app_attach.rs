//! `app attach`: connects a worker of `dev` to an app that runs in the process of a test or of a debugger.
//!
//! The process relays two streams: the worker's socket on file descriptor 0, and a Unix socket at which the tester
//! listens. It refuses with the message `unable` of the app protocol, which the worker shows.

use std::fmt::Display;
use std::fs;
use std::io::{self, stdin};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use clap::Args;
use kafleet_config::AppConfig;
use nix::unistd::geteuid;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};

use super::exit::{Code, Failure, Outcome};

/// Maximum time until the tester listens.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// Interval of the attempts to connect.
const CONNECT_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum length of the worker's first message, and size of a read, in bytes.
const MAX_WELCOME_BYTES: usize = 1 << 20;
const READ_BYTES: usize = 8 << 10;
/// Mode bits that let others use the socket.
const OTHERS: u32 = 0o077;

#[derive(Debug, Args)]
pub(super) struct AttachArgs {
    /// Unix socket at which the tester listens, in a folder that only its user can access
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// App that the tester serves, such as tasks.py: it takes the place of the section of kafleet.toml that starts it
    #[arg(value_name = "TARGET")]
    pub target: Option<String>,
}

/// Returns whether a command runs `kafleet app attach`.
pub(super) fn is_attach(command: &[String]) -> bool {
    let is_kafleet = |word: &String| {
        let name = Path::new(word).file_name().and_then(std::ffi::OsStr::to_str);
        name.is_some_and(|name| name.starts_with("kafleet"))
    };
    command.windows(3).any(|words| is_kafleet(&words[0]) && words[1] == "app" && words[2] == "attach")
}

/// Limits an attached app to one process, which is replaced only after its end: the tester is a single process.
pub(super) fn limit_processes(section: &mut AppConfig) {
    if is_attach(&section.command) {
        section.processes = Some(1);
        section.max_tasks = None;
        section.overlap = false;
    }
}

/// Relays the streams of the worker and of the tester until both have ended.
pub(super) async fn attach(args: AttachArgs) -> Outcome {
    let mut worker = worker_socket(&args)?;
    let early = welcome(&mut worker).await.map_err(lost_worker)?;
    match open(&args, &early).await {
        Ok(tester) => relay(worker, tester, &early, &args.path).await,
        Err(failure) => refuse(worker, failure).await,
    }
}

/// Takes the worker's socket.
fn worker_socket(args: &AttachArgs) -> Result<UnixStream, Failure> {
    let socket = || -> io::Result<UnixStream> {
        let socket = std::os::unix::net::UnixStream::from(stdin().as_fd().try_clone_to_owned()?);
        // Fails for everything but a Unix socket.
        socket.local_addr()?;
        socket.set_nonblocking(true)?;
        UnixStream::from_std(socket)
    };
    socket().map_err(|_| Failure::usage("file descriptor 0 is not the socket of a worker").hint(with_dev(args)))
}

/// Reads the worker's first message, and what has arrived with it.
async fn welcome(worker: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut early = Vec::with_capacity(READ_BYTES);
    while !early.contains(&b'\n') && early.len() < MAX_WELCOME_BYTES {
        if worker.read_buf(&mut early).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(early)
}

/// Checks the worker and the folder, and connects to the tester.
async fn open(args: &AttachArgs, early: &[u8]) -> Result<UnixStream, Failure> {
    if !is_dev(early) {
        let reason = "only workers of `kafleet dev` run handlers in the process of a tester, which they cannot kill";
        return Err(Failure::failed(reason).hint(with_dev(args)));
    }
    check_folder(&args.path)?;
    connect(&args.path).await
}

/// Hint that names the command.
fn with_dev(args: &AttachArgs) -> String {
    let target = args.target.iter().map(|target| format!(" {target}")).collect::<String>();
    format!("run it with `kafleet dev -- kafleet app attach {}{target}`", args.path.display())
}

/// Returns whether a welcome is that of a worker of `kafleet dev`.
fn is_dev(early: &[u8]) -> bool {
    let line = early.split(|byte| *byte == b'\n').next().unwrap_or_default();
    serde_json::from_slice::<Value>(line).is_ok_and(|message| message["welcome"]["dev"] == true)
}

/// Refuses a folder in which others could listen: params of tasks would be theirs.
fn check_folder(path: &Path) -> Result<(), Failure> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let refused = |reason: &dyn Display| {
        let failure = Failure::failed(format_args!("the folder of `{}` cannot be used: {reason}", path.display()));
        failure.hint("listen in a folder of your own with mode 0700, as `mktemp -d` makes it")
    };
    let metadata = fs::metadata(folder).map_err(|error| refused(&error))?;
    if metadata.uid() != geteuid().as_raw() {
        return Err(refused(&"it belongs to another user"));
    }
    if metadata.mode() & OTHERS != 0 {
        return Err(refused(&format_args!("others can access it (mode {:04o})", metadata.mode() & 0o7777)));
    }
    Ok(())
}

/// Connects to the tester, which may still be starting.
async fn connect(path: &Path) -> Result<UnixStream, Failure> {
    let end = Instant::now() + CONNECT_DEADLINE;
    loop {
        match UnixStream::connect(path).await {
            Ok(tester) => return Ok(tester),
            Err(error) if Instant::now() >= end => {
                return Err(Failure::failed(format_args!("nothing listens at `{}`: {error}", path.display()))
                    .hint("start the test or the debugger that listens there before `kafleet dev`"));
            }
            Err(_) => sleep(CONNECT_INTERVAL).await,
        }
    }
}

/// Reports to the worker that no app can be attached. The worker shows it.
async fn refuse(mut worker: UnixStream, failure: Failure) -> Outcome {
    let hint = failure.hint.map(|hint| format!("; hint: {hint}")).unwrap_or_default();
    let message = format!("{}\n", json!({"unable": {"message": format!("{}{hint}", failure.message)}}));
    worker.write_all(message.as_bytes()).await.map_err(lost_worker)?;
    worker.shutdown().await.map_err(lost_worker)?;
    Ok(Code::Failed)
}

fn lost_worker(error: io::Error) -> Failure {
    Failure::failed(format_args!("the worker has ended: {error}"))
}

/// Copies both streams. The end of the worker's stream is passed on; the tester then answers what runs, and closes.
async fn relay(worker: UnixStream, tester: UnixStream, early: &[u8], path: &Path) -> Outcome {
    let (mut from_worker, mut to_worker) = worker.into_split();
    let (mut from_tester, mut to_tester) = tester.into_split();
    let closed = || Failure::failed(format_args!("the program at `{}` has closed the connection", path.display()));
    let messages = async {
        to_tester.write_all(early).await?;
        copy(&mut from_worker, &mut to_tester).await?;
        to_tester.shutdown().await
    };
    let mut messages = pin!(messages);
    let mut answers = pin!(copy(&mut from_tester, &mut to_worker));
    let ended = tokio::select! {
        biased;
        _ = &mut answers => return Err(closed()),
        ended = &mut messages => ended,
    };
    let answered = answers.await;
    ended.map_err(|_| closed())?;
    answered.map(|_| Code::Ok).map_err(lost_worker)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use tokio::net::UnixListener;

    use super::*;

    /// Folder with mode 0700, and the path of a socket in it.
    fn folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let path = folder.path().join("app.sock");
        (folder, path)
    }

    async fn read(stream: &mut UnixStream) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    #[test]
    fn attached_app_has_one_process() {
        let section = |command: &[&str]| {
            let command = command.iter().map(|word| (*word).to_owned()).collect();
            let mut section = AppConfig { command, processes: Some(4), ..AppConfig::default() };
            limit_processes(&mut section);
            (section.processes, section.overlap)
        };
        assert_eq!(section(&["/opt/kafleet", "app", "attach", "/tmp/a/app.sock", "tasks.py"]), (Some(1), false));
        assert_eq!(section(&["npx", "kafleet", "app", "attach", "/tmp/a/app.sock"]), (Some(1), false));
        assert_eq!(section(&["python3", "app", "attach"]), (Some(4), true));
    }

    #[test]
    fn folder_of_others_is_refused() {
        let (folder, path) = folder();
        assert!(check_folder(&path).is_ok());
        for mode in [0o750, 0o701, 0o777] {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
            let error = check_folder(&path).unwrap_err().text();
            assert!(error.contains("others can access it") && error.contains("mode 0700"), "{mode:o}: {error}");
        }
        let error = check_folder(&folder.path().join("missing/app.sock")).unwrap_err().message;
        assert!(error.contains("cannot be used"), "{error}");
    }

    #[test]
    fn only_workers_of_dev_are_served() {
        assert!(is_dev(b"{\"welcome\":{\"protocol\":1,\"dev\":true}}\n{\"attempt\":{}}\n"));
        for line in [&b"{\"welcome\":{\"dev\":false}}\n"[..], b"{\"welcome\":{}}\n", b"{\n", b"\n"] {
            assert!(!is_dev(line), "{}", String::from_utf8_lossy(line));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn missing_tester_is_reported_with_the_path() {
        let (_folder, path) = folder();
        let error = connect(&path).await.unwrap_err().message;
        assert!(error.starts_with(&format!("nothing listens at `{}`", path.display())), "{error}");
    }

    #[tokio::test]
    async fn answers_after_the_end_of_the_worker_are_passed_on() {
        let (_folder, path) = folder();
        let listener = UnixListener::bind(&path).unwrap();
        let tester = connect(&path).await.unwrap();
        let (mut app, _) = listener.accept().await.unwrap();
        let (mut worker, inner) = UnixStream::pair().unwrap();
        worker.write_all(b"b\n").await.unwrap();
        worker.shutdown().await.unwrap();
        let app = async {
            assert_eq!(read(&mut app).await, "a\nb\n");
            app.write_all(b"answer\n").await.unwrap();
            drop(app);
        };
        let (outcome, ()) = tokio::join!(relay(inner, tester, b"a\n", &path), app);
        assert_eq!(outcome.unwrap(), Code::Ok);
        assert_eq!(read(&mut worker).await, "answer\n");
    }

    #[tokio::test]
    async fn tester_that_closes_first_is_an_error() {
        let (_folder, path) = folder();
        let listener = UnixListener::bind(&path).unwrap();
        let tester = connect(&path).await.unwrap();
        let (app, _) = listener.accept().await.unwrap();
        let (_worker, inner) = UnixStream::pair().unwrap();
        drop(app);
        let failure = relay(inner, tester, b"a\n", &path).await.unwrap_err();
        assert!(failure.message.contains("has closed the connection"), "{}", failure.message);
    }
}
