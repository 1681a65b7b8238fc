//! Reads of single records.

use kafleet_broker::{Broker, Partition, Record};

use super::wait::{DEADLINE, eventually_blocking};

/// Reads the record at an offset as a read-committed reader; waits for the end of an open transaction. `None` for
/// a transaction marker and for a removed or aborted record.
pub fn committed_record(broker: &dyn Broker, at: &Partition, offset: i64) -> Option<Record> {
    eventually_blocking(&format!("offset {offset} of {at} is read"), || broker.read_at(at, offset, DEADLINE))
}
