//! Adaptive limit of the dispatcher's type: this worker's share of what the learner has decided, and the counts that it
//! reports for the next decision.

use kafleet_fleet::control::ControlState;
use kafleet_handlers::TIMEOUT;
use kafleet_model::adaptive::TICK_MS;
use kafleet_model::adaptive::setting::{Adaptive, AdaptiveOverride};
use kafleet_model::adaptive::share::{AdaptiveShare, ShareOf};
use kafleet_model::worker_status::AdaptiveStatus;
use kafleet_runtime::now_ms;
use tokio::time::Instant;

use crate::attempt::AttemptEnd;
use crate::consumer::assignment::Assignment;
use crate::type_metrics::TypeGauges;

/// Share of the adaptive limit, if the type has one.
pub(super) struct AdaptiveSlots {
    active: Option<Box<ActiveShare>>,
    gauges: TypeGauges,
}

struct ActiveShare {
    setting: Adaptive,
    /// Limit of the fleet.
    limit: f64,
    is_fixed: bool,
    share: AdaptiveShare,
    /// Zero of the clock of `share`.
    base: Instant,
}

impl ActiveShare {
    fn ms(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.base).as_millis() as u64
    }
}

impl AdaptiveSlots {
    pub(super) fn new(gauges: TypeGauges) -> Self {
        Self { active: None, gauges }
    }

    /// Returns whether the type has an adaptive limit now.
    pub(super) fn is_on(&self) -> bool {
        self.active.is_some()
    }

    /// Applies the setting of the type, the decision of the learner and the limit that an operator has set.
    pub(super) fn set(
        &mut self,
        task_type: &str,
        setting: Option<&Adaptive>,
        assignment: &Assignment,
        state: &ControlState,
    ) {
        let forced = state.slots.get(task_type).and_then(|slots| slots.adaptive);
        let learned = state.adaptives.get(task_type).map(|record| &record.learned);
        let fixed = |limit| (0, limit, TICK_MS.0);
        let (round, limit, tick_ms) = match (setting, forced) {
            (None, None) | (_, Some(AdaptiveOverride::Off(_))) => {
                if self.active.take().is_some() {
                    self.gauges.set_adaptive_limit(None);
                }
                return;
            }
            (_, Some(AdaptiveOverride::Limit(limit))) => fixed(f64::from(limit)),
            (Some(setting), None) => match learned {
                Some(learned) => (learned.round, learned.limit, learned.tick_ms),
                None => fixed(f64::from(setting.min)),
            },
        };
        let now = Instant::now();
        let owned = assignment.owned.iter().filter_map(|partition| u32::try_from(*partition).ok()).collect();
        let share = ShareOf { round, limit, tick_ms, owned, of: assignment.of };
        let epoch_ms = u64::try_from(now_ms()).unwrap_or_default();
        let active = self.active.get_or_insert_with(|| {
            let (setting, share) = (Adaptive::default(), AdaptiveShare::new(share.clone(), 0, epoch_ms));
            Box::new(ActiveShare { setting, limit, is_fixed: false, share, base: now })
        });
        active.setting = setting.cloned().unwrap_or_default();
        (active.limit, active.is_fixed) = (limit, forced.is_some());
        let since_ms = active.ms(now);
        active.share.set(share, since_ms, epoch_ms.saturating_sub(since_ms));
        self.gauges.set_adaptive_limit(Some(limit));
    }

    /// Returns whether another attempt may start beside `running` ones. `is_ready`: a task could start.
    pub(super) fn admits(&mut self, running: usize, now: Instant, is_ready: bool) -> bool {
        let Some(active) = &mut self.active else { return true };
        let now_ms = active.ms(now);
        if is_ready {
            return active.share.admits(running, now_ms);
        }
        active.share.idle(now_ms);
        true
    }

    /// Registers the start of an attempt beside `running` others.
    pub(super) fn attempt_started(&mut self, running: usize) {
        if let Some(active) = &mut self.active {
            active.share.attempt_started(running);
        }
    }

    /// Counts the end of an attempt. `is_late`: its result does not count.
    pub(super) fn attempt_ended(&mut self, started_at: Instant, end: &AttemptEnd, is_late: bool) {
        let Some(active) = &mut self.active else { return };
        let is_refused = match end {
            AttemptEnd::Interrupted => return,
            _ if is_late => return,
            AttemptEnd::Answered(Ok(_)) => false,
            AttemptEnd::Answered(Err(failure)) => active.setting.is_refusal(&failure.kind),
            AttemptEnd::TimedOut | AttemptEnd::Stalled(_) => active.setting.is_refusal(TIMEOUT),
        };
        let (started_ms, now_ms) = (active.ms(started_at), active.ms(Instant::now()));
        active.share.attempt_ended(started_ms, now_ms, is_refused);
        if is_refused {
            self.gauges.record_refused();
        }
    }

    /// Time at which more attempts may start.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let active = self.active.as_ref()?;
        let due_ms = active.share.next_due_ms(active.ms(now));
        // A millisecond later, because the clock of the share is in whole milliseconds.
        Some(active.base + std::time::Duration::from_millis(due_ms + 1))
    }

    /// Status for the heartbeat. `slots`: those without this limit.
    pub(super) fn status(&self, slots: usize) -> Option<AdaptiveStatus> {
        let active = self.active.as_ref()?;
        let now_ms = active.ms(Instant::now());
        Some(AdaptiveStatus {
            limit: active.limit,
            fixed: active.is_fixed,
            slots: active.share.slots(now_ms).min(slots) as u32,
            min: active.setting.min,
            target_ms: active.setting.target.map(|target| target.0),
            counts: active.share.counts(now_ms),
        })
    }
}
