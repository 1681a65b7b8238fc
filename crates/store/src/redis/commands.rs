//! Redis commands that kafleet uses, as the only table of them: `docs/production.md` is generated from it, `doctor`
//! probes each, and a test compares it with the commands in this folder.

use std::time::Duration;

use ::redis::{Cmd, pipe};
use futures::StreamExt;

use super::Redis;
use super::connection::{Connector, within};
use super::values::notice_text;
use super::writer::{query_server, watch_at_owner};
use crate::keys::{self, Keys};
use crate::{Notice, StoreError};

/// Maximum time until a published notice arrives.
const NOTICE_DEADLINE: Duration = Duration::from_secs(5);
/// TTL of the probe's string, in milliseconds.
const PROBE_MS: &str = "1000";

/// Commands of one kind.
pub struct RedisCommands {
    pub names: &'static [&'static str],
    pub purpose: &'static str,
}

/// All commands, by their use.
pub const COMMANDS: &[RedisCommands] = &[
    RedisCommands {
        names: &["GET", "MGET", "HGET", "HMGET", "HGETALL", "LRANGE", "ZRANGE", "ZRANK", "ZSCORE", "ZCARD", "ZCOUNT"],
        purpose: "reads of records, indexes, counters and logs",
    },
    RedisCommands {
        names: &[
            "SET",
            "MSET",
            "DEL",
            "UNLINK",
            "HSET",
            "HDEL",
            "HINCRBY",
            "LPUSH",
            "RPUSH",
            "LTRIM",
            "ZADD",
            "ZREM",
            "ZINCRBY",
            "ZREMRANGEBYSCORE",
        ],
        purpose: "the projection, by trackers; reservations of ids, by APIs",
    },
    RedisCommands { names: &["WATCH", "MULTI", "EXEC"], purpose: "a batch of a tracker changes all keys or none" },
    RedisCommands {
        names: &["EVAL", "EXISTS", "PTTL", "TYPE", "SMEMBERS"],
        purpose: "reads of several keys as of one checkpoint, in scripts; their commands need the permission too",
    },
    RedisCommands { names: &["SCAN"], purpose: "searches for remains of a lost partition; `kafleet rebuild`" },
    RedisCommands {
        names: &["PUBLISH", "SUBSCRIBE", "PING"],
        purpose: "change notices, on the channel `kafleet:notices`",
    },
    RedisCommands { names: &["INFO"], purpose: "version, role, eviction policy, memory and evicted keys" },
    RedisCommands { names: &["CLUSTER", "ASKING"], purpose: "only in a cluster: its nodes, and slots that move" },
    RedisCommands { names: &["CONFIG"], purpose: "optional: `doctor` checks settings with `CONFIG GET`" },
];

/// Table in Markdown.
pub fn markdown() -> String {
    let mut text = "| commands | purpose |\n|---|---|\n".to_owned();
    for RedisCommands { names, purpose } in COMMANDS {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        text.push_str(&format!("| {} | {purpose} |\n", names.join(" ")));
    }
    text
}

/// Probe of a command on keys of a partition; `None`: it needs none of its own.
fn probe_of(name: &str, keys: &Keys) -> Option<Cmd> {
    let key = |kind: &str| format!("{}{kind}", keys.probe());
    let (text, hash, list, sorted) = (key(""), key(":hash"), key(":list"), key(":sorted"));
    let words: Vec<&str> = match name {
        "SET" => vec![&text, "", "PX", PROBE_MS],
        "MSET" => vec![&text, ""],
        "HSET" => vec![&hash, "f", "0"],
        "HINCRBY" => vec![&hash, "f", "1"],
        "HGET" | "HMGET" | "HDEL" => vec![&hash, "f"],
        "HGETALL" => vec![&hash],
        "LPUSH" | "RPUSH" => vec![&list, ""],
        "LRANGE" | "LTRIM" => vec![&list, "0", "0"],
        "ZADD" | "ZINCRBY" => vec![&sorted, "0", "m"],
        "ZRANK" | "ZSCORE" | "ZREM" => vec![&sorted, "m"],
        "ZCARD" => vec![&sorted],
        "ZRANGE" | "ZCOUNT" | "ZREMRANGEBYSCORE" => vec![&sorted, "0", "0"],
        "SMEMBERS" => vec![&text],
        "SCAN" => vec!["0", "MATCH", &text, "COUNT", "1"],
        "EVAL" => vec!["return redis.call('GET',KEYS[1])", "1", &text],
        "INFO" => vec!["server"],
        "PING" => vec![],
        "GET" | "MGET" | "DEL" | "EXISTS" | "PTTL" | "TYPE" | "UNLINK" => vec![&text],
        // A transaction begins with WATCH and ends with EXEC; notices are probed on connections of their own; the
        // others are needed by some deployments only.
        _ => return None,
    };
    let mut command = ::redis::cmd(name);
    command.arg(words);
    Some(command)
}

