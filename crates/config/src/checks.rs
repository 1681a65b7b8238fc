//! Checks of single values that several sections share.

use kafleet_model::units::duration::Millis;

use super::Bytes;
use super::document::{Document, join};
use super::shape::{UnlocatedProblem, bad_value};

/// Minimum of all memory limits.
pub(super) const MIN_MEMORY: Bytes = Bytes(16 << 20);

/// Reports durations of a section that are zero.
pub(super) fn positive<const N: usize>(
    document: &Document,
    section: &str,
    spans: [(&str, Option<Millis>); N],
) -> Vec<UnlocatedProblem> {
    let zero = spans.into_iter().filter(|(_, span)| *span == Some(Millis(0)));
    zero.map(|(key, _)| bad_value(document, &join(section, key), "longer than zero")).collect()
}

/// Returns the expected form if a text is not an address to listen on.
pub(super) fn listen(text: &str) -> Option<&'static str> {
    (!is_server(text)).then_some("an address to listen on, such as `127.0.0.1:8080`, `[::]:8080` or `localhost:8080`")
}

/// Returns whether a text is a host and a port.
pub(super) fn is_server(text: &str) -> bool {
    // librdkafka accepts a protocol prefix.
    let text = text.split_once("://").map_or(text, |(_, rest)| rest);
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let bracketed = host.starts_with('[') && host.ends_with(']');
    let host_fits = !host.is_empty() && (bracketed || !host.contains(':')) && !host.contains(char::is_whitespace);
    host_fits && port.parse::<u16>().is_ok()
}
