//! Checks of `[types.<name>]` beyond the schema.

use kafleet_model::json::check_pointer;
use kafleet_model::task::action::{CALLBACK_TYPE, EMAIL_TYPE};
use kafleet_model::task::header;
use kafleet_model::task::id::{check_own_type, check_type, clip};
use kafleet_model::task::param_tags::name_of;
use kafleet_model::units::duration::Millis;

use super::checks::{MIN_MEMORY, positive};
use super::document::{Document, dotted, join};
use super::policy::is_masked;
use super::shape::{UnlocatedProblem, bad_value, table};
use super::{
    BatchPolicy, Config, HandlerKind, Isolation, Order, TYPE_SETTINGS, TopicsConfig, TypeConfig, TypePolicy,
    written_keys,
};

/// Maximum length of the name of a kept header, in characters.
const MAX_HEADER_CHARS: usize = 128;

pub(super) fn problems(document: &Document, config: &Config) -> Vec<UnlocatedProblem> {
    let mut problems = Vec::new();
    for (name, kind) in &config.types {
        problems.extend(type_problems(document, name, kind, &config.topics));
        problems.extend(reserved(name, kind, config));
        let at = join(&join("/types", name), "group");
        problems.extend(kind.group.as_ref().and_then(|group| shared_group(&at, group, Some(name), config)));
    }
    let default = config.worker.group.as_ref();
    problems.extend(default.and_then(|group| shared_group("/worker/group", group, None, config)));
    problems
}

pub(super) fn type_problems(
    document: &Document,
    name: &str,
    kind: &TypeConfig,
    topics: &TopicsConfig,
) -> Vec<UnlocatedProblem> {
    let at = join("/types", name);
    let mut problems: Vec<_> =
        check_type(name).err().map(|error| UnlocatedProblem::new(at.clone(), error)).into_iter().collect();
    let spans = [
        ("timeout", kind.timeout),
        ("total_timeout", kind.total_timeout),
        ("stall_timeout", kind.stall_timeout),
        ("retention", kind.retention),
        ("failure_period", kind.failure_period),
    ];
    problems.extend(positive(document, &at, spans));
    if kind.isolation_memory.is_some_and(|memory| memory < MIN_MEMORY) {
        problems.push(bad_value(document, &join(&at, "isolation_memory"), &format!("at least `{MIN_MEMORY}`")));
    }
    problems.extend(error_kinds(&at, kind));
    problems.extend(kept_headers(document, &at, kind));
    problems.extend(pointers(&at, kind));
    problems.extend(misplaced(&at, kind));
    problems.extend(exec(document, &at, kind));
    problems.extend(http(document, &at, kind));
    problems.extend(contradictions(&at, kind));
    problems.extend(longer_than_trees(document, &at, kind, topics));
    problems.extend(unreachable_slots(&at, kind, topics));
    problems.extend(limit_below_partitions(&at, kind, topics));
    problems.extend(
        kind.rate.and_then(|rate| rate.check().err()).map(|error| UnlocatedProblem::new(join(&at, "rate"), error)),
    );
    let adaptive = kind.adaptive.as_ref().and_then(|adaptive| adaptive.check().err());
    problems.extend(adaptive.map(|error| UnlocatedProblem::new(join(&at, "adaptive"), error)));
    let unique = kind.unique.as_ref().and_then(|setting| setting.check().err());
    problems.extend(unique.map(|error| UnlocatedProblem::new(join(&at, "unique"), error)));
    problems.extend(batches(&at, kind));
    problems.extend(schema_file(&at, kind));
    problems
}

/// Checks the setting `batch`, and that its type has a handler that takes batches, as far as the file alone says.
fn batches(at: &str, kind: &TypeConfig) -> Option<UnlocatedProblem> {
    let setting = kind.batch.as_ref()?;
    let at_batch = join(at, "batch");
    if let Err(reason) = BatchPolicy::default().with(setting).check() {
        return Some(UnlocatedProblem::new(at_batch, format!("`batch` in {}: {reason}", table(at))));
    }
    if let Some(handler) = kind.handler.filter(|kind| !matches!(kind, HandlerKind::Exec | HandlerKind::Http)) {
        let message =
            format!("`batch` in {} has no effect: the handler `{}` takes one task a call", table(at), handler.name());
        return Some(UnlocatedProblem::new(at_batch, message).hint("remove it"));
    }
    let refused = [
        (
            "order",
            kind.order == Some(Order::Partition),
            "`order = \"partition\"` runs one task at a time, so that no batch forms",
        ),
        (
            "isolation",
            kind.isolation == Some(Isolation::Process),
            "`isolation = \"process\"` runs one task at a time in a process",
        ),
    ];
    let (key, _, reason) = refused.into_iter().find(|(_, is_set, _)| *is_set)?;
    let message = format!("`batch` and `{key}` in {} exclude each other: {reason}", table(at));
    Some(UnlocatedProblem::new(at_batch, message).hint(format!("remove `batch` or `{key}`")))
}

