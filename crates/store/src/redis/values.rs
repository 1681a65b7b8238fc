//! Text formats of values in Redis.

use std::sync::Arc;

use ::redis::{Cmd, FromRedisValue, Value, cmd, from_redis_value};
use kafleet_model::retention::Lifetimes;
use kafleet_model::task::id::TaskId;
use kafleet_model::unique::KeyState;
use serde::{Deserialize, Serialize};

use crate::MAX_PAGE;
use crate::keys::Keys;
use crate::{Checkpoint, Entry, Notice, Reservation, Stage, StoreError, TaskRecord, decode, decode_keys};

/// Hint for contents that this build cannot read. They may be those of another fleet or of a newer build, so nothing is
/// to be deleted.
pub(super) const ANOTHER_STORE_HINT: &str = "check that `[redis]` and the prefix are those of this fleet, and that no newer build \
                                        writes there; otherwise let trackers project into another, empty database \
                                        (`kafleet rebuild --into URL`)";

/// `offset version log_time_ms deferred_bytes rebuild complete_at`.
pub(super) fn checkpoint_text(checkpoint: Checkpoint) -> String {
    let Checkpoint { offset, version, log_time_ms, deferred_bytes, rebuild, complete_at } = checkpoint;
    format!("{offset} {version} {log_time_ms} {deferred_bytes} {rebuild} {complete_at}")
}

pub(super) fn read_checkpoint(keys: &Keys, value: Value) -> Result<Option<Checkpoint>, StoreError> {
    let Some(bytes) = read::<Option<Vec<u8>>>(&keys.checkpoint(), value)? else { return Ok(None) };
    let text = String::from_utf8_lossy(&bytes);
    let checkpoint = parse_checkpoint(&text);
    checkpoint.map(Some).ok_or_else(|| unreadable(&keys.checkpoint(), &text, ANOTHER_STORE_HINT))
}

pub(super) fn read_lifetimes(keys: &Keys, value: Value) -> Result<Option<Lifetimes>, StoreError> {
    let key = keys.lifetimes();
    let Some(bytes) = read::<Option<Vec<u8>>>(&key, value)? else { return Ok(None) };
    let unreadable = |_| unreadable(&key, &String::from_utf8_lossy(&bytes), ANOTHER_STORE_HINT);
    serde_json::from_slice(&bytes).map(Some).map_err(unreadable)
}

fn parse_checkpoint(text: &str) -> Option<Checkpoint> {
    let mut parts = text.split(' ');
    let checkpoint = Checkpoint {
        offset: parts.next()?.parse().ok()?,
        version: parts.next()?.parse().ok()?,
        log_time_ms: parts.next()?.parse().ok()?,
        deferred_bytes: parts.next()?.parse().ok()?,
        rebuild: parts.next()?.parse().ok()?,
        complete_at: parts.next()?.parse().ok()?,
    };
    (parts.next().is_none() && checkpoint.offset >= 0).then_some(checkpoint)
}

fn unreadable(key: &str, value: &str, hint: &str) -> StoreError {
    let value: String = value.chars().take(200).collect();
    StoreError::Invalid(format!("the value `{value}` of the key `{key}` cannot be read\n\nhint: {hint}"))
}

/// Converts an answer to the expected type.
pub(super) fn read<T: FromRedisValue>(key: &str, value: Value) -> Result<T, StoreError> {
    from_redis_value(value)
        .map_err(|error| StoreError::Invalid(format!("unexpected answer of redis for `{key}`: {error}")))
}

/// Decodes the answers to MGETs of these records.
pub(super) fn read_records(
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
        return Err(StoreError::Invalid(format!("redis returned {} of {} records", records.len(), ids.len())));
    }
    ids.iter()
        .zip(records)
        .map(|(id, bytes)| bytes.map(|bytes| decode(partition, id, &bytes, ANOTHER_STORE_HINT)).transpose())
        .collect()
}

/// Command that reads the states of keys of unique tasks.
pub(super) fn get_keys(keys: &Keys, tags: &[String]) -> Cmd {
    let mut command = cmd("MGET");
    for tag in tags {
        command.arg(keys.unique(tag));
    }
    command
}

/// Reads the answer of [`get_keys`].
pub(super) fn read_keys(
    keys: &Keys,
    partition: u32,
    tags: &[String],
    answer: Value,
) -> Result<Vec<Option<KeyState>>, StoreError> {
    let states: Vec<Option<Vec<u8>>> = read(&keys.all(), answer)?;
    if states.len() != tags.len() {
        return Err(StoreError::Invalid(format!("redis returned {} of {} unique keys", states.len(), tags.len())));
    }
    decode_keys(partition, tags, states, ANOTHER_STORE_HINT)
}

/// Parses an answer of ZRANGE … WITHSCORES. Scores are whole milliseconds, which a double holds exactly for 285,000
/// years.
pub(super) fn read_entries(key: &str, value: Value) -> Result<Vec<Entry>, StoreError> {
    let pairs: Vec<(String, f64)> = read(key, value)?;
    let entry = |(member, score): (String, f64)| match TaskId::parse(&member) {
        Ok(id) => Ok(Entry { seen_ms: score as i64, id }),
        Err(_) => Err(unreadable(key, &member, "it is not a task id: another application writes to this key")),
    };
    pairs.into_iter().map(entry).collect()
}

