//! Declarations of types on the control topic: written by `topics apply`, compared by workers and `doctor`.

use std::collections::BTreeMap;
use std::sync::Arc;

use kafleet_broker::{BrokerClient, BrokerError};
use kafleet_config::{Config, Names};
use kafleet_handlers::{Registry, TypeRegistration};
use kafleet_runtime::now_ms;

use crate::control::types::{DeclaredLimits, TypeRecord, TypeRecords, read_types};
use crate::control::{CONTROL_VERSION, ControlKey, ControlNotRead, ControlRecord, put_record};

/// Outcome for the declaration of a type.
#[derive(Clone, Debug, PartialEq)]
pub struct TypeOutcome {
    pub name: String,
    pub change: TypeChange,
    /// Parts that do not fit into the record.
    pub left_out: Vec<&'static str>,
}

/// Change of a declaration.
#[derive(Clone, Debug, PartialEq)]
pub enum TypeChange {
    Created,
    /// With the parts that were different.
    Altered(Vec<&'static str>),
    Unchanged,
    /// Of a type that the configuration does not have.
    Kept,
    Failed(BrokerError),
}

/// Reason why the declarations were not written.
#[derive(Debug, thiserror::Error)]
pub enum DeclareError {
    #[error(transparent)]
    NotRead(#[from] ControlNotRead),
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

/// Returns the declaration of a registered type, and the parts that do not fit into it.
pub fn declaration(config: &Config, name: &str, registered: &TypeRegistration) -> (TypeRecord, Vec<&'static str>) {
    let TypeRegistration { schema, policy, details, .. } = registered;
    // The default of an app's type depends on the machine that starts the app.
    let concurrency = match &details.app {
        Some(_) => config.types.get(name).and_then(|section| section.concurrency),
        None => policy.concurrency,
    };
    // Of an app's type the registered policy is the default, and the section has what the app and the configuration set.
    let policy = config.types.get(name).map_or_else(|| policy.clone(), |section| policy.clone().with(section));
    let mut record = TypeRecord {
        v: CONTROL_VERSION,
        at_ms: now_ms(),
        app: details.app.clone(),
        doc: details.doc.clone(),
        params: Some(schema.json().clone()),
        output: details.output.clone(),
        policy: DeclaredLimits::of(&policy, concurrency),
    };
    let left_out = record.fit();
    (record, left_out)
}

/// Writes the declarations of all registered types that differ from those on the control topic. Returns an outcome per
/// type, and one per declaration of a type that the configuration does not have.
pub async fn declare(
    client: &BrokerClient,
    config: &Config,
    registry: &Registry,
) -> Result<Vec<TypeOutcome>, DeclareError> {
    let names = Names::of(config);
    let present = read_types(client, &names).await?;
    let producer = client.shared_producer(None).await?;
    let mut outcomes = Vec::new();
    for (name, registered) in registry.types() {
        let (record, left_out) = declaration(config, name, registered);
        let change = change_of(present.get(name), &record);
        let is_new = change != TypeChange::Unchanged;
        let key = ControlKey::Type(name.to_string());
        let written = if is_new {
            put_record(&producer, &names, &key, &ControlRecord::Type(Box::new(record))).await.map(drop)
        } else {
            Ok(())
        };
        let change = written.map_or_else(TypeChange::Failed, |()| change);
        outcomes.push(TypeOutcome { name: name.to_string(), change, left_out });
    }
    let gone = gone_types(config, registry, &present).into_iter();
    outcomes.extend(gone.map(|name| TypeOutcome { name, change: TypeChange::Kept, left_out: Vec::new() }));
    Ok(outcomes)
}

/// Returns the declared types that neither the configuration nor the registry has.
pub fn gone_types(config: &Config, registry: &Registry, present: &TypeRecords) -> Vec<String> {
    let configured = super::type_names(config, registry);
    present.iter().map(|(name, _)| name.clone()).filter(|name| !configured.contains(name)).collect()
}

fn change_of(present: Option<&Arc<TypeRecord>>, declared: &TypeRecord) -> TypeChange {
    match present.map(|present| present.differences(declared)) {
        None => TypeChange::Created,
        Some(parts) if parts.is_empty() => TypeChange::Unchanged,
        Some(parts) => TypeChange::Altered(parts),
    }
}

/// Compares the registered types with the declarations: by type, the parts that differ. `None`: there is no declaration.
pub fn differing_types(
    config: &Config,
    registry: &Registry,
    present: &TypeRecords,
) -> BTreeMap<String, Option<Vec<&'static str>>> {
    let difference = |(name, registered): (&Arc<str>, &TypeRegistration)| {
        let (declared, _) = declaration(config, name, registered);
        match change_of(present.get(name), &declared) {
            TypeChange::Created => Some((name.to_string(), None)),
            TypeChange::Altered(parts) => Some((name.to_string(), Some(parts))),
            _ => None,
        }
    };
    registry.types().filter_map(difference).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafleet_broker::{Broker, memory};
    use kafleet_config::TypeConfig;
    use kafleet_handlers::builtin::echo::Echo;
    use kafleet_handlers::{Schema, TypeDetails};
    use serde_json::json;

    fn registered(schema: serde_json::Value, app: Option<&str>) -> TypeRegistration {
        let details = TypeDetails { app: app.map(str::to_owned), doc: Some("Doubles.".into()), output: None };
        TypeRegistration { schema: Schema::compile(schema).unwrap(), details, ..TypeRegistration::new(Echo) }
    }

    fn registry(types: &[(&str, serde_json::Value)]) -> Registry {
        let mut registry = Registry::default();
        for (name, schema) in types {
            registry.add(name, registered(schema.clone(), Some("shop")));
        }
        registry
    }

    fn changes(outcomes: &[TypeOutcome]) -> Vec<(&str, TypeChange)> {
        outcomes.iter().map(|outcome| (&*outcome.name, outcome.change.clone())).collect()
    }

    #[test]
    fn declared_limits_do_not_depend_on_the_machine() {
        let mut config = Config::default();
        let mut of_app = registered(json!(true), Some("shop"));
        of_app.policy.concurrency = Some(16);
        assert_eq!(declaration(&config, "double", &of_app).0.policy, DeclaredLimits::default());
        config.types.insert("double".into(), TypeConfig { concurrency: Some(3), ..TypeConfig::default() });
        assert_eq!(declaration(&config, "double", &of_app).0.policy.concurrency, Some(3));
        let of_rust = TypeRegistration { details: TypeDetails::default(), ..of_app };
        assert_eq!(declaration(&Config::default(), "double", &of_rust).0.policy.concurrency, Some(16));
    }

    #[tokio::test]
    async fn only_differences_are_written_and_the_rest_is_named() {
        let broker: Arc<dyn Broker> = memory::MemoryBroker::new(memory::MemoryBrokerOptions::default());
        let client = broker.client();
        let config = Config::default();
        let old = registry(&[("a", json!(true)), ("b", json!(true))]);
        super::super::apply(&client, &config, &old, client.deadline()).await.unwrap();
        let first = declare(&client, &config, &old).await.unwrap();
        assert_eq!(changes(&first), [("a", TypeChange::Created), ("b", TypeChange::Created)]);
        let again = declare(&client, &config, &old).await.unwrap();
        assert_eq!(changes(&again), [("a", TypeChange::Unchanged), ("b", TypeChange::Unchanged)]);

        let large = json!({"title": "x".repeat(70 << 10)});
        let new = registry(&[("a", json!({"type": "object"})), ("c", large)]);
        let outcomes = declare(&client, &config, &new).await.unwrap();
        let altered = TypeChange::Altered(vec!["params"]);
        let expected = [("a", altered), ("c", TypeChange::Created), ("b", TypeChange::Kept)];
        assert_eq!(changes(&outcomes), expected);
        assert_eq!(outcomes[1].left_out, ["doc", "params"]);
        let present = read_types(&client, &Names::of(&config)).await.unwrap();
        let params = |name: &str| present.get(name).unwrap().params.clone();
        assert_eq!((params("a"), params("b"), params("c")), (Some(json!({"type": "object"})), Some(json!(true)), None));
        assert_eq!(differing_types(&config, &new, &present), BTreeMap::new());
        let differing = differing_types(&config, &registry(&[("a", json!(true)), ("d", json!(true))]), &present);
        assert_eq!(differing, [("a".to_owned(), Some(vec!["params"])), ("d".to_owned(), None)].into());
    }
}
