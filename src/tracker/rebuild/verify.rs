//! Compares a partition of the copy with the source, each piece at equal fences, while both stores go on.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::copier::{Copier, End};
use super::{Difference, Verified};
use crate::store::StoreError;
use crate::store::inspect::{Inspector, Part, Piece, Wanted, differences};
use crate::tracker::project::projection::Projection;

/// Keys compared in one step.
const STEP: usize = 200;
/// Keys with a difference that are told.
const MAX_TOLD: usize = 10;
/// How long the source may stay behind the copy, and the copy behind the source.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at the source.
const LOOK: Duration = Duration::from_millis(50);
/// A difference that is seen at so many fences is one.
const FENCES: usize = 3;
/// Between two looks at a difference. Trees that are being removed at one place of the log are gone at the next.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

pub(super) enum Verdict {
    Same(Verified),
    Different(Vec<Difference>),
    Unknown(String),
}

/// A comparison under way.
struct Comparison<'a> {
    copier: &'a mut Copier,
    folding: &'a mut Projection,
    source: Box<dyn Inspector>,
    copy: Box<dyn Inspector>,
    verified: Verified,
    different: Vec<Difference>,
}

/// Why a comparison cannot go on.
enum Stop {
    End(End),
    /// The source is not such that it could be compared.
    Unknown(String),
}

impl From<End> for Stop {
    fn from(end: End) -> Self {
        Self::End(end)
    }
}

/// The same contents of a key in both stores, as of one fence.
struct Pair {
    fence: i64,
    source: Piece,
    copy: Piece,
}

pub(super) async fn verify(copier: &mut Copier, folding: &mut Projection) -> Result<Verdict, End> {
    if let Some(why) = &copier.job.plan.incomparable {
        return Ok(Verdict::Unknown(why.clone()));
    }
    let number = copier.number;
    let Some((source, copy)) = copier.job.setup.compare.clone() else {
        return Ok(Verdict::Unknown("these stores cannot be looked through".into()));
    };
    let source = source.inspect(number).await.map_err(of_source)?;
    let copy = copy.inspect(number).await.map_err(|error| copier.end_of(error))?;
    let place = folding.fence().map_or(0, |fence| fence.offset);
    let verified = Verified { partition: number, fences: (place, place), keys: 0, digest: 0 };
    let mut comparison = Comparison { copier, folding, source, copy, verified, different: Vec::new() };
    match comparison.run().await {
        Ok(()) if comparison.different.is_empty() => Ok(Verdict::Same(comparison.verified)),
        Ok(()) => Ok(Verdict::Different(comparison.different)),
        Err(Stop::Unknown(why)) => Ok(Verdict::Unknown(why)),
        Err(Stop::End(end)) => Err(end),
    }
}

/// Trouble with the source says nothing about whose the copy is.
fn of_source(error: StoreError) -> End {
    End::Again(format!("the source store: {error}"))
}

