//! Faults, and the time the fleet takes to recover from them.

use std::time::Duration;

use kafleet::runtime::now_ms;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::fleet::Fleet;
use crate::kafka::Cluster;
use crate::load::{Load, Round};
use crate::process::Process;
use crate::proxy::{LinkState, Proxy};
use crate::redis::Stores;

/// Declares the kinds of faults with their names in tables.
macro_rules! kinds {
    ($($kind:ident: $words:literal,)+) => {
        /// Kind of fault. Its target among several processes or links is random.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        pub enum Kind {
            $($kind,)+
        }

        const ALL: &[Kind] = &[$($kind,)+];

        impl Kind {
            pub fn name(self) -> &'static str {
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
    ApiKilled: "API killed",
    ApiFrozen: "API frozen",
    ApisRolled: "APIs restarted one by one",
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

/// Kinds in the short run: each is over within seconds.
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
    /// Whether workers are affected: they depend on Kafka only, so other faults repeat no execution.
    pub fn affects_workers(self) -> bool {
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

    /// Random duration in milliseconds.
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

/// Fault to inject.
#[derive(Clone, Copy, Debug)]
pub struct PlannedFault {
    pub kind: Kind,
    target: usize,
    duration: Duration,
    latency: Duration,
}

/// Endless sequence of faults: all kinds in random order, repeatedly.
pub fn random_faults(mut rng: fastrand::Rng, short: bool) -> impl Iterator<Item = PlannedFault> {
    let kinds = if short { SHORT } else { ALL };
    let mut remaining: Vec<Kind> = Vec::new();
    std::iter::from_fn(move || {
        if remaining.is_empty() {
            remaining = kinds.to_vec();
            rng.shuffle(&mut remaining);
        }
        let kind = remaining.pop()?;
        let duration = Duration::from_millis(kind.length(&mut rng));
        Some(PlannedFault { kind, target: rng.usize(..6), duration, latency: Duration::from_millis(rng.u64(50..250)) })
    })
}

/// Injected fault with its recovery times.
#[derive(Clone, Debug, Serialize)]
pub struct FaultRecord {
    pub kind: Kind,
    /// Target of the fault.
    pub target: String,
    /// Epoch milliseconds.
    pub begun_ms: i64,
    /// End of the fault, or restart of the process.
    pub ended_ms: i64,
    /// Time from the start of the fault until tasks submitted after it in every partition had succeeded. `None`: not
    /// within [`RECOVERY`].
    pub recovered_in_ms: Option<i64>,
    /// Time from the end of the fault until tasks submitted after it had succeeded.
    pub recovered_after_end_ms: Option<i64>,
}

/// Loss of a worker process, as a cause of repeated executions.
#[derive(Clone, Debug)]
pub struct Loss {
    pub incarnation: String,
    pub ending: Ending,
    pub from_ms: i64,
    pub to_ms: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Killed,
    Frozen,
    /// The process exited after SIGTERM.
    Stopped,
}

impl Ending {
    pub fn name(self) -> &'static str {
        match self {
            Self::Killed => "worker killed",
            Self::Frozen => "worker frozen",
            Self::Stopped => "worker stopped",
        }
    }
}

/// Maximum time to recover from a fault.
pub const RECOVERY: Duration = Duration::from_secs(180);
const DRAIN: Duration = Duration::from_secs(45);
/// Pause between the restarts of a rolling restart.
const APART: Duration = Duration::from_millis(2_000);

/// All targets of faults.
pub struct Environment {
    pub kafka: Cluster,
    pub redis: Stores,
    pub fleet: Fleet,
    pub losses: Vec<Loss>,
}

impl Environment {
    /// Injects a fault and waits until the fleet has recovered from it.
    pub async fn inject(&mut self, fault: PlannedFault, load: &Load) -> FaultRecord {
        let begun_ms = now_ms();
        let target = self.apply(fault).await;
        let ended_ms = now_ms();
        let recovered = self.round_after(load, begun_ms).await;
        let well = self.round_after(load, ended_ms).await;
        FaultRecord {
            kind: fault.kind,
            target,
            begun_ms,
            ended_ms,
            recovered_in_ms: recovered.map(|round| round.ended_ms - begun_ms),
            recovered_after_end_ms: well.map(|round| round.ended_ms - ended_ms),
        }
    }

    /// First completed round of probes that began at or after the time.
    async fn round_after(&mut self, load: &Load, time_ms: i64) -> Option<Round> {
        let until = Instant::now() + RECOVERY;
        while Instant::now() < until {
            let round = load.rounds.lock().iter().find(|round| round.begun_ms >= time_ms).copied();
            if round.is_some() {
                return round;
            }
            self.wait(Duration::from_millis(100)).await;
        }
        None
    }

    /// Waits, restarting roles that have exited by themselves.
    pub async fn wait(&mut self, span: Duration) {
        let until = Instant::now() + span;
        loop {
            self.fleet.restart_exited();
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            sleep(left.min(Duration::from_millis(250))).await;
        }
    }

    async fn apply(&mut self, fault: PlannedFault) -> String {
        match fault.kind {
            WorkersRolled | TrackersRolled | ApisRolled => self.restart_one_by_one(fault.kind).await,
            TwoBrokersKilled => {
                let (one, other) = (fault.target % 3, (fault.target + 1) % 3);
                self.kafka.brokers[one].kill();
                self.kafka.brokers[other].kill();
                self.wait(fault.duration).await;
                self.kafka.brokers[one].start();
                self.kafka.brokers[other].start();
                format!("broker-{} and broker-{}", one + 1, other + 1)
            }
            RedisWiped => {
                self.redis.wipe().await;
                "all keys".to_owned()
            }
            RedisSwitched => {
                let done = self.redis.fail_over().await;
                if done { "by SENTINEL FAILOVER" } else { "refused: a failover is in progress" }.to_owned()
            }
            KafkaSlow | KafkaSilent | KafkaCut | RedisSlow | RedisSilent | RedisCut => self.disturb_link(fault).await,
            _ => self.process(fault).await,
        }
    }

    /// Kills or freezes a process, and restarts or resumes it later.
    async fn process(&mut self, fault: PlannedFault) -> String {
        let frozen = matches!(fault.kind, WorkerFrozen | TrackerFrozen | ApiFrozen | BrokerFrozen | RedisMasterFrozen);
        let master = match fault.kind {
            RedisMasterKilled | RedisMasterFrozen | RedisReplicaKilled => self.redis.master().await,
            _ => 0,
        };
        let from_ms = now_ms();
        let process = self.target_process(fault, master);
        let incarnation = process.incarnation();
        if frozen {
            process.freeze();
        } else {
            process.kill();
        }
        self.wait(fault.duration).await;
        let process = self.target_process(fault, master);
        if frozen {
            process.resume();
        } else {
            process.start();
        }
        let ending = if frozen { Ending::Frozen } else { Ending::Killed };
        self.losses.push(Loss { incarnation: incarnation.clone(), ending, from_ms, to_ms: now_ms() });
        incarnation.split('.').next().unwrap_or_default().to_owned()
    }

    fn target_process(&mut self, fault: PlannedFault, master: usize) -> &mut Process {
        let of = |many: usize| fault.target % many;
        match fault.kind {
            WorkerKilled | WorkerFrozen => &mut self.fleet.workers[of(3)],
            TrackerKilled | TrackerFrozen => &mut self.fleet.trackers[of(2)],
            ApiKilled | ApiFrozen => &mut self.fleet.apis[of(2)],
            BrokerKilled | BrokerFrozen => &mut self.kafka.brokers[of(3)],
            RedisMasterKilled | RedisMasterFrozen => &mut self.redis.servers[master],
            RedisReplicaKilled => &mut self.redis.servers[1 - master],
            SentinelKilled => &mut self.redis.sentinel,
            other => unreachable!("{other:?} has no single process as target"),
        }
    }

    async fn disturb_link(&mut self, fault: PlannedFault) -> String {
        let (state, is_kafka) = match fault.kind {
            KafkaSlow => (LinkState::Slow(fault.latency), true),
            KafkaSilent => (LinkState::Silent, true),
            KafkaCut => (LinkState::Cut, true),
            RedisSlow => (LinkState::Slow(fault.latency), false),
            RedisSilent => (LinkState::Silent, false),
            _ => (LinkState::Cut, false),
        };
        let number = if is_kafka { fault.target % 3 } else { self.redis.master().await };
        let link = |environment: &Self, state| {
            let proxies: &[Proxy] = if is_kafka { &environment.kafka.proxies } else { &environment.redis.proxies };
            proxies[number].set(state);
        };
        link(self, state);
        self.wait(fault.duration).await;
        link(self, LinkState::Open);
        let target = if is_kafka { "broker" } else { "redis" };
        match state {
            LinkState::Slow(latency) => format!("{target}-{}, by {} ms each way", number + 1, latency.as_millis()),
            _ => format!("{target}-{}", number + 1),
        }
    }

    /// Stops and starts all processes of a role, one by one.
    async fn restart_one_by_one(&mut self, kind: Kind) -> String {
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
            let ended = role.stop(DRAIN).await;
            killed += u32::from(!ended);
            role.start();
            let ending = if ended { Ending::Stopped } else { Ending::Killed };
            self.losses.push(Loss { incarnation, ending, from_ms, to_ms: now_ms() });
            self.wait(APART).await;
        }
        match killed {
            0 => format!("all {many}"),
            killed => format!("all {many}; {killed} did not exit within {} s", DRAIN.as_secs()),
        }
    }
}
