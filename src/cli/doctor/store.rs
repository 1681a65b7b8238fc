//! Checks of Redis: settings, memory, permissions, and the progress of the projection in it.

use std::time::Duration;

use super::Finding;
use super::positions::{EventsLog, check_progress, observe_progress};
use crate::error_text::split_hint;
use crate::store::{MemoryUse, Store, StoreError};

/// Share of Redis's `maxmemory` in use from which a warning is given.
const FULL_PERCENT: u128 = 90;
/// Maximum time of one check.
const DEADLINE: Duration = Duration::from_secs(15);

/// `log`: the events to compare checkpoints with; `None` if they cannot be read.
pub(super) async fn findings(store: &dyn Store, partitions: u32, log: Option<&EventsLog>) -> Vec<Finding> {
    if let Err(error) = with_deadline(store.check()).await {
        let (what, hint) = split_hint(&error);
        return vec![Finding::error("redis", what).hint(hint.unwrap_or("check --redis, KAFLEET_REDIS or `[redis]`"))];
    }
    let mut found = vec![Finding::ok("redis", "answers, and evicts nothing (noeviction)")];
    match with_deadline(store.memory()).await {
        Ok(uses) => found.extend(uses.iter().filter_map(check_memory)),
        Err(error) => found.push(Finding::error("redis", error)),
    }
    match with_deadline(store.risky_settings()).await {
        Ok(risks) => found.extend(risks.into_iter().map(|risk| Finding::warning("redis", risk.what).hint(risk.hint))),
        Err(error) => found.push(Finding::error("redis", error)),
    }
    found.extend(with_deadline(store.probe(partitions)).await.err().map(probe_failure));
    let Some(log) = log else { return found };
    match with_deadline(observe_progress(store, log)).await {
        Ok(observed) => found.extend(observed.iter().flat_map(|observed| check_progress(observed))),
        Err(error) => found.push(Finding::error("redis", error)),
    }
    found
}

/// Reports a server that is nearly full.
fn check_memory(memory: &MemoryUse) -> Option<Finding> {
    let MemoryUse { server, used_bytes, limit_bytes } = memory;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let what = format!("`{server}` uses {:.1} of {:.1} MiB (maxmemory)", mib(*used_bytes), mib(*limit_bytes));
    let is_short = u128::from(*used_bytes) * 100 >= u128::from(*limit_bytes) * FULL_PERCENT;
    is_short.then(|| Finding::warning("redis", what).hint("raise maxmemory: a full server refuses writes"))
}

fn probe_failure(reason: String) -> Finding {
    let (what, hint) = split_hint(&reason);
    let hint = hint.unwrap_or("trackers project nothing while Redis refuses what they need");
    Finding::error("redis", format!("Redis refuses writes: {what}")).hint(hint)
}

async fn with_deadline<T>(call: impl Future<Output = Result<T, StoreError>>) -> Result<T, String> {
    match tokio::time::timeout(DEADLINE, call).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {} s", DEADLINE.as_secs())),
    }
}
