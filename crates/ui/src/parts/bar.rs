//! Bars of counts by state. Lengths are SVG attributes: the policy of the pages forbids inline styles.

use std::collections::BTreeMap;

use kafleet_model::record::state::State;
use maud::{Markup, html};

use super::count;
use super::state::{tone, word};

/// Width of a bar in its own units.
const WIDTH: u64 = 1_000;

/// Part of a bar.
struct BarSegment {
    state: State,
    count: u64,
    from: u64,
    width: u64,
}

impl BarSegment {
    fn text(&self) -> String {
        format!("{} {}", count(self.count), word(self.state))
    }
}

/// Bar of counts by state, in the order of the states from ended to waiting.
pub(in super::super) fn state_bar(counts: &BTreeMap<State, u64>) -> Markup {
    let parts = parts(counts);
    let length = parts.last().map_or(0, |part| part.from + part.width);
    let described: Vec<String> = parts.iter().map(BarSegment::text).collect();
    html! {
        svg.bar viewBox={ "0 0 " (length.max(1)) " 10" } preserveAspectRatio="none" role="img" aria-label=(described.join(", ")) {
            @for part in &parts {
                rect class={ "fill " (tone(part.state)) } x=(part.from) y="0" width=(part.width) height="10" {
                    title { (part.text()) }
                }
            }
        }
    }
}

fn parts(counts: &BTreeMap<State, u64>) -> Vec<BarSegment> {
    let total: u64 = counts.values().sum();
    let mut end = 0;
    let mut part = |state: State, count: u64| {
        let width = (u128::from(count) * u128::from(WIDTH) / u128::from(total.max(1))) as u64;
        // At least a visible sliver of each state.
        let part = BarSegment { state, count, from: end, width: width.max(6) };
        end += part.width;
        part
    };
    in_order(counts).into_iter().map(|(state, count)| part(state, count)).collect()
}

/// Counts in the order of the bar, which its legend has too.
pub(in super::super) fn in_order(counts: &BTreeMap<State, u64>) -> Vec<(State, u64)> {
    let present = |state: State| Some((state, *counts.get(&state).filter(|count| **count > 0)?));
    ORDER.into_iter().filter_map(present).collect()
}

const ORDER: [State; State::COUNT] = [
    State::Succeeded,
    State::Failed,
    State::Expired,
    State::Cancelled,
    State::Running,
    State::Warning,
    State::Retrying,
    State::Cancelling,
    State::WaitingForChildren,
    State::Queued,
    State::Scheduled,
    State::Expected,
];

/// Used part of a capacity.
pub(in super::super) fn usage(used: u64, of: u64) -> Markup {
    html! {
        span.usage { progress max=(of.max(1)) value=(used.min(of.max(1))) {} span.of { (count(used)) "/" (count(of)) } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legend_has_the_order_of_the_bar() {
        let counts =
            BTreeMap::from([(State::Queued, 3), (State::Failed, 1), (State::Succeeded, 9), (State::Expired, 0)]);
        assert_eq!(in_order(&counts), [(State::Succeeded, 9), (State::Failed, 1), (State::Queued, 3)]);
    }
}
