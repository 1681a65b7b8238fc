//! Readiness of a process: the parts of its roles that do not work now, with reasons, as `/readyz` reports them.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Names of the parts, each a heading of docs/runbook.md. `ROLE`, `NAME`, `PARTITION` and `N` stand for others.
pub const PARTS: &[&str] = &[
    "process",
    "kafka",
    "redis",
    "control",
    "ROLE's topics",
    "type NAME",
    "type NAME/PARTITION",
    "group NAME",
    "app `NAME`",
    "results",
    "results of NAME",
    "dead letters of NAME",
    "failures of NAME",
    "limits of NAME",
    "tracker",
    "events topic",
    "events partition N",
    "timers of events partition N",
    "announcer",
    "schedules",
    "outbox",
];

/// Reasons for not being ready, by part of the process. Shared by a process's roles and its ops endpoint.
#[derive(Clone, Default)]
pub struct Health(Arc<Mutex<BTreeMap<String, String>>>);

impl Health {
    /// Marks a part as not ready. The part is one of [`PARTS`].
    pub fn set(&self, part: &str, reason: impl Into<String>) {
        debug_assert!(PARTS.iter().any(|name| is_named(part, name)), "`{part}` is not a part");
        self.0.lock().insert(part.to_owned(), reason.into());
    }

    /// Marks a part as ready.
    pub fn clear(&self, part: &str) {
        self.0.lock().remove(part);
    }

    /// Reasons by part; empty if the process is ready.
    pub fn reasons(&self) -> Vec<(String, String)> {
        self.0.lock().iter().map(|(part, reason)| (part.clone(), reason.clone())).collect()
    }
}

/// Returns whether a part has a name of [`PARTS`].
fn is_named(part: &str, name: &str) -> bool {
    let Some((before, after)) = ["ROLE", "NAME", "N"].iter().find_map(|other| name.split_once(other)) else {
        return part == name;
    };
    let other = part.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
    other.is_some_and(|other| !other.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_names() {
        for part in ["kafka", "worker's topics", "type resize/3", "app `pics`", "events partition 12", "results of a"] {
            assert!(PARTS.iter().any(|name| is_named(part, name)), "{part}");
        }
        for part in ["kafk", "events partition ", "app pics", "results of ", "topics"] {
            assert!(!PARTS.iter().any(|name| is_named(part, name)), "{part}");
        }
    }
}
