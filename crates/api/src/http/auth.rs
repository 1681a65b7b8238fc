//! Authorization: bearer tokens with roles.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::http::{HeaderMap, header};
use kafleet_config::{ApiConfig, MIN_TOKEN_CHARS, Role, TokenConfig};
use parking_lot::RwLock;
use sha2::{Digest, Sha256};

use super::problem::{ApiError, Code};

type Hash = [u8; 32];

/// Access rules that can be replaced while the API serves.
#[derive(Clone, Default)]
pub struct LiveAccess(Arc<RwLock<Arc<Access>>>);

impl LiveAccess {
    /// Replaces the rules, unless they are not safe on this address.
    pub fn replace(&self, config: &ApiConfig, address: SocketAddr) -> anyhow::Result<()> {
        *self.0.write() = Arc::new(Access::new(config, address)?);
        Ok(())
    }

    /// Returns the present rules.
    pub fn current(&self) -> Arc<Access> {
        self.0.read().clone()
    }
}

/// Access rules of this API.
pub struct Access {
    tokens: Vec<(Hash, TokenConfig)>,
    /// Without tokens only requests addressed to a loopback host are accepted, which defends against DNS rebinding.
    local_only: bool,
}

impl Default for Access {
    fn default() -> Self {
        Self { tokens: Vec::new(), local_only: true }
    }
}

impl Access {
    /// Refuses to serve a non-loopback address without tokens, unless the configuration allows it.
    pub fn new(config: &ApiConfig, address: SocketAddr) -> anyhow::Result<Self> {
        let open = config.tokens.is_empty();
        if open && !address.ip().is_loopback() && !config.insecure_without_tokens {
            anyhow::bail!(
                "without tokens, the API would accept requests from everyone who can reach `{address}`\n\nhint: set \
                 `api.tokens`, listen on 127.0.0.1, or set `api.insecure_without_tokens = true` if access is \
                 restricted elsewhere"
            );
        }
        if let Some(short) = config.tokens.iter().find(|token| token.token.chars().count() < MIN_TOKEN_CHARS) {
            anyhow::bail!(
                "the token named `{}` is too short\n\nhint: use at least {MIN_TOKEN_CHARS} characters",
                short.name
            );
        }
        let tokens = config.tokens.iter().map(|token| (hash(&token.token), token.clone())).collect();
        Ok(Self { tokens, local_only: open && !config.insecure_without_tokens })
    }

    /// Without tokens, rejects a request that is addressed to a host other than this machine.
    pub fn check_host(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.local_only && !names_this_machine(headers) {
            return Err(ApiError::new(
                Code::ForbiddenHost,
                "without tokens the API accepts only requests addressed to this machine",
            )
            .hint("use 127.0.0.1 or localhost, or set `api.tokens`"));
        }
        Ok(())
    }

    /// Checks that the token's role permits the request. Returns the token; `None` if the API has no tokens.
    pub(crate) fn check(&self, headers: &HeaderMap, needed: Role) -> Result<Option<&TokenConfig>, ApiError> {
        if self.tokens.is_empty() {
            return Ok(None);
        }
        let token = self.authenticate(headers)?;
        if token.role < needed {
            return Err(ApiError::new(
                Code::Forbidden,
                format!(
                    "the token `{}` has the role `{}`, but this request needs `{}`",
                    token.name,
                    token.role.name(),
                    needed.name()
                ),
            ));
        }
        Ok(Some(token))
    }

