//! Executions recorded by the handlers themselves, and the causes of repeated ones.

use std::collections::BTreeMap;
use std::path::Path;

use crate::faults::{Ending, FaultRecord, Kind, Loss, RECOVERY};

/// Execution of an attempt.
#[derive(Clone, Debug)]
pub struct Execution {
    pub worker: String,
    pub attempt: u32,
    pub begun_ms: i64,
    /// `succeeded`, `failed` or `again`; `None` if the execution did not finish.
    pub end: Option<String>,
    pub ended_ms: i64,
}

/// All executions by task and run.
pub struct Executions {
    pub by_task: BTreeMap<(String, u32), Vec<Execution>>,
    pub count: usize,
}

/// Time after a fault in which a repeated execution counts as caused by it: the session has to expire, and a
/// partition may be revoked only when its new owner joins.
const AFTERMATH_MS: i64 = 45_000;

/// Time after an attempt in which its result may be uncommitted: longer than the commit interval while commits fail.
/// If the fleet recovers later than that, the time counts from its recovery.
const UNCOMMITTED_MS: i64 = 15_000;

impl Executions {
    pub fn read(file: &Path) -> Self {
        let text = std::fs::read_to_string(file).unwrap();
        let (mut by_task, mut count) = (BTreeMap::<(String, u32), Vec<Execution>>::new(), 0);
        for line in text.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let [worker, id, run, attempt, event, at] = fields[..] else {
                panic!("cannot parse the execution record `{line}`")
            };
            let (attempt, at_ms) = (attempt.parse().unwrap(), at.parse().unwrap());
            let of_task = by_task.entry((id.to_owned(), run.parse().unwrap())).or_default();
            if event == "begin" {
                count += 1;
                of_task.push(Execution {
                    worker: worker.to_owned(),
                    attempt,
                    begun_ms: at_ms,
                    end: None,
                    ended_ms: at_ms,
                });
                continue;
            }
            let open = of_task.iter_mut().rev().find(|execution| {
                execution.end.is_none() && execution.worker == worker && execution.attempt == attempt
            });
            let execution = open.expect("an end record without a begin record");
            (execution.end, execution.ended_ms) = (Some(event.to_owned()), at_ms);
        }
        Self { by_task, count }
    }

    pub fn of(&self, id: &str, run: u32) -> &[Execution] {
        self.by_task.get(&(id.to_owned(), run)).map_or(&[], Vec::as_slice)
    }

    /// Number of executions of a run with this outcome.
    pub fn ends(&self, id: &str, run: u32, end: &str) -> usize {
        self.of(id, run).iter().filter(|execution| execution.end.as_deref() == Some(end)).count()
    }

    /// Whether the parent succeeded more than once in this run and published the child each time.
    fn is_child_of_repeat(&self, id: &str, run: u32) -> bool {
        id.rsplit_once(':').is_some_and(|(parent, _)| self.ends(parent, run, "succeeded") > 1)
    }

    /// Longest time without a finished execution, and its start, in milliseconds.
    pub fn longest_silence(&self, from_ms: i64, to_ms: i64) -> (i64, i64) {
        let ends = self
            .by_task
            .values()
            .flatten()
            .filter(|execution| execution.end.is_some())
            .map(|execution| execution.ended_ms);
        let mut times: Vec<i64> = ends.filter(|at| (from_ms..to_ms).contains(at)).chain([from_ms, to_ms]).collect();
        times.sort_unstable();
        let gaps = times.windows(2).map(|pair| (pair[1] - pair[0], pair[0]));
        gaps.max().unwrap_or_default()
    }
}

/// Attempt that was executed again.
pub struct Repeat {
    pub id: String,
    pub run: u32,
    pub attempt: u32,
    /// Previous execution.
    pub first: Execution,
    again: Execution,
    pub cause: Cause,
}

