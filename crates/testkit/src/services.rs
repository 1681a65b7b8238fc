//! Services that tests need: their addresses, and skipped tests where they are missing.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

use kafleet_broker::kafka::Kafka;

/// Bootstrap servers of the test Kafka, or `None` with a skipped test.
pub fn kafka() -> Option<String> {
    address("KAFLEET_TEST_KAFKA")
}

/// Client of a Kafka with default settings.
pub fn connect(servers: impl Into<String>) -> Arc<Kafka> {
    Arc::new(Kafka::new(&BTreeMap::from([("bootstrap.servers".to_owned(), servers.into())])).unwrap())
}

/// URL of the test Redis, or `None` with a skipped test.
pub fn redis() -> Option<String> {
    address("KAFLEET_TEST_REDIS")
}

/// Bootstrap servers and URL of both services, or `None` with a skipped test.
pub fn kafka_and_redis() -> Option<(String, String)> {
    Some((kafka()?, redis()?))
}

/// Value of a variable that names a required service, or `None` with a skipped test.
///
/// # Panics
/// If the variable is not set and services are required (`CI=true` or `KAFLEET_REQUIRE_SERVICES=1`).
pub fn address(variable: &str) -> Option<String> {
    let value = std::env::var(variable).ok().filter(|value| !value.is_empty());
    if value.is_none() {
        assert!(
            !are_required(),
            "{variable} is not set, and services are required: run the tests with `tests/services run`"
        );
        skip(&format!("{variable} is not set"));
    }
    value
}

/// Reports a skipped test in a line that `tests/run` counts. Written past the test runner, which captures printed
/// output.
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    let line = format!("skipped: {}: {reason}\n", thread.name().unwrap_or("test"));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

fn are_required() -> bool {
    let is = |variable: &str, value: &str| std::env::var(variable).is_ok_and(|found| found == value);
    is("CI", "true") || is("KAFLEET_REQUIRE_SERVICES", "1")
}
