//! `GET /v1/tasks/{id}/why`: why a task is where it is. Reads the store, and of Kafka what the task's group has committed.

use std::time::Duration;

use axum::response::Response;

use super::task::json_answer;
use crate::api::Api;
use crate::api::backends::KAFKA_DEADLINE;
use crate::api::documents::{Finding, Reason, Why};
use crate::api::http::problem::ApiError;
use crate::api::http::request::ApiRequest;
use crate::api::read::consistency::TaskView;
use crate::broker::{Broker, Committed, Partition, Watermarks};
use crate::model::event::{ErrorInfo, Kind};
use crate::model::offsets::{Completed, FULL_METADATA_BYTES, MAX_SPAN, Metadata};
use crate::model::record::state::{Category, State};
use crate::model::retention::{NEVER_ANNOUNCED, REMOVED};
use crate::model::task::id::TaskId;
use crate::model::task::{Position, Source, read_task};
use crate::publish::time_text;
use crate::runtime::now_ms;
use crate::store::Index;

mod count;
mod fleet;

use count::{Count, Counter};

/// How long the rate of a partition is measured.
const SAMPLE: Duration = Duration::from_secs(1);
/// Tasks of a tree looked at in search of what holds it.
const MAX_LOOKED_AT: usize = 2_000;
/// Children read at a time.
const PAGE: usize = 200;
/// Open tasks named.
const NAMED: usize = 10;
/// What is folded within a moment, and the markers of transactions, are not worth a word.
const BEHIND_WORTH_TELLING: i64 = 100;

pub async fn why(call: ApiRequest) -> Result<Response, ApiError> {
    let api = &call.api;
    let task = api.find(&call.id()?, call.after()?).await?;
    let mut findings = match task.node.state {
        State::Queued if !task.node.is_external() => {
            let mut findings = api.what_forbids(&task).await?;
            findings.extend(api.why_queued(&task).await?);
            findings
        }
        State::WaitingForChildren => api.why_waiting(&task).await?,
        state if state.is_terminal() => api.why_ended(&task).await?,
        _ => vec![api.why_held(&task)],
    };
    findings.extend(api.how_old(&task).await?);
    let why = Why { id: task.id.to_string(), state: task.node.state, findings };
    Ok(json_answer(200, &why))
}

impl Finding {
    fn new(code: Reason, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), ..Self::default() }
    }

    fn about(self, task: &TaskId) -> Self {
        Self { task: Some(task.to_string()), ..self }
    }
}

/// What the task's own record says.
fn why_own(task: &TaskView) -> Finding {
    let node = &task.node;
    let due = || node.due_ms.map_or_else(|| "at a time that is not told".to_owned(), |due| format!("at {}", time_text(due)));
    match node.own {
        State::Expected => Finding::new(
            Reason::NotPublished,
            "a child or an event named this task, and nobody has published it yet; see that its producer runs",
        ),
        _ if node.is_external() => {
            let told = format!("it is run by someone else and was last reported {}; nobody has told more", node.own);
            Finding::new(Reason::External, told)
        }
        State::Scheduled => {
            let last = node.error.as_deref().map(|error| format!("; the last error was {}", error_text(Some(error))));
            Finding::new(Reason::Scheduled, format!("it is released {}{}", due(), last.unwrap_or_default()))
        }
        State::Retrying => {
            let error = error_text(node.error.as_deref());
            Finding::new(Reason::Retrying, format!("attempt {} failed: {error}; the next one begins {}", node.attempt, due()))
        }
        _ if node.silent => {
            let told = format!(
                "{}; that worker is not heard of any more: once its partitions are taken over, it runs again",
                running(task)
            );
            Finding::new(Reason::WorkerSilent, told)
        }
        _ => Finding::new(Reason::Running, running(task)),
    }
}

