//! Output of a program: a bounded result on stdout, and lines on stderr.

use std::collections::VecDeque;

use kafleet_model::json::RawJson;
use rustc_hash::FxHashMap;
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
    /// Task of a batch that the line is about.
    id: Option<String>,
    progress: Option<RawJson>,
    log: Option<String>,
    warn: Option<String>,
}

/// Contexts of the tasks of a program.
pub(super) enum Contexts<'a> {
    One(&'a Context),
    /// By task id.
    Batch(FxHashMap<&'a str, &'a Context>),
}

impl<'a> Contexts<'a> {
    pub(super) fn of_batch(contexts: impl Iterator<Item = &'a Context>) -> Self {
        Self::Batch(contexts.map(|cx| (cx.id.as_str(), cx)).collect())
    }

    /// Context of a line that names this task. A line of a batch without an id belongs to no task.
    fn of(&self, id: Option<&str>) -> Option<&'a Context> {
        match self {
            Self::One(cx) => id.is_none().then_some(*cx),
            Self::Batch(by_id) => by_id.get(id?).copied(),
        }
    }
}

impl Stderr {
    /// Reads to the end of the stream and forwards progress, log lines and warnings.
    pub(super) async fn read(&mut self, from: impl AsyncRead + Unpin, contexts: &Contexts<'_>) {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while next_line(&mut from, &mut line).await {
            self.line(&line, contexts);
        }
        if self.lines > MAX_LINES
            && let Some(cx) = contexts.of(None)
        {
            cx.log(format!(
                "{} more lines were dropped: the limit of an attempt is {MAX_LINES}",
                self.lines - MAX_LINES
            ));
        }
    }

    fn line(&mut self, line: &[u8], contexts: &Contexts<'_>) {
        let parsed = if line.starts_with(b"{") { serde_json::from_slice::<StderrLine>(line).ok() } else { None };
        // With an id only in a batch.
        let parsed = parsed.filter(|parsed| parsed.id.is_none() || matches!(contexts, Contexts::Batch(_)));
        let Some(StderrLine { id, progress, log, warn }) = parsed else {
            let line = String::from_utf8_lossy(line).trim_end().to_owned();
            keep_line(&mut self.plain, &line);
            return self.log(line, contexts.of(None));
        };
        let cx = contexts.of(id.as_deref());
        if let (Some(state), Some(cx)) = (progress, cx) {
            cx.progress(state);
        }
        if let Some(message) = warn {
            keep_line(&mut self.logged, &message);
            cx.into_iter().for_each(|cx| cx.warn(message.clone()));
        }
        if let Some(line) = log {
            keep_line(&mut self.logged, &line);
            self.log(line, cx);
        }
    }

    fn log(&mut self, line: String, cx: Option<&Context>) {
        let Some(cx) = cx.filter(|_| !line.is_empty()) else { return };
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
