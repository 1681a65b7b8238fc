//! What happens in one simulation: made from a seed, and told when it went wrong.

use std::fmt;

use fastrand::Rng;
use kafleet::model::schedule::Overlap;
use serde::{Deserialize, Serialize};

use crate::deliveries;
use crate::trees::Script;

/// In the path to a task: from here on these are continuations.
const THENS: usize = 100;

/// Which process of which role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Seat {
    Worker(usize),
    Tracker(usize),
    Api,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Way {
    /// Over the api, to start after so many milliseconds.
    Api { delay_ms: u64 },
    /// As any Kafka client, without a word to anybody else.
    Bare,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Deed {
    Submit {
        root: usize,
        way: Way,
    },
    /// Run by somebody else, who reports these states.
    External {
        root: usize,
        fails: bool,
    },
    /// A task of this tree: the path of children to it.
    Cancel {
        root: usize,
        path: Vec<usize>,
    },
    Retry {
        root: usize,
        path: Vec<usize>,
        only_failed: bool,
    },
    Redrive {
        oak: bool,
    },
    /// Dies after so many steps more, comes back after a while.
    Crash {
        seat: Seat,
        steps: u32,
        back_ms: u64,
    },
    /// Stops in order, comes back.
    Restart {
        seat: Seat,
        back_ms: u64,
    },
    Freeze {
        seat: Seat,
        ms: u64,
    },
    /// Every call to the store fails.
    StoreAway {
        ms: u64,
    },
    StoreWiped,
    /// To what it held some seconds ago.
    StoreBack,
    /// So many of a thousand calls to the broker and the store, and sends, go wrong.
    Flaky {
        permille: u32,
        ms: u64,
    },
    /// Transactions of an events partition stay open.
    Hold {
        partition: u32,
        ms: u64,
    },
    /// Stops in order, and comes back as another build: one that folds otherwise, or the one that all began with.
    Rebuilt {
        tracker: usize,
        newer: bool,
        back_ms: u64,
    },
    More {
        oak: bool,
    },
    /// Nothing of a type is started for a while.
    Pause {
        oak: bool,
        ms: u64,
    },
    /// Nothing of a tree is started for a while: what comes to a worker meanwhile is cancelled.
    Kill {
        root: usize,
        ms: u64,
    },
    /// Fires for so long.
    Plan {
        plan: usize,
        wish: Wish,
        for_ms: u64,
    },
    Replan {
        plan: usize,
        how: Replan,
    },
    /// The tasks of a tree in one call; `insists`: again until all of them are accepted.
    Batch {
        batch: usize,
        atomic: bool,
        insists: bool,
    },
    /// Something asked of a task of a batch.
    Order {
        batch: usize,
        task: usize,
        ask: Ask,
    },
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Ask {
    Cancel,
    Retry { only_failed: bool },
    Rename { name: u32 },
}

/// A task of a batch. The first one is the root.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ordered {
    pub oak: bool,
    /// Its parent, an earlier one.
    pub parent: usize,
    pub script: Script,
}

/// What is to recur.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Wish {
    pub every_s: u32,
    /// It is said as cron does.
    pub cron: bool,
    pub overlap: Overlap,
    pub oak: bool,
    pub script: Script,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Replan {
    Pause,
    Resume,
    Run,
    Backfill,
    Delete,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mood {
    /// Nothing goes wrong: then nothing is done twice either, where no second worker joins.
    Calm,
    /// Processes stop as they are told to, and come back: no good attempt is made twice.
    Orderly,
    Wild,
}

/// Trackers of two builds, with two versions of the fold, beside one another.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Upgrade {
    /// The newer ones have a store of their own. Else each refuses what the others have folded.
    pub apart: bool,
    /// In the end all are of the newer build.
    pub done: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Item {
    pub at_ms: u64,
    pub deed: Deed,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Story {
    pub seed: u64,
    /// How long trouble lasts; then everything is well, and all has to come to its end.
    pub trouble_ms: u64,
    pub events_partitions: u32,
    pub task_partitions: u32,
    pub workers: usize,
    pub trackers: usize,
    pub commit_ms: u64,
    pub inline_retry_ms: u64,
    pub batch_events: usize,
    pub observe: bool,
    pub roots: Vec<(bool, Script)>,
    /// Workers that know one of the types only.
    pub narrow: Vec<usize>,
    /// Workers of a newer build: their events have fields, and there are kinds, that nobody else knows.
    pub newer: Vec<usize>,
    /// How long a tree is kept after its end; 0: for ever.
    pub kept_ms: u64,
    pub mood: Mood,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrade: Option<Upgrade>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub batches: Vec<Vec<Ordered>>,
    pub items: Vec<Item>,
}

/// What a task's continuation is called below it.
pub fn then_segment(n: usize) -> String {
    if n == 0 { "then".into() } else { format!("then-{}", n + 1) }
}

impl Story {
    pub fn of(seed: u64) -> Self {
        let dice = &mut Rng::with_seed(seed);
        let mood = [Mood::Calm, Mood::Orderly, Mood::Wild][usize::from(dice.u8(..8).min(2))];
        let count = dice.usize(1..7);
        let roots: Vec<_> = (0..count).map(|_| (dice.u8(..3) > 0, Script::random(dice, 3))).collect();
        let workers = dice.usize(1..4);
        let some = |dice: &mut Rng, first| (first..workers).filter(|_| dice.u8(..5) == 0).collect();
        let mut story = Self {
            seed,
            trouble_ms: [8_000, 15_000, 25_000][dice.usize(..3)],
            events_partitions: dice.u32(1..4),
            task_partitions: dice.u32(1..4),
            workers,
            trackers: dice.usize(1..3),
            commit_ms: [20, 200, 1_000][dice.usize(..3)],
            inline_retry_ms: [0, 500, 30_000][dice.usize(..3)],
            batch_events: [1, 3, 50, 2_000][dice.usize(..4)],
            observe: dice.bool(),
            roots,
            narrow: some(dice, 1),
            newer: some(dice, 0),
            kept_ms: if dice.u8(..12) == 0 { 150_000 } else { 0 },
            mood,
            upgrade: (mood == Mood::Wild && dice.u8(..6) == 0).then(|| Upgrade { apart: dice.bool(), done: dice.bool() }),
            batches: Vec::new(),
            items: Vec::new(),
        };
        if dice.u8(..4) == 0 {
            // Trees with checks are kept for an hour more, which is too long to play.
            let checks = story.kept_ms == 0;
            story.roots.iter_mut().for_each(|(_, script)| deliveries::tell(script, checks, dice));
        }
        story.asks(dice);
        story.plans(dice);
        if dice.u8(..3) == 0 {
            story.orders(dice);
        }
        match mood {
            Mood::Calm => {}
            Mood::Orderly => story.restarts(dice),
            Mood::Wild => story.troubles(dice),
        }
        if story.upgrade.is_some() {
            story.upgrades(dice);
        }
        story.items.sort_by_key(|item| item.at_ms);
        story
    }

    /// Somebody is to be told of something.
    pub fn tells(&self) -> bool {
        self.roots.iter().any(|(_, script)| deliveries::tells(script))
    }

    fn add(&mut self, at_ms: u64, deed: Deed) {
        self.items.push(Item { at_ms, deed });
    }

    fn asks(&mut self, dice: &mut Rng) {
        for root in 0..self.roots.len() {
            let at_ms = dice.u64(..self.trouble_ms / 2);
            if dice.u8(..8) == 0 {
                self.add(at_ms, Deed::External { root, fails: dice.bool() });
            } else {
                let delay_ms = if dice.u8(..3) == 0 { dice.u64(1..8_000) } else { 0 };
                let way = if dice.u8(..4) == 0 { Way::Bare } else { Way::Api { delay_ms } };
                self.add(at_ms, Deed::Submit { root, way });
            }
        }
        for _ in 0..dice.usize(..5) {
            let (at_ms, root) = (dice.u64(..self.trouble_ms * 3 / 2), dice.usize(..self.roots.len()));
            let path = self.path(dice, root);
            let ms = dice.u64(100..6_000);
            let deed = match dice.u8(..8) {
                0 | 1 => {
                    // Whoever cancels sometimes wants it back.
                    if dice.u8(..3) == 0 {
                        let retry = Deed::Retry { root, path: path.clone(), only_failed: dice.bool() };
                        self.add(at_ms + ms, retry);
                    }
                    Deed::Cancel { root, path }
                }
                2 | 3 => Deed::Retry { root, path, only_failed: dice.bool() },
                4 => Deed::Redrive { oak: dice.bool() },
                5 => Deed::More { oak: dice.bool() },
                6 => Deed::Pause { oak: dice.bool(), ms },
                _ => Deed::Kill { root, ms },
            };
            self.add(at_ms, deed);
        }
    }

    fn plans(&mut self, dice: &mut Rng) {
        for plan in 0..[0, 0, 0, 0, 0, 1, 1, 2][dice.usize(..8)] {
            let (at_ms, for_ms) = (dice.u64(..self.trouble_ms / 2), dice.u64(2_000..self.trouble_ms));
            let overlap = [Overlap::Skip, Overlap::Allow, Overlap::BufferOne, Overlap::Replace][dice.usize(..4)];
            let wish =
                Wish { every_s: dice.u32(1..5), cron: dice.bool(), overlap, oak: dice.bool(), script: Script::brief(dice) };
            self.add(at_ms, Deed::Plan { plan, wish, for_ms });
            for _ in 0..dice.usize(..3) {
                let how = [Replan::Pause, Replan::Resume, Replan::Run, Replan::Backfill, Replan::Delete][dice.usize(..5)];
                self.add(at_ms + dice.u64(..for_ms), Deed::Replan { plan, how });
            }
        }
    }

    /// Several clients, some of whom send the same batch.
    fn orders(&mut self, dice: &mut Rng) {
        for batch in 0..dice.usize(1..5) {
            let ordered = |n: usize, dice: &mut Rng| {
                let script = Script { fail_fast: dice.u8(..4) == 0, ..Script::random(dice, 0) };
                Ordered { oak: dice.u8(..3) > 0, parent: dice.usize(..n.max(1)), script }
            };
            let tasks: Vec<Ordered> = (0..dice.usize(1..6)).map(|n| ordered(n, dice)).collect();
            let (atomic, at_ms) = (dice.bool(), dice.u64(..self.trouble_ms));
            for _ in 0..dice.usize(1..3) {
                let late_ms = if dice.bool() { dice.u64(..50) } else { dice.u64(..5_000) };
                self.add(at_ms + late_ms, Deed::Batch { batch, atomic, insists: dice.bool() });
            }
            for name in 0..dice.u32(..6) {
                let ask = match dice.u8(..4) {
                    0 | 1 => Ask::Cancel,
                    2 => Ask::Retry { only_failed: dice.bool() },
                    _ => Ask::Rename { name },
                };
                let (task, at_ms) = (dice.usize(..tasks.len()), at_ms + dice.u64(..self.trouble_ms));
                for _ in 0..dice.usize(1..3) {
                    self.add(at_ms + dice.u64(..2_000), Deed::Order { batch, task, ask });
                }
            }
            self.batches.push(tasks);
        }
    }

    /// The id of a task of a batch.
    pub fn ordered_id(&self, batch: usize, task: usize) -> String {
        match task {
            0 => format!("b{batch}"),
            task => format!("{}:k{task}", self.ordered_id(batch, self.batches[batch][task].parent)),
        }
    }

    fn path(&self, dice: &mut Rng, root: usize) -> Vec<usize> {
        let (mut path, mut script) = (Vec::new(), &self.roots[root].1);
        while script.children.len() + script.thens.len() > 0 && dice.bool() {
            let n = dice.usize(..script.children.len() + script.thens.len());
            let (step, next) = match n.checked_sub(script.children.len()) {
                None => (n, &script.children[n].script),
                Some(then) => (THENS + then, &script.thens[then].kid.script),
            };
            path.push(step);
            script = next;
        }
        path
    }

    fn seat(&self, dice: &mut Rng) -> Seat {
        match dice.u8(..7) {
            0..=2 => Seat::Worker(dice.usize(..self.workers)),
            3..=5 => Seat::Tracker(dice.usize(..self.trackers)),
            _ => Seat::Api,
        }
    }

    fn restarts(&mut self, dice: &mut Rng) {
        for _ in 0..dice.usize(1..9) {
            let (at_ms, seat, back_ms) = (dice.u64(..self.trouble_ms), self.seat(dice), dice.u64(1..4_000));
            self.add(at_ms, Deed::Restart { seat, back_ms });
        }
    }

    fn troubles(&mut self, dice: &mut Rng) {
        for _ in 0..dice.usize(1..9) {
            let (at_ms, seat) = (dice.u64(..self.trouble_ms), self.seat(dice));
            let ms = dice.u64(100..15_000);
            let deed = match dice.u8(..14) {
                0..=3 => Deed::Crash { seat, steps: dice.u32(1..400), back_ms: dice.u64(1..6_000) },
                4 | 5 => Deed::Restart { seat, back_ms: dice.u64(1..4_000) },
                6 | 7 => Deed::Freeze { seat, ms },
                8 => Deed::StoreAway { ms: ms / 3 },
                9 => Deed::StoreWiped,
                10 => Deed::StoreBack,
                11 => Deed::Hold { partition: dice.u32(..self.events_partitions), ms: ms / 4 },
                _ => Deed::Flaky { permille: dice.u32(5..150), ms },
            };
            self.add(at_ms, deed);
        }
    }

    fn upgrades(&mut self, dice: &mut Rng) {
        for _ in 0..dice.usize(1..6) {
            let (at_ms, back_ms) = (dice.u64(..self.trouble_ms), dice.u64(1..4_000));
            let (tracker, newer) = (dice.usize(..self.trackers), dice.u8(..3) > 0);
            self.add(at_ms, Deed::Rebuilt { tracker, newer, back_ms });
        }
    }

    /// How the id of a task is made.
    pub fn id(root: usize, path: &[usize]) -> String {
        path.iter().fold(format!("r{root}"), |id, n| match n.checked_sub(THENS) {
            None => format!("{id}:c{n}"),
            Some(then) => format!("{id}:{}", then_segment(then)),
        })
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:?}: {} workers, {} trackers; {} events partitions, {} of each type; commits every {} ms, batches of {}, retries wait inline up to {} ms, observed: {}; workers of one type: {:?}, newer ones: {:?}; trees are kept {} ms; {:?}",
            self.mood,
            self.workers,
            self.trackers,
            self.events_partitions,
            self.task_partitions,
            self.commit_ms,
            self.batch_events,
            self.inline_retry_ms,
            self.observe,
            self.narrow,
            self.newer,
            self.kept_ms,
            self.upgrade
        )?;
        let of = |item: &Item| match item.deed {
            Deed::Submit { root, .. } | Deed::External { root, .. } => Some(root),
            _ => None,
        };
        let used: Vec<usize> = self.items.iter().filter_map(of).collect();
        for (n, (oak, script)) in self.roots.iter().enumerate().filter(|(n, _)| used.contains(n)) {
            writeln!(f, "  r{n}, {}: {}", crate::trees::task_type(*oak), serde_json::to_string(script).unwrap_or_default())?;
        }
        for (n, tasks) in self.batches.iter().enumerate() {
            writeln!(f, "  b{n}: {}", serde_json::to_string(tasks).unwrap_or_default())?;
        }
        self.items.iter().try_for_each(|item| writeln!(f, "  {:>6} ms  {:?}", item.at_ms, item.deed))
    }
}
