//! Creation of a fleet's topics for tests, with retries: a busy cluster may exceed the request's deadline.

use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::{Broker, TopicChange, TopicOutcome};
use kafleet_config::Config;
use kafleet_handlers::Registry;

use crate::wait::eventually;

const ONCE: Duration = Duration::from_secs(20);

pub async fn make(broker: &Arc<dyn Broker>, config: &Config, registry: &Registry) {
    eventually("the topics exist", async || {
        let outcomes = kafleet_fleet::topics::apply(&broker.client(), config, registry, ONCE).await;
        let is_failed = |outcome: &TopicOutcome| matches!(outcome.change, TopicChange::Failed(_));
        if outcomes.as_ref().is_ok_and(|outcomes| !outcomes.iter().any(is_failed)) { Ok(()) } else { Err(outcomes) }
    })
    .await;
}
