//! Uniqueness as users write it: the field `unique` of a task, and the setting of a type.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

use crate::json::{RawJson, short_reason};
use crate::task::MAX_TEXT_CHARS;
use crate::task::hash::spawn_hash;
use crate::task::id::clip;
use crate::units::duration::Millis;

/// Maximum size of the params of a unique task, in bytes.
pub const MAX_UNIQUE_PARAMS_BYTES: usize = 256 << 10;

/// Treatment of a task whose key has an open task, or had one a short time ago.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UniqueMode {
    /// The task joins the open one; within `for` of the last start it joins the last one.
    #[default]
    Skip,
    /// The newest task is kept, and starts after the open one has ended.
    Latest,
    /// The newest task is kept, and starts once no other has been asked for within `window`.
    Debounce,
    /// The newest task is kept, and starts `window` after the last start.
    Throttle,
}

impl UniqueMode {
    /// All modes.
    pub const ALL: [Self; 4] = [Self::Skip, Self::Latest, Self::Debounce, Self::Throttle];

    /// Name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Latest => "latest",
            Self::Debounce => "debounce",
            Self::Throttle => "throttle",
        }
    }
}

/// Uniqueness of a task. Unset members default to the setting of the type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "UniqueMembers")]
struct RuleMembers {
    /// Tasks of one type with one key are unique, 1 to 512 characters. Default: by the type's setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// Default: the type's, else `skip`.
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<UniqueMode>,
    /// Mode `skip`: time after the last start in which further tasks join the last one.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    remember: Option<Millis>,
    /// Modes `debounce` and `throttle`: time between asks, or between starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<Millis>,
    /// Mode `debounce`: longest wait since the first ask.
    #[serde(skip_serializing_if = "Option::is_none")]
    max: Option<Millis>,
}

/// Uniqueness of a task: a key, or an object with the key and what differs from the setting of the type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct UniqueRule(RuleMembers);

impl<'de> Deserialize<'de> for UniqueRule {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum RuleInput {
            Key(String),
            Members(RuleMembers),
        }
        match RuleInput::deserialize(from) {
            Ok(RuleInput::Key(text)) => Self::parse(&text).map_err(serde::de::Error::custom),
            Ok(RuleInput::Members(members)) => Ok(Self(members)),
            Err(_) => Err(serde::de::Error::custom(EXPECTED)),
        }
    }
}

const EXPECTED: &str = "write a key, or an object with `key`, `mode` (`skip`, `latest`, `debounce` or `throttle`), `for`, \
                        `window` and `max`";

impl JsonSchema for UniqueRule {
    fn schema_name() -> Cow<'static, str> {
        "UniqueRule".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let members = RuleMembers::json_schema(generator);
        json_schema!({
            "description": "Uniqueness of a task: its key, or an object with the key and what differs from the setting of the type.",
            "anyOf": [{"type": "string", "minLength": 1, "maxLength": MAX_TEXT_CHARS}, members],
        })
    }
}

impl UniqueRule {
    /// Rule with a key and the setting of the type.
    pub fn of_key(key: impl Into<String>) -> Self {
        Self(RuleMembers { key: Some(key.into()), ..RuleMembers::default() })
    }

    /// Sets the mode.
    pub fn with_mode(mut self, mode: UniqueMode) -> Self {
        self.0.mode = Some(mode);
        self
    }

    /// Sets `for`: the time after the last start in which further tasks join the last one.
    pub fn with_for(mut self, remember: Millis) -> Self {
        self.0.remember = Some(remember);
        self
    }

    /// Sets the window of the modes `debounce` and `throttle`.
    pub fn with_window(mut self, window: Millis) -> Self {
        self.0.window = Some(window);
        self
    }

    /// Sets the longest wait of the mode `debounce`.
    pub fn with_max(mut self, max: Millis) -> Self {
        self.0.max = Some(max);
        self
    }

