//! Declarations of types on the control topic, for processes that do not run the types: an API checks the params of
//! tasks of an app that it has never started.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kafleet_broker::BrokerClient;
use kafleet_config::{Names, Rate, TypePolicy};
use kafleet_model::unique::UniqueSetting;
use kafleet_model::units::duration::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::record_value::{InvalidRecord, read};
use super::{ControlNotRead, ControlState, ControlWatch, follow_control};

/// Maximum size of the value of a type's record, in bytes.
pub const MAX_TYPE_BYTES: usize = 64 << 10;
/// Maximum number of types whose records a process keeps.
const MAX_TYPES: usize = 10_000;

/// `type/<type>`: declaration of a type, for processes that do not run it. Written by `kafleet topics apply`, never by
/// workers; at most 64 KiB.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TypeRecord {
    pub v: u32,
    #[serde(default)]
    pub at_ms: i64,
    /// Name of the app that declares the type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
    /// Description for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doc: Option<String>,
    /// JSON Schema of the params. Absent: it does not fit, and only workers check params.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<Value>,
    /// JSON Schema of the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Limits of the type.
    #[serde(default)]
    pub policy: DeclaredLimits,
}

/// Limits of a type as declared or configured. Absent: the default of the worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeclaredLimits {
    /// Concurrent attempts per worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Concurrent attempts in all workers together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrency: Option<u32>,
    /// Rate limit of starting attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Wait before the second attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_backoff: Option<Millis>,
    /// Maximum wait between two attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_backoff: Option<Millis>,
    /// Time limit of one attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Millis>,
    /// Time limit of the task with all attempts and waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_timeout: Option<Millis>,
    /// JSON pointers to values of params and results that are masked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mask: Vec<String>,
    /// JSON pointers to values of params by which tasks can be found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub index: Vec<String>,
    /// Uniqueness of the type's tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique: Option<UniqueSetting>,
}

impl DeclaredLimits {
    /// Limits of a policy. `concurrency`: that of the declaration, which may have none.
    pub fn of(policy: &TypePolicy, concurrency: Option<u32>) -> Self {
        let worker = TypePolicy::default();
        let other = |value: Millis, default: Millis| (value != default).then_some(value);
        Self {
            concurrency,
            max_concurrency: policy.max_concurrency,
            rate: policy.rate,
            min_backoff: other(policy.min_backoff, worker.min_backoff),
            max_backoff: other(policy.max_backoff, worker.max_backoff),
            timeout: other(policy.timeout, worker.timeout),
            total_timeout: policy.total_timeout,
            mask: policy.mask.clone(),
            index: policy.index.clone(),
            unique: policy.unique.clone(),
        }
    }

    /// Policy with these limits, and the defaults of a worker.
    pub fn type_policy(&self) -> TypePolicy {
        let policy = TypePolicy::default();
        TypePolicy {
            concurrency: self.concurrency,
            max_concurrency: self.max_concurrency,
            rate: self.rate,
            min_backoff: self.min_backoff.unwrap_or(policy.min_backoff),
            max_backoff: self.max_backoff.unwrap_or(policy.max_backoff),
            timeout: self.timeout.unwrap_or(policy.timeout),
            total_timeout: self.total_timeout,
            mask: self.mask.clone(),
            index: self.index.clone(),
            unique: self.unique.clone(),
            ..policy
        }
    }
}

impl TypeRecord {
    /// Leaves parts out until the record is within the limit of its size, the least important first. Returns the names of
    /// these parts.
    pub fn fit(&mut self) -> Vec<&'static str> {
        let mut left_out = Vec::new();
        while self.bytes() > MAX_TYPE_BYTES {
            let part = match self {
                Self { output: output @ Some(_), .. } => output.take().map(|_| "output"),
                Self { doc: doc @ Some(_), .. } => doc.take().map(|_| "doc"),
                Self { params: params @ Some(_), .. } => params.take().map(|_| "params"),
                _ => None,
            };
            let Some(part) = part else { break };
            left_out.push(part);
        }
        left_out
    }

    fn bytes(&self) -> usize {
        // A record that cannot be encoded cannot be written either.
        serde_json::to_vec(self).map_or(usize::MAX, |value| value.len())
    }

    /// Returns the names of the parts that differ. The time of writing is not compared.
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        let differs = [
            ("params", self.params != other.params),
            ("output", self.output != other.output),
            ("doc", self.doc != other.doc),
            ("app", self.app != other.app),
            ("policy", self.policy != other.policy),
        ];
        differs.into_iter().filter(|(_, differs)| *differs).map(|(part, _)| part).collect()
    }
}

/// Records of types that a process keeps.
#[derive(Clone, Debug, Default, PartialEq)]
enum KeptTypes {
    #[default]
    None,
    All,
    Of(Arc<BTreeSet<String>>),
}

/// Declarations of types by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TypeRecords {
    kept: KeptTypes,
    records: BTreeMap<String, Arc<TypeRecord>>,
}

impl TypeRecords {
    /// Keeps the records of all types.
    pub(super) fn all() -> Self {
        Self { kept: KeptTypes::All, ..Self::default() }
    }

