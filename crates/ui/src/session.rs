//! Sessions: a cookie with the name of a token, an expiry and an authentication code under a key derived from the
//! token. There is no state: a session is valid at every api that has the token, and ends with it.

use axum::http::{HeaderMap, HeaderValue, header};
use data_encoding::BASE64URL_NOPAD;
use hmac::{Hmac, KeyInit, Mac};
use kafleet_api::http::auth::{Access, names_this_machine};
use kafleet_api::http::problem::{ApiError, Code};
use kafleet_config::{Role, TokenConfig, UiConfig};
use sha2::Sha256;

/// Purpose of the derived key.
const PURPOSE: &[u8] = b"kafleet session 1";

/// User of the UI.
pub(super) struct Caller {
    /// Name of the token; none if the api has no tokens.
    pub by: Option<String>,
    pub role: Role,
}

/// Identifies the caller by bearer token or session cookie.
pub(super) fn caller(access: &Access, headers: &HeaderMap, now_ms: i64) -> Result<Caller, ApiError> {
    if !access.needs_token() {
        return Ok(Caller { by: None, role: Role::Admin });
    }
    let token = if headers.contains_key(header::AUTHORIZATION) {
        access.authenticate(headers)?
    } else {
        by_cookie(access, headers, now_ms)?
    };
    Ok(Caller { by: Some(token.name.clone()), role: token.role })
}

fn by_cookie<'a>(access: &'a Access, headers: &HeaderMap, now_ms: i64) -> Result<&'a TokenConfig, ApiError> {
    let Some(value) = cookie(headers, &cookie_name(headers)) else {
        return Err(ApiError::new(Code::Unauthorized, "you are not logged in").hint("log in with a token of the api"));
    };
    let ended = || ApiError::new(Code::Unauthorized, "the session has ended").hint("log in again");
    let (name, expires_ms, code) = decode(value).ok_or_else(ended)?;
    if expires_ms <= now_ms {
        return Err(ended());
    }
    let is_of =
        |token: &TokenConfig| mac(&token.token, &name, expires_ms).is_some_and(|mac| mac.verify_slice(&code).is_ok());
    access.named(&name).into_iter().find(|token| is_of(token)).ok_or_else(ended)
}

/// `Set-Cookie` of a new session.
pub(super) fn start(token: &TokenConfig, config: &UiConfig, headers: &HeaderMap, now_ms: i64) -> Option<HeaderValue> {
    let lifetime_ms = config.session.as_i64();
    let expires_ms = now_ms.saturating_add(lifetime_ms);
    let code = mac(&token.token, &token.name, expires_ms)?.finalize().into_bytes();
    let name = BASE64URL_NOPAD.encode(token.name.as_bytes());
    let value = format!("{name}.{expires_ms}.{}", BASE64URL_NOPAD.encode(&code));
    set_cookie(config, headers, &value, lifetime_ms / 1_000)
}

/// `Set-Cookie` that ends the session.
pub(super) fn end(config: &UiConfig, headers: &HeaderMap) -> Option<HeaderValue> {
    set_cookie(config, headers, "", 0)
}

fn set_cookie(config: &UiConfig, headers: &HeaderMap, value: &str, lifetime_s: i64) -> Option<HeaderValue> {
    let name = cookie_name(headers);
    let secure = if is_local(headers) || config.insecure_cookies { "" } else { "; Secure" };
    let name = if secure.is_empty() { plain_name(headers) } else { name };
    let cookie = format!("{name}={value}; Path=/; Max-Age={lifetime_s}; HttpOnly; SameSite=Lax{secure}");
    HeaderValue::from_str(&cookie).ok()
}

/// Name of the session cookie that the request has. Cookies are shared by all ports of a host, hence the port.
fn cookie_name(headers: &HeaderMap) -> String {
    let plain = plain_name(headers);
    if is_local(headers) || cookie(headers, &plain).is_some() { plain } else { "__Host-kafleet".to_owned() }
}

fn plain_name(headers: &HeaderMap) -> String {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let port = host.rsplit_once(':').map(|(_, port)| port).filter(|port| port.bytes().all(|b| b.is_ascii_digit()));
    format!("kafleet-{}", port.unwrap_or("80"))
}