    /// Key, or JSON object if there is more: the text that [`Self::parse`] reads.
    pub fn text(&self) -> Cow<'_, str> {
        let RuleMembers { key, mode, remember, window, max } = &self.0;
        let is_plain = mode.is_none() && remember.is_none() && window.is_none() && max.is_none();
        match key.as_deref().filter(|key| is_plain && !key.trim_start().starts_with('{')) {
            Some(key) => key.into(),
            None => crate::json::plain_text(&self.0).into(),
        }
    }

    /// Reads a key, or a JSON object that begins with `{`.
    ///
    /// # Errors
    /// The object has a member that is unknown or has another type.
    pub fn parse(text: &str) -> Result<Self, String> {
        if !text.trim_start().starts_with('{') {
            return Ok(Self::of_key(text));
        }
        let members: RuleMembers =
            serde_json::from_str(text).map_err(|error| format!("{}; {EXPECTED}", short_reason(&error)))?;
        Ok(Self(members))
    }

    /// Key, if it is given.
    pub fn key(&self) -> Option<&str> {
        self.0.key.as_deref()
    }

    /// Mode; without one `skip`.
    pub fn mode(&self) -> UniqueMode {
        self.0.mode.unwrap_or_default()
    }

    /// Time after the last start in which further tasks join the last one, in milliseconds; 0 without one.
    pub fn for_ms(&self) -> i64 {
        self.0.remember.map_or(0, Millis::as_i64)
    }

    /// Window of the modes `debounce` and `throttle`, in milliseconds; 0 without one.
    pub fn window_ms(&self) -> i64 {
        self.0.window.map_or(0, Millis::as_i64)
    }

    /// Longest wait of the mode `debounce`, in milliseconds.
    pub fn max_ms(&self) -> Option<i64> {
        self.0.max.map(Millis::as_i64)
    }

    /// Longest of the times that the rule names.
    pub fn longest(&self) -> Millis {
        let RuleMembers { remember, window, max, .. } = &self.0;
        [*remember, *window, *max].into_iter().flatten().max().unwrap_or(Millis(0))
    }

    /// Completes the rule with a key, and with the setting of the type where the task says nothing. Times of the setting
    /// belong to its mode, so that a task with a mode of its own has none of them.
    pub fn complete(&self, key: String, setting: Option<&UniqueSetting>) -> Self {
        let RuleMembers { mode, remember, window, max, .. } = self.0.clone();
        let fitting = setting.filter(|setting| mode.is_none_or(|mode| mode == setting.mode.unwrap_or_default()));
        Self(RuleMembers {
            key: Some(key),
            mode: Some(mode.or_else(|| setting?.mode).unwrap_or_default()),
            remember: remember.or_else(|| fitting?.remember),
            window: window.or_else(|| fitting?.window),
            max: max.or_else(|| fitting?.max),
        })
    }

    /// Checks the members that are given: a key of 1 to 512 printable characters, and times that fit the mode, if the
    /// rule names one.
    ///
    /// # Errors
    /// The reason why a member is invalid.
    pub fn check(&self) -> Result<(), String> {
        let RuleMembers { key, mode, remember, window, max } = &self.0;
        if let Some(key) = key {
            check_key(key)?;
        }
        match mode {
            Some(mode) => check_times(*mode, *remember, *window, *max, false),
            None => Ok(()),
        }
    }

    /// Checks a rule that is complete: a mode with a window has one.
    ///
    /// # Errors
    /// The reason why the rule cannot be followed.
    pub fn check_complete(&self) -> Result<(), String> {
        let RuleMembers { remember, window, max, .. } = &self.0;
        check_times(self.mode(), *remember, *window, *max, true)
    }
}

fn check_key(key: &str) -> Result<(), String> {
    if key.is_empty() || key.chars().count() > MAX_TEXT_CHARS || key.contains(char::is_control) {
        return Err(format!("the key `{}` must have 1 to {MAX_TEXT_CHARS} printable characters", clip(key)));
    }
    Ok(())
}

