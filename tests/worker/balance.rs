//! Distribution of tasks over workers.

use crate::worker::fleet::{Fleet, Worker, eventually, memory};
use crate::worker::types::Kind;

const WORKERS: usize = 5;
const PARTITIONS: usize = 10;
/// Maximum number of rounds of probes until the partitions are assigned.
const MAX_ROUNDS: usize = 1_000;

/// Workers that share the partitions of a type.
struct Team {
    fleet: Fleet,
    workers: Vec<Worker>,
    /// Number of tasks published so far.
    sent: usize,
}

impl Team {
    /// Starts the workers and waits until each owns two partitions.
    async fn start() -> Self {
        let (fleet, _) = memory(PARTITIONS as u32, &[Kind::echo("echo")]).await;
        let workers = (0..WORKERS).map(|_| fleet.worker()).collect();
        let mut team = Self { fleet, workers, sent: 0 };
        for round in 0..MAX_ROUNDS {
            let probe = async |fleet: &Fleet, n: usize| {
                fleet.send_to("echo", n as i32, &format!("probe-{round}-{n}"), "1").await;
            };
            if team.shares_of(PARTITIONS, probe).await == [2.0; WORKERS] {
                return team;
            }
        }
        panic!("the partitions are not divided evenly after {MAX_ROUNDS} rounds")
    }

    fn finished(&self) -> Vec<f64> {
        self.workers.iter().map(|worker| worker.metric("kafleet_tasks_finished_total", "succeeded")).collect()
    }

    /// Publishes tasks and returns how many of them each worker has run.
    async fn shares_of(&mut self, count: usize, send: impl AsyncFn(&Fleet, usize)) -> Vec<f64> {
        self.sent += count;
        let (team, before) = (&*self, self.finished());
        for n in 0..count {
            send(&team.fleet, n).await;
        }
        eventually("all tasks have ended", async || team.finished().iter().sum::<f64>() >= team.sent as f64).await;
        team.finished().iter().zip(before).map(|(now, before)| now - before).collect()
    }

    async fn stop(self) {
        for worker in self.workers {
            worker.stop().await;
        }
    }
}

/// Ten tasks for five workers are two for each, as with a round robin.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_without_a_key_are_divided_evenly() {
    let mut team = Team::start().await;
    let send = async |fleet: &Fleet, _| _ = fleet.send_record("echo", None, None, Some(b"1"), &[]).await;
    let shares = team.shares_of(10, send).await;
    assert_eq!(shares, [2.0; WORKERS]);
    team.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_with_many_keys_are_divided_by_their_hashes() {
    const TASKS: usize = 2_000;
    let mut team = Team::start().await;
    let send = async |fleet: &Fleet, n| _ = fleet.send("echo", &format!("t{n}"), "1").await;
    let shares = team.shares_of(TASKS, send).await;
    let even = (TASKS / WORKERS) as f64;
    assert!(shares.iter().all(|share| (share - even).abs() < even * 0.2), "{shares:?}");
    team.stop().await;
}
