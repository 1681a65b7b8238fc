//! Jinja templates of email subjects and bodies.

use std::collections::BTreeMap;

use kafleet_model::json::{JsonKind, JsonSlice, RawJson};
use kafleet_model::task::delivery::EmailParams;
use minijinja::value::Value;
use minijinja::{Environment, context};

use crate::ParamsError;

/// Maximum length of a subject, in characters; longer ones are truncated.
const MAX_SUBJECT_CHARS: usize = 300;
/// Maximum size of a body, in bytes; larger ones are truncated.
const MAX_BODY_BYTES: usize = 256 << 10;
/// Maximum steps of a template's evaluation, against endless loops.
const MAX_STEPS: u64 = 50_000;
/// Levels of a value that templates can enter; deeper ones are text.
const MAX_LEVELS: usize = 64;

const SUBJECT: &str = "{% if check %}{{ task.id }}: check {{ 'passed' if check.passed else 'failed' }} ({{ task.state }})\
     {% else %}{{ task.id }} is {{ task.state }}{% endif %}";
const BODY: &str = "Task:     {{ task.id }}\n\
     {% if task.name %}Name:     {{ task.name }}\n{% endif %}\
     Type:     {{ task.type }}\n\
     State:    {{ task.state }}\n\
     {% if check %}Expected: {{ check.expected | join(' or ') }}\nCheck:    {{ 'passed' if check.passed else 'failed' }}\n{% endif %}\
     At:       {{ timestamp }}\n\
     {% if task.error %}Error:    {{ task.error.kind }}: {{ task.error.message }}\n{% endif %}\
     {% if task.link %}Link:     {{ task.link }}\n{% endif %}";

/// The parsed templates of an email.
pub(super) struct Templates<'a>(Environment<'a>);

impl<'a> Templates<'a> {
    /// Parses the templates.
    ///
    /// # Errors
    /// A template has a syntax error.
    pub(super) fn new(params: &'a EmailParams) -> Result<Self, ParamsError> {
        let mut templates = Environment::new();
        templates.set_fuel(Some(MAX_STEPS));
        for (name, text) in [
            ("subject", params.subject.as_deref().unwrap_or(SUBJECT)),
            ("body", params.body.as_deref().unwrap_or(BODY)),
        ] {
            templates
                .add_template(name, text)
                .map_err(|error| ParamsError { pointer: format!("/{name}"), message: error_text(&error) })?;
        }
        Ok(Self(templates))
    }

    /// Renders subject and body, truncated to their limits.
    pub(super) fn render(&self, about: &RawJson) -> Result<(String, String), String> {
        let about = about.slice();
        let data = about.member("data").into_iter().flat_map(JsonSlice::members);
        // Missing values render as an empty string rather than `none`.
        let present = data.filter(|(_, value)| value.kind() != JsonKind::Null);
        let task: BTreeMap<_, _> = present.map(|(name, value)| (name, template_value(value, MAX_LEVELS))).collect();
        let timestamp = about.member("timestamp").map(|time| template_value(time, MAX_LEVELS));
        let values = context! { check => task.get("check"), task => task, timestamp => timestamp };
        let render = |name: &str| {
            self.0.get_template(name).and_then(|template| template.render(&values)).map_err(|error| error_text(&error))
        };
        Ok((one_line(&render("subject")?), truncate(render("body")?)))
    }
}

/// Value of a template. A number that templates would show with other digits is the text of its digits.
fn template_value(value: JsonSlice<'_>, levels: usize) -> Value {
    match value.kind() {
        JsonKind::Null => Value::from(()),
        JsonKind::Bool => Value::from(value.text() == "true"),
        JsonKind::Number => number(value.text()),
        JsonKind::String => value.string().map_or_else(Value::default, Value::from),
        JsonKind::Array | JsonKind::Object if levels == 0 => Value::from(value.text()),
        JsonKind::Array => value.elements().map(|item| template_value(item, levels - 1)).collect(),
        JsonKind::Object => {
            let members = value.members().map(|(name, item)| (name.into_owned(), template_value(item, levels - 1)));
            Value::from(members.collect::<BTreeMap<String, Value>>())
        }
    }
}

