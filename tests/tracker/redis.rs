//! A Redis of a test's own, which it may maltreat. It keeps nothing on disk.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kafleet::store::redis::{Redis, RedisOptions};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const DEADLINE: Duration = Duration::from_secs(20);

pub struct Server {
    port: u16,
    process: Child,
    folder: tempfile::TempDir,
}

impl Server {
    pub fn start() -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = tempfile::tempdir().unwrap();
        let process = launch(port, folder.path());
        let server = Self { port, process, folder };
        server.wait_until_ready();
        server
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// A store in it that soon gives up waiting for an answer.
    pub fn store(&self, prefix: &str) -> Redis {
        let mut options = RedisOptions { prefix: prefix.to_owned(), ..RedisOptions::new(self.url()) };
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
        self.process = launch(self.port, self.folder.path());
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

fn launch(port: u16, folder: &std::path::Path) -> Child {
    Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"])
        .arg(folder)
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server must be in the path when KAFLEET_TEST_REDIS is set")
}
