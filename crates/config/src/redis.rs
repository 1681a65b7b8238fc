//! `[redis]`: the store's connection.

use std::path::PathBuf;

use kafleet_model::units::duration::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::checks::positive;
use super::document::Document;
use super::shape::{UnlocatedProblem, bad_value};

const REDIS_SCHEMES: [&str; 7] =
    ["redis", "rediss", "redis-cluster", "rediss-cluster", "redis-sentinel", "rediss-sentinel", "redis+unix"];

#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RedisConfig {
    /// `redis://`, `redis-cluster://host,host`, `redis-sentinel://host,host/master`, each with `rediss` for TLS;
    /// `redis+unix:///path`.
    pub url: String,
    /// Overrides the user name of the URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// Overrides the password of the URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// Password of the sentinels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sentinel_password: Option<String>,
    /// File with the certificates (PEM) of the authorities that the server's certificate may be signed by, relative to
    /// kafleet.toml. Default: those of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// File with the client's certificate (PEM), for servers that demand one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// File with the private key (PEM) of `certificate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// Timeout of a response.
    pub response_timeout: Millis,
}

impl RedisConfig {
    /// Replaces the URL. If it has credentials, they replace those of the configuration, which are of another server.
    pub fn set_url(&mut self, url: &str) {
        url.clone_into(&mut self.url);
        if url.contains('@') {
            (self.username, self.password) = (None, None);
        }
    }
}

impl Default for RedisConfig {
    fn default() -> Self {
        Self {
            url: "redis://127.0.0.1:6379".into(),
            username: None,
            password: None,
            sentinel_password: None,
            ca: None,
            certificate: None,
            key: None,
            response_timeout: Millis::secs(10),
        }
    }
}

pub(super) fn problems(document: &Document, redis: &RedisConfig) -> Vec<UnlocatedProblem> {
    let mut problems = positive(document, "/redis", [("response_timeout", Some(redis.response_timeout))]);
    let parts = redis.url.split_once("://");
    if !parts.is_some_and(|(scheme, rest)| REDIS_SCHEMES.contains(&scheme) && !rest.is_empty()) {
        let schemes = REDIS_SCHEMES.map(|scheme| format!("`{scheme}://`")).join(", ");
        problems.push(bad_value(
            document,
            "/redis/url",
            &format!("a Redis URL: one of {schemes}, followed by the host"),
        ));
    }
    problems.extend(certificates(redis));
    if redis.username.is_some() && redis.password.is_none() && !redis.url.contains('@') {
        problems.push(UnlocatedProblem::new("/redis/password", "`redis.username` needs `redis.password`"));
    }
    problems
}

/// Checks that certificates can be used with the URL, and are complete.
fn certificates(redis: &RedisConfig) -> Option<UnlocatedProblem> {
    let files = [("ca", &redis.ca), ("certificate", &redis.certificate), ("key", &redis.key)];
    let (key, _) = files.into_iter().find(|(_, file)| file.is_some())?;
    let pointer = format!("/redis/{key}");
    if redis.certificate.is_some() != redis.key.is_some() {
        let message = "`redis.certificate` and `redis.key` belong together";
        return Some(UnlocatedProblem::new(pointer, message).hint("set both, or none"));
    }
    if !redis.url.starts_with("rediss") {
        let message = format!("`redis.{key}` has no effect: `redis.url` does not use TLS");
        return Some(UnlocatedProblem::new(pointer, message).hint("write `rediss://` for TLS, or remove the key"));
    }
    redis.url.starts_with("rediss-sentinel").then(|| {
        let message = format!("`redis.{key}` cannot be used with sentinels");
        UnlocatedProblem::new(pointer, message)
            .hint("name the file with the authorities in the variable `SSL_CERT_FILE` instead")
    })
}
