//! Finds records whose keys do not belong into their partitions. Order and rates by key hold only if all producers choose
//! the partition of a key in the same way, as Java's default partitioner does (murmur2). Clients based on librdkafka use
//! another one unless they are configured otherwise.

use std::collections::BTreeMap;
use std::sync::Arc;

use kafleet_broker::RecordRef;
use kafleet_model::task::id::clip;
use kafleet_model::task::partition::partition_of;
use parking_lot::Mutex;
use prometheus::IntCounter;

/// An example of each type that has such records, for heartbeats.
pub(super) type MisplacedKeys = Arc<Mutex<BTreeMap<Arc<str>, String>>>;

/// Check of the records of one type.
pub(super) struct KeyCheck {
    pub task_type: Arc<str>,
    /// Number of partitions of the topic; 0 until it is known.
    pub partitions: u32,
    pub counter: IntCounter,
    pub misplaced: MisplacedKeys,
}

impl KeyCheck {
    /// Counts a record whose key belongs into another partition. The first one is logged.
    pub(super) fn check(&self, record: &RecordRef<'_>) {
        let Some(key) = record.key.filter(|_| self.partitions > 0) else { return };
        let expected = partition_of(key, self.partitions);
        if i64::from(expected) == i64::from(record.partition) {
            return;
        }
        self.counter.inc();
        let mut misplaced = self.misplaced.lock();
        if misplaced.contains_key(&self.task_type) {
            return;
        }
        let key = clip(&String::from_utf8_lossy(key));
        let (partition, offset) = (record.partition, record.offset);
        let example = format!("key `{key}` in partition {partition} instead of {expected}, at offset {offset}");
        tracing::warn!(
            task_type = %self.task_type,
            "records have keys of other partitions, such as {example}: attempts of one key may overlap; set the partitioner of \
             all producers to murmur2 (`partitioner=murmur2_random` in librdkafka); records from before partitions were added \
             are counted too"
        );
        misplaced.insert(self.task_type.clone(), example);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use kafleet_broker::OwnedHeaders;

    fn check() -> KeyCheck {
        let counter = IntCounter::new("misplaced", "Misplaced keys.").unwrap();
        KeyCheck { task_type: "echo".into(), partitions: 8, counter, misplaced: MisplacedKeys::default() }
    }

    fn receive(check: &KeyCheck, key: Option<&[u8]>, partition: i32) {
        let (headers, topic) = (OwnedHeaders::new(), "t.tasks.echo");
        let (offset, timestamp_ms, value) = (7, 1, Some(&b"1"[..]));
        check.check(&RecordRef {
            topic,
            partition,
            offset,
            timestamp_ms,
            log_append_time: true,
            key,
            value,
            headers: &headers,
        });
    }

    #[test]
    fn first_misplaced_key_is_the_example() {
        let check = check();
        let other = (partition_of(b"k1", 8) as i32 + 1) % 8;
        receive(&check, Some(b"k1"), other);
        receive(&check, Some(b"k2"), (partition_of(b"k2", 8) as i32 + 3) % 8);
        let example = check.misplaced.lock().get("echo").cloned().unwrap();
        assert!(example.starts_with(&format!("key `k1` in partition {other} instead of ")), "{example}");
        assert_eq!(check.counter.get(), 2);
    }

    proptest! {
        #[test]
        fn only_keys_of_other_partitions_are_counted(key in prop::collection::vec(any::<u8>(), 0..20), partition in 0_i32..8) {
            let check = check();
            receive(&check, Some(&key), partition);
            receive(&check, None, partition);
            let is_misplaced = partition_of(&key, 8) as i32 != partition;
            prop_assert_eq!(check.counter.get(), u64::from(is_misplaced));
            let unknown = KeyCheck { partitions: 0, ..check };
            receive(&unknown, Some(&key), partition);
            prop_assert_eq!(unknown.counter.get(), u64::from(is_misplaced));
        }
    }
}
