//! Header names. All headers are optional: a bare JSON line is a valid task. The tables of
//! [`Policy`] have the names of its fields' headers.

use super::Policy;
use super::field::Field;

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
/// Mark of a unique task whose ask was decided.
pub const ASKED: &str = "ce_asked";
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

const OTHER_HEADERS: [&str; 17] = [
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
    ASKED,
    TRACE_PARENT,
    TRACE_STATE,
];

/// Returns the reason why an unknown header that begins with `ce_` is a mistake. CloudEvents extensions of other vendors are
/// accepted, unless their name is one typo away from the name of a header of kafleet.
pub fn mistake(name: &str) -> Option<String> {
    let attribute = name.strip_prefix("ce_").filter(|attribute| !FOREIGN_ATTRIBUTES.contains(attribute))?;
    let plain: String = attribute.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    let find = |fits: &dyn Fn(&str) -> bool| all().find(|header| header.strip_prefix("ce_").is_some_and(fits));
    if let Some(header) = find(&|name| name == plain && name != attribute) {
        return Some(format!("names of attributes have only a-z 0-9: write `{header}`"));
    }
    if attribute.is_empty() || attribute.bytes().any(|byte| !byte.is_ascii_lowercase() && !byte.is_ascii_digit()) {
        return Some("it is no attribute of CloudEvents, whose names have only a-z 0-9; hint: rename it".to_owned());
    }
    if matches!(attribute, "delay" | "at") {
        return Some(format!("it has no effect: write the time of the start into `{NOT_BEFORE}`"));
    }
    let in_policy = |field: &&Field| field.header.is_none() && field.name.replace('_', "") == plain;
    if let Some(field) = Policy::fields().find(in_policy) {
        return Some(format!("it has no effect: write `{}` into the JSON of `{POLICY}`", field.name));
    }
    let near = find(&|name| name.len() >= MIN_GUESSED && is_typo(name.as_bytes(), attribute.as_bytes()))?;
    Some(format!("it is unknown: did you mean `{near}`? Otherwise rename it"))
}

/// Attributes of the standard that kafleet passes on.
const FOREIGN_ATTRIBUTES: [&str; 4] = ["source", "subject", "dataschema", "datacontenttype"];
/// Minimum length of a name that others are compared with: many short names resemble each other.
const MIN_GUESSED: usize = 5;

/// Returns whether a text differs from another one by one letter that is missing, added or wrong, or by two that are
/// swapped.
pub(super) fn is_typo(meant: &[u8], written: &[u8]) -> bool {
    let equal = |pairs: &mut dyn Iterator<Item = (&u8, &u8)>| pairs.take_while(|(a, b)| a == b).count();
    let start = equal(&mut meant.iter().zip(written));
    let (meant, written) = (&meant[start..], &written[start..]);
    let end = equal(&mut meant.iter().rev().zip(written.iter().rev()));
    match (&meant[..meant.len() - end], &written[..written.len() - end]) {
        ([a, b], [c, d]) => a == d && b == c,
        (a, b) => a.len().max(b.len()) == 1,
    }
}

/// Header that has the field with this JSON pointer.
pub fn of_pointer(pointer: &str) -> &'static str {
    let field = pointer.trim_start_matches('/').split('/').next().unwrap_or_default();
    match field {
        "delay" => NOT_BEFORE,
        "expires" => EXPIRES,
        field => Policy::field(field).and_then(|field| field.header).unwrap_or(POLICY),
    }
}

/// Returns true for headers that become part of the task; others are only copied.
pub fn is_known(name: &str) -> bool {
    OTHER_HEADERS.contains(&name) || is_policy(name)
}

/// All headers of a task record.
pub fn all() -> impl Iterator<Item = &'static str> {
    let of_fields = Policy::fields().filter_map(|field| field.header);
    OTHER_HEADERS.into_iter().chain([NOT_BEFORE, EXPIRES, POLICY]).chain(of_fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_headers_are_mistakes_and_extensions_are_not() {
        for (name, part) in [
            ("ce_retires", "`ce_retries`"),
            ("ce_retrys", ""),
            ("ce_timeouts", "`ce_timeout`"),
            ("ce_expire", "`ce_expires`"),
            ("ce_max_backoff", "`ce_maxbackoff`"),
            ("ce_Retries", "`ce_retries`"),
            ("ce_max-failed", "only a-z 0-9"),
            ("ce_maxfailed", "`max_failed` into the JSON"),
            ("ce_then", "`then` into the JSON"),
            ("ce_delay", "`ce_notbefore`"),
            ("ce_", "no attribute"),
            ("ce_ümlaut", "no attribute"),
        ] {
            let reported = mistake(name);
            assert_eq!(reported.is_some(), !part.is_empty(), "{name}: {reported:?}");
            assert!(reported.unwrap_or_default().contains(part), "{name}");
        }
        // Standard attributes and documented extensions of CloudEvents.
        for name in [
            "source",
            "subject",
            "dataschema",
            "datacontenttype",
            "traceparent",
            "tracestate",
            "partitionkey",
            "sequence",
            "sequencetype",
            "sampledrate",
            "dataref",
            "authtype",
            "authid",
            "authclaims",
            "expirytime",
            "recordedtime",
            "correlationid",
            "causationid",
            "severitytext",
            "severitynumber",
            "deprecated",
            "dataclassification",
            "tenant",
        ] {
            assert_eq!(mistake(&format!("ce_{name}")), None, "{name}");
        }
        assert_eq!(mistake("x-tenant"), None);
    }

    #[test]
    fn typo_is_one_letter() {
        for (written, is) in [
            ("parent", false),
            ("parnet", true),
            ("paren", true),
            ("parents", true),
            ("pareXt", true),
            ("prnt", false),
            ("xparent", true),
            ("tnerap", false),
            ("", false),
        ] {
            assert_eq!(is_typo(b"parent", written.as_bytes()), is, "{written}");
        }
    }

    #[test]
    fn pointers_name_the_header_of_their_field() {
        for (pointer, header) in [
            ("/retries", "ce_retries"),
            ("/then/0/type", POLICY),
            ("/delay", NOT_BEFORE),
            ("/expires", EXPIRES),
            ("/options", POLICY),
        ] {
            assert_eq!(of_pointer(pointer), header);
        }
    }
}
