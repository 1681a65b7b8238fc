//! A cluster of three masters.

use std::process::Command;

use super::Server;
use crate::wait::eventually_blocking;

pub struct Cluster {
    pub servers: Vec<Server>,
}

impl Cluster {
    pub fn start() -> Self {
        let server = || Server::start_with(&["--cluster-enabled", "yes", "--cluster-node-timeout", "60000"]);
        let servers: Vec<Server> = (0..3).map(|_| server()).collect();
        let hosts: Vec<String> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        let mut create = Command::new("redis-cli");
        let made = create.args(["--cluster", "create"]).args(&hosts).arg("--cluster-yes").output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stdout));
        let cluster = Self { servers };
        cluster.settle();
        cluster
    }

    /// Waits until every node knows all others and all slots are served.
    fn settle(&self) {
        for server in &self.servers {
            eventually_blocking("the cluster is formed", || {
                let info: String = server.call(&["CLUSTER", "INFO"]).unwrap();
                info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")
            });
        }
    }

    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        format!("redis-cluster://{}", hosts.join(","))
    }

    fn slot(&self, partition: u32) -> u16 {
        self.servers[0].call(&["CLUSTER", "KEYSLOT", &format!("{{p{partition}}}")]).unwrap()
    }

    fn id(&self, node: usize) -> String {
        self.servers[node].call(&["CLUSTER", "MYID"]).unwrap()
    }

    fn owner(&self, slot: u16) -> usize {
        let owns =
            |server: &Server| server.call::<i64>(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]).unwrap() > 0;
        self.servers.iter().position(owns).expect("the partition has keys")
    }

    /// Starts the migration of a partition's slot to another node.
    pub fn begin_move(&self, partition: u32) -> Move<'_> {
        let slot = self.slot(partition);
        let from = self.owner(slot);
        let to = (from + 1) % self.servers.len();
        let moving = Move { cluster: self, slot: slot.to_string(), from, to };
        moving.set_slot(to, "IMPORTING", &self.id(from));
        moving.set_slot(from, "MIGRATING", &self.id(to));
        moving
    }
}

/// A slot migration.
pub struct Move<'a> {
    cluster: &'a Cluster,
    slot: String,
    from: usize,
    to: usize,
}

impl Move<'_> {
    fn set_slot(&self, node: usize, how: &str, other: &str) {
        let () = self.cluster.servers[node].call(&["CLUSTER", "SETSLOT", &self.slot, how, other]).unwrap();
    }

    /// Migrates at most this many keys and returns how many were left before.
    pub fn keys(&self, most: usize) -> usize {
        let (from, to) = (&self.cluster.servers[self.from], &self.cluster.servers[self.to]);
        let keys: Vec<String> = from.call(&["CLUSTER", "GETKEYSINSLOT", &self.slot, &most.to_string()]).unwrap();
        if !keys.is_empty() {
            let port = to.port.to_string();
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "60000", "KEYS"];
            words.extend(keys.iter().map(String::as_str));
            let _: String = from.call(&words).unwrap();
        }
        keys.len()
    }

    /// Migrates the rest and assigns the slot to the other node.
    pub fn end(self) {
        while self.keys(500) > 0 {}
        let owner = self.cluster.id(self.to);
        self.set_slot(self.to, "NODE", &owner);
        self.set_slot(self.from, "NODE", &owner);
        for node in (0..self.cluster.servers.len()).filter(|node| *node != self.to && *node != self.from) {
            self.set_slot(node, "NODE", &owner);
        }
    }
}
