//! Dropping and redriving dead letters, each once.
//!
//! The action on a letter and its mark are one transaction. Its producer is named after the letters'
//! topic: opening it ends what any earlier one had begun, of this api or of another, so that afterwards every mark is
//! written or will never be. Then the marks are read to the end, and only what is not marked is done. An outcome that is not
//! known is found out in the same way: by the request's own marks.

use std::collections::BTreeSet;
use std::time::Duration;

use rustc_hash::FxHashSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::document;
use crate::api::Api;
use crate::api::handlers::retry::check;
use crate::api::http::problem::{ApiError, Code};
use crate::api::read::consistency::TaskView;
use crate::broker::{Broker, BrokerError, Partition, ProducerRecord};
use crate::dead_letters::headers::has_moved_on;
use crate::dead_letters::{DeadLetterIndex, DeadLetterRecord, Fate, LetterId, Settled, mark_headers};
use crate::model::event::{Event, Kind};
use crate::model::json::RawJson;
use crate::model::outbox::KeptRecord;
use crate::model::task::id::TaskId;
use crate::runtime::{Backoff, now_ms};

/// Deadline for one chunk of letters, including the wait for other calls.
const DEADLINE: Duration = Duration::from_secs(30);
/// Deadline of one transaction; opening its producer has a deadline of its own.
const SEND_DEADLINE: Duration = Duration::from_secs(10);
const CALL_DEADLINE: Duration = Duration::from_secs(50);
/// Letters in one transaction, and bytes of the records after which it takes no more of them.
const TOGETHER: usize = 50;
const TOGETHER_BYTES: usize = 8 << 20;
/// Pause before another try after a different api has fenced this one.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
const REPEAT: &str = "repeat it: a letter is settled once, and a repeat says so";

/// What is asked.
#[derive(Clone, Debug)]
struct Request {
    fate: Fate,
    /// Of its marks.
    number: u128,
    by: Option<std::sync::Arc<str>>,
}

/// Action on one letter, applied as a whole or not at all.
struct Order {
    /// Which of the letters asked for.
    n: usize,
    /// Where the letter lies.
    partition: Partition,
    offset: i64,
    /// The mark last.
    records: Vec<Note>,
}

/// A record to be sent.
struct Note {
    topic: String,
    partition: Option<i32>,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Vec<u8>)>,
}

impl Api {
    /// Drops or redrives letters of one type. One outcome each, in order.
    pub(super) async fn settle(
        &self,
        ids: Vec<LetterId>,
        fate: Fate,
        by: Option<std::sync::Arc<str>>,
    ) -> Vec<Result<(), ApiError>> {
        let request = Request { fate, number: uuid::Uuid::now_v7().as_u128(), by };
        let (mut outcomes, mut together) = (Vec::with_capacity(ids.len()), TOGETHER);
        while let rest @ [_, ..] = &ids[outcomes.len()..] {
            let some = &rest[..rest.len().min(together)];
            match self.settle_some(some, &request).await {
                Ok(told) => outcomes.extend(told),
                // One of them is what is too large.
                Err(refusal) if refusal.is(Code::TooLarge) && some.len() > 1 => together = 1,
                Err(refusal) => outcomes.extend(some.iter().map(|_| Err(refusal.clone()))),
            }
        }
        outcomes
    }

    /// In one transaction; those that are too much for it are left out at the end. Tries again while another api settles letters of this type, and after an outcome that is not known.
    async fn settle_some(&self, ids: &[LetterId], request: &Request) -> Result<Vec<Result<(), ApiError>>, ApiError> {
        let end = Instant::now() + DEADLINE;
        let late =
            |_| ApiError::new(Code::Overloaded, "other dead letters take all the time; nothing was done").hint("try again");
        let _turn = timeout_at(end, self.settling.lock()).await.map_err(late)?;
        let (mut backoff, mut in_doubt) = (Backoff::new(FIRST_PAUSE, LONGEST_PAUSE), false);
        loop {
            let (orders, mut outcomes) = self.prepare(ids, request).await;
            let Some(first) = orders.first() else { return Ok(outcomes) };
            let (name, ledger, asked) = (first.partition.topic.clone(), self.ledger.clone(), request.clone());
            let send = move |broker: &dyn Broker, _| Ok::<_, BrokerError>(send(broker, &name, &ledger, &orders, &asked));
            let sent = self.broker.with_deadline(CALL_DEADLINE).call(send).await;
            let error = match sent.map_err(|error| not_waited_for(error.into()))? {
                Ok(already) => {
                    for (n, fate) in already {
                        outcomes[n] = Err(settled(&ids[n], fate));
                    }
                    return Ok(outcomes);
                }
                Err(error) => error,
            };
            // Between 0 and the whole wait: two apis must not go on in step.
            let pause = backoff.next_wait().mul_f64(fastrand::f64());
            in_doubt |= matches!(error, BrokerError::InDoubt(_) | BrokerError::Fatal(_));
            let again = error.is_passing() || matches!(error, BrokerError::Fenced(_));
            if !again || Instant::now() + pause >= end {
                let refusal = if in_doubt { ApiError::unacknowledged(&error.to_string()) } else { error.into() };
                return Err(refusal.hint(REPEAT));
            }
            tracing::info!(%error, "dead letters are tried again");
            sleep(pause).await;
        }
    }

