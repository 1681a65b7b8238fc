//! Names of topics and prefixes that no other test and no other run uses.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

pub fn unique(subject: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let micros = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
    format!("{subject}-{micros:x}-{:x}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}
