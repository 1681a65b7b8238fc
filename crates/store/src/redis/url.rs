//! Redis URLs: a single server, a cluster, or a master behind sentinels.

use std::path::PathBuf;

use ::redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use ::redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError, RedisResult,
    TlsCertificates, TlsMode, io::tcp::TcpSettings,
};

use super::RedisOptions;
use crate::StoreError;

/// Supported forms of a URL, for messages.
const URL_FORMS_HINT: &str = "hint: write redis://[user:password@]host:port[/db] (rediss for TLS), redis-cluster://host:port,host:port \
or redis-sentinel://host:port,host:port/master-name[/db]";
const SENTINEL_PORT: u16 = 26_379;

/// Reason why a URL cannot be used.
#[derive(Debug, thiserror::Error)]
enum UrlError {
    #[error(transparent)]
    Redis(#[from] RedisError),
    #[error("a host is empty")]
    EmptyHost,
    #[error("`redis-{0}` is not a supported scheme")]
    Scheme(String),
    #[error("a cluster has no database `{0}`")]
    Database(String),
    #[error("the name of the master is missing")]
    NoMaster,
    #[error("`{0}` cannot be read: {1}")]
    File(PathBuf, std::io::Error),
}

pub(super) enum Address {
    One(Box<ConnectionInfo>),
    /// Some nodes of a cluster.
    Cluster(Vec<ConnectionInfo>),
    Sentinel(Box<tokio::sync::Mutex<SentinelClient>>),
}

/// Parts of a URL: `scheme://user@host,host/path?query#fragment`.
struct Parts<'a> {
    tls: bool,
    kind: &'a str,
    user: &'a str,
    hosts: &'a str,
    path: &'a str,
    /// Query and fragment, including `?` or `#`.
    rest: &'a str,
}

impl Address {
    pub(super) fn parse(options: &RedisOptions) -> Result<Self, StoreError> {
        Self::read(options).map_err(|problem| {
            let url = without_credentials(&options.url);
            StoreError::Misconfigured(
                options.hide(&format!("`{url}` is not a redis URL: {problem}\n\n{URL_FORMS_HINT}")),
            )
        })
    }

    fn read(options: &RedisOptions) -> Result<Self, UrlError> {
        let Some(parts) = Parts::split(&options.url) else {
            return Ok(Self::One(Box::new(with_certificates(node(&options.url, options)?, options)?)));
        };
        if parts.hosts.split(',').any(str::is_empty) {
            return Err(UrlError::EmptyHost);
        }
        match parts.kind {
            "cluster" => parts.cluster(options),
            "sentinel" => parts.sentinel(options),
            other => Err(UrlError::Scheme(other.to_owned())),
        }
    }

    /// Effective password, for redaction.
    pub(super) fn password(options: &RedisOptions) -> Option<String> {
        let single = Parts::split(&options.url)
            .map(|parts| parts.node_url(parts.hosts.split(',').next().unwrap_or_default(), ""));
        let info = node(single.as_deref().unwrap_or(&options.url), options).ok()?;
        info.redis_settings().password().map(str::to_owned)
    }
}

impl<'a> Parts<'a> {
    /// Splits the URL of a cluster or of sentinels; `None` for a single server.
    fn split(url: &'a str) -> Option<Self> {
        let (scheme, after) = url.split_once("://")?;
        let (tls, kind) = match scheme.split_once('-')? {
            ("redis", kind) => (false, kind),
            ("rediss", kind) => (true, kind),
            _ => return None,
        };
        let (user, after) = after.rsplit_once('@').unwrap_or(("", after));
        let (after, rest) = after.split_at(after.find(['?', '#']).unwrap_or(after.len()));
        let (hosts, path) = after.split_once('/').unwrap_or((after, ""));
        Some(Self { tls, kind, user, hosts, path, rest })
    }

    /// URL of one of the hosts.
    fn node_url(&self, host: &str, db: &str) -> String {
        let scheme = if self.tls { "rediss" } else { "redis" };
        let at = if self.user.is_empty() { "" } else { "@" };
        format!("{scheme}://{}{at}{host}/{db}{}", self.user, self.rest)
    }

    fn cluster(&self, options: &RedisOptions) -> Result<Address, UrlError> {
        if !matches!(self.path, "" | "0") {
            return Err(UrlError::Database(self.path.to_owned()));
        }
        let node = |host| with_certificates(node(&self.node_url(host, ""), options)?, options);
        Ok(Address::Cluster(self.hosts.split(',').map(node).collect::<Result<_, UrlError>>()?))
    }

    fn sentinel(&self, options: &RedisOptions) -> Result<Address, UrlError> {
        let (master, db) = self.path.split_once('/').unwrap_or((self.path, ""));
        if master.is_empty() {
            return Err(UrlError::NoMaster);
        }
        let build = || -> RedisResult<SentinelClient> {
            let sentinels = self.hosts.split(',').map(|host| self.sentinel_node(host, options));
            let master_node = node(&self.node_url("master", db), options)?;
            let mut settings = SentinelNodeConnectionInfo::default()
                .set_redis_connection_info(master_node.redis_settings().clone())
                .set_tcp_settings(tcp_settings());
            if let ConnectionAddr::TcpTls { insecure, .. } = master_node.addr() {
                settings = settings.set_tls_mode(if *insecure { TlsMode::Insecure } else { TlsMode::Secure });
            }
            let sentinels = sentinels.collect::<RedisResult<Vec<_>>>()?;
            SentinelClient::build(sentinels, master.to_owned(), Some(settings), SentinelServerType::Master)
        };
        Ok(Address::Sentinel(Box::new(tokio::sync::Mutex::new(build()?))))
    }

