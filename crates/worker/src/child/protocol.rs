//! Protocol between a worker and a child process: JSON messages, each prefixed with its length as a little-endian
//! `u32`.

use std::io::{self, Read, Write};
use std::time::Duration;

use kafleet_handlers::context::KeptHeaders;
use kafleet_handlers::note::Note;
use kafleet_handlers::task_labels::TaskLabels;
use kafleet_handlers::{Child, Failure};
use kafleet_model::json::RawJson;
use kafleet_model::task::continuation::Continuation;
use kafleet_model::task::id::TaskId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Maximum message size: params and results have at most 3 MiB, plus the fields around them.
pub const MAX_MESSAGE_BYTES: usize = 8 << 20;

/// First message: the handler that the child process serves.
#[derive(Debug, Serialize, Deserialize)]
pub struct Handshake {
    pub task_type: String,
    /// Name of the handler in this binary.
    pub handler: String,
}

/// Message from the worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToChild {
    Handshake(Handshake),
    /// An attempt; the next one is sent only after its answer.
    Attempt(Box<TaskAssignment>),
    Cancel,
    /// Result of a [`FromChild::SpawnNow`].
    Spawned(Result<Vec<TaskId>, Failure>),
}

/// An attempt for a child process to run.
#[derive(Debug, Serialize, Deserialize)]
pub struct TaskAssignment {
    pub id: TaskId,
    pub run: u32,
    pub number: u32,
    pub worker: String,
    /// Time until the deadline.
    pub left: Option<Duration>,
    /// `traceparent` and `tracestate`.
    pub trace: Option<(String, Option<String>)>,
    /// `ce_asof` of the task: offset up to which cancels do not apply to it.
    pub asof: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<TaskLabels>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<KeptHeaders>,
    pub params: RawJson,
}

/// Message from the child process.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromChild {
    /// The handler is known; attempts are accepted.
    Ready,
    /// The handler cannot be served, with the reason.
    Unsupported(String),
    /// The attempt has started: a crash from here on is attributed to it.
    Begun,
    /// Output of the attempt. `counts`: it is also a sign of life.
    Note {
        note: Note,
        counts: bool,
    },
    /// Sign of life without output.
    Alive,
    /// Child of the `SpawnNow` or `Answer` that follows.
    Child(Box<Child>),
    /// Continuation of the `Answer` that follows.
    Continuation(Box<Continuation>),
    SpawnNow,
    Answer(Result<RawJson, Failure>),
}

/// Encodes a message with its length prefix.
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
    buffer.resize(check_length(size)?, 0);
    from.read_exact(buffer).await?;
    Ok(serde_json::from_slice(buffer)?)
}

pub fn receive_blocking<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    let mut size = [0; 4];
    from.read_exact(&mut size)?;
    let mut buffer = vec![0; check_length(size)?];
    from.read_exact(&mut buffer)?;
    Ok(serde_json::from_slice(&buffer)?)
}

pub fn send_blocking(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    to.write_all(&frame(message)?)
}

fn check_length(size: [u8; 4]) -> io::Result<usize> {
    let size = u32::from_le_bytes(size) as usize;
    if size <= MAX_MESSAGE_BYTES { Ok(size) } else { Err(io::Error::other("the received bytes are not a message")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn message_round_trip_keeps_the_message() {
        let mut bytes = Vec::new();
        let child =
            Child::new("leaf", json!({"n": 0.1})).id("x").key("k").ignore_failure().timeout(Duration::from_secs(3));
        send_blocking(&mut bytes, &FromChild::Child(Box::new(child.clone()))).unwrap();
        let failure = Failure::retry_after("later", Duration::from_millis(1500)).of_kind("busy".to_owned());
        send_blocking(&mut bytes, &FromChild::Answer(Err(failure.clone()))).unwrap();
        let mut from = bytes.as_slice();
        assert!(matches!(receive_blocking(&mut from).unwrap(), FromChild::Child(read) if *read == child));
        assert!(matches!(receive_blocking(&mut from).unwrap(), FromChild::Answer(Err(read)) if read == failure));
        assert!(from.is_empty());
    }

    #[test]
    fn params_keep_their_exact_text() {
        let params = RawJson::parse(b"{\"a\": 1.10, \"b\":10000000000000000000001}").unwrap();
        let message = ToChild::Attempt(Box::new(TaskAssignment {
            id: TaskId::parse("a:b").unwrap(),
            run: 2,
            number: 3,
            worker: "w".into(),
            left: Some(Duration::from_millis(5)),
            trace: None,
            asof: Some(7),
            labels: Some(TaskLabels { name: Some("n".into()), ..TaskLabels::default() }),
            headers: Some([("x-tenant".into(), "acme".into())].into()),
            params: params.clone(),
        }));
        let read: ToChild = receive_blocking(&mut frame(&message).unwrap().as_slice()).unwrap();
        assert!(
            matches!(read, ToChild::Attempt(read) if read.params == params && read.labels.is_some() && read.headers.is_some())
        );
    }

    #[test]
    fn message_that_is_too_large_is_refused_on_both_sides() {
        let large = RawJson::of(&"x".repeat(MAX_MESSAGE_BYTES)).unwrap();
        assert!(frame(&FromChild::Answer(Ok(large))).is_err());
        let claimed = (MAX_MESSAGE_BYTES as u32 + 1).to_le_bytes();
        assert!(receive_blocking::<FromChild>(&mut claimed.as_slice()).is_err());
    }
}
