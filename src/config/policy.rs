//! How a type is run.

use super::{Order, Rate, TypeConfig};
use crate::model::duration::Millis;
use crate::model::retry::RetryPolicy;

/// How one type is run: what the type's own code says, overridden by `[types.<name>]`.
#[derive(Clone, Debug, PartialEq)]
pub struct TypePolicy {
    /// In one worker.
    pub concurrency: u32,
    /// In all workers together.
    pub max_concurrency: Option<u32>,
    pub rate: Option<Rate>,
    pub order: Order,
    pub retry: RetryPolicy,
    pub timeout: Millis,
    pub publish_results: bool,
}

impl Default for TypePolicy {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        Self {
            concurrency: cores,
            max_concurrency: None,
            rate: None,
            order: Order::None,
            retry: RetryPolicy::default(),
            timeout: Millis::secs(120),
            publish_results: false,
        }
    }
}

impl TypePolicy {
    pub fn with(self, config: &TypeConfig) -> Self {
        Self {
            concurrency: config.concurrency.unwrap_or(self.concurrency),
            max_concurrency: config.max_concurrency.or(self.max_concurrency),
            rate: config.rate.or(self.rate),
            order: config.order.unwrap_or(self.order),
            retry: RetryPolicy {
                retries: config.retries.unwrap_or(self.retry.retries),
                min_backoff: config.min_backoff.unwrap_or(self.retry.min_backoff),
                max_backoff: config.max_backoff.unwrap_or(self.retry.max_backoff),
            },
            timeout: config.timeout.unwrap_or(self.timeout),
            publish_results: config.publish_results || self.publish_results,
        }
    }
}
