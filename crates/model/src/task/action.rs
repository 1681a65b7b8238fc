//! Actions and checks: notifications sent when a task reaches a state, or has not reached it in time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{MAX_RETRIES, MAX_TEXT_CHARS, parse_time};
use crate::json::{RawJson, check_depth};
use crate::record::state::State;
use crate::units::duration::Millis;

/// Type of the built-in tasks that send callbacks.
pub const CALLBACK_TYPE: &str = "kafleet-callback";
/// Type of the built-in tasks that send emails.
pub const EMAIL_TYPE: &str = "kafleet-email";

/// Maximum number of actions of one task.
pub const MAX_ACTIONS: usize = 8;
/// Maximum number of state checks of one task.
pub const MAX_CHECKS: usize = 8;
/// Maximum length of a callback's URL, in bytes.
pub const MAX_URL_BYTES: usize = 2_048;
/// Maximum number of headers of a callback.
pub const MAX_HEADERS: usize = 32;
/// Maximum number of recipients of an email, including copies.
pub const MAX_RECIPIENTS: usize = 32;
/// Maximum length of an email's body template, in characters.
pub const MAX_BODY_CHARS: usize = 8_192;

/// Notification sent each time the task enters any of the given states.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Action {
    /// States that trigger it, combined with the children's. Default: all terminal states.
    #[serde(default = "ends", skip_serializing_if = "is_terminal_states")]
    pub on: Vec<State>,
    /// Exactly one of `callback` and `email`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<Callback>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<Email>,
}

/// Check of the task's state at a given time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// Time of the check, counted from the task's creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Millis>,
    /// Time of the check (RFC 3339); excludes `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// States in which the check passes.
    pub expect: Vec<State>,
    /// Notification sent if the check passes. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passed: Option<NotifyAction>,
    /// Notification sent if the check fails. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<NotifyAction>,
}

/// Notification of a check: exactly one of `callback` and `email`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NotifyAction {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<Callback>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<Email>,
}

/// Signed HTTP callback (POST, JSON).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Callback {
    /// `https://…`; `${name}` in the path or query is replaced by a secret of `[callbacks.secrets]`.
    pub url: String,
    /// Additional headers; `${name}` is replaced by a secret.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Name of the secret that signs the callback. Default: not signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// JSON that the body contains as `payload`. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<RawJson>,
    /// Timeout of one attempt. Default: the timeout of the type `kafleet-callback`, 30s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Millis>,
    /// Attempts after the first. Default: the retries of the type `kafleet-callback`, 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
}

/// Email. Subject and body are Jinja templates: `{{ task.id }} is {{ task.state }}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Email {
    /// `a@example.com`, or `A name <a@example.com>`; at least one.
    pub to: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cc: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bcc: Vec<String>,
    /// Default: the task's id and state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Plain text. Default: the task's data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Timeout of one attempt. Default: the timeout of the type `kafleet-email`, 60s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Millis>,
    /// Attempts after the first. Default: the retries of the type `kafleet-email`, 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
}

/// Notification of an action or a check.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Notification<'a> {
    Callback(&'a Callback),
    Email(&'a Email),
}

impl Callback {
    pub fn to(url: &str) -> Self {
        let (headers, secret, payload) = (BTreeMap::new(), None, None);
        Self { url: url.to_owned(), headers, secret, payload, timeout: None, retries: None }
    }
}

impl Notification<'_> {
    /// Prefix of notification ids.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Callback(_) => "callback",
            Self::Email(_) => "email",
        }
    }

    fn check(&self) -> Result<(), (&'static str, String)> {
        let callback = match self {
            Self::Callback(callback) => callback,
            Self::Email(email) => return check_email(email),
        };
        if callback.url.len() > MAX_URL_BYTES {
            return Err(("/callback/url", format!("it has more than {MAX_URL_BYTES} bytes")));
        }
        if callback.headers.len() > MAX_HEADERS {
            return Err(("/callback/headers", format!("at most {MAX_HEADERS} headers are allowed")));
        }
        callback.payload.as_ref().map_or(Ok(()), check_depth).map_err(|error| ("/callback/payload", error))?;
        check_attempts("/callback", callback.retries, callback.timeout)
    }
}

