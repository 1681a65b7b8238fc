use kafleet_config::Role;
use kafleet_model::units::time::time_text;

use super::*;

const MINUTE: i64 = 60_000;
const DAY: i64 = 86_400_000;

fn point(at_ms: i64, opened: u64, succeeded: u64) -> StatsPoint {
    StatsPoint {
        at: time_text(at_ms),
        opened,
        succeeded,
        failed: 0,
        cancelled: 0,
        expired: 0,
        dropped: 0,
        retried: 0,
        duplicates: 0,
        busy_ms: 0,
        open: 3,
        wait: Durations { count: 1, p50: Some(2), p95: Some(5), p99: Some(8), max: Some(9) },
        run: Durations::default(),
    }
}

fn stats(step_ms: i64, complete_to_ms: i64, points: Vec<StatsPoint>) -> Stats {
    Stats {
        step: Millis(step_ms.unsigned_abs()),
        complete_to: time_text(complete_to_ms),
        exact_from: None,
        series: vec![StatsSeries { task_type: "*".into(), points }],
        left_out: 0,
        incomplete: Vec::new(),
    }
}

fn view() -> View {
    View::for_tests(Role::Read)
}

fn shown(range: &ChartRange, stats: &Stats, past: Option<&Past<'_>>, changes: &[FleetChange]) -> String {
    charts(&view(), "/", range, stats, past, changes).into_string()
}

#[test]
fn open_minute_is_scaled_to_its_elapsed_part() {
    let now = DAY + 2 * MINUTE + MINUTE / 4;
    let points = vec![point(DAY, 9, 380), point(DAY + MINUTE, 9, 400), point(DAY + 2 * MINUTE, 9, 90)];
    let stats = stats(MINUTE, now, points);
    let range = ChartRange::named(None, Compare::None, now);
    let line = Points::new(&stats, &range, None).rates("succeeded", "good", LineStyle::Solid, |point| point.succeeded);
    assert_eq!(line.projected, Some(360), "90 in a quarter of the minute");
    let page = shown(&range, &stats, None, &[]);
    assert!(page.contains("<path class=\"line good\" d=\"M166 5h1L500 0\">"), "the line ends at 400: {page}");
    assert!(page.contains("tasks a minute") && page.contains("00:02, so far, succeeded 90"), "{page}");
}

#[test]
fn first_seconds_of_a_minute_are_not_scaled() {
    let now = DAY + MINUTE + 14_000;
    let stats = stats(MINUTE, now, vec![point(DAY, 9, 9), point(DAY + MINUTE, 1, 1)]);
    let range = ChartRange::named(None, Compare::None, now);
    let line = Points::new(&stats, &range, None).rates("opened", "good", LineStyle::Solid, |point| point.opened);
    assert_eq!(line.projected, None);
}

#[test]
fn charts_of_a_day_name_the_day_and_the_span_of_their_counts() {
    let points = (0..3).map(|n| point(DAY + n * 600_000, 1, 1)).collect();
    let stats = stats(600_000, 2 * DAY, points);
    let page = shown(&ChartRange::named(Some("24h"), Compare::None, 2 * DAY), &stats, None, &[]);
    assert!(page.contains("<span>2 Jan 00:00</span><span>2 Jan 00:20</span>"), "{page}");
    assert!(page.contains("tasks per 10 min"), "{page}");
}

#[test]
fn rate_and_gauge_have_charts_of_their_own() {
    let stats = stats(MINUTE, 2 * DAY, vec![point(DAY, 500, 1), point(DAY + MINUTE, 500, 1)]);
    let page = shown(&ChartRange::named(None, Compare::None, 2 * DAY), &stats, None, &[]);
    assert!(page.contains("aria-label=\"Open: open 3 to 3\""), "{page}");
    assert!(page.contains("aria-label=\"Opened: opened 500 to 500\""), "{page}");
    assert!(page.contains("tasks open by themselves") && page.contains("own results in this range"), "{page}");
    assert!(page.contains("class=\"band running\"") && page.contains("p95 5 ms"), "{page}");
}

#[test]
fn comparison_draws_a_pale_line_and_changes_of_the_totals() {
    let (now, earlier) = (8 * DAY + 2 * MINUTE, 7 * DAY);
    let current = stats(MINUTE, now, vec![point(8 * DAY, 56, 0), point(8 * DAY + MINUTE, 56, 0)]);
    let earlier = stats(3_600_000, now, vec![point(earlier, 3_000, 60)]);
    let past = Past::new(Compare::Yesterday, &earlier).unwrap();
    let page = shown(&ChartRange::named(None, Compare::Yesterday, now), &current, Some(&past), &[]);
    assert!(page.contains("class=\"line earlier neutral\"") && page.contains("opened yesterday"), "{page}");
    assert!(page.contains("<strong>112</strong> opened<span class=\"change\"> ▲ 12 %</span>"), "{page}");
    assert!(page.contains("Total yesterday</th><td data-label=\"Opened\" class=\"number\">100</td>"), "{page}");
    assert!(page.contains("shares of points of 1h"), "{page}");
    let tiles = last_minute(&view(), Some(&current.series[0].points[1]), Some(&past)).into_string();
    assert!(tiles.contains("56<span class=\"change\"> ▲ 12 %</span>"), "{tiles}");
    assert!(
        tiles.contains("title=\"opened in the last full minute\"") && tiles.contains(">opened last minute<"),
        "{tiles}"
    );
}

#[test]
fn changes_outside_of_the_range_are_not_marked() {
    let stats = stats(MINUTE, 2 * DAY, vec![point(DAY, 1, 1), point(DAY + MINUTE, 1, 1)]);
    let changes = [DAY - 1, DAY + MINUTE].map(|at_ms| FleetChange { at_ms, text: format!("pause at {at_ms}") });
    let page = shown(&ChartRange::named(None, Compare::None, 2 * DAY), &stats, None, &changes);
    assert!(page.contains(&format!("pause at {}", DAY + MINUTE)), "{page}");
    assert!(!page.contains(&format!("pause at {}", DAY - 1)), "{page}");
}
