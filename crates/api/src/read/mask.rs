//! Masks of types: the way out for params and results, on which masked values are left out of documents.
//!
//! Documents are made without masked values ([`status`](super::status::status)); a service that answers about a single task,
//! letter or schedule shows them to callers whose role sees them. Messages and lines of logs need no mask here: workers write them without
//! the masked values of their task, because only workers have both.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use kafleet_documents::Status;
use kafleet_fleet::dead_letters::DeadLetterId;
use kafleet_model::json::{HiddenTexts, JsonSlice, MASKED, RawJson};
use kafleet_model::schedule::Template;
use kafleet_model::task::continuation::Continuation;
use kafleet_model::task::id::BULK_TYPE;
use kafleet_model::task::structured::{RecordHeaders, unwrap_structured};
use kafleet_model::task::{Rules, header};

/// Source of the masks of types.
pub(crate) trait MaskSource: Send + Sync {
    /// Returns the JSON pointers that a type masks: to the whole value while they are not known.
    fn mask(&self, task_type: &str) -> Vec<String>;
}

/// Masks of all types. The default has none.
#[derive(Clone, Default)]
pub struct Masks(Option<Arc<dyn MaskSource>>);

impl fmt::Debug for Masks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Masks")
    }
}

/// Record of a dead letter as people see it.
pub(crate) struct ShownRecord {
    pub headers: RecordHeaders,
    /// Value, if it is JSON.
    pub params: Option<RawJson>,
    /// Value that is not JSON; `None` for one of a type with a mask: there is no place to hide in it.
    pub bytes: Option<Vec<u8>>,
}

impl Masks {
    pub(crate) fn new(source: Arc<impl MaskSource + 'static>) -> Self {
        Self(Some(source))
    }

    /// Returns the JSON pointers that a type masks: to the whole value while they are not known.
    pub fn of(&self, task_type: &str) -> Vec<String> {
        self.0.as_ref().map(|source| source.mask(task_type)).unwrap_or_default()
    }

    /// Hides the masked values of params or of a result.
    pub(crate) fn hide(&self, task_type: &str, value: &mut RawJson) {
        let mask = self.of(task_type);
        if !mask.is_empty() {
            *value = value.masked(&mask);
        }
    }

    /// Hides the masked values of a task: of its result, of the params of its continuations, and of the patch of a bulk redrive.
    pub(super) fn hide_in_status(&self, status: &mut Status) {
        if let Some((task_type, result)) = status.task_type.as_deref().zip(status.result.as_mut()) {
            self.hide(task_type, result);
        }
        self.hide_in_continuations(&mut status.fields.0.rules.then);
        if let (Some(BULK_TYPE), Some(options)) = (status.task_type.as_deref(), &mut status.fields.0.rules.options) {
            self.hide_in_bulk_options(options);
        }
    }

    /// Hides the values of the patch of a redrive that are masked in the params of one of the types of its dead letters.
    fn hide_in_bulk_options(&self, options: &mut RawJson) {
        let patch = options.slice().member("patch").and_then(|patch| RawJson::parse(patch.text().as_bytes()).ok());
        let Some(patch) = patch else { return };
        let types = types_of_letters(options.slice());
        let mask: Vec<String> = types.iter().flat_map(|task_type| self.of(task_type)).collect();
        options.set("patch", patch.masked(&mask));
    }

    /// Hides the masked values of the task of a schedule.
    pub(crate) fn hide_in_template(&self, task: &mut Template) {
        self.hide(&task.task_type, &mut task.params);
        self.hide_in_continuations(&mut task.policy.rules.then);
    }

    fn hide_in_continuations(&self, continuations: &mut [Continuation]) {
        for then in continuations {
            self.hide(&then.task_type, &mut then.params);
            self.hide_in_continuations(&mut then.policy.rules.then);
        }
    }

    /// Puts the values of an earlier task of a schedule in the place of their masks.
    pub(crate) fn restore_template(&self, task: &mut Template, earlier: &Template) {
        if task.task_type == earlier.task_type {
            task.params = task.params.unmasked(&self.of(&task.task_type), &earlier.params);
        }
        self.restore_continuations(&mut task.policy.rules.then, &earlier.policy.rules.then);
    }

