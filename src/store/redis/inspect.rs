//! Looks through the keys of a partition, on a connection of its own to the node that holds them.

use ::redis::aio::MultiplexedConnection;
use ::redis::{Value, cmd, pipe};
use async_trait::async_trait;
use std::sync::Arc;

use super::connection::Link;
use super::values::{read, read_fence};
use super::writer::{send, watch_at_owner};
use crate::store::inspect::{Inspector, Part, Piece, Wanted};
use crate::store::keys::Keys;
use crate::store::{Checkpoint, StoreError};

/// Keys looked at in one step of a scan.
const SCAN_COUNT: usize = 1_000;
/// Bytes after which an answer takes in no further key.
const ANSWER_BYTES: usize = 1 << 20;
/// Entries of a sorted set in one piece.
const WINDOW: usize = 1_000;
/// The fence, then type and contents of each key. Of a sorted set only a window: behind the entry that was seen last, or,
/// where it is gone, from the first that has its score.
const READ: &str = "
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

pub(super) struct Look {
    link: Arc<Link>,
    keys: Keys,
    connection: MultiplexedConnection,
    /// None: all names have been told.
    cursor: Option<String>,
}

impl Look {
    pub(super) async fn open(link: Arc<Link>, partition: u32) -> Result<Self, StoreError> {
        let keys = Keys::new(&link.options.prefix, partition);
        let (connection, ..) = watch_at_owner(&link, &keys).await.map_err(|error| link.explain(&error))?;
        Ok(Self { link, keys, connection, cursor: Some("0".to_owned()) })
    }

    async fn ask(&mut self, command: ::redis::Cmd) -> Result<Value, StoreError> {
        let mut commands = pipe();
        commands.add_command(command);
        let answer = send(&self.link, &mut self.connection, &commands).await?.pop().unwrap_or_default();
        answer.extract_error().map_err(|error| self.link.explain(&error))
    }
}

#[async_trait]
impl Inspector for Look {
    async fn names(&mut self) -> Result<Option<Vec<String>>, StoreError> {
        let Some(cursor) = self.cursor.take() else { return Ok(None) };
        let mut scan = cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg(self.keys.all()).arg("COUNT").arg(SCAN_COUNT);
        let answer = self.ask(scan).await?;
        let (next, mut names): (String, Vec<String>) = read(&self.keys.all(), answer)?;
        self.cursor = (next != "0").then_some(next);
        names.retain(|name| self.keys.is_folded(name));
        Ok(Some(names))
    }

    async fn read(&mut self, wanted: &[Wanted], values: bool) -> Result<(Option<Checkpoint>, Vec<Piece>), StoreError> {
        let mut script = cmd("EVAL");
        script.arg(READ).arg(wanted.len() + 1).arg(self.keys.fence());
        for one in wanted {
            script.arg(&one.key);
        }
        script.arg(ANSWER_BYTES).arg(WINDOW).arg(u8::from(values));
        for one in wanted {
            let (member, score) = one.after.as_ref().map_or((&b""[..], &b""[..]), |(member, score)| (member, score));
            script.arg(member).arg(score);
        }
        let Value::Array(answers) = self.ask(script).await? else {
            return Err(self.link.unavailable("an answer that makes no sense to EVAL"));
        };
        let mut answers = answers.into_iter();
        let fence = read_fence(&self.keys, answers.next().unwrap_or_default())?;
        let pieces = answers.zip(wanted).map(|(answer, one)| piece(&one.key, answer));
        Ok((fence, pieces.collect::<Result<_, _>>()?))
    }
}

fn piece(key: &str, answer: Value) -> Result<Piece, StoreError> {
    let (kind, values, rest): (String, Vec<Vec<u8>>, i64) = read(key, answer)?;
    let mut parts: Vec<Part> = match kind.as_str() {
        "hash" | "zset" => pairs(values),
        "list" => values.into_iter().enumerate().map(|(n, line)| (n.to_string().into_bytes(), line)).collect(),
        _ => values.into_iter().map(|value| (Vec::new(), value)).collect(),
    };
    if kind == "hash" {
        // A counter at zero goes with some later batch: it may be here and not there.
        parts.retain(|(_, value)| value != b"0");
    }
    if kind != "zset" {
        parts.sort();
    }
    let empty = kind == "hash" && parts.is_empty();
    Ok(Piece { kind: if empty { "none".to_owned() } else { kind }, parts, more: rest > 0 })
}

fn pairs(values: Vec<Vec<u8>>) -> Vec<Part> {
    let mut values = values.into_iter();
    std::iter::from_fn(|| Some((values.next()?, values.next()?))).collect()
}
