//! Reads of single records.

use std::time::{Duration, Instant};

use kafleet::broker::{Broker, Partition, Record};

use super::wait::DEADLINE;

/// Reads the record at an offset as a read-committed reader; waits for the end of an open transaction. `None` for
/// a transaction marker and for a removed or aborted record.
pub fn committed_record(broker: &dyn Broker, at: &Partition, offset: i64) -> Option<Record> {
    let end = Instant::now() + DEADLINE;
    loop {
        match broker.read_at(at, offset, DEADLINE) {
            Ok(found) => return found,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