fn check_email(email: &Email) -> Result<(), (&'static str, String)> {
    let to = email.to.len();
    let all = to + email.cc.len() + email.bcc.len();
    if to == 0 || all > MAX_RECIPIENTS {
        return Err(("/email/to", format!("an email needs one to {MAX_RECIPIENTS} recipients, copies included")));
    }
    let chars = |text: &Option<String>| text.as_ref().map_or(0, |text| text.chars().count());
    for (field, length, most) in
        [("/email/subject", chars(&email.subject), MAX_TEXT_CHARS), ("/email/body", chars(&email.body), MAX_BODY_CHARS)]
    {
        if length > most {
            return Err((field, format!("it has more than {most} characters")));
        }
    }
    check_attempts("/email", email.retries, email.timeout)
}

fn check_attempts(
    kind: &'static str,
    retries: Option<u32>,
    timeout: Option<Millis>,
) -> Result<(), (&'static str, String)> {
    match (retries, timeout) {
        (Some(retries), _) if retries > MAX_RETRIES => {
            Err((kind, format!("at most {MAX_RETRIES} retries are allowed")))
        }
        (_, Some(Millis(0))) => Err((kind, "the timeout of an attempt must not be zero".to_owned())),
        _ => Ok(()),
    }
}

impl Action {
    /// `None` unless exactly one of `callback` and `email` is set.
    pub fn notification(&self) -> Option<Notification<'_>> {
        one_of(self.callback.as_ref(), self.email.as_ref())
    }
}

impl NotifyAction {
    /// `None` unless exactly one of `callback` and `email` is set.
    pub fn notification(&self) -> Option<Notification<'_>> {
        one_of(self.callback.as_ref(), self.email.as_ref())
    }
}

fn one_of<'a>(callback: Option<&'a Callback>, email: Option<&'a Email>) -> Option<Notification<'a>> {
    match (callback, email) {
        (Some(callback), None) => Some(Notification::Callback(callback)),
        (None, Some(email)) => Some(Notification::Email(email)),
        _ => None,
    }
}

impl Check {
    /// Due time, epoch milliseconds.
    pub fn due_ms(&self, created_at_ms: i64) -> Option<i64> {
        match (&self.after, &self.at) {
            (Some(after), _) => Some(created_at_ms.saturating_add(after.as_i64())),
            (None, Some(at)) => parse_time(at).ok(),
            (None, None) => None,
        }
    }

    pub fn notification(&self, passed: bool) -> Option<Notification<'_>> {
        if passed { self.passed.as_ref() } else { self.failed.as_ref() }.and_then(NotifyAction::notification)
    }
}

/// Notification rules of one task.
#[derive(Clone, Debug)]
pub struct NotificationRules<'a> {
    /// JSON pointer to the task's rules.
    pub at: String,
    pub actions: &'a [Action],
    pub checks: &'a [Check],
}

impl<'a> NotificationRules<'a> {
    /// All notifications with their JSON pointers.
    pub fn notifications(&self) -> Vec<(String, Notification<'a>)> {
        self.with_pointers().into_iter().filter_map(|(at, notification)| Some((at, notification?))).collect()
    }

    fn with_pointers(&self) -> Vec<(String, Option<Notification<'a>>)> {
        let at = &self.at;
        let mut pointers: Vec<_> = self
            .actions
            .iter()
            .enumerate()
            .map(|(n, action)| (format!("{at}/actions/{n}"), action.notification()))
            .collect();
        for (n, check) in self.checks.iter().enumerate() {
            for (name, action) in [("passed", &check.passed), ("failed", &check.failed)] {
                pointers
                    .extend(action.as_ref().map(|action| (format!("{at}/checks/{n}/{name}"), action.notification())));
            }
        }
        pointers
    }

    /// Checks the rules. The error has the JSON pointer of the invalid field and the reason.
    pub fn check(&self) -> Result<(), (String, String)> {
        let at = &self.at;
        self.check_numbers()?;
        for (n, action) in self.actions.iter().enumerate() {
            check_states(&action.on).map_err(|error| (format!("{at}/actions/{n}/on"), error))?;
        }
        for (n, check) in self.checks.iter().enumerate() {
            check_states(&check.expect).map_err(|error| (format!("{at}/checks/{n}/expect"), error))?;
            check_time(check).map_err(|(field, error)| (format!("{at}/checks/{n}{field}"), error))?;
        }
        for (at, notification) in self.with_pointers() {
            let Some(notification) = notification else {
                return Err((
                    at,
                    "give exactly one of `callback` and `email`; use two actions to send both".to_owned(),
                ));
            };
            notification.check().map_err(|(field, error)| (format!("{at}{field}"), error))?;
        }
        Ok(())
    }

    fn check_numbers(&self) -> Result<(), (String, String)> {
        let numbers = [("actions", self.actions.len(), MAX_ACTIONS), ("checks", self.checks.len(), MAX_CHECKS)];
        let Some((field, number, most)) = numbers.into_iter().find(|(_, number, most)| number > most) else {
            return Ok(());
        };
        Err((format!("{}/{field}", self.at), format!("{number} {field}: at most {most} of one task are allowed")))
    }
}

