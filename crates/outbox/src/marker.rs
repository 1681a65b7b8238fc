//! Marker of the relay: which rows are published, as records that are written in the transaction of their tasks.
//!
//! The records of an outbox are a ring of [`SLOTS`] keys on the topic `<prefix>.outbox`. A record contains the hashes of at least
//! [`SLOT_ROWS`] rows, except for the newest, which is written again with each transaction until it has as many: so the
//! ring reaches back at least 100,000 rows, however small the transactions are, and compaction keeps the topic small.
//!
//! Hashes of number and id, and not ranges of numbers: after a failover that has lost inserts, Postgres gives the same
//! numbers to other rows, and a range would discard these as published.

use std::collections::{BTreeMap, HashSet, VecDeque};

use data_encoding::BASE64;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::row::RowHash;

/// Number of records of an outbox.
pub const SLOTS: u64 = 1_000;
/// Number of rows from which on a record is complete.
pub const SLOT_ROWS: usize = 100;
/// Number of rows that a relay remembers: about 5 MB.
pub const REMEMBERED_ROWS: usize = SLOTS as usize * SLOT_ROWS;

const HASH_BYTES: usize = 16;

/// Published rows of an outbox, as its marker says.
#[derive(Clone, Debug)]
pub struct Marker {
    identity: Uuid,
    /// Number of the newest record, which counts up and never repeats.
    number: u64,
    /// Rows of the newest record.
    newest: Vec<RowHash>,
    known: HashSet<RowHash>,
    /// Remembered rows, the oldest first.
    order: VecDeque<RowHash>,
}

/// Record of a marker that a transaction writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkerRecord {
    pub key: String,
    pub value: Vec<u8>,
    number: u64,
    rows: Vec<RowHash>,
    added: usize,
}

#[derive(Serialize, Deserialize)]
struct MarkerValue {
    number: u64,
    /// Hashes of 16 bytes each, in Base64.
    rows: String,
}

/// Marker record that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the marker record `{key}` cannot be read: {error}")]
pub struct UnreadableMarker {
    pub key: String,
    pub error: String,
}

/// Records of a marker while they are read.
pub struct MarkerReader {
    identity: Uuid,
    prefix: String,
    by_key: BTreeMap<String, MarkerValue>,
}

impl MarkerReader {
    /// Reads the marker of the outbox with this identity.
    pub fn new(identity: Uuid) -> Self {
        Self { identity, prefix: format!("{identity}/"), by_key: BTreeMap::new() }
    }

    /// Takes the next record of the topic. Records of other outboxes are ignored.
    pub fn read(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), UnreadableMarker> {
        let Ok(key) = std::str::from_utf8(key) else { return Ok(()) };
        if !key.starts_with(&self.prefix) {
            return Ok(());
        }
        let Some(value) = value else {
            self.by_key.remove(key);
            return Ok(());
        };
        let unreadable = |error: String| UnreadableMarker { key: key.to_owned(), error };
        let value = serde_json::from_slice(value).map_err(|error| unreadable(error.to_string()))?;
        self.by_key.insert(key.to_owned(), value);
        Ok(())
    }

    /// Returns the marker after the last record of the topic.
    pub fn finish(self) -> Result<Marker, UnreadableMarker> {
        let mut records: Vec<(String, MarkerValue)> = self.by_key.into_iter().collect();
        records.sort_by_key(|(_, value)| value.number);
        let mut marker = Marker::new(self.identity);
        let count = records.len();
        for (n, (key, value)) in records.into_iter().enumerate() {
            let rows = decode(&value.rows).map_err(|error| UnreadableMarker { key, error })?;
            marker.remember(&rows);
            if n + 1 == count {
                (marker.number, marker.newest) = (value.number, rows);
            }
        }
        Ok(marker)
    }
}

impl Marker {
    /// Returns the marker of an outbox that has published nothing.
    pub fn new(identity: Uuid) -> Self {
        Self { identity, number: 0, newest: Vec::new(), known: HashSet::new(), order: VecDeque::new() }
    }

    /// Returns true if the row is published.
    pub fn contains(&self, hash: &RowHash) -> bool {
        self.known.contains(hash)
    }

    /// Number of remembered rows.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Returns the record to write in the transaction that publishes these rows.
    ///
    /// # Errors
    /// An encoding error, which no valid value has.
    pub fn record_of(&self, rows: &[RowHash]) -> Result<MarkerRecord, serde_json::Error> {
        let is_complete = self.newest.len() >= SLOT_ROWS || self.number == 0;
        let number = if is_complete { self.number + 1 } else { self.number };
        let mut all = if is_complete { Vec::new() } else { self.newest.clone() };
        all.extend_from_slice(rows);
        let value = serde_json::to_vec(&MarkerValue { number, rows: encode(&all) })?;
        let key = format!("{}/{}", self.identity, number % SLOTS);
        Ok(MarkerRecord { key, value, number, rows: all, added: rows.len() })
    }

