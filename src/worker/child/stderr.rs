//! Stderr of a child process: forwarded to the worker's own stderr, with its tail kept for failure messages.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::ChildStderr;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Size of the kept tail, in bytes, and the lines and characters of it that a failure quotes.
const TAIL_BYTES: usize = 4096;
const QUOTED_LINES: usize = 10;
const QUOTED_CHARS: usize = 1_000;
/// Maximum time to read the rest after the process has ended: only a process that left its group keeps the pipe open.
const END_DEADLINE: Duration = Duration::from_secs(3);

/// Reads the stderr of one child process.
pub(super) struct StderrReader {
    tail: Arc<Mutex<VecDeque<u8>>>,
    forwarding: JoinHandle<()>,
}

impl StderrReader {
    pub(super) fn start(stderr: ChildStderr) -> Self {
        let tail = Arc::<Mutex<VecDeque<u8>>>::default();
        Self { forwarding: tokio::spawn(forward(stderr, tail.clone())), tail }
    }

    /// Drops the tail: output before the next attempt does not belong to it.
    pub(super) fn clear(&self) {
        self.tail.lock().clear();
    }

    /// Last output of a process that has ended; may be empty.
    pub(super) async fn last_lines(&mut self) -> String {
        // After the deadline, the output read so far is quoted.
        let _ = timeout(END_DEADLINE, &mut self.forwarding).await;
        let mut tail = self.tail.lock();
        quote(&String::from_utf8_lossy(tail.make_contiguous()))
    }
}

async fn forward(mut stderr: ChildStderr, tail: Arc<Mutex<VecDeque<u8>>>) {
    let mut chunk = [0; TAIL_BYTES];
    let mut out = tokio::io::stderr();
    while let Ok(read @ 1..) = stderr.read(&mut chunk).await {
        append(&mut tail.lock(), &chunk[..read]);
        // The worker's own stderr may be closed; the pipe has to be drained all the same.
        let _ = out.write_all(&chunk[..read]).await;
    }
}

fn append(tail: &mut VecDeque<u8>, bytes: &[u8]) {
    tail.extend(bytes);
    let surplus = tail.len().saturating_sub(TAIL_BYTES);
    tail.drain(..surplus);
}

/// Last non-empty lines, within the bounds.
fn quote(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(QUOTED_LINES)..].join("\n");
    let surplus = last.chars().count().saturating_sub(QUOTED_CHARS);
    if surplus == 0 { last } else { format!("…{}", last.chars().skip(surplus).collect::<String>()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quote_contains_the_last_lines() {
        assert_eq!(quote(""), "");
        assert_eq!(quote("one\n\ntwo  \r\n"), "one\ntwo");
        let many: String = (0..50).map(|n| format!("line {n}\n")).collect();
        assert!(quote(&many).starts_with("line 40\n") && quote(&many).ends_with("line 49"));
        let long = quote(&"é".repeat(3_000));
        assert_eq!((long.chars().count(), long.starts_with('…')), (QUOTED_CHARS + 1, true));
    }

    #[test]
    fn tail_is_bounded() {
        let mut tail = VecDeque::new();
        for n in 0..10_u8 {
            append(&mut tail, &[n; 1_000]);
        }
        assert_eq!((tail.len(), tail.front(), tail.back()), (TAIL_BYTES, Some(&5), Some(&9)));
    }
}