fn is_local(headers: &HeaderMap) -> bool {
    headers.contains_key(header::HOST) && names_this_machine(headers)
}

/// Value of a cookie.
pub(super) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let values = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut pairs = values.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

fn decode(value: &str) -> Option<(String, i64, Vec<u8>)> {
    let mut parts = value.split('.');
    let name = String::from_utf8(BASE64URL_NOPAD.decode(parts.next()?.as_bytes()).ok()?).ok()?;
    let expires_ms = parts.next()?.parse().ok()?;
    let code = BASE64URL_NOPAD.decode(parts.next()?.as_bytes()).ok()?;
    Some((name, expires_ms, code))
}

/// Authentication code of a session.
fn mac(token: &str, name: &str, expires_ms: i64) -> Option<Hmac<Sha256>> {
    let mut key = Hmac::<Sha256>::new_from_slice(token.as_bytes()).ok()?;
    key.update(PURPOSE);
    let mut mac = Hmac::<Sha256>::new_from_slice(&key.finalize().into_bytes()).ok()?;
    mac.update(format!("{name}\n{expires_ms}").as_bytes());
    Some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafleet_config::ApiConfig;

    const NOW_MS: i64 = 1_800_000_000_000;

    fn token(text: &str) -> TokenConfig {
        TokenConfig { name: "ada".into(), token: text.into(), role: Role::Operate }
    }

    fn access(tokens: &[&str]) -> Access {
        let config = ApiConfig { tokens: tokens.iter().map(|text| token(text)).collect(), ..ApiConfig::default() };
        Access::new(&config, ([127, 0, 0, 1], 8080).into()).unwrap()
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn session(text: &str, host: &str) -> (String, HeaderMap) {
        let set = start(&token(text), &UiConfig::default(), &headers(&[("host", host)]), NOW_MS).unwrap();
        let set = set.to_str().unwrap().to_owned();
        let pair = set.split(';').next().unwrap().to_owned();
        (set, headers(&[("host", host), ("cookie", &format!("other=1; {pair}"))]))
    }

    #[test]
    fn session_is_valid_until_it_expires_or_the_token_goes() {
        let (text, host) = ("0123456789abcdef", "127.0.0.1:8080");
        let (_, request) = session(text, host);
        let identity = caller(&access(&[text]), &request, NOW_MS + 1).unwrap();
        assert_eq!((identity.by.as_deref(), identity.role), (Some("ada"), Role::Operate));
        assert!(caller(&access(&["fedcba9876543210"]), &request, NOW_MS + 1).is_err(), "the token was replaced");
        assert!(caller(&access(&[text]), &request, NOW_MS + 12 * 3_600_000).is_err(), "12 h are over");
        assert!(caller(&access(&["fedcba9876543210", text]), &request, NOW_MS).is_ok(), "each of that name is tried");
    }

    #[test]
    fn altered_cookie_is_refused() {
        let text = "0123456789abcdef";
        let (set, _) = session(text, "localhost:1");
        let pair = set.split(';').next().unwrap();
        let later = pair.replace(&(NOW_MS + 12 * 3_600_000).to_string(), &(NOW_MS + 99 * 3_600_000).to_string());
        for cookie in [later.as_str(), "kafleet-1=", "kafleet-1=YWRh.9999999999999.", "kafleet-1=.."] {
            let request = headers(&[("host", "localhost:1"), ("cookie", cookie)]);
            assert!(caller(&access(&[text]), &request, NOW_MS).is_err(), "{cookie}");
        }
    }

    #[test]
    fn cookie_is_secure_on_other_hosts_than_loopback() {
        let (set, _) = session("0123456789abcdef", "fleet.example");
        assert!(set.starts_with("__Host-kafleet=") && set.ends_with("; HttpOnly; SameSite=Lax; Secure"), "{set}");
        let (set, _) = session("0123456789abcdef", "localhost:8080");
        assert!(set.starts_with("kafleet-8080=") && !set.contains("Secure"), "{set}");
    }
}
