//! Conditions that only the in-memory broker can produce on demand: full logs, truncation, compaction, eviction, open
//! transactions, injected faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use kafleet::broker::memory::{Faults, MemoryBroker, MemoryBrokerOptions};
use kafleet::broker::{ConsumerSpec, Partition, StartOffset};

use crate::kit::Kit;

mod atomic;
mod groups;
mod logs;
mod producers;

/// A case with a broker of its own.
pub type Case = (&'static str, fn());

pub fn cases() -> impl Iterator<Item = &'static Case> {
    [logs::CASES, groups::CASES, atomic::CASES, producers::CASES].into_iter().flatten()
}

const SESSION_MS: i64 = 10_000;

/// A broker with a manual clock.
struct Lab {
    memory: Arc<MemoryBroker>,
    kit: Kit,
    now_ms: Arc<AtomicI64>,
}

impl Lab {
    fn new() -> Self {
        Self::with(MemoryBrokerOptions::default())
    }

    fn with(options: MemoryBrokerOptions) -> Self {
        let now_ms = Arc::new(AtomicI64::new(1_700_000_000_000));
        let clock = now_ms.clone();
        let options = MemoryBrokerOptions {
            clock: Arc::new(move || clock.load(Ordering::Relaxed)),
            session_timeout: Duration::from_millis(SESSION_MS as u64),
            ..options
        };
        let memory = MemoryBroker::new(options);
        Self { kit: Kit::new(memory.clone(), "only"), memory, now_ms }
    }

    fn inline(faults: Faults) -> Self {
        Self::with(MemoryBrokerOptions { inline_delivery: true, faults, ..MemoryBrokerOptions::default() })
    }

    fn advance_ms(&self, ms: i64) {
        self.now_ms.fetch_add(ms, Ordering::Relaxed);
    }

    fn partition(&self) -> Partition {
        Partition::new(self.kit.topic(1), 0)
    }

    /// Reads all values from the start of the log.
    fn read_all(&self, at: &Partition, read_uncommitted: bool) -> Vec<String> {
        let spec = ConsumerSpec { read_uncommitted, ..ConsumerSpec::default() };
        let mut reader = self.kit.reader_with(&spec, &[(at.clone(), StartOffset::Beginning)]);
        reader.poll(usize::MAX, Duration::ZERO);
        reader.values()
    }
}
