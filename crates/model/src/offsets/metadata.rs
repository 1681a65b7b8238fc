//! Metadata of a commit: its two formats, which all readers accept.

use super::{
    Claims, CompletedOffsets, FULL_METADATA_BYTES, MAX_METADATA_BYTES, MAX_SPAN, PendingRetries, RETRIES_BYTES,
};

/// Longest encoded map, in bytes, with which the owner of a partition that passes over records starts further tasks:
/// that of 17,000 offsets as a bitmap.
pub const FULL_MAP_BYTES: usize = 2 + (17_000 / 8 * 4usize).div_ceil(3);
/// Bytes reserved in `kf2` for the tasks that wait for their next attempt, beside 32 claims and a full map.
const KF2_RETRIES_BYTES: usize = 700;

/// State in which the owner of a partition made a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The owner is working on the partition. A takeover from this state means that the owner crashed.
    Open,
    /// Released while tasks were still running: these are repeated, but the owner did not crash.
    Late,
    /// Released with nothing running.
    Clean,
}

impl Mark {
    const ALL: [(&'static str, Self); 3] = [("open", Self::Open), ("late", Self::Late), ("clean", Self::Clean)];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, mark)| *mark == self).map_or("open", |(name, _)| name)
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(of_mark, _)| *of_mark == name).map(|(_, mark)| *mark)
    }
}

/// Progress of an owner that passes over records: its position, and the offsets that may be in flight (format `kf2`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassOverMetadata {
    /// Offset at which reading on continues. Open offsets below it have been delivered.
    pub read: i64,
    /// Offsets that may have been dispatched; no others have.
    pub claims: Claims,
}

/// Decoded metadata of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Map of completed offsets.
    pub completed: CompletedOffsets,
    /// State in which the owner made the commit.
    pub mark: Mark,
    /// Offsets from here on have not been dispatched.
    pub window_end: i64,
    /// Number of consecutive unclean takeovers.
    pub unclean_takeovers: u32,
    /// Tasks that wait for their next attempt.
    pub retries: PendingRetries,
    /// `None` in the format `kf1`: all offsets below `window_end` may have been dispatched.
    pub pass_over: Option<PassOverMetadata>,
}

impl Metadata {
    /// Encodes the metadata of an owner that dispatches in the order of the log (`kf1`).
    pub fn encode(
        completed: &CompletedOffsets,
        mark: Mark,
        window_end: i64,
        unclean_takeovers: u32,
        retries: &PendingRetries,
    ) -> String {
        let text = format!("kf1 {} {window_end} {unclean_takeovers} ", mark.name());
        with_map_and_retries(text, completed, retries, RETRIES_BYTES)
    }

    /// Encodes the metadata of an owner that passes over records (`kf2`). Claims are at most
    /// [`MAX_CLAIM_RUNS`](super::MAX_CLAIM_RUNS) runs; a map of up to [`FULL_MAP_BYTES`] is encoded whole.
    pub fn encode_pass_over(
        completed: &CompletedOffsets,
        mark: Mark,
        pass_over: &PassOverMetadata,
        unclean_takeovers: u32,
        retries: &PendingRetries,
    ) -> String {
        let PassOverMetadata { read, claims } = pass_over;
        let claims = claims.encode(completed.watermark());
        // Everything up to the watermark may be a gap in the log that reading on has not met yet.
        let read = completed.watermark().max(*read);
        let text = format!("kf2 {} {unclean_takeovers} {read} {claims} ", mark.name());
        with_map_and_retries(text, completed, retries, KF2_RETRIES_BYTES)
    }

    /// Returns true if encoded metadata leaves little room for more completed offsets. Tasks that wait for their next
    /// attempt count only as far as they take room from the map.
    pub fn is_nearly_full(text: &str) -> bool {
        let mut fields = text.split(' ');
        if fields.next() == Some("kf2") {
            return fields.nth(4).is_some_and(|map| map.len() > FULL_MAP_BYTES);
        }
        let retries = text.split(' ').nth(5).map_or(0, str::len);
        text.len() - retries.saturating_sub(RETRIES_BYTES) > FULL_METADATA_BYTES
    }

    /// Decodes either format. Returns `None` for other text; the caller then assumes an empty map and an unclean end.
    pub fn decode(offset: i64, text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.split(' ').collect();
        let (mark, unclean_takeovers, map, retries, window_end, pass_over) = match &fields[..] {
            ["kf1", mark, window_end, takeovers, map, retries @ ..] => {
                (mark, takeovers, map, retries, window_end.parse().ok()?, None)
            }
            ["kf2", mark, takeovers, read, claims, map, retries @ ..] => {
                let pass_over = PassOverMetadata::decode(offset, read, claims)?;
                let window_end = pass_over.claims.end().unwrap_or(offset);
                (mark, takeovers, map, retries, window_end, Some(pass_over))
            }
            _ => return None,
        };
        let retries = match retries {
            [] => PendingRetries::default(),
            [retries] => PendingRetries::decode(offset, retries)?,
            _ => return None,
        };
        Some(Self {
            completed: CompletedOffsets::decode_map(offset, map)?,
            mark: Mark::named(mark)?,
            window_end,
            unclean_takeovers: unclean_takeovers.parse().ok()?,
            retries,
            pass_over,
        })
    }

    /// Returns whether the owner may have started the task at the offset.
    pub fn may_have_started(&self, offset: i64) -> bool {
        match &self.pass_over {
            Some(pass_over) => pass_over.claims.contains(offset),
            None => offset < self.window_end,
        }
    }
}

impl PassOverMetadata {
    fn decode(committed: i64, read: &str, claims: &str) -> Option<Self> {
        let read: i64 = read.parse().ok()?;
        let distance = read.checked_sub(committed)?;
        let claims = Claims::decode(committed, claims)?;
        (0..=2 * MAX_SPAN).contains(&distance).then_some(Self { read, claims })
    }
}

/// Completes the text with the map and the tasks that wait for their next attempt, to at most [`MAX_METADATA_BYTES`].
fn with_map_and_retries(
    mut text: String,
    completed: &CompletedOffsets,
    retries: &PendingRetries,
    retries_bytes: usize,
) -> String {
    let watermark = completed.watermark();
    let reserved = if retries.is_empty() { 0 } else { 1 + retries.encode(watermark, retries_bytes).len() };
    text += &completed.encode_map(MAX_METADATA_BYTES - text.len() - reserved);
    if !retries.is_empty() {
        let encoded = retries.encode(watermark, MAX_METADATA_BYTES - text.len() - 1);
        text += if encoded.is_empty() { "" } else { " " };
        text += &encoded;
    }
    text
}
