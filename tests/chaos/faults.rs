//! What goes wrong, and how long it takes until all is well again.

use std::time::Duration;

use kafleet::runtime::now_ms;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::fleet::Fleet;
use crate::kafka::Cluster;
use crate::load::{Load, Round};
use crate::process::Process;
use crate::proxy::{Link, Proxy};
use crate::redis::Stores;

/// Each kind of fault, and what people read of it in tables.
macro_rules! kinds {
    ($($kind:ident: $words:literal,)+) => {
        /// One kind of fault. Which of several processes or links it hits is drawn each time.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        pub enum Kind {
            $($kind,)+
        }

        const ALL: &[Kind] = &[$($kind,)+];

        impl Kind {
            pub fn words(self) -> &'static str {
                match self {
                    $($kind => $words,)+
                }
            }
        }
    };
}

kinds! {
    WorkerKilled: "worker killed",
    WorkerFrozen: "worker frozen",
    WorkersRolled: "workers restarted one by one",
    TrackerKilled: "tracker killed",
    TrackerFrozen: "tracker frozen",
    TrackersRolled: "trackers restarted one by one",
    ApiKilled: "api killed",
    ApiFrozen: "api frozen",
    ApisRolled: "apis restarted one by one",
    BrokerKilled: "broker killed",
    BrokerFrozen: "broker frozen",
    TwoBrokersKilled: "two of three brokers killed",
    KafkaSlow: "link to a broker slow",
    KafkaSilent: "link to a broker silent",
    KafkaCut: "link to a broker cut",
    RedisMasterKilled: "Redis master killed",
    RedisMasterFrozen: "Redis master frozen",
    RedisReplicaKilled: "Redis replica killed",
    SentinelKilled: "sentinel killed",
    RedisSwitched: "Redis replica made master",
    RedisWiped: "Redis wiped",
    RedisSlow: "link to Redis slow",
    RedisSilent: "link to Redis silent",
    RedisCut: "link to Redis cut",
}

use Kind::*;

/// What the short mode draws from: each of these is over within seconds.
const SHORT: &[Kind] = &[
    WorkerKilled,
    TrackerKilled,
    ApiKilled,
    BrokerKilled,
    RedisMasterKilled,
    RedisWiped,
    RedisSwitched,
    KafkaCut,
    KafkaSlow,
    TrackersRolled,
];

impl Kind {
    /// Workers know Kafka and nothing else: what befalls the others makes nobody do anything twice.
    pub fn reaches_workers(self) -> bool {
        matches!(
            self,
            WorkerKilled
                | WorkerFrozen
                | WorkersRolled
                | BrokerKilled
                | BrokerFrozen
                | TwoBrokersKilled
                | KafkaSlow
                | KafkaSilent
                | KafkaCut
        )
    }

    /// Draws how long it lasts, in milliseconds.
    fn length(self, rng: &mut fastrand::Rng) -> u64 {
        match self {
            WorkerKilled | TrackerKilled | ApiKilled | SentinelKilled | RedisReplicaKilled => rng.u64(500..3_000),
            WorkerFrozen | TrackerFrozen | ApiFrozen => rng.u64(2_000..14_000),
            BrokerKilled | BrokerFrozen | RedisMasterKilled | RedisMasterFrozen => rng.u64(2_000..12_000),
            TwoBrokersKilled => rng.u64(1_000..6_000),
            KafkaSlow | RedisSlow => rng.u64(4_000..8_000),
            KafkaSilent | KafkaCut | RedisSilent | RedisCut => rng.u64(1_000..9_000),
            WorkersRolled | TrackersRolled | ApisRolled | RedisSwitched | RedisWiped => 0,
        }
    }
}

/// A fault to come.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub kind: Kind,
    target: usize,
    lasts: Duration,
    late: Duration,
}

