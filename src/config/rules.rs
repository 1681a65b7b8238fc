//! What the shape alone does not say: values that must fit each other, and keys that kafleet sets itself.

use std::collections::BTreeSet;

use serde_json::Value;

use super::document::{Document, dotted, join};
use super::shape::{Finding, bad_value, table};
use super::{ApiConfig, Bytes, Config, HandlerKind, Order, RedisConfig, TopicsConfig, TypeConfig, TypePolicy, WorkerConfig};
use crate::model::record::attachment::MAX_BYTES;
use crate::model::schedule::{Spec, check_name};
use crate::model::task::action::{CALLBACK_TYPE, EMAIL_TYPE};
use crate::model::task::id::{check_own_type, check_type};
use crate::model::units::duration::Millis;

/// The shortest token.
pub const MIN_TOKEN_CHARS: usize = 16;
/// Topics and clients allow 4 MiB a record; the rest is for headers and the event around an output.
pub const MAX_PAYLOAD: Bytes = Bytes(3 << 20);
const MIN_MEMORY: Bytes = Bytes(16 << 20);
const MAX_PREFIX_CHARS: usize = 64;
const REDIS_SCHEMES: [&str; 7] =
    ["redis", "rediss", "redis-cluster", "rediss-cluster", "redis-sentinel", "rediss-sentinel", "redis+unix"];

/// Keys of `[kafka]` that are not for the file to set, and why.
const RESERVED: [(&str, &str); 18] = [
    ("metadata.broker.list", "write `bootstrap.servers`"),
    ("group.id", "groups are named after the topics prefix and the type"),
    ("enable.auto.commit", "work is committed when its result is acknowledged, never by a clock"),
    ("auto.commit.interval.ms", "work is committed when its result is acknowledged; see `worker.commit_interval`"),
    ("auto.commit.enable", "work is committed when its result is acknowledged, never by a clock"),
    ("enable.auto.offset.store", "work is committed when its result is acknowledged"),
    ("auto.offset.reset", "a place that is not known must stop a reader, not move it"),
    ("isolation.level", "it belongs to each reader's task"),
    ("partition.assignment.strategy", "workers rely on cooperative-sticky"),
    ("enable.partition.eof", "it changes what readers are told"),
    ("transactional.id", "each events partition has its own"),
    ("transaction.timeout.ms", "it bounds how long a dead tracker holds back readers"),
    ("enable.idempotence", "it is always on: a send that is repeated must not write twice"),
    ("acks", "a record counts as written when all in-sync replicas have it"),
    ("request.required.acks", "a record counts as written when all in-sync replicas have it"),
    ("partitioner", "it is murmur2_random, as in Java, so that all producers agree where a key goes"),
    ("allow.auto.create.topics", "topics are created by `kafleet topics apply`"),
    ("queued.max.messages.kbytes", "see `worker.memory_limit`"),
];

/// Everything that the shape allows and that cannot work.
pub(super) fn broken(document: &Document, config: &Config) -> Vec<Finding> {
    let rules = Rules { document };
    let mut found = rules.kafka(config);
    found.extend(rules.redis(&config.redis));
    found.extend(rules.topics(&config.topics));
    found.extend(rules.worker(&config.worker));
    let spans = [
        ("tick", Some(config.tracker.tick)),
        ("worker_silent", config.tracker.worker_silent),
        ("audit_interval", Some(config.tracker.audit_interval)),
    ];
    found.extend(rules.positive("/tracker", spans));
    found.extend(rules.api(&config.api));
    found.extend(listen(&config.ops.listen).filter(|_| !config.ops.listen.is_empty()).map(|why| rules.value("/ops/listen", why)));
    for (name, kind) in &config.types {
        found.extend(rules.task_type(name, kind, &config.topics));
        found.extend(reserved(name, kind, config));
    }
    found.extend(config.callbacks.iter().flat_map(super::callbacks::broken));
    found.extend(config.email.iter().flat_map(super::email::broken));
    for (name, spec) in &config.schedules {
        found.extend(schedule(name, spec));
    }
    found
}

struct Rules<'a> {
    document: &'a Document,
}

