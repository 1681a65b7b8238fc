//! Fires what is due: timers and effects of one events partition, each once.
//!
//! A Kafka transaction holds what is published and the event that says so. Before anything is fired, a producer of this
//! partition's name is opened, which fences every earlier owner; the partition's end is taken after that, and the store
//! has to be folded to it: what an earlier owner has fired is then folded. What is fired here and not folded yet is
//! remembered. Whatever goes wrong, all of it begins again; folding goes on meanwhile.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::entry::{OutboxEntry, OutboxPlanner};
use super::subtree::{STEP, SubtreeCommand};
use crate::broker::{BrokerError, DependentRecord, Partition, ProducerRecord, TransactionalProducer};
use crate::model::outbox::Effect;
use crate::model::task::id::TaskId;
use crate::runtime::{Backoff, blocking, now_ms};
use crate::store::{Checkpoint, Entry, Outbox};
use crate::tracker::TrackerSetup;
use crate::tracker::upkeep::ticker::TrackerShared;
use crate::tracker::upkeep::withdrawals::Withdrawals;

/// Timers, and tasks with effects, looked at for one transaction.
const BURST: usize = 500;
/// Bytes of kept records in one transaction.
const BURST_BYTES: u64 = 8 << 20;
/// Fired and not folded yet, at most; a walk goes no further than so many records ahead of the fold, so that what others
/// write meanwhile is folded soon.
const MAX_UNFOLDED: usize = 5_000;
/// Walks under way at a time.
const MAX_WALKS: usize = 32;
/// Walks that wait for those, so that what lies behind them in the outbox is seen. Behind more, it has to wait.
const MAX_WAITING: usize = 5_000;
/// Those among the first tasks with effects for which nothing is to be done now. Behind more, others wait.
const MAX_PASSED_OVER: usize = 9_000;
/// Records that walks look at for one transaction, about: beside a step of a long one there is room to begin others.
const MAX_LOOKED: usize = 2 * STEP;
/// For all records of a transaction; the broker itself gives it up after `transaction.timeout.ms`.
const SEND_DEADLINE: Duration = Duration::from_secs(5);
const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// How often something that holds the firing up is looked at again, when nothing else tells.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// So long before something is due the producer is opened, which takes a while.
const PREPARE: Duration = Duration::from_secs(2);
/// The longest sleep without a look.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// How far the folder is, for those who wait for it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Folded {
    pub offset: i64,
    /// Goes up when something new is due or to be done.
    pub news: u64,
}

pub struct OutboxRelay {
    setup: Arc<TrackerSetup>,
    shared: Arc<TrackerShared>,
    number: u32,
    folded: watch::Receiver<Folded>,
    stop: CancellationToken,
    planner: OutboxPlanner,
    /// Cancels that wait for workers.
    withdrawals: Arc<Withdrawals>,
    /// What is fired, and the place of its event.
    fired: HashMap<(TaskId, String), i64>,
    /// The highest fence seen: a lower one is a store that lost writes, which the folder will notice.
    high: i64,
    /// The highest place of what this session's walks have fired.
    last: i64,
    /// Under way; the first one has its turn next.
    walks: VecDeque<SubtreeCommand>,
    /// Walks to be begun, in their order.
    waiting: VecDeque<(TaskId, Effect)>,
    /// So many one at a time, to find the record that cannot be sent.
    one_by_one: usize,
}

/// A producer that may fire once the store is folded to `from`.
struct TransactionalSession {
    producer: Box<dyn TransactionalProducer>,
    from: i64,
}

impl OutboxRelay {
    pub fn new(
        setup: Arc<TrackerSetup>,
        shared: Arc<TrackerShared>,
        number: u32,
        folded: watch::Receiver<Folded>,
        stop: CancellationToken,
    ) -> Self {
        let withdrawals = Arc::<Withdrawals>::default();
        let planner = OutboxPlanner::new(setup.clone(), number, withdrawals.clone());
        let fired = HashMap::new();
        let (walks, waiting) = (VecDeque::new(), VecDeque::new());
        Self { setup, shared, number, folded, stop, planner, withdrawals, fired, high: 0, last: 0, walks, waiting, one_by_one: 0 }
    }

