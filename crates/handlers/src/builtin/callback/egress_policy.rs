//! Policy of callbacks: permitted hosts and addresses, and the secrets available to each host.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use kafleet_config::CallbacksConfig;
use kafleet_model::task::delivery::CallbackParams;
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{HeaderName, HeaderValue};

use crate::ParamsError;
use crate::egress::policy::{Pattern, is_in, is_public};
use crate::egress::secrets::{Secret, TextPart, parts};

/// Headers that callbacks set themselves.
const RESERVED_HEADERS: [&str; 10] = [
    "connection",
    "content-length",
    "content-type",
    "host",
    "kafleet-attempt",
    "transfer-encoding",
    "upgrade",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
];
/// Headers whose values are always secrets.
const SECRET_HEADERS: [&str; 4] = ["authorization", "cookie", "proxy-authorization", "x-api-key"];
/// Placeholder for a secret during validation.
const PLACEHOLDER: &str = "x";

pub(super) struct CallbackPolicy {
    hosts: Vec<Pattern>,
    private: Vec<IpNet>,
    plain_http: bool,
    secrets: BTreeMap<String, Secret>,
    resend_on_close: bool,
}

impl CallbackPolicy {
    pub(super) fn new(config: &CallbacksConfig) -> Result<Self, String> {
        let net = |text: &String| text.parse::<IpNet>().map_err(|_| format!("`{text}` is not a network"));
        Ok(Self {
            hosts: config.hosts.iter().map(|host| Pattern::new(host)).collect(),
            private: config.private.iter().map(net).collect::<Result<_, _>>()?,
            plain_http: config.plain_http,
            resend_on_close: config.resend_on_close.unwrap_or(true),
            secrets: config.secrets.iter().map(|(name, secret)| (name.clone(), Secret::new(secret))).collect(),
        })
    }

    /// Returns whether a request is sent once more if the receiver closes a kept connection instead of answering.
    pub(super) const fn resend_on_close(&self) -> bool {
        self.resend_on_close
    }

    pub(super) fn secrets(&self) -> &BTreeMap<String, Secret> {
        &self.secrets
    }

    /// Validates params without a network connection.
    pub(super) fn check(&self, params: &CallbackParams) -> Result<(), ParamsError> {
        let error = |pointer: &str, message: String| ParamsError { pointer: pointer.to_owned(), message };
        let host = self.host(&params.url).map_err(|reason| error("/url", reason))?;
        self.with_placeholders(&params.url, &host).map_err(|reason| error("/url", reason))?;
        for (name, value) in &params.headers {
            let pointer = format!("/headers/{}", name.replace('~', "~0").replace('/', "~1"));
            self.header(name, value, &host).map_err(|reason| error(&pointer, reason))?;
        }
        params
            .secret
            .as_ref()
            .map_or(Ok(()), |name| self.check_secret(name, &host))
            .map_err(|reason| error("/secret", reason))
    }

    /// Returns the host of a URL if it is permitted.
    fn host(&self, text: &str) -> Result<String, String> {
        let url = Url::parse(text).map_err(|error| format!("not a url: {error}"))?;
        match url.scheme() {
            "https" => {}
            "http" if self.plain_http => {}
            "http" => {
                return Err(
                    "the scheme is `http`; hint: use `https`, or allow `http` with `callbacks.plain_http`".to_owned()
                );
            }
            other => return Err(format!("unsupported scheme `{other}`: use `https`")),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(
                "the url contains a user or a password; hint: set an `authorization` header with a secret, `${name}`"
                    .to_owned(),
            );
        }
        let host = url.host_str().unwrap_or_default().to_owned();
        if host.contains(['$', '{', '}']) {
            return Err("a secret cannot be part of the host: its recipient must be known".to_owned());
        }
        if !self.hosts.is_empty() && !self.hosts.iter().any(|pattern| pattern.matches(&host)) {
            return Err(format!(
                "the host `{host}` is not permitted; hint: `callbacks.hosts` lists the permitted ones"
            ));
        }
        let address = match url.host() {
            Some(url::Host::Ipv4(address)) => Some(IpAddr::V4(address)),
            Some(url::Host::Ipv6(address)) => Some(IpAddr::V6(address)),
            _ => None,
        };
        match address.filter(|address| !self.is_permitted(*address)) {
            Some(_) => Err(ForbiddenAddress(host).to_string()),
            None => Ok(host),
        }
    }