fn check_states(states: &[State]) -> Result<(), String> {
    match states {
        [] => Err("name at least one state".to_owned()),
        states if states.contains(&State::Expected) => {
            Err("`expected` is the state before the task is announced and cannot be used in rules".to_owned())
        }
        _ => Ok(()),
    }
}

fn check_time(check: &Check) -> Result<(), (&'static str, String)> {
    match (&check.after, &check.at) {
        (Some(_), Some(_)) => Err(("/at", "give `after` or `at`, not both".to_owned())),
        (None, None) => Err(("", "give `after` or `at`, the time of the check".to_owned())),
        (None, Some(at)) => parse_time(at).map(drop).map_err(|error| ("/at", error)),
        (Some(_), None) if check.passed.is_none() && check.failed.is_none() => {
            Err(("", "give `passed` or `failed`, the notification to send".to_owned()))
        }
        _ => Ok(()),
    }
}

const TERMINAL: [State; 4] = [State::Succeeded, State::Cancelled, State::Expired, State::Failed];

/// All terminal states.
pub fn ends() -> Vec<State> {
    TERMINAL.to_vec()
}

fn is_terminal_states(states: &[State]) -> bool {
    *states == TERMINAL
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Rules;

    fn rules(text: &str) -> Rules {
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn invalid_rules_are_refused_with_their_pointer() {
        let nine = format!(r#"{{"actions":[{}]}}"#, [r#"{"callback":{"url":"https://a"}}"#; 9].join(","));
        for (text, at, reason) in [
            (nine.as_str(), "/actions", "at most 8"),
            (r#"{"actions":[{"on":[],"callback":{"url":"https://a"}}]}"#, "/actions/0/on", "at least one state"),
            (
                r#"{"actions":[{"on":["expected"],"callback":{"url":"https://a"}}]}"#,
                "/actions/0/on",
                "before the task is announced",
            ),
            (r#"{"actions":[{"callback":{"url":"https://a","retries":9999}}]}"#, "/actions/0/callback", "at most 1000"),
            (r#"{"actions":[{}]}"#, "/actions/0", "one of `callback` and `email`"),
            (
                r#"{"actions":[{"email":{"to":["a"]},"callback":{"url":"u"}}]}"#,
                "/actions/0",
                "one of `callback` and `email`",
            ),
            (r#"{"actions":[{"email":{"to":[]}}]}"#, "/actions/0/email/to", "needs one to 32 recipients"),
            (r#"{"checks":[{"expect":["succeeded"],"after":"1s"}]}"#, "/checks/0", "`passed` or `failed`"),
            (
                r#"{"checks":[{"expect":["succeeded"],"failed":{"callback":{"url":"u"}}}]}"#,
                "/checks/0",
                "`after` or `at`",
            ),
            (
                r#"{"checks":[{"expect":["succeeded"],"at":"soon","failed":{"callback":{"url":"u"}}}]}"#,
                "/checks/0/at",
                "soon",
            ),
            (
                r#"{"checks":[{"expect":["running"],"after":1,"passed":{"callback":{"url":"u","timeout":0}}}]}"#,
                "/checks/0/passed/callback",
                "zero",
            ),
        ] {
            let (pointer, error) = rules(text).own_rules().check().unwrap_err();
            assert_eq!(pointer, at, "{text}");
            assert!(error.contains(reason), "{text}: {error}");
        }
        assert!(serde_json::from_str::<Action>(r#"{"callback":{"url":"https://a"},"mail":1}"#).is_err());
    }

    #[test]
    fn action_defaults_to_all_terminal_states() {
        let rules = rules(r#"{"actions":[{"callback":{"url":"https://a"}}]}"#);
        assert_eq!(rules.actions[0].on, ends());
        assert_eq!(rules.own_rules().check(), Ok(()));
        assert_eq!(serde_json::to_string(&rules.actions).unwrap(), r#"[{"callback":{"url":"https://a"}}]"#);
    }

    #[test]
    fn check_is_due_after_creation_or_at_a_time() {
        let due = |text: &str| serde_json::from_str::<Check>(text).unwrap().due_ms(1_000);
        assert_eq!(due(r#"{"after":"2s","expect":["succeeded"]}"#), Some(3_000));
        assert_eq!(due(r#"{"at":"1970-01-01T00:00:07Z","expect":["succeeded"]}"#), Some(7_000));
    }
}
