//! Creation of a fleet's topics for tests, with retries: a busy cluster may exceed the request's deadline.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kafleet::broker::{Broker, TopicChange};
use kafleet::config::Config;
use kafleet::handlers::Registry;

use crate::support::wait::DEADLINE;

const ONCE: Duration = Duration::from_secs(20);

pub async fn make(broker: &Arc<dyn Broker>, config: &Config, registry: &Registry) {
    let end = Instant::now() + DEADLINE;
    loop {
        let outcomes = kafleet::topics::apply(&broker.client(), config, registry, ONCE).await;
        let failed = match &outcomes {
            Ok(outcomes) => outcomes.iter().any(|outcome| matches!(outcome.change, TopicChange::Failed(_))),
            Err(_) => true,
        };
        if !failed {
            return;
        }
        assert!(Instant::now() < end, "no topics within {DEADLINE:?}: {outcomes:?}");
    }
}