    fn header(&self, name: &str, value: &str, host: &str) -> Result<(), String> {
        let header_name = name.parse::<HeaderName>().map_err(|_| "not a valid header name".to_owned())?;
        if RESERVED_HEADERS.contains(&header_name.as_str()) {
            return Err("kafleet sets this header itself: remove it".to_owned());
        }
        if SECRET_HEADERS.contains(&header_name.as_str()) && !value.contains("${") {
            return Err(
                "a task must not contain a secret; hint: `${name}` refers to one of `[callbacks.secrets]`".to_owned()
            );
        }
        let value = self.with_placeholders(value, host)?;
        value
            .parse::<HeaderValue>()
            .map(drop)
            .map_err(|_| "the value has characters that are not allowed in a header".to_owned())
    }

    /// Replaces secrets with a placeholder, and checks that all of them are allowed for this host.
    fn with_placeholders(&self, text: &str, host: &str) -> Result<String, String> {
        let mut filled = String::new();
        for part in parts(text)? {
            match part {
                TextPart::Plain(text) => filled.push_str(text),
                TextPart::Secret(name) => {
                    self.check_secret(name, host)?;
                    filled.push_str(PLACEHOLDER);
                }
            }
        }
        Ok(filled)
    }

    fn check_secret(&self, name: &str, host: &str) -> Result<(), String> {
        match self.secrets.get(name) {
            None => Err(format!("there is no secret `{name}`; hint: name it in `[callbacks.secrets.{name}]`")),
            Some(secret) if !secret.is_for(host) => Err(format!(
                "the secret `{name}` is not allowed for `{host}`; hint: `callbacks.secrets.{name}.hosts` lists its hosts"
            )),
            Some(_) => Ok(()),
        }
    }

    fn is_permitted(&self, address: IpAddr) -> bool {
        is_public(address) || is_in(address, &self.private)
    }
}

/// A host whose address is not permitted.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{0}` is a private, loopback or link-local address, or resolves to one; hint: `callbacks.private` lists the permitted ones"
)]
pub(super) struct ForbiddenAddress(String);