/// An endless story of faults: all kinds in a random order, and again.
pub fn plans(mut rng: fastrand::Rng, short: bool) -> impl Iterator<Item = Plan> {
    let kinds = if short { SHORT } else { ALL };
    let mut deck: Vec<Kind> = Vec::new();
    std::iter::from_fn(move || {
        if deck.is_empty() {
            deck = kinds.to_vec();
            rng.shuffle(&mut deck);
        }
        let kind = deck.pop()?;
        let lasts = Duration::from_millis(kind.length(&mut rng));
        Some(Plan { kind, target: rng.usize(..6), lasts, late: Duration::from_millis(rng.u64(50..250)) })
    })
}

/// A fault that has been.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub kind: Kind,
    /// What was hit.
    pub hit: String,
    /// Epoch milliseconds.
    pub begun_ms: i64,
    /// When it was over, or the process was started again.
    pub ended_ms: i64,
    /// From its beginning until tasks of every partition, submitted after that, were seen done. None: not within the patience.
    pub recovered_in_ms: Option<i64>,
    /// The same, for tasks submitted after its end.
    pub well_after_ms: Option<i64>,
}

/// What happened to a worker, so that a task that ran twice has a cause.
#[derive(Clone, Debug)]
pub struct Loss {
    pub incarnation: String,
    pub how: Ending,
    pub from_ms: i64,
    pub to_ms: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Killed,
    Frozen,
    /// It was asked to end, and did.
    Stopped,
}

impl Ending {
    pub fn words(self) -> &'static str {
        match self {
            Self::Killed => "worker killed",
            Self::Frozen => "worker frozen",
            Self::Stopped => "worker stopped",
        }
    }
}

/// How long the fleet has to recover from one fault.
pub const RECOVERY: Duration = Duration::from_secs(180);
const DRAIN: Duration = Duration::from_secs(45);
/// Between two restarts of a rolling one.
const APART: Duration = Duration::from_millis(2_000);

/// Everything that can be hit.
pub struct Stage {
    pub kafka: Cluster,
    pub redis: Stores,
    pub fleet: Fleet,
    pub losses: Vec<Loss>,
}

impl Stage {
    /// One fault from its beginning until the fleet has recovered from it.
    pub async fn suffer(&mut self, plan: Plan, load: &Load) -> Row {
        let begun_ms = now_ms();
        let hit = self.apply(plan).await;
        let ended_ms = now_ms();
        let recovered = self.round_after(load, begun_ms).await;
        let well = self.round_after(load, ended_ms).await;
        Row {
            kind: plan.kind,
            hit,
            begun_ms,
            ended_ms,
            recovered_in_ms: recovered.map(|round| round.ended_ms - begun_ms),
            well_after_ms: well.map(|round| round.ended_ms - ended_ms),
        }
    }

    /// The first round of probes that began after that, once it has ended.
    async fn round_after(&mut self, load: &Load, time_ms: i64) -> Option<Round> {
        let until = Instant::now() + RECOVERY;
        while Instant::now() < until {
            let round = load.rounds.lock().iter().find(|round| round.begun_ms >= time_ms).copied();
            if round.is_some() {
                return round;
            }
            self.rest(Duration::from_millis(100)).await;
        }
        None
    }

    /// Time passes, and what has ended by itself is started again.
    pub async fn rest(&mut self, span: Duration) {
        let until = Instant::now() + span;
        loop {
            self.fleet.tend();
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            sleep(left.min(Duration::from_millis(250))).await;
        }
    }

    async fn apply(&mut self, plan: Plan) -> String {
        match plan.kind {
            WorkersRolled | TrackersRolled | ApisRolled => self.roll(plan.kind).await,
            TwoBrokersKilled => {
                let (one, other) = (plan.target % 3, (plan.target + 1) % 3);
                self.kafka.brokers[one].kill();
                self.kafka.brokers[other].kill();
                self.rest(plan.lasts).await;
                self.kafka.brokers[one].start();
                self.kafka.brokers[other].start();
                format!("broker-{} and broker-{}", one + 1, other + 1)
            }
            RedisWiped => {
                self.redis.wipe().await;
                "all keys".to_owned()
            }
            RedisSwitched => {
                let done = self.redis.switch().await;
                if done { "by the sentinel's order" } else { "refused: another one is under way" }.to_owned()
            }
            KafkaSlow | KafkaSilent | KafkaCut | RedisSlow | RedisSilent | RedisCut => self.link(plan).await,
            _ => self.process(plan).await,
        }
    }