    /// Keeps the records of these types only.
    pub(super) fn of(types: BTreeSet<String>) -> Self {
        Self { kept: KeptTypes::Of(Arc::new(types)), ..Self::default() }
    }

    /// Returns the record of a type.
    pub fn get(&self, name: &str) -> Option<&Arc<TypeRecord>> {
        self.records.get(name)
    }

    /// Records, sorted by type.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Arc<TypeRecord>)> {
        self.records.iter()
    }

    pub(super) fn apply_record(&mut self, name: String, value: Option<&[u8]>) -> Result<(), InvalidRecord> {
        let Some(value) = value else {
            self.records.remove(&name);
            return Ok(());
        };
        if value.len() > MAX_TYPE_BYTES {
            let reason = format!("it has {} bytes; the maximum is {MAX_TYPE_BYTES}", value.len());
            return Err(InvalidRecord::Value(reason));
        }
        let record = read::<TypeRecord>(value)?;
        if let Some(reason) = record.policy.rate.and_then(|rate| rate.check().err()) {
            return Err(InvalidRecord::Value(reason));
        }
        let is_kept = match &self.kept {
            KeptTypes::None => false,
            KeptTypes::All => true,
            KeptTypes::Of(types) => types.contains(&name),
        };
        if !is_kept {
            return Ok(());
        }
        if self.records.len() >= MAX_TYPES && !self.records.contains_key(&name) {
            return Err(InvalidRecord::TooMany { limit: MAX_TYPES, records: "types" });
        }
        self.records.insert(name, Arc::new(record));
        Ok(())
    }
}

/// Reads the records of all types, within the client's deadline.
pub async fn read_types(client: &BrokerClient, names: &Names) -> Result<TypeRecords, ControlNotRead> {
    let watch = ControlWatch::new(ControlState::without_task_commands().with_types());
    let _reading = follow_control(watch.clone(), client.broker().clone(), names, None);
    watch.wait_until_read_within(client.deadline(), names).await?;
    let types = watch.state().types.clone();
    Ok(types)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn record(params: Value, doc: &str) -> TypeRecord {
        TypeRecord { v: 1, params: Some(params), doc: Some(doc.to_owned()), ..TypeRecord::default() }
    }

    #[test]
    fn least_important_parts_are_left_out_of_a_large_record() {
        let large = || Value::String("x".repeat(40 << 10));
        let mut small = record(json!({"type": "object"}), "Doubles.");
        assert_eq!(small.fit(), [""; 0]);
        let mut declared = TypeRecord { output: Some(large()), ..record(large(), "Doubles.") };
        assert_eq!(declared.fit(), ["output"]);
        assert!(declared.params.is_some() && declared.doc.is_some());
        let mut two = record(large(), &"y".repeat(40 << 10));
        assert_eq!(two.fit(), ["doc"]);
        let mut all = TypeRecord { output: Some(json!(true)), ..record(json!("x".repeat(70 << 10)), "Doubles.") };
        assert_eq!(all.fit(), ["output", "doc", "params"]);
        assert!(all.bytes() < MAX_TYPE_BYTES);
    }

    #[test]
    fn differing_parts_are_named() {
        let declared = record(json!({"type": "object"}), "Doubles.");
        let later = TypeRecord { at_ms: 7, ..declared.clone() };
        assert_eq!(declared.differences(&later), [""; 0]);
        let other = TypeRecord { app: Some("shop".into()), ..record(json!(true), "Doubles.") };
        assert_eq!(declared.differences(&other), ["params", "app"]);
    }

    #[test]
    fn only_wanted_records_are_kept() {
        let value = serde_json::to_vec(&record(json!(true), "")).unwrap();
        let mut none = TypeRecords::default();
        let mut all = TypeRecords::all();
        let mut selected = TypeRecords::of(["a".to_owned()].into());
        for records in [&mut none, &mut all, &mut selected] {
            records.apply_record("a".into(), Some(&value)).unwrap();
            records.apply_record("b".into(), Some(&value)).unwrap();
        }
        let names = |records: &TypeRecords| records.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        assert_eq!(
            (names(&none), names(&all), names(&selected)),
            (vec![], vec!["a".into(), "b".into()], vec!["a".into()])
        );
        all.apply_record("a".into(), None).unwrap();
        assert_eq!(names(&all), ["b"]);
    }

    #[test]
    fn invalid_records_are_refused() {
        let mut records = TypeRecords::all();
        let large = serde_json::to_vec(&record(json!("x".repeat(MAX_TYPE_BYTES)), "")).unwrap();
        for (value, reason) in [
            (&large[..], "the maximum is 65536"),
            (br#"{"v":2}"#, "version 2"),
            (br#"{"v":1,"policy":{"rate":{"count":0}}}"#, "`burst` of at least 1"),
            (br#"{"v":1,"policy":3}"#, "expected an object, found integer `3`"),
        ] {
            let error = records.apply_record("a".into(), Some(value)).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        assert!(records.get("a").is_none());
    }
}
