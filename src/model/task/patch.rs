//! Changes to a task after its creation.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::Policy;
use crate::model::record::TaskRecord;
use crate::model::record::state::State;
use crate::model::units::duration::Millis;

/// Changes to a task: omitted fields stay, `null` removes a value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct Patch {
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub name: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub link: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub options: Option<Option<Value>>,
    /// New start (epoch ms), while the task is deferred before its first attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub expires_at_ms: Option<Option<i64>>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub retries: Option<Option<u32>>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub min_backoff: Option<Option<Millis>>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub max_backoff: Option<Option<Millis>>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub timeout: Option<Option<Millis>>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub total_timeout: Option<Option<Millis>>,
}

/// Distinguishes `null` from an omitted field.
pub fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(from).map(Some)
}

impl Patch {
    pub fn apply(&self, policy: &mut Policy) {
        fn set<T: Clone>(target: &mut T, given: &Option<T>) {
            if let Some(given) = given {
                target.clone_from(given);
            }
        }
        set(&mut policy.name, &self.name);
        set(&mut policy.tags, &self.tags);
        set(&mut policy.link, &self.link);
        set(&mut policy.rules.options, &self.options);
        set(&mut policy.not_before_ms, &self.not_before_ms.map(Some));
        set(&mut policy.expires_at_ms, &self.expires_at_ms);
        set(&mut policy.retries, &self.retries);
        set(&mut policy.min_backoff, &self.min_backoff);
        set(&mut policy.max_backoff, &self.max_backoff);
        set(&mut policy.timeout, &self.timeout);
        set(&mut policy.total_timeout, &self.total_timeout);
    }

    /// Changed fields by their names in the API.
    pub fn fields(&self) -> Vec<&'static str> {
        let shown = [
            ("name", self.name.is_some()),
            ("tags", self.tags.is_some()),
            ("link", self.link.is_some()),
            ("options", self.options.is_some()),
            ("start", self.not_before_ms.is_some()),
        ];
        shown.into_iter().filter(|(_, given)| *given).map(|(field, _)| field).chain(self.attempt_fields()).collect()
    }

    /// Changed fields that workers read from the task's record.
    pub fn attempt_fields(&self) -> impl Iterator<Item = &'static str> + use<> {
        let fields = [
            ("expires", self.expires_at_ms.is_some()),
            ("retries", self.retries.is_some()),
            ("min_backoff", self.min_backoff.is_some()),
            ("max_backoff", self.max_backoff.is_some()),
            ("timeout", self.timeout.is_some()),
            ("total_timeout", self.total_timeout.is_some()),
        ];
        fields.into_iter().filter(|(_, given)| *given).map(|(field, _)| field)
    }

    /// Reason why the patch cannot be applied to a task in its current state; `None` if it can.
    pub fn rejection(&self, node: &TaskRecord) -> Option<String> {
        if !node.announced {
            return Some("the task is not published yet".to_owned());
        }
        if self.not_before_ms.is_some() && !(node.own == State::Scheduled && node.kept > 0 && node.attempt == 0) {
            return Some(format!("the task is {}: only a scheduled task can be given another start", node.own));
        }
        let field = self.attempt_fields().next()?;
        if node.is_external() {
            return Some(format!("an external task has no `{field}`: it applies to workers only"));
        }
        // A deferred or republished record can still be changed; one in a topic cannot.
        let is_out = !node.own.is_terminal() && node.kept == 0;
        is_out.then(|| {
            format!("the task is {}: workers read `{field}` from its record, which is already published", node.own)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patch(text: &str) -> Patch {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn omitted_fields_stay_and_null_removes() {
        let mut policy =
            Policy { name: Some("old".into()), link: Some("l".into()), retries: Some(3), ..Policy::default() };
        let asked = patch(r#"{"name": null, "tags": ["a"], "timeout": 5000, "options": {"n": 1}}"#);
        asked.apply(&mut policy);
        assert_eq!((policy.name, policy.link.as_deref(), policy.retries), (None, Some("l"), Some(3)));
        assert_eq!((policy.tags, policy.timeout), (vec!["a".to_owned()], Some(Millis::secs(5))));
        assert_eq!(asked.fields(), ["name", "tags", "options", "timeout"]);
        let text = serde_json::to_string(&asked).unwrap();
        assert_eq!(patch(&text), asked, "{text}");
        assert!(text.contains(r#""name":null"#) && !text.contains("link"), "{text}");
    }

    #[test]
    fn attempt_fields_can_change_only_before_the_record_is_published() {
        let shown = patch(r#"{"name": "n"}"#);
        let read = patch(r#"{"retries": 1}"#);
        let start = patch(r#"{"not_before_ms": 1}"#);
        let can = |patch: &Patch, own, kept, attempt| {
            let mut node = TaskRecord { own, kept, attempt, ..TaskRecord::expected(1, 0) };
            assert!(patch.rejection(&node).is_some(), "not announced");
            node.announced = true;
            patch.rejection(&node).is_none()
        };
        for (own, kept, attempt, allowed) in [
            (State::Queued, 0, 0, [true, false, false]),
            (State::Running, 0, 1, [true, false, false]),
            (State::Scheduled, 9, 0, [true, true, true]),
            (State::Scheduled, 0, 0, [true, false, false]),
            (State::Retrying, 9, 2, [true, true, false]),
            (State::Failed, 0, 2, [true, true, false]),
        ] {
            let found = [&shown, &read, &start].map(|patch| can(patch, own, kept, attempt));
            assert_eq!(found, allowed, "{own} {kept}");
        }
    }
}
