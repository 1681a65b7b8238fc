//! What the workers, and those who steer them, have to do with where a task is.

use crate::api::Api;
use crate::api::documents::{Finding, Reason};
use crate::api::handlers::types::limits_of;
use crate::api::handlers::workers::{at_work, parts};
use crate::api::http::problem::ApiError;
use crate::api::read::consistency::TaskView;
use crate::broker::{BrokerError, Partition};
use crate::control::heartbeat::{Heartbeat, HeartbeatState};
use crate::model::offsets::{Completed, Metadata};
use crate::publish::time_text;
use crate::runtime::now_ms;

use super::count::{Count, Counter};
use super::{age, why_own};

/// The most partitions of a type whose backlog is added up.
const MAX_PARTITIONS: u32 = 256;

impl Api {
    /// What people have told the workers about its type, or about tasks such as this one.
    pub(super) async fn what_forbids(&self, task: &TaskView) -> Result<Vec<Finding>, ApiError> {
        self.known_orders().await?;
        let Some(task_type) = task.node.task_type.as_deref() else { return Ok(Vec::new()) };
        let orders = self.control.orders();
        let because = |reason: &Option<String>| reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        let paused = orders.paused.get(task_type).map(|pause| {
            let since = time_text(pause.at_ms);
            let why = format!("its type `{task_type}` is paused since {since}{}", because(&pause.reason));
            Finding::new(Reason::Paused, format!("{why}; `kafleet types resume {task_type}` goes on"))
        });
        let tags = task.node.policy.as_ref().map_or(&[][..], |policy| &policy.tags);
        let killed = orders.kill_of(&task.id, task_type, tags).map(|(name, kill)| {
            Finding::new(Reason::Killed, format!("the kill switch `{name}` is on{}: it will be cancelled", because(&kill.reason)))
        });
        Ok(paused.into_iter().chain(killed).collect())
    }

    /// Who could take a queued task, and what keeps them from taking more.
    pub(super) async fn who_works(&self, task: &TaskView) -> Result<Vec<Finding>, ApiError> {
        let Some(task_type) = task.node.task_type.as_deref() else { return Ok(Vec::new()) };
        let policy = self.registry.get(task_type).map(|registered| &registered.policy);
        let limits = limits_of(task_type, &self.control.orders(), policy);
        let beats = self.roll.beats();
        let Some(work) = at_work(&beats, task_type) else {
            let told = format!("no live worker takes `{task_type}`; start one with `kafleet worker --types {task_type}`");
            let known = self.knows_workers().await?;
            return Ok(known.then(|| Finding::new(Reason::NoWorker, told)).into_iter().collect());
        };
        let mut told = Vec::new();
        if let Some(most) = limits.max_concurrency.filter(|most| work.in_flight >= u64::from(*most)) {
            told.push(format!("`{task_type}` is limited to {most} at once over all workers, and so many run"));
        } else if work.in_flight >= work.slots {
            let (slots, workers) = (work.slots, work.workers);
            told.push(format!("all {slots} slots for `{task_type}` of {workers} live worker(s) are taken"));
        }
        told.extend(limits.rate.map(|rate| format!("`{task_type}` is limited to {rate} attempts")));
        let mut findings =
            task.node.position.map_or_else(Vec::new, |place| what_stands_still(&beats, task_type, place.partition));
        findings.extend(told.into_iter().map(|told| Finding::new(Reason::Limited, told)));
        Ok(findings)
    }

    /// Every heartbeat that there was a moment ago has been read.
    async fn knows_workers(&self) -> Result<bool, ApiError> {
        let place = Partition::new(self.publisher.names().workers(), 0);
        let ends = self.broker.watermarks(&place).await;
        Ok(ends.is_ok_and(|ends| self.roll.has_read(ends.end)))
    }

    /// What the workers of a type have still to do, over all its partitions. None: there are too many of these.
    pub(super) async fn lag(&self, task_type: &str) -> Result<Option<Count>, ApiError> {
        let partitions = self.partitions_of(task_type).await?;
        if partitions > MAX_PARTITIONS {
            return Ok(None);
        }
        let names = self.publisher.names();
        let (topic, group) = (names.tasks(task_type), names.group(task_type));
        let places: Vec<Partition> = (0..partitions as i32).map(|index| Partition::new(topic.as_str(), index)).collect();
        let lag = self.broker.call(move |broker, deadline| {
            let committed = broker.group_offsets(&group, &places, deadline)?;
            let mut counter = Counter::new(broker, deadline);
            let open = places.iter().zip(committed).map(|(place, committed)| {
                let ends = broker.ends(place, deadline)?;
                let completed = match committed {
                    Some(at) => Metadata::decode(at.offset, &at.metadata)
                        .map_or_else(|| Completed::starting_at(at.offset), |metadata| metadata.completed),
                    None => Completed::starting_at(ends.first),
                };
                counter.open_below(place, &completed, ends.end)
            });
            open.sum::<Result<Count, BrokerError>>()
        });
        Ok(Some(lag.await?))
    }

    /// What is known of a task that a worker has.
    pub(super) fn why_held(&self, task: &TaskView) -> Finding {
        let finding = why_own(task);
        let (Some(worker), Reason::Running | Reason::WorkerSilent) = (task.node.worker.as_deref(), finding.code) else {
            return finding;
        };
        let now = now_ms();
        let beat = self.roll.beats().into_iter().find(|(_, beat)| beat.id == worker);
        let names_it = |(_, beat): &&(i64, Heartbeat)| beat.running.iter().any(|running| running.id == task.id.as_str());
        let named_ms = beat.as_ref().filter(names_it).map(|(heard, _)| *heard);
        let last_ms = task.node.history.iter().map(|entry| entry.at_ms).chain(named_ms).max();
        let quiet_ms = last_ms.map(|last| now.saturating_sub(last).max(0) as u64);
        let heard =
            beat.map_or_else(|| "; no heartbeat of its worker is known".to_owned(), |(heard, beat)| seen(&beat, now - heard));
        Finding { quiet_ms, message: finding.message + &heard, ..finding }
    }
}

/// What the worker of a partition says of why it starts nothing there.
fn what_stands_still(beats: &[(i64, Heartbeat)], task_type: &str, partition: i32) -> Vec<Finding> {
    let mut findings = Vec::new();
    for part in parts(beats, task_type).filter(|part| part.partitions.contains(&partition)) {
        findings.extend(part.refused.contains(&partition).then(|| {
            let why = format!("its worker does not know where to begin in partition {partition}, and takes nothing from it");
            let what = format!("`kafleet offsets init {task_type}/{partition} --at earliest|OFFSET|TIME` tells it");
            Finding::new(Reason::Refused, format!("{why}; {what}"))
        }));
        findings.extend(part.stopped.as_ref().map(|why| {
            let what = format!("`kafleet types pause {task_type}` and then `resume` make it go on");
            Finding::new(
                Reason::Stopped,
                format!("its worker starts no more of `{task_type}`: {why}; find the cause, then {what}"),
            )
        }));
    }
    findings
}

/// What was last observed of a worker.
fn seen(beat: &Heartbeat, ago_ms: i64) -> String {
    let said = match beat.state {
        HeartbeatState::Running => "",
        HeartbeatState::Draining => ", and said that it was stopping",
        HeartbeatState::Stopped => ", and said that it had stopped",
    };
    format!("; its worker, process {} on `{}`, was last heard of {} ago{said}", beat.pid, beat.host, age(ago_ms))
}