fn check_times(
    mode: UniqueMode,
    remember: Option<Millis>,
    window: Option<Millis>,
    max: Option<Millis>,
    is_complete: bool,
) -> Result<(), String> {
    let has_window = matches!(mode, UniqueMode::Debounce | UniqueMode::Throttle);
    for (name, given, fits, modes) in [
        ("for", remember, mode == UniqueMode::Skip, "`skip`"),
        ("window", window, has_window, "`debounce` or `throttle`"),
        ("max", max, mode == UniqueMode::Debounce, "`debounce`"),
    ] {
        if given.is_some() && !fits {
            return Err(format!("`{name}` belongs to the mode {modes}, and the mode is `{}`", mode.name()));
        }
        if given == Some(Millis(0)) {
            return Err(format!("`{name}` must be greater than zero"));
        }
    }
    if is_complete && has_window && window.is_none() {
        return Err(format!("the mode `{}` needs a `window`, such as \"10s\"", mode.name()));
    }
    match window.zip(max).filter(|(window, max)| max < window) {
        Some((window, max)) => Err(format!("`max` {max} is shorter than `window` {window}")),
        None => Ok(()),
    }
}

/// Checks the field of a task.
pub(crate) fn check_field(rule: &Option<UniqueRule>) -> Result<(), String> {
    rule.as_ref().map_or(Ok(()), UniqueRule::check)
}

/// Setting `unique` of a type: how its tasks are unique, and the source of their key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UniqueSetting {
    /// Source of the key of each new root: a JSON pointer into the params (`/customer`), `params` for all of them, or `key`
    /// for the ordering key. Without it only tasks are unique that name a key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Default: `skip`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<UniqueMode>,
    /// Mode `skip`: time after the last start in which further tasks join the last one.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    pub remember: Option<Millis>,
    /// Modes `debounce` and `throttle`: time between asks, or between starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<Millis>,
    /// Mode `debounce`: longest wait since the first ask.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<Millis>,
}

impl UniqueSetting {
    /// Checks the source of the key, and the times.
    ///
    /// # Errors
    /// The reason why a member is invalid.
    pub fn check(&self) -> Result<(), String> {
        match self.by.as_deref() {
            None | Some("params" | "key") => {}
            Some(pointer) if pointer.starts_with('/') => {}
            Some(header) if header.strip_prefix("header:").is_some_and(|name| !name.is_empty()) => {}
            Some(other) => {
                return Err(format!(
                    "`by` is `{}`: write a JSON pointer into the params such as `/customer`, `header:<name>`, `key` or `params`",
                    clip(other)
                ));
            }
        }
        check_times(self.mode.unwrap_or_default(), self.remember, self.window, self.max, self.by.is_some())
    }

