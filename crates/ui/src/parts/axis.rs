//! Axis of times: the range that a timeline shows, and its round times.

use maud::{Markup, html};

pub(super) use super::times::clock_text;
use super::times::{formatted, offset_ms};

/// Width of a drawing in its own units.
pub(super) const WIDTH: i64 = 1_000;
/// Maximum number of round times on an axis.
const MAX_TICKS: i64 = 6;
/// Parts of the range of an open tree to which its end is rounded, so that not every look at it is another page.
const PARTS: i64 = 200;
/// Part of the passed time that the axis shows of the future.
const FUTURE: i64 = 4;
/// Distance from now of texts on the axis that do not overlap its text, also where they have milliseconds.
const TEXT_WIDTH: i64 = 180;
/// Width of a character of a text.
const CHAR_WIDTH: i64 = 13;
/// The same on the axis of a phone.
const NARROW_CHAR_WIDTH: i64 = 23;

const SECOND: i64 = 1_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
/// Distances of round times, each at most twice the one before: of the smallest that is wide enough an axis has three at least.
#[rustfmt::skip]
const STEPS: [i64; 29] = [
    1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500,
    SECOND, 2 * SECOND, 3 * SECOND, 5 * SECOND, 10 * SECOND, 15 * SECOND, 30 * SECOND,
    MINUTE, 2 * MINUTE, 3 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE,
    HOUR, 2 * HOUR, 3 * HOUR,
];

/// Range of times that a drawing shows, epoch milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Range {
    pub first: i64,
    pub end: i64,
    /// Rounded time of the rendering, if the tree is open.
    pub now: Option<i64>,
}

impl Range {
    /// Range of a tree that has ended.
    pub(super) fn ended(first: i64, last: i64) -> Self {
        Self { first, end: last.max(first + 1), now: None }
    }

    /// Range of an open tree, up to now. `due`: the last time that is known of its future, of which a part is shown.
    pub(super) fn open(first: i64, last: i64, now_ms: i64, due: Option<i64>) -> Self {
        // Times of machines whose clocks are ahead are in the range.
        let passed = (now_ms.max(last) - first).max(1);
        let step = rounding(passed);
        let now = first + (passed as u64).div_ceil(step as u64) as i64 * step;
        let end = due.map_or(now, |due| due.clamp(now, now + (now - first) / FUTURE));
        Self { first, end, now: Some(now) }
    }

    /// The part of the range between two times.
    pub(in super::super) fn part(self, from: Option<i64>, to: Option<i64>) -> Self {
        let first = from.map_or(self.first, |from| from.clamp(self.first, self.end - 1));
        let end = to.map_or(self.end, |to| to.clamp(first + 1, self.end));
        Self { first, end, ..self }
    }

    /// First and second half.
    pub(super) const fn halves(self) -> [(i64, i64); 2] {
        let middle = self.first + self.length() / 2;
        [(self.first, middle), (middle, self.end)]
    }

    /// Whether a span is in the range, at least in part.
    pub(super) const fn shows(self, from: i64, to: i64) -> bool {
        from <= self.end && to >= self.first
    }

    pub(super) const fn length(self) -> i64 {
        self.end - self.first
    }

    /// End of what is known: now, or the end of the tree.
    pub(super) fn known_end(self) -> i64 {
        self.now.unwrap_or(self.end)
    }

    /// Position of a time in the drawing.
    pub(super) fn position(self, at: i64) -> i64 {
        let passed = i128::from(at.clamp(self.first, self.end) - self.first);
        (passed * i128::from(WIDTH) / i128::from(self.length())) as i64
    }

    /// Round times in the range, which are those of the clocks of the zone.
    fn ticks(self) -> impl Iterator<Item = i64> {
        let (step, offset) = (self.step(), offset_ms(self.first));
        let first = ((self.first + offset) as u64).div_ceil(step as u64) as i64 * step - offset;
        (0..MAX_TICKS).map(move |n| first + n * step).take_while(move |at| *at <= self.end)
    }

    fn step(self) -> i64 {
        let is_enough = |step: &i64| self.end / step - (self.first - 1) / step <= MAX_TICKS;
        let longer = std::iter::successors(Some(6 * HOUR), |step| step.checked_mul(2));
        STEPS.into_iter().chain(longer).find(is_enough).unwrap_or(DAY)
    }

    /// Time of a tick, as exact as the distance of ticks needs.
    fn tick_text(self, at: i64) -> String {
        let format = match self.step() {
            DAY.. => "%-d %b",
            MINUTE.. if self.length() > DAY => "%-d %b %H:%M",
            MINUTE.. => "%H:%M",
            SECOND.. => "%H:%M:%S",
            _ => "%H:%M:%S%.3f",
        };
        formatted(at, format)
    }
}

/// Step to which the end of a range is rounded: a power of two in seconds, between a part of the range and half of that, and at
/// least a second, which is what the text of the time shows.
fn rounding(passed: i64) -> i64 {
    let part = (passed / PARTS / SECOND).max(1);
    SECOND << (63 - part.leading_zeros())
}

/// Round times of a range, and now if the tree is open. Positions are in percent, so that the texts keep their proportions.
pub(super) fn axis(range: Range) -> Markup {
    let now = range.now.filter(|now| range.shows(*now, *now));
    let now_position = now.map(|now| range.position(now));
    let is_free = |position: i64| now_position.is_none_or(|now| (now - position).abs() >= TEXT_WIDTH);
    let mut text_end = 0;
    let mut text_of = |at: i64, position: i64| {
        let text = Some(range.tick_text(at)).filter(|_| is_free(position))?;
        let (start, end) = extent(position, &text);
        (start >= text_end).then(|| {
            text_end = end;
            label("tick", position, &text)
        })
    };
    html! {
        svg.ticks role="img" aria-label="times" {
            @for at in range.ticks() {
                @let position = range.position(at);
                (mark("tick", position))
                @if let Some(text) = text_of(at, position) { (text) }
            }
            @if let (Some(at), Some(position)) = (now, now_position) {
                (mark("now", position)) (label("now", position, &format!("now {}", clock_text(at))))
            }
        }
    }
}

