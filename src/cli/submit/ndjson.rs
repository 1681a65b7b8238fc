//! Newline-delimited JSON as tasks to create.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;
use std::thread;

use kafleet_client::new_id_after;
use kafleet_documents::CreateTask;
use kafleet_model::json::{JsonError, JsonKind, JsonSlice, RawJson};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use crate::cli::exit::{Code, Failure};

/// Maximum length of a line. Larger params do not fit into a Kafka record.
const MAX_LINE_BYTES: usize = 4 << 20;
/// Lines read ahead.
const READ_AHEAD: usize = 64;

/// Source of lines.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Source {
    Stdin,
    File(PathBuf),
}

/// Content of the lines.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum InputFormat {
    /// JSON documents of tasks.
    Documents,
    /// Params; the other fields come from this template.
    Params(Box<CreateTask>),
}

/// A non-blank line.
#[derive(Debug)]
pub(super) struct Line {
    /// Line number, starting at 1.
    pub number: u64,
    /// Number of input bytes up to the end of the line.
    pub end: u64,
    /// The task, or an error message.
    pub task: Result<Box<RawValue>, String>,
}

/// Opens the source and reads it on its own thread. Also returns the size of a regular file.
pub(super) fn read(
    source: &Source,
    format: InputFormat,
) -> Result<(mpsc::Receiver<io::Result<Line>>, Option<u64>), Failure> {
    let (input, size): (Box<dyn Read + Send>, _) = match source {
        Source::Stdin => (Box::new(io::stdin()), None),
        Source::File(path) => {
            let file = File::open(path).map_err(|error| unreadable(path, &error))?;
            let size = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|file| file.len());
            (Box::new(file), size)
        }
    };
    let (sender, lines) = mpsc::channel(READ_AHEAD);
    thread::spawn(move || {
        let reader = Lines { input: BufReader::with_capacity(256 << 10, input), format, number: 0, end: 0 };
        for line in reader {
            // The receiver has been dropped.
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    Ok((lines, size))
}

fn unreadable(path: &std::path::Path, error: &io::Error) -> Failure {
    let code = if error.kind() == io::ErrorKind::NotFound { Code::NotFound } else { Code::Usage };
    Failure::new(code, format_args!("cannot read `{}`: {error}", path.display()))
}

struct Lines<R> {
    input: R,
    format: InputFormat,
    number: u64,
    end: u64,
}

impl<R: BufRead> Iterator for Lines<R> {
    type Item = io::Result<Line>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let bytes = match self.line() {
                Ok(None) => return None,
                Ok(Some(bytes)) => bytes,
                Err(error) => return Some(Err(error)),
            };
            if is_blank(&bytes) {
                continue;
            }
            let task = bytes.and_then(|bytes| self.format.task(&bytes));
            return Some(Ok(Line { number: self.number, end: self.end, task }));
        }
    }
}

fn is_blank(line: &Result<Vec<u8>, String>) -> bool {
    line.as_ref().is_ok_and(|bytes| bytes.trim_ascii().is_empty())
}

impl<R: BufRead> Lines<R> {
    /// Reads the next line, or an error for a line that is too long. `None` at the end.
    fn line(&mut self) -> io::Result<Option<Result<Vec<u8>, String>>> {
        let mut bytes = Vec::new();
        let mut read = self.input.by_ref().take(MAX_LINE_BYTES as u64 + 1).read_until(b'\n', &mut bytes)? as u64;
        if read == 0 {
            return Ok(None);
        }
        let too_long = bytes.len() > MAX_LINE_BYTES && bytes.last() != Some(&b'\n');
        if too_long {
            read += self.input.skip_until(b'\n')? as u64;
        }
        self.number += 1;
        self.end += read;
        Ok(Some(if too_long { Err(format!("the line is longer than {MAX_LINE_BYTES} bytes")) } else { Ok(bytes) }))
    }
}

impl InputFormat {
    fn task(&self, line: &[u8]) -> Result<Box<RawValue>, String> {
        let json = RawJson::parse(line.trim_ascii()).map_err(|error| not_json(&error))?;
        match self {
            Self::Documents => with_id(json).map(RawJson::into_raw),
            Self::Params(template) => {
                let id = Some(new_id_after(template.id_prefix.as_deref()));
                let task = CreateTask { params: json, id, id_prefix: None, ..(**template).clone() };
                serde_json::value::to_raw_value(&task).map_err(|error| error.to_string())
            }
        }
    }
}