fn running(task: &TaskView) -> String {
    let node = &task.node;
    let now = now_ms();
    let worker = node.worker.as_deref().unwrap_or("a worker that is not told");
    let since = node.started_at_ms.map_or_else(String::new, |at| format!(" since {}", time_text(at)));
    let heard = node.history.iter().map(|entry| entry.at_ms).max();
    let heard = heard.map_or_else(String::new, |at| format!("; the last event of it is {} old", age(now - at)));
    format!("attempt {} runs on `{worker}`{since}{heard}", node.attempt.max(1))
}

fn ended(state: State) -> String {
    if state == State::Cancelled { "was cancelled".to_owned() } else { state.to_string() }
}

fn error_text(error: Option<&ErrorInfo>) -> String {
    error.map_or_else(|| "no error is told".to_owned(), |error| format!("{}: {}", error.kind, error.message))
}

fn age(ms: i64) -> String {
    match ms.max(0) {
        ms if ms < 10_000 => format!("{:.1} s", ms as f64 / 1e3),
        ms if ms < 600_000 => format!("{} s", ms / 1_000),
        ms => format!("{} min", ms / 60_000),
    }
}

/// Where a queued task stands in its partition.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Gone { first: i64 },
    NeverTaken { from: i64 },
    Taken,
    Ahead { completed: Box<Completed>, full: bool },
}

/// From offsets to a place in line; the tasks before it are still to be counted.
fn place_in_line(offset: i64, ends: Watermarks, committed: Option<&Committed>) -> Line {
    if offset < ends.first {
        return Line::Gone { first: ends.first };
    }
    // A commit behind the end is of an earlier topic of that name.
    let Some(committed) = committed.filter(|committed| committed.offset <= ends.end) else {
        return Line::NeverTaken { from: ends.first };
    };
    let completed = Metadata::decode(committed.offset, &committed.metadata)
        .map_or_else(|| Completed::starting_at(committed.offset), |metadata| metadata.completed);
    if completed.is_done(offset) {
        return Line::Taken;
    }
    let span = completed.end() - completed.watermark();
    let full = committed.metadata.len() > FULL_METADATA_BYTES || span > MAX_SPAN;
    Line::Ahead { completed: Box::new(completed), full }
}

impl Api {
    async fn why_queued(&self, task: &TaskView) -> Result<Vec<Finding>, ApiError> {
        if task.node.is_to_be_published() {
            let told =
                "a retry was asked for, and a tracker is about to publish its record again; if it stays so, see that one runs";
            return Ok(vec![Finding::new(Reason::Republished, told)]);
        }
        let (Some(position), Some(task_type)) = (task.node.position, task.node.task_type.clone()) else {
            return Ok(vec![why_own(task)]);
        };
        let names = self.publisher.names();
        let place = Partition::new(names.tasks(&task_type), position.partition);
        let ends = self.broker.watermarks(&place).await?;
        let committed = self.committed(&task_type, &place).await?;
        let line = place_in_line(position.offset, ends, committed.as_ref());
        let mut findings = match line {
            Line::NeverTaken { .. } | Line::Ahead { .. } => self.who_works(task).await?,
            Line::Gone { .. } | Line::Taken => Vec::new(),
        };
        findings.extend(match line {
            Line::Gone { first } => vec![Finding::new(
                Reason::RecordGone,
                format!(
                    "its record at {place}, offset {}, is gone: the log begins at {first}; retention was too short for the backlog",
                    position.offset
                ),
            )],
            // What to do is said.
            Line::NeverTaken { .. } if findings.iter().any(|finding| finding.code == Reason::Refused) => Vec::new(),
            Line::NeverTaken { from } => {
                let ahead = self.count_below(&place, Completed::starting_at(from), position.offset).await?;
                let before = ahead.text("task", "tasks");
                let message = format!(
                    "no worker has taken anything from {place} yet, with {before} before it; see that one runs with `--types {task_type}`"
                );
                vec![Finding { ahead: Some(ahead.tasks), at_most: ahead.at_most, ..Finding::new(Reason::NeverTaken, message) }]
            }
            Line::Taken => vec![Finding::new(
                Reason::Taken,
                "a worker is through with it, and its result is on the way to the store; if it stays so, its last event was lost with its partition's log",
            )],
            Line::Ahead { completed, full } => {
                let watermark = completed.watermark();
                let ahead = self.count_below(&place, *completed, position.offset).await?;
                let mut findings = vec![self.in_line(&task_type, &place, ahead, watermark).await?];
                if full {
                    findings.insert(0, self.held_back(&task_type, &place, watermark).await?);
                }
                findings
            }
        });
        Ok(findings)
    }