    /// Whether requests need a token.
    pub fn needs_token(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// Tokens of this name.
    pub fn named(&self, name: &str) -> Vec<&TokenConfig> {
        self.tokens.iter().map(|(_, token)| token).filter(|token| token.name == name).collect()
    }

    /// Returns the token of a request with the header `Authorization`.
    pub fn authenticate(&self, headers: &HeaderMap) -> Result<&TokenConfig, ApiError> {
        let hint = "send the header `Authorization: Bearer TOKEN`";
        let presented = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some(presented) = presented.and_then(bearer) else {
            return Err(ApiError::new(Code::Unauthorized, "the request has no bearer token").hint(hint));
        };
        let invalid = || ApiError::new(Code::Unauthorized, "the bearer token is invalid").hint(hint);
        self.token(presented).ok_or_else(invalid)
    }

    /// Returns the known token with this text.
    pub fn token(&self, presented: &str) -> Option<&TokenConfig> {
        let presented = hash(presented);
        // All tokens are compared, as hashes of equal length, so that timing reveals nothing about them.
        let mut matching = None;
        for (hash, token) in &self.tokens {
            if is_equal(hash, &presented) {
                matching = Some(token);
            }
        }
        matching
    }
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn hash(token: &str) -> Hash {
    Sha256::digest(token.as_bytes()).into()
}

fn is_equal(a: &Hash, b: &Hash) -> bool {
    std::hint::black_box(a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b))) == 0
}

/// Whether the `Host` header, if present, is a loopback host.
pub fn names_this_machine(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST) else { return true };
    let Ok(host) = host.to_str() else { return false };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(tokens: &[(&str, Role)]) -> ApiConfig {
        let token = |(token, role): &(&str, Role)| TokenConfig {
            name: format!("the-{}", role.name()),
            token: (*token).into(),
            role: *role,
        };
        ApiConfig { tokens: tokens.iter().map(token).collect(), ..ApiConfig::default() }
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn status_of(access: &Access, pairs: &[(&'static str, &str)], needed: Role) -> u16 {
        access.check(&headers(pairs), needed).map_or_else(|error| error.document().status, |_| 200)
    }

    #[test]
    fn non_loopback_address_requires_tokens() {
        let outside = "0.0.0.0:8080".parse().unwrap();
        let refused = Access::new(&config(&[]), outside).err().unwrap().to_string();
        assert!(refused.contains("api.tokens"), "{refused}");
        assert!(Access::new(&ApiConfig { insecure_without_tokens: true, ..config(&[]) }, outside).is_ok());
        assert!(Access::new(&config(&[("0123456789abcdef", Role::Read)]), outside).is_ok());
        assert!(Access::new(&config(&[]), "127.0.0.1:1".parse().unwrap()).is_ok());
        assert!(Access::new(&config(&[("short", Role::Read)]), outside).is_err());
    }

    #[test]
    fn role_includes_lower_roles() {
        let access = Access::new(
            &config(&[("read-0123456789abcdef", Role::Read), ("oper-0123456789abcdef", Role::Operate)]),
            "127.0.0.1:1".parse().unwrap(),
        )
        .unwrap();
        let read = [("authorization", "Bearer read-0123456789abcdef")];
        let operate = [("authorization", "bearer oper-0123456789abcdef")];
        assert_eq!(status_of(&access, &read, Role::Read), 200);
        assert_eq!(status_of(&access, &read, Role::Submit), 403);
        assert_eq!(status_of(&access, &operate, Role::Submit), 200);
        assert_eq!(status_of(&access, &operate, Role::Operate), 200);
        for bad in ["Bearer read-0123456789abcdeX", "Bearer", "Basic read-0123456789abcdef", ""] {
            assert_eq!(status_of(&access, &[("authorization", bad)], Role::Read), 401, "{bad}");
        }
        assert_eq!(status_of(&access, &[], Role::Read), 401);
    }

    #[test]
    fn without_tokens_only_loopback_hosts_are_accepted() {
        let access = Access::new(&config(&[]), "127.0.0.1:1".parse().unwrap()).unwrap();
        for (host, status) in [
            ("localhost:8080", 200),
            ("127.0.0.1", 200),
            ("[::1]:8080", 200),
            ("evil.example", 403),
            ("127.0.0.1.evil.example:80", 403),
        ] {
            let checked = access.check_host(&headers(&[("host", host)]));
            assert_eq!(checked.map_or_else(|error| error.document().status, |()| 200), status, "{host}");
        }
    }
}
