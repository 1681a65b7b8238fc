//! Index of resolved dead letters, built from the resolution markers in the dead-letter topics. Each partition is read
//! once from its start, and later only its new records.

use std::collections::{BTreeMap, VecDeque};

use kafleet_broker::offset_range;
use kafleet_broker::offset_range::OffsetRange;
use kafleet_broker::{Broker, BrokerError, Partition, RecordRef, Watermarks};
use kafleet_config::Names;
use kafleet_model::task::id::TaskId;
use parking_lot::Mutex;
use roaring::RoaringTreemap;

use super::record::{DeadLetterRecord, LetterFacts, ResolutionMarker};
use super::{Bounds, CALL_DEADLINE, DeadLetterId, Resolution, partitions};
use crate::dead_letters::headers::digest;

/// Number of offsets read at a time.
const READ_OFFSETS: i64 = 20_000;
/// Maximum number of latest resolutions per partition that are kept with their request. A request whose transaction
/// ended in doubt looks itself up here shortly afterwards to learn the outcome.
const MAX_RECENT: usize = 1_000;
/// Maximum number of newest unresolved dead letters per partition whose facts are kept.
pub const MAX_FACTS: usize = 5_000;

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
    /// Hashes of every record from `first` on, 16 bytes each; 0 for gaps.
    hashes: VecDeque<RecordHashes>,
    /// Facts of the newest unresolved dead letters by offset.
    facts: BTreeMap<i64, LetterFacts>,
    /// There are older unresolved dead letters than those in `facts`.
    is_cut: bool,
    /// Offsets of valid resolution markers.
    marks: RoaringTreemap,
    /// Offsets of dropped dead letters.
    dropped: RoaringTreemap,
    /// Offsets of redriven dead letters.
    redriven: RoaringTreemap,
    /// Offset of the dead letter and id of the request of the latest resolutions, oldest first.
    recent: VecDeque<(i64, u128)>,
}

/// Hashes of one record.
#[derive(Clone, Copy, Default)]
struct RecordHashes {
    digest: u64,
    /// Hash of the task and its run; 0 for a record that is not a task.
    task: u64,
}

/// Indexed record.
struct IndexedRecord {
    offset: i64,
    digest: u64,
    facts: LetterFacts,
    /// Set if the record has the form of a resolution marker.
    mark: Option<ResolutionMarker>,
}