fn number(text: &str) -> Value {
    let integer = text.parse::<i128>().ok().map(Value::from);
    let number = integer.or_else(|| text.parse::<f64>().ok().map(Value::from));
    number.filter(|number| number.to_string() == text).unwrap_or_else(|| Value::from(text))
}

/// Returns the text as a single line: a line break would start another header.
fn one_line(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    plain.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(MAX_SUBJECT_CHARS).collect()
}

fn truncate(mut text: String) -> String {
    if text.len() > MAX_BODY_BYTES {
        text.truncate(text.floor_char_boundary(MAX_BODY_BYTES));
        text.push_str("\n…");
    }
    text
}

fn error_text(error: &minijinja::Error) -> String {
    let line = error.line().map_or(String::new(), |line| format!(" in line {line}"));
    format!("template error{line}: {}", error.detail().map_or_else(|| error.kind().to_string(), str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rendered(
        subject: Option<&str>,
        body: Option<&str>,
        about: &serde_json::Value,
    ) -> Result<(String, String), String> {
        let text = |text: Option<&str>| text.map(str::to_owned);
        let params = EmailParams {
            to: vec![],
            cc: vec![],
            bcc: vec![],
            subject: text(subject),
            body: text(body),
            about: RawJson::of(about).unwrap(),
        };
        Templates::new(&params).map_err(|error| error.to_string())?.render(&params.about)
    }

    fn about() -> serde_json::Value {
        let task = json!({
            "id": "order-42", "type": "resize", "state": "failed", "name": null, "tags": ["a", "b"], "options": {"ticket": 7},
            "error": {"kind": "timeout", "message": "too <slow>"}, "link": null
        });
        json!({"type": "task.state", "timestamp": "2026-01-31T12:00:00.000Z", "data": task})
    }

    #[test]
    fn templates_access_task_fields() {
        for (template, text) in [
            ("{{ task.id }}: {{ task.state | upper }}", "order-42: FAILED"),
            ("{% for tag in task.tags %}[{{ tag }}]{% endfor %}", "[a][b]"),
            ("{% if task.error %}{{ task.error.message }}{% endif %}", "too <slow>"),
            ("{{ task.options.ticket }}/{{ task.nothing }}/{{ timestamp }}", "7//2026-01-31T12:00:00.000Z"),
        ] {
            assert_eq!(
                rendered(Some(template), Some(template), &about()).unwrap(),
                (text.to_owned(), text.to_owned()),
                "{template}"
            );
        }
    }

    #[test]
    fn default_templates_summarise_the_task() {
        let (subject, body) = rendered(None, None, &about()).unwrap();
        assert_eq!(subject, "order-42 is failed");
        let expected = "Task:     order-42\nType:     resize\nState:    failed\nAt:       2026-01-31T12:00:00.000Z\nError:    timeout: too <slow>\n";
        assert_eq!(body, expected);
        let mut about = about();
        about["data"]["check"] = json!({"number": 0, "expected": ["succeeded", "running"], "passed": false});
        let (subject, body) = rendered(None, None, &about).unwrap();
        assert_eq!(subject, "order-42: check failed (failed)");
        assert!(body.contains("Expected: succeeded or running\nCheck:    failed\n"), "{body}");
    }

    #[test]
    fn subject_is_a_single_line() {
        let mut about = about();
        about["data"]["name"] = json!("a\r\nBcc: x@y.z\t\u{7}b");
        assert_eq!(rendered(Some("{{ task.name }}\n"), None, &about).unwrap().0, "a Bcc: x@y.z b");
        assert_eq!(rendered(Some(&"ä".repeat(400)), None, &about).unwrap().0.chars().count(), 300);
    }

    #[test]
    fn template_errors_and_endless_loops_are_reported() {
        let error = rendered(None, Some("a\n{{ task.id "), &about()).unwrap_err();
        assert!(error.contains("`/body`") && error.contains("line 2"), "{error}");
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}";
        assert!(rendered(None, Some(endless), &about()).unwrap_err().contains("fuel"));
        let large = "{% for a in range(900) %}{{ 'x' * 1000 }}{% endfor %}";
        assert_eq!(rendered(None, Some(large), &about()).unwrap().1.len(), MAX_BODY_BYTES + 4);
        assert!(rendered(None, Some("{% include 'other' %}"), &about()).is_err(), "includes are unavailable");
    }
}
