//! Signs of life of an attempt: the newest of its events, and the heartbeats that list it.

use kafleet_fleet::control::heartbeat::Heartbeat;
use kafleet_model::event::{Event, Kind};
use kafleet_model::json::RawJson;
use kafleet_model::record::HistoryEntry;
use kafleet_model::units::number::grouped;

use crate::read::consistency::TaskView;
use crate::state::Api;

/// Time without a sign of life from which an attempt is called silent: several heartbeats of its worker.
const SILENT_MS: i64 = 30_000;

/// Last sign of life of an attempt.
pub(super) struct SignOfLife {
    pub at_ms: i64,
    /// Words for its source, with the progress of the attempt.
    source: String,
}

impl SignOfLife {
    /// Newest sign of an attempt: an event in its history, its last event, such as progress or lines of its log, or a heartbeat
    /// of its worker that lists it. `heartbeat`: with the time at which it was received.
    pub(super) fn newest(
        task: &TaskView,
        last_event: Option<&Event>,
        heartbeat: Option<&(i64, Heartbeat)>,
    ) -> Option<Self> {
        let is_of_attempt = |entry: &&HistoryEntry| entry.run == task.record.run && entry.worker.is_some();
        let of_history = task.record.history.entries.iter().filter(is_of_attempt);
        let of_history = of_history.map(|entry| (entry.at_ms, name_of(entry.kind)));
        let of_event = last_event.map(|event| (event.at_ms, name_of(event.kind())));
        let lists = |heartbeat: &Heartbeat| heartbeat.running.iter().any(|running| running.id == task.id.as_str());
        let of_heartbeat = heartbeat.filter(|(_, heartbeat)| lists(heartbeat));
        let of_heartbeat = of_heartbeat.map(|(received_ms, _)| (*received_ms, "heartbeat of its worker".to_owned()));
        // Of signs at the same time the last one counts, which says more.
        let (at_ms, name) = of_history.chain(of_heartbeat).chain(of_event).max_by_key(|(at_ms, _)| *at_ms)?;
        let source = match task.record.outcome.progress.as_ref().and_then(figures) {
            Some(figures) if name == "progress" => format!("progress {figures}"),
            Some(figures) => format!("{name}; progress {figures}"),
            None => name,
        };
        Some(Self { at_ms, source })
    }

    pub(super) fn is_silent(&self, now_ms: i64) -> bool {
        now_ms.saturating_sub(self.at_ms) >= SILENT_MS
    }

    /// Clause about the sign. Silence is named only when progress, log and heartbeats are silent.
    pub(super) fn text(&self, now_ms: i64) -> String {
        let seconds = now_ms.saturating_sub(self.at_ms).max(0) / 1_000;
        if !self.is_silent(now_ms) {
            return format!("last sign of life {seconds} s ago ({})", self.source);
        }
        let passed = super::age(seconds * 1_000);
        format!("no progress, log line or heartbeat of the attempt for {passed} (last sign of life: {})", self.source)
    }
}

fn name_of(kind: Kind) -> String {
    kind.name().replace('_', " ")
}

/// `325 of 4,000` for progress of the form `{done, total}`.
fn figures(progress: &RawJson) -> Option<String> {
    let number = |name: &str| progress.slice().member(name)?.text().parse::<u64>().ok();
    Some(format!("{} of {}", grouped(number("done")?), grouped(number("total")?)))
}

/// Newest event that the record includes: also of kinds outside the history, whose times the record does not store. Without
/// Kafka the other signs must do.
pub(super) async fn last_event(api: &Api, task: &TaskView) -> Option<Event> {
    let offset = task.record.folded_to - 1;
    let record = api.reads.broker.read_at(&api.reads.events(task.partition), offset).await.ok()??;
    let event = Event::decode(record.value.as_deref()?).ok()?;
    (event.id == task.id && event.run == task.record.run && event.worker.is_some()).then_some(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_named_after_several_heartbeats() {
        let sign = |source: &str| SignOfLife { at_ms: 0, source: source.into() };
        assert_eq!(sign("log").text(1_999), "last sign of life 1 s ago (log)");
        assert_eq!(
            sign("started").text(325_000),
            "no progress, log line or heartbeat of the attempt for 325 s (last sign of life: started)"
        );
    }

    #[test]
    fn progress_of_the_usual_form_is_named_with_its_figures() {
        let figures = |json: &str| figures(&RawJson::parse(json.as_bytes()).unwrap());
        assert_eq!(figures(r#"{"done": 325, "total": 4000}"#).as_deref(), Some("325 of 4,000"));
        assert_eq!(figures(r#"{"done": 0, "total": 1000000}"#).as_deref(), Some("0 of 1,000,000"));
        assert_eq!((figures("7"), figures(r#"{"done": 1}"#)), (None, None));
    }
}