fn mark(class: &str, position: i64) -> Markup {
    let x = percent(position);
    html! { line class=(class) x1=(x) x2=(x) y1="16" y2="20" {} }
}

/// Part of a text that is at its position: at the ends of the axis it is beside it, so that no narrow axis cuts it.
fn anchor(position: i64, text: &str) -> &'static str {
    let half = (text.chars().count() as i64 * NARROW_CHAR_WIDTH / 2).max(60);
    match position {
        _ if position < half => "start",
        _ if position > 1_000 - half => "end",
        _ => "middle",
    }
}

/// First and last position that a text covers.
fn extent(position: i64, text: &str) -> (i64, i64) {
    let width = text.chars().count() as i64 * CHAR_WIDTH;
    let start = match anchor(position, text) {
        "start" => position,
        "end" => position - width,
        _ => position - width / 2,
    };
    (start, start + width)
}

/// Text at a position.
fn label(class: &str, position: i64, text: &str) -> Markup {
    let anchor = anchor(position, text);
    html! { text class=(class) x=(percent(position)) y="12" text-anchor=(anchor) { (text) } }
}

fn percent(position: i64) -> String {
    format!("{}.{}%", position / 10, position % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: i64 = 1_769_860_800_000;

    #[test]
    fn axis_has_three_to_six_round_times() {
        for length in [7, 40, 999, 12_345, 61_000, 3_600_000, 86_400_000, 90_000_000, 31_536_000_000] {
            for first in [FIRST, FIRST + 1, FIRST + 12_345_678] {
                let ticks = Range::ended(first, first + length).ticks().count();
                assert!((3..=6).contains(&ticks), "{ticks} in {length} ms from {first}");
            }
        }
        let axis = axis(Range::ended(FIRST, FIRST + 10_000)).into_string();
        for text in ["12:00:02", "12:00:10", "x=\"20.0%\"", "text-anchor=\"end\""] {
            assert!(axis.contains(text), "{text} is missing in {axis}");
        }
    }

    #[test]
    fn text_near_an_end_is_beside_its_position() {
        for (position, text, anchored) in [
            (90, "20:44:53.200", "start"),
            (90, "20:44", "middle"),
            (880, "20:44:53.200", "end"),
            (500, "20:44", "middle"),
        ] {
            assert_eq!(anchor(position, text), anchored, "{text} at {position}");
        }
    }

    #[test]
    fn texts_of_round_times_do_not_overlap() {
        for length in [7, 40, 100, 999, 12_345, 61_000, 3_600_000, 90_000_000] {
            for first in (0..50).map(|n| FIRST + n * length / 50) {
                let drawn = axis(Range::ended(first, first + length)).into_string();
                let texts = drawn.split("<text").skip(1).map(|text| {
                    let after = |mark: &str| text.split_once(mark).map(|(_, rest)| rest).unwrap();
                    let position = after("x=\"").split_once('%').unwrap().0.replace('.', "").parse::<i64>().unwrap();
                    extent(position, after(">").split_once('<').unwrap().0)
                });
                let extents: Vec<_> = texts.collect();
                assert!(extents.len() >= 2, "{drawn}");
                assert!(extents.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{extents:?} in {drawn}");
            }
        }
    }

    #[test]
    fn range_of_an_open_tree_ends_now_in_steps() {
        let open = |passed: i64| Range::open(FIRST, FIRST, FIRST + passed, None);
        assert_eq!((open(120_400).end, open(120_600).end), (FIRST + 121_000, FIRST + 121_000));
        assert_eq!((open(3_600_000).end, open(3_615_000).end), (FIRST + 3_600_000, FIRST + 3_616_000));
        let ends: std::collections::BTreeSet<i64> = (0..3_600).map(|s| open(36_000_000 + s * 1_000).end).collect();
        assert!(ends.len() <= 30, "{} different pages in an hour", ends.len());
        let axis = axis(open(120_400)).into_string();
        assert!(axis.contains("now 12:02:01") && axis.contains("12:01:30"), "{axis}");
        assert!(!axis.contains(">12:02:00"), "it overlaps the text of now: {axis}");
    }

    #[test]
    fn part_of_a_range_is_inside_it() {
        let range = Range::ended(FIRST, FIRST + 10_000);
        let part = |from: i64, to: i64| {
            let part = range.part(Some(FIRST + from), Some(FIRST + to));
            (part.first - FIRST, part.end - FIRST)
        };
        assert_eq!(
            (part(2_000, 5_000), part(-5, 99_999), part(5_000, 2_000)),
            ((2_000, 5_000), (0, 10_000), (5_000, 5_001))
        );
        assert_eq!(part(20_000, 30_000), (9_999, 10_000));
        assert!(
            !axis(Range::open(FIRST, FIRST, FIRST + 10_000, None).part(None, Some(FIRST + 5_000)))
                .into_string()
                .contains("now")
        );
    }

    #[test]
    fn future_of_an_open_tree_takes_a_fifth_at_most() {
        let open = |due: i64| Range::open(FIRST, FIRST, FIRST + 100_000, Some(FIRST + due)).end - FIRST;
        assert_eq!((open(50_000), open(110_000), open(9_000_000)), (100_000, 110_000, 125_000));
    }
}
