//! Compares a partition of the copy with the source at equal checkpoints, while both stores are written to.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use kafleet_model::statistics::Overview;
use kafleet_store::StoreError;
use kafleet_store::inspect::{Inspector, KeyPart, KeyRequest, Piece, differences};
use kafleet_store::keys::{OVERVIEW, counted_from_begin};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::copier::{Copier, CopyEnd};
use super::{Difference, VerifiedPartition};
use crate::project::projection::Projection;

/// Keys compared per step.
const STEP_KEYS: usize = 200;
/// Maximum number of reported keys with differences.
const MAX_REPORTED: usize = 10;
/// Maximum wait for one store to reach the checkpoint of the other, and for a difference to disappear.
const VERIFY_DEADLINE: Duration = Duration::from_secs(60);
/// Interval of reading the source while it is behind.
const SOURCE_INTERVAL: Duration = Duration::from_millis(50);
/// Number of checkpoints at which a key must differ before the difference is reported, except at the end of the log.
const MIN_CHECKPOINTS: usize = 3;
/// Interval of rereading a key that differs. The removal of a tree takes several steps at one offset and is complete at
/// the next.
const RECHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Result of a comparison.
pub(super) enum Verification {
    Same(VerifiedPartition),
    Different(Vec<Difference>),
    /// The stores were not compared; contains the reason.
    Unknown(String),
}

/// Comparison of a partition in progress.
struct Comparison<'a> {
    copier: &'a mut Copier,
    projection: &'a mut Projection,
    source: Box<dyn Inspector>,
    copy: Box<dyn Inspector>,
    verified: VerifiedPartition,
    different: Vec<Difference>,
    /// Whether both folds began at the same offset, once it is known.
    is_same_begin: Option<bool>,
}

/// Reason why a comparison ended early.
enum StopReason {
    /// The copier's session ends, too.
    End(CopyEnd),
    /// The source cannot be compared; contains the reason.
    Unknown(String),
}

impl From<CopyEnd> for StopReason {
    fn from(end: CopyEnd) -> Self {
        Self::End(end)
    }
}

/// Piece of a key's contents in both stores, at one checkpoint.
struct Pair {
    checkpoint: i64,
    source: Piece,
    copy: Piece,
}

/// Compares the copy with the source, folding the copy further as needed. An `Err` ends the copier's session.
pub(super) async fn verify(copier: &mut Copier, projection: &mut Projection) -> Result<Verification, CopyEnd> {
    if let Some(reason) = &copier.job.plan.incomparable {
        return Ok(Verification::Unknown(reason.clone()));
    }
    let number = copier.number;
    let Some((source, copy)) = copier.job.setup.compare.clone() else {
        return Ok(Verification::Unknown("these stores do not support comparison".into()));
    };
    let source = source.inspect(number).await.map_err(of_source)?;
    let copy = copy.inspect(number).await.map_err(|error| copier.end_of(error))?;
    let offset = projection.checkpoint().map_or(0, |checkpoint| checkpoint.offset);
    let verified = VerifiedPartition { partition: number, checkpoints: (offset, offset), keys: 0, digest: 0 };
    let mut comparison =
        Comparison { copier, projection, source, copy, verified, different: Vec::new(), is_same_begin: None };
    match comparison.run().await {
        Ok(()) if comparison.different.is_empty() => Ok(Verification::Same(comparison.verified)),
        Ok(()) => Ok(Verification::Different(comparison.different)),
        Err(StopReason::Unknown(reason)) => Ok(Verification::Unknown(reason)),
        Err(StopReason::End(end)) => Err(end),
    }
}

/// Converts an error of the source: the copy stays as it is, and the comparison is repeated.
fn of_source(error: StoreError) -> CopyEnd {
    CopyEnd::Again(format!("the source store: {error}"))
}

