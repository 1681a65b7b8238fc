//! Scan of a partition's keys, over a separate connection to the node that holds them.

use ::redis::aio::MultiplexedConnection;
use ::redis::{Value, cmd, pipe};
use async_trait::async_trait;
use std::sync::Arc;

use super::connection::Connector;
use super::values::{read, read_checkpoint};
use super::writer::{send, watch_at_owner};
use crate::inspect::{Inspector, KeyPart, KeyRequest, Piece};
use crate::keys::Keys;
use crate::{Checkpoint, StoreError};

/// Number of keys that a SCAN examines (its COUNT).
const SCAN_COUNT: usize = 1_000;
/// Bytes after which an answer includes no further key.
const ANSWER_BYTES: usize = 1 << 20;
/// Maximum entries of a sorted set per piece.
const WINDOW_ENTRIES: usize = 1_000;
/// Returns the checkpoint, then type and contents of each key. Sorted sets are read in windows, starting after the
/// last entry seen or, if that entry is gone, at the first entry with its score. Arguments: the byte budget, the size
/// of a window, `1` to read values, then per key the member and score after which to continue (empty: at the start).
const READ_SCRIPT: &str = "
local out,spent={redis.call('GET',KEYS[1])},0
local budget,window,values=tonumber(ARGV[1]),tonumber(ARGV[2]),ARGV[3]=='1'
for i=2,#KEYS do
  if spent>=budget then break end
  local key,kind=KEYS[i],redis.call('TYPE',KEYS[i]).ok
  local parts,rest={},0
  if not values then
  elseif kind=='string' then parts={redis.call('GET',key)}
  elseif kind=='hash' then parts=redis.call('HGETALL',key)
  elseif kind=='list' then parts=redis.call('LRANGE',key,0,-1)
  elseif kind=='set' then parts=redis.call('SMEMBERS',key)
  elseif kind=='zset' then
    local first,member,score=0,ARGV[2*i],ARGV[2*i+1]
    if score~='' then
      local rank=redis.call('ZRANK',key,member)
      if rank and redis.call('ZSCORE',key,member)==score then first=rank+1
      else first=redis.call('ZCOUNT',key,'-inf','('..score) end
    end
    parts=redis.call('ZRANGE',key,first,first+window-1,'WITHSCORES')
    rest=redis.call('ZCARD',key)-first-#parts/2
  end
  for n=1,#parts do spent=spent+#parts[n]+16 end
  out[#out+1]={kind,parts,rest}
end
return out";

/// Scan of one partition's keys.
pub(super) struct KeyScan {
    connector: Arc<Connector>,
    keys: Keys,
    connection: MultiplexedConnection,
    /// SCAN cursor; `None` after the last key.
    cursor: Option<String>,
}

impl KeyScan {
    pub(super) async fn open(connector: Arc<Connector>, partition: u32) -> Result<Self, StoreError> {
        let keys = Keys::new(&connector.options.prefix, partition);
        let (connection, ..) = watch_at_owner(&connector, &keys).await.map_err(|error| connector.explain(&error))?;
        Ok(Self { connector, keys, connection, cursor: Some("0".to_owned()) })
    }

    async fn query_server(&mut self, command: ::redis::Cmd) -> Result<Value, StoreError> {
        let mut commands = pipe();
        commands.add_command(command);
        let answer = send(&self.connector, &mut self.connection, &commands).await?.pop().unwrap_or_default();
        answer.extract_error().map_err(|error| self.connector.explain(&error))
    }
}

#[async_trait]
impl Inspector for KeyScan {
    async fn names(&mut self) -> Result<Option<Vec<String>>, StoreError> {
        let Some(cursor) = self.cursor.take() else { return Ok(None) };
        let mut scan = cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg(self.keys.all()).arg("COUNT").arg(SCAN_COUNT);
        let answer = self.query_server(scan).await?;
        let (next, mut names): (String, Vec<String>) = read(&self.keys.all(), answer)?;
        self.cursor = (next != "0").then_some(next);
        names.retain(|name| self.keys.is_folded(name));
        Ok(Some(names))
    }

    async fn read(
        &mut self,
        requests: &[KeyRequest],
        values: bool,
    ) -> Result<(Option<Checkpoint>, Vec<Piece>), StoreError> {
        let Value::Array(answers) = self.query_server(read_script(&self.keys, requests, values)).await? else {
            return Err(self.connector.unavailable("the script that reads keys did not return an array"));
        };
        let mut answers = answers.into_iter();
        let checkpoint = read_checkpoint(&self.keys, answers.next().unwrap_or_default())?;
        let pieces = answers.zip(requests).map(|(answer, request)| piece(&request.key, answer, values));
        Ok((checkpoint, pieces.collect::<Result<_, _>>()?))
    }
}

/// Call of the script that reads the checkpoint and these keys.
fn read_script(keys: &Keys, requests: &[KeyRequest], values: bool) -> ::redis::Cmd {
    let mut script = cmd("EVAL");
    script.arg(READ_SCRIPT).arg(requests.len() + 1).arg(keys.checkpoint());
    for request in requests {
        script.arg(&request.key);
    }
    script.arg(ANSWER_BYTES).arg(WINDOW_ENTRIES).arg(u8::from(values));
    for KeyRequest { after, .. } in requests {
        let (member, score) = after.as_ref().map_or((&b""[..], &b""[..]), |(member, score)| (member, score));
        script.arg(member).arg(score);
    }
    script
}

/// Converts the script's answer for one key. Without values, the parts are empty whatever the key contains.
fn piece(key: &str, answer: Value, has_values: bool) -> Result<Piece, StoreError> {
    let (kind, values, rest): (String, Vec<Vec<u8>>, i64) = read(key, answer)?;
    let mut parts: Vec<KeyPart> = match kind.as_str() {
        "hash" | "zset" => pairs(values),
        "list" => values.into_iter().enumerate().map(|(n, line)| (n.to_string().into_bytes(), line)).collect(),
        _ => values.into_iter().map(|value| (Vec::new(), value)).collect(),
    };
    if kind == "hash" {
        // A counter at zero is removed by a later batch, so it may exist in only one of the two stores.
        parts.retain(|(_, value)| value != b"0");
    }
    if kind != "zset" {
        parts.sort();
    }
    let empty = has_values && kind == "hash" && parts.is_empty();
    Ok(Piece { kind: if empty { "none".to_owned() } else { kind }, parts, more: rest > 0 })
}

fn pairs(values: Vec<Vec<u8>>) -> Vec<KeyPart> {
    let mut values = values.into_iter();
    std::iter::from_fn(|| Some((values.next()?, values.next()?))).collect()
}
