//! Labels that a task was created with, for its handlers.

use std::collections::BTreeMap;
use std::sync::Arc;

use kafleet_model::json::RawJson;
use kafleet_model::task::Policy;
use kafleet_model::task::param_tags::is_param_tag;
use serde::{Deserialize, Serialize};

/// Labels of a task: the metadata that its creator has set besides type and params.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskLabels {
    /// Display name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Tags, as in searches, without those of declared params.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Person or program that has created the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creator: Option<String>,
    /// Free-form JSON object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub options: Option<RawJson>,
    /// Headers that were given with the task, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
}

impl TaskLabels {
    /// Returns the labels in the policy of a task. `None` if there are none, as for most tasks.
    pub fn of(policy: &Policy) -> Option<Arc<Self>> {
        let options = policy.rules.options.as_ref().and_then(|options| RawJson::of(options).ok());
        let labels = Self {
            name: policy.name.clone(),
            tags: policy.tags.iter().filter(|tag| !is_param_tag(tag)).cloned().collect(),
            creator: policy.creator.clone(),
            options,
            headers: policy.rules.headers.clone(),
        };
        (labels != Self::default()).then(|| Arc::new(labels))
    }

    /// Value of a header; the case of its name does not matter.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_without_labels_has_none() {
        assert_eq!(TaskLabels::of(&Policy { retries: Some(1), ..Policy::default() }), None);
        let policy = Policy { name: Some("cover".into()), tags: vec!["shop".into()], ..Policy::default() };
        let labels = TaskLabels::of(&policy).unwrap();
        assert_eq!((labels.name.as_deref(), &labels.tags[..]), (Some("cover"), &["shop".to_owned()][..]));
    }
}
