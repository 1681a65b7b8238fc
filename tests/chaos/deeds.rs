//! What handlers really did, as they wrote it down themselves, and why some of it was done twice.

use std::collections::BTreeMap;
use std::path::Path;

use crate::faults::{Ending, Kind, Loss, RECOVERY, Row};

/// One execution of an attempt.
#[derive(Clone, Debug)]
pub struct Deed {
    pub worker: String,
    pub attempt: u32,
    pub begun_ms: i64,
    /// `well`, `badly` or `again`; None: it did not come to an end.
    pub end: Option<String>,
    pub ended_ms: i64,
}

/// All executions, by task and run.
pub struct Deeds {
    pub by_task: BTreeMap<(String, u32), Vec<Deed>>,
    pub count: usize,
}

/// So long after a fault it still counts as the cause of what is done again: a session has to end first, and a partition may
/// be given back only when its new owner has looked.
const AFTERMATH_MS: i64 = 45_000;

/// So long after an attempt its end may not be committed yet: where commits are refused, longer than their interval. A fault
/// that the fleet takes longer to recover from counts until then and for so long again.
const UNCOMMITTED_MS: i64 = 15_000;

impl Deeds {
    pub fn read(file: &Path) -> Self {
        let text = std::fs::read_to_string(file).unwrap();
        let (mut by_task, mut count) = (BTreeMap::<(String, u32), Vec<Deed>>::new(), 0);
        for line in text.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let [worker, id, run, attempt, what, at] = fields[..] else { panic!("the deed `{line}` cannot be read") };
            let (attempt, at_ms) = (attempt.parse().unwrap(), at.parse().unwrap());
            let of_task = by_task.entry((id.to_owned(), run.parse().unwrap())).or_default();
            if what == "begin" {
                count += 1;
                of_task.push(Deed { worker: worker.to_owned(), attempt, begun_ms: at_ms, end: None, ended_ms: at_ms });
                continue;
            }
            let open =
                of_task.iter_mut().rev().find(|deed| deed.end.is_none() && deed.worker == worker && deed.attempt == attempt);
            let deed = open.expect("what ends has begun");
            (deed.end, deed.ended_ms) = (Some(what.to_owned()), at_ms);
        }
        Self { by_task, count }
    }

    pub fn of(&self, id: &str, run: u32) -> &[Deed] {
        self.by_task.get(&(id.to_owned(), run)).map_or(&[], Vec::as_slice)
    }

    /// Executions of a task, in any run, that ended so.
    pub fn ends(&self, id: &str, run: u32, end: &str) -> usize {
        self.of(id, run).iter().filter(|deed| deed.end.as_deref() == Some(end)).count()
    }

    /// The task above it came to its good end more than once, and published it each time.
    fn is_child_of_repeat(&self, id: &str, run: u32) -> bool {
        id.rsplit_once(':').is_some_and(|(parent, _)| self.ends(parent, run, "well") > 1)
    }

    /// The longest time in which nothing was brought to an end, in milliseconds, and when it began.
    pub fn longest_silence(&self, from_ms: i64, to_ms: i64) -> (i64, i64) {
        let ends = self.by_task.values().flatten().filter(|deed| deed.end.is_some()).map(|deed| deed.ended_ms);
        let mut times: Vec<i64> = ends.filter(|at| (from_ms..to_ms).contains(at)).chain([from_ms, to_ms]).collect();
        times.sort_unstable();
        let gaps = times.windows(2).map(|pair| (pair[1] - pair[0], pair[0]));
        gaps.max().unwrap_or_default()
    }
}

/// An attempt that was executed once more.
pub struct Repeat {
    pub id: String,
    pub run: u32,
    pub attempt: u32,
    /// The execution before.
    pub first: Deed,
    again: Deed,
    pub cause: Cause,
}

/// Why an attempt was executed once more.
#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// Its record lies there that often: whoever published it did so again, not knowing whether it had.
    Record,
    /// The same, because the task above it was done again, and published it again.
    Parent,
    /// What was wrong, and when that began, epoch milliseconds.
    Fault(&'static str, i64),
    /// Workers were stopped in order, or had just joined, and it was not finished: it was interrupted, or waited for its next
    /// attempt. Whoever takes it over begins with its first one.
    Unfinished,
    /// Workers were stopped in order, and it was finished before.
    Finished,
    Unknown,
}

