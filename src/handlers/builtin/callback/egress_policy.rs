//! What callbacks may do: the hosts and addresses that they reach, and the secrets that go to each.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{HeaderName, HeaderValue};

use super::CallbackParams;
use crate::config::CallbacksConfig;
use crate::handlers::ParamsError;
use crate::handlers::egress::policy::{Pattern, is_public, is_within};
use crate::handlers::egress::secrets::{Part, Secret, parts};

/// Headers that a call has of its own.
const OWN: [&str; 10] = [
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
/// Headers that hold nothing but secrets.
const SECRET: [&str; 4] = ["authorization", "cookie", "proxy-authorization", "x-api-key"];
/// Stands for a secret while a text is checked.
const STAND_IN: &str = "x";

pub struct Guard {
    hosts: Vec<Pattern>,
    private: Vec<IpNet>,
    plain_http: bool,
    secrets: BTreeMap<String, Secret>,
}

impl Guard {
    pub fn new(config: &CallbacksConfig) -> Result<Self, String> {
        let net = |text: &String| text.parse::<IpNet>().map_err(|_| format!("`{text}` is not a network"));
        Ok(Self {
            hosts: config.hosts.iter().map(|host| Pattern::new(host)).collect(),
            private: config.private.iter().map(net).collect::<Result<_, _>>()?,
            plain_http: config.plain_http,
            secrets: config.secrets.iter().map(|(name, secret)| (name.clone(), Secret::new(secret))).collect(),
        })
    }

    pub fn secrets(&self) -> &BTreeMap<String, Secret> {
        &self.secrets
    }

    /// What can be said without reaching out.
    pub fn check(&self, params: &CallbackParams) -> Result<(), ParamsError> {
        let misfit = |pointer: &str, message: String| ParamsError { pointer: pointer.to_owned(), message };
        let host = self.host(&params.url).map_err(|why| misfit("/url", why))?;
        self.stood_in(&params.url, &host).map_err(|why| misfit("/url", why))?;
        for (name, value) in &params.headers {
            let pointer = format!("/headers/{}", name.replace('~', "~0").replace('/', "~1"));
            self.header(name, value, &host).map_err(|why| misfit(&pointer, why))?;
        }
        params.secret.as_ref().map_or(Ok(()), |name| self.bound(name, &host)).map_err(|why| misfit("/secret", why))
    }

    /// The host that a URL names, which may be called.
    fn host(&self, text: &str) -> Result<String, String> {
        let url = Url::parse(text).map_err(|why| format!("it is not a url: {why}"))?;
        match url.scheme() {
            "https" => {}
            "http" if self.plain_http => {}
            "http" => return Err("it is `http`; hint: use `https`, or allow `http` by `callbacks.plain_http`".to_owned()),
            other => return Err(format!("`{other}` is not called: use `https`")),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("it holds a user or a password; hint: send `authorization` with `${name}`, a secret".to_owned());
        }
        let host = url.host_str().unwrap_or_default().to_owned();
        if host.contains(['$', '{', '}']) {
            return Err("a secret cannot be part of the host: whom it goes to must be known".to_owned());
        }
        if !self.hosts.is_empty() && !self.hosts.iter().any(|pattern| pattern.matches(&host)) {
            return Err(format!("the host `{host}` may not be called; hint: `callbacks.hosts` lists those that may"));
        }
        let address = match url.host() {
            Some(url::Host::Ipv4(address)) => Some(IpAddr::V4(address)),
            Some(url::Host::Ipv6(address)) => Some(IpAddr::V6(address)),
            _ => None,
        };
        match address.filter(|address| !self.allows(*address)) {
            Some(_) => Err(Refused(host).to_string()),
            None => Ok(host),
        }
    }

    fn header(&self, name: &str, value: &str, host: &str) -> Result<(), String> {
        let known = name.parse::<HeaderName>().map_err(|_| "that is not the name of a header".to_owned())?;
        if OWN.contains(&known.as_str()) {
            return Err("every call has a header of this name already: remove it".to_owned());
        }
        if SECRET.contains(&known.as_str()) && !value.contains("${") {
            return Err(
                "a secret does not belong into a task; hint: `${name}` stands for one of `[callbacks.secrets]`".to_owned()
            );
        }
        let value = self.stood_in(value, host)?;
        value.parse::<HeaderValue>().map(drop).map_err(|_| "the value has characters that no header may have".to_owned())
    }

    /// The text without its secrets, all of which may go to this host.
    fn stood_in(&self, text: &str, host: &str) -> Result<String, String> {
        let mut filled = String::new();
        for part in parts(text)? {
            match part {
                Part::Plain(text) => filled.push_str(text),
                Part::Secret(name) => {
                    self.bound(name, host)?;
                    filled.push_str(STAND_IN);
                }
            }
        }
        Ok(filled)
    }

    fn bound(&self, name: &str, host: &str) -> Result<(), String> {
        match self.secrets.get(name) {
            None => Err(format!("there is no secret `{name}`; hint: name it in `[callbacks.secrets.{name}]`")),
            Some(secret) if !secret.is_for(host) => Err(format!(
                "the secret `{name}` is not for `{host}`; hint: `callbacks.secrets.{name}.hosts` lists whom it is for"
            )),
            Some(_) => Ok(()),
        }
    }

    fn allows(&self, address: IpAddr) -> bool {
        is_public(address) || is_within(address, &self.private)
    }
}

/// A host whose address may not be reached.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{0}` is a private, loopback or link-local address, or resolves to one; hint: `callbacks.private` lists those that may be called"
)]
pub struct Refused(String);

