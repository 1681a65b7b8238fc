//! Header names. All headers are optional: a bare JSON line is a valid task. The tables of
//! [`Policy`] have the names of its fields' headers.

use super::Policy;

pub const SPEC_VERSION: &str = "ce_specversion";
pub const ID: &str = "ce_id";
pub const TYPE: &str = "ce_type";
pub const SOURCE: &str = "ce_source";
pub const TIME: &str = "ce_time";
pub const CONTENT_TYPE: &str = "content-type";
pub const PARENT: &str = "ce_parent";
pub const RUN: &str = "ce_run";
pub const ATTEMPT: &str = "ce_attempt";
pub const WAITS: &str = "ce_waits";
pub const BACKOFF_FROM: &str = "ce_backofffrom";
pub const AS_OF: &str = "ce_asof";
pub const ANNOUNCED: &str = "ce_announced";
pub const HASH: &str = "ce_hash";
pub const NOT_BEFORE: &str = "ce_notbefore";
pub const EXPIRES: &str = "ce_expires";
pub const POLICY: &str = "ce_policy";
/// Header of the field `reply_to`.
pub const REPLY_TO: &str = "ce_replyto";
pub const TRACE_PARENT: &str = "traceparent";
pub const TRACE_STATE: &str = "tracestate";

/// Returns true for headers that make up the policy.
pub fn is_policy(name: &str) -> bool {
    matches!(name, NOT_BEFORE | EXPIRES | POLICY) || Policy::fields().any(|field| field.header == Some(name))
}

const OTHERS: [&str; 16] = [
    SPEC_VERSION,
    ID,
    TYPE,
    SOURCE,
    TIME,
    CONTENT_TYPE,
    PARENT,
    RUN,
    ATTEMPT,
    WAITS,
    BACKOFF_FROM,
    AS_OF,
    ANNOUNCED,
    HASH,
    TRACE_PARENT,
    TRACE_STATE,
];

/// Returns true for headers that become part of the task; others are only copied.
pub fn is_known(name: &str) -> bool {
    OTHERS.contains(&name) || is_policy(name)
}

/// All headers of a task record.
pub fn all() -> impl Iterator<Item = &'static str> {
    let of_fields = Policy::fields().filter_map(|field| field.header);
    OTHERS.into_iter().chain([NOT_BEFORE, EXPIRES, POLICY]).chain(of_fields)
}
