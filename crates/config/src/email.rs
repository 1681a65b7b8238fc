//! `[email]`: the SMTP server and the allowed recipients.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::document::join;
use super::email_address::{AddressPattern, parse_mailbox};
use super::shape::UnlocatedProblem;

const SECTION: &str = "/email";

#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EmailConfig {
    /// Host of the SMTP server.
    pub server: String,
    /// Default: 587 with `starttls`, 465 with `tls`, 25 with `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub port: Option<u16>,
    /// Encryption of the connection. Default `starttls`.
    #[serde(default)]
    pub tls: MailTls,
    /// File with the CA certificate (PEM), relative to kafleet.toml. Default: the system's certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// Password; `${VARIABLE}` reads it from the environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// File with the password, read at each use; relative to kafleet.toml.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// Sender: `fleet@example.com`, or `The fleet <fleet@example.com>`.
    pub from: String,
    /// Allowed recipients, such as `ops@example.com` or `*@example.com`. Default: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recipients: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MailTls {
    /// Plain connection that must be upgraded to TLS before anything else is sent.
    #[default]
    Starttls,
    /// TLS from the start.
    Tls,
    /// Unencrypted; only without a password.
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

pub(super) fn problems(config: &EmailConfig) -> Vec<UnlocatedProblem> {
    let at = |key: &str| join(SECTION, key);
    let mut problems = Vec::new();
    let host =
        |server: &str| !server.is_empty() && !server.contains(|c: char| c.is_whitespace() || matches!(c, '/' | '@'));
    if !host(&config.server) {
        problems.push(
            UnlocatedProblem::new(at("server"), "`email.server` is not a host")
                .hint("write a host such as `smtp.example.com`; the port is a separate key"),
        );
    }
    if let Err(error) = parse_mailbox(&config.from) {
        problems.push(UnlocatedProblem::new(at("from"), format!("`email.from`: {error}")));
    }
    problems.extend(login_problems(config));
    for (n, text) in config.recipients.iter().enumerate() {
        if let Err(error) = AddressPattern::new(text) {
            problems.push(UnlocatedProblem::new(
                format!("{SECTION}/recipients/{n}"),
                format!("`email.recipients[{n}]`: {error}"),
            ));
        }
    }
    problems
}

fn login_problems(config: &EmailConfig) -> Vec<UnlocatedProblem> {
    let at = |key: &str| join(SECTION, key);
    let mut problems = Vec::new();
    let secrets = [config.password.is_some(), config.password_file.is_some()];
    let has_password = secrets.contains(&true);
    if secrets == [true, true] {
        let message = "`email` has both `password` and `password_file`: remove one of them";
        problems.push(UnlocatedProblem::new(at("password_file"), message));
    } else if has_password != config.username.is_some() {
        problems
            .push(UnlocatedProblem::new(at("username"), "`email` needs both a username and a password, or neither"));
    }
    if has_password && config.tls == MailTls::None {
        let message = "`email.tls` is `none`: the password would be sent unencrypted";
        problems.push(UnlocatedProblem::new(at("tls"), message).hint("use `starttls` or `tls`, or no password"));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(toml: &str) -> EmailConfig {
        toml::from_str(toml).unwrap()
    }

    #[test]
    fn all_problems_of_the_section_are_reported() {
        let pointers =
            |text: &str| problems(&config(text)).into_iter().map(|problem| problem.pointer).collect::<Vec<_>>();
        assert_eq!(pointers("server = \"smtp.example.com\"\nfrom = \"A fleet <a@example.com>\""), [""; 0]);
        let odd =
            "server = \"smtp://x\"\nfrom = \"nobody\"\nusername = \"u\"\nrecipients = [\"a@b.c\", \"*@b.c\", \"b\"]";
        assert_eq!(pointers(odd), ["/email/server", "/email/from", "/email/username", "/email/recipients/2"]);
        let open = "server = \"s\"\nfrom = \"a@b.c\"\ntls = \"none\"\nusername = \"u\"\npassword = \"p\"";
        assert_eq!(pointers(open), ["/email/tls"]);
    }

    #[test]
    fn password_is_not_shown() {
        let config = config("server = \"s\"\nfrom = \"a@b.c\"\nusername = \"u\"\npassword = \"hunter2\"");
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
