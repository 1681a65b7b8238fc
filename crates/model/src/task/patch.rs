//! Changes to a task after its creation.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

use super::Policy;
use super::document::{ChangeFields, FieldReader};
use super::field::{Change, Field, Scope};
use super::param_tags::is_param_tag;
use super::start::NextStart;
use crate::json::{RawJson, plain_text};
use crate::record::TaskRecord;
use crate::record::state::State;

/// New values of fields: omitted ones stay, `null` removes a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldChanges {
    /// Names of the changed fields. A set: neither their order nor repetition in a document makes a difference.
    given: BTreeSet<&'static str>,
    /// Values of the given fields.
    values: Policy,
}

/// Changes to a task: omitted fields stay, `null` removes a value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(default)]
pub struct Patch {
    /// New start (epoch ms), while the task is deferred before its first attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before_ms: Option<i64>,
    /// Start that `not_before_ms` brings forward, also of a task that waits for its next attempt. Without it only a task
    /// that is deferred before its first attempt gets another start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_start: Option<NextStart>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<Option<i64>>,
    #[serde(flatten)]
    #[schemars(with = "ChangeFields")]
    pub changes: FieldChanges,
}

/// Distinguishes `null` from an omitted field.
pub fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(from).map(Some)
}

impl FieldChanges {
    /// New values of any fields, by their names in JSON.
    ///
    /// # Errors
    /// A value has another type than its field.
    pub fn of(values: &BTreeMap<String, RawJson>) -> Result<Self, serde_json::Error> {
        let given = Policy::fields().map(|field| field.name).filter(|name| values.contains_key(*name)).collect();
        Ok(Self { given, values: serde_json::from_str(&plain_text(values))? })
    }

    /// Changed fields, in the order of the table.
    pub fn fields(&self) -> impl Iterator<Item = &'static Field> {
        Policy::fields().filter(|field| self.given.contains(field.name))
    }

    pub fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    /// New values of the changed fields; the others have their defaults.
    pub fn values(&self) -> &Policy {
        &self.values
    }

    /// Applies the changes. Tags of declared params stay: they follow from the params.
    pub fn apply(&self, policy: &mut Policy) {
        let declared: Vec<String> = policy.tags.iter().filter(|tag| is_param_tag(tag)).cloned().collect();
        self.fields().for_each(|field| policy.copy(field, &self.values));
        if self.given.contains("tags") {
            policy.tags.retain(|tag| !is_param_tag(tag));
            policy.tags.extend(declared);
        }
    }
}

impl FieldReader for FieldChanges {
    fn read_field<'de, M: MapAccess<'de>>(&mut self, field: &'static Field, map: &mut M) -> Result<(), M::Error> {
        self.given.insert(field.name);
        self.values.read_or_clear(field, map)
    }
}

impl Serialize for FieldChanges {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(self.given.len()))?;
        for field in self.fields() {
            self.values.write(field, &mut map)?;
        }
        map.end()
    }
}

/// Reads a patch field by field: `#[serde(flatten)]` would decode the values of options. Ignores fields that cannot be
/// changed.
impl<'de> Deserialize<'de> for Patch {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct PatchVisitor;
        impl<'de> Visitor<'de> for PatchVisitor {
            type Value = Patch;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("changes to a task")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Patch, M::Error> {
                let mut patch = Patch::default();
                while let Some(name) = map.next_key::<Cow<'_, str>>()? {
                    match (&*name, Policy::field(&name).filter(|field| field.is_in(Scope::Change))) {
                        ("not_before_ms", _) => patch.not_before_ms = map.next_value()?,
                        ("next_start", _) => patch.next_start = map.next_value()?,
                        ("expires_at_ms", _) => patch.expires_at_ms = Some(map.next_value()?),
                        (_, Some(field)) => patch.changes.read_field(field, &mut map)?,
                        (_, None) => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(patch)
            }
        }
        from.deserialize_map(PatchVisitor)
    }
}

impl Patch {
    /// Request to start a waiting task now.
    pub fn start(next_start: NextStart, now_ms: i64) -> Self {
        Self { not_before_ms: Some(now_ms), next_start: Some(next_start), ..Self::default() }
    }

    pub fn apply(&self, policy: &mut Policy) {
        self.changes.apply(policy);
        if let Some(start) = self.not_before_ms {
            policy.not_before_ms = Some(start);
        }
        if let Some(expires) = self.expires_at_ms {
            policy.expires_at_ms = expires;
        }
    }

