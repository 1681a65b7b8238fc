//! Email addresses and patterns of permitted recipients.

use kafleet_model::task::id::clip;
use lettre::Address;
use lettre::message::{Mailbox, Mailboxes};

/// A pattern for recipients: an address, or all addresses of a domain (`*@example.com`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressPattern {
    user: Option<String>,
    domain: String,
}

impl AddressPattern {
    pub fn new(text: &str) -> Result<Self, String> {
        let text = text.to_ascii_lowercase();
        match text.strip_prefix("*@") {
            Some(domain) => Address::new("a", domain).map(|_| Self { user: None, domain: domain.to_owned() }),
            None => text.parse().map(|address: Address| Self {
                user: Some(address.user().to_owned()),
                domain: address.domain().to_owned(),
            }),
        }
        .map_err(|_| format!("`{text}` is neither an email address nor `*@` followed by a domain"))
    }

    pub fn matches(&self, address: &Address) -> bool {
        let user = self.user.as_ref().is_none_or(|user| *user == address.user().to_ascii_lowercase());
        user && self.domain == address.domain().to_ascii_lowercase()
    }
}

/// Parses one address: `a@example.com`, or `A name <a@example.com>`.
pub fn parse_mailbox(text: &str) -> Result<Mailbox, String> {
    // A list is rejected: each recipient is checked individually.
    let several = text.parse::<Mailboxes>().is_ok_and(|all| all.iter().count() > 1);
    let invalid =
        || format!("`{}` is not an email address: write `a@example.com` or `A name <a@example.com>`", clip(text));
    if several || text.chars().any(char::is_control) {
        return Err(invalid());
    }
    text.parse::<Mailbox>().map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_addresses_are_accepted() {
        for good in ["a@example.com", "A Name <a.b+c@example.com>", "\"Ops, night\" <o@example.com>"] {
            assert!(parse_mailbox(good).is_ok(), "{good}");
        }
        for bad in ["", "a", "a@", "a@b.c, d@e.f", "a@b.c\r\nBcc: x@y.z", "A <a@b.c>\nX: y"] {
            assert!(parse_mailbox(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn pattern_matches_address_or_domain() {
        for (pattern, address, matches) in [
            ("ops@example.com", "Ops@Example.com", true),
            ("ops@example.com", "dev@example.com", false),
            ("*@example.com", "anybody@example.com", true),
            ("*@example.com", "a@sub.example.com", false),
            ("*@example.com", "a@badexample.com", false),
        ] {
            assert_eq!(
                AddressPattern::new(pattern).unwrap().matches(&address.parse().unwrap()),
                matches,
                "{pattern} {address}"
            );
        }
        assert!(
            AddressPattern::new("*").is_err()
                && AddressPattern::new("a*@b.c").is_ok_and(|p| p.user.as_deref() == Some("a*"))
        );
    }
}
