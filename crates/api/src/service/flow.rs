//! Flow of types: rates of the last full minutes, and whether the backlog grows or when it is drained.

use std::sync::Arc;

use kafleet_documents::{FlowDocument, FlowVerdict, Stats, StatsPoint, TypeDocument};
use kafleet_model::record::state::State;
use kafleet_model::task::parse_time;
use kafleet_model::units::duration::Millis;
use kafleet_model::units::time::time_text;
use kafleet_runtime::now_ms;

use super::statistics::{Series, StatsQuery, read_stats};
use crate::http::problem::ApiError;
use crate::state::Api;

const MINUTE_MS: i64 = 60_000;
/// Full minutes of which the rates are measured.
const WINDOW: usize = 5;
/// Minutes read: some more than the window, because the newest ones may not be projected yet.
const READ_MINUTES: i64 = 7;
/// Newest minutes of the window, which decide when they contradict all of it.
const NEWEST: usize = 2;
/// Minutes of the window in which a growing backlog has grown.
const GROWN_MINUTES: usize = 3;
/// Difference of what comes in and goes out in the window that may be chance: tasks, and percent.
const CHANCE_TASKS: u64 = 2;
const CHANCE_PERCENT: u64 = 2;

/// Counts of a type in a full minute.
#[derive(Clone, Copy, Debug, Default)]
struct Minute {
    incoming: u64,
    outgoing: u64,
    /// Tasks that were started for the first time.
    started: u64,
    /// Open tasks at the end of the minute.
    open: u64,
}

impl From<&StatsPoint> for Minute {
    fn from(point: &StatsPoint) -> Self {
        // A retry leaves the queue with its failed attempt and enters it again.
        Self {
            incoming: point.opened + point.retried,
            outgoing: point.ended() + point.dropped + point.retried,
            started: point.wait.count,
            open: point.open,
        }
    }
}

/// Tasks of a type that are not finished.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    backlog: u64,
    queued: u64,
    /// Scheduled and retrying tasks, which have been counted as incoming and may not be due.
    delayed: u64,
    is_paused: bool,
    /// No live worker takes the type.
    is_untaken: bool,
}

impl Load {
    fn of(document: &TypeDocument) -> Self {
        let of = |state: State| document.counts.get(&state).copied().unwrap_or_default();
        Self {
            backlog: document.backlog,
            queued: of(State::Queued),
            delayed: of(State::Scheduled) + of(State::Retrying),
            is_paused: document.paused.is_some(),
            is_untaken: document.topic && document.worker_totals.is_none(),
        }
    }
}

/// Verdict, the number of newest minutes that it is based on, and why it is unknown.
struct Judgement {
    verdict: FlowVerdict,
    minutes: usize,
    reason: Option<String>,
}

impl Judgement {
    fn of(verdict: FlowVerdict) -> Self {
        Self { verdict, minutes: WINDOW, reason: None }
    }

    fn unknown(reason: impl Into<String>) -> Self {
        Self { reason: Some(reason.into()), ..Self::of(FlowVerdict::Unknown) }
    }

    /// Verdict on a type that no worker takes: of what has gone out before, nothing follows.
    fn untaken(load: Load) -> Self {
        let verdict = if load.backlog > 0 { FlowVerdict::Stalled } else { FlowVerdict::Unknown };
        Self { reason: Some("no worker takes it".to_owned()), ..Self::of(verdict) }
    }
}

/// Reads the last minutes of each type, which the requests of a second share.
pub async fn last_minutes(api: &Api) -> Result<Arc<Stats>, ApiError> {
    let end = now_ms().div_euclid(MINUTE_MS) * MINUTE_MS;
    let query = StatsQuery {
        series: Series::ByType,
        from_ms: Some(end - READ_MINUTES * MINUTE_MS),
        to_ms: Some(end),
        step: Some(Millis::secs(60)),
    };
    api.queues.minutes.get(Some(end.to_string()), read_stats(api, query)).await
}

/// Flow of a type by the statistics of its last minutes.
pub(crate) fn flow(document: &TypeDocument, stats: &Stats) -> FlowDocument {
    let load = Load::of(document);
    let points = stats.series.iter().find(|series| series.task_type == document.name).map(|series| &*series.points);
    match points {
        Some(points) => measured(&full_minutes(points, &stats.complete_to), load),
        // Without a series nothing has changed since, unless the type is one of those left out.
        None if stats.left_out == 0 => {
            let open = load.backlog + load.delayed;
            let end = now_ms().div_euclid(MINUTE_MS) - WINDOW as i64;
            let minute = |n: usize| ((end + n as i64) * MINUTE_MS, Minute { open, ..Minute::default() });
            measured(&(0..WINDOW).map(minute).collect::<Vec<_>>(), load)
        }
        None => measured(&[], load),
    }
}

