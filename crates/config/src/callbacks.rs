//! `[callbacks]`: allowed destinations of callbacks, and the secrets that sign them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::document::join;
use super::shape::{UnlocatedProblem, table};

/// Maximum length of a secret's name.
const MAX_NAME_CHARS: usize = 64;

#[derive(Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CallbacksConfig {
    /// Allowed hosts, such as `hooks.example.com` or `*.example.com`. Default: any host with a public address.
    pub hosts: Vec<String>,
    /// Allowed private, loopback or link-local networks, such as `10.1.0.0/16`. Default: none.
    pub private: Vec<String>,
    /// Allow `http://`. Default: only `https://`.
    pub plain_http: bool,
    /// Send a callback once more if the receiver closes a kept connection instead of answering. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resend_on_close: Option<bool>,
    /// Signing secrets by name. Tasks refer to them by name only.
    pub secrets: BTreeMap<String, SecretConfig>,
}

#[derive(Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SecretConfig {
    /// The secret; `${VARIABLE}` reads it from the environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// File with the secret, read at each use; relative to kafleet.toml.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Hosts that the secret is used for, as in `callbacks.hosts`; `*` is any. At least one.
    pub hosts: Vec<String>,
}

pub(super) fn problems(config: &CallbacksConfig) -> Vec<UnlocatedProblem> {
    let mut problems = hosts("/callbacks/hosts", &config.hosts);
    for (n, net) in config.private.iter().enumerate().filter(|(_, net)| net.parse::<IpNet>().is_err()) {
        let message = format!("`callbacks.private[{n}]`: `{net}` is not a network");
        problems.push(
            UnlocatedProblem::new(format!("/callbacks/private/{n}"), message)
                .hint("write it as `10.1.0.0/16` or `::1/128`"),
        );
    }
    for (name, secret) in &config.secrets {
        problems.extend(secret_problems(&join("/callbacks/secrets", name), name, secret));
    }
    problems
}

fn secret_problems(at: &str, name: &str, secret: &SecretConfig) -> Vec<UnlocatedProblem> {
    let mut problems = Vec::new();
    if !is_secret_name(name) {
        let message = format!("`{}` cannot name a secret", kafleet_model::task::id::clip(name));
        problems.push(
            UnlocatedProblem::new(at, message).hint(format!("use 1 to {MAX_NAME_CHARS} characters of a-z 0-9 _ -")),
        );
    }
    if secret.value.is_some() == secret.file.is_some() {
        problems.push(UnlocatedProblem::new(at, format!("{} needs either `value` or `file`", table(at))));
    }
    if secret.value.as_deref().is_some_and(str::is_empty) {
        problems.push(UnlocatedProblem::new(join(at, "value"), format!("the secret `{name}` is empty")));
    }
    if secret.hosts.is_empty() {
        let message = format!("{} needs `hosts`, the hosts that the secret is used for", table(at));
        problems.push(
            UnlocatedProblem::new(join(at, "hosts"), message)
                .hint("write, for example, `hosts = [\"hooks.example.com\"]`"),
        );
    }
    problems.extend(hosts(&join(at, "hosts"), &secret.hosts));
    problems
}

pub(super) fn is_secret_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-');
    (1..=MAX_NAME_CHARS).contains(&name.len()) && name.bytes().all(allowed)
}

fn hosts(at: &str, hosts: &[String]) -> Vec<UnlocatedProblem> {
    let wrong = hosts.iter().enumerate().filter(|(_, host)| !is_host_pattern(host));
    let problem = |(n, host): (usize, &String)| {
        let message = format!("`{}` is not a host", kafleet_model::task::id::clip(host));
        UnlocatedProblem::new(format!("{at}/{n}"), message).hint(
            "give a name or address without scheme, port and path, such as `hooks.example.com` or `*.example.com`",
        )
    };
    wrong.map(problem).collect()
}

fn is_host_pattern(host: &str) -> bool {
    let name = host.strip_prefix("*.").unwrap_or(host);
    let plain = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
    host == "*" || plain || name.parse::<std::net::Ipv6Addr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_and_addresses() {
        for host in ["example.com", "*.example.com", "*", "10.0.0.1", "::1", "localhost"] {
            assert!(is_host_pattern(host), "{host}");
        }
        for host in ["", "*.", "https://a", "a:80", "a/b", "*a.com", "a.*"] {
            assert!(!is_host_pattern(host), "{host}");
        }
    }

    #[test]
    fn all_problems_of_the_section_are_reported() {
        let secret = SecretConfig { value: Some(String::new()), file: Some("f".into()), hosts: vec!["a b".into()] };
        let config = CallbacksConfig {
            hosts: vec!["https://a".into()],
            private: vec!["10.0.0.0/8".into(), "10/8".into()],
            secrets: [("Bad".to_owned(), secret)].into(),
            ..CallbacksConfig::default()
        };
        let pointers: Vec<String> = problems(&config).into_iter().map(|problem| problem.pointer).collect();
        let at = "/callbacks/secrets/Bad";
        let expected =
            ["/callbacks/hosts/0", "/callbacks/private/1", at, at, &format!("{at}/value"), &format!("{at}/hosts/0")];
        assert_eq!(pointers, expected);
    }
}