impl Cause {
    pub fn words(&self) -> &'static str {
        match self {
            Self::Record => "its record is there again: a send of unknown outcome was repeated",
            Self::Parent => "its record is there again: its parent was done again",
            Self::Fault(words, _) => words,
            Self::Unfinished => "its worker was stopped or gave the partition away while the task was not finished",
            Self::Finished => "its worker was stopped in order, and it was finished before",
            Self::Unknown => "no fault was near",
        }
    }
}

/// What happened to the fleet, for whoever asks for a cause.
pub struct Troubles<'a> {
    pub losses: &'a [Loss],
    pub rows: &'a [Row],
    /// When all of it ran, epoch milliseconds: workers join one after the other, and take partitions over from one another.
    pub from_ms: i64,
}

/// Every execution beyond the first of an attempt, each with its cause.
pub fn repeats(deeds: &Deeds, troubles: &Troubles, records: impl Fn(&str, u32) -> usize) -> Vec<Repeat> {
    let mut found = Vec::new();
    for ((id, run), of_task) in &deeds.by_task {
        let mut before = BTreeMap::<u32, (&Deed, usize)>::new();
        let mut sorted: Vec<&Deed> = of_task.iter().collect();
        sorted.sort_by_key(|deed| deed.begun_ms);
        for deed in sorted {
            let times = before.get(&deed.attempt).map_or(0, |(_, times)| *times) + 1;
            let Some((first, _)) = before.insert(deed.attempt, (deed, times)) else { continue };
            let cause = match times <= records(id, *run) {
                true if deeds.is_child_of_repeat(id, *run) => Cause::Parent,
                true => Cause::Record,
                false => troubles.cause(first, deed),
            };
            let (first, again) = (first.clone(), deed.clone());
            found.push(Repeat { id: id.clone(), run: *run, attempt: deed.attempt, first, again, cause });
        }
    }
    found
}

impl Troubles<'_> {
    /// The worker that did it before was lost soon after, or something else was wrong. What is stopped in order is no cause for
    /// what was finished.
    fn cause(&self, first: &Deed, again: &Deed) -> Cause {
        let lost = |loss: &&Loss| {
            loss.incarnation == first.worker
                && loss.from_ms < first.ended_ms.max(first.begun_ms) + UNCOMMITTED_MS
                && loss.to_ms > first.begun_ms
                && loss.from_ms <= again.begun_ms
        };
        if let Some(loss) = self.losses.iter().filter(|loss| loss.how != Ending::Stopped).find(lost) {
            return Cause::Fault(loss.how.words(), loss.from_ms);
        }
        let near = |row: &&Row| (row.begun_ms..row.ended_ms + aftermath_ms(row)).contains(&again.begun_ms);
        let mut rows = self.rows.iter().rev().filter(near).filter(|row| row.kind.reaches_workers());
        let fault = |row: &Row| Cause::Fault(row.kind.words(), row.begun_ms);
        let finished = !matches!(first.end.as_deref(), None | Some("again"));
        let stopped = self.losses.iter().any(|loss| lost(&loss));
        let joining = again.begun_ms < self.from_ms + UNCOMMITTED_MS && again.worker != first.worker;
        match rows.next() {
            Some(row) if row.kind != Kind::WorkersRolled && !stopped => fault(row),
            None if joining && !finished => Cause::Unfinished,
            None if !stopped => Cause::Unknown,
            _ if !finished => Cause::Unfinished,
            Some(row) if row.kind != Kind::WorkersRolled => fault(row),
            _ => rows.find(|row| row.kind != Kind::WorkersRolled).map_or(Cause::Finished, fault),
        }
    }

    /// What is known of those that nothing explains.
    pub fn riddles(&self, repeats: &[Repeat]) -> Vec<String> {
        repeats.iter().filter(|repeat| repeat.cause == Cause::Unknown).map(|repeat| self.riddle(repeat)).collect()
    }

    fn riddle(&self, Repeat { id, run, attempt, first, again, .. }: &Repeat) -> String {
        let before = self.rows.iter().rev().find(|row| row.kind.reaches_workers() && row.begun_ms <= again.begun_ms);
        format!("attempt {attempt} of run {run} of `{id}`: {first:?}, {again:?}, after {before:?}")
    }
}

fn aftermath_ms(row: &Row) -> i64 {
    let well_after_ms = row.well_after_ms.unwrap_or(RECOVERY.as_millis() as i64);
    AFTERMATH_MS.max(well_after_ms + UNCOMMITTED_MS)
}
