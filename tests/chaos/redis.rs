//! Redis master, replica and sentinel, connected through proxies.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::process::{Process, free_ports};
use crate::proxy::Proxy;
use crate::wait_until;

const REDIS_DEADLINE: Duration = Duration::from_secs(60);

pub struct Stores {
    /// Master and replica.
    pub servers: Vec<Process>,
    pub proxies: Vec<Proxy>,
    pub sentinel: Process,
    sentinel_port: u16,
}

impl Stores {
    pub async fn start(folder: &Path) -> Self {
        let (direct, ports, [sentinel_port]) = (free_ports::<2>(), free_ports::<2>(), free_ports::<1>());
        let (mut servers, mut proxies) = (Vec::new(), Vec::new());
        for number in 0..2 {
            let at = folder.join(format!("redis-{}", number + 1));
            std::fs::create_dir_all(&at).unwrap();
            // A separate configuration file lets a restarted server remember its master.
            let replica_of = if number == 0 { String::new() } else { format!("replicaof 127.0.0.1 {}\n", ports[0]) };
            let file = at.join("redis.conf");
            std::fs::write(
                &file,
                format!(
                    "port {}\nbind 127.0.0.1\ndir {}\nsave \"\"\nappendonly no\nreplica-announce-ip 127.0.0.1\n\
                     replica-announce-port {}\nrepl-diskless-sync-delay 0\n{replica_of}",
                    direct[number],
                    at.display(),
                    ports[number]
                ),
            )
            .unwrap();
            proxies.push(Proxy::new(ports[number], direct[number]).await);
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
        let this = Self { servers, proxies, sentinel: server("sentinel", folder, file, true), sentinel_port };
        this.ready().await;
        this
    }

    pub fn url(&self) -> String {
        format!("redis-sentinel://127.0.0.1:{}/main", self.sentinel_port)
    }

    /// Waits until the sentinel knows both servers.
    async fn ready(&self) {
        let replica_is_linked = || async {
            let reply: Vec<Vec<String>> = command(self.sentinel_port, &["SENTINEL", "REPLICAS", "main"]).await?;
            let has = |name: &str, value: &str| {
                reply.iter().any(|fields| {
                    fields.chunks(2).any(|field| field.len() == 2 && field[0] == name && field[1] == value)
                })
            };
            has("master-link-status", "ok").then_some(())
        };
        wait_until("the sentinel has a linked replica", REDIS_DEADLINE, replica_is_linked, || self.sentinel.log_tail())
            .await;
    }

    /// Index of the current master according to the sentinel.
    pub async fn master(&self) -> usize {
        let master = || async {
            let reply: (String, u16) =
                command(self.sentinel_port, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"]).await?;
            self.proxies.iter().position(|link| link.port == reply.1)
        };
        wait_until("the sentinel names a master", REDIS_DEADLINE, master, || self.sentinel.log_tail()).await
    }

    /// Deletes all keys, in the replica too.
    pub async fn wipe(&self) {
        let wipe = || async {
            let port = self.proxies[self.master().await].port;
            command::<String>(port, &["FLUSHALL"]).await
        };
        wait_until("the master is flushed", REDIS_DEADLINE, wipe, String::new).await;
    }

    /// Triggers a failover by the sentinel.
    pub async fn fail_over(&self) -> bool {
        command::<String>(self.sentinel_port, &["SENTINEL", "FAILOVER", "main"]).await.is_some()
    }
}

/// Single server without persistence: a restart loses all data.
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
        let wipe = || command::<String>(self.port, &["FLUSHALL"]);
        wait_until("Redis is flushed", REDIS_DEADLINE, wipe, || self.server.log_tail()).await;
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

/// Sends a command. Returns `None` without a response of the expected type.
async fn command<T: redis::FromRedisValue>(port: u16, arguments: &[&str]) -> Option<T> {
    let client = redis::Client::open(("127.0.0.1", port)).unwrap();
    let reply = async {
        let mut connection = client.get_multiplexed_async_connection().await.ok()?;
        redis::cmd(arguments[0]).arg(&arguments[1..]).query_async(&mut connection).await.ok()
    };
    tokio::time::timeout(Duration::from_secs(5), reply).await.ok()?
}
