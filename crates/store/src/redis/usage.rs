//! Resource usage of Redis and its raw write speed, for benchmarks.

use std::ops::Range;
use std::time::Duration;

use ::redis::{Pipeline, Value, cmd, pipe};
use futures::future::try_join_all;

use super::connection::within;
use super::values::read;
use super::{Keys, Redis};
use crate::StoreError;

/// Writes per pipeline, and keys per SCAN.
const PIPELINE_WRITES: u64 = 1_000;

/// Version and resource usage of the server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    pub version: String,
    pub memory_bytes: u64,
    /// CPU time since the server started.
    pub cpu: Duration,
}

impl Redis {
    /// Reads the usage of the server (in a cluster: of one node). Values that it does not report are zero or empty.
    pub async fn usage(&self) -> Result<Usage, StoreError> {
        let mut info = String::new();
        for section in ["server", "memory", "cpu"] {
            info += &read::<String>("INFO", self.query_partition(0, cmd("INFO").arg(section)).await?)?;
        }
        let field = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.unwrap_or_default().trim().to_owned()
        };
        let seconds = |name| field(name).parse::<f64>().unwrap_or(0.0);
        Ok(Usage {
            version: field("redis_version"),
            memory_bytes: field("used_memory").parse().unwrap_or(0),
            cpu: Duration::from_secs_f64(seconds("used_cpu_sys") + seconds("used_cpu_user")),
        })
    }

    /// Writes `records` records of `bytes` bytes, each with an index entry, pipelined over one connection per
    /// partition. Its speed is the baseline of benchmarks: Redis without kafleet.
    pub async fn plain_writes(&self, partitions: u32, records: u64, bytes: usize) -> Result<(), StoreError> {
        let count = records / u64::from(partitions.max(1));
        try_join_all((0..partitions).map(|partition| self.plain_partition(partition, count, bytes))).await.map(drop)
    }

    async fn plain_partition(&self, partition: u32, records: u64, bytes: usize) -> Result<(), StoreError> {
        let (keys, value) = (Keys::new(&self.connector.options.prefix, partition), vec![b'x'; bytes]);
        let (mut connection, _) = self.connector.connect().await.map_err(|error| self.connector.explain(&error))?;
        let mut next = 0;
        while next < records {
            let end = (next + PIPELINE_WRITES).min(records);
            let commands = plain_commands(&keys, next..end, &value);
            let sent = connection.send_packed_commands(&commands, 0, 2);
            let answers = within(self.connector.options.response_timeout, sent).await;
            for answer in answers.map_err(|error| self.connector.explain(&error))? {
                Value::extract_error(answer).map_err(|error| self.connector.explain(&error))?;
            }
            next = end;
        }
        Ok(())
    }

    /// Deletes all keys with the configured prefix. In a cluster, only those on one of its nodes.
    pub async fn clear(&self) -> Result<(), StoreError> {
        let (mut cursor, pattern) = ("0".to_owned(), format!("{}:*", self.connector.options.prefix));
        loop {
            let answer = self
                .query_partition(
                    0,
                    cmd("SCAN").arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(PIPELINE_WRITES),
                )
                .await?;
            let (next, keys): (String, Vec<String>) = read("SCAN", answer)?;
            if !keys.is_empty() {
                self.query_partition(0, cmd("UNLINK").arg(keys)).await?;
            }
            if next == "0" {
                return Ok(());
            }
            cursor = next;
        }
    }
}

/// Commands that write the records with these numbers, and their index entries.
fn plain_commands(keys: &Keys, numbers: Range<u64>, value: &[u8]) -> Pipeline {
    let (mut commands, mut sets, mut index) = (pipe(), cmd("MSET"), cmd("ZADD"));
    index.arg(keys.all());
    for n in numbers {
        let id = format!("plain-{n:012}");
        sets.arg([keys.all(), id.clone()].concat()).arg(value);
        index.arg(1_700_000_000_000 + n).arg(id);
    }
    commands.add_command(sets).add_command(index);
    commands
}
