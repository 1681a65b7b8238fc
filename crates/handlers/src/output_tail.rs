//! Output of a process: forwarded to the worker's own stderr, with its tail kept for failure messages, and with its lines for
//! the attempt to which they belong.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Size of the kept tail, in bytes, and the lines and characters of it that a failure quotes.
const TAIL_BYTES: usize = 4096;
const QUOTED_LINES: usize = 10;
const QUOTED_CHARS: usize = 1_000;
/// Maximum number of lines that are kept until they are taken; of more, the oldest are dropped.
const MAX_LINES: usize = 1_000;
/// Maximum length of a line, in bytes; the rest begins a new one.
const MAX_LINE_BYTES: usize = 16 << 10;
/// Maximum number of bytes that are read at once, so that a flood does not keep the reader from other work.
const MAX_READ_BYTES: usize = 256 << 10;
/// Maximum time to read the rest after the process has ended: only a process that left its group keeps the pipe open.
const END_DEADLINE: Duration = Duration::from_secs(3);

/// Reads the output of one process.
pub struct OutputTail {
    output: OutputLines,
    forwarding: JoinHandle<()>,
}

/// Lines of the output of a process. Cheap to clone.
#[derive(Clone)]
pub struct OutputLines(Arc<OutputReader>);

struct OutputReader {
    pipe: pipe::Receiver,
    state: Mutex<OutputState>,
    /// Notified when there are new lines.
    news: Notify,
    /// Notified when [`OutputLines::take`] has read output that is to be forwarded.
    unforwarded: Notify,
}

#[derive(Default)]
struct OutputState {
    tail: VecDeque<u8>,
    /// Output that has not been forwarded.
    unforwarded: Vec<u8>,
    /// `None` until [`OutputTail::lines`] is called.
    lines: Option<PendingLines>,
    has_ended: bool,
}

/// Lines that have not been taken.
#[derive(Default)]
struct PendingLines {
    complete: VecDeque<String>,
    /// Beginning of the next line.
    partial: Vec<u8>,
}

impl PendingLines {
    fn add(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.partial.len() >= MAX_LINE_BYTES {
                self.end_line();
            }
        }
    }

    fn end_line(&mut self) {
        let bytes = std::mem::take(&mut self.partial);
        let line = String::from_utf8_lossy(&bytes);
        self.complete.push_back(line.trim_end_matches(['\n', '\r']).to_owned());
        if self.complete.len() > MAX_LINES {
            self.complete.pop_front();
        }
    }
}

impl OutputTail {
    /// Reads until the end of the stream. `label`: begins each forwarded line.
    pub(crate) fn start(pipe: pipe::Receiver, label: Option<String>) -> Self {
        let output = OutputLines(Arc::new(OutputReader {
            pipe,
            state: Mutex::default(),
            news: Notify::new(),
            unforwarded: Notify::new(),
        }));
        Self { forwarding: tokio::spawn(forward(output.clone(), label)), output }
    }

    /// Lines of the output, which are kept from now on.
    pub fn lines(&self) -> OutputLines {
        self.output.0.state.lock().lines.get_or_insert_default();
        self.output.clone()
    }

    /// Drops the tail: output before the next attempt does not belong to it.
    pub fn clear(&self) {
        self.output.0.state.lock().tail.clear();
    }

    /// Last lines of a process that has ended, as a failure quotes them; may be empty.
    pub async fn last_lines(&mut self) -> String {
        quote(&self.text().await)
    }

    /// The whole tail of a process that has ended; may be empty.
    pub async fn text(&mut self) -> String {
        // After the deadline, the output read so far counts.
        if !self.forwarding.is_finished() {
            let _ = timeout(END_DEADLINE, &mut self.forwarding).await;
        }
        String::from_utf8_lossy(self.output.0.state.lock().tail.make_contiguous()).into_owned()
    }
}

impl OutputLines {
    /// Takes the lines written so far. After the end of the output also an incomplete last one.
    pub fn take(&self) -> Vec<String> {
        let mut state = self.0.state.lock();
        self.0.read(&mut state);
        if !state.unforwarded.is_empty() {
            self.0.unforwarded.notify_one();
        }
        let has_ended = state.has_ended;
        let Some(lines) = &mut state.lines else { return Vec::new() };
        if has_ended && !lines.partial.is_empty() {
            lines.end_line();
        }
        lines.complete.drain(..).collect()
    }

    /// Waits until there are lines that have not been taken.
    pub async fn news(&self) {
        self.0.news.notified().await;
    }
}

impl OutputReader {
    /// Reads what the pipe has.
    fn read(&self, state: &mut OutputState) {
        let mut chunk = [0; TAIL_BYTES];
        while !state.has_ended && state.unforwarded.len() < MAX_READ_BYTES {
            match self.pipe.try_read(&mut chunk) {
                Ok(0) => state.has_ended = true,
                Ok(read) => {
                    append(&mut state.tail, &chunk[..read]);
                    if let Some(lines) = &mut state.lines {
                        lines.add(&chunk[..read]);
                    }
                    state.unforwarded.extend_from_slice(&chunk[..read]);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => state.has_ended = true,
            }
        }
    }
}

async fn forward(lines: OutputLines, label: Option<String>) {
    let reader = &*lines.0;
    let mut pending = Vec::new();
    let mut out = tokio::io::stderr();
    let mut has_ended = false;
    while !has_ended {
        let is_readable = tokio::select! {
            readable = reader.pipe.readable() => readable.is_ok(),
            () = reader.unforwarded.notified() => true,
        };
        let bytes = {
            let mut state = reader.state.lock();
            reader.read(&mut state);
            state.has_ended |= !is_readable;
            has_ended = state.has_ended;
            std::mem::take(&mut state.unforwarded)
        };
        if bytes.contains(&b'\n') {
            reader.news.notify_one();
        }
        // The worker's own stderr may be closed; the pipe has to be drained all the same.
        let _ = match &label {
            Some(label) => out.write_all(&labelled(&mut pending, &bytes, label)).await,
            None => out.write_all(&bytes).await,
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

    #[tokio::test]
    async fn lines_are_taken_as_soon_as_they_are_written() {
        use std::io::Write;
        let (receiver, mut writer) = io::pipe().unwrap();
        let mut output =
            OutputTail::start(pipe::Receiver::from_owned_fd(receiver.into()).unwrap(), Some(String::new()));
        let lines = output.lines();
        assert!(lines.take().is_empty());
        writer.write_all(b"one\ntw").unwrap();
        timeout(END_DEADLINE, lines.news()).await.unwrap();
        assert_eq!(lines.take(), ["one"]);
        writer.write_all("o\r\n\nlast \u{e9}".as_bytes()).unwrap();
        drop(writer);
        assert_eq!(output.text().await, "one\ntwo\r\n\nlast é");
        assert_eq!(lines.take(), ["two", "", "last é"]);
        assert!(lines.take().is_empty() && output.text().await.ends_with("last é"), "may be read again");
    }

    #[test]
    fn untaken_lines_are_bounded() {
        let mut lines = PendingLines::default();
        (0..MAX_LINES + 2).for_each(|n| lines.add(format!("{n}\n").as_bytes()));
        assert_eq!((lines.complete.len(), lines.complete[0].as_str()), (MAX_LINES, "2"));
        (0..2 * MAX_LINE_BYTES / 1_024).for_each(|_| lines.add(&[b'x'; 1_024]));
        assert!(lines.complete.iter().rev().take(2).all(|line| line.len() == MAX_LINE_BYTES));
        assert!(lines.partial.is_empty());
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
