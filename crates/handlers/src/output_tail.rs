//! Output of a process: forwarded to the worker's own stderr, with its tail kept for failure messages, and with its lines for
//! the attempt to which they belong.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::select_all;
use kafleet_model::event::log_line::LogStream;
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

/// Pipe of one output stream of a process.
pub(crate) struct OutputPipe {
    stream: LogStream,
    receiver: pipe::Receiver,
}

/// Line that a process has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputLine {
    pub stream: LogStream,
    pub text: String,
}

/// Lines of the output of a process. Cheap to clone.
#[derive(Clone)]
pub struct OutputLines(Arc<OutputReader>);

struct OutputReader {
    pipes: Vec<OutputPipe>,
    state: Mutex<OutputState>,
    /// Notified when there are new lines.
    news: Notify,
    /// Notified when [`OutputLines::take`] has read output that is to be forwarded.
    unforwarded: Notify,
}

struct OutputState {
    tail: VecDeque<u8>,
    /// Output that has not been forwarded.
    unforwarded: Vec<u8>,
    /// `None` until [`OutputTail::lines`] is called.
    lines: Option<PendingLines>,
    /// Pipes that have ended, by their places.
    ended: Vec<bool>,
}

/// Lines that have not been taken.
#[derive(Default)]
struct PendingLines {
    complete: VecDeque<OutputLine>,
    /// Beginning of the next line of each stream.
    partial: BTreeMap<LogStream, Vec<u8>>,
}

impl OutputPipe {
    pub(crate) fn new(stream: LogStream, reader: io::PipeReader) -> io::Result<Self> {
        Ok(Self { stream, receiver: pipe::Receiver::from_owned_fd(reader.into())? })
    }
}

impl OutputState {
    fn has_ended(&self) -> bool {
        self.ended.iter().all(|has_ended| *has_ended)
    }

    fn add(&mut self, stream: LogStream, bytes: &[u8]) {
        append(&mut self.tail, bytes);
        if let Some(lines) = &mut self.lines {
            lines.add(stream, bytes);
        }
        self.unforwarded.extend_from_slice(bytes);
    }
}

impl PendingLines {
    fn add(&mut self, stream: LogStream, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let partial = self.partial.entry(stream).or_default();
            partial.extend_from_slice(piece);
            if piece.ends_with(b"\n") || partial.len() >= MAX_LINE_BYTES {
                self.end_line(stream);
            }
        }
    }

    fn end_line(&mut self, stream: LogStream) {
        let bytes = self.partial.remove(&stream).unwrap_or_default();
        let line = String::from_utf8_lossy(&bytes);
        let text = line.trim_end_matches(['\n', '\r']).to_owned();
        self.complete.push_back(OutputLine { stream, text });
        if self.complete.len() > MAX_LINES {
            self.complete.pop_front();
        }
    }

    /// Ends the last lines of the streams, which are incomplete.
    fn end(&mut self) {
        while let Some(stream) = self.partial.keys().next().copied() {
            self.end_line(stream);
        }
    }
}

