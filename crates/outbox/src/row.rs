//! Rows of the outbox, and what they become.

use std::collections::BTreeMap;

use kafleet_documents::CreateTask;
use kafleet_model::json::short_reason;
use kafleet_model::task::Trace;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

/// Maximum size of the params or the fields of a row that the relay reads, in bytes. Larger ones are no valid task.
pub const MAX_COLUMN_BYTES: usize = 1 << 20;

/// Columns of a row that a field of the same name would contradict.
const COLUMNS: [&str; 4] = ["type", "params", "id", "key"];

/// Committed row of the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxRow {
    pub key: RowKey,
    pub task_type: String,
    /// Ordering key of the task.
    pub task_key: Option<String>,
    /// JSON. `None`: longer than [`MAX_COLUMN_BYTES`].
    pub params: Option<String>,
    /// JSON object with further fields of the task.
    pub fields: FieldsColumn,
    /// Time of the insertion by the clock of the database, in epoch milliseconds.
    pub created_at_ms: i64,
}

/// Content of the column `fields`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldsColumn {
    /// NULL.
    Absent,
    Json(String),
    /// Longer than [`MAX_COLUMN_BYTES`].
    TooLong,
}

/// Identity of a row. A database that has lost inserts in a failover gives a `seq` again, with another id.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowKey {
    pub seq: i64,
    pub id: String,
}

/// Hash of a [`RowKey`], under which the marker remembers published rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowHash(pub [u8; 16]);

/// Row that is no valid task, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadRow {
    pub key: RowKey,
    pub reason: String,
}

/// Submission that a row asks for.
#[derive(Clone, Debug)]
pub struct RowSubmission {
    pub input: CreateTask,
    pub trace: Option<Trace>,
}

impl RowKey {
    pub fn hash(&self) -> RowHash {
        let digest = Sha256::new().chain_update(self.seq.to_be_bytes()).chain_update(self.id.as_bytes()).finalize();
        let mut hash = [0; 16];
        hash.copy_from_slice(&digest[..16]);
        RowHash(hash)
    }
}

impl OutboxRow {
    /// Size of the row's texts in memory, in bytes.
    pub fn bytes(&self) -> usize {
        let fields = if let FieldsColumn::Json(text) = &self.fields { text.len() } else { 0 };
        self.params.as_ref().map_or(0, String::len) + fields + self.key.id.len() + 128
    }

    /// Reads the row as the request that would submit the same task over the API.
    ///
    /// # Errors
    /// The reason why the row is no valid task.
    pub fn submission(&self) -> Result<RowSubmission, String> {
        let too_long = |column: &str| {
            format!("`{column}` is longer than {MAX_COLUMN_BYTES} bytes: store the data elsewhere and pass a link")
        };
        let params = self.params.as_deref().ok_or_else(|| too_long("params"))?;
        let mut fields: BTreeMap<String, Box<RawValue>> = match &self.fields {
            FieldsColumn::Absent => BTreeMap::new(),
            FieldsColumn::TooLong => return Err(too_long("fields")),
            FieldsColumn::Json(text) => serde_json::from_str(text)
                .map_err(|error| format!("`fields` is not a JSON object: {}", short_reason(&error)))?,
        };
        if let Some(name) = COLUMNS.iter().find(|name| fields.contains_key(**name)) {
            return Err(format!("`fields` contains `{name}`, which is a column of its own"));
        }
        let trace = take_trace(&mut fields)?;
        let raw = |value: Result<Box<RawValue>, serde_json::Error>| value.map_err(|error| error.to_string());
        fields.insert("type".to_owned(), raw(serde_json::value::to_raw_value(&self.task_type))?);
        fields.insert("id".to_owned(), raw(serde_json::value::to_raw_value(&self.key.id))?);
        if let Some(key) = &self.task_key {
            fields.insert("key".to_owned(), raw(serde_json::value::to_raw_value(key))?);
        }
        let params =
            RawValue::from_string(params.to_owned()).map_err(|error| format!("`params` is no JSON: {error}"))?;
        fields.insert("params".to_owned(), params);
        let text = raw(serde_json::value::to_raw_value(&fields))?;
        let input = serde_json::from_str(text.get()).map_err(|error| format!("`fields`: {}", short_reason(&error)))?;
        Ok(RowSubmission { input, trace })
    }
}

/// Takes the W3C trace context out of the fields.
fn take_trace(fields: &mut BTreeMap<String, Box<RawValue>>) -> Result<Option<Trace>, String> {
    let mut take = |name: &str| -> Result<Option<String>, String> {
        let Some(value) = fields.remove(name) else { return Ok(None) };
        serde_json::from_str(value.get()).map_err(|_| format!("`{name}` in `fields` is not a string"))
    };
    let (parent, state) = (take("traceparent")?, take("tracestate")?);
    Ok(parent.map(|parent| Trace { parent, state }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(params: &str, fields: Option<&str>) -> OutboxRow {
        OutboxRow {
            key: RowKey { seq: 1, id: "invoice-42".into() },
            task_type: "invoice".into(),
            task_key: Some("customer-7".into()),
            params: Some(params.into()),
            fields: fields.map_or(FieldsColumn::Absent, |text| FieldsColumn::Json(text.into())),
            created_at_ms: 0,
        }
    }

    #[test]
    fn row_becomes_the_request_of_the_same_task() {
        let params = r#"{"order": 12345678901234567890123}"#;
        let fields = r#"{"tags": ["a"], "delay": "5s", "traceparent": "00-x", "tracestate": "y=1"}"#;
        let RowSubmission { input, trace } = row(params, Some(fields)).submission().unwrap();
        assert_eq!((input.id.as_deref(), input.task_type.as_str()), (Some("invoice-42"), "invoice"));
        assert_eq!(input.key.as_deref(), Some("customer-7"));
        assert_eq!(input.params.text(), params, "numbers keep their digits");
        assert_eq!(
            (input.policy.tags.clone(), input.delay.map(|delay| delay.as_i64())),
            (vec!["a".to_owned()], Some(5_000))
        );
        assert_eq!(trace, Some(Trace { parent: "00-x".into(), state: Some("y=1".into()) }));
    }

    #[test]
    fn invalid_row_names_its_reason() {
        for (fields, reason) in [
            ("[1]", "`fields` is not a JSON object"),
            (r#"{"id": "x"}"#, "`fields` contains `id`, which is a column of its own"),
            (r#"{"prio": 1}"#, "unknown field `prio`"),
            (r#"{"traceparent": 1}"#, "`traceparent` in `fields` is not a string"),
        ] {
            let found = row("{}", Some(fields)).submission().unwrap_err();
            assert!(found.contains(reason) && !found.contains("at line 1 column 7"), "{fields}: {found}");
        }
        let long = OutboxRow { params: None, ..row("{}", None) };
        assert!(long.submission().unwrap_err().starts_with("`params` is longer than 1048576 bytes"));
    }

    #[test]
    fn reused_number_with_another_id_has_another_hash() {
        let key = |seq, id: &str| RowKey { seq, id: id.into() }.hash();
        assert_eq!(key(1, "a"), key(1, "a"));
        assert_ne!(key(1, "a"), key(1, "b"));
        assert_ne!(key(1, "a"), key(2, "a"));
    }
}
