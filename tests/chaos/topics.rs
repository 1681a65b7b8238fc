//! Contents of the task, dead-letter and events topics, read as a plain consumer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kafleet::broker::offset_range;
use kafleet::broker::offset_range::OffsetRange;
use kafleet::broker::{Broker, Partition, RecordRef};
use kafleet::config::Names;
use kafleet::dead_letters::headers::mark;
use kafleet::model::event::Event;
use kafleet_testkit::services::connect;

use crate::fleet::{EVENTS_PARTITIONS, PREFIX};

const DEADLINE: Duration = Duration::from_secs(60);

/// Id, run and number of earlier attempts of a record.
pub type Key = (String, u32, u32);

#[derive(Default)]
pub struct Topics {
    /// Partitions of each task's records.
    pub tasks: BTreeMap<Key, Vec<Partition>>,
    /// Number of dead letters by task.
    pub dead: BTreeMap<String, usize>,
    /// Events with partition and offset.
    pub events: Vec<(i32, i64, Event)>,
    /// Resolution markers by dead letter.
    pub marks: BTreeMap<String, Vec<String>>,
}

impl Topics {
    /// Reads the task and dead-letter topics. Blocks.
    pub fn read(addresses: &str) -> Self {
        let kafka: Arc<dyn Broker> = connect(addresses.to_owned());
        let names = Names::new(PREFIX);
        let mut this = Self::default();
        let mut ranges = Vec::new();
        for prefix in [names.tasks(""), names.dead("")] {
            for topic in kafka.topics(&prefix, DEADLINE).unwrap() {
                for index in 0..topic.partitions {
                    let partition = Partition::new(topic.name.as_str(), index as i32);
                    let ends = kafka.watermarks(&partition, DEADLINE).unwrap();
                    ranges.push(OffsetRange { partition, from: ends.low, to: ends.high });
                }
            }
        }
        let tasks = names.tasks("");
        offset_range::read(&*kafka, &ranges, DEADLINE, &mut |record| {
            this.take(record, record.topic.starts_with(&tasks));
        })
        .unwrap();
        this
    }

    /// Reads the events topic, too. Blocks.
    pub fn read_all(addresses: &str) -> Self {
        let kafka: Arc<dyn Broker> = connect(addresses.to_owned());
        let (names, mut this) = (Names::new(PREFIX), Self::read(addresses));
        let ranges = |topic: String, count: u32| -> Vec<OffsetRange> {
            let of = |index| {
                let partition = Partition::new(topic.as_str(), index as i32);
                let ends = kafka.watermarks(&partition, DEADLINE).unwrap();
                OffsetRange { partition, from: ends.low, to: ends.high }
            };
            (0..count).map(of).collect()
        };
        let events = &mut this.events;
        offset_range::read(&*kafka, &ranges(names.events(), EVENTS_PARTITIONS), DEADLINE, &mut |record| {
            let event = Event::decode(record.value.unwrap_or_default()).unwrap();
            events.push((record.partition, record.offset, event));
        })
        .unwrap();
        this
    }

    fn take(&mut self, record: &RecordRef<'_>, is_task: bool) {
        let header = |name: &str| {
            let value = record.headers().find(|header| header.0 == name)?.1?;
            Some(String::from_utf8_lossy(value).into_owned())
        };
        if let (false, Some(offset)) = (is_task, header(mark::OF)) {
            let letter = format!("{}/{}:{offset}", record.topic, record.partition);
            return self.marks.entry(letter).or_default().extend(header(mark::RESOLUTION));
        }
        let Some(mut id) = header("ce_id") else { return };
        if let Some(parent) = header("ce_parent").filter(|parent| !id.starts_with(&format!("{parent}:"))) {
            id = format!("{parent}:{id}");
        }
        let number = |name| header(name).and_then(|text| text.parse::<u32>().ok());
        if is_task {
            let key = (id, number("ce_run").unwrap_or(1), number("ce_attempt").unwrap_or(0));
            self.tasks.entry(key).or_default().push(Partition::new(record.topic, record.partition));
        } else {
            *self.dead.entry(id).or_default() += 1;
        }
    }

    pub fn count(&self, id: &str, run: u32, used: u32) -> usize {
        self.tasks.get(&(id.to_owned(), run, used)).map_or(0, Vec::len)
    }

    /// Partition of the first record of a task.
    pub fn first_partition(&self, id: &str) -> Option<&Partition> {
        self.tasks.get(&(id.to_owned(), 1, 0))?.first()
    }
}
