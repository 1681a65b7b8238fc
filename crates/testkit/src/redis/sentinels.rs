//! A master, a replica that can be made to lag, and a sentinel that promotes the replica.

use super::{Proxy, Server};
use crate::wait::eventually_blocking;

pub struct Sentinels {
    pub master: Server,
    pub replica: Server,
    sentinel: Server,
    /// Proxy between the replica and its master.
    replication: Proxy,
}

impl Sentinels {
    pub fn start() -> Self {
        let master = Server::start_with(&["--repl-diskless-sync-delay", "0"]);
        let replication = Proxy::to(master.port);
        let replica = Server::start_with(&["--replicaof", "127.0.0.1", &replication.port.to_string()]);
        // The sentinel trusts the replica's report of its master's address for the duration of a failover.
        let lines = ["down-after-milliseconds main 1500", "failover-timeout main 60000", "parallel-syncs main 1"];
        let lines: String = lines.iter().map(|line| format!("sentinel {line}\n")).collect();
        let sentinel = Server::sentinel(&format!("sentinel monitor main 127.0.0.1 {} 1\n{lines}", master.port));
        let this = Self { master, replica, sentinel, replication };
        this.settle();
        this
    }

    /// Waits until the replica follows and the sentinel knows it.
    fn settle(&self) {
        eventually_blocking("the replica follows", || {
            let info: String = self.replica.call(&["INFO", "replication"]).unwrap();
            info.contains("master_link_status:up")
        });
        eventually_blocking("the sentinel knows the replica", || {
            let master: Vec<String> = self.sentinel.call(&["SENTINEL", "MASTER", "main"]).unwrap();
            master.windows(2).any(|pair| pair == ["num-slaves", "1"])
        });
        eventually_blocking("the sentinel reports the replica as healthy", || {
            let replicas: Vec<Vec<String>> = self.sentinel.call(&["SENTINEL", "REPLICAS", "main"]).unwrap();
            replicas.iter().flatten().any(|word| word == "slave") && replicas.iter().flatten().any(|word| word == "ok")
        });
    }

    pub fn url(&self) -> String {
        format!("redis-sentinel://127.0.0.1:{}/main", self.sentinel.port)
    }

    /// Cuts the replica off from its master.
    pub fn let_lag(&self) {
        self.replication.hold(true);
    }

    /// Waits until the sentinel has promoted the replica.
    pub fn await_failover(&self) {
        eventually_blocking("the replica is the master", || {
            let named = self.sentinel.call::<Vec<String>>(&["SENTINEL", "MASTER", "main"]).unwrap_or_default();
            // A server closes its clients' connections when it becomes a master.
            let info = self.replica.call::<String>(&["INFO", "replication"]).unwrap_or_default();
            named.windows(2).any(|pair| pair == ["port", &self.replica.port.to_string()])
                && info.contains("role:master")
        });
    }

    /// Promotes the replica without the master noticing.
    pub fn depose(&self) {
        let () = self.master.call(&["ACL", "SETUSER", "default", "-replicaof", "-slaveof"]).unwrap();
        // A sentinel rejects a replica without a recent response.
        eventually_blocking("the failover has begun", || {
            let begun = self.sentinel.call::<()>(&["SENTINEL", "FAILOVER", "main"]);
            begun.is_ok() || begun.is_err_and(|error| error.to_string().contains("INPROG"))
        });
        self.await_failover();
    }

    /// Offset up to which a partition is folded in the replica.
    pub fn replicated(&self, partition: u32) -> i64 {
        let checkpoint: Option<String> =
            self.replica.call(&["GET", &format!("kafleet:{{p{partition}}}:checkpoint")]).unwrap();
        checkpoint.and_then(|checkpoint| checkpoint.split(' ').next()?.parse().ok()).unwrap_or(0)
    }
}
