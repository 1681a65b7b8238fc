//! Conversion of the `[kafka]` section to the configuration of each kind of client.

use std::collections::BTreeMap;

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaConfRes;

use crate::{BrokerError, ConsumerSpec};

const COMMON: [(&str, &str); 4] = [
    ("client.id", "kafleet"),
    ("statistics.interval.ms", "0"),
    // Maximum delay until added partitions are found.
    ("topic.metadata.refresh.interval.ms", "30000"),
    // Time that a missing topic is assumed to be in creation; sends to it wait.
    ("topic.metadata.propagation.max.ms", "5000"),
];

const CONSUMER: [(&str, &str); 6] = [
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    ("auto.offset.reset", "error"),
    ("partition.assignment.strategy", "cooperative-sticky"),
    ("isolation.level", "read_committed"),
    // librdkafka's default of 1000 stalls a fast consumer: after a full queue, fetching is postponed for that long.
    ("fetch.queue.backoff.ms", "10"),
];

const PRODUCER: [(&str, &str); 6] = [
    ("enable.idempotence", "true"),
    ("acks", "all"),
    ("partitioner", "murmur2_random"),
    ("linger.ms", "5"),
    // 5 MiB for the dead-letter topic, plus headers.
    ("message.max.bytes", "5308416"),
    // librdkafka's default is 1 GiB.
    ("queue.buffering.max.kbytes", "32768"),
];

/// Keys that kafleet sets itself.
const RESERVED: [&str; 3] = ["group.id", "transactional.id", "enable.partition.eof"];

/// Aliases of keys. If both names were set, librdkafka would apply them in unspecified order.
const ALIASES: [(&str, &str); 11] = [
    ("metadata.broker.list", "bootstrap.servers"),
    ("max.in.flight", "max.in.flight.requests.per.connection"),
    ("sasl.mechanism", "sasl.mechanisms"),
    ("sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.id"),
    ("sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.client.secret"),
    ("max.partition.fetch.bytes", "fetch.message.max.bytes"),
    ("queue.buffering.max.ms", "linger.ms"),
    ("retries", "message.send.max.retries"),
    ("compression.type", "compression.codec"),
    ("request.required.acks", "acks"),
    ("delivery.timeout.ms", "message.timeout.ms"),
];

const TRANSACTION_TIMEOUT_MS: &str = "10000";

/// Group id of consumers without a group. librdkafka requires one; nothing is committed under it.
const NO_GROUP: &str = "kafleet.reader";

/// Maximum size of a fetch of a consumer with several topics, in bytes.
const SHARED_FETCH_BYTES: &str = "8388608";

/// Part of the prefetch limit that a fetch may bring for a partition: with one topic, and with several. A fetch of all
/// partitions of a topic must leave room for the next one, or the topic would be left out of that.
const FETCH_PARTS: usize = 4;
const SHARED_FETCH_PARTS: usize = 16;

/// Approximate overhead of a queued record in librdkafka, in bytes.
const RECORD_OVERHEAD: usize = 300;

/// The validated `[kafka]` section.
#[derive(Clone)]
pub(super) struct Settings {
    user: BTreeMap<String, String>,
    log_level: RDKafkaLogLevel,
}

impl Settings {
    pub(super) fn new(section: &BTreeMap<String, String>) -> Result<Self, BrokerError> {
        let mut user = BTreeMap::new();
        for (key, value) in section {
            check(key, value)?;
            let name = ALIASES.iter().find(|(alias, _)| alias == key).map_or(key.as_str(), |(_, name)| *name);
            if user.insert(name.to_owned(), value.clone()).is_some() {
                return Err(BrokerError::Invalid(format!(
                    "`{key}` and `{name}` in [kafka] are the same; leave one of them out"
                )));
            }
        }
        if user.get("bootstrap.servers").is_none_or(|servers| servers.trim().is_empty()) {
            let hint = "hint: set it to the addresses of the brokers, such as `localhost:9092`";
            return Err(BrokerError::Invalid(format!("`bootstrap.servers` is missing in [kafka]\n\n{hint}")));
        }
        let log_level = user.get("log_level").map_or(RDKafkaLogLevel::Notice, |level| log_level(level));
        Ok(Self { user, log_level })
    }

