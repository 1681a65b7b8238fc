//! Header names. All headers are optional: a bare JSON line is a valid task.

pub const SPEC_VERSION: &str = "ce_specversion";
pub const ID: &str = "ce_id";
pub const TYPE: &str = "ce_type";
pub const SOURCE: &str = "ce_source";
pub const TIME: &str = "ce_time";
pub const CONTENT_TYPE: &str = "content-type";
pub const PARENT: &str = "ce_parent";
pub const RUN: &str = "ce_run";
pub const ATTEMPT: &str = "ce_attempt";
pub const AS_OF: &str = "ce_asof";
pub const ANNOUNCED: &str = "ce_announced";
pub const HASH: &str = "ce_hash";
pub const NOT_BEFORE: &str = "ce_notbefore";
pub const EXPIRES: &str = "ce_expires";
pub const RETRIES: &str = "ce_retries";
pub const MIN_BACKOFF: &str = "ce_minbackoff";
pub const MAX_BACKOFF: &str = "ce_maxbackoff";
pub const TIMEOUT: &str = "ce_timeout";
pub const TOTAL_TIMEOUT: &str = "ce_totaltimeout";
pub const ON_FAILURE: &str = "ce_onfailure";
pub const NAME: &str = "ce_name";
pub const CREATOR: &str = "ce_creator";
pub const TAGS: &str = "ce_tags";
pub const LINK: &str = "ce_link";
pub const POLICY: &str = "ce_policy";
pub const TRACE_PARENT: &str = "traceparent";
pub const TRACE_STATE: &str = "tracestate";

/// Headers that make up the policy.
pub const OF_POLICY: [&str; 13] = [
    NOT_BEFORE,
    EXPIRES,
    RETRIES,
    MIN_BACKOFF,
    MAX_BACKOFF,
    TIMEOUT,
    TOTAL_TIMEOUT,
    ON_FAILURE,
    NAME,
    CREATOR,
    TAGS,
    LINK,
    POLICY,
];

const OTHERS: [&str; 14] = [
    SPEC_VERSION,
    ID,
    TYPE,
    SOURCE,
    TIME,
    CONTENT_TYPE,
    PARENT,
    RUN,
    ATTEMPT,
    AS_OF,
    ANNOUNCED,
    HASH,
    TRACE_PARENT,
    TRACE_STATE,
];

/// Returns true for headers that become part of the task; others are only copied.
pub fn is_known(name: &str) -> bool {
    OTHERS.contains(&name) || OF_POLICY.contains(&name)
}
