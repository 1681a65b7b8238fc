//! What a cell says on its stderr: passed on to the worker's own, its last words kept for when it dies.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::ChildStderr;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Bytes kept, and of them the lines and characters that a failure quotes.
const KEPT_BYTES: usize = 4096;
const QUOTED_LINES: usize = 10;
const QUOTED_CHARS: usize = 1_000;
/// For the rest of a dead process' words: only what left its group can keep the pipe open for longer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Listens to one cell.
pub struct StderrReader {
    kept: Arc<Mutex<VecDeque<u8>>>,
    listening: JoinHandle<()>,
}

impl StderrReader {
    pub fn listen(stderr: ChildStderr) -> Self {
        let kept = Arc::<Mutex<VecDeque<u8>>>::default();
        Self { listening: tokio::spawn(pass_on(stderr, kept.clone())), kept }
    }

    /// Another attempt begins: what was said before is not its own.
    pub fn forget(&self) {
        self.kept.lock().clear();
    }

    /// What a process that has ended said last; empty where it said nothing.
    pub async fn last_words(&mut self) -> String {
        // Past it there is what has been heard so far.
        let _ = timeout(PATIENCE, &mut self.listening).await;
        let mut kept = self.kept.lock();
        quoted(&String::from_utf8_lossy(kept.make_contiguous()))
    }
}

async fn pass_on(mut stderr: ChildStderr, kept: Arc<Mutex<VecDeque<u8>>>) {
    let (mut chunk, mut out) = ([0; KEPT_BYTES], tokio::io::stderr());
    while let Ok(read @ 1..) = stderr.read(&mut chunk).await {
        keep(&mut kept.lock(), &chunk[..read]);
        // Nobody may be listening there; the pipe has to be emptied all the same.
        let _ = out.write_all(&chunk[..read]).await;
    }
}

fn keep(kept: &mut VecDeque<u8>, said: &[u8]) {
    kept.extend(said);
    let surplus = kept.len().saturating_sub(KEPT_BYTES);
    kept.drain(..surplus);
}

/// The last lines that are not empty, within bounds.
fn quoted(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(QUOTED_LINES)..].join("\n");
    let surplus = last.chars().count().saturating_sub(QUOTED_CHARS);
    if surplus == 0 { last } else { format!("…{}", last.chars().skip(surplus).collect::<String>()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_quoted() {
        assert_eq!(quoted(""), "");
        assert_eq!(quoted("one\n\ntwo  \r\n"), "one\ntwo");
        let many: String = (0..50).map(|n| format!("line {n}\n")).collect();
        assert!(quoted(&many).starts_with("line 40\n") && quoted(&many).ends_with("line 49"));
        let long = quoted(&"é".repeat(3_000));
        assert_eq!((long.chars().count(), long.starts_with('…')), (QUOTED_CHARS + 1, true));
    }

    #[test]
    fn no_more_is_kept_than_may_be() {
        let mut kept = VecDeque::new();
        for n in 0..10_u8 {
            keep(&mut kept, &[n; 1_000]);
        }
        assert_eq!((kept.len(), kept.front(), kept.back()), (KEPT_BYTES, Some(&5), Some(&9)));
    }
}
