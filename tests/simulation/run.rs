//! One simulation from its beginning to its verdict, and the search for the least that has to happen for it to fail.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use kafleet::model::record::state::State;
use kafleet::runtime::simulated::simulate;

use crate::fleet::{Fleet, SESSION};
use crate::host::System;
use crate::oracle::Oracle;
use crate::orders::WITHDRAWN_MS;
use crate::story::{Mood, Story};
use crate::verdict;

/// By then everything has come to its end.
const PATIENCE_MS: u64 = 600_000;
/// Where all is well the fold is at the end of the log again by then, before the tick that would bring it there.
const FOLDING_MS: u64 = 45_000;
const LOOK: Duration = Duration::from_millis(500);
/// A story takes parts of a second, one that gets stuck some seconds. Where something is done again and again without a
/// wait its clock stands still, and it has no end.
const LONGEST: Duration = Duration::from_secs(120);

pub struct Outcome {
    pub seed: u64,
    pub story: Arc<Story>,
    pub wrong: Vec<String>,
    pub trace: u64,
}

pub fn play(seed: u64) -> Outcome {
    play_story(Story::of(seed))
}

pub fn play_story(story: Story) -> Outcome {
    let story = Arc::new(story);
    let seed = story.seed;
    let _ended = watched(seed);
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let trace = RefCell::new(0);
    let played = std::panic::catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            let system = System::new(seed);
            simulate(Some(system.clone()));
            let fleet = Fleet::new(story.clone(), system.clone()).await;
            let wrong = live(&fleet).await;
            *trace.borrow_mut() = system.trace();
            wrong
        })
    }));
    drop(runtime);
    simulate(None);
    let wrong = played.unwrap_or_else(|panic| {
        let text =
            panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        vec![format!("panicked: {}", text.unwrap_or_default())]
    });
    Outcome { seed, story, wrong, trace: trace.into_inner() }
}

/// Until what it gives is dropped. Nothing but the end of the process stops what never waits.
fn watched(seed: u64) -> mpsc::Sender<()> {
    let (ended, end) = mpsc::channel();
    std::thread::spawn(move || {
        if end.recv_timeout(LONGEST) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!(
                "seed {seed} has no end: it plays for {LONGEST:?} (KAFLEET_SEED={seed} cargo test --test simulation seeds)"
            );
            std::process::exit(1);
        }
    });
    ended
}

