//! Options of a task beyond type and params. The two tables are the only place that lists them: headers, API documents,
//! continuations, schedules, changes, command-line arguments and `docs/task-fields.md` follow from them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::de::MapAccess;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

use super::action::{Action, Check, MAX_HEADERS, NotificationRules};
use super::continuation::{Continuation, check_continuations};
use super::field::{Argument, Change, Field, HeaderValue, Scope, Visibility, fields, first};
use super::id::{clip, is_path_step};
use super::param_tags::{MAX_INDEXED, is_param_tag};
use super::{MAX_RETRIES, MAX_TAGS, MAX_TEXT_CHARS, header};
use crate::json::{JsonKind, RawJson, check_depth, plain_text};
use crate::omit::{is_default, is_true};
use crate::unique::UniqueRule;
use crate::unique::field::check_field as unique;
use crate::units::duration::Millis;

/// Effect of a failed child on its parent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The parent fails too.
    #[default]
    Fail,
    /// The parent is not affected.
    Ignore,
}

/// Maximum length of the name of a header.
const MAX_HEADER_NAME_CHARS: usize = 128;

const ALL_SCOPES: &[Scope] = &[Scope::Create, Scope::Continue, Scope::Schedule];

fields! {
    /// Options of a task beyond type and params. Unset fields default to the settings of the type.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
    #[serde(default)]
    pub struct Policy {
        /// Earliest start (epoch ms).
        #[serde(skip_serializing_if = "Option::is_none")]
        pub not_before_ms: Option<i64> = None,
        /// Latest start (epoch ms).
        #[serde(skip_serializing_if = "Option::is_none")]
        pub expires_at_ms: Option<i64> = None,
        #[serde(flatten)]
        pub rules: Rules = Rules::default(),
        table {
            /// Display name.
            name: Option<String>, header "ce_name", check short,
            Field::at(ALL_SCOPES).change(Change::Always).visible(Visibility::Label)
                .argument(Argument::text("name", "NAME", "Display name"));

            /// Creator of the task. Default for the tasks of schedules: `schedule/` followed by the schedule's name.
            creator: Option<String>, header "ce_creator", check short,
            Field::at(&[Scope::Create, Scope::Schedule]).visible(Visibility::Label)
                .argument(Argument::text(
                    "creator", "CREATOR", "Creator of the task [default for schedules: schedule/ID]",
                ));

            /// Tags: at most 32, of 1 to 128 characters each, without commas.
            tags: Vec<String>, header "ce_tags", check tags,
            Field::at(ALL_SCOPES).change(Change::Always).visible(Visibility::Label)
                .argument(Argument::list("tag", "TAG", "Tag; repeatable")
                    .update("Tag, replacing the present tags; repeatable"));

            /// Link shown with the task.
            link: Option<String>, header "ce_link", check short,
            Field::at(&[Scope::Create, Scope::Schedule]).change(Change::Always).visible(Visibility::Label)
                .argument(Argument::text("link", "URL", "Link shown with the task"));

            /// Number of retries, at most 1,000. Default: the type's.
            retries: Option<u32>, header "ce_retries", check retries,
            Field::at(ALL_SCOPES).change(Change::BeforePublish)
                .argument(Argument::number("retries", "Number of retries"));

            /// Wait before the second attempt; doubles with each further attempt. Default: the type's.
            min_backoff: Option<Millis>, header "ce_minbackoff", check any,
            Field::at(ALL_SCOPES).change(Change::BeforePublish)
                .argument(Argument::duration(
                    "min-backoff", "Wait before the second attempt; doubles with each further attempt",
                ));

            /// Maximum wait between two attempts. Default: the type's.
            max_backoff: Option<Millis>, header "ce_maxbackoff", check any,
            Field::at(ALL_SCOPES).change(Change::BeforePublish)
                .argument(Argument::duration("max-backoff", "Maximum wait between two attempts"));

            /// Time of an attempt after which its failure starts the backoff again at `min_backoff`. Default: the type's.
            backoff_reset: Option<Millis>, header "ce_backoffreset", check any,
            Field::at(ALL_SCOPES).change(Change::BeforePublish)
                .argument(Argument::duration(
                    "backoff-reset", "Time of an attempt after which its failure starts the backoff again",
                ));

            /// Time after the first wait of a run from which on waits count as attempts; 0: each counts. Default: the type's.
            max_wait: Option<Millis>, header "ce_maxwait", check any,
            Field::at(ALL_SCOPES).change(Change::BeforePublish)
                .argument(Argument::duration("max-wait", "Time after the first wait from which on waits count as attempts"));

            /// Timeout of one attempt. Default: the type's.
            timeout: Option<Millis>, header "ce_timeout", check any,
            Field::at(ALL_SCOPES).change(Change::BeforePublish)
                .argument(Argument::duration("timeout", "Time limit of one attempt"));

            /// Time without progress, log line or heartbeat after which an attempt fails. Default: the type's.
            stall_timeout: Option<Millis>, header "ce_stalltimeout", check any,
            Field::at(ALL_SCOPES).change(Change::BeforePublish)
                .argument(Argument::duration(
                    "stall-timeout", "Time without progress, log line or heartbeat after which an attempt fails",
                ));

            /// Timeout of all attempts and waits together, counted from creation or, if later, from the earliest start.
            /// Default: the type's.
            total_timeout: Option<Millis>, header "ce_totaltimeout", check any,
            Field::at(&[Scope::Create]).change(Change::BeforePublish)
                .argument(Argument::duration(
                    "total-timeout", "Time limit of the whole task, including all attempts and waits",
                ));

            /// Kafka topic that also receives the result: one of `topics.reply_to`.
            reply_to: Option<String>, header "ce_replyto", check topic,
            Field::at(&[Scope::Create]).change(Change::BeforePublish).visible(Visibility::Status)
                .argument(Argument::text("reply-to", "TOPIC", "Kafka topic that also receives the result"));

            /// Effect of the task's failure on its parent or, for a continuation, on the preceding task: `fail`
            /// (default) or `ignore`.
            on_failure: OnFailure, header "ce_onfailure", check any,
            Field::at(&[Scope::Create, Scope::Continue]);

            /// Key of which at most one task of the type is open at a time, or an object with `key`, `mode`, `for`, `window` and
            /// `max`. Only roots are unique.
            unique: Option<UniqueRule>, header "ce_unique", check unique,
            Field::at(&[Scope::Create]).visible(Visibility::Status)
                .argument(Argument::text(
                    "unique", "KEY", "Key of which at most one task is open, or a JSON object with key, mode, for, window, max",
                ));
        }
    }
}