    /// What is to be done about each letter, or why nothing is; about the first ones where they are large.
    async fn prepare(&self, ids: &[LetterId], request: &Request) -> (Vec<Order>, Vec<Result<(), ApiError>>) {
        let (mut orders, mut outcomes, mut tasks) = (Vec::new(), Vec::new(), FxHashSet::default());
        let mut bytes = 0;
        for (n, id) in ids.iter().enumerate() {
            if bytes >= TOGETHER_BYTES {
                break;
            }
            outcomes.push(match self.order(n, id, request, &mut tasks).await {
                Ok(Some(order)) => {
                    bytes += order.records.iter().map(Note::bytes).sum::<usize>();
                    orders.push(order);
                    Ok(())
                }
                Ok(None) => Ok(()),
                Err(refusal) => Err(refusal),
            });
        }
        (orders, outcomes)
    }

    /// None: an earlier try of this request has done it.
    async fn order(
        &self,
        n: usize,
        id: &LetterId,
        request: &Request,
        tasks: &mut FxHashSet<TaskId>,
    ) -> Result<Option<Order>, ApiError> {
        let (letter, _) = self.letter(id).await?;
        let partition = Partition::new(self.publisher.names().dead(&id.task_type), id.partition);
        if let Some(settled) = self.ledger.settled(&partition, id.offset) {
            return known(id, &settled, request);
        }
        let first = match request.fate {
            Fate::Dropped => Ok(self.word_of_drop(&letter, request).await?),
            Fate::Redriven => self.redrive(&letter, request, tasks).await.map(Some),
        };
        let first = match first {
            // The fold may have heard of a redrive before this call has.
            Err(refusal) if refusal.is(Code::AlreadyDone) || refusal.is(Code::NotFinished) => {
                let (ledger, at) = (self.ledger.clone(), partition.clone());
                self.broker.with_deadline(SEND_DEADLINE).call(move |broker, _| ledger.read_all(broker, &at)).await?;
                return match self.ledger.settled(&partition, id.offset) {
                    Some(settled) => known(id, &settled, request),
                    None => Err(refusal),
                };
            }
            first => first?,
        };
        let mark = self.mark(&letter, request);
        let records = first.into_iter().chain([mark]).collect();
        Ok(Some(Order { n, partition, offset: id.offset, records }))
    }

    /// For the history of the task, where it has a record.
    async fn word_of_drop(&self, letter: &DeadLetterRecord, request: &Request) -> Result<Option<Note>, ApiError> {
        let Some((id, _)) = &letter.task else { return Ok(None) };
        let Some(found) = self.look(id).await? else { return Ok(None) };
        let mut event = Event::new(Kind::DeadDropped, id.clone(), found.node.run, now_ms());
        event.message = Some(format!("the dead letter {} was dropped", letter.id));
        event.by = request.by.clone();
        Ok(Some(self.note_of(&event)))
    }

    /// A new run of the letter's task; where there is no such task, the record as it was.
    async fn redrive(
        &self,
        letter: &DeadLetterRecord,
        request: &Request,
        tasks: &mut FxHashSet<TaskId>,
    ) -> Result<Note, ApiError> {
        if !letter.readable {
            let why = format!("kafleet did not write `{}`, and cannot say what to run", letter.id);
            return Err(ApiError::new(Code::UnreadableLetter, why).hint("drop it; `kafleet dead show` has what it holds"));
        }
        if letter.by_reference && letter.original.value.is_none() {
            return Err(gone(letter));
        }
        let task = match &letter.task {
            Some((id, run)) => self.find_any(id).await?.map(|found| (found, *run)),
            None => None,
        };
        let Some((task, run)) = task else { return Ok(self.record_again(letter)) };
        self.check_task(&task, run).await?;
        if !tasks.insert(task.id.clone()) {
            let why = format!("another dead letter of `{}` is redriven by the same request", task.id);
            return Err(ApiError::new(Code::AlreadyDone, why));
        }
        let mut event = Event::new(Kind::RetryRequested, task.id.clone(), run, now_ms());
        event.message = Some(format!("redriven from the dead letter {}", letter.id));
        event.record = kept(letter).map(Box::new);
        event.by = request.by.clone();
        Ok(self.note_of(&event))
    }

    /// The task is as the letter left it: at the end of the same run.
    async fn check_task(&self, task: &TaskView, run: u32) -> Result<(), ApiError> {
        let (id, node) = (&task.id, &task.node);
        if has_moved_on(node, run) {
            let why =
                format!("`{id}` has moved on: it is {} in run {}, and the dead letter is of run {run}", node.state, node.run);
            return Err(ApiError::new(Code::AlreadyDone, why).hint("a retry of the task starts it anew all the same"));
        }
        if node.run < run {
            let why = format!("`{id}` is in run {}, and the end of run {run} is not folded yet", node.run);
            return Err(ApiError::new(Code::NotFinished, why).hint("try again in a moment"));
        }
        check(task, false)?;
        self.check_runs(task).await
    }

