//! Socket of a program. It is registered for writing only while it is full: a socket that is always registered wakes its
//! thread each time that the program reads a message.

use std::io::{self, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;
use tokio::net::unix::pipe;

/// Writing half. Its end is the end of the stream for the program.
pub struct SocketWriter {
    socket: UnixStream,
    /// Duplicate that is registered for writing; `None` unless the socket was full at the last write.
    full: Option<pipe::Sender>,
}

/// Splits a socket in non-blocking mode.
///
/// # Errors
/// The socket cannot be duplicated or registered.
pub(crate) fn split(socket: UnixStream) -> io::Result<(pipe::Receiver, SocketWriter)> {
    // Reads like a pipe, and is registered for reading only.
    let reader = pipe::Receiver::from_owned_fd_unchecked(socket.try_clone()?.into())?;
    Ok((reader, SocketWriter { socket, full: None }))
}

impl AsRawFd for SocketWriter {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl AsyncWrite for SocketWriter {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.full.is_none() {
            match self.socket.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let duplicate = self.socket.try_clone()?;
                    self.full = Some(pipe::Sender::from_owned_fd_unchecked(duplicate.into())?);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return self.poll_write(cx, bytes),
                written => return Poll::Ready(written),
            }
        }
        let Some(full) = &mut self.full else { return Poll::Pending };
        let written = ready!(Pin::new(full).poll_write(cx, bytes));
        self.full = None;
        Poll::Ready(written)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.socket.shutdown(Shutdown::Write))
    }
}

impl Drop for SocketWriter {
    fn drop(&mut self) {
        // The reader keeps the socket open. An error means that the program has closed it first.
        let _ = self.socket.shutdown(Shutdown::Write);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn socket_transfers_more_than_its_buffer_and_the_end() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        [&ours, &theirs].into_iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
        let (mut reader, mut writer) = split(ours).unwrap();
        let (mut app_reader, mut app_writer) = tokio::net::UnixStream::from_std(theirs).unwrap().into_split();
        let sent: Vec<u8> = (0..4_u32 << 20).map(|n| n as u8).collect();
        let mut read = Vec::new();
        let write = async {
            writer.write_all(&sent).await.unwrap();
            drop(writer);
        };
        let (_, result) = tokio::join!(write, app_reader.read_to_end(&mut read));
        result.unwrap();
        assert!(read == sent);
        app_writer.write_all(b"answer").await.unwrap();
        drop(app_writer);
        drop(app_reader);
        let mut answer = String::new();
        reader.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "answer");
    }
}