    /// Bootstrap servers, separated by commas.
    pub(super) fn servers(&self) -> &str {
        self.user.get("bootstrap.servers").map_or("", String::as_str)
    }

    /// Configuration of the client for metadata and administration.
    pub(super) fn admin(&self) -> ClientConfig {
        let mut config = self.base(&COMMON);
        // Watermarks are fetched with this client and must include open transactions.
        config.set("isolation.level", "read_uncommitted");
        // The admin client is a librdkafka producer. It never sends and needs no producer id.
        config.set("enable.idempotence", "false").remove("group.instance.id");
        config
    }

    /// Configuration of a consumer that fetches single committed records.
    pub(super) fn reader(&self) -> ClientConfig {
        let mut config = self.unsubscribed(NO_GROUP);
        config
            .set("isolation.level", "read_committed")
            .set("enable.partition.eof", "true")
            .set("queued.min.messages", "1")
            .set("fetch.message.max.bytes", "65536")
            // An empty fetch signals the end of the log, so it must return quickly.
            .set("fetch.wait.max.ms", "10")
            .set_log_level(RDKafkaLogLevel::Emerg);
        config
    }

    /// Configuration of a consumer that reads or writes a group's offsets without joining it.
    pub(super) fn observer(&self, group: &str) -> ClientConfig {
        self.unsubscribed(group)
    }

    pub(super) fn consumer(&self, spec: &ConsumerSpec) -> ClientConfig {
        let mut config = match (&spec.group, spec.topics.is_empty()) {
            (Some(group), false) => self.member(group),
            (Some(group), true) => self.unsubscribed(group),
            (None, _) => self.unsubscribed(NO_GROUP),
        };
        if spec.read_uncommitted {
            config.set("isolation.level", "read_uncommitted");
        }
        if spec.topics.len() > 1 {
            self.set_default(&mut config, "fetch.max.bytes", SHARED_FETCH_BYTES);
        }
        if let Some(timeout) = spec.session_timeout.filter(|_| !self.has_broker_sessions()) {
            self.set_default(&mut config, "session.timeout.ms", timeout.as_millis().to_string());
        }
        if spec.prefetch_bytes > 0 {
            let fetch_parts = if spec.topics.len() > 1 { SHARED_FETCH_PARTS } else { FETCH_PARTS };
            for (key, value) in prefetch(spec.prefetch_bytes, fetch_parts) {
                self.set_default(&mut config, key, value.to_string());
            }
        }
        config
    }

    /// Sets a property unless the user has set it.
    fn set_default(&self, config: &mut ClientConfig, key: &str, value: impl Into<String>) {
        if !self.user.contains_key(key) {
            config.set(key, value);
        }
    }

    pub(super) fn producer(&self) -> ClientConfig {
        self.base(&PRODUCER)
    }