/// Tells the client only addresses that it may connect to: what a name resolves to can change between a look and a call.
pub struct Resolver(pub Arc<Guard>);

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.0.clone();
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let allowed: Vec<SocketAddr> = found.into_iter().filter(|address| guard.allows(address.ip())).collect();
            if allowed.is_empty() {
                return Err(Refused(name.as_str().to_owned()).into());
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SecretConfig;
    use crate::model::json::RawJson;

    fn guard(hosts: &[&str], private: &[&str]) -> Guard {
        let list = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let secret = SecretConfig { value: Some("s".into()), hosts: list(&["hooks.example.com"]), ..SecretConfig::default() };
        let secrets = [("billing".to_owned(), secret)].into();
        let config = CallbacksConfig { hosts: list(hosts), private: list(private), plain_http: false, secrets };
        Guard::new(&config).unwrap()
    }

    fn told(guard: &Guard, url: &str, header: Option<(&str, &str)>, secret: Option<&str>) -> Result<(), (String, String)> {
        let headers = header.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let params = CallbackParams { url: url.into(), headers, secret: secret.map(Into::into), body: RawJson::null() };
        guard.check(&params).map_err(|misfit| (misfit.pointer, misfit.message))
    }

    #[test]
    fn urls_are_allowed_or_refused_with_a_reason() {
        let open = guard(&[], &[]);
        for url in ["https://example.com/a?b=c", "https://1.1.1.1", "https://[2606:4700::1111]:8443/x"] {
            assert_eq!(told(&open, url, None, None), Ok(()), "{url}");
        }
        for (url, why) in [
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
            let (pointer, message) = told(&open, url, None, None).unwrap_err();
            assert_eq!(pointer, "/url", "{url}");
            assert!(message.contains(why), "{url}: {message}");
        }
    }

    #[test]
    fn only_listed_hosts_are_called_and_only_listed_networks_inside() {
        let guard = guard(&["*.example.com", "10.1.2.3"], &["10.1.0.0/16"]);
        assert_eq!(told(&guard, "https://a.example.com", None, None), Ok(()));
        assert_eq!(told(&guard, "https://10.1.2.3", None, None), Ok(()));
        assert!(told(&guard, "https://example.org", None, None).unwrap_err().1.contains("callbacks.hosts"));
        let addresses = ["10.1.255.255", "10.2.0.1", "1.1.1.1", "127.0.0.1"];
        assert_eq!(addresses.map(|address| guard.allows(address.parse().unwrap())), [true, false, true, false]);
    }

    #[test]
    fn secrets_are_named_and_go_only_where_they_belong() {
        let guard = guard(&[], &[]);
        let hooks = "https://hooks.example.com/${billing}?k=${billing}";
        assert_eq!(told(&guard, hooks, Some(("Authorization", "Bearer ${billing}")), Some("billing")), Ok(()));
        for (url, header, secret, pointer, why) in [
            ("https://evil.example.com/${billing}", None, None, "/url", "is not for `evil.example.com`"),
            ("https://evil.example.com", None, Some("billing"), "/secret", "is not for"),
            ("https://evil.example.com", Some(("x-key", "${billing}")), None, "/headers/x-key", "is not for"),
            (
                "https://hooks.example.com",
                Some(("authorization", "Bearer abc")),
                None,
                "/headers/authorization",
                "does not belong",
            ),
            ("https://hooks.example.com", Some(("Webhook-Id", "1")), None, "/headers/Webhook-Id", "already"),
            ("https://hooks.example.com", Some(("a b", "1")), None, "/headers/a b", "name of a header"),
            ("https://hooks.example.com", Some(("x", "a\nb")), None, "/headers/x", "no header may have"),
            ("https://hooks.example.com", None, Some("other"), "/secret", "no secret `other`"),
        ] {
            let told = told(&guard, url, header, secret).unwrap_err();
            assert_eq!(told.0, pointer, "{url} {header:?}");
            assert!(told.1.contains(why), "{url} {header:?}: {}", told.1);
        }
    }

    #[tokio::test]
    async fn names_that_lead_inside_lead_nowhere() {
        let resolve = |guard: Guard| Resolver(Arc::new(guard)).resolve("localhost".parse().unwrap());
        let refused = resolve(guard(&[], &[])).await.err().unwrap();
        assert!(refused.downcast_ref::<Refused>().is_some(), "{refused}");
        let addresses = resolve(guard(&[], &["127.0.0.0/8"])).await.ok().unwrap();
        assert!(addresses.map(|address| address.ip()).all(|ip| ip == IpAddr::from([127, 0, 0, 1])));
    }
}