impl OutputTail {
    /// Reads until the end of the streams. `label`: begins each forwarded line.
    pub(crate) fn start(pipes: Vec<OutputPipe>, label: Option<String>) -> Self {
        let state = OutputState {
            tail: VecDeque::new(),
            unforwarded: Vec::new(),
            lines: None,
            ended: vec![false; pipes.len()],
        };
        let output = OutputLines(Arc::new(OutputReader {
            pipes,
            state: Mutex::new(state),
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
    /// Takes the lines written so far. After the end of the output also incomplete last ones.
    pub fn take(&self) -> Vec<OutputLine> {
        let mut state = self.0.state.lock();
        self.0.read(&mut state);
        if !state.unforwarded.is_empty() {
            self.0.unforwarded.notify_one();
        }
        let has_ended = state.has_ended();
        let Some(lines) = &mut state.lines else { return Vec::new() };
        if has_ended {
            lines.end();
        }
        lines.complete.drain(..).collect()
    }

    /// Waits until there are lines that have not been taken.
    pub async fn news(&self) {
        self.0.news.notified().await;
    }
}

impl OutputReader {
    /// Reads what the pipes have, one after the other: lines that are written at the same time to several are in the order of
    /// the pipes.
    fn read(&self, state: &mut OutputState) {
        let mut chunk = [0; TAIL_BYTES];
        for (n, pipe) in self.pipes.iter().enumerate() {
            while !state.ended[n] && state.unforwarded.len() < MAX_READ_BYTES {
                match pipe.receiver.try_read(&mut chunk) {
                    Ok(0) => state.ended[n] = true,
                    Ok(read) => state.add(pipe.stream, &chunk[..read]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(_) => state.ended[n] = true,
                }
            }
        }
    }

    /// Waits until a pipe that has not ended can be read. Returns its place if it never can again.
    async fn readable(&self) -> Option<usize> {
        let open: Vec<usize> = {
            let state = self.state.lock();
            (0..self.pipes.len()).filter(|n| !state.ended[*n]).collect()
        };
        if open.is_empty() {
            return None;
        }
        let wait = |n: usize| async move { (n, self.pipes[n].receiver.readable().await) };
        let ((n, readable), ..) = select_all(open.into_iter().map(|n| Box::pin(wait(n)))).await;
        readable.is_err().then_some(n)
    }
}

async fn forward(lines: OutputLines, label: Option<String>) {
    let reader = &*lines.0;
    let mut pending = Vec::new();
    let mut out = tokio::io::stderr();
    let mut has_ended = false;
    while !has_ended {
        let failed = tokio::select! {
            failed = reader.readable() => failed,
            () = reader.unforwarded.notified() => None,
        };
        let bytes = {
            let mut state = reader.state.lock();
            reader.read(&mut state);
            if let Some(n) = failed {
                state.ended[n] = true;
            }
            has_ended = state.has_ended();
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
        let (other_receiver, mut other_writer) = io::pipe().unwrap();
        let pipes = [(LogStream::Stderr, receiver), (LogStream::Stdout, other_receiver)];
        let pipes = pipes.into_iter().map(|(stream, reader)| OutputPipe::new(stream, reader).unwrap()).collect();
        let mut output = OutputTail::start(pipes, Some(String::new()));
        let lines = output.lines();
        let texts = |of: LogStream| {
            let taken = lines.take();
            assert!(taken.iter().all(|line| line.stream == of), "{taken:?}");
            taken.into_iter().map(|line| line.text).collect::<Vec<_>>()
        };
        assert!(lines.take().is_empty());
        writer.write_all(b"one\ntw").unwrap();
        timeout(END_DEADLINE, lines.news()).await.unwrap();
        assert_eq!(texts(LogStream::Stderr), ["one"]);
        other_writer.write_all(b"other\n").unwrap();
        timeout(END_DEADLINE, lines.news()).await.unwrap();
        assert_eq!(texts(LogStream::Stdout), ["other"], "the begun line is of another stream");
        drop(other_writer);
        writer.write_all("o\r\n\nlast \u{e9}".as_bytes()).unwrap();
        drop(writer);
        assert_eq!(output.text().await, "one\ntwother\no\r\n\nlast é");
        assert_eq!(texts(LogStream::Stderr), ["two", "", "last é"]);
        assert!(lines.take().is_empty() && output.text().await.ends_with("last é"), "may be read again");
    }

    #[test]
    fn untaken_lines_are_bounded() {
        let mut lines = PendingLines::default();
        (0..MAX_LINES + 2).for_each(|n| lines.add(LogStream::Stdout, format!("{n}\n").as_bytes()));
        assert_eq!((lines.complete.len(), lines.complete[0].text.as_str()), (MAX_LINES, "2"));
        (0..2 * MAX_LINE_BYTES / 1_024).for_each(|_| lines.add(LogStream::Stdout, &[b'x'; 1_024]));
        assert!(lines.complete.iter().rev().take(2).all(|line| line.text.len() == MAX_LINE_BYTES));
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