fn exec(document: &Document, at: &str, kind: &TypeConfig) -> Vec<UnlocatedProblem> {
    let mut problems = Vec::new();
    let program = kind.command.first().is_some_and(|program| !program.is_empty());
    if kind.handler == Some(HandlerKind::Exec) && !program {
        let message = format!("{} has the handler `exec` and no `command`", table(at));
        problems.push(
            UnlocatedProblem::new(join(at, "command"), message)
                .hint("set the program: `command = [\"program\", \"argument\"]`"),
        );
    }
    problems.extend(exit_codes(document, at, kind));
    for name in kind.env.keys().filter(|name| name.is_empty() || name.contains(['=', '\0'])) {
        problems.push(UnlocatedProblem::new(
            join(&join(at, "env"), name),
            format!("`{name}` is not a valid variable name"),
        ));
    }
    problems
}

/// Checks that exit codes are those of failures, and in one list only.
fn exit_codes(document: &Document, at: &str, kind: &TypeConfig) -> Vec<UnlocatedProblem> {
    let mut problems = Vec::new();
    let retried = kind.retry_exit_codes.as_deref().unwrap_or_default();
    for (key, codes) in [("retry_exit_codes", retried), ("wait_exit_codes", &kind.wait_exit_codes)] {
        for (n, code) in codes.iter().enumerate() {
            let pointer = format!("{at}/{key}/{n}");
            if !(1..=255).contains(code) {
                problems.push(bad_value(document, &pointer, "an exit code of a failure: 1 to 255"));
            } else if key == "wait_exit_codes" && retried.contains(code) {
                let message = format!("{code} is in both `retry_exit_codes` and `wait_exit_codes` of {}", table(at));
                problems.push(UnlocatedProblem::new(pointer, message).hint("remove it from one of them"));
            }
        }
    }
    problems
}

fn http(document: &Document, at: &str, kind: &TypeConfig) -> Vec<UnlocatedProblem> {
    let mut problems = Vec::new();
    if kind.handler == Some(HandlerKind::Http) && kind.url.is_none() {
        let message = format!("{} has the handler `http` and no `url`", table(at));
        problems.push(
            UnlocatedProblem::new(join(at, "url"), message)
                .hint("set the address that receives the params: `url = \"https://…\"`"),
        );
    }
    if kind.url.as_deref().is_some_and(|url| !is_http(url)) {
        problems.push(bad_value(document, &join(at, "url"), "an address such as `https://host/path`"));
    }
    if kind.method.as_deref().is_some_and(|method| !["POST", "PUT", "PATCH"].contains(&method)) {
        problems.push(bad_value(document, &join(at, "method"), "one of `POST`, `PUT`, `PATCH`"));
    }
    problems.extend(kind.headers.iter().filter_map(|(name, value)| request_header(at, name, value)));
    problems
}

fn request_header(at: &str, name: &str, value: &str) -> Option<UnlocatedProblem> {
    let pointer = join(&join(at, "headers"), name);
    if name.is_empty() || !name.bytes().all(is_token_byte) {
        return Some(UnlocatedProblem::new(pointer, format!("`{name}` is not a valid header name")));
    }
    let is_broken = value.contains(['\r', '\n', '\0']);
    is_broken.then(|| UnlocatedProblem::new(pointer, format!("the header `{name}` has a line break in its value")))
}

