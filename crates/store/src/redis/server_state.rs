//! State of the server that holds a partition, now and when the partition was last written.
//!
//! `evicted_keys` counts from the start of a server, over all its keys. The first batch of each writer therefore
//! records in the `batches` hash how many keys the server had evicted when the writer was opened, under the server's
//! run id. The next open compares: a tracker that was down, or that connects to another master, detects evictions in
//! between.

use ::redis::aio::MultiplexedConnection;
use ::redis::{Pipeline, pipe};

use super::connection::Connector;
use super::server_checks::{fact, policy_problem};
use super::values::read;
use super::writer::query_server;
use crate::keys::Keys;
use crate::{Checkpoint, StoreError};

/// Prefix of the fields that hold a server's evictions, followed by its run id.
const EVICTED: &str = "evicted:";
/// Maximum number of recorded servers; beyond it, only the current one is kept.
const MAX_SERVERS: usize = 32;
/// TTL of the write probe's key, milliseconds.
const PROBE_MS: u64 = 1_000;

/// Current state of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServerState {
    /// Changes with each start of the server.
    run_id: String,
    evicted: u64,
    policy: String,
    used_bytes: u64,
    /// 0 means no limit.
    limit_bytes: u64,
}

/// Server state recorded by earlier batches.
pub(super) struct RecordedState {
    servers: Vec<(String, u64)>,
    /// At least one batch was written.
    has_batches: bool,
}

impl ServerState {
    pub(super) async fn read(
        connector: &Connector,
        connection: &mut MultiplexedConnection,
    ) -> Result<Self, StoreError> {
        let mut commands = pipe();
        // One section per call, because old versions accept only one.
        for section in ["server", "memory", "stats"] {
            commands.cmd("INFO").arg(section);
        }
        let mut facts = String::new();
        for answer in query_server(connector, connection, &commands).await? {
            facts += &read::<String>("INFO", answer)?;
        }
        Ok(Self::of(&facts))
    }

    fn of(facts: &str) -> Self {
        let number = |name| fact(facts, name).and_then(|text| text.parse().ok()).unwrap_or(0);
        let text = |name| fact(facts, name).unwrap_or_default().to_owned();
        Self {
            run_id: text("run_id"),
            evicted: number("evicted_keys"),
            policy: text("maxmemory_policy"),
            used_bytes: number("used_memory"),
            limit_bytes: number("maxmemory"),
        }
    }

    /// Rejects a server that may evict keys.
    pub(super) fn check_policy(&self, connector: &Connector) -> Result<(), StoreError> {
        match policy_problem(&self.policy, self.limit_bytes > 0) {
            Some(problem) => Err(StoreError::Misconfigured(format!("redis at `{}` {problem}", connector.display_url))),
            None => Ok(()),
        }
    }

    /// Tries a write if memory may have run out; an idle partition would not detect that otherwise.
    pub(super) async fn check_memory(
        &self,
        connector: &Connector,
        keys: &Keys,
        connection: &mut MultiplexedConnection,
    ) -> Result<(), StoreError> {
        if self.limit_bytes == 0 || self.used_bytes < self.limit_bytes {
            return Ok(());
        }
        let mut probe = pipe();
        probe.cmd("SET").arg(keys.probe()).arg("").arg("PX").arg(PROBE_MS);
        query_server(connector, connection, &probe).await.map(drop)
    }

    /// Describes the keys evicted since an earlier state of the same server, if any.
    pub(super) fn evicted_since(&self, earlier: &Self) -> Option<String> {
        if self.run_id != earlier.run_id {
            return (self.evicted > 0).then(|| evicted(self.evicted));
        }
        // A lower number means that the statistics were reset.
        let before = if self.evicted < earlier.evicted { 0 } else { earlier.evicted };
        (self.evicted > before).then(|| evicted(self.evicted - before))
    }

    /// Field to record in a batch, and its value.
    pub(super) fn field(&self) -> (String, u64) {
        (format!("{EVICTED}{}", self.run_id), self.evicted)
    }
}

fn evicted(keys: u64) -> String {
    format!("redis has evicted {keys} keys")
}

