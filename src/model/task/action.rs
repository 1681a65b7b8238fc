//! Actions: what others are told when a task reaches a state, or has not reached one in time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::continuation::Continuation;
use super::{MAX_RETRIES, MAX_TEXT_CHARS, Rules, parse_time};
use crate::model::record::state::State;
use crate::model::units::duration::Millis;

/// The type of the tasks that call somebody outside.
pub const CALLBACK_TYPE: &str = "kafleet-callback";
/// The type of the tasks that send a mail.
pub const EMAIL_TYPE: &str = "kafleet-email";

/// The most actions of one task, and the most state checks.
pub const MAX_ACTIONS: usize = 8;
pub const MAX_CHECKS: usize = 8;
/// The longest URL of a callback, in bytes.
pub const MAX_URL_BYTES: usize = 2_048;
/// The most headers of a callback.
pub const MAX_HEADERS: usize = 32;
/// The most recipients of a mail, copies included.
pub const MAX_RECIPIENTS: usize = 32;
/// The longest template of a mail's body, in characters.
pub const MAX_BODY_CHARS: usize = 8_192;

/// What is done each time the task comes into one of these states.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Action {
    /// States of the task, its children's included. Default: any end.
    #[serde(default = "ends", skip_serializing_if = "is_ends")]
    pub on: Vec<State>,
    /// One of `callback` and `email`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<Callback>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<Email>,
}

/// A look at the task's state at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// So long after the task's creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Millis>,
    /// At this time (RFC 3339); not together with `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// The check passes if the task is then in one of these states.
    pub expect: Vec<State>,
    /// What is done if it passes. Default: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passed: Option<NotifyAction>,
    /// What is done if it does not. Default: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<NotifyAction>,
}

/// What a check does: one of `callback` and `email`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NotifyAction {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<Callback>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<Email>,
}

/// A signed HTTP call (POST, JSON).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Callback {
    /// `https://…`; `${name}` in its path or query stands for a secret of `[callbacks.secrets]`.
    pub url: String,
    /// Added to the call; `${name}` stands for a secret.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The secret that signs it. Default: it is not signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Of one attempt. Default: that of the type `kafleet-callback`, 30s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Millis>,
    /// Attempts after the first. Default: those of the type `kafleet-callback`, 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
}

/// A mail. Subject and body are Jinja templates: `{{ task.id }} is {{ task.state }}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Email {
    /// `a@example.com`, or `A name <a@example.com>`; at least one.
    pub to: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cc: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bcc: Vec<String>,
    /// Default: the task and its state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Plain text. Default: what is known of the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Of one attempt. Default: that of the type `kafleet-email`, 60s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Millis>,
    /// Attempts after the first. Default: those of the type `kafleet-email`, 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
}

/// Something to be told, whatever asks for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Notification<'a> {
    Callback(&'a Callback),
    Email(&'a Email),
}

impl Callback {
    pub fn to(url: &str) -> Self {
        Self { url: url.to_owned(), headers: BTreeMap::new(), secret: None, timeout: None, retries: None }
    }
}

impl Notification<'_> {
    /// The word that ids of deliveries begin with.
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
        check_attempts("/callback", callback.retries, callback.timeout)
    }
}

fn check_email(email: &Email) -> Result<(), (&'static str, String)> {
    let (to, all) = (email.to.len(), email.to.len() + email.cc.len() + email.bcc.len());
    if to == 0 || all > MAX_RECIPIENTS {
        return Err(("/email/to", format!("a mail has one recipient at least and {MAX_RECIPIENTS} at most, copies included")));
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

fn check_attempts(kind: &'static str, retries: Option<u32>, timeout: Option<Millis>) -> Result<(), (&'static str, String)> {
    match (retries, timeout) {
        (Some(retries), _) if retries > MAX_RETRIES => Err((kind, format!("at most {MAX_RETRIES} retries are allowed"))),
        (_, Some(Millis(0))) => Err((kind, "an attempt needs some time: `timeout` is zero".to_owned())),
        _ => Ok(()),
    }
}

impl Action {
    /// None: it is not one thing that it says.
    pub fn telling(&self) -> Option<Notification<'_>> {
        one_of(self.callback.as_ref(), self.email.as_ref())
    }
}

impl NotifyAction {
    /// None: it is not one thing that it says.
    pub fn telling(&self) -> Option<Notification<'_>> {
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
    /// When it is due, epoch milliseconds.
    pub fn due_ms(&self, created_at_ms: i64) -> Option<i64> {
        match (&self.after, &self.at) {
            (Some(after), _) => Some(created_at_ms.saturating_add(after.as_i64())),
            (None, Some(at)) => parse_time(at).ok(),
            (None, None) => None,
        }
    }

    pub fn telling(&self, passed: bool) -> Option<Notification<'_>> {
        if passed { self.passed.as_ref() } else { self.failed.as_ref() }.and_then(NotifyAction::telling)
    }
}

