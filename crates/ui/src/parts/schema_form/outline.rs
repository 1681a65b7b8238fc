//! Fields of a schema as a table for readers.

use kafleet_model::json::RawJson;
use maud::{Markup, html};
use serde_json::Value;

use super::fields::plain;
use super::markup::range_text;
use super::{FieldKind, ItemKind, SchemaField, SchemaForm, TextKind};
use crate::parts::json::json_block;
use crate::parts::table::table;
use crate::parts::{first_line, prose};

const COLUMNS: &[&str] = &["Field", "Type", "Required", "Description"];
/// Values of a choice that are listed.
const LISTED_VALUES: usize = 12;

/// Schema of params or of a result for readers: its fields, and as JSON.
pub(in super::super::super) fn schema_outline(schema: &Value) -> Markup {
    let form = SchemaForm::of_params(schema);
    html! {
        @if let Some(form) = &form { (form.outline()) }
        details.more open[form.is_none()] {
            summary { "As JSON" }
            (json_block(&RawJson::of_plain(schema), None))
        }
    }
}

impl SchemaForm {
    /// Table of the fields with their types and descriptions.
    pub(super) fn outline(&self) -> Markup {
        let mut rows = Vec::new();
        add_rows(&self.fields, "", &mut rows);
        table(COLUMNS, &rows)
    }
}

fn add_rows(fields: &[SchemaField], above: &str, rows: &mut Vec<Markup>) {
    for field in fields {
        let path = format!("{above}{}", field.name);
        rows.push(row(field, &path));
        if let FieldKind::Object(fields) = &field.kind {
            add_rows(fields, &format!("{path}."), rows);
        }
    }
}

fn row(field: &SchemaField, path: &str) -> Markup {
    html! {
        tr {
            td.id { code { (first_line(path, 200)) } }
            td { (kind_text(&field.kind)) }
            td { @if field.required { "yes" } @else { span.quiet { "no" } } }
            td.message {
                @if let Some(text) = field.description.as_ref().or(field.title.as_ref()) { (prose(text)) }
                @if let Some(default) = &field.default {
                    span.quiet { " Default: " code { (first_line(&plain(default), 80)) } }
                }
            }
        }
    }
}

/// Type of a field in a few words.
fn kind_text(kind: &FieldKind) -> String {
    match kind {
        FieldKind::Text(TextKind::Line | TextKind::Lines) => "text".to_owned(),
        FieldKind::Text(TextKind::Date) => "date".to_owned(),
        FieldKind::Text(TextKind::DateTime) => "time".to_owned(),
        FieldKind::Text(TextKind::Email) => "email address".to_owned(),
        FieldKind::Text(TextKind::Uri) => "URL".to_owned(),
        FieldKind::Number(range) => {
            let name = if range.is_integer { "whole number" } else { "number" };
            range_text(range).map_or_else(|| name.to_owned(), |range| format!("{name}, {range}"))
        }
        FieldKind::Choice(options) => {
            let values: Vec<&str> = options.iter().take(LISTED_VALUES).map(|option| option.json.as_str()).collect();
            let more = if options.len() > LISTED_VALUES { ", …" } else { "" };
            format!("one of {}{more}", first_line(&values.join(", "), 200))
        }
        FieldKind::Flag => "yes or no".to_owned(),
        FieldKind::Object(_) => "object".to_owned(),
        FieldKind::List(ItemKind::Text) => "list of texts".to_owned(),
        FieldKind::List(ItemKind::Number) => "list of numbers".to_owned(),
        FieldKind::List(ItemKind::Flag) => "list of yes or no".to_owned(),
        FieldKind::Json => "JSON".to_owned(),
    }
}
