//! Record that a redrive publishes again: that of the dead letter, also with changed params.

use std::borrow::Cow;

use kafleet_fleet::dead_letters::{DeadLetterRecord, Original};
use kafleet_model::json::RawJson;
use kafleet_model::outbox::RecordCopy;
use kafleet_model::task::structured::unwrap_structured;

use super::document;
use crate::http::problem::{ApiError, Code};
use crate::state::Api;

/// Change of the params of redriven tasks.
#[derive(Clone, Debug)]
pub(crate) enum ParamsChange {
    /// Params instead of those of the record.
    Replace(RawJson),
    /// Merge patch (RFC 7386) of the params of the record.
    Merge(RawJson),
}

/// Returns a dead letter with its record, whose params are changed; an error if the record cannot be published.
pub(crate) fn changed_letter<'a>(
    api: &Api,
    letter: &'a DeadLetterRecord,
    change: Option<&ParamsChange>,
) -> Result<Cow<'a, DeadLetterRecord>, ApiError> {
    check_readable(letter)?;
    if letter.by_reference && letter.original.value.is_none() {
        return Err(source_gone(letter));
    }
    let params = match change {
        None => return Ok(Cow::Borrowed(letter)),
        Some(ParamsChange::Replace(params)) => params.clone(),
        Some(ParamsChange::Merge(patch)) => {
            let params = params_of(letter)?.merged(patch);
            api.types.check_params(&letter.id.task_type, &params, "").map_err(|error| of_merged(error, letter))?;
            params
        }
    };
    Ok(Cow::Owned(with_params(letter, &params)))
}

/// Rejects a record that was not written by kafleet.
pub(crate) fn check_readable(letter: &DeadLetterRecord) -> Result<(), ApiError> {
    if letter.readable {
        return Ok(());
    }
    let reason = format!("`{}` was not written by kafleet and has no task to run", letter.id);
    Err(ApiError::new(Code::UnreadableDeadLetter, reason)
        .hint("drop it; `kafleet dead-letters show` prints its contents"))
}

/// Params in the record of a dead letter.
fn params_of(letter: &DeadLetterRecord) -> Result<RawJson, ApiError> {
    let original = &letter.original;
    let value = original.value.as_deref().unwrap_or_default();
    if let Some((_, params)) = unwrap_structured(&original.headers, value) {
        return Ok(params);
    }
    RawJson::parse(value).map_err(|error| {
        let reason = format!("the params of `{}` cannot be patched, as they are no JSON: {error}", letter.id);
        ApiError::new(Code::ParamsUnreadable, reason).hint("redrive the dead letter with other params, or drop it")
    })
}

/// Error about patched params, with the place of the invalid value in its text: the request has no such place.
fn of_merged(error: ApiError, letter: &DeadLetterRecord) -> ApiError {
    let document = error.document();
    let location = document.pointer.filter(|pointer| !pointer.is_empty());
    let location = location.map_or_else(String::new, |pointer| format!(" at `{pointer}`"));
    let reason = format!("the changed params of `{}` are invalid{location}: {}", letter.id, document.detail);
    ApiError::new(Code::Schema, reason)
}

/// Dead letter whose record has these params. Its headers stay, also the hash, by which the record belongs to its task.
fn with_params(letter: &DeadLetterRecord, params: &RawJson) -> DeadLetterRecord {
    let value = Some(params.text().as_bytes().to_vec());
    let mut original = Original { value, ..letter.original.clone() };
    // The params are a part of the value of a record in structured mode.
    let envelope = letter.original.value.as_deref();
    if let Some((headers, _)) = envelope.and_then(|envelope| unwrap_structured(&original.headers, envelope)) {
        original.headers = headers;
    }
    DeadLetterRecord { by_reference: false, original, ..letter.clone() }
}

/// Returns the record to embed in the retry event. `None`: use the task's own record.
pub(super) fn embedded_record(letter: &DeadLetterRecord) -> Option<RecordCopy> {
    if letter.by_reference {
        return None;
    }
    let original = &letter.original;
    let headers = original.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref().unwrap_or_default()));
    let params = RawJson::parse(original.value.as_deref()?).ok()?;
    Some(RecordCopy::of(original.key.as_deref(), headers, params))
}

/// Returns the error for a by-reference dead letter whose source record is no longer retained.
fn source_gone(letter: &DeadLetterRecord) -> ApiError {
    let (id, source) = (&letter.id, document(letter, None).source.unwrap_or_default());
    let error =
        format!("the dead letter `{id}` does not contain its record, and the source {source} is no longer retained");
    ApiError::new(Code::ParamsGone, error).hint("submit the task again, or drop the dead letter")
}
