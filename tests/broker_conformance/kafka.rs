//! Access to the Kafka under test.

use std::collections::BTreeMap;
use std::sync::Arc;

use kafleet::broker::Broker;
use kafleet::broker::kafka::Kafka;

/// Creates a client of the Kafka under test, with additional librdkafka settings.
///
/// # Panics
/// If the variable is set and no client can be created: a broken setup must not look like a passed test.
pub fn from_environment(settings: &[(&str, &str)]) -> Option<Arc<dyn Broker>> {
    let servers = kafleet_testkit::services::kafka()?;
    let mut section = BTreeMap::from([("bootstrap.servers".to_owned(), servers)]);
    section.extend(settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    Some(Arc::new(Kafka::new(&section).expect("a client of the Kafka that the variable names")))
}