    async fn committed(&self, task_type: &str, place: &Partition) -> Result<Option<Committed>, ApiError> {
        let group = self.publisher.names().group(task_type);
        let committed = self.broker.group_offsets(&group, vec![place.clone()]).await?;
        Ok(committed.into_iter().next().flatten())
    }

    async fn count_below(&self, place: &Partition, completed: Completed, to: i64) -> Result<Count, ApiError> {
        let at = place.clone();
        let count = move |broker: &dyn Broker, deadline| Counter::new(broker, deadline).open_below(&at, &completed, to);
        Ok(self.broker.call(count).await?)
    }

    /// Measures how fast the partition moves.
    async fn in_line(&self, task_type: &str, place: &Partition, ahead: Count, watermark: i64) -> Result<Finding, ApiError> {
        let begun = tokio::time::Instant::now();
        tokio::time::sleep(SAMPLE).await;
        let moved = self.committed(task_type, place).await?.map_or(0, |committed| committed.offset - watermark).max(0);
        let rate = moved as f64 / begun.elapsed().as_secs_f64();
        let expected_in_ms = (rate > 0.0).then(|| (ahead.tasks as f64 / rate * 1e3) as u64);
        let when = match expected_in_ms {
            Some(ms) => format!("which moves at {rate:.0}/s: its turn should come in {}", age(ms as i64)),
            None => format!("which did not move within {} s; see `kafleet workers` and the log of its worker", SAMPLE.as_secs()),
        };
        let lag = self.lag(task_type).await?;
        let mut message = match ahead.tasks {
            0 => "it is next in its partition, and was not begun yet; a moment, or all slots are taken".to_owned(),
            _ => format!("{} before it in {place}, {when}", ahead.text("task is", "tasks are")),
        };
        if let Some(lag) = lag {
            message +=
                &format!("; {} to be done in all", lag.text(&format!("of `{task_type}` is"), &format!("of `{task_type}` are")));
        }
        let at_most = ahead.at_most || lag.is_some_and(|lag| lag.at_most);
        let (lag, finding) = (lag.map(|lag| lag.tasks), Finding::new(Reason::InLine, message));
        Ok(Finding { ahead: Some(ahead.tasks), at_most, rate: Some(rate), lag, expected_in_ms, ..finding })
    }

