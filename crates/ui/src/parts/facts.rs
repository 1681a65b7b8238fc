//! Lists of names and values.

use std::fmt::Display;

use maud::{Markup, html};

use super::visible;

/// Name and value; entries without a value are left out.
pub(in super::super) type Fact = (&'static str, Option<Markup>);

pub(in super::super) fn facts(facts: &[Fact]) -> Markup {
    html! {
        dl.facts {
            @for (name, value) in facts {
                @if let Some(value) = value { div { dt { (name) } dd { (value) } } }
            }
        }
    }
}

pub(in super::super) fn text(value: impl Display) -> Option<Markup> {
    Some(html! { (visible(&value.to_string())) })
}

/// Values as code, separated by commas; `None` without any.
pub(in super::super) fn codes(values: &[String]) -> Option<Markup> {
    let list = html! { @for (n, value) in values.iter().enumerate() { @if n > 0 { ", " } code { (visible(value)) } } };
    (!values.is_empty()).then_some(list)
}

pub(in super::super) fn code(value: &str) -> Markup {
    html! { code { (visible(value)) } }
}