/// Passes a document on unchanged, for the API to validate, with an id if it has none.
fn with_id(mut document: RawJson) -> Result<RawJson, String> {
    if document.slice().kind() != JsonKind::Object {
        return Err(
            "a task is a JSON object such as {\"type\": \"echo\", \"params\": {}}; for lines of params, give the type"
                .into(),
        );
    }
    let has_id = document.slice().member("id").is_some_and(|id| id.kind() != JsonKind::Null);
    if !has_id {
        let prefix = document.slice().member("id_prefix").and_then(JsonSlice::string).map(Cow::into_owned);
        document.set("id", Value::from(new_id_after(prefix.as_deref())));
        if prefix.is_some() {
            document.set("id_prefix", Value::Null);
        }
    }
    Ok(document)
}

/// Formats an error, one of the syntax with its column; the caller adds the line number.
fn not_json(error: &JsonError) -> String {
    let JsonError::Syntax(error) = error else { return error.to_string() };
    let text = error.to_string();
    let message = text.split(" at line ").next().unwrap_or(&text);
    let advice = if error.is_eof() { ": each line must be a complete JSON value, as written by `jq -c .`" } else { "" };
    format!("not JSON: {message} (column {}){advice}", error.column())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafleet_model::task::Policy;

    fn lines(text: &[u8], format: InputFormat) -> Vec<Line> {
        Lines { input: text, format, number: 0, end: 0 }.map(Result::unwrap).collect()
    }

    fn value(line: &Line) -> Value {
        serde_json::from_str(line.task.as_ref().unwrap().get()).unwrap()
    }

    #[test]
    fn documents_are_unchanged_except_for_a_missing_id() {
        let read =
            lines(b"{\"type\":\"echo\",\"id\":\"a\",\"new\":1}\n\n  \r\n{\"type\":\"echo\"}", InputFormat::Documents);
        assert_eq!(read.iter().map(|line| line.number).collect::<Vec<_>>(), [1, 4]);
        assert_eq!(value(&read[0]), serde_json::json!({"type": "echo", "id": "a", "new": 1}));
        assert!(value(&read[1])["id"].as_str().unwrap().len() == 36);
        assert_eq!(read[1].end, 53);
    }

    #[test]
    fn params_are_inserted_into_the_template() {
        let policy = Policy { tags: vec!["t".into()], ..Policy::default() };
        let template = CreateTask { task_type: "echo".into(), policy, ..CreateTask::default() };
        let read = lines(b"1\n{\"a\":2}\n", InputFormat::Params(Box::new(template)));
        let first = value(&read[0]);
        let second = value(&read[1]);
        assert_eq!((&first["type"], &first["params"], &first["tags"][0]), (&"echo".into(), &1.into(), &"t".into()));
        assert_eq!(second["params"]["a"], 2);
        assert_ne!(first["id"], second["id"]);
    }

    #[test]
    fn invalid_lines_are_reported_one_by_one() {
        let mut text = b"{\"type\":}\n[1]\n\xff\n\"".to_vec();
        text.extend(vec![b'x'; MAX_LINE_BYTES + 10]);
        text.extend(b"\n{\"type\":\"echo\"}\n");
        let read = lines(&text, InputFormat::Documents);
        let error: Vec<&str> = read[..4].iter().map(|line| line.task.as_ref().unwrap_err().as_str()).collect();
        assert_eq!(error[0], "not JSON: expected value (column 9)");
        assert!(error[1].starts_with("a task is a JSON object"), "{error:?}");
        let spread = lines(b"{\n\"type\": \"echo\"\n}\n", InputFormat::Documents);
        assert!(spread[0].task.as_ref().unwrap_err().contains("`jq -c .`"), "{spread:?}");
        assert!(error[2].starts_with("not JSON"), "{error:?}");
        assert_eq!(error[3], "the line is longer than 4194304 bytes");
        assert!(read[4].task.is_ok() && read[4].number == 5, "the following lines are read");
    }

    #[test]
    fn missing_file_is_not_found() {
        let failure = read(&Source::File("/no/such.ndjson".into()), InputFormat::Documents).err().unwrap();
        assert_eq!(failure.code, Code::NotFound);
        assert!(failure.message.starts_with("cannot read `/no/such.ndjson`"));
    }
}