    /// One task at the watermark does not end, and the map of what is done behind it is full.
    async fn held_back(&self, task_type: &str, place: &Partition, watermark: i64) -> Result<Finding, ApiError> {
        let record = self.broker.read_at(place, watermark).await?;
        let task_type = task_type.into();
        let holder = record.and_then(|record| {
            let position = Position { partition: place.index, offset: watermark };
            let value = record.value.as_deref();
            let source = Source { task_type: &task_type, position, timestamp_ms: record.timestamp_ms, value };
            let headers = record.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref()));
            read_task(&source, headers).ok().map(|task| task.id)
        });
        let message = format!("the task at offset {watermark} of {place} has not ended and holds everything behind it back");
        let finding = Finding::new(Reason::HeldBack, message);
        Ok(match holder {
            Some(id) => finding.about(&id),
            None => finding,
        })
    }

    /// The open tasks below, deepest first.
    async fn why_waiting(&self, task: &TaskView) -> Result<Vec<Finding>, ApiError> {
        let (mut open, mut ahead, mut looked_at) = (Vec::new(), vec![task.id.clone()], 0);
        while let Some(parent) = ahead.pop() {
            for child in self.some_below(&parent, task.partition, &mut looked_at, |state| !state.is_terminal()).await? {
                if child.node.own.is_terminal() { ahead.push(child.id) } else { open.push(child) }
            }
        }
        open.sort_by_key(|child| std::cmp::Reverse(child.id.as_str().matches(':').count()));
        let pending = crate::api::read::status::status(task).tree.pending.saturating_sub(1);
        let mut findings: Vec<Finding> = open
            .iter()
            .take(NAMED)
            .map(|child| {
                let because = why_own_in_brief(child);
                Finding::new(Reason::OpenChild, format!("`{}` is {}: {because}", child.id, child.node.own)).about(&child.id)
            })
            .collect();
        if let (Some(first), true) = (findings.first_mut(), pending > 1) {
            first.message += &format!(" ({pending} tasks below are open in all)");
        }
        if findings.is_empty() {
            let message =
                format!("{pending} tasks below it are open; the first {looked_at} that were looked at are not among them");
            findings.push(Finding::new(Reason::OpenChild, message));
        }
        Ok(findings)
    }

    /// Its own end, or the deepest task whose end decided.
    async fn why_ended(&self, task: &TaskView) -> Result<Vec<Finding>, ApiError> {
        let state = task.node.state;
        if let Some(lost) = lost(task) {
            return Ok(vec![lost]);
        }
        if task.node.own == state {
            let error = task.node.error.as_deref();
            let message = match state.category() {
                Category::Successful => format!("it {} on attempt {}", ended(state), task.node.attempt.max(1)),
                _ if error.is_some_and(|error| error.kind == "cancelled") => {
                    format!("it was {}", error.map_or("cancelled", |error| &error.message))
                }
                _ => format!("it {}: {}", ended(state), error_text(error)),
            };
            return Ok(vec![Finding::new(Reason::Ended, message)]);
        }
        let (mut parent, mut looked_at, mut culprit) = (task.id.clone(), 0, None);
        while let Some(child) =
            self.some_below(&parent, task.partition, &mut looked_at, |is| is == state).await?.into_iter().next()
        {
            parent = child.id.clone();
            let found = child.node.own == state;
            culprit = Some(child);
            if found {
                break;
            }
        }
        let message = match &culprit {
            Some(child) => format!("`{}` below it {}: {}", child.id, ended(state), error_text(child.node.error.as_deref())),
            None => format!("a task below it {}; it is not among the first {looked_at} that were looked at", ended(state)),
        };
        let finding = Finding::new(Reason::FailedChild, message);
        Ok(vec![match culprit {
            Some(child) => finding.about(&child.id),
            None => finding,
        }])
    }

    /// Children in such a state, as long as not too many tasks have been looked at.
    async fn some_below(
        &self,
        parent: &TaskId,
        partition: u32,
        looked_at: &mut usize,
        wanted: impl Fn(State) -> bool,
    ) -> Result<Vec<TaskView>, ApiError> {
        let (index, mut after, mut some) = (Index::Children(parent.clone()), None, Vec::new());
        while *looked_at < MAX_LOOKED_AT && some.len() < NAMED {
            let entries = self.page(partition, &index, after.as_ref(), PAGE).await?;
            let ids: Vec<TaskId> = entries.iter().map(|entry| entry.id.clone()).collect();
            *looked_at += ids.len();
            let found = self.look_many(partition, &ids).await?.into_iter().flatten();
            some.extend(found.filter(|child| !child.superseded && wanted(child.node.state)));
            if entries.len() < PAGE {
                break;
            }
            after = entries.into_iter().next_back();
        }
        Ok(some)
    }

    /// Where the fold has not got to the log's end, the answer may be old.
    async fn how_old(&self, task: &TaskView) -> Result<Option<Finding>, ApiError> {
        let Watermarks { end, first } = self.event_ends(task.partition, KAFKA_DEADLINE).await?;
        let folded = self.fence(task.partition).await?.map_or(first, |fence| fence.offset);
        let behind = end.saturating_sub(folded);
        let told = || {
            let partition = task.partition;
            let message = format!(
                "the last {behind} events of partition {partition} are not folded yet: this answer may be old; see that a tracker runs"
            );
            Finding::new(Reason::Behind, message)
        };
        Ok((behind > BEHIND_WORTH_TELLING).then(told))
    }
}

