//! Output of a process: forwarded to the worker's own stderr, with its tail kept for failure messages.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Size of the kept tail, in bytes, and the lines and characters of it that a failure quotes.
const TAIL_BYTES: usize = 4096;
const QUOTED_LINES: usize = 10;
const QUOTED_CHARS: usize = 1_000;
/// Maximum time to read the rest after the process has ended: only a process that left its group keeps the pipe open.
const END_DEADLINE: Duration = Duration::from_secs(3);

/// Reads the output of one process.
pub struct OutputTail {
    tail: Arc<Mutex<VecDeque<u8>>>,
    forwarding: JoinHandle<()>,
}

impl OutputTail {
    /// Reads until the end of the stream. `label`: begins each forwarded line.
    pub(crate) fn start(source: impl AsyncRead + Send + Unpin + 'static, label: Option<String>) -> Self {
        let tail = Arc::<Mutex<VecDeque<u8>>>::default();
        Self { forwarding: tokio::spawn(forward(source, tail.clone(), label)), tail }
    }

    /// Drops the tail: output before the next attempt does not belong to it.
    pub fn clear(&self) {
        self.tail.lock().clear();
    }

    /// Last lines of a process that has ended, as a failure quotes them; may be empty.
    pub async fn last_lines(&mut self) -> String {
        quote(&self.text().await)
    }

    /// The whole tail of a process that has ended; may be empty.
    pub async fn text(&mut self) -> String {
        // After the deadline, the output read so far counts.
        let _ = timeout(END_DEADLINE, &mut self.forwarding).await;
        String::from_utf8_lossy(self.tail.lock().make_contiguous()).into_owned()
    }
}

async fn forward(mut source: impl AsyncRead + Send + Unpin, tail: Arc<Mutex<VecDeque<u8>>>, label: Option<String>) {
    let mut chunk = [0; TAIL_BYTES];
    let mut pending = Vec::new();
    let mut out = tokio::io::stderr();
    while let Ok(read @ 1..) = source.read(&mut chunk).await {
        append(&mut tail.lock(), &chunk[..read]);
        // The worker's own stderr may be closed; the pipe has to be drained all the same.
        let _ = match &label {
            Some(label) => out.write_all(&labelled(&mut pending, &chunk[..read], label)).await,
            None => out.write_all(&chunk[..read]).await,
        };
    }
    if let Some(label) = label.filter(|_| !pending.is_empty()) {
        let _ = out.write_all(&labelled(&mut pending, b"\n", &label)).await;
    }
}

/// Returns the complete lines, each with its label. The rest, unless it is long, stays in `pending`.
fn labelled(pending: &mut Vec<u8>, bytes: &[u8], label: &str) -> Vec<u8> {
    pending.extend_from_slice(bytes);
    if pending.len() > TAIL_BYTES && !pending.contains(&b'\n') {
        pending.push(b'\n');
    }
    let end = pending.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let lines: Vec<u8> = pending.drain(..end).collect();
    let with_label = lines.split_inclusive(|byte| *byte == b'\n').flat_map(|line| [label.as_bytes(), line]);
    with_label.flatten().copied().collect()
}

fn append(tail: &mut VecDeque<u8>, bytes: &[u8]) {
    tail.extend(bytes);
    let surplus = tail.len().saturating_sub(TAIL_BYTES);
    tail.drain(..surplus);
}

/// Last non-empty lines, within the bounds.
pub fn quote(text: &str) -> String {
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
    fn forwarded_lines_have_a_label() {
        let mut pending = Vec::new();
        assert_eq!(labelled(&mut pending, b"one\ntw", "a: "), b"a: one\n");
        assert_eq!(labelled(&mut pending, b"o\n", "a: "), b"a: two\n");
        assert_eq!(labelled(&mut pending, &[b'x'; TAIL_BYTES + 1], "a: ").len(), TAIL_BYTES + 5);
        assert!(pending.is_empty());
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
