//! Change of the limits of a type in words, for the audit log.

use std::fmt::Display;

use kafleet_documents::{SetLimits, TypeLimits};

/// Limits before and after a request, such as `slots 6 → 8, rate 100/1s → as configured`. Those that stay are left out.
pub(super) fn change_text(before: &TypeLimits, set: &SetLimits) -> String {
    let changes = [
        ("slots", change(before, "slots", before.slots, set.slots)),
        ("max_concurrency", change(before, "max_concurrency", before.max_concurrency, set.max_concurrency)),
        ("rate", change(before, "rate", before.rate, set.rate)),
        ("adaptive", change(before, "adaptive", before.adaptive, set.adaptive)),
    ];
    let texts: Vec<String> =
        changes.into_iter().filter_map(|(name, change)| Some(format!("{name} {}", change?))).collect();
    if texts.is_empty() { "no limit changes".to_owned() } else { texts.join(", ") }
}

fn change<T: Display + PartialEq>(before: &TypeLimits, name: &str, old: Option<T>, new: Option<T>) -> Option<String> {
    let was_set = before.live.iter().any(|live| live == name);
    let shown = old.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string);
    match new {
        Some(new) if old.as_ref() != Some(&new) => Some(format!("{shown} → {new}")),
        None if was_set => Some(format!("{shown} → as configured")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_change_are_named_with_their_old_and_new_values() {
        let before = TypeLimits {
            slots: Some(6),
            max_concurrency: Some(40),
            rate: None,
            live: vec!["slots".into(), "max_concurrency".into()],
            ..TypeLimits::default()
        };
        let set = SetLimits { slots: Some(8), ..SetLimits::default() };
        assert_eq!(change_text(&before, &set), "slots 6 → 8, max_concurrency 40 → as configured");
        let same = SetLimits { slots: Some(6), max_concurrency: Some(40), ..SetLimits::default() };
        assert_eq!(change_text(&before, &same), "no limit changes");
        let rate = Some(kafleet_model::units::rate::Rate {
            count: 100,
            per: kafleet_model::units::duration::Millis::secs(1),
            burst: 1,
            by: Default::default(),
        });
        assert_eq!(
            change_text(&TypeLimits::default(), &SetLimits { rate, ..SetLimits::default() }),
            "rate none → 100/1s"
        );
    }
}