impl Rules<'_> {
    fn value(&self, pointer: &str, allowed: &str) -> Finding {
        bad_value(self.document, pointer, allowed)
    }

    fn positive<const N: usize>(&self, section: &str, spans: [(&str, Option<Millis>); N]) -> Vec<Finding> {
        let zero = spans.into_iter().filter(|(_, span)| *span == Some(Millis(0)));
        zero.map(|(key, _)| self.value(&join(section, key), "longer than zero")).collect()
    }

    fn kafka(&self, config: &Config) -> Vec<Finding> {
        let reserved = |(key, why): &(&str, &str)| {
            config.kafka.contains_key(*key).then(|| {
                let what = format!("`{key}` in `[kafka]` belongs to kafleet and cannot be set: {why}");
                Finding::new(join("/kafka", key), what).hint("remove it")
            })
        };
        let mut found: Vec<_> = RESERVED.iter().filter_map(reserved).collect();
        if let Some(servers) = config.kafka.get("bootstrap.servers") {
            let good = matches!(servers, super::Scalar::Text(text) if text.split(',').all(|server| is_server(server.trim())));
            let bad = || self.value("/kafka/bootstrap.servers", "a list of brokers such as `kafka-1:9092,kafka-2:9092`");
            found.extend((!good).then(bad));
        }
        found
    }

    fn redis(&self, redis: &RedisConfig) -> Vec<Finding> {
        let mut found = self.positive("/redis", [("response_timeout", Some(redis.response_timeout))]);
        let parts = redis.url.split_once("://");
        if !parts.is_some_and(|(scheme, rest)| REDIS_SCHEMES.contains(&scheme) && !rest.is_empty()) {
            let schemes = REDIS_SCHEMES.map(|scheme| format!("`{scheme}://`")).join(", ");
            found.push(self.value("/redis/url", &format!("a Redis URL: it begins with one of {schemes}, then the host")));
        }
        if redis.username.is_some() && redis.password.is_none() && !redis.url.contains('@') {
            found.push(Finding::new("/redis/password", "`redis.username` needs `redis.password`"));
        }
        found
    }

    fn topics(&self, topics: &TopicsConfig) -> Vec<Finding> {
        let mut found = self.positive(
            "/topics",
            [
                ("task_retention", Some(topics.task_retention)),
                ("dead_retention", Some(topics.dead_retention)),
                ("max_tree_age", Some(topics.max_tree_age)),
                ("record_retention", Some(topics.record_retention)),
                ("check_interval", Some(topics.check_interval)),
            ],
        );
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let good = (1..=MAX_PREFIX_CHARS).contains(&topics.prefix.len())
            && topics.prefix.bytes().all(allowed)
            && !topics.prefix.starts_with('.');
        if !good {
            let rule = format!("a prefix: 1 to {MAX_PREFIX_CHARS} characters of A-Z a-z 0-9 . _ -, not beginning with `.`");
            found.push(self.value("/topics/prefix", &rule));
        }
        found
    }

    fn worker(&self, worker: &WorkerConfig) -> Vec<Finding> {
        let mut found = self.positive(
            "/worker",
            [("drain_timeout", Some(worker.drain_timeout)), ("commit_interval", Some(worker.commit_interval))],
        );
        if worker.memory_limit < MIN_MEMORY {
            found.push(self.value("/worker/memory_limit", &format!("at least `{MIN_MEMORY}`")));
        }
        for (key, bytes) in [("max_params", worker.max_params), ("max_output", worker.max_output)] {
            if bytes == Bytes(0) || bytes > MAX_PAYLOAD {
                found.push(self.value(&join("/worker", key), &format!("between `1B` and `{MAX_PAYLOAD}`")));
            }
        }
        found
    }

    fn api(&self, api: &ApiConfig) -> Vec<Finding> {
        let mut found: Vec<_> = listen(&api.listen).map(|why| self.value("/api/listen", why)).into_iter().collect();
        if api.max_body == Bytes(0) {
            found.push(self.value("/api/max_body", "larger than zero"));
        }
        if api.max_attachment.as_usize() > MAX_BYTES {
            found.push(self.value("/api/max_attachment", "at most 64KiB"));
        }
        found.extend(self.tokens());
        found
    }

    /// Read from the document: a token that is wrong in one key is not in the configuration, and its other keys count too.
    fn tokens(&self) -> Vec<Finding> {
        let (mut found, mut names, mut values) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        let tokens = self.document.value.pointer("/api/tokens").and_then(Value::as_array);
        for (n, table) in tokens.into_iter().flatten().enumerate() {
            let at = |key: &str| format!("/api/tokens/{n}/{key}");
            let name = table["name"].as_str();
            let shown = name.map_or_else(|| format!("number {}", n + 1), |name| format!("`{name}`"));
            if let Some(token) = table["token"].as_str() {
                let length = token.chars().count();
                if length < MIN_TOKEN_CHARS || token.chars().any(|c| c.is_whitespace() || c.is_control()) {
                    let what = format!(
                        "the token {shown} has {length} characters: at least {MIN_TOKEN_CHARS} are needed, without spaces"
                    );
                    found.push(Finding::new(at("token"), what).hint("make one with `openssl rand -hex 24`"));
                }
                if !values.insert(token) {
                    found.push(Finding::new(at("token"), format!("the token {shown} is the same as another one")));
                }
            }
            if name.is_some_and(|name| name.is_empty() || !names.insert(name)) {
                found.push(self.value(&at("name"), "a name that no other token has"));
            }
        }
        found
    }

    fn task_type(&self, name: &str, kind: &TypeConfig, topics: &TopicsConfig) -> Vec<Finding> {
        let at = join("/types", name);
        let mut found: Vec<_> = check_type(name).err().map(|why| Finding::new(at.clone(), why)).into_iter().collect();
        let spans = [
            ("timeout", kind.timeout),
            ("total_timeout", kind.total_timeout),
            ("stall_timeout", kind.stall_timeout),
            ("retention", kind.retention),
            ("failure_period", kind.failure_period),
        ];
        found.extend(self.positive(&at, spans));
        if kind.isolation_memory.is_some_and(|memory| memory < MIN_MEMORY) {
            found.push(self.value(&join(&at, "isolation_memory"), &format!("at least `{MIN_MEMORY}`")));
        }
        found.extend(error_kinds(&at, kind));
        found.extend(misplaced(&at, kind));
        found.extend(self.exec(&at, kind));
        found.extend(self.http(&at, kind));
        found.extend(backoff(&at, kind));
        found.extend(unreachable_slots(&at, kind, topics));
        found.extend(limit_below_partitions(&at, kind, topics));
        found.extend(kind.rate.and_then(|rate| rate.check().err()).map(|why| Finding::new(join(&at, "rate"), why)));
        found.extend(schema_file(&at, kind));
        found
    }

    fn exec(&self, at: &str, kind: &TypeConfig) -> Vec<Finding> {
        let mut found = Vec::new();
        let program = kind.command.first().is_some_and(|program| !program.is_empty());
        if kind.handler == Some(HandlerKind::Exec) && !program {
            let what = format!("{} has the handler `exec` and no `command`", table(at));
            found.push(Finding::new(join(at, "command"), what).hint("name the program: `command = [\"program\", \"argument\"]`"));
        }
        let codes = kind.retry_exit_codes.iter().flatten().enumerate();
        for (n, _) in codes.filter(|(_, code)| !(1..=255).contains(*code)) {
            found.push(self.value(&format!("{at}/retry_exit_codes/{n}"), "an exit code of a failure: 1 to 255"));
        }
        for name in kind.env.keys().filter(|name| name.is_empty() || name.contains(['=', '\0'])) {
            found.push(Finding::new(join(&join(at, "env"), name), format!("`{name}` cannot name a variable")));
        }
        found
    }

    fn http(&self, at: &str, kind: &TypeConfig) -> Vec<Finding> {
        let mut found = Vec::new();
        if kind.handler == Some(HandlerKind::Http) && kind.url.is_none() {
            let what = format!("{} has the handler `http` and no `url`", table(at));
            found.push(Finding::new(join(at, "url"), what).hint("say where to send the params: `url = \"https://…\"`"));
        }
        if kind.url.as_deref().is_some_and(|url| !is_http(url)) {
            found.push(self.value(&join(at, "url"), "an address such as `https://host/path`"));
        }
        if kind.method.as_deref().is_some_and(|method| !["POST", "PUT", "PATCH"].contains(&method)) {
            found.push(self.value(&join(at, "method"), "one of `POST`, `PUT`, `PATCH`"));
        }
        for (name, value) in &kind.headers {
            let header = join(&join(at, "headers"), name);
            if name.is_empty() || !name.bytes().all(is_token_byte) {
                found.push(Finding::new(header, format!("`{name}` cannot name a header")));
            } else if value.contains(['\r', '\n', '\0']) {
                found.push(Finding::new(header, format!("the header `{name}` has a line break in its value")));
            }
        }
        found
    }
}