impl RecordedState {
    pub(super) async fn read(
        connector: &Connector,
        connection: &mut MultiplexedConnection,
        keys: &Keys,
    ) -> Result<Self, StoreError> {
        let mut commands = pipe();
        commands.cmd("HGETALL").arg(keys.batches());
        let answer = query_server(connector, connection, &commands).await?.pop().unwrap_or_default();
        let fields: Vec<(String, String)> = read(&keys.batches(), answer)?;
        let of_server =
            |(name, value): &(String, String)| Some((name.strip_prefix(EVICTED)?.to_owned(), value.parse().ok()?));
        Ok(Self { servers: fields.iter().filter_map(of_server).collect(), has_batches: !fields.is_empty() })
    }

    /// Describes the data lost since the checkpoint was written.
    pub(super) fn loss(&self, checkpoint: Option<Checkpoint>, now: &ServerState) -> Option<String> {
        match (checkpoint.is_some(), self.has_batches) {
            (false, false) => return None,
            (true, false) => return Some("the counts of its batches are missing".to_owned()),
            (false, true) => return Some("its checkpoint is missing, but its batch counts exist".to_owned()),
            (true, true) => {}
        }
        let recorded = self.servers.iter().find(|(run_id, _)| *run_id == now.run_id).map_or(0, |(_, evicted)| *evicted);
        now.evicted_since(&ServerState { evicted: recorded, ..now.clone() })
    }

    /// Fields of other servers, if there are too many.
    pub(super) fn outdated(&self, now: &ServerState) -> Vec<String> {
        if self.servers.len() < MAX_SERVERS {
            return Vec::new();
        }
        let others = self.servers.iter().filter(|(run_id, _)| *run_id != now.run_id);
        others.map(|(run_id, _)| format!("{EVICTED}{run_id}")).collect()
    }
}

/// Records the server's state in a batch.
pub(super) fn record(commands: &mut Pipeline, keys: &Keys, now: &ServerState, outdated: &[String]) {
    let (field, value) = now.field();
    commands.cmd("HSET").arg(keys.batches()).arg(field).arg(value);
    if !outdated.is_empty() {
        commands.cmd("HDEL").arg(keys.batches()).arg(outdated);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(run_id: &str, evicted: u64) -> ServerState {
        ServerState { run_id: run_id.to_owned(), evicted, ..ServerState::default() }
    }

    #[test]
    fn evictions_are_detected_across_restarts_and_failovers() {
        let recorded = |servers: &[(&str, u64)]| RecordedState {
            servers: servers.iter().map(|(run_id, evicted)| ((*run_id).to_owned(), *evicted)).collect(),
            has_batches: true,
        };
        let checkpoint = Some(Checkpoint::default());
        for (servers, now, lost) in [
            (&[("a", 3)][..], server("a", 3), None),
            (&[("a", 3)], server("a", 5), Some("2 keys")),
            (&[("a", 3)], server("b", 0), None),
            (&[("a", 3)], server("b", 4), Some("4 keys")),
            (&[("a", 3), ("b", 4)], server("b", 4), None),
            // The statistics were reset.
            (&[("a", 3)], server("a", 0), None),
            (&[("a", 3)], server("a", 2), Some("2 keys")),
        ] {
            let loss = recorded(servers).loss(checkpoint, &now);
            assert_eq!(loss.is_some(), lost.is_some(), "{servers:?} {now:?} {loss:?}");
            assert!(lost.is_none_or(|lost| loss.is_some_and(|loss| loss.contains(lost))), "{servers:?} {now:?}");
        }
    }

    #[test]
    fn missing_checkpoint_or_batch_counts_are_a_loss() {
        let recorded = |has_batches| RecordedState { servers: Vec::new(), has_batches };
        assert_eq!(recorded(false).loss(None, &server("a", 9)), None, "an empty partition has lost nothing");
        assert!(recorded(true).loss(None, &server("a", 0)).is_some());
        assert!(recorded(false).loss(Some(Checkpoint::default()), &server("a", 0)).is_some());
    }

    #[test]
    fn server_state_is_parsed_from_info() {
        let facts = "run_id:abc\r\nused_memory:7\r\nmaxmemory:9\r\nmaxmemory_policy:allkeys-lru\r\nevicted_keys:12\r\n";
        let expected = ServerState {
            run_id: "abc".into(),
            evicted: 12,
            policy: "allkeys-lru".into(),
            used_bytes: 7,
            limit_bytes: 9,
        };
        assert_eq!(ServerState::of(facts), expected);
    }
}
