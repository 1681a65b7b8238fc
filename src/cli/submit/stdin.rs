//! Detection of unexpected input on stdin.

use std::fs::File;
use std::io::Seek;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::time::Duration;

use tokio::io::{Interest, Ready};
use tokio::net::unix::pipe::Receiver;

use crate::cli::exit::Failure;

/// Time within which a pipe must deliver data or end.
const PIPE_DEADLINE: Duration = Duration::from_secs(3);

/// Refuses to ignore input on stdin: params that are piped in without `-` were probably meant to be read. Reads
/// nothing.
pub(super) async fn refuse_unread(task_type: &str) -> Result<(), Failure> {
    if has_unread_input().await {
        Err(Failure::usage("stdin is a pipe or a file, but the arguments do not say to read params from it").hint(format_args!(
            "`kafleet submit {task_type} -` reads params from it, one JSON value per line; `kafleet submit {task_type} '{{}}'` ignores it"
        )))
    } else {
        Ok(())
    }
}

/// Returns whether stdin is a file that is not at its end, or a pipe that does not end without data.
async fn has_unread_input() -> bool {
    let Ok(mut stdin) = std::io::stdin().as_fd().try_clone_to_owned().map(File::from) else { return false };
    let Ok(about) = stdin.metadata() else { return false };
    if about.is_file() {
        return stdin.stream_position().is_ok_and(|position| position < about.len());
    }
    if !about.file_type().is_fifo() {
        return false;
    }
    // The pipe is polled and never read, so its blocking mode does not matter.
    let Ok(pipe) = Receiver::from_file_unchecked(stdin) else { return false };
    match tokio::time::timeout(PIPE_DEADLINE, pipe.ready(Interest::READABLE)).await {
        Ok(Ok(ready)) => ready & Ready::READABLE == Ready::READABLE,
        Ok(Err(_)) => false,
        Err(_) => true,
    }
}