/// What is to be told of one task.
#[derive(Clone, Debug)]
pub struct NotificationRules<'a> {
    /// Its place (a JSON pointer).
    pub at: String,
    pub actions: &'a [Action],
    pub checks: &'a [Check],
}

impl Rules {
    /// Somebody is to be told of something.
    pub fn tells(&self) -> bool {
        !self.actions.is_empty() || !self.checks.is_empty()
    }

    /// What is to be told of the task itself.
    pub fn own_tells(&self) -> NotificationRules<'_> {
        NotificationRules { at: String::new(), actions: &self.actions, checks: &self.checks }
    }

    /// The same, and what is to be told of what follows it.
    pub fn all_tells(&self) -> Vec<NotificationRules<'_>> {
        let mut all = vec![self.own_tells()];
        tells_below("/then", &self.then, &mut all);
        all
    }
}

fn tells_below<'a>(at: &str, thens: &'a [Continuation], all: &mut Vec<NotificationRules<'a>>) {
    for (n, then) in thens.iter().enumerate() {
        let at = format!("{at}/{n}");
        tells_below(&format!("{at}/then"), &then.then, all);
        all.push(NotificationRules { at, actions: &then.actions, checks: &then.checks });
    }
}

impl<'a> NotificationRules<'a> {
    /// Everything that may be told, with its place.
    pub fn tellings(&self) -> Vec<(String, Notification<'a>)> {
        self.places().into_iter().filter_map(|(at, telling)| Some((at, telling?))).collect()
    }

    fn places(&self) -> Vec<(String, Option<Notification<'a>>)> {
        let at = &self.at;
        let mut places: Vec<_> =
            self.actions.iter().enumerate().map(|(n, action)| (format!("{at}/actions/{n}"), action.telling())).collect();
        for (n, check) in self.checks.iter().enumerate() {
            for (name, tell) in [("passed", &check.passed), ("failed", &check.failed)] {
                places.extend(tell.as_ref().map(|tell| (format!("{at}/checks/{n}/{name}"), tell.telling())));
            }
        }
        places
    }

    /// What is wrong with it, and where.
    pub fn check(&self) -> Result<(), (String, String)> {
        let at = &self.at;
        for (field, number, most) in [("actions", self.actions.len(), MAX_ACTIONS), ("checks", self.checks.len(), MAX_CHECKS)] {
            if number > most {
                return Err((format!("{at}/{field}"), format!("{number} {field}: at most {most} of one task are allowed")));
            }
        }
        for (n, action) in self.actions.iter().enumerate() {
            check_states(&action.on).map_err(|why| (format!("{at}/actions/{n}/on"), why))?;
        }
        for (n, check) in self.checks.iter().enumerate() {
            check_states(&check.expect).map_err(|why| (format!("{at}/checks/{n}/expect"), why))?;
            check_time(check).map_err(|(field, why)| (format!("{at}/checks/{n}{field}"), why))?;
        }
        for (at, telling) in self.places() {
            let Some(telling) = telling else {
                return Err((at, "give one of `callback` and `email`; what is to do both is two actions".to_owned()));
            };
            telling.check().map_err(|(field, why)| (format!("{at}{field}"), why))?;
        }
        Ok(())
    }
}

fn check_states(states: &[State]) -> Result<(), String> {
    match states {
        [] => Err("name at least one state".to_owned()),
        states if states.contains(&State::Expected) => {
            Err("`expected` is the state of what nobody has announced: nothing is known of it then".to_owned())
        }
        _ => Ok(()),
    }
}

