//! Checks of Redis: settings, memory, permissions, and the progress of the projection in it.

use std::time::Duration;

use kafleet_runtime::error_text::split_hint;
use kafleet_store::{MemoryUse, Store, StoreError};

use super::Diagnosis;
use super::positions::{EventsLog, check_progress, observe_progress};

/// Share of Redis's `maxmemory` in use from which a warning is given.
const FULL_PERCENT: u128 = 90;
/// Maximum time of one check.
const CHECK_DEADLINE: Duration = Duration::from_secs(15);

/// `log`: the events to compare checkpoints with; `None` if they cannot be read.
pub(super) async fn findings(store: &dyn Store, partitions: u32, log: Option<&EventsLog>) -> Vec<Diagnosis> {
    if let Err(error) = with_deadline(store.check()).await {
        let (message, hint) = split_hint(&error);
        return vec![
            Diagnosis::error("redis", message).hint(hint.unwrap_or("check --redis, KAFLEET_REDIS or `[redis]`")),
        ];
    }
    let mut diagnoses = vec![Diagnosis::ok("redis", "answers, and evicts nothing (noeviction)")];
    match with_deadline(store.memory()).await {
        Ok(uses) => diagnoses.extend(uses.iter().filter_map(check_memory)),
        Err(error) => diagnoses.push(Diagnosis::error("redis", error)),
    }
    match with_deadline(store.risky_settings()).await {
        Ok(risks) => {
            diagnoses.extend(risks.into_iter().map(|risk| Diagnosis::warning("redis", risk.message).hint(risk.hint)));
        }
        Err(error) => diagnoses.push(Diagnosis::error("redis", error)),
    }
    diagnoses.extend(with_deadline(store.probe(partitions)).await.err().map(probe_failure));
    let Some(log) = log else { return diagnoses };
    match with_deadline(observe_progress(store, log)).await {
        Ok(observed) => diagnoses.extend(observed.iter().flat_map(|observed| check_progress(observed))),
        Err(error) => diagnoses.push(Diagnosis::error("redis", error)),
    }
    diagnoses
}

/// Reports a server that is nearly full.
fn check_memory(memory: &MemoryUse) -> Option<Diagnosis> {
    let MemoryUse { server, used_bytes, limit_bytes } = memory;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let message = format!("`{server}` uses {:.1} of {:.1} MiB (maxmemory)", mib(*used_bytes), mib(*limit_bytes));
    let is_short = u128::from(*used_bytes) * 100 >= u128::from(*limit_bytes) * FULL_PERCENT;
    is_short.then(|| Diagnosis::warning("redis", message).hint("raise maxmemory: a full server refuses writes"))
}

fn probe_failure(reason: String) -> Diagnosis {
    let (message, hint) = split_hint(&reason);
    let hint = hint.unwrap_or("trackers project nothing while Redis refuses what they need");
    Diagnosis::error("redis", format!("Redis refuses writes: {message}")).hint(hint)
}

async fn with_deadline<T>(call: impl Future<Output = Result<T, StoreError>>) -> Result<T, String> {
    match tokio::time::timeout(CHECK_DEADLINE, call).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {} s", CHECK_DEADLINE.as_secs())),
    }
}