fields! {
    /// Part of the policy that travels as JSON in `ce_policy`.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
    #[serde(default)]
    pub struct Rules {
        /// Whether reports after the end are ignored (external tasks).
        #[serde(skip_serializing_if = "is_true")]
        pub block_when_done: bool = true,
        table {
            /// Free-form JSON object. Schedules add `schedule` and `scheduled_for` to it; a change replaces it as a
            /// whole.
            options: Option<RawJson>, check object,
            Field::at(&[Scope::Create, Scope::Schedule]).change(Change::Always).visible(Visibility::Label)
                .argument(Argument::json("options", "JSON object stored with the task and returned with its status")
                    .update("JSON object stored with the task, replaced as a whole"));

            /// Headers for the handlers of the task, such as a tenant or a correlation id: names and values, at most 32.
            headers: BTreeMap<String, String>, check task_headers,
            Field::at(ALL_SCOPES).change(Change::BeforePublish).visible(Visibility::Status)
                .argument(Argument::json("headers", "Headers for the handlers, as a JSON object of texts"));

            /// The task is run by an external system, which reports its state. It needs no topic and no handler.
            external: bool, check any,
            Field::at(&[Scope::Create]).visible(Visibility::Status)
                .argument(Argument::flag(
                    "external", "External task: run by another system, which reports its state; needs no handler",
                ));

            /// Fails the task and cancels its pending descendants as soon as more than `max_failed` children have failed.
            fail_fast: bool, check any,
            Field::at(ALL_SCOPES).visible(Visibility::Status)
                .argument(Argument::flag("fail-fast", "Fail and cancel all open descendants when more than --max-failed children have failed"));

            /// Number of direct children that may fail, be cancelled or expire before the task fails. Default 0.
            max_failed: Option<u32>, check any,
            Field::at(ALL_SCOPES).visible(Visibility::Status)
                .argument(Argument::number("max-failed", "Number of children that may fail before the task fails"));

            /// Place among its siblings, in which a continuation receives their results. Set for the children of an attempt, in
            /// the order of their spawn; a task without a place comes after those that have one.
            index: Option<u32>, check any,
            Field::at(&[Scope::Create]).visible(Visibility::Status)
                .argument(Argument::number("index", "Place among its siblings, in which a continuation receives their results"));

            /// Continuations, started once the task and everything below have ended; at most 8.
            then: Vec<Continuation>, check any,
            Field::at(ALL_SCOPES).visible(Visibility::Status);

            /// Notifications when the task reaches a state; at most 8.
            actions: Vec<Action>, check any,
            Field::at(ALL_SCOPES).visible(Visibility::Status);

            /// State checks at given times; at most 8.
            checks: Vec<Check>, check any,
            Field::at(ALL_SCOPES).visible(Visibility::Status);
        }
    }
}