/// Cause of a repeated execution.
#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// The task has several records: its publisher retried a send with an unknown outcome.
    Record,
    /// The task has several records: its parent ran again and published it again.
    Parent,
    /// Description of the fault, and its start in epoch milliseconds.
    Fault(&'static str, i64),
    /// Workers were stopped gracefully or had just joined, and the task was unfinished: interrupted or waiting for a
    /// retry. The next worker starts with its first attempt.
    Unfinished,
    /// Workers were stopped gracefully after the task had finished.
    Finished,
    Unknown,
}

impl Cause {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Record => "duplicate record: a send of unknown outcome was retried",
            Self::Parent => "duplicate record: its parent ran again",
            Self::Fault(words, _) => words,
            Self::Unfinished => "its worker stopped or lost the partition before the task had finished",
            Self::Finished => "its worker was stopped gracefully after the task had finished",
            Self::Unknown => "unexplained",
        }
    }
}

/// History of faults, to find the cause of a repeated execution.
pub struct FaultHistory<'a> {
    pub losses: &'a [Loss],
    pub rows: &'a [FaultRecord],
    /// Start of the run, epoch milliseconds: workers join one by one and take partitions from each other.
    pub from_ms: i64,
}

/// All executions but the first of each attempt, with their causes.
pub fn repeats(executions: &Executions, history: &FaultHistory, records: impl Fn(&str, u32) -> usize) -> Vec<Repeat> {
    let mut repeats = Vec::new();
    for ((id, run), of_task) in &executions.by_task {
        let mut before = BTreeMap::<u32, (&Execution, usize)>::new();
        let mut sorted: Vec<&Execution> = of_task.iter().collect();
        sorted.sort_by_key(|execution| execution.begun_ms);
        for execution in sorted {
            let times = before.get(&execution.attempt).map_or(0, |(_, times)| *times) + 1;
            let Some((first, _)) = before.insert(execution.attempt, (execution, times)) else { continue };
            let cause = match times <= records(id, *run) {
                true if executions.is_child_of_repeat(id, *run) => Cause::Parent,
                true => Cause::Record,
                false => history.cause(first, execution),
            };
            let (first, again) = (first.clone(), execution.clone());
            repeats.push(Repeat { id: id.clone(), run: *run, attempt: execution.attempt, first, again, cause });
        }
    }
    repeats
}

impl FaultHistory<'_> {
    /// Finds the loss of the previous worker, or another fault close by. A graceful stop does not explain the
    /// repetition of a finished execution.
    fn cause(&self, first: &Execution, again: &Execution) -> Cause {
        let lost = |loss: &&Loss| {
            loss.incarnation == first.worker
                && loss.from_ms < first.ended_ms.max(first.begun_ms) + UNCOMMITTED_MS
                && loss.to_ms > first.begun_ms
                && loss.from_ms <= again.begun_ms
        };
        if let Some(loss) = self.losses.iter().filter(|loss| loss.ending != Ending::Stopped).find(lost) {
            return Cause::Fault(loss.ending.name(), loss.from_ms);
        }
        let near = |row: &&FaultRecord| (row.begun_ms..row.ended_ms + aftermath_ms(row)).contains(&again.begun_ms);
        let mut rows = self.rows.iter().rev().filter(near).filter(|row| row.kind.affects_workers());
        let fault = |row: &FaultRecord| Cause::Fault(row.kind.name(), row.begun_ms);
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

    /// Descriptions of the repetitions without a known cause.
    pub fn unexplained(&self, repeats: &[Repeat]) -> Vec<String> {
        repeats.iter().filter(|repeat| repeat.cause == Cause::Unknown).map(|repeat| self.describe(repeat)).collect()
    }

    fn describe(&self, Repeat { id, run, attempt, first, again, .. }: &Repeat) -> String {
        let before = self.rows.iter().rev().find(|row| row.kind.affects_workers() && row.begun_ms <= again.begun_ms);
        format!("attempt {attempt} of run {run} of `{id}`: {first:?}, {again:?}, after {before:?}")
    }
}

fn aftermath_ms(row: &FaultRecord) -> i64 {
    let recovered_after_end_ms = row.recovered_after_end_ms.unwrap_or(RECOVERY.as_millis() as i64);
    AFTERMATH_MS.max(recovered_after_end_ms + UNCOMMITTED_MS)
}
