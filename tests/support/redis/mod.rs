//! Redis servers per test: a single one, a master behind sentinels, a cluster; and a connection that can be cut. All
//! of them end with the test.

mod cluster;
mod proxy;
mod sentinels;
pub mod server;

use std::time::{Duration, Instant};

pub use cluster::Cluster;
pub use proxy::{Cut, Proxy};
pub use sentinels::Sentinels;
pub use server::{Server, free_port, patient};

const DEADLINE: Duration = Duration::from_secs(180);

/// Waits for a condition.
fn await_that(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < end, "not within {DEADLINE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
