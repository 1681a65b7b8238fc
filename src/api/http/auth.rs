//! Who may call what: bearer tokens with roles.

use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};

use super::problem::{ApiError, Code};
use crate::config::{ApiConfig, Role, TokenConfig};

/// The shortest token that is accepted, in characters.
const MIN_TOKEN_CHARS: usize = 16;

type Hash = [u8; 32];

/// Who may call this api.
pub struct Access {
    tokens: Vec<(Hash, TokenConfig)>,
    /// Open to everybody on this machine: then only requests that were meant for this machine count, so that no web
    /// page can talk to it through a name of its own.
    local_only: bool,
}

impl Access {
    /// Refuses to serve an address that others can reach without tokens, unless that is wanted.
    pub fn new(config: &ApiConfig, address: std::net::SocketAddr) -> anyhow::Result<Self> {
        let open = config.tokens.is_empty();
        if open && !address.ip().is_loopback() && !config.insecure_without_tokens {
            anyhow::bail!(
                "the api would serve `{address}` to everybody who can reach it\n\n\
                 hint: set `api.tokens`, listen on 127.0.0.1, or set `api.insecure_without_tokens = true` behind something that keeps people out"
            );
        }
        if let Some(short) = config.tokens.iter().find(|token| token.token.chars().count() < MIN_TOKEN_CHARS) {
            anyhow::bail!("the token named `{}` is too short\n\nhint: use at least {MIN_TOKEN_CHARS} characters", short.name);
        }
        let tokens = config.tokens.iter().map(|token| (hash(&token.token), token.clone())).collect();
        Ok(Self { tokens, local_only: open && !config.insecure_without_tokens })
    }

    /// Refuses a request for another host than this machine, where no tokens keep others out.
    pub fn check_host(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.local_only && !names_this_machine(headers) {
            return Err(ApiError::new(
                Code::ForbiddenHost,
                "without tokens the api answers only to requests for this machine itself",
            )
            .hint("use 127.0.0.1 or localhost, or set `api.tokens`"));
        }
        Ok(())
    }

    /// Lets a request through that may do what the role allows. Returns the name of its token.
    pub fn check(&self, headers: &HeaderMap, needed: Role) -> Result<Option<&str>, ApiError> {
        if self.tokens.is_empty() {
            return Ok(None);
        }
        let token = self.known(headers)?;
        if token.role < needed {
            return Err(ApiError::new(
                Code::Forbidden,
                format!("the token `{}` has the role `{}`, this call needs `{}`", token.name, name(token.role), name(needed)),
            ));
        }
        Ok(Some(&token.name))
    }

    fn known(&self, headers: &HeaderMap) -> Result<&TokenConfig, ApiError> {
        let hint = "send the header `Authorization: Bearer TOKEN`";
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some(given) = given.and_then(bearer) else {
            return Err(ApiError::new(Code::Unauthorized, "the request has no bearer token").hint(hint));
        };
        let given = hash(given);
        // Every token is compared, and hashes of one length, so that the time says nothing of the tokens.
        let mut found = None;
        for (known, token) in &self.tokens {
            if same(known, &given) {
                found = Some(token);
            }
        }
        found.ok_or_else(|| ApiError::new(Code::Unauthorized, "the bearer token is not known").hint(hint))
    }
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn hash(token: &str) -> Hash {
    Sha256::digest(token.as_bytes()).into()
}

fn same(a: &Hash, b: &Hash) -> bool {
    std::hint::black_box(a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b))) == 0
}

fn name(role: Role) -> &'static str {
    match role {
        Role::Read => "read",
        Role::Submit => "submit",
        Role::Operate => "operate",
    }
}

/// The `Host` header, where there is one, names a loopback address.
fn names_this_machine(headers: &HeaderMap) -> bool {
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
            name: format!("the-{}", name(*role)),
            token: (*token).into(),
            role: *role,
        };
        ApiConfig { tokens: tokens.iter().map(token).collect(), ..ApiConfig::default() }
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn told(access: &Access, pairs: &[(&'static str, &str)], needed: Role) -> u16 {
        access.check(&headers(pairs), needed).map_or_else(|refusal| refusal.document().status, |_| 200)
    }

    #[test]
    fn an_address_that_others_reach_needs_tokens() {
        let outside = "0.0.0.0:8080".parse().unwrap();
        let refused = Access::new(&config(&[]), outside).err().unwrap().to_string();
        assert!(refused.contains("api.tokens"), "{refused}");
        assert!(Access::new(&ApiConfig { insecure_without_tokens: true, ..config(&[]) }, outside).is_ok());
        assert!(Access::new(&config(&[("0123456789abcdef", Role::Read)]), outside).is_ok());
        assert!(Access::new(&config(&[]), "127.0.0.1:1".parse().unwrap()).is_ok());
        assert!(Access::new(&config(&[("short", Role::Read)]), outside).is_err());
    }

    #[test]
    fn a_role_includes_those_before_it() {
        let access = Access::new(
            &config(&[("read-0123456789abcdef", Role::Read), ("oper-0123456789abcdef", Role::Operate)]),
            "127.0.0.1:1".parse().unwrap(),
        )
        .unwrap();
        let read = [("authorization", "Bearer read-0123456789abcdef")];
        let operate = [("authorization", "bearer oper-0123456789abcdef")];
        assert_eq!(told(&access, &read, Role::Read), 200);
        assert_eq!(told(&access, &read, Role::Submit), 403);
        assert_eq!(told(&access, &operate, Role::Submit), 200);
        assert_eq!(told(&access, &operate, Role::Operate), 200);
        for bad in ["Bearer read-0123456789abcdeX", "Bearer", "Basic read-0123456789abcdef", ""] {
            assert_eq!(told(&access, &[("authorization", bad)], Role::Read), 401, "{bad}");
        }
        assert_eq!(told(&access, &[], Role::Read), 401);
    }

    #[test]
    fn without_tokens_no_other_name_leads_here() {
        let access = Access::new(&config(&[]), "127.0.0.1:1".parse().unwrap()).unwrap();
        for (host, status) in [
            ("localhost:8080", 200),
            ("127.0.0.1", 200),
            ("[::1]:8080", 200),
            ("evil.example", 403),
            ("127.0.0.1.evil.example:80", 403),
        ] {
            let checked = access.check_host(&headers(&[("host", host)]));
            assert_eq!(checked.map_or_else(|refusal| refusal.document().status, |()| 200), status, "{host}");
        }
    }
}
