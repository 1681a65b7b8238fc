//! Hand-written encoder of `submitted` events, a sibling of the [`succeeded`](super::succeeded) encoder.

use super::succeeded::{announcement, head};
use crate::encode_error::EncodeError;
use crate::json::push_number;
use crate::task::{Position, TaskSpec};

/// Writes the `submitted` event of a task whose record is at `position`: the same bytes as
/// [`Event::submitted`](super::Event::submitted) encodes to. An external task has no record.
pub fn submitted(
    task: &TaskSpec,
    position: Option<Position>,
    at_ms: i64,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    head(out, "submitted", task);
    out.extend_from_slice(b",\"at_ms\":");
    push_number(out, at_ms);
    out.extend_from_slice(b",\"task\":");
    announcement(out, task, position)?;
    out.push(b'}');
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::event::Event;
    use crate::task::{RecordSource, read_task};

    #[test]
    fn submitted_encoder_writes_the_same_bytes_as_the_event() {
        let task_type: Arc<str> = "echo".into();
        let full = [
            ("ce_run", "2"),
            ("ce_hash", "a\"b"),
            ("ce_name", "n\n"),
            ("ce_tags", "a,b"),
            ("ce_asof", "7"),
            ("ce_onfailure", "ignore"),
        ];
        for (headers, offset) in [
            (vec![], Some(41)),
            (vec![("ce_id", "a"), ("ce_hash", "abc")], Some(0)),
            (full.to_vec(), Some(7)),
            (vec![("ce_id", "external")], None),
        ] {
            let written_at = offset.map(|offset| Position { partition: 3, offset });
            let position = written_at.unwrap_or(Position { partition: 0, offset: 0 });
            let source = RecordSource { task_type: &task_type, position, timestamp_ms: 7, value: Some(b"{}") };
            let task = read_task(&source, headers.iter().map(|(name, value)| (*name, Some(value.as_bytes())))).unwrap();
            let mut by_serde = Vec::new();
            let mut by_hand = Vec::new();
            Event::submitted(&task, written_at, 99).encode(&mut by_serde).unwrap();
            submitted(&task, written_at, 99, &mut by_hand).unwrap();
            assert_eq!(String::from_utf8(by_hand).unwrap(), String::from_utf8(by_serde).unwrap());
        }
    }
}