    /// Key of a task by the setting; `None` if the task has no value there, and is not unique. `header`: reads a header of
    /// the task by its name.
    ///
    /// # Errors
    /// The value cannot be a key.
    pub fn key_of(
        &self,
        params: &RawJson,
        ordering_key: Option<&str>,
        header: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<String>, String> {
        let key = match self.by.as_deref() {
            None => None,
            Some("key") => ordering_key.map(str::to_owned),
            Some("params") => Some(spawn_hash("", params).map_err(|error| error.to_string())?),
            Some(by) => match by.strip_prefix("header:") {
                Some(name) => header(name),
                None => return key_at(params, by),
            },
        };
        key.map(|key| check_key(&key).map(|()| key)).transpose()
    }
}

/// Text or number at a JSON pointer into the params.
fn key_at(params: &RawJson, pointer: &str) -> Result<Option<String>, String> {
    let value: serde_json::Value = serde_json::from_str(params.text()).map_err(|error| error.to_string())?;
    match value.pointer(pointer) {
        None | Some(serde_json::Value::Null) => Ok(None),
        Some(serde_json::Value::String(text)) => check_key(text).map(|()| Some(text.clone())),
        Some(number @ serde_json::Value::Number(_)) => Ok(Some(number.to_string())),
        Some(_) => {
            Err(format!("the value at `{pointer}`, by which tasks of the type are unique, is no text and no number"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> UniqueRule {
        UniqueRule::parse(text).unwrap()
    }

    #[test]
    fn rule_is_a_key_or_an_object() {
        assert_eq!(rule("customer-42").key(), Some("customer-42"));
        let full = rule(r#"{"key": "a", "mode": "debounce", "window": "5s", "max": "1m"}"#);
        assert_eq!((full.mode(), full.window_ms(), full.max_ms()), (UniqueMode::Debounce, 5_000, Some(60_000)));
        for text in ["customer-42", r#"{"key":"{"}"#, r#"{"key":"a","mode":"skip","for":"10m"}"#] {
            let value = rule(text);
            assert_eq!(UniqueRule::parse(&value.text()).unwrap(), value, "{text}");
            let json = serde_json::to_string(&value).unwrap();
            assert_eq!(serde_json::from_str::<UniqueRule>(&json).unwrap(), value, "{text}");
        }
        assert_eq!(serde_json::from_str::<UniqueRule>("\"k\"").unwrap(), UniqueRule::of_key("k"));
        for bad in [r#"{"kee": "a"}"#, r#"{"mode": "never"}"#] {
            let error = UniqueRule::parse(bad).unwrap_err();
            assert!(error.contains("`skip`") && !error.contains("at line"), "{error}");
        }
    }

    #[test]
    fn times_belong_to_modes() {
        for (text, reason) in [
            (r#"{"mode": "latest", "for": "1s"}"#, "`for` belongs to the mode `skip`"),
            (r#"{"mode": "skip", "window": "1s"}"#, "`window` belongs"),
            (r#"{"mode": "throttle", "window": "1s", "max": "2s"}"#, "`max` belongs"),
            (r#"{"mode": "debounce", "window": "2s", "max": "1s"}"#, "shorter than `window`"),
            (r#"{"mode": "debounce", "window": "0s"}"#, "greater than zero"),
            (r#"{"key": ""}"#, "1 to 512"),
        ] {
            assert!(rule(text).check().unwrap_err().contains(reason), "{text}");
        }
        assert_eq!(rule(r#"{"mode": "throttle"}"#).check(), Ok(()), "the type may give the window");
        assert!(rule(r#"{"mode": "throttle"}"#).check_complete().unwrap_err().contains("needs a `window`"));
    }

    #[test]
    fn task_overrides_the_setting_of_its_type() {
        let setting = UniqueSetting {
            mode: Some(UniqueMode::Debounce),
            window: Some(Millis(5)),
            max: Some(Millis(9)),
            ..UniqueSetting::default()
        };
        let of_type = rule("k").complete("k".into(), Some(&setting));
        assert_eq!((of_type.mode(), of_type.window_ms(), of_type.max_ms()), (UniqueMode::Debounce, 5, Some(9)));
        let other = rule(r#"{"mode": "latest"}"#).complete("k".into(), Some(&setting));
        assert_eq!((other.mode(), other.window_ms(), other.check_complete()), (UniqueMode::Latest, 0, Ok(())));
        assert_eq!(rule("k").complete("k".into(), None).mode(), UniqueMode::Skip);
    }

    #[test]
    fn key_comes_from_the_source_of_the_setting() {
        let params = RawJson::parse(br#"{"customer": 42, "name": "x", "list": [], "none": null}"#).unwrap();
        let key = |by: &str| {
            let setting = UniqueSetting { by: Some(by.into()), ..UniqueSetting::default() };
            assert_eq!(setting.check(), Ok(()), "{by}");
            setting.key_of(&params, Some("o"), |name| (name == "x-tenant").then(|| "t".to_owned()))
        };
        let some = |text: &str| Ok(Some(text.to_owned()));
        assert_eq!(key("/customer"), some("42"));
        assert_eq!(key("/name"), some("x"));
        assert_eq!((key("/none"), key("/missing")), (Ok(None), Ok(None)));
        assert!(key("/list").unwrap_err().contains("no text and no number"));
        assert_eq!((key("key"), key("header:x-tenant"), key("header:other")), (some("o"), some("t"), Ok(None)));
        assert_eq!(key("params").unwrap().unwrap().len(), 12);
        let bad = UniqueSetting { by: Some("customer".into()), ..UniqueSetting::default() };
        assert!(bad.check().unwrap_err().contains("JSON pointer"));
    }
}