fn check_time(check: &Check) -> Result<(), (&'static str, String)> {
    match (&check.after, &check.at) {
        (Some(_), Some(_)) => Err(("/at", "give `after` or `at`, not both".to_owned())),
        (None, None) => Err(("", "give `after` or `at`: when the state is looked at".to_owned())),
        (None, Some(at)) => parse_time(at).map(drop).map_err(|why| ("/at", why)),
        (Some(_), None) if check.passed.is_none() && check.failed.is_none() => {
            Err(("", "give `passed` or `failed`: what is done then".to_owned()))
        }
        _ => Ok(()),
    }
}

const ENDS: [State; 4] = [State::Succeeded, State::Cancelled, State::Expired, State::Failed];

/// Any end.
pub fn ends() -> Vec<State> {
    ENDS.to_vec()
}

fn is_ends(states: &[State]) -> bool {
    *states == ENDS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Rules {
        serde_json::from_str(text).unwrap_or_else(|why| panic!("{text}: {why}"))
    }

    #[test]
    fn what_cannot_be_done_is_told_with_its_place() {
        let nine = format!(r#"{{"actions":[{}]}}"#, [r#"{"callback":{"url":"https://a"}}"#; 9].join(","));
        for (text, at, why) in [
            (nine.as_str(), "/actions", "at most 8"),
            (r#"{"actions":[{"on":[],"callback":{"url":"https://a"}}]}"#, "/actions/0/on", "at least one state"),
            (r#"{"actions":[{"on":["expected"],"callback":{"url":"https://a"}}]}"#, "/actions/0/on", "nobody has announced"),
            (r#"{"actions":[{"callback":{"url":"https://a","retries":9999}}]}"#, "/actions/0/callback", "at most 1000"),
            (r#"{"actions":[{}]}"#, "/actions/0", "one of `callback` and `email`"),
            (r#"{"actions":[{"email":{"to":["a"]},"callback":{"url":"u"}}]}"#, "/actions/0", "one of `callback` and `email`"),
            (r#"{"actions":[{"email":{"to":[]}}]}"#, "/actions/0/email/to", "one recipient at least"),
            (r#"{"checks":[{"expect":["succeeded"],"after":"1s"}]}"#, "/checks/0", "`passed` or `failed`"),
            (r#"{"checks":[{"expect":["succeeded"],"failed":{"callback":{"url":"u"}}}]}"#, "/checks/0", "`after` or `at`"),
            (r#"{"checks":[{"expect":["succeeded"],"at":"soon","failed":{"callback":{"url":"u"}}}]}"#, "/checks/0/at", "soon"),
            (
                r#"{"checks":[{"expect":["running"],"after":1,"passed":{"callback":{"url":"u","timeout":0}}}]}"#,
                "/checks/0/passed/callback",
                "zero",
            ),
        ] {
            let (place, told) = rules(text).own_tells().check().unwrap_err();
            assert_eq!(place, at, "{text}");
            assert!(told.contains(why), "{text}: {told}");
        }
        assert!(serde_json::from_str::<Action>(r#"{"callback":{"url":"https://a"},"mail":1}"#).is_err());
    }

    #[test]
    fn an_action_is_for_any_end_unless_it_says_otherwise() {
        let rules = rules(r#"{"actions":[{"callback":{"url":"https://a"}}]}"#);
        assert_eq!(rules.actions[0].on, ends());
        assert_eq!(rules.own_tells().check(), Ok(()));
        assert_eq!(serde_json::to_string(&rules.actions).unwrap(), r#"[{"callback":{"url":"https://a"}}]"#);
    }

    #[test]
    fn a_check_is_due_after_creation_or_at_a_time() {
        let due = |text: &str| serde_json::from_str::<Check>(text).unwrap().due_ms(1_000);
        assert_eq!(due(r#"{"after":"2s","expect":["succeeded"]}"#), Some(3_000));
        assert_eq!(due(r#"{"at":"1970-01-01T00:00:07Z","expect":["succeeded"]}"#), Some(7_000));
    }
}