impl Comparison<'_> {
    /// Everything that the source has, then whether the copy has more.
    async fn run(&mut self) -> Result<(), Stop> {
        while self.different.len() < MAX_TOLD
            && let Some(names) = self.source.names().await.map_err(of_source)?
        {
            self.compare(names, true).await?;
        }
        while self.different.len() < MAX_TOLD
            && let Some(names) = self.copy.names().await.map_err(|error| self.copier.end_of(error))?
        {
            self.compare(names, false).await?;
        }
        Ok(())
    }

    async fn compare(&mut self, names: Vec<String>, values: bool) -> Result<(), Stop> {
        let mut queue: VecDeque<Wanted> = names.into_iter().map(|key| Wanted { key, after: None }).collect();
        while !queue.is_empty() && self.different.len() < MAX_TOLD {
            let wanted: Vec<Wanted> = queue.iter().take(STEP).cloned().collect();
            let pairs = self.read(&wanted, values).await?;
            queue.drain(..pairs.len());
            let mut more = Vec::new();
            for (one, pair) in wanted.into_iter().zip(pairs) {
                let fence = pair.fence;
                let Some(piece) = self.settle(&one, pair).await? else { continue };
                self.verified.fences.1 = fence;
                if values {
                    self.count(&one, &piece);
                }
                if let Some(last) = piece.parts.last().filter(|_| piece.more) {
                    more.push(Wanted { key: one.key, after: Some(last.clone()) });
                }
            }
            more.into_iter().for_each(|one| queue.push_front(one));
        }
        Ok(())
    }

    fn count(&mut self, wanted: &Wanted, piece: &Piece) {
        if wanted.after.is_none() {
            self.verified.keys += 1;
            self.copier.job.progress.compared.fetch_add(1, Relaxed);
        }
        for part in &piece.parts {
            self.verified.digest = self.verified.digest.wrapping_add(digest(&wanted.key, &piece.kind, part));
        }
    }

    /// What both have; None where they differ. A difference that passes is none: where a source removes old trees, several
    /// steps share one place of the log.
    async fn settle(&mut self, wanted: &Wanted, mut pair: Pair) -> Result<Option<Piece>, Stop> {
        let (mut seen, end) = (BTreeSet::new(), Instant::now() + PATIENCE);
        loop {
            if pair.source == pair.copy {
                return Ok(Some(pair.source));
            }
            seen.insert(pair.fence);
            let lasts = seen.len() >= FENCES || Instant::now() >= end;
            // Seen twice where nothing more comes.
            if lasts
                || (seen.len() == 1 && pair.fence >= self.copier.ends().await?.end && self.differs_still(wanted, &pair).await?)
            {
                let (source, copy) = differences(&wanted.key, &pair.source, &pair.copy);
                self.different.push(Difference { key: wanted.key.clone(), fence: pair.fence, source, copy });
                return Ok(None);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
            pair = self.read_one(wanted).await?;
        }
    }

    async fn differs_still(&mut self, wanted: &Wanted, pair: &Pair) -> Result<bool, Stop> {
        tokio::time::sleep(LOOK_AGAIN).await;
        let again = self.read_one(wanted).await?;
        Ok(again.source == pair.source && again.copy == pair.copy)
    }

    async fn read_one(&mut self, wanted: &Wanted) -> Result<Pair, Stop> {
        let pair = self.read(std::slice::from_ref(wanted), true).await?.pop();
        pair.ok_or_else(|| Stop::End(End::Again(format!("no answer about `{}`", wanted.key))))
    }

    /// Reads the source, folds the copy to the source's fence, and reads the copy.
    async fn read(&mut self, wanted: &[Wanted], values: bool) -> Result<Vec<Pair>, Stop> {
        let end = Instant::now() + PATIENCE;
        let (fence, source) = loop {
            let (fence, source) = self.source.read(wanted, values).await.map_err(of_source)?;
            let (theirs, ours) = (fence.map_or(0, |fence| fence.offset), self.place());
            if theirs >= ours || (fence.is_none() && self.copier.ends().await?.end == ours) {
                break (theirs.max(ours), source);
            }
            if Instant::now() >= end {
                return Err(Stop::Unknown(format!(
                    "the source store is folded to offset {theirs}, the copy to {ours}: does a tracker fold into the source?"
                )));
            }
            tokio::time::sleep(LOOK).await;
        };
        while self.place() < fence {
            if Instant::now() >= end {
                return Err(End::Again(format!("the log did not bring offset {fence} within {PATIENCE:?}")).into());
            }
            self.copier.advance(self.folding, Some(fence)).await?;
        }
        let (found, copy) = self.copy.read(wanted, values).await.map_err(|error| self.copier.end_of(error))?;
        if found != self.folding.fence() {
            return Err(self.copier.end_of(StoreError::Conflict { found }).into());
        }
        Ok(source.into_iter().zip(copy).map(|(source, copy)| Pair { fence, source, copy }).collect())
    }

    fn place(&self) -> i64 {
        self.folding.fence().map_or(0, |fence| fence.offset)
    }
}

/// Of one part; they are added up, so that their order does not matter.
fn digest(key: &str, kind: &str, (name, value): &Part) -> u128 {
    let mut hash = Sha256::new();
    for text in [key.as_bytes(), kind.as_bytes(), name, value] {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    hash.finalize().iter().take(16).fold(0, |sum, byte| sum << 8 | u128::from(*byte))
}