    /// Takes over a record whose transaction is committed.
    pub fn committed(&mut self, record: MarkerRecord) {
        let MarkerRecord { number, rows, added, .. } = record;
        self.remember(&rows[rows.len() - added..]);
        (self.number, self.newest) = (number, rows);
    }

    fn remember(&mut self, rows: &[RowHash]) {
        for row in rows {
            if self.known.insert(*row) {
                self.order.push_back(*row);
            }
        }
        while self.order.len() > REMEMBERED_ROWS {
            if let Some(oldest) = self.order.pop_front() {
                self.known.remove(&oldest);
            }
        }
    }
}

fn encode(rows: &[RowHash]) -> String {
    let bytes: Vec<u8> = rows.iter().flat_map(|row| row.0).collect();
    BASE64.encode(&bytes)
}

fn decode(text: &str) -> Result<Vec<RowHash>, String> {
    let bytes = BASE64.decode(text.as_bytes()).map_err(|error| error.to_string())?;
    if bytes.len() % HASH_BYTES != 0 {
        return Err(format!("{} bytes are no hashes of {HASH_BYTES} bytes", bytes.len()));
    }
    let hash = |chunk: &[u8]| {
        let mut hash = [0; HASH_BYTES];
        hash.copy_from_slice(chunk);
        RowHash(hash)
    };
    Ok(bytes.chunks_exact(HASH_BYTES).map(hash).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hashes(range: std::ops::Range<i64>) -> Vec<RowHash> {
        range.map(|seq| RowHash((seq as u128).to_be_bytes())).collect()
    }

    fn read(identity: Uuid, topic: &[(String, Vec<u8>)]) -> Marker {
        let mut reader = MarkerReader::new(identity);
        topic.iter().for_each(|(key, value)| reader.read(key.as_bytes(), Some(value)).unwrap());
        reader.finish().unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// A marker that is read again knows the same of the last rows as the one that has written it.
        #[test]
        fn read_marker_knows_the_newest_rows(sizes in prop::collection::vec(1_i64..400, 1..60)) {
            let identity = Uuid::from_u128(7);
            let (mut marker, mut topic, mut next) = (Marker::new(identity), Vec::new(), 0);
            for size in sizes {
                let rows = hashes(next..next + size);
                let record = marker.record_of(&rows).unwrap();
                topic.push((record.key.clone(), record.value.clone()));
                marker.committed(record);
                next += size;
            }
            let again = read(identity, &topic);
            prop_assert_eq!(again.len(), marker.len());
            prop_assert!(hashes(0..next).iter().all(|row| again.contains(row) && marker.contains(row)));
            prop_assert!(!again.contains(&hashes(next..next + 1)[0]));
            prop_assert_eq!(again.record_of(&hashes(next..next + 5)).unwrap(), marker.record_of(&hashes(next..next + 5)).unwrap());
        }
    }

    #[test]
    fn ring_of_small_transactions_reaches_back_a_hundred_thousand_rows() {
        let identity = Uuid::from_u128(7);
        let (mut marker, mut by_key) = (Marker::new(identity), BTreeMap::new());
        for n in 0..10_500 {
            let record = marker.record_of(&hashes(n * 10..n * 10 + 10)).unwrap();
            by_key.insert(record.key.clone(), record.value.clone());
            marker.committed(record);
        }
        assert_eq!(by_key.len() as u64, SLOTS);
        let again = read(identity, &by_key.into_iter().collect::<Vec<_>>());
        assert!(hashes(105_000 - 99_900..105_000).iter().all(|row| again.contains(row)));
        assert!(marker.len() <= REMEMBERED_ROWS && again.len() <= REMEMBERED_ROWS);
    }

    #[test]
    fn records_of_other_outboxes_are_ignored() {
        let other = Marker::new(Uuid::from_u128(8)).record_of(&hashes(0..3)).unwrap();
        let read = read(Uuid::from_u128(7), &[(other.key, other.value)]);
        assert!(read.is_empty());
    }

    #[test]
    fn damaged_record_is_an_error() {
        let identity = Uuid::from_u128(7);
        let mut reader = MarkerReader::new(identity);
        let key = format!("{identity}/1");
        assert!(reader.read(key.as_bytes(), Some(b"{")).is_err());
        reader.read(key.as_bytes(), Some(br#"{"number": 1, "rows": "AAAA"}"#)).unwrap();
        assert!(reader.finish().unwrap_err().to_string().contains("no hashes of 16 bytes"));
    }
}
