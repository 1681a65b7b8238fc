//! How values are written in Redis, and read back.

use ::redis::{Cmd, FromRedisValue, Value, cmd, from_redis_value};
use serde::{Deserialize, Serialize};

use crate::model::retention::Lifetimes;
use crate::model::task::id::TaskId;
use crate::store::MAX_PAGE;
use crate::store::keys::Keys;
use crate::store::{Checkpoint, Entry, Notice, Reservation, Stage, StoreError, TaskRecord, decode};

/// `offset version log_time_ms kept_bytes rebuild complete_at`.
pub(super) fn fence_text(fence: Checkpoint) -> String {
    let Checkpoint { offset, version, log_time_ms, kept_bytes, rebuild, complete_at } = fence;
    format!("{offset} {version} {log_time_ms} {kept_bytes} {rebuild} {complete_at}")
}

pub(super) fn read_fence(keys: &Keys, value: Value) -> Result<Option<Checkpoint>, StoreError> {
    let Some(bytes) = read::<Option<Vec<u8>>>(&keys.fence(), value)? else { return Ok(None) };
    let text = String::from_utf8_lossy(&bytes);
    let fence = parse_fence(&text);
    fence.map(Some).ok_or_else(|| unreadable(&keys.fence(), &text, &format!("delete the keys `{}`", keys.all())))
}

pub(super) fn read_lifetimes(keys: &Keys, value: Value) -> Result<Option<Lifetimes>, StoreError> {
    let key = keys.lifetimes();
    let Some(bytes) = read::<Option<Vec<u8>>>(&key, value)? else { return Ok(None) };
    let unreadable = |_| unreadable(&key, &String::from_utf8_lossy(&bytes), &format!("delete the keys `{}`", keys.all()));
    serde_json::from_slice(&bytes).map(Some).map_err(unreadable)
}

fn parse_fence(text: &str) -> Option<Checkpoint> {
    let mut parts = text.split(' ');
    let fence = Checkpoint {
        offset: parts.next()?.parse().ok()?,
        version: parts.next()?.parse().ok()?,
        log_time_ms: parts.next()?.parse().ok()?,
        kept_bytes: parts.next()?.parse().ok()?,
        rebuild: parts.next()?.parse().ok()?,
        complete_at: parts.next()?.parse().ok()?,
    };
    (parts.next().is_none() && fence.offset >= 0).then_some(fence)
}

fn unreadable(key: &str, value: &str, wipe: &str) -> StoreError {
    let value: String = value.chars().take(200).collect();
    StoreError::Invalid(format!("the value `{value}` of the key `{key}` cannot be read\n\nhint: {wipe}"))
}

/// An answer of the expected shape.
pub(super) fn read<T: FromRedisValue>(key: &str, value: Value) -> Result<T, StoreError> {
    from_redis_value(value).map_err(|error| StoreError::Invalid(format!("redis gave an unexpected answer for `{key}`: {error}")))
}

/// The answers to MGETs of these records.
pub(super) fn read_nodes(
    keys: &Keys,
    partition: u32,
    ids: &[TaskId],
    values: Vec<Value>,
) -> Result<Vec<Option<TaskRecord>>, StoreError> {
    let mut records = Vec::with_capacity(ids.len());
    for value in values {
        records.extend(read::<Vec<Option<Vec<u8>>>>(&keys.all(), value)?);
    }
    if records.len() != ids.len() {
        return Err(StoreError::Invalid(format!("redis answered {} of {} records", records.len(), ids.len())));
    }
    let wipe = format!("delete the keys `{}`", keys.all());
    ids.iter().zip(records).map(|(id, bytes)| bytes.map(|bytes| decode(partition, id, &bytes, &wipe)).transpose()).collect()
}

/// An answer of ZRANGE … WITHSCORES. Scores are whole milliseconds, which a double holds exactly for 285,000 years.
pub(super) fn read_entries(key: &str, value: Value) -> Result<Vec<Entry>, StoreError> {
    let pairs: Vec<(String, f64)> = read(key, value)?;
    let entry = |(member, score): (String, f64)| match TaskId::parse(&member) {
        Ok(id) => Ok(Entry { seen_ms: score as i64, id }),
        Err(_) => Err(unreadable(key, &member, "it is no task id: something else writes to this key")),
    };
    pairs.into_iter().map(entry).collect()
}

/// The first time of a set of times that comes after one, and the first ids of the list that is named after it.
const DONE: &str = "local due = redis.call('ZRANGE',KEYS[1],'('..ARGV[1],'+inf','BYSCORE','LIMIT',0,1)[1]\n\
    if not due then return {false,{}} end\n\
    return {due,redis.call('LRANGE',KEYS[1]..':'..due,0,ARGV[2])}";