/// Returns the first time after `ARGV[1]` and the first ids of that time's list.
const READ_DONE: &str = "local due = redis.call('ZRANGE',KEYS[1],'('..ARGV[1],'+inf','BYSCORE','LIMIT',0,1)[1]\n\
    if not due then return {false,{}} end\n\
    return {due,redis.call('LRANGE',KEYS[1]..':'..due,0,ARGV[2])}";

/// Reads the first ids of the first time after `after_ms`.
pub(super) fn first_done(key: &str, after_ms: i64, limit: usize) -> Cmd {
    let mut script = cmd("EVAL");
    script.arg(READ_DONE).arg(1).arg(key).arg(after_ms).arg(limit.clamp(1, MAX_PAGE) - 1);
    script
}

/// Parses a removal time and the ids of its roots.
pub(super) fn read_done(key: &str, value: Value) -> Result<Vec<Entry>, StoreError> {
    let (due, ids): (Option<i64>, Vec<String>) = read(key, value)?;
    let entry = |member: String| match TaskId::parse(&member) {
        Ok(id) => Ok(Entry { seen_ms: due.unwrap_or_default(), id }),
        Err(_) => Err(unreadable(key, &member, "it is not a task id: another application writes to this key")),
    };
    ids.into_iter().map(entry).collect()
}

/// Formats a reservation as `stage hash`: the event's position, `@owner` while publishing, or `-` if in doubt.
pub(super) fn reservation_text(reservation: &Reservation) -> String {
    let stage = match &reservation.stage {
        Stage::Publishing { owner } => format!("@{owner}"),
        Stage::InDoubt => "-".to_owned(),
        Stage::Published(position) => position.to_string(),
    };
    format!("{stage} {}", reservation.hash)
}

pub(super) fn read_reservation(key: &str, value: Value) -> Result<Option<Reservation>, StoreError> {
    let Some(text) = read::<Option<String>>(key, value)? else { return Ok(None) };
    parse_reservation(&text)
        .map(Some)
        .ok_or_else(|| unreadable(key, &text, "another application or version wrote it; it expires by itself"))
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

/// JSON form of a notice.
#[derive(Serialize, Deserialize)]
struct NoticeMessage {
    partition: u32,
    offset: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ids: Option<Vec<TaskId>>,
    /// Set instead of ids when there are too many.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    many: bool,
    /// Absent: any types.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    types: Option<Vec<Arc<str>>>,
}

pub(super) fn notice_text(notice: Notice) -> Option<String> {
    let Notice::Changed { partition, offset, ids, types } = notice else { return None };
    let many = ids.is_none();
    serde_json::to_string(&NoticeMessage { partition, offset, ids, many, types }).ok()
}

/// Parses a notice. An invalid one counts as a gap, because its contents are lost.
pub(super) fn parse_notice(text: &[u8]) -> Notice {
    match serde_json::from_slice::<NoticeMessage>(text) {
        Ok(NoticeMessage { partition, offset, ids, many, types }) => {
            Notice::Changed { partition, offset, ids: ids.filter(|_| !many), types }
        }
        Err(_) => Notice::Gap,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafleet_model::task::Position;

    #[test]
    fn checkpoints_are_parsed_or_rejected() {
        let checkpoint = Checkpoint {
            offset: 42,
            version: 1,
            log_time_ms: 1_700_000_000_000,
            deferred_bytes: 9,
            rebuild: 2,
            complete_at: 50,
        };
        assert_eq!(checkpoint_text(checkpoint), "42 1 1700000000000 9 2 50");
        assert_eq!(parse_checkpoint("42 1 1700000000000 9 2 50"), Some(checkpoint));
        let bad =
            ["", "42", "42 1 0 0 0", "42 1 x 0 0 0", "42 1 0 0 0 x", "42 1 0 0 0 0 0", "-1 1 0 0 0 0", "42  1 0 0 0 0"];
        for bad in bad.into_iter().chain(["42 1 0 -1 0 0"]) {
            assert_eq!(parse_checkpoint(bad), None, "{bad:?}");
        }
        let message =
            read_checkpoint(&Keys::new("k", 3), Value::BulkString(b"nonsense".to_vec())).unwrap_err().to_string();
        assert!(
            message.contains("`nonsense`") && message.contains("`k:{p3}:checkpoint`") && message.contains("hint: "),
            "{message}"
        );
    }

    #[test]
    fn reservations_and_notices_round_trip() {
        let publishing = Stage::Publishing { owner: "one".into() };
        for stage in [publishing, Stage::InDoubt, Stage::Published(Position { partition: 3, offset: 42 })] {
            let reservation = Reservation { hash: "a b".into(), stage };
            assert_eq!(parse_reservation(&reservation_text(&reservation)), Some(reservation));
        }
        assert_eq!(parse_reservation("x y"), None);
        for ids in [None, Some(vec![]), Some(vec![TaskId::parse("r:a").unwrap()])] {
            let types = ids.as_ref().map(|_| vec!["echo".into()]);
            let notice = Notice::Changed { partition: 1, offset: 2, ids, types };
            assert_eq!(parse_notice(notice_text(notice.clone()).unwrap().as_bytes()), notice);
        }
        assert_eq!(parse_notice(b"what?"), Notice::Gap);
    }
}
