//! What the server that holds a partition says of itself, and what it said when the partition was last written.
//!
//! `evicted_keys` counts from the start of a server, for all its keys together. So each batch notes, in the hash that counts
//! batches, how many keys the server had evicted when its writer was opened, under the server's run id. Whoever opens the
//! partition later compares: a tracker that was down, or one that finds another master, notices what happened in between.

use ::redis::aio::MultiplexedConnection;
use ::redis::{Pipeline, pipe};

use super::connection::Link;
use super::server_checks::{fact, policy_problem};
use super::values::read;
use super::writer::ask;
use crate::store::keys::Keys;
use crate::store::{Checkpoint, StoreError};

/// What the names of fields begin with that hold a server's evictions; its run id follows.
const EVICTED: &str = "evicted:";
/// Servers noted at most; beyond it, only the present one is kept.
const MAX_SERVERS: usize = 32;
/// How long the key of a write probe stays, in milliseconds.
const PROBE_MS: u64 = 1_000;

/// A server, as of now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Vitals {
    /// A new one with each start.
    run_id: String,
    evicted: u64,
    policy: String,
    used_bytes: u64,
    /// 0: no limit.
    limit_bytes: u64,
}

/// What earlier batches have noted of servers.
pub(super) struct Noted {
    servers: Vec<(String, u64)>,
    /// A batch has been written.
    begun: bool,
}

impl Vitals {
    pub(super) async fn ask(link: &Link, connection: &mut MultiplexedConnection) -> Result<Self, StoreError> {
        let mut commands = pipe();
        // One section a call, because old versions take only one.
        for section in ["server", "memory", "stats"] {
            commands.cmd("INFO").arg(section);
        }
        let mut facts = String::new();
        for answer in ask(link, connection, &commands).await? {
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

    /// The server may drop keys at any time.
    pub(super) fn check_policy(&self, link: &Link) -> Result<(), StoreError> {
        match policy_problem(&self.policy, self.limit_bytes > 0) {
            Some(problem) => Err(StoreError::Misconfigured(format!("redis at `{}` {problem}", link.place))),
            None => Ok(()),
        }
    }

    /// Tries a write, where memory may have run out: an idle partition would not notice.
    pub(super) async fn check_memory(
        &self,
        link: &Link,
        keys: &Keys,
        connection: &mut MultiplexedConnection,
    ) -> Result<(), StoreError> {
        if self.limit_bytes == 0 || self.used_bytes < self.limit_bytes {
            return Ok(());
        }
        let mut probe = pipe();
        probe.cmd("SET").arg(keys.probe()).arg("").arg("PX").arg(PROBE_MS);
        ask(link, connection, &probe).await.map(drop)
    }

    /// Keys evicted since another look at the same server.
    pub(super) fn evicted_since(&self, earlier: &Self) -> Option<String> {
        if self.run_id != earlier.run_id {
            return (self.evicted > 0).then(|| evicted(self.evicted));
        }
        // Fewer: somebody has reset the statistics since.
        let before = if self.evicted < earlier.evicted { 0 } else { earlier.evicted };
        (self.evicted > before).then(|| evicted(self.evicted - before))
    }

    /// The field to note in a batch, and its value.
    pub(super) fn note(&self) -> (String, u64) {
        (format!("{EVICTED}{}", self.run_id), self.evicted)
    }
}

fn evicted(keys: u64) -> String {
    format!("redis has evicted {keys} keys")
}

impl Noted {
    pub(super) async fn ask(link: &Link, connection: &mut MultiplexedConnection, keys: &Keys) -> Result<Self, StoreError> {
        let mut commands = pipe();
        commands.cmd("HGETALL").arg(keys.batches());
        let answer = ask(link, connection, &commands).await?.pop().unwrap_or_default();
        let fields: Vec<(String, String)> = read(&keys.batches(), answer)?;
        let of_server = |(name, value): &(String, String)| Some((name.strip_prefix(EVICTED)?.to_owned(), value.parse().ok()?));
        Ok(Self { servers: fields.iter().filter_map(of_server).collect(), begun: !fields.is_empty() })
    }

    /// What is gone of a partition with this fence, on this server.
    pub(super) fn loss(&self, fence: Option<Checkpoint>, now: &Vitals) -> Option<String> {
        match (fence.is_some(), self.begun) {
            (false, false) => return None,
            (true, false) => return Some("the count of its batches is gone".to_owned()),
            (false, true) => return Some("its fence is gone, and its batches are counted".to_owned()),
            (true, true) => {}
        }
        let noted = self.servers.iter().find(|(run_id, _)| *run_id == now.run_id).map_or(0, |(_, evicted)| *evicted);
        now.evicted_since(&Vitals { evicted: noted, ..now.clone() })
    }

    /// Fields of servers that are not of interest any more, where there are many.
    pub(super) fn outdated(&self, now: &Vitals) -> Vec<String> {
        if self.servers.len() < MAX_SERVERS {
            return Vec::new();
        }
        let others = self.servers.iter().filter(|(run_id, _)| *run_id != now.run_id);
        others.map(|(run_id, _)| format!("{EVICTED}{run_id}")).collect()
    }
}

/// Notes the server in a batch.
pub(super) fn note(commands: &mut Pipeline, keys: &Keys, now: &Vitals, outdated: &[String]) {
    let (field, value) = now.note();
    commands.cmd("HSET").arg(keys.batches()).arg(field).arg(value);
    if !outdated.is_empty() {
        commands.cmd("HDEL").arg(keys.batches()).arg(outdated);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(run_id: &str, evicted: u64) -> Vitals {
        Vitals { run_id: run_id.to_owned(), evicted, ..Vitals::default() }
    }

    #[test]
    fn evictions_are_noticed_across_restarts_and_failovers() {
        let noted = |servers: &[(&str, u64)]| Noted {
            servers: servers.iter().map(|(run_id, evicted)| ((*run_id).to_owned(), *evicted)).collect(),
            begun: true,
        };
        let fence = Some(Checkpoint::default());
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
            let loss = noted(servers).loss(fence, &now);
            assert_eq!(loss.is_some(), lost.is_some(), "{servers:?} {now:?} {loss:?}");
            assert!(lost.is_none_or(|lost| loss.is_some_and(|loss| loss.contains(lost))), "{servers:?} {now:?}");
        }
    }

    #[test]
    fn fence_and_count_of_batches_belong_together() {
        let noted = |begun| Noted { servers: Vec::new(), begun };
        assert_eq!(noted(false).loss(None, &server("a", 9)), None, "nothing was written, so nothing is lost");
        assert!(noted(true).loss(None, &server("a", 0)).is_some());
        assert!(noted(false).loss(Some(Checkpoint::default()), &server("a", 0)).is_some());
    }

    #[test]
    fn facts_are_read_from_info() {
        let facts = "run_id:abc\r\nused_memory:7\r\nmaxmemory:9\r\nmaxmemory_policy:allkeys-lru\r\nevicted_keys:12\r\n";
        let expected = Vitals { run_id: "abc".into(), evicted: 12, policy: "allkeys-lru".into(), used_bytes: 7, limit_bytes: 9 };
        assert_eq!(Vitals::of(facts), expected);
    }
}
