//! Input on stdin that nobody has asked for.

use std::fs::File;
use std::io::Seek;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::time::Duration;

use tokio::io::{Interest, Ready};
use tokio::net::unix::pipe::Receiver;

use crate::cli::exit::Failure;

/// How long a pipe may neither bring anything nor end.
const PATIENCE: Duration = Duration::from_secs(3);

/// Refuses to leave params on stdin unread: they come through a pipe, or from a file, and no `-` says that they are meant.
/// Nothing is taken from it.
pub async fn refuse_unread(task_type: &str) -> Result<(), Failure> {
    match waits().await {
        true => Err(Failure::usage("stdin is a pipe or a file, and nothing says that it holds the params").hint(format_args!(
            "`kafleet submit {task_type} -` reads params from it, one JSON value a line; `kafleet submit {task_type} '{{}}'` leaves it alone"
        ))),
        false => Ok(()),
    }
}

/// A file that is not at its end; a pipe, unless it ends without having brought anything.
async fn waits() -> bool {
    let Ok(mut stdin) = std::io::stdin().as_fd().try_clone_to_owned().map(File::from) else { return false };
    let Ok(about) = stdin.metadata() else { return false };
    if about.is_file() {
        return stdin.stream_position().is_ok_and(|place| place < about.len());
    }
    if !about.file_type().is_fifo() {
        return false;
    }
    // It is asked whether there is something, and never read, so that blocking mode does not matter.
    let Ok(pipe) = Receiver::from_file_unchecked(stdin) else { return false };
    match tokio::time::timeout(PATIENCE, pipe.ready(Interest::READABLE)).await {
        Ok(Ok(ready)) => ready & Ready::READABLE == Ready::READABLE,
        Ok(Err(_)) => false,
        Err(_) => true,
    }
}
