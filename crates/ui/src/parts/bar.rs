//! Bars of counts by state. Lengths are SVG attributes: the policy of the pages forbids inline styles.

use std::collections::BTreeMap;

use kafleet_documents::Tree;
use kafleet_model::record::state::State;
use maud::{Markup, html};

use super::count;
use super::state::{tone, word};

/// Width of a bar in its own units.
const WIDTH: u64 = 1_000;

/// Number of tasks in a bar, with the class of its colour and its meaning.
struct StateShare {
    tone: &'static str,
    word: String,
    count: u64,
}

/// Part of a bar.
struct BarSegment {
    share: StateShare,
    from: u64,
    width: u64,
}

impl BarSegment {
    fn text(&self) -> String {
        format!("{} {}", count(self.share.count), self.share.word)
    }
}

/// Bar of counts by state, in the order of the states from ended to waiting.
pub(in super::super) fn state_bar(counts: &BTreeMap<State, u64>) -> Markup {
    bar(in_order(counts).into_iter().map(|(state, count)| StateShare { tone: tone(state), word: word(state), count }))
}

/// Bar of a whole tree, whose tasks are counted by their outcome.
pub(in super::super) fn tree_bar(tree: &Tree) -> Markup {
    outcome_bar(&[
        (State::Succeeded, "succeeded", tree.successful),
        (State::Failed, "failed", tree.failed),
        (State::Running, "open", tree.pending),
    ])
}

/// Bar of numbers with their meanings, in the colours of states.
pub(in super::super) fn outcome_bar(shares: &[(State, &str, u64)]) -> Markup {
    bar(shares.iter().map(|(state, word, count)| StateShare {
        tone: tone(*state),
        word: (*word).to_owned(),
        count: *count,
    }))
}

fn bar(shares: impl Iterator<Item = StateShare>) -> Markup {
    let parts = segments(shares.filter(|share| share.count > 0).collect());
    let length = parts.last().map_or(0, |part| part.from + part.width);
    let described: Vec<String> = parts.iter().map(BarSegment::text).collect();
    html! {
        svg.bar viewBox={ "0 0 " (length.max(1)) " 10" } preserveAspectRatio="none" role="img" aria-label=(described.join(", ")) {
            @for part in &parts {
                rect class={ "fill " (part.share.tone) } x=(part.from) y="0" width=(part.width) height="10" {
                    title { (part.text()) }
                }
            }
        }
    }
}

fn segments(shares: Vec<StateShare>) -> Vec<BarSegment> {
    let total: u64 = shares.iter().map(|share| share.count).sum();
    let mut end = 0;
    let mut segment = |share: StateShare| {
        let width = (u128::from(share.count) * u128::from(WIDTH) / u128::from(total.max(1))) as u64;
        // At least a visible sliver of each.
        let segment = BarSegment { share, from: end, width: width.max(6) };
        end += segment.width;
        segment
    };
    shares.into_iter().map(&mut segment).collect()
}

/// Counts in the order of the bar, which its legend has too.
pub(in super::super) fn in_order(counts: &BTreeMap<State, u64>) -> Vec<(State, u64)> {
    let present = |state: State| Some((state, *counts.get(&state).filter(|count| **count > 0)?));
    ORDER.into_iter().filter_map(present).collect()
}

/// States from ended to waiting, those of most interest first.
pub(super) const ORDER: [State; State::COUNT] = [
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

/// Part of a whole in percent.
pub(in super::super) fn percent(used: u64, of: u64) -> String {
    format!("{:.0} %", used as f64 / of.max(1) as f64 * 100.0)
}

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
