//! Time zone of a reader: UTC, that of the fleet, that of the browser, or any other. A cookie keeps the choice.

use axum::http::HeaderMap;
use jiff::tz::TimeZone;
use kafleet_config::UiConfig;
use kafleet_model::schedule::time_zone;

use super::session;

/// Cookie with the choice. The script reads and writes it, too.
pub(super) const COOKIE: &str = "kafleet-zone";
/// Choice of the zone of the fleet.
pub(super) const FLEET: &str = "fleet";
/// Prefix of the zone of the browser in a choice.
const LOCAL: &str = "local:";
const UTC: &str = "UTC";

/// Time zone in which a reader sees times.
#[derive(Clone, Debug)]
pub(super) struct ReaderZone {
    /// Name in the database of zones.
    pub name: String,
    pub zone: TimeZone,
    /// The zone is that of the browser, and follows it.
    pub is_local: bool,
}

impl Default for ReaderZone {
    fn default() -> Self {
        Self { name: UTC.to_owned(), zone: TimeZone::UTC, is_local: false }
    }
}

impl ReaderZone {
    /// Zone that a request asks for; that of the fleet by default.
    pub(super) fn of_request(headers: &HeaderMap, config: &UiConfig) -> Self {
        let chosen = session::cookie(headers, COOKIE).and_then(|choice| Self::of_choice(choice, config));
        chosen.unwrap_or_else(|| Self::of_fleet(config))
    }

    /// Zone of a choice, unless it names an unknown one.
    pub(super) fn of_choice(choice: &str, config: &UiConfig) -> Option<Self> {
        let name = if choice == FLEET { &config.zone } else { choice.strip_prefix(LOCAL).unwrap_or(choice) };
        Self::named(name).map(|zone| Self { is_local: choice.starts_with(LOCAL), ..zone })
    }

    pub(super) fn of_fleet(config: &UiConfig) -> Self {
        Self::named(&config.zone).unwrap_or_default()
    }

    fn named(name: &str) -> Option<Self> {
        let zone = time_zone(name)?;
        // The database has the names as they are written.
        let name = zone.iana_name().unwrap_or(UTC).to_owned();
        Some(Self { name, zone, is_local: false })
    }

    /// Value of the cookie for this choice.
    pub(super) fn choice(&self) -> String {
        if self.is_local { format!("{LOCAL}{}", self.name) } else { self.name.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(cookie: &str, fleet: &str) -> (String, bool) {
        let headers = [("cookie".parse().unwrap(), format!("a=1; {COOKIE}={cookie}").parse().unwrap())];
        let config = UiConfig { zone: fleet.into(), ..UiConfig::default() };
        let zone = ReaderZone::of_request(&headers.into_iter().collect(), &config);
        (zone.name, zone.is_local)
    }

    #[test]
    fn zone_is_that_of_the_cookie_or_of_the_fleet() {
        for (cookie, expected, is_local) in [
            ("fleet", "Europe/Berlin", false),
            ("UTC", "UTC", false),
            ("local:Asia/Tokyo", "Asia/Tokyo", true),
            ("america/new_york", "America/New_York", false),
            ("local:Mars/Base", "Europe/Berlin", false),
            ("", "Europe/Berlin", false),
            ("<b>", "Europe/Berlin", false),
        ] {
            assert_eq!(shown(cookie, "Europe/Berlin"), (expected.to_owned(), is_local), "{cookie}");
        }
        let config = UiConfig::default();
        assert_eq!(ReaderZone::of_request(&HeaderMap::new(), &config).name, "UTC");
        let local = ReaderZone::of_choice("local:Asia/Tokyo", &config).unwrap();
        assert_eq!(local.choice(), "local:Asia/Tokyo");
    }
}
