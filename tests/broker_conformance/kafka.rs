//! Access to the Kafka under test.

use std::sync::Arc;

use kafleet::broker::Broker;
use kafleet::broker::kafka::Kafka;

/// # Panics
/// If the variable is set and no client can be created: a broken setup must not look like a passed test.
pub fn from_environment() -> Option<Arc<dyn Broker>> {
    let servers = crate::support::services::kafka()?;
    let section = [("bootstrap.servers".to_owned(), servers)].into();
    Some(Arc::new(Kafka::new(&section).expect("a client of the Kafka that the variable names")))
}
