//! Named views on the control topic: searches for tasks with their order and columns, which the pages, the API and the
//! command line share.

use std::collections::BTreeMap;
use std::sync::Arc;

use kafleet_config::Role;
use kafleet_model::query::MAX_QUERY_BYTES;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::record_value::{InvalidRecord, read};

/// Maximum number of named views; further ones are refused.
pub const MAX_VIEWS: usize = 200;
/// Maximum length of a view's name.
const MAX_NAME: usize = 40;
/// Maximum size of the value of a view's record, in bytes: that of the longest search, each of whose characters may be escaped in
/// JSON, and of a description.
const MAX_VIEW_BYTES: usize = 8 * MAX_QUERY_BYTES;

/// `view/<name>`: named view of tasks. The APIs check search, order and columns before they write it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ViewRecord {
    pub v: u32,
    #[serde(default)]
    pub at_ms: i64,
    /// Search for tasks.
    #[serde(default)]
    pub q: String,
    /// Name of the order; absent: newest first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sort: Option<String>,
    /// Names of the columns; empty: the default ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<String>,
    /// Description for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Lowest role that sees the view.
    pub role: Role,
    /// Name of the API token that wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// Checks the name of a view.
pub fn check_view_name(name: &str) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(is_plain) {
        return Err(format!("a view is named by 1 to {MAX_NAME} characters of `a-z`, `0-9` and `-`"));
    }
    Ok(())
}

/// Named views; empty in processes that do not use them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ViewRecords {
    pub(super) is_kept: bool,
    records: BTreeMap<String, Arc<ViewRecord>>,
}

impl ViewRecords {
    pub(super) fn kept() -> Self {
        Self { is_kept: true, ..Self::default() }
    }

    pub fn get(&self, name: &str) -> Option<&Arc<ViewRecord>> {
        self.records.get(name)
    }

    /// Views, sorted by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&String, &Arc<ViewRecord>)> {
        self.records.iter()
    }

    /// Whether another view of this name is one too many.
    pub fn is_full_for(&self, name: &str) -> bool {
        self.records.len() >= MAX_VIEWS && !self.records.contains_key(name)
    }

    pub(super) fn apply_record(&mut self, name: String, value: Option<&[u8]>) -> Result<(), InvalidRecord> {
        if !self.is_kept {
            return Ok(());
        }
        let Some(value) = value else {
            self.records.remove(&name);
            return Ok(());
        };
        if value.len() > MAX_VIEW_BYTES {
            let reason = format!("it has {} bytes; the maximum is {MAX_VIEW_BYTES}", value.len());
            return Err(InvalidRecord::Value(reason));
        }
        let record = read::<ViewRecord>(value)?;
        if self.is_full_for(&name) {
            return Err(InvalidRecord::TooMany { limit: MAX_VIEWS, records: "views" });
        }
        self.records.insert(name, Arc::new(record));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(q: &str) -> Vec<u8> {
        let role = Role::Read;
        let record = ViewRecord {
            v: 1,
            at_ms: 0,
            q: q.to_owned(),
            sort: None,
            columns: Vec::new(),
            description: None,
            role,
            by: None,
        };
        serde_json::to_vec(&record).unwrap()
    }

    #[test]
    fn names_are_short_and_plain() {
        for name in ["a", "failed-charges-2", &"x".repeat(40)] {
            assert_eq!(check_view_name(name), Ok(()), "{name}");
        }
        for name in ["", "A", "a b", "a/b", "..", "ü", &"x".repeat(41)] {
            assert!(check_view_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn records_replace_and_remove_views_within_their_bounds() {
        let mut views = ViewRecords::kept();
        views.apply_record("a".into(), Some(&view("tag:x"))).unwrap();
        views.apply_record("a".into(), Some(&view("tag:y"))).unwrap();
        assert_eq!(views.get("a").map(|view| view.q.as_str()), Some("tag:y"));
        let large = views.apply_record("b".into(), Some(&view(&"x".repeat(MAX_VIEW_BYTES)))).unwrap_err();
        assert!(large.to_string().contains("the maximum is"), "{large}");
        for n in 0..MAX_VIEWS - 1 {
            views.apply_record(format!("v{n}"), Some(&view(""))).unwrap();
        }
        let full = views.apply_record("z".into(), Some(&view(""))).unwrap_err();
        assert!(full.to_string().contains("the limit of 200 views"), "{full}");
        views.apply_record("a".into(), Some(&view("tag:z"))).unwrap();
        views.apply_record("a".into(), None).unwrap();
        assert!(views.get("a").is_none() && !views.is_full_for("z"));
    }

    #[test]
    fn views_are_kept_only_where_they_are_used() {
        let mut views = ViewRecords::default();
        views.apply_record("a".into(), Some(&view("tag:x"))).unwrap();
        assert_eq!(views.iter().len(), 0);
    }
}
