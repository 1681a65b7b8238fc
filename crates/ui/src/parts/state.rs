//! States as glyph, word and colour.

use kafleet_model::record::state::State;
use maud::{Markup, html};

use super::visible;

/// Keeps browsers from drawing glyphs as emoji.
const TEXT_VARIANT: char = '\u{fe0e}';

/// Class of a state's colour in the style sheet.
pub(in super::super) const fn tone(state: State) -> &'static str {
    match state {
        State::Expected | State::Cancelled => "neutral",
        State::Scheduled => "planned",
        State::Queued | State::WaitingForChildren => "blue",
        State::Running => "running",
        State::Retrying | State::Warning | State::Cancelling => "attention",
        State::Succeeded => "good",
        State::Expired => "expired",
        State::Failed => "bad",
    }
}

const fn symbol(state: State) -> char {
    match state {
        State::Expected => '·',
        State::Scheduled => '◷',
        State::Queued => '○',
        State::Running => '●',
        State::Retrying => '↻',
        State::Cancelling => '⊘',
        State::Warning => '▲',
        State::WaitingForChildren => '◔',
        State::Succeeded => '✔',
        State::Cancelled => '–',
        State::Expired => '◌',
        State::Failed => '✘',
    }
}

pub(in super::super) fn glyph(state: State) -> String {
    format!("{}{TEXT_VARIANT}", symbol(state))
}

/// State in words.
pub(in super::super) fn word(state: State) -> String {
    state.name().replace('_', " ")
}

pub(in super::super) fn pill(state: State) -> Markup {
    html! {
        span class={ "pill " (tone(state)) } { span.glyph aria-hidden="true" { (glyph(state)) } " " (word(state)) }
    }
}

/// Label that is no state of a task.
pub(in super::super) fn label(tone: &str, text: &str) -> Markup {
    html! { span class={ "pill " (tone) } { (visible(text)) } }
}
