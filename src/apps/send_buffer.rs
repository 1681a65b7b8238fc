//! Messages on their way to an app. A sender never waits: what the stream does not take at once is written later.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::AsyncWrite;
use tokio::sync::Notify;

/// Capacity of the buffer that is kept when it is empty, in bytes.
const KEPT_BYTES: usize = 64 << 10;

/// Writing side of a stream.
pub(super) struct SendBuffer {
    buffer: Mutex<Buffer>,
    /// Notified when bytes remain in the buffer.
    more: Notify,
}

struct Buffer {
    /// `None` after an error or the end of the stream.
    writer: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    bytes: Vec<u8>,
    /// Number of bytes at the start of `bytes` that are written.
    sent: usize,
    /// The stream ends after the buffered bytes.
    closing: bool,
    /// Position in the stream up to which bytes are written.
    written: u64,
    /// Position in the stream of the end of all messages, and of the end of the last attempt.
    end: u64,
    attempt_end: u64,
}

impl SendBuffer {
    pub(super) fn new(writer: Box<dyn AsyncWrite + Send + Unpin>) -> Self {
        let buffer = Buffer {
            writer: Some(writer),
            bytes: Vec::new(),
            sent: 0,
            closing: false,
            written: 0,
            end: 0,
            attempt_end: 0,
        };
        Self { buffer: Mutex::new(buffer), more: Notify::new() }
    }

    /// Sends a message. It is dropped if the stream has ended.
    pub(super) fn send(&self, line: &[u8]) {
        self.push(line, false);
    }

    /// Sends the message that starts an attempt.
    pub(super) fn send_attempt(&self, line: &[u8]) {
        self.push(line, true);
    }

    fn push(&self, line: &[u8], is_attempt: bool) {
        let mut buffer = self.buffer.lock();
        buffer.end += line.len() as u64;
        if is_attempt {
            buffer.attempt_end = buffer.end;
        }
        if buffer.writer.is_none() || buffer.closing {
            return;
        }
        let is_idle = buffer.bytes.is_empty();
        buffer.bytes.extend_from_slice(line);
        // If bytes were waiting, `run` has registered its waker, which another poll would replace.
        if is_idle && buffer.poll_write(&mut Context::from_waker(futures::task::noop_waker_ref())).is_pending() {
            self.more.notify_one();
        }
    }

    /// Ends the stream after the messages that are already sent.
    pub(super) fn close(&self) {
        self.buffer.lock().closing = true;
        self.more.notify_one();
    }

    /// Returns whether everything is written.
    pub(super) fn is_idle(&self) -> bool {
        self.buffer.lock().bytes.is_empty()
    }

    /// Returns whether the app cannot have read the last attempt. `is_reset`: the app closed the stream with unread
    /// bytes.
    pub(super) fn is_attempt_unread(&self, is_reset: bool) -> bool {
        let buffer = self.buffer.lock();
        buffer.written < buffer.attempt_end || (is_reset && buffer.end == buffer.attempt_end)
    }

    /// Writes the remaining bytes until the returned future is dropped.
    pub(super) async fn run(&self) {
        loop {
            self.more.notified().await;
            std::future::poll_fn(|cx| self.buffer.lock().poll_write(cx)).await;
        }
    }
}

impl Buffer {
    /// Writes until the buffer is empty or the stream takes no more.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.sent < self.bytes.len()
            && let Some(writer) = &mut self.writer
        {
            match ready!(Pin::new(writer).poll_write(cx, &self.bytes[self.sent..])) {
                Ok(written @ 1..) => {
                    self.sent += written;
                    self.written += written as u64;
                }
                Ok(0) | Err(_) => self.writer = None,
            }
        }
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
        self.sent = 0;
        if let Some(writer) = self.writer.as_mut().filter(|_| self.closing) {
            // An error means that the app has closed the stream first.
            let _ = ready!(Pin::new(writer).poll_shutdown(cx));
            self.writer = None;
        }
        Poll::Ready(())
    }
}