    fn restore_continuations(&self, continuations: &mut [Continuation], earlier: &[Continuation]) {
        for (then, earlier) in continuations.iter_mut().zip(earlier) {
            if then.task_type == earlier.task_type {
                then.params = then.params.unmasked(&self.of(&then.task_type), &earlier.params);
            }
            self.restore_continuations(&mut then.policy.rules.then, &earlier.policy.rules.then);
        }
    }

    /// Hides the masked values of a record in a message about it.
    pub(crate) fn hide_in_text(&self, task_type: &str, headers: &RecordHeaders, value: &[u8], text: &mut String) {
        let mask = self.of(task_type);
        if mask.is_empty() {
            return;
        }
        if let Some(params) = params_of(headers, value) {
            *text = HiddenTexts::of(&params, &mask).hide(text).into_owned();
        }
    }

    /// Record of a dead letter. `is_open`: with the masked values.
    pub(crate) fn record(&self, task_type: &str, headers: &RecordHeaders, value: &[u8], is_open: bool) -> ShownRecord {
        let (mut params, mut headers) = (RawJson::parse(value).ok(), headers.clone());
        let mask = self.of(task_type);
        let has_bytes = params.is_none() && !value.is_empty() && (is_open || mask.is_empty());
        let bytes = has_bytes.then(|| value.to_vec());
        if !is_open {
            if let Some(shown) = &mut params {
                match unwrap_structured(&headers, value) {
                    Some((_, data)) => self.hide_in_envelope(shown, &data.masked(&mask)),
                    None => *shown = shown.masked(&mask),
                }
            }
            for (_, text) in headers.iter_mut().filter(|(name, _)| name == header::POLICY) {
                *text = text.as_deref().map(|text| self.policy(text).text().as_bytes().to_vec());
            }
        }
        ShownRecord { headers, params, bytes }
    }

    /// Hides the masked values of an event in structured mode.
    fn hide_in_envelope(&self, envelope: &mut RawJson, data: &RawJson) {
        let policy = envelope.slice().member("policy").map(|policy| self.policy(policy.text().as_bytes()));
        if let Some(policy) = policy {
            envelope.set("policy", policy);
        }
        // The other form of the params contains the same.
        let has_base64 = envelope.slice().member("data_base64").is_some();
        if has_base64 {
            envelope.set("data_base64", serde_json::Value::from(MASKED));
        } else {
            envelope.set("data", data.clone());
        }
    }

    /// Rules of a task without the masked values of continuations.
    fn policy(&self, text: &[u8]) -> RawJson {
        let Ok(mut rules) = serde_json::from_slice::<Rules>(text) else {
            return serde_json::Value::from(MASKED).into();
        };
        if rules.then.is_empty() {
            return RawJson::parse(text).unwrap_or_default();
        }
        self.hide_in_continuations(&mut rules.then);
        RawJson::of_plain(&rules)
    }
}

/// Types of the dead letters that the options of a bulk action select.
fn types_of_letters(options: JsonSlice<'_>) -> BTreeSet<String> {
    let of_filter = options.member("letters").and_then(|letters| letters.member("type")?.string().map(Cow::into_owned));
    let ids = options.member("ids").into_iter().flat_map(|ids| ids.elements());
    let of_ids = ids.filter_map(|id| Some(id.string()?.parse::<DeadLetterId>().ok()?.task_type));
    of_filter.into_iter().chain(of_ids).collect()
}

