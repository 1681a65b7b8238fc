//! Dead letters: rows of lists, and the filter that lists and actions share.

use kafleet_config::Role;
use kafleet_documents::{DeadLetter, DeadLetterFilter, TypeDocument};
use maud::{Markup, Render, html};

use super::form::Input;
use super::schema_form::schema_outline;
use super::tasks::type_link;
use super::times::{millis, time, time_hint, time_in_words};
use super::{View, encoded, first_line, prose};

/// Conditions of a filter, with the same names as those of the API.
pub(in super::super) const FILTERS: [&str; 6] = ["type", "kind", "error", "code", "from", "to"];

/// Fields of a filter. The name of an error is only in links.
pub(in super::super) fn filter_inputs<'a>(view: &View, value: impl Fn(&str) -> Option<&'a str>) -> Markup {
    let text = |name, label, hint| Input::new(name, label, value(name)).hint(hint).render();
    let hint = time_hint(view);
    html! {
        (text("type", "Type", ""))
        (text("kind", "Kind", "of the error, such as KeyError"))
        (text("code", "Code", "such as exhausted or schema"))
        (text("from", "From", &hint))
        (text("to", "To", &hint))
    }
}

/// Filter in words.
pub(in super::super) fn in_words(filter: &DeadLetterFilter) -> String {
    let condition = |(name, value): (&str, &str)| match name {
        "type" => format!("of type `{value}`"),
        "kind" => format!("with an error of the kind `{value}`"),
        "error" => format!("with the error `{value}`"),
        "code" => format!("with the code `{value}`"),
        "from" => format!("written since {}", moment_in_words(value)),
        _ => format!("written before {}", moment_in_words(value)),
    };
    let conditions: Vec<String> = filter.conditions().into_iter().map(condition).collect();
    format!("dead letters {}", conditions.join(", "))
}

/// Time of a filter: RFC 3339, or epoch milliseconds as the pages write it.
fn moment_in_words(text: &str) -> String {
    text.parse().ok().or_else(|| millis(text)).map_or_else(|| text.to_owned(), time_in_words)
}

/// Rows of letters, of which readers who may redrive them select some.
pub(in super::super) fn letter_table(view: &View, letters: &[DeadLetter]) -> Markup {
    let may_redrive = view.may(Role::Operate);
    let table = html! {
        div.scroll tabindex="0" role="group" aria-label="table" {
            table.cards {
                thead { tr {
                    @if may_redrive { th.check scope="col" { span.hidden { "Select" } } }
                    @for name in ["Letter", "Type", "Task", "Code", "Error", "Time"] { th scope="col" { (name) } }
                } }
                tbody { @for letter in letters { (row(view, letter, may_redrive)) } }
            }
        }
    };
    html! {
        @if may_redrive {
            form.choice action=(view.url("/bulk/new")) {
                (table)
                div.buttons {
                    input type="hidden" name="selected" value="yes";
                    button name="action" value="redrive" { "Redrive…" }
                    span.quiet.chosen { "the selected dead letters" }
                }
            }
        } @else { (table) }
    }
}

fn row(view: &View, letter: &DeadLetter, may_redrive: bool) -> Markup {
    html! {
        tr id={ "d-" (letter.id) } {
            @if may_redrive {
                td.check { input type="checkbox" name="id" value=(letter.id) aria-label={ "select " (letter.id) }; }
            }
            td.id { (letter_link(view, &letter.id)) }
            td { (type_link(view, Some(&letter.task_type))) }
            td.id {
                @match &letter.task {
                    Some(task) => { a href=(view.task(task)) { (task) } } None => { span.quiet { "–" } }
                }
            }
            td { code { (letter.code) } }
            td.message { span.error title=(first_line(&letter.error_text(), 400)) { (prose(&first_line(&letter.error_text(), 80))) } }
            td.time { (time(&letter.at)) }
        }
    }
}

pub(in super::super) fn letter_link(view: &View, id: &str) -> Markup {
    html! { a href=(view.url(&format!("/dead-letters/{}", encoded(id)))) { (id) } }
}

/// Schema of the params, beside an editor of params.
pub(in super::super) fn params_schema(view: &View, task_type: Option<&TypeDocument>) -> Markup {
    html! {
        @if let Some((name, schema)) = task_type.and_then(|found| Some((&found.name, found.schema.as_ref()?))) {
            details.panel #schema open {
                summary { h2 { "Schema of " a href=(view.url(&format!("/types/{name}"))) { (name) } } }
                (schema_outline(schema))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_is_described_by_its_conditions() {
        let filter = DeadLetterFilter {
            task_type: "charge".into(),
            kind: Some("PaymentDeclined".into()),
            from: Some("2026-11-01T07:00:00Z".into()),
            ..DeadLetterFilter::default()
        };
        let words = "dead letters of type `charge`, with an error of the kind `PaymentDeclined`, written since 1 Nov 2026 07:00:00";
        assert_eq!(in_words(&filter), words);
        assert_eq!(filter.to_string(), "type:charge kind:PaymentDeclined from:2026-11-01T07:00:00Z");
    }

    #[test]
    fn letters_are_selected_by_those_who_may_redrive_them() {
        let letter = DeadLetter {
            id: "charge:0:2".into(),
            task_type: "charge".into(),
            task: Some("order:charge".into()),
            run: Some(1),
            code: "exhausted".into(),
            kind: Some("PaymentDeclined".into()),
            error: "card of Ada".into(),
            pointer: None,
            at: "2026-11-01T07:00:00Z".into(),
            worker: None,
            source: None,
            by_reference: false,
        };
        let table = |role| letter_table(&View::for_tests(role), std::slice::from_ref(&letter)).into_string();
        let drawn = table(Role::Operate);
        assert!(drawn.contains("name=\"id\" value=\"charge:0:2\"") && drawn.contains("value=\"redrive\""), "{drawn}");
        assert!(drawn.contains("PaymentDeclined: card of Ada") && !drawn.contains("data-task"), "{drawn}");
        assert!(!table(Role::Read).contains("checkbox"));
    }
}