/// JSON object with one field of a policy.
struct FieldEntry<'a> {
    policy: &'a Policy,
    field: &'a Field,
}

impl Serialize for FieldEntry<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(1))?;
        self.policy.write(self.field, &mut map)?;
        map.end()
    }
}

impl Policy {
    /// All fields of the two tables.
    pub fn fields() -> impl Iterator<Item = &'static Field> {
        Self::TABLE.iter().chain(Rules::TABLE)
    }

    /// Field by its name in JSON.
    pub fn field(name: &str) -> Option<&'static Field> {
        Self::fields().find(|field| field.name == name)
    }

    /// Reads the value of a field from JSON.
    pub(super) fn read<'de, M: MapAccess<'de>>(&mut self, field: &Field, map: &mut M) -> Result<(), M::Error> {
        let _ = self.read_own(field.name, false, map)? || self.rules.read_own(field.name, false, map)?;
        Ok(())
    }

    /// Reads the value of a field from JSON; `null` is its default.
    pub(super) fn read_or_clear<'de, M: MapAccess<'de>>(&mut self, field: &Field, map: &mut M) -> Result<(), M::Error> {
        let _ = self.read_own(field.name, true, map)? || self.rules.read_own(field.name, true, map)?;
        Ok(())
    }

    /// Writes the value of a field as JSON.
    pub(super) fn write<M: SerializeMap>(&self, field: &Field, map: &mut M) -> Result<(), M::Error> {
        let _ = self.write_own(field.name, map)? || self.rules.write_own(field.name, map)?;
        Ok(())
    }

    /// Copies the value of a field.
    pub(super) fn copy(&mut self, field: &Field, from: &Self) {
        self.copy_own(field.name, from);
        self.rules.copy_own(field.name, &from.rules);
    }

    /// Value of a field as JSON.
    pub fn value(&self, field: &Field) -> RawJson {
        let entry = RawJson::of_plain(&FieldEntry { policy: self, field });
        entry.slice().member(field.name).map(RawJson::from).unwrap_or_default()
    }

    /// Names and values of the fields that people are shown.
    pub fn labels(&self) -> impl Iterator<Item = (&'static str, RawJson)> {
        Self::fields().filter(|field| field.is_label()).map(|field| (field.name, self.value(field)))
    }

    /// Returns true if a field has another value than its default.
    pub fn is_set(&self, field: &Field) -> bool {
        self.is_set_own(field.name) || self.rules.is_set_own(field.name)
    }

    /// Headers of a record; `None` for default values.
    pub fn headers<'a>(&'a self, set: &mut impl FnMut(&'static str, Option<Cow<'a, str>>)) {
        self.write_headers(set);
        let rules = (self.rules != Rules::default()).then(|| plain_text(&self.rules));
        set(header::POLICY, rules.map(Cow::Owned));
    }

    /// Invalid fields: JSON pointers without the leading slash, and reasons.
    pub fn errors(&self) -> Vec<(String, String)> {
        let mut errors = Vec::new();
        self.errors_own(&mut errors);
        self.rules.errors_own(&mut errors);
        let spans =
            [("timeout", self.timeout), ("stall_timeout", self.stall_timeout), ("total_timeout", self.total_timeout)];
        for (field, span) in spans {
            if span == Some(Millis(0)) {
                errors.push((field.to_owned(), "it must be greater than zero".to_owned()));
            }
        }
        if self.unique.is_some() && self.not_before_ms.is_some() {
            let reason =
                "a unique task has no start time of its own: omit `delay` and `at`, or use the mode `debounce`";
            errors.push(("unique".to_owned(), reason.to_owned()));
        }
        for (short, span, long, limit) in [
            ("min_backoff", self.min_backoff, "max_backoff", self.max_backoff),
            ("timeout", self.timeout, "total_timeout", self.total_timeout),
            ("max_wait", self.max_wait, "total_timeout", self.total_timeout),
            ("backoff_reset", self.backoff_reset, "timeout", self.timeout),
        ] {
            if let Some((span, limit)) = span.zip(limit).filter(|(span, limit)| span > limit) {
                errors.push((short.to_owned(), format!("`{span}` is longer than `{long}`, {limit}")));
            }
        }
        errors
    }
}

