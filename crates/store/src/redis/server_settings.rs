//! Settings of a Redis server that can cost connections or hold back readers, as the only table of them.

use ::redis::aio::MultiplexedConnection;

use super::connection::Connector;
use super::server_checks::{connect_to_masters, query_server};
use crate::{RiskySetting, StoreError};

/// Shortest `timeout` that does not close connections between two of kafleet's calls, in seconds.
const MIN_TIMEOUT_SECS: u64 = 60;
/// Smallest limit of the output of a client that fits the largest answers, in bytes.
const MIN_ANSWER_BYTES: u64 = 128 << 20;
/// Smallest limit of the output of a client that fits bursts of change notices, in bytes.
const MIN_NOTICE_BYTES: u64 = 1 << 20;

/// A setting, and what is wrong with a value.
struct ServerSetting {
    key: &'static str,
    risk: fn(&str) -> Option<&'static str>,
    hint: &'static str,
}

const SETTINGS: &[ServerSetting] = &[
    ServerSetting {
        key: "timeout",
        risk: |value| {
            let secs: u64 = value.parse().ok()?;
            (1..MIN_TIMEOUT_SECS).contains(&secs).then_some("connections are closed between two calls")
        },
        hint: "set it to 0",
    },
    ServerSetting {
        key: "tcp-keepalive",
        risk: |value| (value == "0").then_some("connections of machines that are gone stay open"),
        hint: "set it to 300",
    },
    ServerSetting {
        key: "client-output-buffer-limit",
        risk: |value| {
            let hard_limit = |class: &str| -> Option<u64> {
                let mut words = value.split(' ').skip_while(|word| *word != class);
                words.nth(1)?.parse().ok().filter(|limit| *limit > 0)
            };
            if hard_limit("normal").is_some_and(|limit| limit < MIN_ANSWER_BYTES) {
                return Some("large answers close the connection");
            }
            let is_small = hard_limit("pubsub").is_some_and(|limit| limit < MIN_NOTICE_BYTES);
            is_small.then_some("bursts of change notices close the connection")
        },
        hint: "use the defaults: `normal 0 0 0`, `pubsub 33554432 8388608 60`",
    },
];

/// Settings with a risk, of each master. Empty for a server that does not allow `CONFIG`, as many providers' do.
pub(super) async fn risky_settings(connector: &Connector) -> Result<Vec<RiskySetting>, StoreError> {
    let mut risks = Vec::new();
    for (mut connection, info) in connect_to_masters(connector).await? {
        for setting in SETTINGS {
            let Some(value) = value_of(connector, &mut connection, setting.key).await? else { return Ok(risks) };
            let server = info.addr().to_string();
            risks.extend((setting.risk)(&value).map(|risk| RiskySetting {
                message: format!("`{}` of `{server}` is `{value}`: {risk}", setting.key),
                hint: setting.hint.to_owned(),
            }));
        }
    }
    Ok(risks)
}

/// Value of a setting; `None` if the server does not report it.
async fn value_of(
    connector: &Connector,
    connection: &mut MultiplexedConnection,
    key: &str,
) -> Result<Option<String>, StoreError> {
    match query_server::<Vec<String>>(connector, connection, &["CONFIG", "GET", key]).await {
        Ok(answer) => Ok(answer.into_iter().nth(1)),
        Err(error @ StoreError::Unavailable(_)) if error.to_string().contains("no answer within") => Err(error),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn risky_values_are_found() {
        let normal =
            |normal: &str| format!("normal {normal} 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60");
        for (key, value, is_risky) in [
            ("timeout", "0".to_owned(), false),
            ("timeout", "300".to_owned(), false),
            ("timeout", "10".to_owned(), true),
            ("tcp-keepalive", "300".to_owned(), false),
            ("tcp-keepalive", "0".to_owned(), true),
            ("client-output-buffer-limit", normal("0"), false),
            ("client-output-buffer-limit", normal("1048576"), true),
            ("client-output-buffer-limit", "pubsub 1024 0 0".to_owned(), true),
        ] {
            let setting = SETTINGS.iter().find(|setting| setting.key == key).unwrap();
            assert_eq!((setting.risk)(&value).is_some(), is_risky, "{key} {value}");
        }
    }
}
