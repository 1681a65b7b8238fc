//! Stream between a worker and a simulated process, which behaves like a socket: data survives the end of its sender,
//! and the worker gets a reset if the process ends without having read everything.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

#[derive(Default)]
struct StreamState {
    to_app: Vec<u8>,
    to_worker: VecDeque<u8>,
    /// The worker has ended its direction.
    has_ended: bool,
    /// The process has ended, and had read everything or not.
    is_gone: bool,
    is_reset: bool,
    app: Option<Waker>,
    worker: Option<Waker>,
}

/// Sending half of the process. Cheap to clone.
#[derive(Clone)]
pub struct Sender(Arc<Mutex<StreamState>>);

/// Receiving half of the process. Dropping it closes the stream.
pub struct Receiver(Arc<Mutex<StreamState>>);

pub struct WorkerReader(Arc<Mutex<StreamState>>);

pub struct WorkerWriter(Arc<Mutex<StreamState>>);

pub fn open() -> (Sender, Receiver, WorkerReader, WorkerWriter) {
    let state = Arc::<Mutex<StreamState>>::default();
    (Sender(state.clone()), Receiver(state.clone()), WorkerReader(state.clone()), WorkerWriter(state))
}

impl Sender {
    pub fn send(&self, message: &Value) {
        self.send_line(&message.to_string());
    }

    pub fn send_line(&self, line: &str) {
        let mut state = self.0.lock();
        state.to_worker.extend(line.as_bytes());
        state.to_worker.push_back(b'\n');
        state.worker.take().into_iter().for_each(Waker::wake);
    }
}

impl Receiver {
    /// Waits until a line can be read, and returns it without reading it. `None`: the stream has ended.
    pub async fn peek(&self) -> Option<Value> {
        std::future::poll_fn(|cx| {
            let mut state = self.0.lock();
            if let Some(line) = state.to_app.split(|byte| *byte == b'\n').next().filter(|_| !state.to_app.is_empty()) {
                return Poll::Ready(Some(serde_json::from_slice(line).unwrap()));
            }
            state.app = Some(cx.waker().clone());
            if state.has_ended { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }

    /// Reads the line that was peeked.
    pub fn skip(&self) {
        let mut state = self.0.lock();
        let end = state.to_app.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        state.to_app.drain(..end);
    }

    /// Messages that the process has not read.
    pub fn unread(&self) -> Vec<Value> {
        let state = self.0.lock();
        let lines = state.to_app.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        (state.is_gone, state.is_reset) = (true, !state.to_app.is_empty());
        state.worker.take().into_iter().for_each(Waker::wake);
    }
}

impl AsyncRead for WorkerReader {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.lock();
        if state.to_worker.is_empty() && !state.is_gone {
            state.worker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        if state.to_worker.is_empty() && state.is_reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let length = buffer.remaining().min(state.to_worker.len());
        buffer.put_slice(&state.to_worker.drain(..length).collect::<Vec<_>>());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for WorkerWriter {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.0.lock();
        if state.is_gone {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        state.to_app.extend_from_slice(bytes);
        state.app.take().into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.lock();
        state.has_ended = true;
        state.app.take().into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(()))
    }
}

impl Drop for WorkerWriter {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.has_ended = true;
        state.app.take().into_iter().for_each(Waker::wake);
    }
}
