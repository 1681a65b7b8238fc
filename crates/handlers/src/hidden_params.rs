//! Masked params of an attempt, which its messages and its log do not contain.

use std::sync::OnceLock;

use kafleet_model::json::{HiddenTexts, RawJson};

/// Texts of the masked params of an attempt; none until they are set.
#[doc(hidden)]
#[derive(Default)]
pub struct HiddenParams(OnceLock<HiddenTexts>);

impl HiddenParams {
    /// Sets the params of a task with the JSON pointers that its type masks, before the attempt starts.
    pub fn set(&self, params: &RawJson, mask: &[String]) {
        if !mask.is_empty() {
            // Only the start of the attempt sets it.
            let _ = self.0.set(HiddenTexts::of(params, mask));
        }
    }

    /// Hides the masked params in a message or a line of the log.
    pub fn hide_in(&self, text: &mut String) {
        if let Some(hidden) = self.texts() {
            *text = hidden.hide(text).into_owned();
        }
    }

    /// Hides the masked params in a progress value.
    pub fn hide_in_json(&self, value: &mut RawJson) {
        if let Some(hidden) = self.texts() {
            *value = hidden.hide_in(value);
        }
    }

    fn texts(&self) -> Option<&HiddenTexts> {
        self.0.get().filter(|texts| !texts.is_empty())
    }
}
