//! Statistics against the records: opened, less ended and dropped, is the number of open tasks of each type.

use std::collections::BTreeMap;

use kafleet::model::statistics::aggregate::{AggregateKey, Level};
use kafleet::model::statistics::{ALL, Overview};
use kafleet::store::Store;
use kafleet_testkit::oracle::kept_aggregates;

use crate::fleet::Fleet;
use crate::verdict::records;

/// Open tasks by type, according to the statistics of all partitions. `None` if the log is longer than they are kept.
async fn open_tasks(fleet: &Fleet) -> Option<BTreeMap<String, i64>> {
    let mut open = BTreeMap::new();
    for partition in 0..fleet.scenario.events_partitions {
        let found = fleet.store().statistics(partition, &[], &[]).await.unwrap().overview;
        let Some(Overview { minute: Some(minute), first_ms: Some(first_ms), series, .. }) = &found else { continue };
        let first = AggregateKey::at(Level::Day, *first_ms).number;
        if first <= Level::Day.first_kept(minute.div_euclid(60)) {
            return None;
        }
        let mut keys: Vec<AggregateKey> = found.as_ref().map(kept_aggregates).unwrap_or_default();
        keys.retain(|key| key.level == Level::Day || (key.level == Level::Minute && key.number == *minute));
        for listed in series.iter().filter(|listed| &*listed.name != ALL) {
            let names = std::slice::from_ref(&listed.name);
            let aggregates = fleet.store().statistics(partition, names, &keys).await.unwrap().aggregates;
            for (_, _, aggregate) in aggregates {
                *open.entry(listed.name.to_string()).or_default() += aggregate.open_change();
            }
        }
    }
    open.retain(|_, open| *open != 0);
    Some(open)
}

/// Adds the types whose statistics contradict their records.
pub async fn judge(fleet: &Fleet, violations: &mut Vec<String>) {
    let mut expected: BTreeMap<String, i64> = BTreeMap::new();
    for task_record in records(fleet).await.values().filter(|task_record| !task_record.own.is_terminal()) {
        if let Some(task_type) = &task_record.task_type {
            *expected.entry(task_type.to_string()).or_default() += 1;
        }
    }
    if let Some(open) = open_tasks(fleet).await.filter(|open| *open != expected) {
        violations.push(format!("open tasks are {open:?} by the statistics and {expected:?} by the records"));
    }
}