    /// The record as it was, to its topic.
    fn record_again(&self, letter: &DeadLetterRecord) -> Note {
        let original = &letter.original;
        let headers = original.headers.iter().map(|(name, value)| (name.clone(), value.clone().unwrap_or_default()));
        Note {
            topic: self.publisher.names().tasks(&letter.id.task_type),
            partition: None,
            key: original.key.clone(),
            value: original.value.clone(),
            headers: headers.collect(),
        }
    }

    fn mark(&self, letter: &DeadLetterRecord, request: &Request) -> Note {
        let headers = mark_headers(letter, request.fate, request.number, now_ms());
        Note {
            topic: self.publisher.names().dead(&letter.id.task_type),
            partition: Some(letter.id.partition),
            key: None,
            value: None,
            headers: headers.map(|(name, value)| (name.to_owned(), value.into_bytes())).to_vec(),
        }
    }

    fn note_of(&self, event: &Event) -> Note {
        let mut value = Vec::with_capacity(256);
        event.encode(&mut value);
        Note {
            topic: self.publisher.names().events(),
            partition: i32::try_from(self.publisher.partition_of(&event.id)).ok(),
            key: Some(event.id.root().as_bytes().to_vec()),
            value: Some(value),
            headers: Vec::new(),
        }
    }
}

/// Does what nobody has done. Returns which letters others had settled before.
fn send(
    broker: &dyn Broker,
    name: &str,
    ledger: &DeadLetterIndex,
    orders: &[Order],
    request: &Request,
) -> Result<Vec<(usize, Fate)>, BrokerError> {
    let mut producer = broker.atomic_producer(name)?;
    let partitions: BTreeSet<&Partition> = orders.iter().map(|order| &order.partition).collect();
    for partition in partitions {
        ledger.read_all(broker, partition)?;
    }
    let (mut already, mut open) = (Vec::new(), Vec::new());
    for order in orders {
        match ledger.settled(&order.partition, order.offset) {
            None => open.push(order),
            Some(settled) if is_own(&settled, request) => {}
            Some(settled) => already.push((order.n, settled.fate)),
        }
    }
    let notes: Vec<&Note> = open.iter().flat_map(|order| &order.records).collect();
    let headers: Vec<Vec<(&str, &[u8])>> = notes.iter().map(|note| note.headers()).collect();
    let records: Vec<ProducerRecord<'_>> = notes.iter().zip(&headers).map(|(note, headers)| note.outgoing(headers)).collect();
    if !records.is_empty() {
        producer.send_all(&records, SEND_DEADLINE)?;
    }
    for order in open {
        ledger.settle(&order.partition, order.offset, request.fate, request.number);
    }
    Ok(already)
}

impl Note {
    fn bytes(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.value.as_ref().map_or(0, Vec::len) + headers
    }

    fn headers(&self) -> Vec<(&str, &[u8])> {
        self.headers.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect()
    }

    fn outgoing<'a>(&'a self, headers: &'a [(&'a str, &'a [u8])]) -> ProducerRecord<'a> {
        let (key, value) = (self.key.as_deref(), self.value.as_deref());
        ProducerRecord { topic: &self.topic, partition: self.partition, key, value, headers }
    }
}

/// The transaction may go on although nobody waits for it any longer.
fn not_waited_for(refusal: ApiError) -> ApiError {
    let refusal = match refusal.is(Code::KafkaUnavailable) {
        true => ApiError::unacknowledged(&refusal.document().detail),
        false => refusal,
    };
    refusal.hint(REPEAT)
}

/// A letter that is settled: by this request, or by another one, which is refused.
fn known(id: &LetterId, known: &Settled, request: &Request) -> Result<Option<Order>, ApiError> {
    if is_own(known, request) { Ok(None) } else { Err(settled(id, known.fate)) }
}

fn is_own(settled: &Settled, request: &Request) -> bool {
    settled.request == Some(request.number)
}

fn settled(id: &LetterId, fate: Fate) -> ApiError {
    let code = match fate {
        Fate::Dropped => Code::AlreadyDropped,
        Fate::Redriven => Code::AlreadyRedriven,
    };
    ApiError::new(code, format!("the dead letter `{id}` has been {} before", fate.name()))
}

/// None: it cannot be carried in an event, so the task's own record has to do.
fn kept(letter: &DeadLetterRecord) -> Option<KeptRecord> {
    if letter.by_reference {
        return None;
    }
    let original = &letter.original;
    let headers = original.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref().unwrap_or_default()));
    let params = RawJson::parse(original.value.as_deref()?).ok()?;
    Some(KeptRecord::of(original.key.as_deref(), headers, params))
}

/// The record that a letter only speaks of is no longer there.
fn gone(letter: &DeadLetterRecord) -> ApiError {
    let (id, source) = (&letter.id, document(letter).source.unwrap_or_default());
    let why = format!("the dead letter `{id}` holds no record, and the one at {source} is no longer kept");
    ApiError::new(Code::ParamsGone, why).hint("submit the task anew, or drop the letter")
}
