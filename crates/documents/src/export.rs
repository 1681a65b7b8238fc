//! Documents and formats of exports of tasks.

use std::str::FromStr;

use kafleet_model::task::id::clip;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Status, TaskColumn};

/// Columns of an export that names none.
const DEFAULT_COLUMNS: &[TaskColumn] = &[
    TaskColumn::Id,
    TaskColumn::Name,
    TaskColumn::Type,
    TaskColumn::State,
    TaskColumn::Created,
    TaskColumn::Started,
    TaskColumn::Ended,
    TaskColumn::Time,
    TaskColumn::Tags,
    TaskColumn::Worker,
    TaskColumn::Error,
    TaskColumn::Creator,
];

/// Format of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExportFormat {
    /// JSON documents, one per line.
    #[default]
    Jsonl,
    Csv,
}

impl ExportFormat {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Jsonl => "jsonl",
            Self::Csv => "csv",
        }
    }

    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Jsonl => "application/x-ndjson",
            Self::Csv => "text/csv; charset=utf-8",
        }
    }
}

impl FromStr for ExportFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "jsonl" => Ok(Self::Jsonl),
            "csv" => Ok(Self::Csv),
            other => Err(format!("`{}` is no format: use `jsonl` or `csv`", clip(other))),
        }
    }
}

/// End of an export, in its last line. An export without it was cut off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExportEnd {
    /// Whether all tasks that match were exported.
    pub complete: bool,
    /// Number of exported tasks.
    pub tasks: u64,
    /// Reason for an incomplete export; null for a complete one.
    pub reason: Option<String>,
    /// `cursor` of an export that continues this one.
    pub next: Option<String>,
}

#[derive(Serialize)]
struct LastLine<'a> {
    end: &'a ExportEnd,
}

/// Writes tasks as lines of text. Each line ends with a newline.
#[derive(Clone, Debug)]
pub struct ExportLines {
    format: ExportFormat,
    /// Columns that were chosen. `None`: whole documents or, as CSV, the default columns.
    columns: Option<Vec<TaskColumn>>,
}

impl ExportLines {
    pub const fn new(format: ExportFormat, columns: Option<Vec<TaskColumn>>) -> Self {
        Self { format, columns }
    }

    fn csv_columns(&self) -> &[TaskColumn] {
        self.columns.as_deref().unwrap_or(DEFAULT_COLUMNS)
    }

    /// First line: the names of the columns. Empty for JSON.
    pub fn head(&self) -> String {
        match self.format {
            ExportFormat::Jsonl => String::new(),
            ExportFormat::Csv => csv_line(self.csv_columns().iter().map(|column| column.name().to_owned())),
        }
    }

    /// Line of a task.
    pub fn task(&self, task: &Status) -> String {
        match (self.format, &self.columns) {
            (ExportFormat::Csv, _) => csv_line(self.csv_columns().iter().map(|column| column.text(task))),
            (ExportFormat::Jsonl, None) => json_line(task),
            (ExportFormat::Jsonl, Some(columns)) => {
                let values = columns.iter().map(|column| (column.name().to_owned(), Value::String(column.text(task))));
                json_line(&values.collect::<Map<_, _>>())
            }
        }
    }

    /// Last line.
    pub fn end(&self, end: &ExportEnd) -> String {
        match self.format {
            ExportFormat::Jsonl => json_line(&LastLine { end }),
            ExportFormat::Csv if end.complete => format!("# complete: {} tasks\r\n", end.tasks),
            ExportFormat::Csv => {
                let next = end.next.as_deref().map(|cursor| format!("; continue with cursor {cursor}"));
                let reason = end.reason.as_deref().unwrap_or("incomplete");
                format!("# incomplete after {} tasks: {reason}{}\r\n", end.tasks, next.unwrap_or_default())
            }
        }
    }
}