/// Asks for the first ids under the first time after one.
pub(super) fn first_done(key: &str, after_ms: i64, limit: usize) -> Cmd {
    let mut script = cmd("EVAL");
    script.arg(DONE).arg(1).arg(key).arg(after_ms).arg(limit.clamp(1, MAX_PAGE) - 1);
    script
}

/// A time, and the ids of the roots that are removed then.
pub(super) fn read_done(key: &str, value: Value) -> Result<Vec<Entry>, StoreError> {
    let (due, ids): (Option<i64>, Vec<String>) = read(key, value)?;
    let entry = |member: String| match TaskId::parse(&member) {
        Ok(id) => Ok(Entry { seen_ms: due.unwrap_or_default(), id }),
        Err(_) => Err(unreadable(key, &member, "it is no task id: something else writes to this key")),
    };
    ids.into_iter().map(entry).collect()
}

/// `stage hash`; the stage is the position of the event, `@owner` while it is published, or `-` where that is in doubt.
pub(super) fn reservation_text(mark: &Reservation) -> String {
    let stage = match &mark.stage {
        Stage::Publishing { owner } => format!("@{owner}"),
        Stage::InDoubt => "-".to_owned(),
        Stage::Published(position) => position.to_string(),
    };
    format!("{stage} {}", mark.hash)
}

pub(super) fn read_reservation(key: &str, value: Value) -> Result<Option<Reservation>, StoreError> {
    let Some(text) = read::<Option<String>>(key, value)? else { return Ok(None) };
    parse_reservation(&text).map(Some).ok_or_else(|| unreadable(key, &text, "delete the key"))
}

fn parse_reservation(text: &str) -> Option<Reservation> {
    let (stage, hash) = text.split_once(' ')?;
    let stage = match (stage, stage.strip_prefix('@')) {
        (_, Some(owner)) => Stage::Publishing { owner: owner.to_owned() },
        ("-", _) => Stage::InDoubt,
        (position, _) => Stage::Published(position.parse().ok()?),
    };
    Some(Reservation { hash: hash.to_owned(), stage })
}

/// A notice on the channel.
#[derive(Serialize, Deserialize)]
struct Message {
    partition: u32,
    offset: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ids: Option<Vec<TaskId>>,
    /// In place of ids: too many to name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    many: bool,
}

pub(super) fn notice_text(notice: Notice) -> Option<String> {
    let Notice::Changed { partition, offset, ids } = notice else { return None };
    let many = ids.is_none();
    serde_json::to_string(&Message { partition, offset, ids, many }).ok()
}

/// What cannot be understood is a gap: something was said that this reader missed.
pub(super) fn parse_notice(text: &[u8]) -> Notice {
    match serde_json::from_slice::<Message>(text) {
        Ok(Message { partition, offset, ids, many }) => Notice::Changed { partition, offset, ids: ids.filter(|_| !many) },
        Err(_) => Notice::Gap,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::task::Position;

    #[test]
    fn a_fence_is_read_or_refused() {
        let fence =
            Checkpoint { offset: 42, version: 1, log_time_ms: 1_700_000_000_000, kept_bytes: 9, rebuild: 2, complete_at: 50 };
        assert_eq!(fence_text(fence), "42 1 1700000000000 9 2 50");
        assert_eq!(parse_fence("42 1 1700000000000 9 2 50"), Some(fence));
        let bad = ["", "42", "42 1 0 0 0", "42 1 x 0 0 0", "42 1 0 0 0 x", "42 1 0 0 0 0 0", "-1 1 0 0 0 0", "42  1 0 0 0 0"];
        for bad in bad.into_iter().chain(["42 1 0 -1 0 0"]) {
            assert_eq!(parse_fence(bad), None, "{bad:?}");
        }
        let told = read_fence(&Keys::new("k", 3), Value::BulkString(b"nonsense".to_vec())).unwrap_err().to_string();
        assert!(told.contains("`nonsense`") && told.contains("`k:{p3}:fence`") && told.contains("hint: "), "{told}");
    }

    #[test]
    fn reservations_and_notices_read_back() {
        let publishing = Stage::Publishing { owner: "one".into() };
        for stage in [publishing, Stage::InDoubt, Stage::Published(Position { partition: 3, offset: 42 })] {
            let mark = Reservation { hash: "a b".into(), stage };
            assert_eq!(parse_reservation(&reservation_text(&mark)), Some(mark));
        }
        assert_eq!(parse_reservation("x y"), None);
        for ids in [None, Some(vec![]), Some(vec![TaskId::parse("r:a").unwrap()])] {
            let notice = Notice::Changed { partition: 1, offset: 2, ids };
            assert_eq!(parse_notice(notice_text(notice.clone()).unwrap().as_bytes()), notice);
        }
        assert_eq!(parse_notice(b"what?"), Notice::Gap);
    }
}