    /// Connection settings of a sentinel, which has a port and password of its own.
    fn sentinel_node(&self, host: &str, options: &RedisOptions) -> RedisResult<ConnectionInfo> {
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.is_empty() && !port.ends_with(']'));
        let host = if has_port { host.to_owned() } else { format!("{host}:{SENTINEL_PORT}") };
        let bare = Parts { user: "", ..*self };
        let info = bare.node_url(&host, "").into_connection_info()?;
        let mut settings = info.redis_settings().clone();
        if let Some(password) = &options.sentinel_password {
            settings = settings.set_password(password);
        }
        Ok(info.set_redis_settings(settings).set_tcp_settings(tcp_settings()))
    }
}

fn node(url: &str, options: &RedisOptions) -> RedisResult<ConnectionInfo> {
    let info = url.into_connection_info()?;
    let mut settings = info.redis_settings().clone();
    if let Some(username) = &options.username {
        settings = settings.set_username(username);
    }
    if let Some(password) = &options.password {
        settings = settings.set_password(password);
    }
    Ok(info.set_redis_settings(settings).set_tcp_settings(tcp_settings()))
}

/// Adds the certificates of the files. The nodes to which a cluster redirects get those of the node that redirects.
fn with_certificates(info: ConnectionInfo, options: &RedisOptions) -> Result<ConnectionInfo, UrlError> {
    let read = |path: &PathBuf| std::fs::read(path).map_err(|error| UrlError::File(path.clone(), error));
    let root_cert = options.ca.as_ref().map(read).transpose()?;
    let client_tls = match (&options.certificate, &options.key) {
        (Some(certificate), Some(key)) => {
            Some(ClientTlsConfig { client_cert: read(certificate)?, client_key: read(key)? })
        }
        _ => None,
    };
    if root_cert.is_none() && client_tls.is_none() {
        return Ok(info);
    }
    let client = Client::build_with_tls(info, TlsCertificates { client_tls, root_cert })?;
    Ok(client.get_connection_info().clone())
}

pub(super) fn tcp_settings() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

/// Redacts user name and password.
pub(super) fn without_credentials(url: &str) -> String {
    match url.rsplit_once('@') {
        None => url.to_owned(),
        Some((before, after)) => {
            let scheme = before.split_once("://").map_or("", |(scheme, _)| scheme);
            format!("{scheme}://***@{after}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Address, String> {
        Address::parse(&RedisOptions::new(url)).map_err(|error| error.to_string())
    }

    #[test]
    fn all_url_forms_are_parsed() {
        assert!(matches!(parse("redis://localhost:6379/2"), Ok(Address::One(_))));
        assert!(matches!(parse("rediss://u:p@host"), Ok(Address::One(_))));
        assert!(matches!(parse("redis+unix:///run/redis.sock"), Ok(Address::One(_))));
        let Ok(Address::Cluster(nodes)) = parse("rediss-cluster://u:p%40ss@a:1,b:2/?protocol=resp3#insecure") else {
            panic!()
        };
        let message: Vec<_> =
            nodes.iter().map(|node| (node.addr().to_string(), node.redis_settings().password())).collect();
        assert_eq!(message, [("a:1".into(), Some("p@ss")), ("b:2".into(), Some("p@ss"))]);
        assert!(matches!(nodes[0].addr(), ConnectionAddr::TcpTls { insecure: true, .. }));
        assert!(matches!(parse("redis-sentinel://:p@a,b:26380/main/3"), Ok(Address::Sentinel(_))));
    }

    #[test]
    fn url_errors_do_not_show_the_password() {
        for (url, expected) in [
            ("http://u:secret@host", "`http://***@host` is not a redis URL"),
            ("redis://u:secret@host:port", "not a redis URL"),
            ("redis-cluster://u:secret@a,,b", "a host is empty"),
            ("redis-cluster://u:secret@a/3", "no database `3`"),
            ("redis-sentinel://u:secret@a", "the name of the master is missing"),
            ("redis-ring://u:secret@a", "`redis-ring` is not a supported scheme"),
            ("", "not a redis URL"),
        ] {
            let message = parse(url).err().unwrap();
            assert!(message.contains(expected) && message.contains("hint: "), "{url} gave {message}");
            assert!(!message.contains("secret"), "{message}");
        }
    }

    #[test]
    fn separate_credentials_override_the_url() {
        let mut options = RedisOptions::new("redis-cluster://u:p%40ss@a,b");
        assert_eq!(Address::password(&options).as_deref(), Some("p@ss"));
        options.password = Some("other".into());
        assert_eq!(Address::password(&options).as_deref(), Some("other"));
    }
}
