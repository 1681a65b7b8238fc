//! Index of resolved dead letters, built from the resolution markers in the dead-letter topics. Each partition is read
//! once from its start, and later only its new records.

use std::collections::{BTreeMap, VecDeque};

use kafleet_broker::offset_range;
use kafleet_broker::offset_range::OffsetRange;
use kafleet_broker::{Broker, BrokerError, Partition, RecordRef, Watermarks};
use kafleet_config::Names;
use parking_lot::Mutex;
use roaring::RoaringTreemap;

use super::record::{DeadLetterRecord, ResolutionMarker};
use super::{CALL_DEADLINE, DeadLetterId, Resolution};
use crate::dead_letters::headers::digest;

/// Number of offsets read at a time.
const READ_OFFSETS: i64 = 20_000;
/// Maximum number of latest resolutions per partition that are kept with their request. A request whose transaction
/// ended in doubt looks itself up here shortly afterwards to learn the outcome.
const MAX_RECENT: usize = 1_000;

/// Resolutions of the dead letters of all topics. Shared by all requests of a process; filled on demand.
#[derive(Default)]
pub struct DeadLetterIndex(Mutex<BTreeMap<Partition, PartitionIndex>>);

/// Index of one partition.
#[derive(Default)]
struct PartitionIndex {
    /// Offset of the first digest.
    first: i64,
    /// Offset up to which the partition has been read.
    next: i64,
    /// Digest of every record from `first` on, 8 bytes each; 0 for gaps.
    digests: VecDeque<u64>,
    /// Offsets of valid resolution markers.
    marks: RoaringTreemap,
    /// Offsets of dropped dead letters.
    dropped: RoaringTreemap,
    /// Offsets of redriven dead letters.
    redriven: RoaringTreemap,
    /// Offset of the dead letter and id of the request of the latest resolutions, oldest first.
    recent: VecDeque<(i64, u128)>,
}

/// Indexed record.
struct IndexedRecord {
    offset: i64,
    digest: u64,
    /// Set if the record has the form of a resolution marker.
    mark: Option<ResolutionMarker>,
}

/// Resolution of one dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResolvedBy {
    pub resolution: Resolution,
    /// Id of the request that resolved it; `None` if the resolution is not among the latest ones.
    pub request: Option<u128>,
}

impl PartitionIndex {
    /// Forgets the records below the first offset of the log, which retention has removed.
    fn begin_at(&mut self, first: i64) {
        let removed = usize::try_from(first - self.first).unwrap_or_default();
        self.digests.drain(..removed.min(self.digests.len()));
        self.first = self.first.max(first);
        self.next = self.next.max(first);
        let removed = ..u64::try_from(self.first).unwrap_or_default();
        for set in [&mut self.marks, &mut self.dropped, &mut self.redriven] {
            set.remove_range(removed);
        }
    }

    /// Adds a record, unless it was added before.
    fn add_record(&mut self, IndexedRecord { offset, digest, mark }: IndexedRecord) {
        let Some(index) = usize::try_from(offset - self.first).ok().filter(|_| offset >= self.next) else { return };
        self.digests.resize(index, 0);
        self.digests.push_back(digest);
        self.next = offset + 1;
        let Some(mark) = mark else { return };
        if mark.of < self.first {
            // Retention has removed the dead letter, so the digest of the marker cannot be checked.
            self.marks.insert(offset as u64);
        } else if mark.of < offset && self.digest_at(mark.of) == Some(mark.letter) {
            self.marks.insert(offset as u64);
            self.resolve(mark.of, mark.resolution, mark.request);
        }
    }

    /// Records a resolution. The first marker of a dead letter wins.
    fn resolve(&mut self, letter: i64, resolution: Resolution, request: u128) {
        if self.resolution(letter).is_some() {
            return;
        }
        let resolved = match resolution {
            Resolution::Dropped => &mut self.dropped,
            Resolution::Redriven => &mut self.redriven,
        };
        resolved.insert(letter as u64);
        self.recent.push_back((letter, request));
        if self.recent.len() > MAX_RECENT {
            self.recent.pop_front();
        }
    }

    fn resolution(&self, letter: i64) -> Option<Resolution> {
        match letter as u64 {
            letter if self.dropped.contains(letter) => Some(Resolution::Dropped),
            letter if self.redriven.contains(letter) => Some(Resolution::Redriven),
            _ => None,
        }
    }

    fn digest_at(&self, offset: i64) -> Option<u64> {
        self.digests.get(usize::try_from(offset - self.first).ok()?).copied()
    }
}

