//! Value of entered texts.

use kafleet_model::json::{JsonKind, RawJson, plain_text};

use super::{
    FieldError, FieldKind, InputTexts, ItemKind, NumberRange, SchemaField, SchemaForm, TextKind, input_name, json_name,
};

impl SchemaForm {
    /// Reads the object that the texts describe. Optional members without a text are left out.
    pub(in super::super::super) fn parse(&self, texts: &InputTexts<'_>) -> Result<RawJson, Vec<FieldError>> {
        let mut errors = Vec::new();
        let mut members = read_members(&self.fields, texts, &mut errors);
        members.extend(self.other_members(texts, &mut errors));
        let object = object_of("", &members, &mut errors);
        object.filter(|_| errors.is_empty()).ok_or(errors)
    }

    /// Members without a field.
    fn other_members(&self, texts: &InputTexts<'_>, errors: &mut Vec<FieldError>) -> Vec<(String, RawJson)> {
        let Some(entered) = texts(&json_name("")).and_then(|text| json_of("", text, errors)) else { return Vec::new() };
        if entered.slice().kind() != JsonKind::Object {
            errors.push(invalid("", "the other params are not a JSON object"));
            return Vec::new();
        }
        let has_field = |name: &str| self.fields.iter().any(|field| field.name == name);
        let mut others = Vec::new();
        for (name, value) in entered.slice().members() {
            if has_field(&name) {
                errors.push(invalid("", format!("`{name}` has a field of its own")));
            } else {
                others.push((name.into_owned(), value.into()));
            }
        }
        others
    }
}

fn invalid(pointer: &str, message: impl Into<String>) -> FieldError {
    FieldError { pointer: pointer.to_owned(), message: message.into(), is_missing: false }
}

/// Error of an empty field.
fn missing(field: &SchemaField) -> Option<FieldError> {
    let error = || FieldError { is_missing: true, ..invalid(&field.pointer, "it is required") };
    field.required.then(error)
}

fn object_of(pointer: &str, members: &[(String, RawJson)], errors: &mut Vec<FieldError>) -> Option<RawJson> {
    let members = members.iter().map(|(name, value)| format!("{}:{}", plain_text(name), value.text()));
    let text = format!("{{{}}}", members.collect::<Vec<_>>().join(","));
    json_of(pointer, &text, errors)
}

fn json_of(pointer: &str, text: &str, errors: &mut Vec<FieldError>) -> Option<RawJson> {
    match RawJson::parse(text.trim().as_bytes()) {
        Ok(value) => Some(value),
        Err(error) => {
            errors.push(invalid(pointer, error.to_string()));
            None
        }
    }
}

fn read_members(
    fields: &[SchemaField],
    texts: &InputTexts<'_>,
    errors: &mut Vec<FieldError>,
) -> Vec<(String, RawJson)> {
    let mut members = Vec::new();
    for field in fields {
        members.extend(read_field(field, texts, errors).map(|value| (field.name.clone(), value)));
    }
    members
}

/// Value of a field; `None` if it has none, or an invalid one.
pub(super) fn read_field(field: &SchemaField, texts: &InputTexts<'_>, errors: &mut Vec<FieldError>) -> Option<RawJson> {
    if let Some(text) = texts(&json_name(&field.pointer)) {
        return json_of(&field.pointer, text, errors);
    }
    let text = texts(&input_name(&field.pointer));
    match &field.kind {
        FieldKind::Object(fields) => read_object(field, fields, texts, errors),
        FieldKind::Flag if field.is_checkbox() => Some(serde_json::json!(text.is_some()).into()),
        FieldKind::List(_) if text.is_none() && field.is_always_present() => Some(serde_json::json!([]).into()),
        kind => match text {
            Some(text) => read_text(&field.pointer, kind, text, errors),
            None => {
                errors.extend(missing(field));
                None
            }
        },
    }
}

