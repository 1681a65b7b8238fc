//! Range of the charts of a page, and the earlier time with which it is compared, as the URL states them.

use kafleet_model::units::duration::Millis;
use maud::{Markup, html};

use super::View;
use super::times::time_hint;

const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;

/// Names of ranges in the parameter `range`, with their lengths and the lengths of their points.
const RANGES: [(&str, i64, &str); 5] = [
    ("1h", HOUR_MS, "1m"),
    ("3h", 3 * HOUR_MS, "1m"),
    ("24h", DAY_MS, "10m"),
    ("7d", 7 * DAY_MS, "1h"),
    ("30d", 30 * DAY_MS, "1d"),
];

/// Earlier time of the second line of charts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Compare {
    None,
    Yesterday,
    Week,
}

impl Compare {
    const ALL: [Self; 3] = [Self::None, Self::Yesterday, Self::Week];

    /// Comparison of the parameter `compare`; none by default.
    pub(in super::super) fn named(name: Option<&str>) -> Self {
        Self::ALL.into_iter().find(|compare| Some(compare.name()) == name).unwrap_or(Self::None)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Yesterday => "yesterday",
            Self::Week => "week",
        }
    }

    pub(in super::super) const fn words(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Yesterday => "yesterday",
            Self::Week => "a week ago",
        }
    }

    /// Time by which the earlier range begins earlier.
    pub(in super::super) const fn shift_ms(self) -> Option<i64> {
        match self {
            Self::None => None,
            Self::Yesterday => Some(DAY_MS),
            Self::Week => Some(7 * DAY_MS),
        }
    }
}

/// Range of charts.
pub(in super::super) struct ChartRange {
    /// Value of the parameter `range`; `None`: `from` and `to` are given.
    name: Option<&'static str>,
    /// Parameters `from` and `to` as they were given.
    bounds: [Option<String>; 2],
    pub from_ms: i64,
    pub to_ms: i64,
    pub now_ms: i64,
    /// Length of the points; `None`: the shortest that is kept.
    pub step: Option<Millis>,
    pub compare: Compare,
}

impl ChartRange {
    /// Range of this name up to now; the shortest by default.
    pub(in super::super) fn named(name: Option<&str>, compare: Compare, now_ms: i64) -> Self {
        let (name, length_ms, step) = RANGES.into_iter().find(|range| Some(range.0) == name).unwrap_or(RANGES[0]);
        let (from_ms, step) = (now_ms - length_ms + 1, Millis::parse(step).ok());
        Self { name: Some(name), bounds: [None, None], from_ms, to_ms: now_ms, now_ms, step, compare }
    }

    /// Range between two times, by default of an hour up to now. `bounds`: the times as they were given.
    pub(in super::super) fn between(
        from_ms: Option<i64>,
        to_ms: Option<i64>,
        bounds: [Option<String>; 2],
        compare: Compare,
        now_ms: i64,
    ) -> Self {
        let to_ms = to_ms.unwrap_or(now_ms);
        let from_ms = from_ms.unwrap_or(to_ms - HOUR_MS + 1);
        Self { name: None, bounds, from_ms, to_ms, now_ms, step: None, compare }
    }

    fn bounds(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let named = ["from", "to"].into_iter().zip(&self.bounds);
        named.filter_map(|(name, text)| Some((name, text.as_deref()?)))
    }

    /// Links to other ranges and comparisons, and a form for a range of one's own.
    pub(in super::super) fn controls(&self, view: &View, path: &str) -> Markup {
        let compared = |compare: Compare| (compare != Compare::None).then(|| ("compare", compare.name()));
        let range_link = |name: &'static str| {
            let query: Vec<_> = [("range", name)].into_iter().chain(compared(self.compare)).collect();
            view.url_with(path, &query)
        };
        let compare_link = |compare: Compare| {
            let range = self.name.map(|name| ("range", name)).into_iter();
            view.url_with(path, &range.chain(self.bounds()).chain(compared(compare)).collect::<Vec<_>>())
        };
        html! {
            nav.ranges aria-label="range" {
                @for (name, ..) in RANGES {
                    a href=(range_link(name)) aria-current=[(self.name == Some(name)).then_some("page")] { (name) }
                }
            }
            nav.ranges aria-label="comparison" {
                span.quiet { "compare:" }
                @for compare in Compare::ALL {
                    a href=(compare_link(compare)) aria-current=[(self.compare == compare).then_some("true")] { (compare.words()) }
                }
            }
            (self.form(view, path))
        }
    }

    fn form(&self, view: &View, path: &str) -> Markup {
        let hint = time_hint(view);
        html! {
            details.more #range open[self.name.is_none()] {
                summary { "From, to" }
                form.searching method="get" action=(view.url(path)) {
                    @for (name, label, value) in [("from", "From", &self.bounds[0]), ("to", "To", &self.bounds[1])] {
                        input name=(name) aria-label=(label) placeholder={ (label) ": " (hint) } value=[value.as_deref()] autocomplete="off";
                    }
                    @if self.compare != Compare::None { input type="hidden" name="compare" value=(self.compare.name()); }
                    button type="submit" { "Show" }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafleet_config::Role;

    fn controls(range: &ChartRange) -> String {
        let view = View::for_tests(Role::Read);
        range.controls(&view, "/").into_string()
    }

    #[test]
    fn links_keep_the_range_and_the_comparison() {
        let named = controls(&ChartRange::named(Some("24h"), Compare::Yesterday, DAY_MS));
        assert!(named.contains("href=\"/?range=7d&amp;compare=yesterday\""), "{named}");
        assert!(named.contains("href=\"/?range=24h&amp;compare=week\">a week ago"), "{named}");
        assert!(named.contains("href=\"/?range=24h\">none"), "{named}");
        let bounds = [Some("3h".into()), Some("2h".into())];
        let between = controls(&ChartRange::between(Some(0), Some(HOUR_MS), bounds, Compare::None, DAY_MS));
        assert!(between.contains("href=\"/?from=3h&amp;to=2h&amp;compare=yesterday\""), "{between}");
        assert!(
            between.contains("value=\"3h\"") && between.contains("<details class=\"more\" id=\"range\" open>"),
            "{between}"
        );
    }

    #[test]
    fn unknown_names_are_the_shortest_range_without_a_comparison() {
        let range = ChartRange::named(Some("1y"), Compare::named(Some("century")), DAY_MS);
        assert_eq!((range.name, range.to_ms - range.from_ms + 1, range.compare), (Some("1h"), HOUR_MS, Compare::None));
    }
}