/// Newest full minutes that are projected, with their starts.
fn full_minutes(points: &[StatsPoint], complete_to: &str) -> Vec<(i64, Minute)> {
    let complete_to_ms = parse_time(complete_to).unwrap_or_default();
    let starts = points.iter().filter_map(|point| Some((parse_time(&point.at).ok()?, Minute::from(point))));
    let mut full: Vec<(i64, Minute)> = starts.filter(|(at_ms, _)| at_ms + MINUTE_MS <= complete_to_ms).collect();
    full.split_off(full.len().saturating_sub(WINDOW))
}

fn measured(minutes: &[(i64, Minute)], load: Load) -> FlowDocument {
    let (starts, counts): (Vec<i64>, Vec<Minute>) = minutes.iter().copied().unzip();
    let Judgement { verdict, minutes, reason } = judge(&counts, load);
    let newest = counts.len().saturating_sub(minutes);
    let (incoming, outgoing) = sums(&counts[newest..]);
    let length = counts.len().min(minutes).max(1);
    let per_min = |n: u64| n as f64 / length as f64;
    let drains = outgoing.saturating_sub(incoming);
    let drained_in_ms = (verdict == FlowVerdict::Draining && drains > 0)
        .then(|| load.backlog.saturating_mul(length as u64 * MINUTE_MS as u64) / drains);
    FlowDocument {
        in_per_min: per_min(incoming),
        out_per_min: per_min(outgoing),
        backlog: load.backlog,
        verdict,
        drained_in_ms,
        since: time_text(starts.get(newest).copied().unwrap_or_else(now_ms)),
        until: time_text(starts.last().map_or_else(now_ms, |start| start + MINUTE_MS)),
        reason,
    }
}

/// Judges the backlog by the last full minutes, oldest first.
fn judge(minutes: &[Minute], load: Load) -> Judgement {
    let (_, outgoing) = sums(minutes);
    if load.is_paused {
        return Judgement::of(FlowVerdict::Paused);
    }
    if load.is_untaken {
        return Judgement::untaken(load);
    }
    if load.queued == 0 {
        return Judgement::of(FlowVerdict::KeepingUp);
    }
    if minutes.len() < WINDOW {
        return Judgement::unknown(format!("only {} of the last {WINDOW} minutes are counted yet", minutes.len()));
    }
    if outgoing > 0 {
        return judge_rates(minutes, load.delayed);
    }
    if minutes.iter().any(|minute| minute.open == 0) {
        return Judgement::unknown(format!("its tasks are younger than {WINDOW} min"));
    }
    if minutes.iter().any(|minute| minute.started > 0) {
        return Judgement::unknown(format!("tasks have started, but none has ended in the last {WINDOW} min"));
    }
    Judgement::of(FlowVerdict::Stalled)
}

fn judge_rates(minutes: &[Minute], delayed: u64) -> Judgement {
    let (incoming, outgoing) = sums(minutes);
    let newest = &minutes[minutes.len().saturating_sub(NEWEST)..];
    let (newest_in, newest_out) = sums(newest);
    let (verdict, newest_verdict) = (compared(incoming, outgoing), compared(newest_in, newest_out));
    let grown = minutes.iter().filter(|minute| minute.incoming > minute.outgoing).count();
    match (verdict, newest_verdict) {
        _ if compared(incoming.saturating_sub(delayed), outgoing) != verdict => {
            Judgement::unknown(format!("{delayed} scheduled or retrying tasks may not be due"))
        }
        // A burst is over: what has gone out since shows when the backlog is drained.
        (FlowVerdict::Growing, FlowVerdict::Draining) => {
            Judgement { minutes: NEWEST, ..Judgement::of(FlowVerdict::Draining) }
        }
        (FlowVerdict::Growing, _) if grown < GROWN_MINUTES => {
            Judgement::unknown(format!("it has grown in {grown} of the last {WINDOW} minutes only"))
        }
        (FlowVerdict::Draining, FlowVerdict::Growing) => {
            Judgement::unknown("it was drained before and has grown in the last minutes")
        }
        (FlowVerdict::Steady | FlowVerdict::Draining, _) if newest_out == 0 => {
            Judgement::unknown(format!("nothing has gone out in the last {NEWEST} min"))
        }
        (verdict, _) => Judgement::of(verdict),
    }
}

/// Verdict on what has come in and gone out.
fn compared(incoming: u64, outgoing: u64) -> FlowVerdict {
    let chance = CHANCE_TASKS.max(incoming.max(outgoing) * CHANCE_PERCENT / 100);
    if incoming > outgoing + chance {
        FlowVerdict::Growing
    } else if outgoing > incoming + chance {
        FlowVerdict::Draining
    } else {
        FlowVerdict::Steady
    }
}

