//! Mistakes in queries: the wrong part, and a suggestion.

use std::ops::Range;

/// Reason why a text is not a query.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Mistake {
    /// Wrong part of the text, in bytes; empty if something is missing there.
    pub span: Range<usize>,
    pub message: String,
    pub hint: Option<String>,
}

impl Mistake {
    pub(super) fn new(span: Range<usize>, message: impl Into<String>) -> Self {
        Self { span, message: message.into(), hint: None }
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Returns the wrong part of the text, in characters.
    pub fn chars(&self, text: &str) -> Range<usize> {
        let count = |end: usize| text.char_indices().take_while(|(at, _)| *at < end).count();
        count(self.span.start)..count(self.span.end)
    }

    /// Draws the text with a line of carets under the wrong part.
    pub fn underlined(&self, text: &str) -> String {
        let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let marked = self.chars(text);
        format!("{line}\n{}{}", " ".repeat(marked.start), "^".repeat(marked.len().max(1)))
    }
}
