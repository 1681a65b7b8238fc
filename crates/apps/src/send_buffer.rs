//! Outgoing messages to an app. Senders never wait: bytes that the stream does not accept at once are buffered and
//! written later.
//!
//! The buffer is bounded: an app receives another attempt only after it has answered one, and it can answer only
//! attempts that it has read; there is at most one cancel per attempt; and unread replies are limited.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::AsyncWrite;
use tokio::sync::Notify;

use super::protocol::{MAX_UNREAD_REPLIES_BYTES, Violation};

/// Capacity of the buffer that is kept when it is empty, in bytes.
const KEPT_BYTES: usize = 64 << 10;

/// Writing side of a stream.
pub(super) struct SendBuffer {
    buffer: Mutex<Buffer>,
    /// Notified when bytes remain in the buffer, and when the replies exceed their limit.
    more: Notify,
}

#[derive(Default)]
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
    /// Replies that are not written: their ends in the stream, and their sizes.
    replies: VecDeque<(u64, usize)>,
    /// Size of these replies, in bytes.
    replies_bytes: usize,
    /// A reply was dropped because too many were not read.
    is_overfull: bool,
}

impl SendBuffer {
    pub(super) fn new(writer: Box<dyn AsyncWrite + Send + Unpin>) -> Self {
        let buffer = Buffer { writer: Some(writer), ..Buffer::default() };
        Self { buffer: Mutex::new(buffer), more: Notify::new() }
    }

    /// Sends a message. It is dropped if the stream has ended.
    pub(super) fn send(&self, line: &[u8]) {
        self.push(&mut self.buffer.lock(), line);
    }

    /// Sends the message that starts an attempt. Returns its start in the stream.
    pub(super) fn send_attempt(&self, line: &[u8]) -> u64 {
        let mut buffer = self.buffer.lock();
        let start = buffer.end;
        buffer.attempt_end = start + line.len() as u64;
        self.push(&mut buffer, line);
        start
    }

    /// Sends a reply. If too many replies are not read it is dropped, and [`SendBuffer::run`] ends.
    pub(super) fn send_reply(&self, line: &[u8]) {
        let mut buffer = self.buffer.lock();
        if buffer.reserve_reply(line.len()) {
            self.push(&mut buffer, line);
        } else {
            self.more.notify_one();
        }
    }

    fn push(&self, buffer: &mut Buffer, line: &[u8]) {
        buffer.end += line.len() as u64;
        if buffer.writer.is_none() || buffer.closing {
            return;
        }
        let is_idle = buffer.bytes.is_empty();
        buffer.drop_sent();
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

    /// Position in the stream up to which bytes are written.
    pub(super) fn written(&self) -> u64 {
        self.buffer.lock().written
    }

    /// Number of bytes that are not written.
    pub(super) fn unwritten(&self) -> usize {
        let buffer = self.buffer.lock();
        buffer.bytes.len() - buffer.sent
    }

    /// Returns whether the app can have read something of the message that starts here.
    pub(super) fn is_begun(&self, start: u64) -> bool {
        self.buffer.lock().written > start
    }

    /// Returns the violation of an app that does not read its replies.
    pub(super) fn overflow(&self) -> Option<Violation> {
        let is_overfull = self.buffer.lock().is_overfull;
        let error = || format!("it does not read: replies of more than {MAX_UNREAD_REPLIES_BYTES} bytes wait for it");
        is_overfull.then(|| Violation(error()))
    }

    /// Returns whether the app cannot have read the last attempt. `is_reset`: the app closed the stream with unread
    /// bytes.
    pub(super) fn is_attempt_unread(&self, is_reset: bool) -> bool {
        let buffer = self.buffer.lock();
        buffer.written < buffer.attempt_end || (is_reset && buffer.end == buffer.attempt_end)
    }

    /// Writes the remaining bytes until the app turns out not to read its replies.
    pub(super) async fn run(&self) -> Violation {
        let mut is_writing = false;
        loop {
            tokio::select! {
                biased;
                () = self.more.notified() => is_writing = true,
                () = std::future::poll_fn(|cx| self.buffer.lock().poll_write(cx)), if is_writing => is_writing = false,
            }
            if let Some(violation) = self.overflow() {
                return violation;
            }
        }
    }
}

impl Buffer {
    /// Counts a reply. Returns false if the replies that are not written would be too large.
    fn reserve_reply(&mut self, bytes: usize) -> bool {
        while let Some((_, written)) = self.replies.pop_front_if(|(end, _)| *end <= self.written) {
            self.replies_bytes -= written;
        }
        if self.is_overfull || self.replies_bytes + bytes > MAX_UNREAD_REPLIES_BYTES {
            self.is_overfull = true;
            return false;
        }
        self.replies_bytes += bytes;
        self.replies.push_back((self.end + bytes as u64, bytes));
        true
    }

    /// Drops written bytes once they are the larger part of the buffer: an app that reads more slowly than the worker
    /// writes never empties it.
    fn drop_sent(&mut self) {
        if self.sent >= KEPT_BYTES.max(self.bytes.len() / 2) {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }

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

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn app_that_does_not_read_its_replies_is_a_violation() {
        let (worker, _app) = tokio::io::duplex(1 << 10);
        let buffer = SendBuffer::new(Box::new(worker));
        let reply = vec![b'x'; 4 << 20];
        (0..8).for_each(|_| buffer.send_reply(&reply));
        assert!(buffer.overflow().is_none(), "{} bytes may wait", 8 * reply.len());
        buffer.send_reply(&reply);
        let Violation(error) = buffer.run().await;
        assert_eq!(error, "it does not read: replies of more than 33554432 bytes wait for it");
    }

    #[tokio::test]
    async fn written_bytes_are_dropped_although_the_buffer_is_never_empty() {
        let (worker, mut app) = tokio::io::duplex(1 << 10);
        let buffer = SendBuffer::new(Box::new(worker));
        let message = vec![b'x'; 4 << 10];
        (0..2).for_each(|_| _ = buffer.send_attempt(&message));
        let mut read = vec![0; message.len()];
        let mut slow = Box::pin(async {
            for _ in 0..10_000 {
                app.read_exact(&mut read).await.unwrap();
                buffer.send_attempt(&message);
                assert!(!buffer.is_idle());
                assert!(buffer.buffer.lock().bytes.capacity() < 512 << 10);
            }
        });
        tokio::select! {
            _ = buffer.run() => unreachable!("there are no replies"),
            () = &mut slow => {}
        }
    }

    #[tokio::test]
    async fn replies_that_are_read_do_not_count() {
        let (worker, mut app) = tokio::io::duplex(1 << 20);
        let buffer = SendBuffer::new(Box::new(worker));
        let reply = vec![b'x'; 1 << 20];
        let mut read = vec![0; reply.len()];
        for _ in 0..64 {
            buffer.send_reply(&reply);
            app.read_exact(&mut read).await.unwrap();
        }
        assert!(buffer.overflow().is_none() && buffer.is_idle());
    }
}
