//! Redaction of passwords, tokens, keys, and all values of headers and environments.

use serde::Serialize;
use serde_json::Value;

const HIDDEN: &str = "***";

/// Parts of key names, in lower case, that mark the value of the key as secret.
const SECRET_WORDS: [&str; 9] =
    ["password", "passphrase", "secret", "token", "credential", "oauthbearer", "key.pem", "jaas", "authorization"];

/// Returns whether the value of a key is secret. Keys start at the root: `["api", "tokens", "0", "token"]`.
pub(super) fn is_secret(keys: &[String]) -> bool {
    let Some((last, above)) = keys.split_last() else { return false };
    let last = last.to_ascii_lowercase();
    SECRET_WORDS.iter().any(|word| last.contains(word)) || above.last().is_some_and(|table| table == "headers" || table == "env")
        // [callbacks.secrets.name]
        || (last == "value" && above.len() > 1 && above[above.len() - 2] == "secrets")
}

/// Returns a value with secrets redacted.
pub(super) fn redacted(keys: &[String], value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let inner = |key: &String| keys.iter().cloned().chain([key.clone()]).collect::<Vec<_>>();
            map.iter().map(|(key, value)| (key.clone(), redacted(&inner(key), value))).collect()
        }
        // An item of a list is secret if the list's key is.
        Value::Array(items) => items.iter().map(|item| redacted(keys, item)).collect(),
        _ if is_secret(keys) => HIDDEN.into(),
        Value::String(text) => without_userinfo(text).into(),
        other => other.clone(),
    }
}

/// Redacts user and password of a URL. Any other text is unchanged.
pub fn without_userinfo(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let authority = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..authority].rfind('@') {
        Some(at) => format!("{scheme}://{HIDDEN}{}", &rest[at..]),
        // An unescaped `/` in a password ends the authority too early: hide too much rather than too little.
        None => match rest.rfind('@') {
            Some(at) => format!("{scheme}://{HIDDEN}{}", &rest[at..]),
            None => text.to_owned(),
        },
    }
}

/// Implements `Debug` for a struct with secrets.
pub(super) fn debug<T: Serialize>(name: &str, value: &T, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
    match serde_json::to_value(value) {
        Ok(value) => write!(f, "{name} {}", redacted(&[], &value)),
        Err(error) => write!(f, "{name} (cannot be shown: {error})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_passwords_in_urls_are_hidden() {
        for (url, redacted) in [
            ("redis://127.0.0.1:6379", "redis://127.0.0.1:6379"),
            ("rediss://me:hunter2@host:6380/1", "rediss://***@host:6380/1"),
            ("redis://:pa/ss@word@host", "redis://***@host"),
            ("plain text", "plain text"),
        ] {
            assert_eq!(without_userinfo(url), redacted);
        }
    }
}