impl Rules {
    /// Names of the members in JSON.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::TABLE.iter().map(|field| field.name).chain(["block_when_done"])
    }

    /// Checks all rules, with the continuations and notifications. The error has the JSON pointer of the invalid field
    /// and the reason.
    pub fn check_all(&self) -> Result<(), (String, String)> {
        let mut errors = Vec::new();
        self.errors_own(&mut errors);
        errors.into_iter().next().map_or(Ok(()), |(field, error)| Err((format!("/{field}"), error)))?;
        check_continuations(&self.then).map_err(|(at, error)| (format!("/then{at}"), error))?;
        self.own_rules().check()
    }

    /// Returns true if the task has notification rules.
    pub fn has_rules(&self) -> bool {
        !self.actions.is_empty() || !self.checks.is_empty()
    }

    /// Notification rules of the task itself.
    pub fn own_rules(&self) -> NotificationRules<'_> {
        NotificationRules { at: String::new(), actions: &self.actions, checks: &self.checks }
    }

    /// Notification rules of the task and of all its continuations.
    pub fn all_rules(&self) -> Vec<NotificationRules<'_>> {
        let mut all = vec![self.own_rules()];
        rules_below("/then", &self.then, &mut all);
        all
    }
}

fn rules_below<'a>(at: &str, continuations: &'a [Continuation], all: &mut Vec<NotificationRules<'a>>) {
    for (n, then) in continuations.iter().enumerate() {
        let at = format!("{at}/{n}");
        let rules = &then.policy.rules;
        rules_below(&format!("{at}/then"), &rules.then, all);
        all.push(NotificationRules { at, actions: &rules.actions, checks: &rules.checks });
    }
}

#[expect(clippy::unnecessary_wraps, reason = "the signature of a check")]
fn any<T>(_: &T) -> Result<(), String> {
    Ok(())
}

/// Checks the length of a text.
fn short(text: &Option<String>) -> Result<(), String> {
    if text.as_ref().is_some_and(|text| text.chars().count() > MAX_TEXT_CHARS) {
        Err(format!("it has more than {MAX_TEXT_CHARS} characters"))
    } else {
        Ok(())
    }
}

/// Checks the form of a topic's name.
fn topic(text: &Option<String>) -> Result<(), String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let fits = |name: &str| (1..=249).contains(&name.len()) && name.bytes().all(allowed) && !is_path_step(name);
    match text.as_deref().filter(|name| !fits(name)) {
        Some(name) => {
            Err(format!("`{}` is not a topic: 1 to 249 characters of A-Z a-z 0-9 . _ - are allowed", clip(name)))
        }
        None => Ok(()),
    }
}

/// Checks tags: at most 32 besides those of declared params, of 1 to 128 characters each, without commas.
pub fn check_tags(tags: &[String]) -> Result<(), String> {
    let of_params = tags.iter().filter(|tag| is_param_tag(tag)).count();
    if tags.len() > MAX_TAGS + of_params.min(MAX_INDEXED) {
        return Err(format!("{} tags: at most {MAX_TAGS} are allowed", tags.len()));
    }
    let is_bad = |tag: &&String| tag.is_empty() || tag.chars().count() > 128 || tag.contains(',') || is_path_step(tag);
    match tags.iter().find(is_bad) {
        Some(tag) => {
            Err(format!("the tag `{}` must have 1 to 128 characters, no comma, and not be `.` or `..`", clip(tag)))
        }
        None => Ok(()),
    }
}

#[expect(clippy::ptr_arg, reason = "the table calls it with a reference to the field")]
fn tags(tags: &Vec<String>) -> Result<(), String> {
    check_tags(tags)
}

fn retries(retries: &Option<u32>) -> Result<(), String> {
    match retries.filter(|retries| *retries > MAX_RETRIES) {
        Some(many) => Err(format!("`{many}` is not a number of retries from 0 to {MAX_RETRIES}")),
        None => Ok(()),
    }
}

fn object(value: &Option<RawJson>) -> Result<(), String> {
    match value {
        Some(value) if value.slice().kind() != JsonKind::Object => Err("it must be a JSON object".to_owned()),
        Some(value) => check_depth(value),
        None => Ok(()),
    }
}

/// Checks headers: at most 32, with names as in HTTP and values of one line.
fn task_headers(headers: &BTreeMap<String, String>) -> Result<(), String> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if headers.len() > MAX_HEADERS {
        return Err(format!("{} headers: at most {MAX_HEADERS} are allowed", headers.len()));
    }
    for (name, value) in headers {
        if !(1..=MAX_HEADER_NAME_CHARS).contains(&name.len()) || !name.bytes().all(is_token) {
            let reason = format!("1 to {MAX_HEADER_NAME_CHARS} characters of A-Z a-z 0-9 - _ . are allowed");
            return Err(format!("`{}` is not the name of a header: {reason}", clip(name)));
        }
        if value.chars().count() > MAX_TEXT_CHARS || value.contains(char::is_control) {
            return Err(format!("the header `{name}` must have one line of at most {MAX_TEXT_CHARS} characters"));
        }
    }
    Ok(())
}