/// Params of a record, also of one in structured mode.
pub(crate) fn params_of(headers: &RecordHeaders, value: &[u8]) -> Option<RawJson> {
    unwrap_structured(headers, value).map(|(_, data)| data).or_else(|| RawJson::parse(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    struct Cards;

    impl MaskSource for Cards {
        fn mask(&self, task_type: &str) -> Vec<String> {
            if task_type == "pay" { vec!["/card".to_owned()] } else { Vec::new() }
        }
    }

    fn masks() -> Masks {
        Masks::new(Arc::new(Cards))
    }

    fn headers(pairs: &[(&str, &str)]) -> RecordHeaders {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), Some(value.as_bytes().to_vec()))).collect()
    }

    #[test]
    fn records_are_shown_without_masked_values() {
        let then = r#"{"then":[{"type":"pay","params":{"card":"4111"}}]}"#;
        let structured = [("content-type", "application/cloudevents+json")];
        let event = format!(r#"{{"id":"a","data":{{"card":"4111","n":1}},"policy":{then}}}"#);
        for (pairs, value) in [
            (&[("ce_id", "a"), ("ce_policy", then)][..], r#"{"card":"4111","n":1}"#),
            (&structured[..], event.as_str()),
            (&structured[..], r#"{"id":"a","data_base64":"eyJjYXJkIjoiNDExMSJ9"}"#),
            (&[][..], r#"{"card":"4111""#),
            (&[("ce_policy", "4111")][..], "1"),
        ] {
            let headers = headers(pairs);
            let texts = |shown: &ShownRecord| {
                let of_headers: Vec<String> = shown
                    .headers
                    .iter()
                    .map(|(_, value)| String::from_utf8(value.clone().unwrap_or_default()).unwrap())
                    .collect();
                let params = shown.params.as_ref().map(|params| params.text().to_owned()).unwrap_or_default();
                let bytes = String::from_utf8(shown.bytes.clone().unwrap_or_default()).unwrap();
                format!("{of_headers:?} {params} {bytes}")
            };
            let hidden = texts(&masks().record("pay", &headers, value.as_bytes(), false));
            assert!(!hidden.contains("4111") && !hidden.contains("eyJjYXJk"), "{hidden}");
            let open = texts(&masks().record("pay", &headers, value.as_bytes(), true));
            assert!(open.contains("4111") || open.contains("eyJjYXJk"), "{open}");
            let other = masks().record("echo", &headers, value.as_bytes(), false);
            assert_eq!(other.bytes.is_some(), value.ends_with("\"4111\""), "types without a mask show all");
        }
    }

    #[test]
    fn patches_of_redrives_are_shown_without_masked_values() {
        for (selection, expected) in [
            (json!({"letters": {"type": "pay"}}), MASKED),
            (json!({"ids": ["echo:0:1", "pay:0:7"]}), MASKED),
            (json!({"ids": ["echo:0:1"]}), "4111"),
        ] {
            let mut options = RawJson::of(&selection).unwrap();
            options.set("patch", json!({"card": "4111", "n": 1}));
            masks().hide_in_bulk_options(&mut options);
            assert_eq!(options.value().unwrap()["patch"], json!({"card": expected, "n": 1}), "{selection}");
        }
        let mut without_patch = RawJson::of(&json!({"action": "retry", "q": "type:pay"})).unwrap();
        masks().hide_in_bulk_options(&mut without_patch);
        assert_eq!(without_patch, json!({"action": "retry", "q": "type:pay"}));
    }

    #[test]
    fn errors_of_records_are_shown_without_masked_values() {
        for (pairs, value) in [
            (&[][..], r#"{"card":"4111"}"#),
            (&[("content-type", "application/cloudevents+json")][..], r#"{"id":"a","data":{"card":"4111"}}"#),
        ] {
            let mut text = "no card 4111".to_owned();
            masks().hide_in_text("pay", &headers(pairs), value.as_bytes(), &mut text);
            assert_eq!(text, "no card •••");
        }
    }

    #[test]
    fn schedules_keep_hidden_values() {
        let then = json!([{"type": "pay", "params": {"card": "4222"}}]);
        let task = json!({"type": "pay", "params": {"card": "4111", "n": 1}, "then": then});
        let earlier: Template = serde_json::from_value(task).unwrap();
        let mut shown = earlier.clone();
        masks().hide_in_template(&mut shown);
        let text = RawJson::of_plain(&shown);
        assert!(!text.text().contains("4111") && !text.text().contains("4222"), "{text}");
        let mut restored = shown.clone();
        masks().restore_template(&mut restored, &earlier);
        assert_eq!(restored, earlier);
        let mut of_other_type = Template { task_type: "echo".into(), ..shown.clone() };
        masks().restore_template(&mut of_other_type, &earlier);
        assert_eq!(of_other_type.params, shown.params, "no value leaves its type");
    }
}