fn json_line(value: &impl Serialize) -> String {
    // These documents have string keys only, so that they can always be encoded.
    let mut line = serde_json::to_string(value).unwrap_or_default();
    line.push('\n');
    line
}

/// Line of CSV (RFC 4180).
fn csv_line(values: impl Iterator<Item = String>) -> String {
    let mut line = values.map(|value| csv_value(&value)).collect::<Vec<_>>().join(",");
    line.push_str("\r\n");
    line
}

/// Value of a line of CSV. An apostrophe keeps spreadsheets from running it as a formula.
fn csv_value(value: &str) -> String {
    let is_formula = value.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let guarded = if is_formula { format!("'{value}") } else { value.to_owned() };
    if guarded.contains(['"', ',', '\r', '\n']) || guarded.starts_with('#') {
        return format!("\"{}\"", guarded.replace('"', "\"\""));
    }
    guarded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(name: &str) -> Status {
        let counts = serde_json::json!({"total": 0, "pending": 0, "successful": 0, "failed": 0, "by_state": {}});
        serde_json::from_value(serde_json::json!({
            "id": "a", "root": "a", "state": "failed", "own_state": "failed", "run": 1, "attempt": 1, "name": name,
            "started_at": "2026-01-31T12:00:00.000Z", "ended_at": "2026-01-31T12:00:01.500Z", "type": "echo",
            "children": counts, "tree": counts, "position": "0:0", "duplicates": 0, "tags": ["x", "y"],
        }))
        .unwrap()
    }

    #[test]
    fn values_of_csv_are_quoted_and_are_no_formulas() {
        for (value, expected) in [
            ("plain", "plain"),
            ("=1+2", "'=1+2"),
            ("+1", "'+1"),
            ("-1", "'-1"),
            ("@a", "'@a"),
            ("\tx", "'\tx"),
            ("a,b", "\"a,b\""),
            ("say \"x\"\nthen", "\"say \"\"x\"\"\nthen\""),
            ("=a,\"b\"", "\"'=a,\"\"b\"\"\""),
            ("#1", "\"#1\""),
            ("", ""),
        ] {
            assert_eq!(csv_value(value), expected, "{value}");
        }
    }

    #[test]
    fn csv_has_its_columns_and_states_its_end() {
        let columns = vec![TaskColumn::Id, TaskColumn::Name, TaskColumn::Time, TaskColumn::Tags];
        let lines = ExportLines::new(ExportFormat::Csv, Some(columns));
        assert_eq!(lines.head(), "id,name,time,tags\r\n");
        assert_eq!(lines.task(&task("=a")), "a,'=a,1500,x y\r\n");
        let end = ExportEnd { complete: true, tasks: 2, reason: None, next: None };
        assert_eq!(lines.end(&end), "# complete: 2 tasks\r\n");
        let cut =
            ExportEnd { complete: false, reason: Some("the limit is reached".into()), next: Some("x".into()), ..end };
        assert_eq!(lines.end(&cut), "# incomplete after 2 tasks: the limit is reached; continue with cursor x\r\n");
    }

    #[test]
    fn json_lines_are_documents_or_the_chosen_columns() {
        let whole = ExportLines::new(ExportFormat::Jsonl, None);
        assert_eq!(whole.head(), "");
        let line: Value = serde_json::from_str(&whole.task(&task("a"))).unwrap();
        assert_eq!((line["id"].as_str(), line["state"].as_str()), (Some("a"), Some("failed")));
        let some = ExportLines::new(ExportFormat::Jsonl, Some(vec![TaskColumn::Id, TaskColumn::State]));
        assert_eq!(some.task(&task("a")), "{\"id\":\"a\",\"state\":\"failed\"}\n");
        let end = ExportEnd { complete: true, tasks: 2, reason: None, next: None };
        let expected = "{\"end\":{\"complete\":true,\"tasks\":2,\"reason\":null,\"next\":null}}\n";
        assert_eq!(some.end(&end), expected);
    }
}