/// Object with its fields. An optional one without any text is left out.
fn read_object(
    field: &SchemaField,
    fields: &[SchemaField],
    texts: &InputTexts<'_>,
    errors: &mut Vec<FieldError>,
) -> Option<RawJson> {
    let before = errors.len();
    let members = read_members(fields, texts, errors);
    let is_empty = members.is_empty() && errors[before..].iter().all(|error| error.is_missing);
    if is_empty && !field.is_always_present() {
        errors.truncate(before);
        errors.extend(missing(field));
        return None;
    }
    object_of(&field.pointer, &members, errors)
}

fn read_text(pointer: &str, kind: &FieldKind, text: &str, errors: &mut Vec<FieldError>) -> Option<RawJson> {
    let value = match kind {
        FieldKind::Text(kind) => Ok(string(&text_of(*kind, text))),
        FieldKind::Number(range) => number(text, range),
        FieldKind::Choice(options) => match options.iter().find(|option| option.json == text) {
            Some(option) => RawJson::parse(option.json.as_bytes()).map_err(|error| error.to_string()),
            None => Err("it is not one of the values to choose from".to_owned()),
        },
        FieldKind::Flag => flag(text),
        FieldKind::List(kind) => list(*kind, text),
        FieldKind::Object(_) | FieldKind::Json => {
            RawJson::parse(text.trim().as_bytes()).map_err(|error| error.to_string())
        }
    };
    value.map_err(|message| errors.push(invalid(pointer, message))).ok()
}

/// Entered text. Browsers end the lines of a field with CR LF, and enter times without a zone.
fn text_of(kind: TextKind, text: &str) -> String {
    let text = text.replace("\r\n", "\n");
    match kind {
        TextKind::DateTime => in_utc(&text).unwrap_or(text),
        _ => text,
    }
}

/// Time of a browser (`2026-11-30T04:00`, also with seconds) in UTC.
fn in_utc(text: &str) -> Option<String> {
    let (date, time) = text.split_once('T')?;
    let is_local = time.chars().all(|c| c.is_ascii_digit() || c == ':' || c == '.');
    let is_time = date.len() == 10 && is_local && text.parse::<jiff::civil::DateTime>().is_ok();
    is_time.then(|| if time.len() == 5 { format!("{text}:00Z") } else { format!("{text}Z") })
}

fn string(text: &str) -> RawJson {
    RawJson::of_plain(text)
}

fn flag(text: &str) -> Result<RawJson, String> {
    match text.trim() {
        "true" => Ok(serde_json::json!(true).into()),
        "false" => Ok(serde_json::json!(false).into()),
        _ => Err("it is neither `true` nor `false`".to_owned()),
    }
}

/// Number with all its digits. People also write `+1`, `.5` and `007`.
fn number(text: &str, range: &NumberRange) -> Result<RawJson, String> {
    let text = text.trim();
    let (sign, digits) =
        text.strip_prefix('-').map_or(("", text.strip_prefix('+').unwrap_or(text)), |rest| ("-", rest));
    let is_begun = digits.starts_with(|first: char| first.is_ascii_digit() || first == '.');
    let digits = digits.trim_start_matches('0');
    let zero = if digits.starts_with(|first: char| first.is_ascii_digit()) { "" } else { "0" };
    let value = RawJson::parse(format!("{sign}{zero}{digits}").as_bytes()).ok();
    value.filter(|value| is_begun && value.slice().kind() == JsonKind::Number).ok_or_else(|| {
        let kind = if range.is_integer { "a whole number" } else { "a number" };
        format!("`{}` is not {kind}", crate::parts::first_line(text, 60))
    })
}

fn list(kind: ItemKind, text: &str) -> Result<RawJson, String> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let item = |line: &str| match kind {
        ItemKind::Text => Ok(string(line)),
        ItemKind::Number => number(line, &NumberRange::default()),
        ItemKind::Flag => flag(line),
    };
    let items = lines.map(item).collect::<Result<Vec<_>, _>>()?;
    let items: Vec<&str> = items.iter().map(RawJson::text).collect();
    RawJson::parse(format!("[{}]", items.join(",")).as_bytes()).map_err(|error| error.to_string())
}
