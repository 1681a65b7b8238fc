//! What a worker and its cell say to one another: JSON, each message behind its length in four bytes, little end first.

use std::io::{self, Read, Write};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::handlers::context::Note;
use crate::handlers::{Child, Failure};
use crate::model::json::RawJson;
use crate::model::task::continuation::Continuation;
use crate::model::task::id::TaskId;

/// Params and results have 3 MiB at most, and some more around them.
pub const MAX_MESSAGE_BYTES: usize = 8 << 20;

/// The first message: which handler the cell is for.
#[derive(Debug, Serialize, Deserialize)]
pub struct Handshake {
    pub task_type: String,
    /// The name that the handler has in this binary.
    pub handler: String,
}

/// From the worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToChild {
    Handshake(Handshake),
    /// One attempt; the next comes after its answer.
    Attempt(Box<TaskAssignment>),
    Cancel,
    /// The answer to a [`FromChild::SpawnNow`].
    Spawned(Result<Vec<TaskId>, Failure>),
}

#[derive(Debug, Serialize, Deserialize)]
pub struct TaskAssignment {
    pub id: TaskId,
    pub run: u32,
    pub number: u32,
    pub worker: String,
    pub left: Option<Duration>,
    pub trace: Option<(String, Option<String>)>,
    pub asof: Option<i64>,
    pub params: RawJson,
}

/// From the cell.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromChild {
    /// It knows the handler and takes attempts.
    Ready,
    /// Why it does not.
    Unsupported(String),
    /// The attempt has begun: from here on a death is its own.
    Begun,
    /// `counts`: it is a sign of life.
    Note {
        note: Note,
        counts: bool,
    },
    Alive,
    /// A child, for the `SpawnNow` or the `Answer` that follows.
    Child(Box<Child>),
    /// What is to follow, for the `Answer` that follows.
    Continuation(Box<Continuation>),
    SpawnNow,
    Answer(Result<RawJson, Failure>),
}

/// A message as it is sent.
pub fn frame(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let size = bytes.len() - 4;
    if size > MAX_MESSAGE_BYTES {
        return Err(io::Error::other(format!("a message of {size} bytes: at most {MAX_MESSAGE_BYTES} are allowed")));
    }
    bytes[..4].copy_from_slice(&(size as u32).to_le_bytes());
    Ok(bytes)
}

pub async fn receive<T: DeserializeOwned>(from: &mut (impl AsyncRead + Unpin), buffer: &mut Vec<u8>) -> io::Result<T> {
    let mut size = [0; 4];
    from.read_exact(&mut size).await?;
    buffer.resize(checked(size)?, 0);
    from.read_exact(buffer).await?;
    Ok(serde_json::from_slice(buffer)?)
}

pub fn receive_blocking<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    let mut size = [0; 4];
    from.read_exact(&mut size)?;
    let mut buffer = vec![0; checked(size)?];
    from.read_exact(&mut buffer)?;
    Ok(serde_json::from_slice(&buffer)?)
}

pub fn send_blocking(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    to.write_all(&frame(message)?)
}

fn checked(size: [u8; 4]) -> io::Result<usize> {
    let size = u32::from_le_bytes(size) as usize;
    if size <= MAX_MESSAGE_BYTES { Ok(size) } else { Err(io::Error::other("what came is not a message")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_message_comes_back_as_it_was_sent() {
        let mut bytes = Vec::new();
        let child = Child::new("leaf", json!({"n": 0.1})).id("x").key("k").ignore_failure().timeout(Duration::from_secs(3));
        send_blocking(&mut bytes, &FromChild::Child(Box::new(child.clone()))).unwrap();
        let failure = Failure::retry_after("later", Duration::from_millis(1500)).of_kind("busy".to_owned());
        send_blocking(&mut bytes, &FromChild::Answer(Err(failure.clone()))).unwrap();
        let mut from = bytes.as_slice();
        assert!(matches!(receive_blocking(&mut from).unwrap(), FromChild::Child(read) if *read == child));
        assert!(matches!(receive_blocking(&mut from).unwrap(), FromChild::Answer(Err(read)) if read == failure));
        assert!(from.is_empty());
    }

    #[test]
    fn params_and_results_are_carried_as_they_are_written() {
        let params = RawJson::parse(b"{\"a\": 1.10, \"b\":10000000000000000000001}").unwrap();
        let order = ToChild::Attempt(Box::new(TaskAssignment {
            id: TaskId::parse("a:b").unwrap(),
            run: 2,
            number: 3,
            worker: "w".into(),
            left: Some(Duration::from_millis(5)),
            trace: None,
            asof: Some(7),
            params: params.clone(),
        }));
        let read: ToChild = receive_blocking(&mut frame(&order).unwrap().as_slice()).unwrap();
        assert!(matches!(read, ToChild::Attempt(read) if read.params == params && read.number == 3));
    }

    #[test]
    fn what_is_too_large_is_refused_on_both_sides() {
        let large = RawJson::of(&"x".repeat(MAX_MESSAGE_BYTES)).unwrap();
        assert!(frame(&FromChild::Answer(Ok(large))).is_err());
        let claimed = (MAX_MESSAGE_BYTES as u32 + 1).to_le_bytes();
        assert!(receive_blocking::<FromChild>(&mut claimed.as_slice()).is_err());
    }
}
