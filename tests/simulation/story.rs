//! What happens in one simulation: made from a seed, and told when it went wrong.

use std::fmt;

use fastrand::Rng;

use crate::trees::Script;

/// Which process of which role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Seat {
    Worker(usize),
    Tracker(usize),
    Api,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Way {
    /// Over the api, to start after so many milliseconds.
    Api { delay_ms: u64 },
    /// As any Kafka client, without a word to anybody else.
    Bare,
}

#[derive(Clone, Debug)]
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
    More {
        oak: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// Nothing goes wrong: then nothing is done twice either, where no second worker joins.
    Calm,
    /// Processes stop as they are told to, and come back: no good attempt is made twice.
    Orderly,
    Wild,
}

#[derive(Clone, Debug)]
pub struct Item {
    pub at_ms: u64,
    pub deed: Deed,
}

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
    pub mood: Mood,
    pub items: Vec<Item>,
}

impl Story {
    pub fn of(seed: u64) -> Self {
        let dice = &mut Rng::with_seed(seed);
        let mood = [Mood::Calm, Mood::Orderly, Mood::Wild][usize::from(dice.u8(..8).min(2))];
        let count = dice.usize(1..7);
        let roots: Vec<_> = (0..count).map(|_| (dice.u8(..3) > 0, Script::random(dice, 3))).collect();
        let mut story = Self {
            seed,
            trouble_ms: [8_000, 15_000, 25_000][dice.usize(..3)],
            events_partitions: dice.u32(1..4),
            task_partitions: dice.u32(1..4),
            workers: dice.usize(1..4),
            trackers: dice.usize(1..3),
            commit_ms: [20, 200, 1_000][dice.usize(..3)],
            inline_retry_ms: [0, 500, 30_000][dice.usize(..3)],
            batch_events: [1, 3, 50, 2_000][dice.usize(..4)],
            observe: dice.bool(),
            roots,
            mood,
            items: Vec::new(),
        };
        story.asks(dice);
        match mood {
            Mood::Calm => {}
            Mood::Orderly => story.restarts(dice),
            Mood::Wild => story.troubles(dice),
        }
        story.items.sort_by_key(|item| item.at_ms);
        story
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
            let deed = match dice.u8(..6) {
                0 | 1 => Deed::Cancel { root, path },
                2 | 3 => Deed::Retry { root, path, only_failed: dice.bool() },
                4 => Deed::Redrive { oak: dice.bool() },
                _ => Deed::More { oak: dice.bool() },
            };
            self.add(at_ms, deed);
        }
    }

    fn path(&self, dice: &mut Rng, root: usize) -> Vec<usize> {
        let (mut path, mut script) = (Vec::new(), &self.roots[root].1);
        while !script.children.is_empty() && dice.bool() {
            let n = dice.usize(..script.children.len());
            path.push(n);
            script = &script.children[n].script;
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

    /// How the id of a task is made.
    pub fn id(root: usize, path: &[usize]) -> String {
        path.iter().fold(format!("r{root}"), |id, n| format!("{id}:c{n}"))
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:?}: {} workers, {} trackers; {} events partitions, {} of each type; commits every {} ms, batches of {}, retries wait inline up to {} ms, observed: {}",
            self.mood,
            self.workers,
            self.trackers,
            self.events_partitions,
            self.task_partitions,
            self.commit_ms,
            self.batch_events,
            self.inline_retry_ms,
            self.observe
        )?;
        for (n, (oak, script)) in self.roots.iter().enumerate() {
            writeln!(f, "  r{n}, {}: {}", crate::trees::task_type(*oak), serde_json::to_string(script).unwrap_or_default())?;
        }
        self.items.iter().try_for_each(|item| writeln!(f, "  {:>6} ms  {:?}", item.at_ms, item.deed))
    }
}