/// A name that belongs to kafleet: only the policy of its own types may be set, where they are in use.
fn reserved(name: &str, kind: &TypeConfig, config: &Config) -> Option<Finding> {
    let at = join("/types", name);
    let own = [(CALLBACK_TYPE, "callbacks", config.callbacks.is_some()), (EMAIL_TYPE, "email", config.email.is_some())];
    match own.into_iter().find(|(own, ..)| *own == name) {
        None if check_type(name).is_ok() => {
            check_own_type(name).err().map(|why| Finding::new(at, why).hint("choose another name"))
        }
        None => None,
        Some((_, section, false)) => {
            let what = format!("{} sets the policy of a type of kafleet, which needs `[{section}]`", table(&at));
            Some(Finding::new(at, what).hint(format!("add `[{section}]`, or remove it")))
        }
        Some(_) => {
            let set = [("handler", kind.handler.is_some()), ("schema", kind.schema.is_some())];
            let (key, _) = set.into_iter().find(|(_, set)| *set)?;
            let what = format!("`{key}` in {} cannot be set: the type is kafleet's own", table(&at));
            Some(Finding::new(join(&at, key), what).hint("remove it"))
        }
    }
}

fn schedule(name: &str, spec: &Spec) -> Vec<Finding> {
    let top = join("/schedules", name);
    let named = check_name(name).err().map(|why| Finding::new(top.clone(), why));
    let flaws = spec.flaws().into_iter().map(|flaw| {
        let pointer = flaw.at.split('/').fold(top.clone(), |above, key| join(&above, key));
        let found = Finding::new(pointer.clone(), format!("`{}`: {}", dotted(&pointer), flaw.what));
        flaw.hint.map_or(found.clone(), |hint| found.hint(hint))
    });
    named.into_iter().chain(flaws).collect()
}