/// Checks reserved names: of the built-in types only the policy can be set, and only if they are enabled.
fn reserved(name: &str, kind: &TypeConfig, config: &Config) -> Option<UnlocatedProblem> {
    let at = join("/types", name);
    let built_in =
        [(CALLBACK_TYPE, "callbacks", config.callbacks.is_some()), (EMAIL_TYPE, "email", config.email.is_some())];
    match built_in.into_iter().find(|(type_name, ..)| *type_name == name) {
        None if check_type(name).is_ok() => {
            check_own_type(name).err().map(|error| UnlocatedProblem::new(at, error).hint("choose another name"))
        }
        None => None,
        Some((_, section, false)) => {
            let message = format!("{} sets the policy of a built-in type, which needs `[{section}]`", table(&at));
            Some(UnlocatedProblem::new(at, message).hint(format!("add `[{section}]`, or remove it")))
        }
        Some(_) => {
            let set = [("handler", kind.handler.is_some()), ("schema", kind.schema.is_some())];
            let (key, _) = set.into_iter().chain(variable_keys(kind)).find(|(_, set)| *set)?;
            let message = format!("`{key}` in {} cannot be set: the type is built in", table(&at));
            Some(UnlocatedProblem::new(join(&at, key), message).hint("remove it"))
        }
    }
}

/// Reports keys that the handler does not use.
fn misplaced(at: &str, kind: &TypeConfig) -> Vec<UnlocatedProblem> {
    let written = written_keys(kind);
    let wrong = TYPE_SETTINGS.iter().filter_map(|setting| {
        let owner = setting.handler().filter(|owner| kind.handler != Some(*owner))?;
        written.contains_key(setting.key).then_some((setting.key, owner.name()))
    });
    wrong
        .map(|(key, owner)| {
            let message = format!("`{key}` in {} is only used by the handler `{owner}`", table(at));
            UnlocatedProblem::new(join(at, key), message)
                .hint(format!("add `handler = \"{owner}\"`, or remove `{key}`"))
        })
        .chain(useless_isolation(at, kind))
        .chain(useless_headers(at, kind))
        .chain(useless_variables(at, kind))
        .collect()
}

fn useless_variables(at: &str, kind: &TypeConfig) -> Option<UnlocatedProblem> {
    let handler = kind.handler.filter(|handler| *handler != HandlerKind::Exec)?;
    let (key, _) = variable_keys(kind).into_iter().find(|(_, is_set)| *is_set)?;
    let message = format!("`{key}` in {} has no effect: the handler `{}` starts no program", table(at), handler.name());
    Some(UnlocatedProblem::new(join(at, key), message).hint("remove it"))
}

