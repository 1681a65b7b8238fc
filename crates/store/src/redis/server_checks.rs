//! Checks of the version and configuration of every master.

use ::redis::aio::MultiplexedConnection;
use ::redis::{ConnectionInfo, FromRedisValue, Value, cmd, from_redis_value};

use super::connection::{Connector, within};
use super::url::Address;
use crate::{MemoryUse, StoreError};

/// Oldest version with all commands in use.
const MIN_VERSION: (u32, u32) = (6, 2);

pub(super) async fn check(connector: &Connector) -> Result<(), StoreError> {
    for (mut connection, info) in connect_to_masters(connector).await? {
        check_node(connector, &mut connection, &info).await?;
    }
    Ok(())
}

/// Memory of each server that has a limit.
pub(super) async fn memory(connector: &Connector) -> Result<Vec<MemoryUse>, StoreError> {
    let mut uses = Vec::new();
    for (mut connection, info) in connect_to_masters(connector).await? {
        let facts: String = query_server(connector, &mut connection, &["INFO", "memory"]).await?;
        let number = |name| fact(&facts, name).and_then(|text| text.parse().ok()).unwrap_or(0);
        let (used_bytes, limit_bytes) = (number("used_memory"), number("maxmemory"));
        let server = info.addr().to_string();
        uses.extend((limit_bytes > 0).then_some(MemoryUse { server, used_bytes, limit_bytes }));
    }
    Ok(uses)
}

/// Connects to the master, or to all masters of a cluster.
pub(super) async fn connect_to_masters(
    connector: &Connector,
) -> Result<Vec<(MultiplexedConnection, ConnectionInfo)>, StoreError> {
    let (mut connection, info) = connector.connect().await.map_err(|error| connector.explain(&error))?;
    if !matches!(connector.address, Address::Cluster(_)) {
        return Ok(vec![(connection, info)]);
    }
    let slots = query_server(connector, &mut connection, &["CLUSTER", "SLOTS"]).await?;
    let mut connected = Vec::new();
    for (host, port) in masters(slots) {
        connected.push(connector.connect_to(&host, port, &info).await.map_err(|error| connector.explain(&error))?);
    }
    Ok(connected)
}

pub(super) async fn query_server<T: FromRedisValue>(
    connector: &Connector,
    connection: &mut MultiplexedConnection,
    words: &[&str],
) -> Result<T, StoreError> {
    let command = cmd(words[0]).arg(&words[1..]).take();
    let answer = within(connector.options.response_timeout, command.query_async(connection)).await;
    answer.map_err(|error| connector.explain(&error))
}

/// Parses the masters in an answer of CLUSTER SLOTS: `[[first, last, [host, port, …], replicas…], …]`.
fn masters(slots: Vec<Value>) -> Vec<(String, u16)> {
    let master = |range: Value| -> Option<(String, u16)> {
        let Value::Array(range) = range else { return None };
        let Value::Array(node) = range.into_iter().nth(2)? else { return None };
        let mut node = node.into_iter();
        let host: Option<String> = from_redis_value(node.next()?).ok()?;
        Some((host.unwrap_or_default(), from_redis_value(node.next()?).ok()?))
    };
    let mut masters: Vec<_> = slots.into_iter().filter_map(master).collect();
    masters.sort();
    masters.dedup();
    masters
}

async fn check_node(
    connector: &Connector,
    connection: &mut MultiplexedConnection,
    info: &ConnectionInfo,
) -> Result<(), StoreError> {
    // One section per call, because old versions accept only one.
    let mut facts = String::new();
    for section in ["server", "memory", "cluster", "replication"] {
        facts += &query_server::<String>(connector, connection, &["INFO", section]).await?;
    }
    let in_cluster = matches!(connector.address, Address::Cluster(_));
    check_info(&facts, in_cluster)
        .map_err(|problem| StoreError::Misconfigured(format!("redis at `{}` {problem}", info.addr())))
}

/// Value of a line of INFO.
pub(super) fn fact<'a>(facts: &'a str, name: &str) -> Option<&'a str> {
    facts.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Describes an eviction policy that may drop keys.
pub(super) fn policy_problem(policy: &str, is_limited: bool) -> Option<String> {
    (is_limited && !matches!(policy, "" | "noeviction")).then(|| {
        format!(
            "evicts keys when memory is short (maxmemory-policy `{policy}`)\n\nhint: set maxmemory-policy to noeviction"
        )
    })
}

/// Checks the INFO of a server. The error completes a sentence that begins with the server, for people.
fn check_info(facts: &str, in_cluster: bool) -> Result<(), String> {
    let fact = |name: &str| fact(facts, name);
    check_version(fact("redis_version").unwrap_or_default())?;
    let is_limited = fact("maxmemory").is_some_and(|limit| limit != "0");
    if let Some(problem) = policy_problem(fact("maxmemory_policy").unwrap_or_default(), is_limited) {
        return Err(problem);
    }
    if !in_cluster && fact("cluster_enabled") == Some("1") {
        return Err("is part of a cluster\n\nhint: write the URL as redis-cluster://host:port".into());
    }
    if !in_cluster && fact("role") == Some("slave") {
        return Err(
            "is a replica, which accepts no writes\n\nhint: name its master, or the sentinels as redis-sentinel://host:port/master-name".into(),
        );
    }
    Ok(())
}

fn check_version(version: &str) -> Result<(), String> {
    let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
    let (major, minor) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if (major, minor) < MIN_VERSION {
        return Err(format!(
            "has version `{version}`\n\nhint: version {}.{} or later is needed",
            MIN_VERSION.0, MIN_VERSION.1
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsuitable_servers_are_rejected_with_a_hint() {
        let good = "# Server\r\nredis_version:7.2.4\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\nrole:master\r\n";
        assert_eq!(check_info(good, false), Ok(()));
        assert_eq!(
            check_info(&good.replace("noeviction", "allkeys-lru"), false),
            Ok(()),
            "without a limit nothing is evicted"
        );
        for (old, new, expected) in [
            ("7.2.4", "6.0.16", "version `6.0.16`"),
            ("7.2.4", "nonsense", "version `nonsense`"),
            (
                "maxmemory:0\r\nmaxmemory_policy:noeviction",
                "maxmemory:100\r\nmaxmemory_policy:allkeys-lru",
                "`allkeys-lru`",
            ),
            ("role:master", "role:master\r\ncluster_enabled:1", "redis-cluster://"),
            ("role:master", "role:slave", "is a replica"),
        ] {
            let message = check_info(&good.replace(old, new), false).unwrap_err();
            assert!(message.contains(expected) && message.contains("hint: "), "{message}");
        }
    }
}