impl Comparison<'_> {
    /// Compares all keys of the source, then searches the copy for additional keys.
    async fn run(&mut self) -> Result<(), StopReason> {
        while self.different.len() < MAX_REPORTED
            && let Some(names) = self.source.names().await.map_err(of_source)?
        {
            self.compare(names, true).await?;
        }
        while self.different.len() < MAX_REPORTED
            && let Some(names) = self.copy.names().await.map_err(|error| self.copier.end_of(error))?
        {
            self.compare(names, false).await?;
        }
        Ok(())
    }

    /// Compares the named keys. With `values` set to false, only their existence is compared.
    async fn compare(&mut self, mut names: Vec<String>, values: bool) -> Result<(), StopReason> {
        let counted = names.iter().find_map(|name| counted_from_begin(name));
        if let Some((base, _)) = counted
            && !self.began_together(format!("{base}{OVERVIEW}")).await?
        {
            names.retain(|name| counted_from_begin(name).is_none());
        }
        let mut queue: VecDeque<KeyRequest> = names.into_iter().map(|key| KeyRequest { key, after: None }).collect();
        while !queue.is_empty() && self.different.len() < MAX_REPORTED {
            let requests: Vec<KeyRequest> = queue.iter().take(STEP_KEYS).cloned().collect();
            let pairs = self.read(&requests, values).await?;
            queue.drain(..pairs.len());
            let mut more = Vec::new();
            for (request, pair) in requests.into_iter().zip(pairs) {
                let checkpoint = pair.checkpoint;
                let Some(piece) = self.reread_until_equal(&request, pair).await? else { continue };
                self.verified.checkpoints.1 = checkpoint;
                if values {
                    self.count(&request, &piece);
                }
                if let Some(last) = piece.parts.last().filter(|_| piece.more) {
                    more.push(KeyRequest { key: request.key, after: Some(last.clone()) });
                }
            }
            more.into_iter().for_each(|request| queue.push_front(request));
        }
        Ok(())
    }

    /// Returns true if both folds began at the same offset: only then are their statistics and requests equal.
    async fn began_together(&mut self, overview: String) -> Result<bool, StopReason> {
        if let Some(is_same) = self.is_same_begin {
            return Ok(is_same);
        }
        let pair = self.read_one(&KeyRequest { key: overview, after: None }).await?;
        let [source, copy] = [&pair.source, &pair.copy].map(began);
        if source != copy {
            tracing::info!(
                partition = self.copier.number,
                source,
                copy,
                "the folds began at different offsets: statistics and the audit log are not compared"
            );
        }
        self.is_same_begin = Some(source == copy);
        Ok(source == copy)
    }

    /// Adds a piece to the digest, and counts its key if this is the first piece.
    fn count(&mut self, request: &KeyRequest, piece: &Piece) {
        if request.after.is_none() {
            self.verified.keys += 1;
            self.copier.job.progress.compared.fetch_add(1, Relaxed);
        }
        for part in &piece.parts {
            self.verified.digest = self.verified.digest.wrapping_add(digest(&request.key, &piece.kind, part));
        }
    }

    /// Rereads a piece until both stores agree, and returns it. Records a difference that persists and returns `None`.
    /// A temporary difference is normal: a source that removes old trees does so in several steps at one offset.
    async fn reread_until_equal(&mut self, request: &KeyRequest, mut pair: Pair) -> Result<Option<Piece>, StopReason> {
        let (mut seen, end) = (BTreeSet::new(), Instant::now() + VERIFY_DEADLINE);
        loop {
            if pair.source == pair.copy {
                return Ok(Some(pair.source));
            }
            seen.insert(pair.checkpoint);
            let persists = seen.len() >= MIN_CHECKPOINTS || Instant::now() >= end;
            // At the end of the log no further checkpoint follows: two equal readings suffice.
            if persists
                || (seen.len() == 1
                    && pair.checkpoint >= self.copier.watermarks().await?.high
                    && self.differs_still(request, &pair).await?)
            {
                let (source, copy) = differences(&request.key, &pair.source, &pair.copy);
                self.different.push(Difference { key: request.key.clone(), checkpoint: pair.checkpoint, source, copy });
                return Ok(None);
            }
            tokio::time::sleep(RECHECK_INTERVAL).await;
            pair = self.read_one(request).await?;
        }
    }

    /// Returns true if a second reading after a pause gives the same contents in both stores.
    async fn differs_still(&mut self, request: &KeyRequest, pair: &Pair) -> Result<bool, StopReason> {
        tokio::time::sleep(RECHECK_INTERVAL).await;
        let again = self.read_one(request).await?;
        Ok(again.source == pair.source && again.copy == pair.copy)
    }

    async fn read_one(&mut self, request: &KeyRequest) -> Result<Pair, StopReason> {
        let pair = self.read(std::slice::from_ref(request), true).await?.pop();
        pair.ok_or_else(|| {
            StopReason::End(CopyEnd::Again(format!("the stores returned no contents of `{}`", request.key)))
        })
    }

    /// Reads the source, folds the copy up to the source's checkpoint, and reads the copy. Returns a prefix of the
    /// requests, at least one.
    async fn read(&mut self, requests: &[KeyRequest], values: bool) -> Result<Vec<Pair>, StopReason> {
        let end = Instant::now() + VERIFY_DEADLINE;
        let (checkpoint, source) = self.read_source(requests, values, end).await?;
        while self.offset() < checkpoint {
            if Instant::now() >= end {
                return Err(CopyEnd::Again(format!(
                    "offset {checkpoint} of the log was not projected within {VERIFY_DEADLINE:?}"
                ))
                .into());
            }
            self.copier.advance(self.projection, Some(checkpoint)).await?;
        }
        let (stored, copy) = self.copy.read(requests, values).await.map_err(|error| self.copier.end_of(error))?;
        if stored != self.projection.checkpoint() {
            return Err(self.copier.end_of(StoreError::Conflict { stored }).into());
        }
        Ok(source.into_iter().zip(copy).map(|(source, copy)| Pair { checkpoint, source, copy }).collect())
    }

    /// Reads the source once it is projected as far as the copy. Returns the offset up to which both are needed.
    async fn read_source(
        &mut self,
        requests: &[KeyRequest],
        values: bool,
        end: Instant,
    ) -> Result<(i64, Vec<Piece>), StopReason> {
        loop {
            let (checkpoint, source) = self.source.read(requests, values).await.map_err(of_source)?;
            let (source_offset, copy_offset) = (checkpoint.map_or(0, |checkpoint| checkpoint.offset), self.offset());
            if source_offset >= copy_offset
                || (checkpoint.is_none() && self.copier.watermarks().await?.high == copy_offset)
            {
                return Ok((source_offset.max(copy_offset), source));
            }
            if Instant::now() >= end {
                return Err(StopReason::Unknown(format!(
                    "the source store is projected up to offset {source_offset}, the copy up to {copy_offset}: \
                     does a tracker project into the source?"
                )));
            }
            tokio::time::sleep(SOURCE_INTERVAL).await;
        }
    }

    fn offset(&self) -> i64 {
        self.projection.checkpoint().map_or(0, |checkpoint| checkpoint.offset)
    }
}

/// Offset at which a fold began, by the overview of its statistics.
fn began(overview: &Piece) -> Option<i64> {
    overview.parts.first().and_then(|(_, bytes)| Overview::decode(bytes)).map(|overview| overview.began)
}

/// Digest of one element of a key. The digests of all elements are added up, so their order does not matter.
fn digest(key: &str, kind: &str, (name, value): &KeyPart) -> u128 {
    let mut hash = Sha256::new();
    for text in [key.as_bytes(), kind.as_bytes(), name, value] {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    hash.finalize().iter().take(16).fold(0, |sum, byte| sum << 8 | u128::from(*byte))
}
