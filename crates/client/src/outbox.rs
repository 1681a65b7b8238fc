//! Tasks that are submitted in a transaction of Postgres: as rows of the outbox, which `kafleet outbox` publishes.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::value::RawValue;

use super::{CreateTask, Error, IntoTask};

/// Statement that submits a task in the transaction in which it is executed, for any driver of Postgres:
///
/// ```ignore
/// let statement = outbox_statement(resize)?;
/// let query = statement.values.iter().fold(sqlx::query(OUTBOX_INSERT), |query, value| query.bind(value));
/// query.execute(&mut *tx).await?;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxStatement {
    /// Id of the task.
    pub id: String,
    /// Values of `$1` to `$5` of [`OUTBOX_INSERT`]: texts, or NULL.
    pub values: [Option<String>; 5],
}

/// SQL of an [`OutboxStatement`].
pub const OUTBOX_INSERT: &str = "INSERT INTO kafleet_outbox (id, type, key, params, fields) \
                                 VALUES ($1, $2, $3, CAST($4 AS json), CAST($5 AS json))";

/// Columns of their own; all other fields of a task are in `fields`.
const COLUMNS: [&str; 4] = ["type", "id", "key", "params"];

/// Returns the statement for a task.
///
/// # Errors
/// `Params`: the params, or the options, cannot be written as JSON.
pub fn outbox_statement<T: IntoTask>(task: T) -> Result<OutboxStatement, Error> {
    let task = task.into_task();
    let document = task.valid()?;
    let id = document.id.clone().unwrap_or_else(super::new_id);
    let mut fields = fields_of(document).map_err(|error| Error::Params(Arc::new(error)))?;
    COLUMNS.iter().for_each(|name| drop(fields.remove(*name)));
    let fields = (!fields.is_empty()).then(|| serde_json::to_string(&fields));
    let fields = fields.transpose().map_err(|error| Error::Params(Arc::new(error)))?;
    let (task_type, params) = (document.task_type.clone(), document.params.text().to_owned());
    Ok(OutboxStatement { values: [Some(id.clone()), Some(task_type), document.key.clone(), Some(params), fields], id })
}

/// Fields of a task as JSON texts, whose numbers keep their digits.
fn fields_of(document: &CreateTask) -> Result<BTreeMap<String, Box<RawValue>>, serde_json::Error> {
    serde_json::from_str(&serde_json::to_string(document)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NewTask;

    #[test]
    fn statement_has_the_columns_and_further_fields() {
        let task =
            NewTask::new("invoice", serde_json::json!({"order": 42})).id("invoice-42").key("customer-7").tag("shop");
        let OutboxStatement { id, values } = outbox_statement(task).unwrap();
        let [of_id, task_type, key, params, fields] = values.map(Option::unwrap);
        assert_eq!((id.as_str(), of_id.as_str(), task_type.as_str()), ("invoice-42", "invoice-42", "invoice"));
        assert_eq!((key.as_str(), params.as_str()), ("customer-7", r#"{"order":42}"#));
        assert_eq!(fields, r#"{"tags":["shop"]}"#);
    }

    #[test]
    fn id_is_made_and_absent_columns_are_null() {
        let OutboxStatement { id, values } = outbox_statement(NewTask::new("echo", serde_json::json!(1))).unwrap();
        assert_eq!(values, [Some(id), Some("echo".into()), None, Some("1".into()), None]);
    }
}
