//! A Redis server per test. Without persistence unless configured.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::Duration;

use kafleet_store::redis::{Redis, RedisOptions};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::wait::{DEADLINE, eventually_blocking};

/// Range of test ports, below the ephemeral ports of the system.
const FIRST_PORT: u16 = 10_000;
const PORTS: u16 = 10_000;

pub struct Server {
    pub port: u16,
    arguments: Vec<String>,
    process: Child,
    folder: tempfile::TempDir,
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts with further arguments; a configuration file must come first.
    pub fn start_with(arguments: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), arguments)
    }

    /// Starts a sentinel with these lines of configuration.
    pub fn sentinel(lines: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sentinel.conf");
        std::fs::write(&file, lines).unwrap();
        Self::start_in(folder, &[file.to_str().unwrap(), "--sentinel"])
    }

    fn start_in(folder: tempfile::TempDir, arguments: &[&str]) -> Self {
        let port = free_port();
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let process = launch(port, folder.path(), &arguments);
        let mut server = Self { port, arguments, process, folder };
        server.wait_until_ready();
        server
    }

    /// Data directory.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn url(&self) -> String {
        let password = self.arguments.iter().position(|argument| argument == "--requirepass");
        let user = password.map_or(String::new(), |index| format!(":{}@", self.arguments[index + 1]));
        format!("redis://{user}127.0.0.1:{}", self.port)
    }

    /// A store on this server.
    pub fn store(&self, prefix: &str) -> Redis {
        self.database(prefix, 0)
    }

    /// A separate store in another database of this server.
    pub fn database(&self, prefix: &str, number: u8) -> Redis {
        let url = format!("{}/{number}", self.url());
        Redis::connect(RedisOptions { prefix: prefix.to_owned(), ..patient(url) }).unwrap()
    }

    /// A store with short deadlines.
    pub fn impatient_store(&self, prefix: &str) -> Redis {
        let seconds = Duration::from_secs(2);
        let options = RedisOptions { prefix: prefix.to_owned(), ..RedisOptions::new(self.url()) };
        let options =
            RedisOptions { connect_timeout: seconds, response_timeout: seconds, read_timeout: seconds, ..options };
        Redis::connect(options).unwrap()
    }

    /// Kills the server as `kill -9` does, losing its contents.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub fn restart(&mut self) {
        self.process = launch(self.port, self.folder.path(), &self.arguments);
        self.wait_until_ready();
    }

    /// Stops the process: connections stay open without answers.
    pub fn freeze(&self) {
        kill(Pid::from_raw(self.process.id() as i32), Signal::SIGSTOP).unwrap();
    }

    pub fn thaw(&self) {
        kill(Pid::from_raw(self.process.id() as i32), Signal::SIGCONT).unwrap();
    }

    pub fn call<T: redis::FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let mut connection = redis::Client::open(self.url())?.get_connection_with_timeout(DEADLINE)?;
        redis::cmd(words[0]).arg(&words[1..]).query(&mut connection)
    }

    /// Waits for a response of this process itself: if another process has taken its port, it ends and is started
    /// again.
    fn wait_until_ready(&mut self) {
        eventually_blocking("redis-server is ready", || {
            if self.process.try_wait().unwrap().is_some() {
                self.process = launch(self.port, self.folder.path(), &self.arguments);
            }
            self.is_ready()
        });
    }

    fn is_ready(&self) -> bool {
        let line = format!("process_id:{}\r\n", self.process.id());
        self.call::<String>(&["PING"]).is_ok()
            && self.call::<String>(&["INFO", "server"]).is_ok_and(|info| info.contains(&line))
    }
}

/// Options with long deadlines for a busy machine.
pub fn patient(url: impl Into<String>) -> RedisOptions {
    let long = Duration::from_secs(60);
    RedisOptions { connect_timeout: long, response_timeout: long, read_timeout: long, ..RedisOptions::new(url) }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn launch(port: u16, folder: &Path, arguments: &[String]) -> Child {
    let (files, options): (Vec<_>, Vec<_>) = arguments.iter().partition(|argument| argument.ends_with(".conf"));
    let mut command = Command::new("redis-server");
    command.args(files).args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"]).arg(folder);
    if !options.iter().any(|option| *option == "--sentinel") {
        command.args(["--save", "", "--appendonly", "no"]);
    }
    let command = command.args(options).stdout(Stdio::null());
    command.spawn().expect("redis-server must be in the path when KAFLEET_TEST_REDIS is set")
}

/// Returns a port unused by other tests of this process; the one 10,000 above, for the bus of a cluster, is free too.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = (std::process::id() % u32::from(PORTS)) as u16;
    loop {
        let port = FIRST_PORT + (begin + NEXT.fetch_add(1, Relaxed) % PORTS) % PORTS;
        let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if is_free(port) && is_free(port + 10_000) {
            return port;
        }
    }
}
