//! Redis servers that a test may maltreat: started on a free port, stopped with the test.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::bench::{raw, until};

pub struct Server {
    pub port: u16,
    password: Option<String>,
    arguments: Vec<String>,
    process: Child,
    folder: tempfile::TempDir,
}

impl Server {
    pub async fn start(arguments: &[&str]) -> Self {
        let port = free_port();
        let folder = tempfile::tempdir().unwrap();
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let place = arguments.iter().position(|argument| argument == "--requirepass");
        let password = place.map(|place| arguments[place + 1].clone());
        let process = launch(port, folder.path(), &arguments);
        let server = Self { port, password, arguments, process, folder };
        server.ready().await;
        server
    }

    pub fn url(&self) -> String {
        let user = self.password.as_ref().map_or(String::new(), |password| format!(":{password}@"));
        format!("redis://{user}127.0.0.1:{}", self.port)
    }

    /// A sentinel that watches a master under the name `main`.
    pub async fn sentinel(master: &Server) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sentinel.conf");
        std::fs::write(&file, format!("sentinel monitor main 127.0.0.1 {} 1\n", master.port)).unwrap();
        let port = free_port();
        let mut command = Command::new("redis-server");
        command.arg(&file).args(["--sentinel", "--bind", "127.0.0.1", "--port", &port.to_string()]);
        let process = command.stdout(Stdio::null()).spawn().unwrap();
        let server = Self { port, password: None, arguments: Vec::new(), process, folder };
        server.ready().await;
        server
    }

    pub fn stop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// It keeps its connections and says nothing.
    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id() as i32), signal).unwrap();
    }

    pub async fn start_again(&mut self) {
        self.process = launch(self.port, self.folder.path(), &self.arguments);
        self.ready().await;
    }

    pub async fn call<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        redis::cmd(words[0]).arg(&words[1..]).query_async(&mut raw(&self.url()).await).await.unwrap()
    }

    async fn ready(&self) {
        let client = redis::Client::open(self.url()).unwrap();
        let answers = || async {
            let Ok(mut connection) = client.get_multiplexed_async_connection().await else { return false };
            redis::cmd("PING").query_async::<String>(&mut connection).await.is_ok()
        };
        until("redis-server is ready", answers).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn launch(port: u16, folder: &std::path::Path, arguments: &[String]) -> Child {
    Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"])
        .arg(folder)
        .args(arguments)
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server must be in the path when KAFLEET_TEST_REDIS is set")
}

pub fn free_port() -> u16 {
    // The bus of a cluster needs the port 10,000 above as well.
    loop {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        if let Some(bus) = port.checked_add(10_000)
            && TcpListener::bind(("127.0.0.1", bus)).is_ok()
        {
            return port;
        }
    }
}