/// Keys that another handler reads, or none.
fn misplaced(at: &str, kind: &TypeConfig) -> Vec<Finding> {
    let keys = [
        ("command", HandlerKind::Exec, !kind.command.is_empty()),
        ("env", HandlerKind::Exec, !kind.env.is_empty()),
        ("cwd", HandlerKind::Exec, kind.cwd.is_some()),
        ("retry_exit_codes", HandlerKind::Exec, kind.retry_exit_codes.is_some()),
        ("url", HandlerKind::Http, kind.url.is_some()),
        ("method", HandlerKind::Http, kind.method.is_some()),
        ("headers", HandlerKind::Http, !kind.headers.is_empty()),
    ];
    let outside = matches!(kind.handler, Some(HandlerKind::Exec | HandlerKind::Http));
    let isolated = (outside && kind.isolation == Some(super::Isolation::Process)).then(|| {
        let what = format!("`isolation` in {} is of no use: nothing of the handler runs in the worker's process", table(at));
        Finding::new(join(at, "isolation"), what).hint("remove it")
    });
    let wrong = keys.into_iter().filter(|(_, owner, set)| *set && kind.handler != Some(*owner));
    wrong
        .map(|(key, owner, _)| {
            let what = format!("`{key}` in {} is read only by the handler `{}`", table(at), owner.name());
            Finding::new(join(at, key), what).hint(format!("add `handler = \"{}\"`, or remove `{key}`", owner.name()))
        })
        .chain(isolated)
        .collect()
}