/// Newest unresolved dead letters.
#[derive(Debug, Default)]
pub struct UnresolvedLetters {
    /// Newest first.
    pub letters: Vec<(DeadLetterId, LetterFacts)>,
    /// There are older ones.
    pub is_cut: bool,
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
        self.hashes.drain(..removed.min(self.hashes.len()));
        self.first = self.first.max(first);
        self.next = self.next.max(first);
        let removed = ..u64::try_from(self.first).unwrap_or_default();
        for set in [&mut self.marks, &mut self.dropped, &mut self.redriven] {
            set.remove_range(removed);
        }
        self.facts = self.facts.split_off(&self.first);
    }

    /// Adds a record, unless it was added before.
    fn add_record(&mut self, IndexedRecord { offset, digest, facts, mark }: IndexedRecord) {
        let Some(index) = usize::try_from(offset - self.first).ok().filter(|_| offset >= self.next) else { return };
        self.hashes.resize(index, RecordHashes::default());
        let task = facts.task.as_ref().map_or(0, |(id, run)| task_hash(id, *run));
        self.hashes.push_back(RecordHashes { digest, task });
        self.next = offset + 1;
        match mark {
            // Retention has removed the dead letter, so the digest of the marker cannot be checked.
            Some(mark) if mark.of < self.first => {
                self.marks.insert(offset as u64);
            }
            Some(mark) if mark.of < offset && self.digest_at(mark.of) == Some(mark.letter) => {
                self.marks.insert(offset as u64);
                self.resolve(mark.of, mark.resolution, mark.request);
            }
            _ => self.add_facts(offset, facts),
        }
    }

    /// Adds the facts of a dead letter, in place of those of the oldest one if there are too many.
    fn add_facts(&mut self, offset: i64, facts: LetterFacts) {
        if self.resolution(offset).is_some() {
            return;
        }
        self.facts.insert(offset, facts);
        if self.facts.len() > MAX_FACTS {
            self.facts.pop_first();
            self.is_cut = true;
        }
    }

    /// Newest unresolved dead letter of a run of a task.
    fn letter_of(&self, task: &TaskId, run: u32) -> Option<i64> {
        let hash = task_hash(task, run);
        let newest_first = self.hashes.iter().enumerate().rev().filter(|(_, hashes)| hashes.task == hash);
        let mut offsets = newest_first.filter_map(|(n, _)| Some(self.first + i64::try_from(n).ok()?));
        offsets.find(|offset| !self.marks.contains(*offset as u64) && self.resolution(*offset).is_none())
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
        self.facts.remove(&letter);
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
        Some(self.hashes.get(usize::try_from(offset - self.first).ok()?)?.digest)
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

    /// Reads the newest unresolved dead letters of a type, or of all types: up to [`MAX_FACTS`] of each partition, and
    /// `limit` in all.
    pub fn unresolved(
        &self,
        broker: &dyn Broker,
        names: &Names,
        task_type: Option<&str>,
        limit: usize,
    ) -> Result<UnresolvedLetters, BrokerError> {
        let mut found = UnresolvedLetters::default();
        for partition in partitions(broker, names, task_type)? {
            self.read_committed(broker, &partition)?;
            let indexes = self.0.lock();
            let Some((index, name)) = indexes.get(&partition).zip(names.type_of_dead(&partition.topic)) else {
                continue;
            };
            found.is_cut |= index.is_cut;
            let id = |offset| DeadLetterId { task_type: name.to_owned(), partition: partition.index, offset };
            found.letters.extend(index.facts.iter().map(|(offset, facts)| (id(*offset), facts.clone())));
        }
        found.letters.sort_by_key(|(_, facts)| std::cmp::Reverse(facts.at_ms));
        found.is_cut |= found.letters.len() > limit;
        found.letters.truncate(limit);
        Ok(found)
    }

    /// Finds the newest unresolved dead letter of a run of a task.
    pub fn letter_of(
        &self,
        broker: &dyn Broker,
        names: &Names,
        task_type: &str,
        (task, run): (&TaskId, u32),
    ) -> Result<Option<DeadLetterId>, BrokerError> {
        for partition in partitions(broker, names, Some(task_type))? {
            self.read_committed(broker, &partition)?;
            let offset = self.0.lock().get(&partition).and_then(|index| index.letter_of(task, run));
            if let Some(offset) = offset {
                let task_type = task_type.to_owned();
                return Ok(Some(DeadLetterId { task_type, partition: partition.index, offset }));
            }
        }
        Ok(None)
    }

    /// Offsets after the dead letters of a type that exist now.
    pub fn ends(&self, broker: &dyn Broker, names: &Names, task_type: &str) -> Result<Bounds, BrokerError> {
        let mut ends = Bounds::new();
        for partition in partitions(broker, names, Some(task_type))? {
            let end = self.read_committed(broker, &partition)?.high;
            ends.insert(partition, end);
        }
        Ok(ends)
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
    IndexedRecord {
        offset: record.offset,
        digest: digest(record.key, record.value, record.headers()),
        facts: LetterFacts::read(record),
        mark: ResolutionMarker::read(record),
    }
}

/// Hash of a task and its run, of the strength of a digest.
fn task_hash(task: &TaskId, run: u32) -> u64 {
    digest(Some(task.as_str().as_bytes()), Some(&run.to_le_bytes()), std::iter::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(offset: i64, id: &str, run: u32) -> IndexedRecord {
        let facts = LetterFacts { at_ms: offset, task: Some((TaskId::parse(id).unwrap(), run)) };
        IndexedRecord { offset, digest: 100 + offset as u64, facts, mark: None }
    }

    fn marker(offset: i64, of: i64) -> IndexedRecord {
        let mark = ResolutionMarker { of, letter: 100 + of as u64, resolution: Resolution::Dropped, request: 7 };
        let facts = LetterFacts { at_ms: offset, task: None };
        IndexedRecord { offset, digest: 1, facts, mark: Some(mark) }
    }

    #[test]
    fn newest_unresolved_letter_of_a_run_is_found() {
        let (a, b) = (TaskId::parse("a").unwrap(), TaskId::parse("b").unwrap());
        let mut index = PartitionIndex::default();
        for record in [letter(0, "a", 1), letter(1, "a", 1), letter(2, "b", 1), letter(4, "a", 2)] {
            index.add_record(record);
        }
        assert_eq!([index.letter_of(&a, 1), index.letter_of(&a, 2), index.letter_of(&b, 2)], [Some(1), Some(4), None]);
        index.add_record(marker(5, 1));
        assert_eq!(index.letter_of(&a, 1), Some(0));
        assert_eq!(index.facts.keys().copied().collect::<Vec<_>>(), [0, 2, 4], "a marker is no letter");
        index.begin_at(3);
        assert_eq!([index.letter_of(&a, 1), index.letter_of(&b, 1), index.letter_of(&a, 2)], [None, None, Some(4)]);
        assert_eq!(index.facts.len(), 1);
    }

    #[test]
    fn facts_of_the_newest_letters_are_kept() {
        let mut index = PartitionIndex::default();
        for offset in 0..MAX_FACTS as i64 + 2 {
            index.add_record(letter(offset, &format!("t{offset}"), 1));
        }
        assert_eq!((index.facts.len(), index.facts.first_key_value().map(|(offset, _)| *offset)), (MAX_FACTS, Some(2)));
        assert!(index.is_cut);
        let old = TaskId::parse("t0").unwrap();
        assert_eq!(index.letter_of(&old, 1), Some(0), "it is found without its facts");
    }
}
