//! `[email]`: the server that mails go out through, and to whom.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::document::join;
use super::shape::Finding;
use crate::handlers::builtin::email::{AddressPattern, check_address};

const AT: &str = "/email";

#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EmailConfig {
    /// The host of the SMTP server.
    pub server: String,
    /// Default: 587 with `starttls`, 465 with `tls`, 25 with `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub port: Option<u16>,
    /// How the connection is kept private. Default `starttls`.
    #[serde(default)]
    pub tls: MailTls,
    /// A file with the certificate (PEM) that the server's is signed with, relative to kafleet.toml. Default: the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// `${VARIABLE}` takes it from the environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// A file that holds it instead, read at each use; relative to kafleet.toml.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// Who mails are from: `fleet@example.com`, or `The fleet <fleet@example.com>`.
    pub from: String,
    /// Who may be written to, such as `ops@example.com` or `*@example.com`. Default: anybody.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recipients: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MailTls {
    /// It begins in the clear and has to change to TLS before anything is said.
    #[default]
    Starttls,
    /// TLS from the start.
    Tls,
    /// In the clear; without a password.
    None,
}

impl MailTls {
    pub const fn port(self) -> u16 {
        match self {
            Self::Starttls => 587,
            Self::Tls => 465,
            Self::None => 25,
        }
    }
}

pub(super) fn broken(config: &EmailConfig) -> Vec<Finding> {
    let at = |key: &str| join(AT, key);
    let mut found = Vec::new();
    let host = |server: &str| !server.is_empty() && !server.contains(|c: char| c.is_whitespace() || matches!(c, '/' | '@'));
    if !host(&config.server) {
        found.push(
            Finding::new(at("server"), "`email.server` is not a host")
                .hint("such as `smtp.example.com`; the port has its own key"),
        );
    }
    if let Err(why) = check_address(&config.from) {
        found.push(Finding::new(at("from"), format!("`email.from`: {why}")));
    }
    let (secrets, named) = ([config.password.is_some(), config.password_file.is_some()], config.username.is_some());
    let secret = secrets.contains(&true);
    if secrets == [true, true] {
        found.push(Finding::new(at("password_file"), "`email` has `password` and `password_file`: one of them is enough"));
    } else if secret != named {
        found.push(Finding::new(at("username"), "`email.username` and its password belong together: give both, or none"));
    }
    if secret && config.tls == MailTls::None {
        let what = "`email.tls` is `none`: the password would be there for everybody to read";
        found.push(Finding::new(at("tls"), what).hint("use `starttls` or `tls`, or no password"));
    }
    for (n, text) in config.recipients.iter().enumerate() {
        if let Err(why) = AddressPattern::new(text) {
            found.push(Finding::new(format!("{AT}/recipients/{n}"), format!("`email.recipients[{n}]`: {why}")));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(toml: &str) -> EmailConfig {
        toml::from_str(toml).unwrap()
    }

    #[test]
    fn everything_wrong_is_told() {
        let pointers = |text: &str| broken(&config(text)).into_iter().map(|finding| finding.pointer).collect::<Vec<_>>();
        assert_eq!(pointers("server = \"smtp.example.com\"\nfrom = \"A fleet <a@example.com>\""), [""; 0]);
        let odd = "server = \"smtp://x\"\nfrom = \"nobody\"\nusername = \"u\"\nrecipients = [\"a@b.c\", \"*@b.c\", \"b\"]";
        assert_eq!(pointers(odd), ["/email/server", "/email/from", "/email/username", "/email/recipients/2"]);
        let open = "server = \"s\"\nfrom = \"a@b.c\"\ntls = \"none\"\nusername = \"u\"\npassword = \"p\"";
        assert_eq!(pointers(open), ["/email/tls"]);
    }

    #[test]
    fn the_password_is_not_shown() {
        let config = config("server = \"s\"\nfrom = \"a@b.c\"\nusername = \"u\"\npassword = \"hunter2\"");
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