/// A kind is a word, and belongs to one of the two lists.
fn error_kinds(at: &str, kind: &TypeConfig) -> Vec<Finding> {
    let mut found = Vec::new();
    for (key, list) in [("retry_on", &kind.retry_on), ("fail_on", &kind.fail_on)] {
        for (n, name) in list.iter().enumerate() {
            let place = format!("{at}/{key}/{n}");
            let word = !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
            if name != "*" && !word {
                let what = format!("`{}` in {} is not the kind of an error", crate::model::task::id::clip(name), table(at));
                found
                    .push(Finding::new(place, what).hint("a word such as `timeout`, `panic`, `exit_code`, or `*` for any other"));
            } else if name == "cancelled" {
                let what = format!("`cancelled` cannot be in `{key}`: a cancelled task is neither tried again nor failed");
                found.push(Finding::new(place, what).hint("remove it"));
            } else if key == "fail_on" && kind.retry_on.contains(name) {
                let what = format!("`{name}` is in `retry_on` and in `fail_on` of {}", table(at));
                found.push(Finding::new(place, what).hint("remove it from one of them"));
            }
        }
    }
    found
}

fn backoff(at: &str, kind: &TypeConfig) -> Option<Finding> {
    // The code of a Rust type may say otherwise than the defaults: there only what is written counts.
    let known = kind.handler.is_some() || (kind.min_backoff.is_some() && kind.max_backoff.is_some());
    let retry = TypePolicy::default().with(kind).retry;
    if !known || retry.min_backoff <= retry.max_backoff {
        return None;
    }
    let from = |set: Option<Millis>| if set.is_some() { "" } else { " (the default)" };
    let what = format!(
        "`min_backoff` {}{} is longer than `max_backoff` {}{} in {}",
        retry.min_backoff,
        from(kind.min_backoff),
        retry.max_backoff,
        from(kind.max_backoff),
        table(at)
    );
    let key = if kind.min_backoff.is_some() { "min_backoff" } else { "max_backoff" };
    Some(Finding::new(join(at, key), what).hint("set both, the shorter one as `min_backoff`"))
}

/// In order per partition no more attempts than partitions can ever run.
fn unreachable_slots(at: &str, kind: &TypeConfig, topics: &TopicsConfig) -> Option<Finding> {
    let partitions = kind.partitions.unwrap_or(topics.task_partitions);
    let concurrency = kind.concurrency.filter(|&slots| kind.order == Some(Order::Partition) && slots > partitions)?;
    let what = format!(
        "`concurrency` {concurrency} in {} can never be reached: order `partition` runs one task at a time in each of {partitions} partitions",
        table(at)
    );
    Some(Finding::new(join(at, "concurrency"), what).hint("lower `concurrency`, raise `partitions`, or use order `key`"))
}

/// The limit is divided among the partitions: one without a part would never be worked on.
fn limit_below_partitions(at: &str, kind: &TypeConfig, topics: &TopicsConfig) -> Option<Finding> {
    let partitions = kind.partitions.unwrap_or(topics.task_partitions);
    let limit = kind.max_concurrency.filter(|limit| *limit < partitions)?;
    let what =
        format!("`max_concurrency` {limit} in {} is below its {partitions} partitions, of which each needs one", table(at));
    Some(Finding::new(join(at, "max_concurrency"), what).hint("raise it, or lower `partitions` before the topic is made"))
}

fn schema_file(at: &str, kind: &TypeConfig) -> Option<Finding> {
    let path = kind.schema.as_ref()?;
    let told = |why: String| Finding::new(join(at, "schema"), format!("the schema `{}` {why}", path.display()));
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(why) => return Some(told(format!("cannot be read: {why}")).hint("paths are relative to the configuration's folder")),
    };
    match serde_json::from_slice(&text) {
        Err(why) => Some(told(format!("is not JSON: {why}"))),
        Ok(schema) => crate::handlers::Schema::compile(schema).err().map(|why| told(format!("is not a JSON Schema: {why}"))),
    }
}

/// What is allowed, where a text is not an address to listen on.
fn listen(text: &str) -> Option<&'static str> {
    (!is_server(text)).then_some("an address to listen on, such as `127.0.0.1:8080`, `[::]:8080` or `localhost:8080`")
}

fn is_server(text: &str) -> bool {
    // librdkafka takes a protocol in front.
    let text = text.split_once("://").map_or(text, |(_, rest)| rest);
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let bracketed = host.starts_with('[') && host.ends_with(']');
    let host_fits = !host.is_empty() && (bracketed || !host.contains(':')) && !host.contains(char::is_whitespace);
    host_fits && port.parse::<u16>().is_ok()
}

fn is_http(url: &str) -> bool {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/') && !rest.contains(char::is_whitespace))
}

/// RFC 9110's token.
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
