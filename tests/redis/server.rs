//! A Redis of a test's own, which it may maltreat. It keeps nothing on disk unless told to.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kafleet::store::redis::{Redis, RedisOptions};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const DEADLINE: Duration = Duration::from_secs(20);

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

    /// With more arguments, a configuration file before all others.
    pub fn start_with(arguments: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), arguments)
    }

    /// A sentinel with these lines of configuration.
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
        let server = Self { port, arguments, process, folder };
        server.wait_until_ready();
        server
    }

    /// Where it keeps its files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn url(&self) -> String {
        let password = self.arguments.iter().position(|argument| argument == "--requirepass");
        let user = password.map_or(String::new(), |place| format!(":{}@", self.arguments[place + 1]));
        format!("redis://{user}127.0.0.1:{}", self.port)
    }

    /// A store in it that soon gives up waiting for an answer.
    pub fn store(&self, prefix: &str) -> Redis {
        self.database(prefix, 0)
    }

    /// Another store in it, which is nothing to the first.
    pub fn database(&self, prefix: &str, number: u8) -> Redis {
        let url = format!("{}/{number}", self.url());
        let mut options = RedisOptions { prefix: prefix.to_owned(), ..RedisOptions::new(url) };
        options.connect_timeout = Duration::from_secs(2);
        options.response_timeout = Duration::from_secs(2);
        options.read_timeout = Duration::from_secs(2);
        Redis::connect(options).unwrap()
    }

    /// As `kill -9`: whatever was in it is gone.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub fn start_again(&mut self) {
        self.process = launch(self.port, self.folder.path(), &self.arguments);
        self.wait_until_ready();
    }

    /// It keeps its connections and says nothing.
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

    fn wait_until_ready(&self) {
        let end = Instant::now() + DEADLINE;
        while self.call::<String>(&["PING"]).is_err() {
            assert!(Instant::now() < end, "redis-server is not ready");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
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

/// A free port; the one 10,000 above, for the bus of a cluster, is free as well.
pub fn free_port() -> u16 {
    loop {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        if let Some(bus) = port.checked_add(10_000)
            && TcpListener::bind(("127.0.0.1", bus)).is_ok()
        {
            return port;
        }
    }
}
