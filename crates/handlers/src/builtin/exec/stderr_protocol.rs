//! Output of a program: a bounded result on stdout, and lines on stderr.

use std::collections::VecDeque;

use kafleet_model::json::RawJson;
use serde::Deserialize;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};

use crate::Context;

/// Maximum length of a line; longer lines are truncated.
pub const MAX_LINE_BYTES: usize = 16 * 1024;
/// Maximum log lines of one attempt; further ones are only counted.
pub const MAX_LINES: usize = 10_000;
/// Number of lines quoted in a failure's message.
const QUOTED_LINES: usize = 10;
/// Maximum length of a quoted line.
const QUOTED_CHARS: usize = 400;

/// Contents of stdout.
#[derive(Default)]
pub(super) struct Stdout {
    pub bytes: Vec<u8>,
    pub too_large: bool,
}

impl Stdout {
    /// Reads to the end of the stream, or until the limit is exceeded.
    pub(super) async fn read(&mut self, from: impl AsyncRead + Unpin, max_bytes: usize) {
        let most = u64::try_from(max_bytes).unwrap_or(u64::MAX).saturating_add(1);
        // A broken pipe means that the program has ended; its exit code is the outcome.
        let _ = from.take(most).read_to_end(&mut self.bytes).await;
        self.too_large = self.bytes.len() > max_bytes;
    }
}

/// Contents of stderr.
#[derive(Default)]
pub(super) struct Stderr {
    /// Last lines outside the protocol, such as the program's own error messages.
    plain: VecDeque<String>,
    /// Last log lines and warnings of the protocol.
    logged: VecDeque<String>,
    lines: usize,
}

/// A line of the protocol: a JSON object with only these keys. Any other line is a log line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StderrLine {
    progress: Option<RawJson>,
    log: Option<String>,
    warn: Option<String>,
}

impl Stderr {
    /// Reads to the end of the stream and forwards progress, log lines and warnings.
    pub(super) async fn read(&mut self, from: impl AsyncRead + Unpin, cx: &Context) {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while next_line(&mut from, &mut line).await {
            self.line(&line, cx);
        }
        if self.lines > MAX_LINES {
            cx.log(format!(
                "{} more lines were dropped: the limit of an attempt is {MAX_LINES}",
                self.lines - MAX_LINES
            ));
        }
    }

    fn line(&mut self, line: &[u8], cx: &Context) {
        let logged = if line.starts_with(b"{") { serde_json::from_slice::<StderrLine>(line).ok() } else { None };
        let Some(StderrLine { progress, log, warn }) = logged else {
            let line = String::from_utf8_lossy(line).trim_end().to_owned();
            keep_line(&mut self.plain, &line);
            return self.log(line, cx);
        };
        if let Some(state) = progress {
            cx.progress(state);
        }
        if let Some(message) = warn {
            keep_line(&mut self.logged, &message);
            cx.warn(message);
        }
        if let Some(line) = log {
            keep_line(&mut self.logged, &line);
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

    /// Returns the last lines for a failure's message: lines outside the protocol, otherwise those of the protocol.
    pub(super) fn tail(&self) -> String {
        let lines = if self.plain.is_empty() { &self.logged } else { &self.plain };
        lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}

fn keep_line(lines: &mut VecDeque<String>, line: &str) {
    if line.is_empty() {
        return;
    }
    if lines.len() == QUOTED_LINES {
        lines.pop_front();
    }
    lines.push_back(crate::failure::excerpt(line.as_bytes(), QUOTED_CHARS));
}

/// Reads one line, truncated to [`MAX_LINE_BYTES`]. False at the end of the stream.
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