/// Sends each command that roles use, on separate keys that are deleted afterwards.
pub(super) async fn probe(redis: &Redis, partitions: u32) -> Result<(), StoreError> {
    let connector = &*redis.connector;
    for partition in 0..partitions {
        probe_partition(connector, &redis.keys(partition)).await?;
    }
    probe_notices(connector).await
}

async fn probe_partition(connector: &Connector, keys: &Keys) -> Result<(), StoreError> {
    // A separate connection, because a WATCH affects every transaction sent over it.
    let (mut connection, ..) = watch_at_owner(connector, keys).await.map_err(|error| connector.explain(&error))?;
    let mut commands = pipe();
    commands.cmd("MULTI").cmd("GET").arg(keys.probe()).cmd("EXEC");
    let names = COMMANDS.iter().flat_map(|group| group.names);
    // A read of a set fails on the string of the probe, so it comes first.
    let (sets, others): (Vec<&str>, Vec<&str>) = names.partition(|name| **name == "SMEMBERS");
    for command in sets.into_iter().chain(others).filter_map(|name| probe_of(name, keys)) {
        commands.add_command(command);
    }
    let kinds = ["", ":hash", ":list", ":sorted"];
    commands.cmd("UNLINK").arg(kinds.map(|kind| format!("{}{kind}", keys.probe())).as_slice());
    query_server(connector, &mut connection, &commands).await.map(drop)
}

/// Publishes a notice that changes nothing and waits until it arrives.
async fn probe_notices(connector: &Connector) -> Result<(), StoreError> {
    let explain = |error: ::redis::RedisError| connector.explain(&error);
    let channel = keys::notices(&connector.options.prefix);
    let (mut subscription, mut messages) = connector.pubsub().await.map_err(explain)?.split();
    within(NOTICE_DEADLINE, subscription.subscribe(&channel)).await.map_err(explain)?;
    let nothing = Notice::Changed { partition: 0, offset: 0, ids: Some(Vec::new()), types: Some(Vec::new()) };
    let (mut connection, _) = connector.connect().await.map_err(explain)?;
    let mut publish = pipe();
    publish.cmd("PUBLISH").arg(&channel).arg(notice_text(nothing).unwrap_or_default());
    query_server(connector, &mut connection, &publish).await?;
    match tokio::time::timeout(NOTICE_DEADLINE, messages.next()).await {
        Ok(Some(_)) => Ok(()),
        _ => Err(connector.unavailable(&format!(
            "a message published on the channel `{channel}` did not arrive within {} s\n\nhint: give the user of \
             trackers and APIs the channel (`&{channel}`)",
            NOTICE_DEADLINE.as_secs()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// Words in capitals after `marker` and before the next quote, in all files of a folder.
    fn words(folder: &Path, marker: &str, collected: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                words(&path, marker, collected);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for part in text.split(marker).skip(1) {
                let name: String = part.chars().take_while(char::is_ascii_uppercase).collect();
                collected.extend((name.len() > 2).then_some(name));
            }
        }
    }

    #[test]
    fn table_has_each_command_of_this_folder() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/redis");
        let mut used = BTreeSet::new();
        for marker in ["cmd(\"", "redis.call('", "redis.pcall('", "&[\""] {
            words(&folder, marker, &mut used);
        }
        let listed: BTreeSet<String> =
            COMMANDS.iter().flat_map(|group| group.names).map(|name| (*name).to_owned()).collect();
        let missing: Vec<&String> = used.difference(&listed).collect();
        assert!(used.len() > 30 && missing.is_empty(), "not in the table: {missing:?}");
    }
}