    /// Configuration of a transactional producer.
    pub(super) fn transactional(&self, name: &str) -> ClientConfig {
        let mut config = self.base(&PRODUCER);
        config
            .set("transactional.id", name)
            .set("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)
            .set("message.timeout.ms", TRANSACTION_TIMEOUT_MS)
            .set("enable.idempotence", "true")
            .set("acks", "all")
            // All records of a transaction are sent together; lingering would only add latency.
            .set("linger.ms", "0")
            // The coordinator answers with a retryable error for a few milliseconds while it completes the previous
            // transaction.
            .set("retry.backoff.ms", "20");
        config
    }

    fn member(&self, group: &str) -> ClientConfig {
        let mut config = self.base(&CONSUMER);
        config.set("group.id", group);
        if self.has_broker_sessions() && !self.user.contains_key("partition.assignment.strategy") {
            // The `consumer` protocol assigns partitions on the broker, and librdkafka rejects an assignor with it.
            config.remove("partition.assignment.strategy");
        }
        config
    }

    /// Whether groups use the `consumer` protocol, whose session timeout is a setting of the broker.
    fn has_broker_sessions(&self) -> bool {
        self.user.get("group.protocol").is_some_and(|protocol| protocol.eq_ignore_ascii_case("consumer"))
    }

    fn unsubscribed(&self, group: &str) -> ClientConfig {
        let mut config = self.member(group);
        config.remove("group.instance.id");
        config
    }

    fn base(&self, defaults: &[(&str, &str)]) -> ClientConfig {
        let mut config = ClientConfig::new();
        for (key, value) in COMMON.iter().chain(defaults) {
            config.set(*key, *value);
        }
        config.extend(self.user.clone());
        config.set_log_level(self.log_level);
        config
    }
}

/// Prefetch limits. librdkafka stops fetching at a number of queued bytes or records; the limit in bytes should take
/// effect first, and the overhead of small records must stay bounded.
fn prefetch(bytes: usize, fetch_parts: usize) -> [(&'static str, usize); 3] {
    [
        ("queued.max.messages.kbytes", (bytes / 1024).clamp(1, 2_097_151)),
        ("queued.min.messages", (bytes / RECORD_OVERHEAD).clamp(1_000, 100_000)),
        // A fetch may exceed the limit by its own size, so it is kept to a part. A larger record is still fetched, alone.
        ("fetch.message.max.bytes", (bytes / fetch_parts).clamp(65_536, 1_048_576)),
    ]
}

fn check(key: &str, value: &str) -> Result<(), BrokerError> {
    if RESERVED.contains(&key) {
        return Err(BrokerError::Invalid(format!("`{key}` in [kafka] is set by kafleet itself\n\nhint: remove it")));
    }
    let Err(error) = ClientConfig::new().set(key, value).create_native_config() else { return Ok(()) };
    Err(BrokerError::Invalid(match error {
        KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, ..) => {
            format!("unknown key `{key}` in [kafka]\n\nhint: {}", unknown_key_hint(key))
        }
        KafkaError::ClientConfig(..) if is_secret(key) => format!("bad value for `{key}` in [kafka]"),
        KafkaError::ClientConfig(_, reason, ..) => format!("bad value `{value}` for `{key}` in [kafka]: {reason}"),
        _ => format!("`{key}` in [kafka] contains a zero byte"),
    }))
}

/// Names of other clients and of this command line for the addresses of the brokers.
const BROKERS: [&str; 6] = ["broker", "brokers", "servers", "bootstrap.server", "hosts", "url"];

/// Names the key that was probably meant: `bootstrap.servers`, or the key as librdkafka writes it (`security.protocol` for
/// `securityProtocol` and `security_protocol`).
fn unknown_key_hint(key: &str) -> String {
    let dots = |text: &mut String, c: char| {
        if c.is_ascii_uppercase() {
            text.push('.');
        }
        text.push(if matches!(c, '_' | '-') { '.' } else { c.to_ascii_lowercase() });
    };
    let mut dotted = String::new();
    key.chars().for_each(|c| dots(&mut dotted, c));
    if BROKERS.contains(&&*dotted) {
        return "the addresses of the brokers are `bootstrap.servers`".to_owned();
    }
    let unknown = |error| matches!(error, KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, ..));
    let is_known = !ClientConfig::new().set(&dotted, "").create_native_config().err().is_some_and(unknown);
    if is_known && dotted != key {
        return format!("write `{dotted}`");
    }
    "the keys are those of librdkafka's CONFIGURATION.md".to_owned()
}

/// True if the value must not appear in messages.
fn is_secret(key: &str) -> bool {
    ["password", "secret", "pem", "jaas", "token"].iter().any(|part| key.contains(part))
}

