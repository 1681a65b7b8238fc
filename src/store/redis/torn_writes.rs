//! Batches that Redis has torn apart by itself.
//!
//! A Redis that ends in the middle of writing a transaction to its append-only file leaves the first part of it there when it
//! starts again (Redis up to 8 and Valkey up to 9, wherever the cut is not between two commands). Nothing is wrong until the
//! start after that one, which takes that part and the next transaction for one. So each batch counts up the batches begun, and
//! says with how many begun it ends: the two numbers differ once a part of one was applied. The partition is then emptied,
//! and folded again from the log. A partition that has lost keys is marked in the same way, and emptied like this.

use ::redis::aio::MultiplexedConnection;
use ::redis::{Pipeline, RedisResult, Value, cmd, from_redis_value, pipe};

use super::connection::{Link, within};
use crate::store::keys::Keys;

const BEGUN: &str = "begun";
const ENDED: &str = "ended";
/// The number of batches begun in a partition that is to be emptied.
const CONDEMNED: i64 = -1;
/// Keys looked at in one step.
const STEP: usize = 1_000;

/// The first command of a batch.
pub(super) fn begin(commands: &mut Pipeline, keys: &Keys) {
    commands.cmd("HINCRBY").arg(keys.batches()).arg(BEGUN).arg(1);
}

/// One of the last; `number` batches have ended with this one.
pub(super) fn end(commands: &mut Pipeline, keys: &Keys, number: u64) {
    commands.cmd("HSET").arg(keys.batches()).arg(ENDED).arg(number);
}

/// Makes the numbers differ, and takes the fence away: whoever opens the partition next empties it. Applied only if nobody has
/// written since the connection's WATCH.
pub(super) fn condemn(commands: &mut Pipeline, keys: &Keys) {
    commands.cmd("MULTI");
    commands.cmd("HSET").arg(keys.batches()).arg(BEGUN).arg(CONDEMNED).arg(ENDED).arg(0);
    commands.cmd("DEL").arg(keys.fence());
    commands.cmd("EXEC");
}

/// Asks for both numbers.
pub(super) fn ask(commands: &mut Pipeline, keys: &Keys) {
    commands.cmd("HMGET").arg(keys.batches()).arg(BEGUN).arg(ENDED);
}

/// What the two numbers say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Batches {
    /// So many were applied, each in whole.
    Whole(u64),
    /// A part of one was applied.
    Torn,
    /// The partition has lost keys, and somebody has said so.
    Condemned,
}

pub(super) fn read(numbers: Value) -> RedisResult<Batches> {
    let (begun, ended): (Option<i64>, Option<i64>) = from_redis_value(numbers)?;
    Ok(match begun {
        Some(CONDEMNED) => Batches::Condemned,
        _ if begun != ended => Batches::Torn,
        _ => Batches::Whole(begun.unwrap_or(0).unsigned_abs()),
    })
}

/// Removes everything of a partition but reservations: its fence first, so that nobody goes on from there, and the numbers last, so that nobody
/// begins on what is left.
pub(super) async fn clear(link: &Link, keys: &Keys, connection: &mut MultiplexedConnection) -> RedisResult<()> {
    let mut cursor = "0".to_owned();
    let mut gone = vec![keys.fence()];
    loop {
        if !remove(link, keys, connection, &gone).await? {
            return Ok(());
        }
        if gone.contains(&keys.batches()) {
            return Ok(());
        }
        let mut scan = cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg(keys.all()).arg("COUNT").arg(STEP);
        let found = within(link.options.response_timeout, scan.query_async::<(String, Vec<String>)>(connection)).await?;
        (cursor, gone) = found;
        gone.retain(|key| *key != keys.batches() && !keys.is_reservation(key));
        if cursor == "0" {
            // SCAN goes round once: what it ends with is the rest.
            remove(link, keys, connection, &gone).await?;
            gone = vec![keys.batches()];
        }
    }
}

/// Says whether it was still to be done: somebody else may have been faster, and folds again by now.
async fn remove(link: &Link, keys: &Keys, connection: &mut MultiplexedConnection, gone: &[String]) -> RedisResult<bool> {
    if gone.is_empty() {
        return Ok(true);
    }
    let mut look = pipe();
    look.cmd("WATCH").arg(keys.batches());
    ask(&mut look, keys);
    if matches!(read(send(link, connection, &look).await?.pop().unwrap_or_default())?, Batches::Whole(_)) {
        return Ok(false);
    }
    let mut removal = pipe();
    removal.cmd("MULTI").cmd("UNLINK").arg(gone).cmd("EXEC");
    Ok(send(link, connection, &removal).await?.pop() != Some(Value::Nil))
}

async fn send(link: &Link, connection: &mut MultiplexedConnection, commands: &Pipeline) -> RedisResult<Vec<Value>> {
    let sent = within(link.options.response_timeout, connection.send_packed_commands(commands, 0, commands.len()));
    sent.await?.into_iter().map(Value::extract_error).collect()
}
