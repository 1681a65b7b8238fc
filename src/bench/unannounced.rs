//! `bench foreign`: tasks of producers that announce nothing. How long after its record each shows as queued.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::bail;

use super::child_role::ChildRole;
use super::fleet::partitions;
use super::latency::percentile;
use super::load::{self, Filler};
use super::process::Process;
use super::{BenchTopics, EVENTS_PARTITIONS, NOOP, ROUND_DEADLINE, Report, Services, blocking};
use crate::broker::ProducerRecord;
use crate::model::record::state::State;
use crate::store::Store;
use crate::store::redis::Redis;

/// Published at once.
const TICK: Duration = Duration::from_millis(10);
/// How often the store is asked how many show.
const LOOK: Duration = Duration::from_millis(10);

#[derive(Clone, Debug, clap::Args)]
pub struct Unannounced {
    /// Tasks published per second.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    pub rate: u32,
    /// For how long, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub seconds: u32,
}

pub async fn unannounced(bench: &Unannounced, site: &Services) -> anyhow::Result<Report> {
    let settings = [
        ("published", format!("{}/s for {} s", bench.rate, bench.seconds)),
        ("events partitions", EVENTS_PARTITIONS.to_string()),
        ("params", "200 B".into()),
    ];
    let mut report = Report::new("foreign", settings.map(|(name, value)| (name.to_owned(), value)).to_vec());
    let at = site.linger(5);
    let ground = blocking(move || BenchTopics::prepare(&at, EVENTS_PARTITIONS, EVENTS_PARTITIONS)).await?;
    let prefix = ground.names.prefix.clone();
    let store = site.redis(&prefix)?;
    let tracker = ChildRole::Tracker { site: site.clone(), prefix, events_partitions: EVENTS_PARTITIONS };
    let mut tracker = Process::start("tracker", &tracker)?;
    // The first one shows that the tracker reads.
    let (warm, bench) = (Unannounced { rate: 100, seconds: 1 }, bench.clone());
    let (ground, _) = publish(ground, &warm, 0).await?;
    shown(&store, &mut tracker, u64::from(warm.rate)).await?;
    let before = u64::from(warm.rate);
    let all = before + u64::from(bench.rate) * u64::from(bench.seconds);
    let (published, seen) = tokio::join!(publish(ground, &bench, before), shown(&store, &mut tracker, all));
    let ((ground, published), seen) = (published?, seen?);
    let late = lateness(&published, &seen);
    for (name, permille) in [("p50", 500), ("p99", 990), ("max", 1_000)] {
        report.add(&format!("queued after, {name}"), "ms", vec![percentile(late.clone(), permille)]);
    }
    report.redis = Some(store.usage().await?.version);
    report.checked = true;
    blocking(move || {
        let stopped = tracker.stop();
        drop(ground);
        stopped
    })
    .await?;
    store.clear().await?;
    Ok(report)
}

/// How many there were in all, and since when.
type Steps = Vec<(Instant, u64)>;

/// Publishes at an even rate, nothing but ids and params.
async fn publish(ground: BenchTopics, bench: &Unannounced, before: u64) -> anyhow::Result<(BenchTopics, Steps)> {
    let (rate, count) = (u64::from(bench.rate), u64::from(bench.rate) * u64::from(bench.seconds));
    blocking(move || {
        let (filler, topic, params) = (Filler::new(&ground)?, ground.names.tasks(NOOP), load::params());
        let (began, mut sent, mut steps) = (Instant::now(), 0, Steps::new());
        while sent < count {
            let due = (began.elapsed().as_millis() as u64 * rate / 1_000).min(count);
            for n in sent..due {
                let id = format!("foreign-{:012}", before + n);
                let headers: [(&str, &[u8]); 1] = [("ce_id", id.as_bytes())];
                let (key, value) = (Some(id.as_bytes()), Some(params.as_bytes()));
                filler.send(&ProducerRecord { topic: &topic, partition: None, key, value, headers: &headers })?;
            }
            if due > sent {
                steps.push((Instant::now(), before + due));
            }
            sent = due;
            std::thread::sleep(TICK);
        }
        filler.end()?;
        Ok((ground, steps))
    })
    .await
}

/// How many show as queued, until these do.
async fn shown(store: &Redis, tracker: &mut Process, count: u64) -> anyhow::Result<Steps> {
    let (mut steps, until) = (Steps::new(), Instant::now() + ROUND_DEADLINE);
    loop {
        let counts = store.counts(&partitions()).await?;
        let queued: u64 = counts.iter().filter(|count| count.state == State::Queued).map(|count| count.count).sum();
        if steps.last().is_none_or(|(_, last)| *last < queued) {
            steps.push((Instant::now(), queued));
        }
        if queued >= count {
            return Ok(steps);
        }
        tracker.check()?;
        if Instant::now() > until {
            bail!("{queued} of {count} tasks show after {} s", ROUND_DEADLINE.as_secs());
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// In ms, of each step of publishing: from there until so many showed.
fn lateness(published: &Steps, seen: &Steps) -> Vec<f64> {
    let mut seen: VecDeque<_> = seen.iter().collect();
    let mut late = Vec::with_capacity(published.len());
    for (at, count) in published {
        while seen.front().is_some_and(|(_, shown)| shown < count) {
            seen.pop_front();
        }
        late.extend(seen.front().map(|(shown_at, _)| shown_at.saturating_duration_since(*at).as_secs_f64() * 1e3));
    }
    late
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_is_what_shows_later() {
        let began = Instant::now();
        let at = |ms: u64| began + Duration::from_millis(ms);
        let published = vec![(at(0), 10), (at(10), 20), (at(20), 30)];
        let seen = vec![(at(5), 12), (at(30), 25), (at(31), 30)];
        assert_eq!(lateness(&published, &seen), [5.0, 20.0, 11.0]);
    }
}
