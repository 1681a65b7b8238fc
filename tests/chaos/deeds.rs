//! What handlers really did, as they wrote it down themselves, and why some of it was done twice.

use std::collections::BTreeMap;
use std::path::Path;

use crate::faults::{Ending, Kind, Loss, Row};

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

/// So long after an attempt its end may not be committed yet: where commits are refused, longer than their interval.
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
    /// Who did it before.
    pub worker: String,
    pub cause: Cause,
}

/// Why an attempt was executed once more.
#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// Its record lies there that often.
    Record,
    /// What was wrong, and when that began, epoch milliseconds.
    Fault(&'static str, i64),
    /// Workers were stopped in order, and it was not finished: it was interrupted, or waited for its next attempt. Whoever
    /// takes it over begins with its first one.
    Unfinished,
    /// Workers were stopped in order, and it was finished before.
    Finished,
    Unknown,
}

impl Cause {
    pub fn words(&self) -> &'static str {
        match self {
            Self::Record => "its record is there again: a send of unknown outcome was repeated",
            Self::Fault(words, _) => words,
            Self::Unfinished => "its worker was stopped or gave the partition away while the task was not finished",
            Self::Finished => "its worker was stopped in order, and it was finished before",
            Self::Unknown => "no fault was near",
        }
    }
}

/// Every execution beyond the first of an attempt, each with its cause.
pub fn repeats(deeds: &Deeds, losses: &[Loss], rows: &[Row], records: impl Fn(&str, u32) -> usize) -> Vec<Repeat> {
    let mut found = Vec::new();
    for ((id, run), of_task) in &deeds.by_task {
        let mut before = BTreeMap::<u32, (&Deed, usize)>::new();
        let mut sorted: Vec<&Deed> = of_task.iter().collect();
        sorted.sort_by_key(|deed| deed.begun_ms);
        for deed in sorted {
            let times = before.get(&deed.attempt).map_or(0, |(_, times)| *times) + 1;
            let Some((first, _)) = before.insert(deed.attempt, (deed, times)) else { continue };
            let cause = if times <= records(id, *run) { Cause::Record } else { cause(first, deed, losses, rows) };
            found.push(Repeat { id: id.clone(), run: *run, attempt: deed.attempt, worker: first.worker.clone(), cause });
        }
    }
    found
}

/// The worker that did it before was lost soon after, or something else was wrong. What is stopped in order is no cause for
/// what was finished.
fn cause(first: &Deed, again: &Deed, losses: &[Loss], rows: &[Row]) -> Cause {
    let lost = |loss: &&Loss| {
        loss.incarnation == first.worker
            && loss.from_ms < first.ended_ms.max(first.begun_ms) + UNCOMMITTED_MS
            && loss.to_ms > first.begun_ms
            && loss.from_ms <= again.begun_ms
    };
    if let Some(loss) = losses.iter().filter(|loss| loss.how != Ending::Stopped).find(lost) {
        return Cause::Fault(loss.how.words(), loss.from_ms);
    }
    let near = |row: &&Row| (row.begun_ms..row.ended_ms + AFTERMATH_MS).contains(&again.begun_ms);
    let mut rows = rows.iter().rev().filter(near).filter(|row| row.kind.reaches_workers());
    let fault = |row: &Row| Cause::Fault(row.kind.words(), row.begun_ms);
    let finished = !matches!(first.end.as_deref(), None | Some("again"));
    let stopped = losses.iter().any(|loss| lost(&loss));
    match rows.next() {
        Some(row) if row.kind != Kind::WorkersRolled && !stopped => fault(row),
        None if !stopped => Cause::Unknown,
        _ if !finished => Cause::Unfinished,
        Some(row) if row.kind != Kind::WorkersRolled => fault(row),
        _ => rows.find(|row| row.kind != Kind::WorkersRolled).map_or(Cause::Finished, fault),
    }
}
