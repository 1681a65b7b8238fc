//! Cursors: the last entry read, encoded opaquely so that clients do not construct them.

use data_encoding::BASE64URL_NOPAD;
use kafleet_model::task::id::{TaskId, clip};
use kafleet_store::Entry;

use crate::http::problem::{ApiError, Code};

pub(crate) fn encode(entry: &Entry) -> String {
    BASE64URL_NOPAD.encode(format!("{}/{}", entry.seen_ms, entry.id).as_bytes())
}

pub(crate) fn decode(text: &str) -> Result<Entry, ApiError> {
    read(text).ok_or_else(|| bad_cursor(text))
}

pub(crate) fn bad_cursor(text: &str) -> ApiError {
    ApiError::new(Code::BadCursor, format!("query parameter `cursor`: `{}` is not a cursor of this list", clip(text)))
        .hint("omit it to start at the first page")
}

fn read(text: &str) -> Option<Entry> {
    let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).ok()?;
    let (seen_ms, id) = std::str::from_utf8(&bytes).ok()?.split_once('/')?;
    Some(Entry { seen_ms: seen_ms.parse().ok()?, id: TaskId::parse(id).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_round_trips() {
        for (seen_ms, id) in [(0, "a"), (-5, "a:b:c"), (i64::MAX, "x~@._-")] {
            let entry = Entry { seen_ms, id: TaskId::parse(id).unwrap() };
            assert_eq!(decode(&encode(&entry)).unwrap(), entry);
        }
        for bad in ["", "!", "AAAA", "MQ", "MS8"] {
            assert!(decode(bad).unwrap_err().is(Code::BadCursor), "{bad}");
        }
    }
}
