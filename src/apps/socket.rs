//! Unix socket to a process of an app, split into a reading and a writing half.
//!
//! The writing half is registered with the reactor (epoll) only while the socket's send buffer is full. If it always
//! were, each read by the app would wake a thread of the worker.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest as Readiness, ReadBuf};

/// Reading half.
pub(super) struct SocketReader(AsyncFd<UnixStream>);

/// Writing half.
pub(super) struct SocketWriter {
    socket: UnixStream,
    /// Registration with the reactor, only while the send buffer is full.
    full: Option<AsyncFd<UnixStream>>,
}

impl Drop for SocketWriter {
    /// Shuts down the writing side, so that the app reads the end: the reading half keeps the socket open.
    fn drop(&mut self) {
        // An error only means that the connection is closed already.
        let _ = self.socket.shutdown(Shutdown::Write);
    }
}

/// Splits a socket. This and all writes must be called within a Tokio runtime.
///
/// # Errors
/// The socket cannot be registered.
pub(super) fn split(socket: UnixStream) -> io::Result<(SocketReader, SocketWriter)> {
    socket.set_nonblocking(true)?;
    let writer = SocketWriter { socket: socket.try_clone()?, full: None };
    Ok((SocketReader(register(socket, Readiness::READABLE)?), writer))
}

fn register(socket: UnixStream, readiness: Readiness) -> io::Result<AsyncFd<UnixStream>> {
    // SAFETY: the socket owns its descriptor, which stays open and the same until it is dropped.
    Ok(unsafe { AsyncFd::register_with_interest(socket, readiness) }?)
}

impl AsFd for SocketWriter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsyncRead for SocketReader {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.0.poll_read_ready(cx))?;
            let unfilled = buffer.initialize_unfilled();
            let space = unfilled.len();
            match ready.try_io(|socket| socket.get_ref().read(unfilled)) {
                Ok(Ok(length)) => {
                    if (1..space).contains(&length) {
                        // A short read has emptied the socket: the next bytes make it ready again.
                        ready.clear_ready();
                    }
                    buffer.advance(length);
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(why)) if why.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(why)) => return Poll::Ready(Err(why)),
                Err(_would_block) => {}
            }
        }
    }
}

impl AsyncWrite for SocketWriter {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            match (&self.socket).write(bytes) {
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
                Err(why) if why.kind() == io::ErrorKind::Interrupted => continue,
                written => {
                    self.full = None;
                    return Poll::Ready(written);
                }
            }
            // A duplicate of the descriptor, because `AsyncFd` takes ownership of the socket.
            if self.full.is_none() {
                self.full = Some(register(self.socket.try_clone()?, Readiness::WRITABLE)?);
            }
            let Some(full) = &self.full else { continue };
            ready!(full.poll_write_ready(cx))?.clear_ready();
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.socket.shutdown(Shutdown::Write))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn full_socket_takes_the_rest_when_the_other_side_reads() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let ((_, mut writer), (mut reader, _)) = (split(ours).unwrap(), split(theirs).unwrap());
        let sent: Vec<u8> = (0..4 << 20).map(|n: u32| (n % 251) as u8).collect();
        let expected = sent.clone();
        let writing = tokio::spawn(async move {
            writer.write_all(&sent).await.unwrap();
            assert!(writer.full.is_none(), "nothing waits");
            writer.shutdown().await.unwrap();
            writer
        });
        let mut received = Vec::new();
        reader.read_to_end(&mut received).await.unwrap();
        assert!(received == expected, "{} bytes", received.len());
        writing.await.unwrap();
    }

    #[tokio::test]
    async fn reader_waits_for_bytes_and_for_the_end() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let ((mut reader, _own), (_, mut writer)) = (split(ours).unwrap(), split(theirs).unwrap());
        let reading = tokio::spawn(async move {
            let mut text = String::new();
            reader.read_to_string(&mut text).await.map(|_| text)
        });
        for part in ["a", "b", "c"] {
            tokio::task::yield_now().await;
            writer.write_all(part.as_bytes()).await.unwrap();
        }
        writer.shutdown().await.unwrap();
        assert_eq!(reading.await.unwrap().unwrap(), "abc");
    }

    #[tokio::test]
    async fn write_to_a_closed_socket_is_an_error() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (_, mut writer) = split(ours).unwrap();
        drop(theirs);
        assert_eq!(writer.write_all(b"x").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