    /// Fires until the folder's session ends.
    pub async fn run(self) {
        let (setup, shared, withdrawals) = (self.setup.clone(), self.shared.clone(), self.withdrawals.clone());
        let number = self.number;
        tokio::select! {
            biased;
            () = self.fire_until_stopped() => {}
            never = withdrawals.watch(&setup, &shared.surveys, number) => match never {},
        }
    }

    async fn fire_until_stopped(mut self) {
        let stop = self.stop.clone();
        let part = format!("timers of events partition {}", self.number);
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
        loop {
            let told = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                told = self.session(&part, &mut backoff) => told,
            };
            let Err(told) = told;
            tracing::warn!(partition = self.number, reason = %told, "nothing can be fired; beginning again");
            self.setup.health.set(&part, told);
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = tokio::time::sleep(backoff.next_wait()) => {}
            }
        }
        self.setup.health.clear(&part);
    }

    async fn session(&mut self, part: &str, backoff: &mut Backoff) -> Result<std::convert::Infallible, String> {
        let mut gun: Option<TransactionalSession> = None;
        (self.fired, self.last) = (HashMap::new(), 0);
        (self.walks, self.waiting) = (VecDeque::new(), VecDeque::new());
        loop {
            let seen = *self.folded.borrow_and_update();
            let passed_over = self.fired.len() + self.planner.deferred() + self.walks.len() + self.waiting.len();
            let limit = BURST + passed_over.min(MAX_PASSED_OVER);
            let outbox = self.setup.store.outbox(self.number, limit).await.map_err(|error| error.to_string())?;
            let Some(fence) = outbox.fence.filter(|fence| fence.offset >= self.high) else {
                self.wait(seen, None, LOOK_AGAIN).await;
                continue;
            };
            self.high = fence.offset;
            self.fired.retain(|_, offset| *offset >= fence.offset);
            let now = now_ms();
            let timers = self.due(&outbox, now);
            if timers.is_empty() && outbox.effects.is_empty() {
                self.withdrawals.forget_all_but(&[]);
                self.setup.health.clear(part);
                backoff.reset();
                let next = self.until_next(&outbox, now);
                match gun {
                    None if next <= PREPARE => gun = Some(self.open().await?),
                    None => self.wait(seen, None, next.saturating_sub(PREPARE)).await,
                    Some(_) => self.wait(seen, None, next).await,
                }
                continue;
            }
            let Some(loaded) = gun.take() else {
                gun = Some(self.open().await?);
                continue;
            };
            if fence.offset < loaded.from || self.fired.len() >= MAX_UNFOLDED {
                self.wait(seen, Some(loaded.from.max(fence.offset + 1)), LOOK_AGAIN).await;
                gun = Some(loaded);
                continue;
            }
            let waited = self.planner.deferred();
            let shots = self.shots(timers, &outbox.effects, fence, now).await?;
            if shots.is_empty() {
                let behind = self.behind(fence);
                // Behind those that were found to wait there may be others.
                let is_more = outbox.effects.len() == limit && self.planner.deferred() > waited;
                let goes_on = is_more || !self.walks.is_empty() || !self.waiting.is_empty();
                if behind.is_some() || !goes_on {
                    self.wait(seen, behind, self.until_next(&outbox, now).min(LOOK_AGAIN)).await;
                }
                gun = Some(loaded);
                continue;
            }
            gun = Some(self.fire(loaded, shots).await?);
            self.setup.health.clear(part);
            backoff.reset();
        }
    }

    /// Those whose time has come and that are not fired yet.
    fn due(&self, outbox: &Outbox, now: i64) -> Vec<TaskId> {
        let due = outbox.timers.iter().take_while(|entry| entry.seen_ms <= now).map(|entry| entry.id.clone());
        due.filter(|id| !self.fired.contains_key(&(id.clone(), OutboxEntry::TIMER.to_owned()))).collect()
    }

    fn until_next(&self, outbox: &Outbox, now: i64) -> Duration {
        let next = outbox.timers.iter().map(|entry| entry.seen_ms).find(|due| *due > now);
        let wait = next.map_or(LONGEST_SLEEP, |due| Duration::from_millis((due - now) as u64));
        wait.min(LONGEST_SLEEP)
    }

    /// Until there is news, the fold has come to a place, some cancel can be taken back, or the time is over.
    async fn wait(&mut self, seen: Folded, place: Option<i64>, longest: Duration) {
        let wakes = |now: &Folded| now.news != seen.news || place.is_some_and(|place| now.offset >= place);
        let withdrawals = self.withdrawals.clone();
        tokio::select! {
            biased;
            // An error says that the folder is gone, and this firing with it.
            _ = tokio::time::timeout(longest, self.folded.wait_for(wakes)) => {}
            () = withdrawals.some_passed() => {}
        }
    }

    /// Fences earlier owners, and takes the end after that: what they have fired lies before it.
    async fn open(&self) -> Result<TransactionalSession, String> {
        let (broker, name) = (self.setup.broker.clone(), format!("{}.firing.{}", self.setup.names.events(), self.number));
        let events = Partition::new(self.setup.names.events(), self.number as i32);
        let opened = blocking(move || {
            let producer = broker.atomic_producer(&name)?;
            let from = broker.ends(&events, CALL_DEADLINE)?.end;
            Ok(TransactionalSession { producer, from })
        });
        opened.await?.map_err(|error: BrokerError| error.to_string())
    }

    async fn shots(
        &mut self,
        timers: Vec<TaskId>,
        effects: &[Entry],
        fence: Checkpoint,
        now: i64,
    ) -> Result<Vec<OutboxEntry>, String> {
        let most = if self.one_by_one > 0 { 1 } else { BURST };
        // Effects get their turn also where more is due than can be fired.
        let most_timers = timers.len().min((most * 4 / 5).max(1));
        let mut shots = self.planner.timers(&timers[..most_timers], BURST_BYTES, now).await?;
        if shots.len() < most {
            let effects = self.beside_walks(effects);
            let fired = &self.fired;
            let is_fired = |id: &TaskId, mark: &str| fired.contains_key(&(id.clone(), mark.to_owned()));
            let (more, asked) = self.planner.effects(&effects, is_fired, most - shots.len(), now).await?;
            shots.extend(more);
            self.waiting.extend(asked.into_iter().take(MAX_WAITING.saturating_sub(self.waiting.len())));
            if self.behind(fence).is_none() && (self.one_by_one == 0 || shots.is_empty()) {
                self.walk(&mut shots, now).await?;
            }
        }
        // What was read belongs to this fence or a later one, unless the store has lost writes meanwhile.
        let found = self.setup.store.fences(&[self.number]).await.map_err(|error| error.to_string())?;
        match found.first().copied().flatten() {
            Some(now) if now.offset >= fence.offset => Ok(shots),
            _ => Err("the store has lost what was folded".to_owned()),
        }
    }

    /// The place that the fold has to come to before a walk goes on.
    fn behind(&self, fence: Checkpoint) -> Option<i64> {
        let place = self.last - MAX_UNFOLDED as i64;
        (fence.offset < place).then_some(place)
    }

    /// Those whose walks are neither under way nor known to wait.
    fn beside_walks(&self, effects: &[Entry]) -> Vec<Entry> {
        let waiting = self.waiting.iter().map(|(id, _)| id);
        let known: HashSet<&TaskId> = self.walks.iter().map(SubtreeCommand::top).chain(waiting).collect();
        effects.iter().filter(|entry| !known.contains(&entry.id)).cloned().collect()
    }

    /// A step of the walk whose turn it is, and then others are begun: most trees are small, and done with their first step.
    async fn walk(&mut self, shots: &mut Vec<OutboxEntry>, now: i64) -> Result<(), String> {
        let most = if self.one_by_one > 0 { shots.len() + 1 } else { usize::MAX };
        let mut next: VecDeque<SubtreeCommand> = self.walks.pop_front().into_iter().collect();
        let mut looked = 0;
        while looked < MAX_LOOKED && shots.len() < most {
            let Some(walk) = next.pop_front() else {
                let room = MAX_WALKS.saturating_sub(self.walks.len());
                let asked: Vec<(TaskId, Effect)> = self.waiting.drain(..room.min(self.waiting.len())).collect();
                if asked.is_empty() {
                    break;
                }
                next.extend(self.planner.walks(&asked, now).await?);
                looked += 1;
                continue;
            };
            let step = walk.step(&*self.setup.store, now).await?;
            shots.extend(step.shot);
            self.walks.extend(step.rest);
            looked += step.looked;
        }
        // Begun, and without a step: they are under way.
        self.walks.extend(next);
        Ok(())
    }

    /// All of it in one transaction.
    async fn fire(&mut self, gun: TransactionalSession, shots: Vec<OutboxEntry>) -> Result<TransactionalSession, String> {
        let TransactionalSession { mut producer, from } = gun;
        let (events, number): (Arc<str>, u32) = (self.setup.names.events().into(), self.number);
        let (sent, shots, producer) = blocking(move || {
            let messages: Vec<_> = shots.iter().flat_map(|shot| &shot.messages).collect();
            let headers: Vec<Vec<(&str, &[u8])>> = messages.iter().map(|message| message.headers()).collect();
            let records: Vec<ProducerRecord<'_>> =
                messages.iter().zip(&headers).map(|(message, headers)| message.outgoing(headers)).collect();
            let mut followers = |places: &[(i32, i64)]| followers(&shots, places, &events, number);
            let sent = producer.send_with_dependents(&records, &mut followers, SEND_DEADLINE);
            (sent, shots, producer)
        })
        .await?;
        match sent {
            Ok(places) => {
                self.remember(&shots, &places);
                self.one_by_one = self.one_by_one.saturating_sub(1);
                Ok(TransactionalSession { producer, from })
            }
            Err(error @ (BrokerError::TooLarge(_) | BrokerError::Unknown(_) | BrokerError::Invalid(_))) => {
                self.one_by_one = BURST;
                if let [shot] = shots.as_slice() {
                    self.planner.give_up(shot, &error);
                    self.one_by_one = 0;
                }
                Err(error.to_string())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn remember(&mut self, shots: &[OutboxEntry], places: &[(i32, i64)]) {
        let events = self.setup.names.events();
        let messages: usize = shots.iter().map(|shot| shot.messages.len()).sum();
        let mut followers = places.iter().skip(messages).copied();
        for (shot, last) in shots.iter().zip(lasts(shots, places)) {
            // The last record of each is its event, if it says anything here.
            let place = match shot.follower {
                Some(_) => followers.next(),
                None => last.filter(|_| shot.ends_in(&events)),
            };
            let Some((_, offset)) = place else { continue };
            if shot.is_of_walk() {
                self.last = self.last.max(offset);
            }
            self.fired.insert((shot.id.clone(), shot.mark.clone()), offset);
            self.setup.metrics.fired.with_label_values(&[&self.number.to_string(), shot.kind]).inc();
        }
    }
}

/// The events that say where the records before them lie.
fn followers(shots: &[OutboxEntry], places: &[(i32, i64)], events: &Arc<str>, number: u32) -> Vec<DependentRecord> {
    shots.iter().zip(lasts(shots, places)).filter_map(|(shot, last)| shot.follower(events, number, last?)).collect()
}

/// Where the last message of each lies.
fn lasts(shots: &[OutboxEntry], places: &[(i32, i64)]) -> impl Iterator<Item = Option<(i32, i64)>> {
    let mut places = places.iter().copied();
    shots.iter().map(move |shot| places.by_ref().take(shot.messages.len()).last())
}
