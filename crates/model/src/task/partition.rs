//! Partition of a key by Kafka's own murmur2, so that all clients agree.

use crate::unique::id::partition_key_of;

/// Partition of a key among `count` partitions, as chosen by Java's default partitioner and librdkafka's `murmur2`.
pub fn partition_of(key: &[u8], count: u32) -> u32 {
    (murmur2(key) & 0x7fff_ffff) % count.max(1)
}

/// Events partition of a tree among `count`: of the tag of the root's id, or of the id. All asks of a unique key lie in
/// one partition by that. `key`: an id, or another key of a record.
pub fn events_partition_of(key: &str, count: u32) -> u32 {
    partition_of(partition_key_of(key).as_bytes(), count)
}

fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ data.len() as u32;
    let mut chunks = data.chunks_exact(4);
    for chunk in &mut chunks {
        let mut k = u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]).wrapping_mul(M);
        k = (k ^ (k >> 24)).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ k;
    }
    let tail = chunks.remainder();
    for (n, &byte) in tail.iter().enumerate() {
        hash ^= u32::from(byte) << (8 * n);
    }
    if !tail.is_empty() {
        hash = hash.wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_of_one_key_share_an_events_partition() {
        for key in ["refresh~customer-42~~0192", "refresh~customer-42~~b", "refresh~customer-42~~b:child"] {
            assert_eq!(events_partition_of(key, 64), partition_of(b"refresh~customer-42", 64), "{key}");
        }
        assert_eq!(events_partition_of("order-42:fetch", 64), partition_of(b"order-42", 64));
    }

    /// Vectors of Kafka's `UtilsTest.testMurmur2`.
    #[test]
    fn agrees_with_kafka() {
        for (key, hash) in [
            ("21", -973932308_i32),
            ("foobar", -790332482),
            ("a-little-bit-long-string", -985981536),
            ("a-little-bit-longer-string", -1486304829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
            ("abc", 479470107),
        ] {
            assert_eq!(murmur2(key.as_bytes()) as i32, hash, "{key}");
        }
    }
}