fn sums(minutes: &[Minute]) -> (u64, u64) {
    minutes.iter().fold((0, 0), |(incoming, outgoing), minute| (incoming + minute.incoming, outgoing + minute.outgoing))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: Load = Load { backlog: 70, queued: 63, delayed: 0, is_paused: false, is_untaken: false };

    fn text_of(incoming: &[u64], outgoing: &[u64], load: Load) -> String {
        let minute = |(n, (incoming, outgoing)): (usize, (&u64, &u64))| {
            let minute = Minute { incoming: *incoming, outgoing: *outgoing, started: *outgoing, open: 70 };
            (n as i64 * MINUTE_MS, minute)
        };
        measured(&incoming.iter().zip(outgoing).enumerate().map(minute).collect::<Vec<_>>(), load).text()
    }

    #[test]
    fn backlog_is_judged_by_what_comes_in_and_goes_out() {
        for (incoming, outgoing, load, text) in [
            ([183; 5], [173; 5], LOAD, "in 183, out 173 a minute: +10, will not drain"),
            ([173; 5], [187; 5], LOAD, "in 173, out 187 a minute: drained in 5 min"),
            ([100; 5], [101; 5], LOAD, "in 100, out 101 a minute: steady"),
            ([0; 5], [0; 5], LOAD, "in 0, out 0 a minute: stalled"),
            ([9; 5], [0; 5], LOAD, "in 9, out 0 a minute: stalled"),
            ([9; 5], [0; 5], Load { is_paused: true, ..LOAD }, "in 9, out 0 a minute: paused"),
            ([9; 5], [1; 5], Load { queued: 0, ..LOAD }, "in 9, out 1 a minute: keeping up"),
            ([0, 900, 0, 0, 0], [100; 5], LOAD, "in 0, out 100 a minute: drained in 42 s"),
            (
                [0, 0, 0, 0, 900],
                [20; 5],
                LOAD,
                "in 180, out 20 a minute: unknown, it has grown in 1 of the last 5 minutes only",
            ),
            (
                [0, 0, 0, 20, 20],
                [100, 100, 100, 0, 0],
                LOAD,
                "in 8, out 60 a minute: unknown, it was drained before and has grown in the last minutes",
            ),
            (
                [20; 5],
                [10; 5],
                Load { delayed: 60, ..LOAD },
                "in 20, out 10 a minute: unknown, 60 scheduled or retrying tasks may not be due",
            ),
            ([183; 5], [100; 5], Load { delayed: 3, ..LOAD }, "in 183, out 100 a minute: +83, will not drain"),
        ] {
            assert_eq!(text_of(&incoming, &outgoing, load), text);
        }
    }

    #[test]
    fn backlog_is_never_well_without_a_worker_or_while_nothing_goes_out() {
        let untaken = |backlog, queued| Load { backlog, queued, is_untaken: true, ..LOAD };
        for (incoming, outgoing, load, text) in [
            ([100; 5], [101; 5], untaken(70, 63), "in 100, out 101 a minute: stalled, no worker takes it"),
            ([0; 5], [0; 5], untaken(0, 0), "in 0, out 0 a minute: unknown, no worker takes it"),
            (
                [1, 0, 0, 1, 0],
                [1, 1, 0, 0, 0],
                LOAD,
                "in 0.4, out 0.4 a minute: unknown, nothing has gone out in the last 2 min",
            ),
            (
                [0; 5],
                [900, 900, 900, 0, 0],
                LOAD,
                "in 0, out 540 a minute: unknown, nothing has gone out in the last 2 min",
            ),
        ] {
            assert_eq!(text_of(&incoming, &outgoing, load), text);
        }
    }

    #[test]
    fn flow_states_the_minutes_that_were_measured() {
        let minutes: Vec<_> = (0..5).map(|n| (n * MINUTE_MS, Minute { open: 70, ..Minute::default() })).collect();
        let flow = measured(&minutes, LOAD);
        assert_eq!((flow.since, flow.until), (time_text(0), time_text(5 * MINUTE_MS)));
    }

    #[test]
    fn backlog_is_unknown_with_too_few_minutes_or_too_young_tasks() {
        assert!(text_of(&[9; 4], &[1; 4], LOAD).ends_with("unknown, only 4 of the last 5 minutes are counted yet"));
        let minutes = |minute: Minute| judge(&[minute; WINDOW], LOAD).reason;
        assert_eq!(minutes(Minute::default()).as_deref(), Some("its tasks are younger than 5 min"));
        let started = minutes(Minute { started: 1, open: 3, ..Minute::default() });
        assert_eq!(started.as_deref(), Some("tasks have started, but none has ended in the last 5 min"));
    }
}