impl DeadLetterIndex {
    /// Reads one dead letter and its resolution. `None`: no dead letter at this offset, or removed by retention.
    pub fn letter(
        &self,
        broker: &dyn Broker,
        names: &Names,
        id: &DeadLetterId,
    ) -> Result<Option<(DeadLetterRecord, Option<Resolution>)>, BrokerError> {
        let partition = Partition::new(names.dead(&id.task_type), id.partition);
        match self.read_committed(broker, &partition) {
            Err(BrokerError::Unknown(_)) => return Ok(None),
            ends => ends?,
        };
        let Some(record) = broker.read_at(&partition, id.offset, CALL_DEADLINE)? else { return Ok(None) };
        let mut letter = DeadLetterRecord::read(&id.task_type, record);
        if self.is_mark(&partition, &letter)? {
            return Ok(None);
        }
        if letter.by_reference {
            letter.fetch_original(broker, names)?;
        }
        let resolved = self.resolved(&partition, id.offset).map(|resolved| resolved.resolution);
        Ok(Some((letter, resolved)))
    }

    pub fn resolved(&self, partition: &Partition, letter: i64) -> Option<ResolvedBy> {
        let partitions = self.0.lock();
        let index = partitions.get(partition)?;
        let request = index.recent.iter().rev().find(|(of, _)| *of == letter).map(|(_, request)| *request);
        Some(ResolvedBy { resolution: index.resolution(letter)?, request })
    }

    /// Adds a resolution that this process has just written: a read of committed records may not return it yet.
    pub fn resolve(&self, partition: &Partition, letter: i64, resolution: Resolution, request: u128) {
        self.0.lock().entry(partition.clone()).or_default().resolve(letter, resolution, request);
    }

    /// Returns whether a record that was just read is a valid resolution marker.
    ///
    /// # Errors
    /// `Unavailable` if the index contains another record at this offset, which means that the topic was recreated.
    /// The index of the partition is discarded, and the next read rebuilds it.
    pub(super) fn is_mark(&self, partition: &Partition, letter: &DeadLetterRecord) -> Result<bool, BrokerError> {
        let mut partitions = self.0.lock();
        let Some(index) = partitions.get(partition) else { return Ok(false) };
        if index.digest_at(letter.id.offset).is_some_and(|digest| digest != letter.digest) {
            partitions.remove(partition);
            let message = format!("the topic of {partition} was recreated, so its index is rebuilt; try again");
            return Err(BrokerError::Unavailable(message));
        }
        Ok(index.marks.contains(letter.id.offset as u64))
    }

    /// Reads new records up to the first open transaction. Returns the first offset of the log, and the offset up to
    /// which all transactions have ended.
    pub(super) fn read_committed(&self, broker: &dyn Broker, partition: &Partition) -> Result<Watermarks, BrokerError> {
        let Watermarks { low: first, high: end } = broker.watermarks(partition, CALL_DEADLINE)?;
        let decided = broker.first_visible(partition, end, CALL_DEADLINE)?.offset;
        let ends = Watermarks { low: first, high: end.min(decided) };
        self.read(broker, partition, ends)?;
        Ok(ends)
    }

    /// Reads up to the current end of the log, and waits until all transactions before it have ended.
    pub fn read_all(&self, broker: &dyn Broker, partition: &Partition) -> Result<(), BrokerError> {
        self.read(broker, partition, broker.watermarks(partition, CALL_DEADLINE)?)
    }

    fn read(
        &self,
        broker: &dyn Broker,
        partition: &Partition,
        Watermarks { low: first, high: end }: Watermarks,
    ) -> Result<(), BrokerError> {
        loop {
            let from = {
                let mut partitions = self.0.lock();
                let index = partitions.entry(partition.clone()).or_default();
                index.begin_at(first);
                index.next
            };
            if from >= end {
                return Ok(());
            }
            let to = end.min(from + READ_OFFSETS);
            let mut records = Vec::new();
            let range = OffsetRange { partition: partition.clone(), from, to };
            let read = offset_range::read(broker, &[range], CALL_DEADLINE, &mut |record| records.push(entry(record)));
            let mut partitions = self.0.lock();
            let index = partitions.entry(partition.clone()).or_default();
            // A concurrent call may have added the same records, which `add_record` then ignores. It may also have found that
            // the topic was recreated and discarded the index, in which case reading starts again.
            if index.next < from {
                continue;
            }
            // Records read before a failure count too: the next call continues after them.
            records.into_iter().for_each(|entry| index.add_record(entry));
            read?;
            index.next = index.next.max(to);
        }
    }
}

fn entry(record: &RecordRef<'_>) -> IndexedRecord {
    let mark = ResolutionMarker::read(record);
    IndexedRecord { offset: record.offset, digest: digest(record.key, record.value, record.headers()), mark }
}
