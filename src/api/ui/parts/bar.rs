//! Bars of counts by state. Lengths are SVG attributes: the policy of the pages forbids inline styles.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::count;
use super::state::{tone, word};
use crate::model::record::state::State;

/// Width of a bar in its own units.
const WIDTH: u64 = 1_000;

/// Bar of counts by state, in the order of the states from ended to waiting.
pub(in super::super) fn state_bar(counts: &BTreeMap<State, u64>) -> Markup {
    let total: u64 = counts.values().sum();
    let mut from = 0;
    let parts: Vec<(State, u64, u64, u64)> = ORDER
        .iter()
        .filter_map(|state| Some((*state, *counts.get(state).filter(|count| **count > 0)?)))
        .map(|(state, count)| {
            // At least a visible sliver of each state.
            let width = (u128::from(count) * u128::from(WIDTH) / u128::from(total.max(1))) as u64;
            let width = width.max(6);
            let at = from;
            from += width;
            (state, count, at, width)
        })
        .collect();
    let described: Vec<String> = parts.iter().map(|(state, n, ..)| format!("{} {}", count(n), word(*state))).collect();
    html! {
        svg.bar viewBox={ "0 0 " (from.max(1)) " 10" } preserveAspectRatio="none" role="img" aria-label=(described.join(", ")) {
            @for (state, n, at, width) in &parts {
                rect class={ "fill " (tone(*state)) } x=(at) y="0" width=(width) height="10" {
                    title { (count(n)) " " (word(*state)) }
                }
            }
        }
    }
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