fn is_result(kind: Kind) -> bool {
    matches!(kind, Kind::Succeeded | Kind::Failed)
}

/// Nobody ever worked on it: what was observed.
fn lost(task: &TaskView) -> Option<Finding> {
    let node = &task.node;
    let message = node.error.as_deref().filter(|_| node.own == State::Expired && node.state == State::Expired)?.message.as_str();
    let noticed = node.ended_at_ms.map_or_else(String::new, |at| format!("; noticed at {}", time_text(at)));
    let told = match message {
        REMOVED => {
            let (place, name) = (node.position.map_or("-".to_owned(), |place| place.to_string()), node.task_type.as_deref());
            let name = name.unwrap_or("-");
            match node.history.iter().find(|entry| entry.ignored && entry.run == node.run && is_result(entry.kind)) {
                Some(late) => {
                    let worker = late.worker.as_deref().unwrap_or("a worker that is not named");
                    let (kind, at) = (late.kind.name(), time_text(late.at_ms));
                    format!(
                        "Kafka's retention removed its record, {place} of the topic of `{name}`{noticed}; `{worker}`, which had been \
                         cut off, reported {kind} at {at}, too late to count"
                    )
                }
                None => format!(
                    "Kafka's retention removed its record, {place} of the topic of `{name}`, before a worker began it{noticed}; submit \
                     it again, and see that workers keep up or that `task_retention` is longer"
                ),
            }
        }
        NEVER_ANNOUNCED => {
            let named = time_text(node.seen_ms);
            format!(
                "it was named at {named} by a child or an event, and nobody has published it since{noticed}; see its producer"
            )
        }
        _ => return None,
    };
    Some(Finding::new(Reason::Lost, told))
}

fn why_own_in_brief(task: &TaskView) -> String {
    match task.node.own {
        State::Queued if !task.node.is_external() => "no worker has begun it".to_owned(),
        _ => why_own(task).message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: Watermarks = Watermarks { first: 100, end: 500 };

    fn committed(offset: i64, metadata: &str) -> Committed {
        Committed { offset, metadata: metadata.to_owned() }
    }

    #[test]
    fn the_place_in_line() {
        let never = place_in_line(130, ENDS, None);
        assert_eq!(never, Line::NeverTaken { from: 100 });
        assert_eq!(place_in_line(99, ENDS, None), Line::Gone { first: 100 });
        // Done: 103, 108, 109.
        let some = committed(100, "kf1 open 10500 2 r:AwEEAg");
        let completed = Metadata::decode(some.offset, &some.metadata).map(|metadata| Box::new(metadata.completed)).unwrap();
        assert_eq!(place_in_line(120, ENDS, Some(&some)), Line::Ahead { completed, full: false });
        assert_eq!(place_in_line(108, ENDS, Some(&some)), Line::Taken);
        assert_eq!(place_in_line(120, ENDS, Some(&committed(121, ""))), Line::Taken);
        assert_eq!(place_in_line(120, ENDS, Some(&committed(501, ""))), Line::NeverTaken { from: 100 });
        let completed = Box::new(Completed::starting_at(110));
        assert_eq!(place_in_line(120, ENDS, Some(&committed(110, "?"))), Line::Ahead { completed, full: false });
    }
}
