//! Limits of a type as a sentence with inputs, and pauses in words.

use kafleet_config::{Rate, RateBy};
use kafleet_documents::{PauseDocument, TypeLimits};
use maud::{Markup, html};

use super::times::time;
use super::{first_line, visible};

/// Text of an input of the form; `None` if it is empty.
type Value<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// Scopes of a rate, as values of the form and in words.
const SCOPES: [(RateBy, &str, &str); 2] = [(RateBy::Type, "type", "type"), (RateBy::Key, "key", "key")];

/// Limits as one line with inputs. Empty inputs show the configured values.
pub(in super::super) fn limits_line(limits: &TypeLimits, value: &Value<'_>) -> Markup {
    let configured = &limits.configured;
    let number = |number: Option<u32>, none: &str| number.map_or_else(|| none.to_owned(), |number| number.to_string());
    let rate = |text: fn(&Rate) -> String, none: &str| configured.rate.as_ref().map_or_else(|| none.to_owned(), text);
    let is_live = |name: &str| limits.live.iter().any(|live| live == name);
    let slots = input("slots", value, &number(configured.slots, "cores"));
    let most = input("max_concurrency", value, &number(configured.max_concurrency, "any"));
    html! {
        div.sentence {
            label.set[is_live("slots")] { "slots per worker " (slots) }
            (joint(" · "))
            label.set[is_live("max_concurrency")] { "in the fleet " (most) }
            (joint(" · "))
            label.set[is_live("adaptive")] { "adaptive " (input("adaptive", value, "learned")) }
            (joint(" · "))
            span.set[is_live("rate")] {
                label { "starts at most " (input("rate_count", value, &rate(|rate| rate.count.to_string(), "any"))) }
                (joint(" ")) label { "per " (input("rate_per", value, &rate(|rate| rate.per.to_string(), "1s"))) }
                (joint(", ")) label { "burst " (input("rate_burst", value, &rate(|rate| rate.burst.to_string(), "1"))) }
                (joint(", ")) label { "by " (scope(value, configured.rate.as_ref())) }
            }
        }
        p.hint {
            "Grey values are those of the configuration, which apply to empty fields. "
            @if limits.live.is_empty() { "Nothing is set at run time." }
            @else { "Set at run time, in bold: " (live_words(limits)) "." }
        }
    }
}

/// Text between two fields of the sentence. Narrow screens have a line for each field instead.
fn joint(text: &str) -> Markup {
    html! { span.joint { (text) } }
}

fn input(name: &str, value: &Value<'_>, placeholder: &str) -> Markup {
    html! {
        input name=(name) value=(value(name).unwrap_or_default()) placeholder=(placeholder) autocomplete="off" size="5";
    }
}

fn scope(value: &Value<'_>, configured: Option<&Rate>) -> Markup {
    let chosen =
        value("rate_by").unwrap_or_else(|| scope_name(configured.map_or(RateBy::Type, |rate| rate.by)).to_owned());
    html! {
        select name="rate_by" { @for (_, name, text) in SCOPES { option value=(name) selected[name == chosen] { (text) } } }
    }
}

/// Value of the form for the scope of a rate limit.
pub(in super::super) fn scope_name(by: RateBy) -> &'static str {
    SCOPES.iter().find(|(scope, ..)| *scope == by).map_or("type", |(_, name, _)| name)
}

/// Limits set at run time, in words.
fn live_words(limits: &TypeLimits) -> String {
    let words = |name: &String| match name.as_str() {
        "slots" => "slots per worker",
        "max_concurrency" => "in the fleet",
        "adaptive" => "adaptive",
        _ => "starts",
    };
    limits.live.iter().map(words).collect::<Vec<_>>().join(", ")
}

/// Since when, by whom and for which reason something is paused.
pub(in super::super) fn pause_text(paused: &PauseDocument) -> Markup {
    html! {
        "since " (time(&paused.since))
        @if let Some(by) = &paused.by { " by " (first_line(by, 80)) }
        @if let Some(reason) = &paused.reason { ": " (visible(reason)) }
    }
}

#[cfg(test)]
mod tests {
    use kafleet_documents::ConfiguredLimits;

    use super::*;

    #[test]
    fn line_shows_configured_values_and_marks_those_of_the_run_time() {
        let rate = Rate { by: RateBy::Key, ..serde_json::from_str(r#"{"count": 100, "burst": 10}"#).unwrap() };
        let configured = ConfiguredLimits { slots: Some(6), max_concurrency: None, rate: Some(rate) };
        let limits = TypeLimits { slots: Some(3), live: vec!["slots".into()], configured, ..TypeLimits::default() };
        let line = limits_line(&limits, &|name| (name == "slots").then(|| "3".to_owned())).into_string();
        for part in [
            "<label class=\"set\">slots per worker <input name=\"slots\" value=\"3\" placeholder=\"6\"",
            "name=\"max_concurrency\" value=\"\" placeholder=\"any\"",
            "at most <input name=\"rate_count\" value=\"\" placeholder=\"100\"",
            "placeholder=\"1s\"",
            "placeholder=\"10\"",
            "<option value=\"key\" selected>",
            "in bold: slots per worker.",
        ] {
            assert!(line.contains(part), "`{part}` is missing in {line}");
        }
    }

    #[test]
    fn pause_names_its_person_and_reason() {
        let paused = PauseDocument {
            since: "2026-11-30T04:00:00.000Z".into(),
            reason: Some("<disk>".into()),
            by: Some("ada".into()),
        };
        let text = pause_text(&paused).into_string();
        assert!(text.ends_with(" by ada: &lt;disk&gt;"), "{text}");
    }
}