    /// Changed fields by their names in the API.
    pub fn fields(&self) -> Vec<&'static str> {
        let always = self.changes.fields().filter(|field| field.change == Change::Always).map(|field| field.name);
        let start = self.not_before_ms.map(|_| "start");
        always.chain(start).chain(self.attempt_fields()).collect()
    }

    /// Changed fields that workers read from the task's record.
    pub fn attempt_fields(&self) -> impl Iterator<Item = &'static str> {
        let changed = self.changes.fields().filter(|field| field.change == Change::BeforePublish);
        self.expires_at_ms.map(|_| "expires").into_iter().chain(changed.map(|field| field.name))
    }

    /// Reason why the patch cannot be applied to a task in its current state; `None` if it can.
    pub fn rejection(&self, task: &TaskRecord) -> Option<String> {
        if !task.definition.announced {
            return Some("the task is not published yet".to_owned());
        }
        if let Some(requested) = self.next_start {
            return match NextStart::of(task) {
                Ok(next) if next == requested => None,
                Ok(_) => Some("the task waits for another attempt meanwhile".to_owned()),
                Err(reason) => Some(reason),
            };
        }
        if self.not_before_ms.is_some()
            && !(task.own == State::Scheduled && task.deferral.is_deferred() && task.attempt == 0)
        {
            return Some(format!("the task is {}: only a scheduled task can be given another start", task.own));
        }
        let field = self.attempt_fields().next()?;
        if task.is_external() {
            return Some(format!("an external task has no `{field}`: it applies to workers only"));
        }
        // A deferred or republished record can still be changed; one in a topic cannot.
        let is_out = !task.own.is_terminal() && !task.deferral.is_deferred();
        is_out.then(|| {
            format!("the task is {}: workers read `{field}` from its record, which is already published", task.own)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::duration::Millis;

    fn patch(text: &str) -> Patch {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn omitted_fields_stay_and_null_removes() {
        let mut policy =
            Policy { name: Some("old".into()), link: Some("l".into()), retries: Some(3), ..Policy::default() };
        let requested = patch(r#"{"name": null, "tags": ["a"], "timeout": 5000, "options": {"n": 1}}"#);
        requested.apply(&mut policy);
        assert_eq!((policy.name, policy.link.as_deref(), policy.retries), (None, Some("l"), Some(3)));
        assert_eq!((policy.tags, policy.timeout), (vec!["a".to_owned()], Some(Millis::secs(5))));
        assert_eq!(requested.fields(), ["name", "tags", "options", "timeout"]);
        let text = serde_json::to_string(&requested).unwrap();
        assert_eq!(patch(&text), requested, "{text}");
        assert!(text.contains(r#""name":null"#) && !text.contains("link"), "{text}");
    }

    #[test]
    fn tags_of_declared_params_stay() {
        let tags = |text: &str| {
            let mut policy = Policy { tags: vec!["params.n=1".into(), "ci".into()], ..Policy::default() };
            serde_json::from_str::<Patch>(text).unwrap().apply(&mut policy);
            policy.tags
        };
        assert_eq!(tags(r#"{"tags": ["new", "params.m=2"]}"#), ["new", "params.n=1"]);
        assert_eq!(tags(r#"{"tags": null}"#), ["params.n=1"]);
        assert_eq!(tags(r#"{"name": "a"}"#), ["params.n=1", "ci"]);
    }

    #[test]
    fn attempt_fields_can_change_only_before_the_record_is_published() {
        let shown = patch(r#"{"name": "n"}"#);
        let read = patch(r#"{"retries": 1}"#);
        let start = patch(r#"{"not_before_ms": 1}"#);
        let can = |patch: &Patch, own, record_bytes, attempt| {
            let mut task = TaskRecord { own, attempt, ..TaskRecord::expected(1, 0) };
            task.deferral.record_bytes = record_bytes;
            assert!(patch.rejection(&task).is_some(), "not announced");
            task.definition.announced = true;
            patch.rejection(&task).is_none()
        };
        for (own, record_bytes, attempt, allowed) in [
            (State::Queued, 0, 0, [true, false, false]),
            (State::Running, 0, 1, [true, false, false]),
            (State::Scheduled, 9, 0, [true, true, true]),
            (State::Scheduled, 0, 0, [true, false, false]),
            (State::Retrying, 9, 2, [true, true, false]),
            (State::Failed, 0, 2, [true, true, false]),
        ] {
            let allowed_changes = [&shown, &read, &start].map(|patch| can(patch, own, record_bytes, attempt));
            assert_eq!(allowed_changes, allowed, "{own} {record_bytes}");
        }
    }
}