/// DNS resolver that returns only permitted addresses. Checking at resolution time prevents DNS rebinding between a
/// check and the connection.
pub(super) struct Resolver(pub Arc<CallbackPolicy>);

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let policy = self.0.clone();
        Box::pin(async move {
            let addresses: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let allowed: Vec<SocketAddr> =
                addresses.into_iter().filter(|address| policy.is_permitted(address.ip())).collect();
            if allowed.is_empty() {
                return Err(ForbiddenAddress(name.as_str().to_owned()).into());
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafleet_config::SecretConfig;
    use kafleet_model::json::RawJson;

    fn policy(hosts: &[&str], private: &[&str]) -> CallbackPolicy {
        let list = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let secret =
            SecretConfig { value: Some("s".into()), hosts: list(&["hooks.example.com"]), ..SecretConfig::default() };
        let secrets = [("billing".to_owned(), secret)].into();
        let config = CallbacksConfig {
            hosts: list(hosts),
            private: list(private),
            plain_http: false,
            resend_on_close: None,
            secrets,
        };
        CallbackPolicy::new(&config).unwrap()
    }

    fn check(
        policy: &CallbackPolicy,
        url: &str,
        header: Option<(&str, &str)>,
        secret: Option<&str>,
    ) -> Result<(), (String, String)> {
        let headers = header.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let params = CallbackParams { url: url.into(), headers, secret: secret.map(Into::into), body: RawJson::null() };
        policy.check(&params).map_err(|error| (error.pointer, error.message))
    }

    #[test]
    fn urls_are_accepted_or_rejected_with_reason() {
        let open = policy(&[], &[]);
        for url in ["https://example.com/a?b=c", "https://1.1.1.1", "https://[2606:4700::1111]:8443/x"] {
            assert_eq!(check(&open, url, None, None), Ok(()), "{url}");
        }
        for (url, error) in [
            ("nonsense", "not a url"),
            ("http://example.com", "plain_http"),
            ("ftp://example.com", "use `https`"),
            ("https://me:pw@example.com", "a password"),
            ("https://127.0.0.1/x", "private"),
            ("https://2130706433/x", "private"),
            ("https://0x7f.1/x", "private"),
            ("https://[::1]/x", "private"),
            ("https://[::ffff:10.0.0.1]/x", "private"),
            ("https://169.254.169.254/latest/meta-data", "private"),
            ("https://hooks.example.com/${other}", "no secret `other`"),
            ("https://${billing}.example.com/", "part of the host"),
            ("https://hooks.example.com/${billing", "has no `}`"),
        ] {
            let (pointer, message) = check(&open, url, None, None).unwrap_err();
            assert_eq!(pointer, "/url", "{url}");
            assert!(message.contains(error), "{url}: {message}");
        }
    }

    #[test]
    fn only_configured_hosts_and_private_networks_are_permitted() {
        let policy = policy(&["*.example.com", "10.1.2.3"], &["10.1.0.0/16"]);
        assert_eq!(check(&policy, "https://a.example.com", None, None), Ok(()));
        assert_eq!(check(&policy, "https://10.1.2.3", None, None), Ok(()));
        assert!(check(&policy, "https://example.org", None, None).unwrap_err().1.contains("callbacks.hosts"));
        let addresses = ["10.1.255.255", "10.2.0.1", "1.1.1.1", "127.0.0.1"];
        assert_eq!(addresses.map(|address| policy.is_permitted(address.parse().unwrap())), [true, false, true, false]);
    }

    #[test]
    fn secrets_are_sent_only_to_their_hosts() {
        let policy = policy(&[], &[]);
        let hooks = "https://hooks.example.com/${billing}?k=${billing}";
        assert_eq!(check(&policy, hooks, Some(("Authorization", "Bearer ${billing}")), Some("billing")), Ok(()));
        for (url, header, secret, pointer, error) in [
            ("https://evil.example.com/${billing}", None, None, "/url", "is not allowed for `evil.example.com`"),
            ("https://evil.example.com", None, Some("billing"), "/secret", "is not allowed for"),
            ("https://evil.example.com", Some(("x-key", "${billing}")), None, "/headers/x-key", "is not allowed for"),
            (
                "https://hooks.example.com",
                Some(("authorization", "Bearer abc")),
                None,
                "/headers/authorization",
                "must not contain a secret",
            ),
            (
                "https://hooks.example.com",
                Some(("Webhook-Id", "1")),
                None,
                "/headers/Webhook-Id",
                "sets this header itself",
            ),
            ("https://hooks.example.com", Some(("a b", "1")), None, "/headers/a b", "header name"),
            ("https://hooks.example.com", Some(("x", "a\nb")), None, "/headers/x", "not allowed in a header"),
            ("https://hooks.example.com", None, Some("other"), "/secret", "no secret `other`"),
        ] {
            let (field, message) = check(&policy, url, header, secret).unwrap_err();
            assert_eq!(field, pointer, "{url} {header:?}");
            assert!(message.contains(error), "{url} {header:?}: {message}");
        }
    }

    #[tokio::test]
    async fn names_resolving_to_private_addresses_are_rejected() {
        let resolve = |policy: CallbackPolicy| Resolver(Arc::new(policy)).resolve("localhost".parse().unwrap());
        let refused = resolve(policy(&[], &[])).await.err().unwrap();
        assert!(refused.downcast_ref::<ForbiddenAddress>().is_some(), "{refused}");
        let addresses = resolve(policy(&[], &["127.0.0.0/8"])).await.ok().unwrap();
        assert!(addresses.map(|address| address.ip()).all(|ip| ip == IpAddr::from([127, 0, 0, 1])));
    }
}