/// Keys about environment variables, and whether they are set.
fn variable_keys(kind: &TypeConfig) -> [(&'static str, bool); 2] {
    [("env", !kind.env.is_empty()), ("inherit", kind.inherit.is_some())]
}

fn useless_isolation(at: &str, kind: &TypeConfig) -> Option<UnlocatedProblem> {
    let is_outside = matches!(kind.handler, Some(HandlerKind::Exec | HandlerKind::Http));
    (is_outside && kind.isolation == Some(Isolation::Process)).then(|| {
        let message =
            format!("`isolation` in {} has no effect: the handler runs nothing in the worker's process", table(at));
        UnlocatedProblem::new(join(at, "isolation"), message).hint("remove it")
    })
}

fn useless_headers(at: &str, kind: &TypeConfig) -> Option<UnlocatedProblem> {
    let handler = kind.handler.filter(|_| !kind.keep_headers.is_empty())?;
    let message = format!("`keep_headers` in {} has no effect: the handler `{}` reads none", table(at), handler.name());
    Some(UnlocatedProblem::new(join(at, "keep_headers"), message).hint("remove it"))
}

/// Checks that error kinds are words and in one list only.
fn error_kinds(at: &str, kind: &TypeConfig) -> Vec<UnlocatedProblem> {
    let mut problems = Vec::new();
    let trip_on = kind.trip_on.as_deref().unwrap_or_default();
    for (key, list) in [("retry_on", &kind.retry_on[..]), ("fail_on", &kind.fail_on), ("trip_on", trip_on)] {
        for (n, name) in list.iter().enumerate() {
            let pointer = format!("{at}/{key}/{n}");
            if !(is_kind(name) || (name == "*" && key != "trip_on")) {
                let message = format!("`{}` in `{key}` of {} is not an error kind", clip(name), table(at));
                problems.push(UnlocatedProblem::new(pointer, message).hint(if key == "trip_on" {
                    "use words such as `unreachable`, `overloaded`, `timeout`; `[]` switches the circuit off"
                } else {
                    "use a word such as `timeout`, `panic`, `exit_code`, or `*` for any other"
                }));
            } else if name == "cancelled" {
                let message =
                    format!("`cancelled` cannot be in `{key}`: a cancelled task is neither retried nor failed");
                problems.push(UnlocatedProblem::new(pointer, message).hint("remove it"));
            } else if key == "fail_on" && kind.retry_on.contains(name) {
                let message = format!("`{name}` is in both `retry_on` and `fail_on` of {}", table(at));
                problems.push(UnlocatedProblem::new(pointer, message).hint("remove it from one of them"));
            }
        }
    }
    problems
}

/// Returns whether a name can be an error kind: a word, or the name of a class.
fn is_kind(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// Checks that kept headers are not those that kafleet reads itself.
fn kept_headers(document: &Document, at: &str, kind: &TypeConfig) -> Vec<UnlocatedProblem> {
    let mut problems = Vec::new();
    for (n, name) in kind.keep_headers.iter().enumerate() {
        let pointer = format!("{at}/keep_headers/{n}");
        if !(1..=MAX_HEADER_CHARS).contains(&name.chars().count()) {
            problems.push(bad_value(document, &pointer, &format!("a name of 1 to {MAX_HEADER_CHARS} characters")));
        } else if header::is_known(&name.to_ascii_lowercase()) {
            let message = format!("`{name}` in `keep_headers` of {} is read by kafleet itself", table(at));
            problems.push(UnlocatedProblem::new(pointer, message).hint("remove it: its value is part of the task"));
        }
    }
    problems
}

/// Checks the JSON pointers of `mask` and `index`. What is masked cannot be searched.
fn pointers(at: &str, kind: &TypeConfig) -> Vec<UnlocatedProblem> {
    let mut problems = Vec::new();
    for (key, list) in [("mask", &kind.mask), ("index", &kind.index)] {
        for (n, pointer) in list.iter().enumerate() {
            let here = format!("{at}/{key}/{n}");
            let invalid = match key {
                "mask" => check_pointer(pointer).err().map(str::to_owned),
                _ => name_of(pointer).err(),
            };
            if let Some(reason) = invalid {
                let message = format!("`{}` in `{key}` of {} cannot be used: {reason}", clip(pointer), table(at));
                problems.push(UnlocatedProblem::new(here, message));
            } else if list[..n].contains(pointer) {
                let message = format!("`{}` is twice in `{key}` of {}", clip(pointer), table(at));
                problems.push(UnlocatedProblem::new(here, message).hint("remove one of them"));
            } else if key == "index" && is_masked(&kind.mask, pointer) {
                let message = format!("`{}` is in both `index` and `mask` of {}", clip(pointer), table(at));
                problems.push(
                    UnlocatedProblem::new(here, message).hint("remove it from one: a masked value cannot be searched"),
                );
            }
        }
    }
    problems
}

/// Reports limits that cannot take effect because of others. The code of a Rust type may override defaults, so omitted
/// limits are compared only for types with a handler here.
fn contradictions(at: &str, kind: &TypeConfig) -> Vec<UnlocatedProblem> {
    let policy = TypePolicy::default().with(kind);
    let or_default = |set: Option<Millis>, default| set.or(kind.handler.is_some().then_some(default));
    let min_backoff = or_default(kind.min_backoff, policy.min_backoff);
    let max_backoff = or_default(kind.max_backoff, policy.max_backoff);
    let timeout = or_default(kind.timeout, policy.timeout);
    let limits = [
        ("min_backoff", min_backoff, "max_backoff", max_backoff),
        ("timeout", kind.timeout, "total_timeout", kind.total_timeout),
        ("max_wait", kind.max_wait, "total_timeout", kind.total_timeout),
        ("stall_timeout", kind.stall_timeout, "timeout", timeout),
        ("backoff_reset", kind.backoff_reset, "timeout", timeout),
    ];
    let written = written_keys(kind);
    let from = |key: &str| if written.contains_key(key) { "" } else { " (the default)" };
    let problem = |(key, span, of, limit): (&str, Option<Millis>, &str, Option<Millis>)| {
        let (span, limit) = span.zip(limit).filter(|(span, limit)| span > limit)?;
        let message = format!("`{key}` {span}{} is longer than `{of}` {limit}{} in {}", from(key), from(of), table(at));
        let at = join(at, if written.contains_key(key) { key } else { of });
        Some(UnlocatedProblem::new(at, message).hint(format!("set both, with the shorter one as `{key}`")))
    };
    limits.into_iter().filter_map(problem).collect()
}

/// Reports time limits of tasks that are longer than a tree may stay open.
fn longer_than_trees(document: &Document, at: &str, kind: &TypeConfig, topics: &TopicsConfig) -> Vec<UnlocatedProblem> {
    let spans = [
        ("timeout", kind.timeout),
        ("total_timeout", kind.total_timeout),
        ("stall_timeout", kind.stall_timeout),
        ("min_backoff", kind.min_backoff),
        ("max_backoff", kind.max_backoff),
        ("backoff_reset", kind.backoff_reset),
        ("max_wait", kind.max_wait),
    ];
    let longer = spans.into_iter().filter(|(_, span)| span.is_some_and(|span| span > topics.max_tree_age));
    let rule =
        format!("at most `topics.max_tree_age`, {}, the longest time that a tree stays open", topics.max_tree_age);
    longer.map(|(key, _)| bad_value(document, &join(at, key), &rule)).collect()
}

/// Reports more slots than partitions for order `partition`, which runs one task per partition.
fn unreachable_slots(at: &str, kind: &TypeConfig, topics: &TopicsConfig) -> Option<UnlocatedProblem> {
    let partitions = kind.partitions.unwrap_or(topics.task_partitions);
    let concurrency = kind.concurrency.filter(|&slots| kind.order == Some(Order::Partition) && slots > partitions)?;
    let message = format!(
        "`concurrency` {concurrency} in {} cannot be reached: order `partition` runs one task at a time in each of {partitions} partitions",
        table(at)
    );
    Some(
        UnlocatedProblem::new(join(at, "concurrency"), message)
            .hint("lower `concurrency`, raise `partitions`, or use order `key`"),
    )
}

/// Reports a limit below the number of partitions: it is divided among them, and each needs at least one slot.
fn limit_below_partitions(at: &str, kind: &TypeConfig, topics: &TopicsConfig) -> Option<UnlocatedProblem> {
    let partitions = kind.partitions.unwrap_or(topics.task_partitions);
    let limit = kind.max_concurrency.filter(|limit| *limit < partitions)?;
    let message = format!(
        "`max_concurrency` {limit} in {} is below its {partitions} partitions, each of which needs one",
        table(at)
    );
    Some(
        UnlocatedProblem::new(join(at, "max_concurrency"), message)
            .hint("raise it, or lower `partitions` before the topic is created"),
    )
}

/// Checks the name of a consumer group, which no type but `task_type` may have.
fn shared_group(at: &str, group: &str, task_type: Option<&str>, config: &Config) -> Option<UnlocatedProblem> {
    if let Err(error) = check_type(group) {
        return Some(
            UnlocatedProblem::new(at, format!("`{}`: {error}", dotted(at))).hint("groups are named like types"),
        );
    }
    if task_type == Some(group) || !config.types.contains_key(group) {
        return None;
    }
    let which = if task_type.is_some() { "another" } else { "a" };
    let message = format!("`{}`: `{group}` is the name of {which} type, which has a group of that name", dotted(at));
    Some(UnlocatedProblem::new(at, message).hint("choose a name that no type has, such as `small`"))
}

fn schema_file(at: &str, kind: &TypeConfig) -> Option<UnlocatedProblem> {
    let path = kind.schema.as_ref()?;
    let problem =
        |reason: String| UnlocatedProblem::new(join(at, "schema"), format!("the schema `{}` {reason}", path.display()));
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(reason) => {
            return Some(
                problem(format!("cannot be read: {reason}")).hint("paths are relative to the configuration's folder"),
            );
        }
    };
    match serde_json::from_slice(&text) {
        Err(reason) => Some(problem(format!("is not JSON: {reason}"))),
        Ok(schema) => jsonschema::validator_for(&schema)
            .err()
            .map(|reason| problem(format!("is not a JSON Schema: {}", clip(&reason.to_string())))),
    }
}

fn is_http(url: &str) -> bool {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/') && !rest.contains(char::is_whitespace))
}

/// Returns whether a byte may be in a token of RFC 9110.
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
