//! What a program says: a bounded result on stdout, and lines on stderr.

use std::collections::VecDeque;

use serde::Deserialize;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};

use crate::handlers::Context;
use crate::model::json::RawJson;

/// Longer lines are cut.
pub const MAX_LINE_BYTES: usize = 16 * 1024;
/// Log lines of one attempt; further ones are counted.
pub const MAX_LINES: usize = 10_000;
/// Lines that a failure's message quotes, and how much of each.
const QUOTED_LINES: usize = 10;
const QUOTED_CHARS: usize = 400;

/// What came on stdout.
#[derive(Default)]
pub struct Output {
    pub bytes: Vec<u8>,
    pub too_large: bool,
}

impl Output {
    /// Reads to the end, or until there is more than allowed.
    pub async fn read(&mut self, from: impl AsyncRead + Unpin, max_bytes: usize) {
        let most = u64::try_from(max_bytes).unwrap_or(u64::MAX).saturating_add(1);
        // A pipe that breaks is a program that ends: its exit code says how.
        let _ = from.take(most).read_to_end(&mut self.bytes).await;
        self.too_large = self.bytes.len() > max_bytes;
    }
}

/// What came on stderr.
#[derive(Default)]
pub struct Heard {
    /// The last lines that are not of the protocol, such as the program's own error messages.
    plain: VecDeque<String>,
    /// The last log lines and warnings of the protocol.
    said: VecDeque<String>,
    lines: usize,
}

/// A line of the protocol: a JSON object with these keys only. Any other line is a log line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StderrLine {
    progress: Option<RawJson>,
    log: Option<String>,
    warn: Option<String>,
}

impl Heard {
    /// Reads to the end and passes on what is said.
    pub async fn read(&mut self, from: impl AsyncRead + Unpin, cx: &Context) {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while next_line(&mut from, &mut line).await {
            self.line(&line, cx);
        }
        if self.lines > MAX_LINES {
            cx.log(format!("{} more lines were dropped: an attempt may log {MAX_LINES}", self.lines - MAX_LINES));
        }
    }

    fn line(&mut self, line: &[u8], cx: &Context) {
        let said = if line.starts_with(b"{") { serde_json::from_slice::<StderrLine>(line).ok() } else { None };
        let Some(StderrLine { progress, log, warn }) = said else {
            let line = String::from_utf8_lossy(line).trim_end().to_owned();
            keep(&mut self.plain, &line);
            return self.log(line, cx);
        };
        if let Some(state) = progress {
            cx.progress(state);
        }
        if let Some(message) = warn {
            keep(&mut self.said, &message);
            cx.warn(message);
        }
        if let Some(line) = log {
            keep(&mut self.said, &line);
            self.log(line, cx);
        }
    }

    fn log(&mut self, line: String, cx: &Context) {
        if line.is_empty() {
            return;
        }
        self.lines += 1;
        if self.lines <= MAX_LINES {
            cx.log(line);
        }
    }

    /// The last lines, as a failure quotes them: plain ones, or those of the protocol where there is no other.
    pub fn last_words(&self) -> String {
        let lines = if self.plain.is_empty() { &self.said } else { &self.plain };
        lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}

fn keep(lines: &mut VecDeque<String>, line: &str) {
    if line.is_empty() {
        return;
    }
    if lines.len() == QUOTED_LINES {
        lines.pop_front();
    }
    lines.push_back(crate::handlers::failure::excerpt(line.as_bytes(), QUOTED_CHARS));
}

/// Reads one line, of which at most [`MAX_LINE_BYTES`] are kept. False at the end.
async fn next_line(from: &mut (impl AsyncBufRead + Unpin), line: &mut Vec<u8>) -> bool {
    line.clear();
    let mut begun = false;
    loop {
        let Ok(chunk @ [_, ..]) = from.fill_buf().await else {
            return begun;
        };
        begun = true;
        let end = chunk.iter().position(|&byte| byte == b'\n');
        let text = &chunk[..end.unwrap_or(chunk.len())];
        line.extend_from_slice(&text[..text.len().min(MAX_LINE_BYTES - line.len())]);
        let used = end.map_or(chunk.len(), |end| end + 1);
        from.consume(used);
        if end.is_some() {
            return true;
        }
    }
}
