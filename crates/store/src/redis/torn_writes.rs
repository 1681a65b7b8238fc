//! Detection of torn batches, which Redis applied only in part.
//!
//! A Redis that stops while it writes a transaction to its append-only file leaves the first part of it there when it
//! starts again (Redis up to 8 and Valkey up to 9, wherever the cut is not between two commands). The damage appears
//! at the following start, which reads that part and the next transaction as one. Each batch therefore increments a
//! counter of begun batches and ends by writing that number as ended: the two differ after a partial application. The
//! partition is then emptied and projected again from the log. A partition that has lost keys is marked, with the
//! reason, and emptied in the same way.

use ::redis::aio::MultiplexedConnection;
use ::redis::{Pipeline, RedisResult, Value, cmd, from_redis_value, pipe};

use super::connection::{Connector, within};
use crate::keys::Keys;

const BEGUN: &str = "begun";
const ENDED: &str = "ended";
/// Reason for which the partition was marked as damaged.
const REASON: &str = "reason";
/// Value of `begun` in a partition that must be emptied.
const DAMAGED: i64 = -1;
/// Reason of a partition that has lost its checkpoint and its counters, but not all keys.
pub(super) const REMAINING_KEYS: &str = "its checkpoint and batch counts are missing, but other keys exist";
/// COUNT of a SCAN.
const SCAN_COUNT: usize = 1_000;

/// First command of a batch.
pub(super) fn begin(commands: &mut Pipeline, keys: &Keys) {
    commands.cmd("HINCRBY").arg(keys.batches()).arg(BEGUN).arg(1);
}

/// Last command of a batch. `number`: batches ended, including this one.
pub(super) fn end(commands: &mut Pipeline, keys: &Keys, number: u64) {
    commands.cmd("HSET").arg(keys.batches()).arg(ENDED).arg(number);
}

/// Marks the partition as damaged and deletes its checkpoint: the next open empties it. Applied only if nothing was
/// written since the connection's WATCH.
pub(super) fn mark_damaged(commands: &mut Pipeline, keys: &Keys, reason: &str) {
    commands.cmd("MULTI");
    commands.cmd("HSET").arg(keys.batches()).arg(BEGUN).arg(DAMAGED).arg(ENDED).arg(0).arg(REASON).arg(reason);
    commands.cmd("DEL").arg(keys.checkpoint());
    commands.cmd("EXEC");
}

/// Searches for keys of the partition other than reservations. If there are none, this scans all keys of the server;
/// it is called only for a partition without a checkpoint.
pub(super) async fn has_remains(
    connector: &Connector,
    keys: &Keys,
    connection: &mut MultiplexedConnection,
) -> RedisResult<bool> {
    let mut cursor = "0".to_owned();
    loop {
        let (next, keys_found) = scan(connector, keys, connection, &cursor).await?;
        if keys_found.iter().any(|key| !keys.is_reservation(key)) {
            return Ok(true);
        }
        if next == "0" {
            return Ok(false);
        }
        cursor = next;
    }
}

/// Reads one page of the partition's keys; returns the next cursor, `0` after the last page.
async fn scan(
    connector: &Connector,
    keys: &Keys,
    connection: &mut MultiplexedConnection,
    cursor: &str,
) -> RedisResult<(String, Vec<String>)> {
    let mut scan = cmd("SCAN");
    scan.arg(cursor).arg("MATCH").arg(keys.all()).arg("COUNT").arg(SCAN_COUNT);
    within(connector.options.response_timeout, scan.query_async(connection)).await
}

/// Reads both counters, and the reason of a damage.
pub(super) fn add_query(commands: &mut Pipeline, keys: &Keys) {
    commands.cmd("HMGET").arg(keys.batches()).arg(BEGUN).arg(ENDED).arg(REASON);
}

/// State derived from the two counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Batches {
    /// All batches were applied in full.
    Whole(u64),
    /// A part of a batch was applied, or keys were lost; with the reason.
    Damaged(String),
}

pub(super) fn read(fields: Value) -> RedisResult<Batches> {
    let (begun, ended, reason): (Option<i64>, Option<i64>, Option<String>) = from_redis_value(fields)?;
    Ok(match begun {
        Some(DAMAGED) => Batches::Damaged(reason.unwrap_or_else(|| "keys are missing".to_owned())),
        _ if begun != ended => Batches::Damaged("only a part of a batch was applied".to_owned()),
        _ => Batches::Whole(begun.unwrap_or(0).unsigned_abs()),
    })
}

/// Removes all keys of a partition except reservations. The checkpoint goes first, so that no writer continues from
/// it, and the counters last, so that no writer starts on remaining keys.
pub(super) async fn clear(
    connector: &Connector,
    keys: &Keys,
    connection: &mut MultiplexedConnection,
) -> RedisResult<()> {
    let mut cursor = "0".to_owned();
    let mut keys_to_remove = vec![keys.checkpoint()];
    loop {
        if !remove(connector, keys, connection, &keys_to_remove).await? {
            return Ok(());
        }
        if keys_to_remove.contains(&keys.batches()) {
            return Ok(());
        }
        (cursor, keys_to_remove) = scan(connector, keys, connection, &cursor).await?;
        keys_to_remove.retain(|key| *key != keys.batches() && !keys.is_reservation(key));
        if cursor == "0" {
            // SCAN has completed: the last result is the rest.
            remove(connector, keys, connection, &keys_to_remove).await?;
            keys_to_remove = vec![keys.batches()];
        }
    }
}

/// Deletes keys unless the partition is whole again. Returns false if another process emptied it meanwhile.
async fn remove(
    connector: &Connector,
    keys: &Keys,
    connection: &mut MultiplexedConnection,
    keys_to_remove: &[String],
) -> RedisResult<bool> {
    if keys_to_remove.is_empty() {
        return Ok(true);
    }
    let mut check = pipe();
    check.cmd("WATCH").arg(keys.batches());
    add_query(&mut check, keys);
    if matches!(read(send(connector, connection, &check).await?.pop().unwrap_or_default())?, Batches::Whole(_)) {
        return Ok(false);
    }
    let mut removal = pipe();
    removal.cmd("MULTI").cmd("UNLINK").arg(keys_to_remove).cmd("EXEC");
    Ok(send(connector, connection, &removal).await?.pop() != Some(Value::Nil))
}

async fn send(
    connector: &Connector,
    connection: &mut MultiplexedConnection,
    commands: &Pipeline,
) -> RedisResult<Vec<Value>> {
    let sent = within(connector.options.response_timeout, connection.send_packed_commands(commands, 0, commands.len()));
    sent.await?.into_iter().map(Value::extract_error).collect()
}