async fn live(fleet: &Rc<Fleet>) -> Vec<String> {
    fleet.all_seats().into_iter().for_each(|seat| fleet.start(seat));
    let mut items = fleet.story.items.clone().into_iter().peekable();
    let (mut ends, trouble_ms) = (BTreeMap::new(), fleet.story.trouble_ms);
    let local = tokio::task::LocalSet::new();
    let wrong = local.run_until(async {
        while fleet.system.elapsed_ms() < trouble_ms * 3 / 2 || items.peek().is_some() {
            while let Some(item) = items.next_if(|item| item.at_ms <= fleet.system.elapsed_ms()) {
                tokio::task::spawn_local(fleet.clone().perform(item.deed));
            }
            if fleet.system.elapsed_ms() >= trouble_ms {
                if !fleet.is_healed() {
                    fleet.settle();
                }
                fleet.heal();
                fleet.all_seats().into_iter().for_each(|seat| fleet.start(seat));
            }
            watch(fleet, &mut ends).await;
            if !seen(fleet).is_empty() {
                return seen(fleet);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        finish(fleet, &mut ends).await
    });
    wrong.await
}

fn seen(fleet: &Fleet) -> Vec<String> {
    let mut all = fleet.ledger.violations();
    all.extend(fleet.luck.violations.lock().iter().cloned());
    all.extend(fleet.violations.borrow().iter().cloned());
    all
}

type Ends = BTreeMap<(String, u32), State>;

/// On the way: what has ended has ended, whatever the store forgets meanwhile.
async fn watch(fleet: &Fleet, ends: &mut Ends) {
    fleet.tend().await;
    if fleet.system.elapsed_ms() % 1_000 > 100 {
        return;
    }
    let records = verdict::records(fleet).await;
    let before = fleet.seen.replace(records.clone());
    if Rc::ptr_eq(&before, &records) {
        return;
    }
    let stays = fleet.story.mood != Mood::Wild && (fleet.story.kept_ms == 0 || fleet.system.elapsed_ms() < fleet.story.kept_ms);
    for id in before.keys().filter(|id| stays && !records.contains_key(*id)) {
        fleet.violation(format!("the record of `{id}` is gone"));
    }
    verdict::at_any_time(fleet, &records).into_iter().for_each(|wrong| fleet.violation(wrong));
    for (id, node) in records.iter() {
        if node.own.is_terminal() {
            let first = *ends.entry((id.clone(), node.run)).or_insert(node.own);
            if first != node.own {
                fleet.violation(format!("run {} of `{id}` was {first} and is {}", node.run, node.own));
            }
        }
    }
}

/// Everything is well: all comes to its end, and then is as it has to be.
async fn finish(fleet: &Rc<Fleet>, ends: &mut Ends) -> Vec<String> {
    fleet.heal();
    let begun = fleet.system.elapsed_ms();
    let (mut folded_ms, mut open_ms) = (begun, begun);
    loop {
        fleet.tend().await;
        fleet.all_seats().into_iter().for_each(|seat| fleet.start(seat));
        watch(fleet, ends).await;
        if !seen(fleet).is_empty() {
            return seen(fleet);
        }
        match verdict::unfolded(fleet).await {
            None => folded_ms = fleet.system.elapsed_ms(),
            Some(why) if fleet.system.elapsed_ms() > folded_ms + FOLDING_MS => return vec![format!("not folded: {why}")],
            Some(_) => {}
        }
        if verdict::open(fleet).await.is_some() || fleet.cancels_told().is_empty() {
            open_ms = fleet.system.elapsed_ms();
        } else if fleet.system.elapsed_ms() > open_ms + WITHDRAWN_MS && !fleet.may_leave_cancels() {
            return vec![format!("everything has ended, and workers are still told of cancels: {:?}", fleet.cancels_told())];
        }
        let unrest = match fleet.under_way.get() {
            0 => verdict::unrest(fleet).await,
            deeds => Some(format!("{deeds} requests are under way")),
        };
        let Some(unrest) = unrest else {
            // Whoever has died just before is missed by now, and what it had is somebody else's.
            if fleet.system.elapsed_ms() > fleet.story.trouble_ms + 3 * SESSION.as_millis() as u64 {
                break;
            }
            tokio::time::sleep(LOOK).await;
            continue;
        };
        if fleet.system.elapsed_ms() > begun + PATIENCE_MS {
            return vec![format!("stuck: {unrest}")];
        }
        tokio::time::sleep(LOOK).await;
    }
    let mut wrong = verdict::judge(fleet).await;
    if wrong.is_empty() && fleet.story.kept_ms > 0 {
        wrong = forget(fleet).await;
    }
    for seat in fleet.all_seats() {
        fleet.stop(seat);
    }
    for seat in fleet.all_seats() {
        fleet.gone(seat).await;
    }
    wrong.extend(seen(fleet));
    wrong.extend(verdict::given_back(fleet));
    if wrong.is_empty() {
        // It panics where they differ.
        let oracle = Oracle::of(fleet.broker.clone(), &fleet.names, fleet.story.events_partitions).await;
        oracle.equals(fleet.store()).await;
    }
    wrong
}

/// Time passes, and all trees are removed: also those that a store without a memory has to be told of first.
async fn forget(fleet: &Rc<Fleet>) -> Vec<String> {
    if fleet.system.chance(0.3) {
        fleet.wipe();
    }
    let end = fleet.system.elapsed_ms() + PATIENCE_MS;
    loop {
        fleet.tend().await;
        tokio::time::sleep(LOOK).await;
        let rest = verdict::rest(fleet).await;
        if rest.is_empty() || !seen(fleet).is_empty() {
            return seen(fleet);
        }
        if fleet.system.elapsed_ms() > end {
            return vec![format!("trees were to be kept for {} ms, and {rest:?} is there", fleet.story.kept_ms)];
        }
    }
}

/// Leaves out what need not happen for it to fail: deeds first, then what the trees that are left need not do. It may be
/// played so often.
pub fn shrink(outcome: &Outcome, mut plays: u64) -> Outcome {
    let mut best =
        Outcome { seed: outcome.seed, story: outcome.story.clone(), wrong: outcome.wrong.clone(), trace: outcome.trace };
    let mut size = best.story.items.len().div_ceil(2);
    while size > 0 {
        let mut from = 0;
        while from < best.story.items.len() {
            let mut smaller = (*best.story).clone();
            smaller.items.drain(from..(from + size).min(best.story.items.len()));
            from += if fails_too(smaller, &mut best, &mut plays) { 0 } else { size };
        }
        size /= 2;
    }
    for root in 0..best.story.roots.len() {
        let mut n = 0;
        while let Some(script) = best.story.roots[root].1.lesser().into_iter().nth(n) {
            let mut smaller = (*best.story).clone();
            smaller.roots[root].1 = script;
            n += usize::from(!fails_too(smaller, &mut best, &mut plays));
        }
    }
    best
}

fn fails_too(smaller: Story, best: &mut Outcome, plays: &mut u64) -> bool {
    if *plays == 0 {
        return false;
    }
    *plays -= 1;
    let tried = play_story(smaller);
    let fails = !tried.wrong.is_empty();
    if fails {
        *best = tried;
    }
    fails
}
