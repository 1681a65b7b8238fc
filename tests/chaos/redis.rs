//! A master, a replica, and a sentinel that watches them. Everybody, the sentinel too, reaches them through links.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::process::{Process, free_ports};
use crate::proxy::Proxy;
use crate::until;

const PATIENCE: Duration = Duration::from_secs(60);

pub struct Stores {
    /// Of whom one is the master.
    pub servers: Vec<Process>,
    pub links: Vec<Proxy>,
    pub sentinel: Process,
    sentinel_port: u16,
}

impl Stores {
    pub async fn start(folder: &Path) -> Self {
        let (direct, ports, [sentinel_port]) = (free_ports::<2>(), free_ports::<2>(), free_ports::<1>());
        let (mut servers, mut links) = (Vec::new(), Vec::new());
        for number in 0..2 {
            let at = folder.join(format!("redis-{}", number + 1));
            std::fs::create_dir_all(&at).unwrap();
            // With a file of its own, so that it knows after a restart whose replica it is.
            let follows = if number == 0 { String::new() } else { format!("replicaof 127.0.0.1 {}\n", ports[0]) };
            let file = at.join("redis.conf");
            std::fs::write(
                &file,
                format!(
                    "port {}\nbind 127.0.0.1\ndir {}\nsave \"\"\nappendonly no\nreplica-announce-ip 127.0.0.1\n\
                     replica-announce-port {}\nrepl-diskless-sync-delay 0\n{follows}",
                    direct[number],
                    at.display(),
                    ports[number]
                ),
            )
            .unwrap();
            links.push(Proxy::new(ports[number], direct[number]).await);
            servers.push(server(&format!("redis-{}", number + 1), folder, file, false));
        }
        let file = folder.join("sentinel.conf");
        let master = format!(
            "port {sentinel_port}\nbind 127.0.0.1\ndir {}\nsentinel monitor main 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds main 4000\nsentinel failover-timeout main 12000\n",
            folder.display(),
            ports[0]
        );
        std::fs::write(&file, master).unwrap();
        let this = Self { servers, links, sentinel: server("sentinel", folder, file, true), sentinel_port };
        this.ready().await;
        this
    }

    pub fn url(&self) -> String {
        format!("redis-sentinel://127.0.0.1:{}/main", self.sentinel_port)
    }

    /// The sentinel knows both.
    async fn ready(&self) {
        let knows = || async {
            let told: Vec<Vec<String>> = ask(self.sentinel_port, &["SENTINEL", "REPLICAS", "main"]).await?;
            let has = |name: &str, value: &str| {
                told.iter().any(|facts| facts.chunks(2).any(|fact| fact.len() == 2 && fact[0] == name && fact[1] == value))
            };
            has("master-link-status", "ok").then_some(())
        };
        until("the sentinel knows master and replica", PATIENCE, knows, || self.sentinel.last_words()).await;
    }

    /// The number of the server that the sentinel calls master.
    pub async fn master(&self) -> usize {
        let ask = || async {
            let told: (String, u16) = ask(self.sentinel_port, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"]).await?;
            self.links.iter().position(|link| link.port == told.1)
        };
        until("the sentinel names a master", PATIENCE, ask, || self.sentinel.last_words()).await
    }

    /// Everything is gone, in the replica too.
    pub async fn wipe(&self) {
        let wipe = || async {
            let port = self.links[self.master().await].port;
            ask::<String>(port, &["FLUSHALL"]).await
        };
        until("the master is wiped", PATIENCE, wipe, String::new).await;
    }

    /// The sentinel makes the replica the master.
    pub async fn switch(&self) -> bool {
        ask::<String>(self.sentinel_port, &["SENTINEL", "FAILOVER", "main"]).await.is_some()
    }
}

/// One server on its own, which keeps nothing on disk: killed, it has lost everything.
pub struct Single {
    pub server: Process,
    port: u16,
}

impl Single {
    pub fn start(folder: &Path) -> Self {
        let [port] = free_ports::<1>();
        let file = folder.join("redis.conf");
        let text = format!("port {port}\nbind 127.0.0.1\ndir {}\nsave \"\"\nappendonly no\n", folder.display());
        std::fs::write(&file, text).unwrap();
        Self { server: server("redis", folder, file, false), port }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub async fn wipe(&self) {
        let wipe = || ask::<String>(self.port, &["FLUSHALL"]);
        until("Redis is wiped", PATIENCE, wipe, || self.server.last_words()).await;
    }
}

fn server(name: &str, folder: &Path, file: std::path::PathBuf, is_sentinel: bool) -> Process {
    let mut process = Process::new(name, folder.join(format!("{name}.log")), move |_| {
        let mut command = Command::new("redis-server");
        command.arg(&file).args(is_sentinel.then_some("--sentinel"));
        command
    });
    process.start();
    process
}

/// None: no answer, or not this kind of one.
async fn ask<T: redis::FromRedisValue>(port: u16, words: &[&str]) -> Option<T> {
    let client = redis::Client::open(("127.0.0.1", port)).unwrap();
    let answer = async {
        let mut connection = client.get_multiplexed_async_connection().await.ok()?;
        redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await.ok()
    };
    tokio::time::timeout(Duration::from_secs(5), answer).await.ok()?
}