    /// Kills or freezes one, and starts or thaws it after a while.
    async fn process(&mut self, plan: Plan) -> String {
        let frozen = matches!(plan.kind, WorkerFrozen | TrackerFrozen | ApiFrozen | BrokerFrozen | RedisMasterFrozen);
        let master = match plan.kind {
            RedisMasterKilled | RedisMasterFrozen | RedisReplicaKilled => self.redis.master().await,
            _ => 0,
        };
        let from_ms = now_ms();
        let process = self.victim(plan, master);
        let incarnation = process.incarnation();
        if frozen {
            process.freeze()
        } else {
            process.kill()
        }
        self.rest(plan.lasts).await;
        let process = self.victim(plan, master);
        if frozen {
            process.thaw()
        } else {
            process.start()
        }
        let how = if frozen { Ending::Frozen } else { Ending::Killed };
        self.losses.push(Loss { incarnation: incarnation.clone(), how, from_ms, to_ms: now_ms() });
        incarnation.split('.').next().unwrap_or_default().to_owned()
    }

    fn victim(&mut self, plan: Plan, master: usize) -> &mut Process {
        let of = |many: usize| plan.target % many;
        match plan.kind {
            WorkerKilled | WorkerFrozen => &mut self.fleet.workers[of(3)],
            TrackerKilled | TrackerFrozen => &mut self.fleet.trackers[of(2)],
            ApiKilled | ApiFrozen => &mut self.fleet.apis[of(2)],
            BrokerKilled | BrokerFrozen => &mut self.kafka.brokers[of(3)],
            RedisMasterKilled | RedisMasterFrozen => &mut self.redis.servers[master],
            RedisReplicaKilled => &mut self.redis.servers[1 - master],
            SentinelKilled => &mut self.redis.sentinel,
            other => unreachable!("{other:?} hits no single process"),
        }
    }

    async fn link(&mut self, plan: Plan) -> String {
        let (state, is_kafka) = match plan.kind {
            KafkaSlow => (Link::Slow(plan.late), true),
            KafkaSilent => (Link::Silent, true),
            KafkaCut => (Link::Cut, true),
            RedisSlow => (Link::Slow(plan.late), false),
            RedisSilent => (Link::Silent, false),
            _ => (Link::Cut, false),
        };
        let number = if is_kafka { plan.target % 3 } else { self.redis.master().await };
        let link = |stage: &Self, state| {
            let links: &[Proxy] = if is_kafka { &stage.kafka.links } else { &stage.redis.links };
            links[number].set(state);
        };
        link(self, state);
        self.rest(plan.lasts).await;
        link(self, Link::Open);
        let whose = if is_kafka { "broker" } else { "redis" };
        match state {
            Link::Slow(late) => format!("{whose}-{}, by {} ms each way", number + 1, late.as_millis()),
            _ => format!("{whose}-{}", number + 1),
        }
    }

    /// SIGTERM, wait, start, one after the other.
    async fn roll(&mut self, kind: Kind) -> String {
        let many = if kind == WorkersRolled { 3 } else { 2 };
        let mut killed = 0;
        for number in 0..many {
            let from_ms = now_ms();
            let role = match kind {
                WorkersRolled => &mut self.fleet.workers[number],
                TrackersRolled => &mut self.fleet.trackers[number],
                _ => &mut self.fleet.apis[number],
            };
            let incarnation = role.incarnation();
            let ended = role.end(DRAIN).await;
            killed += u32::from(!ended);
            role.start();
            let how = if ended { Ending::Stopped } else { Ending::Killed };
            self.losses.push(Loss { incarnation, how, from_ms, to_ms: now_ms() });
            self.rest(APART).await;
        }
        match killed {
            0 => format!("all {many}"),
            killed => format!("all {many}; {killed} did not end within {} s", DRAIN.as_secs()),
        }
    }
}
