//! Forms with the effect of their action and its commands.

use kafleet_documents::Problem;
use maud::{Markup, Render, html};

use super::command::commands;
use super::problem::problem_text;
use super::{View, first_line};

/// Name of the buttons of a form that only show something.
pub(in super::super) const STEP: &str = "show";

/// Number of tasks above which a person types it to confirm an action.
pub(in super::super) const MAX_UNCONFIRMED: u64 = 100;

/// Page of a form.
pub(in super::super) struct Form<'a> {
    pub view: &'a View,
    pub title: String,
    /// Effect of the action.
    pub effect: Markup,
    /// Path of the form and its action.
    pub action: String,
    pub inputs: Vec<Markup>,
    /// Text of the button; empty if there is nothing to do.
    pub button: String,
    /// The action cannot be undone.
    pub danger: bool,
    /// Buttons without effect, beside that of the action.
    pub more_buttons: Markup,
    /// Path of the page to return to.
    pub back: String,
    pub problem: Option<&'a Problem>,
    /// Subject of the form, such as its present state: beside it on wide screens, else below.
    pub beside: Option<Markup>,
    pub commands: Vec<String>,
}

impl Form<'_> {
    fn buttons(&self) -> Markup {
        html! {
            div.buttons {
                @if !self.button.is_empty() {
                    button.danger[self.danger].primary[!self.danger] type="submit" { (self.button) }
                }
                (self.more_buttons)
                a.button href=(self.view.url(&self.back)) data-close { "Back" }
            }
        }
    }

    fn panel(&self) -> Markup {
        html! {
            form.panel.action method="post" action=(self.view.url(&self.action)) {
                div.effect { (self.effect) }
                // A form without an action may still show itself again with other values.
                @if !self.button.is_empty() || self.problem.is_some() || !self.more_buttons.0.is_empty() {
                    @for input in &self.inputs { (input) }
                }
                (self.buttons())
            }
        }
    }
}

impl Render for Form<'_> {
    fn render(&self) -> Markup {
        html! {
            @if !self.title.is_empty() { h1 { (self.title) } }
            @if let Some(problem) = self.problem { (problem_text(self.view, problem)) }
            @match &self.beside {
                Some(beside) => { div.pair { (self.panel()) div.beside { (beside) } } }
                None => { (self.panel()) }
            }
            (commands(&self.commands))
        }
    }
}

/// Button that shows the form again, with the values entered and what its value names, and changes nothing.
pub(in super::super) fn step_button(step: &str, text: &str) -> Markup {
    html! { button type="submit" name=(STEP) value=(step) formnovalidate { (text) } }
}

/// First button of a form whose other buttons come before that of its action: the one that the Enter key presses.
pub(in super::super) fn enter_button() -> Markup {
    html! { button type="submit" hidden tabindex="-1" { "Submit" } }
}

/// Field of a form.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct Input<'a> {
    name: &'a str,
    label: &'a str,
    value: Option<&'a str>,
    hint: &'a str,
    required: bool,
    /// Lines of a multi-line field; 0 for a single line.
    lines: u16,
    /// Suggested values.
    list: &'a [String],
}

impl<'a> Input<'a> {
    /// Optional field of a single line.
    pub(in super::super) fn new(name: &'a str, label: &'a str, value: Option<&'a str>) -> Self {
        Self { name, label, value, ..Self::default() }
    }

    pub(in super::super) const fn required(self) -> Self {
        Self { required: true, ..self }
    }

    pub(in super::super) const fn hint(self, hint: &'a str) -> Self {
        Self { hint, ..self }
    }

    pub(in super::super) const fn lines(self, lines: u16) -> Self {
        Self { lines, ..self }
    }

    pub(in super::super) const fn suggestions(self, list: &'a [String]) -> Self {
        Self { list, ..self }
    }
}

impl Render for Input<'_> {
    fn render(&self) -> Markup {
        let id = format!("f-{}", self.name);
        let hint = (!self.hint.is_empty()).then(|| format!("h-{}", self.name));
        let list = (!self.list.is_empty()).then(|| format!("l-{}", self.name));
        html! {
            div.field {
                label for=(id) { (self.label) }
                @if self.lines > 0 {
                    textarea id=(id) name=(self.name) rows=(self.lines) aria-describedby=[hint.as_deref()]
                        required[self.required] spellcheck="false" { "\n" (self.value.unwrap_or_default()) }
                } @else {
                    input id=(id) name=(self.name) value=(self.value.unwrap_or_default()) autocomplete="off"
                        aria-describedby=[hint.as_deref()] required[self.required] list=[list.as_deref()];
                }
                @if let Some(hint) = &hint { p.hint id=(hint) { (self.hint) } }
                @if let Some(list) = &list { (datalist(list, self.list)) }
            }
        }
    }
}

/// Suggested values with their descriptions.
pub(in super::super) fn described_list(id: &str, values: &[(&str, &str)]) -> Markup {
    html! {
        datalist id=(id) {
            @for (value, text) in values {
                option value=(value) { @if !text.is_empty() { (value) " – " (first_line(text, 80)) } }
            }
        }
    }
}

fn datalist(id: &str, values: &[String]) -> Markup {
    html! { datalist id=(id) { @for value in values { option value=(value) {} } } }
}

/// Buttons of a search. `clear` is the URL without filters.
pub(in super::super) fn filter_buttons(clear: Option<&str>) -> Markup {
    html! {
        div.buttons {
            button.primary type="submit" { "Filter" }
            @if let Some(clear) = clear { a.button href=(clear) { "Clear" } }
        }
    }
}

/// Reason of an action, which is recorded.
pub(in super::super) fn reason(value: Option<&str>) -> Markup {
    Input::new("reason", "Reason", value).hint("recorded with the action").render()
}

/// Choice of one value.
pub(in super::super) fn select(name: &str, label: &str, options: &[(&str, &str)], chosen: &str) -> Markup {
    let id = format!("f-{name}");
    html! {
        div.field {
            label for=(id) { (label) }
            select id=(id) name=(name) {
                @for (value, text) in options { option value=(value) selected[*value == chosen] { (text) } }
            }
        }
    }
}

pub(in super::super) fn checkbox(name: &str, label: &str, checked: bool) -> Markup {
    html! { div.check { label { input type="checkbox" name=(name) value="yes" checked[checked]; " " (label) } } }
}