fn log_level(level: &str) -> RDKafkaLogLevel {
    match level.trim() {
        "0" => RDKafkaLogLevel::Emerg,
        "1" => RDKafkaLogLevel::Alert,
        "2" => RDKafkaLogLevel::Critical,
        "3" => RDKafkaLogLevel::Error,
        "4" => RDKafkaLogLevel::Warning,
        "5" => RDKafkaLogLevel::Notice,
        "6" => RDKafkaLogLevel::Info,
        _ => RDKafkaLogLevel::Debug,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(extra: &[(&str, &str)]) -> Result<Settings, BrokerError> {
        let servers = ("bootstrap.servers", "localhost:9092");
        Settings::new(&std::iter::once(&servers).chain(extra).map(|(k, v)| (k.to_string(), v.to_string())).collect())
    }

    fn rejection(extra: &[(&str, &str)]) -> String {
        settings(extra).err().expect("refused").to_string()
    }

    #[test]
    fn unknown_key_is_named_in_error() {
        for (key, hint) in [
            ("bootstrap.server", "the addresses of the brokers are `bootstrap.servers`"),
            ("brokers", "the addresses of the brokers are `bootstrap.servers`"),
            ("bootstrap_servers", "write `bootstrap.servers`"),
            ("securityProtocol", "write `security.protocol`"),
            ("no.such.key", "the keys are those of librdkafka's CONFIGURATION.md"),
        ] {
            assert_eq!(rejection(&[(key, "x")]), format!("unknown key `{key}` in [kafka]\n\nhint: {hint}"));
        }
    }

    #[test]
    fn bad_value_is_named_with_its_key() {
        let error = rejection(&[("linger.ms", "soon")]);
        assert!(error.starts_with("bad value `soon` for `linger.ms` in [kafka]"), "{error}");
    }

    #[test]
    fn secret_values_are_not_in_errors() {
        let error = rejection(&[("ssl.key.pem", "hush\0hush")]);
        assert!(error.contains("`ssl.key.pem`") && !error.contains("hush"), "{error}");
    }

    #[test]
    fn reserved_keys_are_rejected() {
        assert!(rejection(&[("group.id", "mine")]).contains("`group.id`"));
        assert!(rejection(&[("transactional.id", "mine")]).contains("`transactional.id`"));
    }

    #[test]
    fn missing_bootstrap_servers_are_rejected() {
        let error = Settings::new(&BTreeMap::new()).err().expect("refused").to_string();
        assert!(error.starts_with("`bootstrap.servers` is missing"), "{error}");
    }

    #[test]
    fn user_key_overrides_default_under_either_name() {
        let settings = settings(&[("queue.buffering.max.ms", "50"), ("auto.offset.reset", "earliest")]).expect("good");
        assert_eq!(settings.producer().get("linger.ms"), Some("50"));
        assert_eq!(settings.producer().get("queue.buffering.max.ms"), None);
        assert_eq!(settings.consumer(&ConsumerSpec::default()).get("auto.offset.reset"), Some("earliest"));
    }

    #[test]
    fn key_and_its_alias_together_are_rejected() {
        assert!(rejection(&[("linger.ms", "5"), ("queue.buffering.max.ms", "50")]).contains("are the same"));
    }

    #[test]
    fn consumer_group_protocol_omits_assignor() {
        let settings = settings(&[("group.protocol", "consumer")]).expect("good");
        let spec = ConsumerSpec { group: Some("g".into()), topics: vec!["t".into()], ..Default::default() };
        assert_eq!(settings.consumer(&spec).get("partition.assignment.strategy"), None);
    }

    #[test]
    fn session_timeout_is_a_default_and_omitted_where_the_broker_sets_it() {
        let session_timeout = Some(std::time::Duration::from_secs(10));
        let spec =
            ConsumerSpec { group: Some("g".into()), topics: vec!["t".into()], session_timeout, ..Default::default() };
        for (given, expected) in [
            (vec![], Some("10000")),
            (vec![("session.timeout.ms", "30000")], Some("30000")),
            (vec![("group.protocol", "consumer")], None),
        ] {
            let config = settings(&given).expect("good").consumer(&spec);
            assert_eq!(config.get("session.timeout.ms"), expected, "{given:?}");
        }
    }

    #[test]
    fn prefetch_limit_is_in_bytes() {
        let spec = ConsumerSpec { prefetch_bytes: 1 << 20, ..Default::default() };
        let config = settings(&[]).expect("good").consumer(&spec);
        assert_eq!(config.get("queued.max.messages.kbytes"), Some("1024"));
        assert_eq!(config.get("fetch.message.max.bytes"), Some("262144"));
        assert_eq!(config.get("queued.min.messages"), Some("3495"));
    }

    #[test]
    fn fetch_of_a_shared_consumer_leaves_room_for_the_next_one() {
        let topics = vec!["a".to_owned(), "b".to_owned()];
        let spec = ConsumerSpec { group: Some("g".into()), topics, prefetch_bytes: 8 << 20, ..Default::default() };
        let config = settings(&[]).expect("good").consumer(&spec);
        assert_eq!(config.get("queued.max.messages.kbytes"), Some("8192"));
        assert_eq!(config.get("fetch.message.max.bytes"), Some("524288"));
        assert_eq!(config.get("fetch.max.bytes"), Some("8388608"));
    }
}
