//! Subjects and bodies of mails, as Jinja templates over what a callback would say.

use minijinja::value::{Serde, Value};
use minijinja::{Environment, context};

use super::EmailParams;
use crate::handlers::ParamsError;
use crate::model::json::RawJson;

/// The longest subject, in characters; what is longer is cut.
const MAX_SUBJECT_CHARS: usize = 300;
/// The largest body, in bytes; what is larger is cut.
const MAX_BODY_BYTES: usize = 256 << 10;
/// Steps of a template: one that goes on for longer has no end.
const FUEL: u64 = 50_000;

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

/// The templates of one mail, understood.
pub struct Templates<'a>(Environment<'a>);

impl<'a> Templates<'a> {
    /// Refused where one is no template.
    pub fn new(params: &'a EmailParams) -> Result<Self, ParamsError> {
        let mut templates = Environment::new();
        templates.set_fuel(Some(FUEL));
        for (name, text) in
            [("subject", params.subject.as_deref().unwrap_or(SUBJECT)), ("body", params.body.as_deref().unwrap_or(BODY))]
        {
            templates.add_template(name, text).map_err(|why| ParamsError { pointer: format!("/{name}"), message: told(&why) })?;
        }
        Ok(Self(templates))
    }

    /// The subject and the body, within bounds.
    pub fn render(&self, about: &RawJson) -> Result<(String, String), String> {
        let about = about.value().map_err(|why| format!("what it is about cannot be read: {why}"))?;
        let mut task = about.get("data").cloned().unwrap_or_default();
        // What is not there is empty, not `none`.
        task.as_object_mut().into_iter().for_each(|task| task.retain(|_, value| !value.is_null()));
        let of = |value: Option<&serde_json::Value>| Value::from(Serde(value.cloned().unwrap_or_default()));
        let values =
            context! { task => of(Some(&task)), check => of(task.get("check")), timestamp => of(about.get("timestamp")) };
        let render =
            |name: &str| self.0.get_template(name).and_then(|template| template.render(&values)).map_err(|why| told(&why));
        Ok((one_line(&render("subject")?), cut(render("body")?)))
    }
}

/// A header ends with its line: what is more would be another one.
fn one_line(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    plain.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(MAX_SUBJECT_CHARS).collect()
}

fn cut(mut text: String) -> String {
    if text.len() > MAX_BODY_BYTES {
        text.truncate(text.floor_char_boundary(MAX_BODY_BYTES));
        text.push_str("\n…");
    }
    text
}

fn told(why: &minijinja::Error) -> String {
    let line = why.line().map_or(String::new(), |line| format!(" in line {line}"));
    format!("the template has a mistake{line}: {}", why.detail().map_or_else(|| why.kind().to_string(), str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rendered(subject: Option<&str>, body: Option<&str>, about: &serde_json::Value) -> Result<(String, String), String> {
        let text = |text: Option<&str>| text.map(str::to_owned);
        let params = EmailParams {
            to: vec![],
            cc: vec![],
            bcc: vec![],
            subject: text(subject),
            body: text(body),
            about: RawJson::of(about).unwrap(),
        };
        Templates::new(&params).map_err(|misfit| misfit.to_string())?.render(&params.about)
    }

    fn about() -> serde_json::Value {
        let task = json!({
            "id": "order-42", "type": "resize", "state": "failed", "name": null, "tags": ["a", "b"], "options": {"ticket": 7},
            "error": {"kind": "timeout", "message": "too <slow>"}, "link": null
        });
        json!({"type": "task.state", "timestamp": "2026-01-31T12:00:00.000Z", "data": task})
    }

    #[test]
    fn templates_see_the_task() {
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
    fn without_templates_it_says_what_is_known() {
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
    fn a_subject_is_one_line_whatever_it_holds() {
        let mut about = about();
        about["data"]["name"] = json!("a\r\nBcc: x@y.z\t\u{7}b");
        assert_eq!(rendered(Some("{{ task.name }}\n"), None, &about).unwrap().0, "a Bcc: x@y.z b");
        assert_eq!(rendered(Some(&"ä".repeat(400)), None, &about).unwrap().0.chars().count(), 300);
    }

    #[test]
    fn mistakes_and_endless_templates_are_told() {
        let told = rendered(None, Some("a\n{{ task.id "), &about()).unwrap_err();
        assert!(told.contains("`/body`") && told.contains("line 2"), "{told}");
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}";
        assert!(rendered(None, Some(endless), &about()).unwrap_err().contains("fuel"));
        let large = "{% for a in range(900) %}{{ 'x' * 1000 }}{% endfor %}";
        assert_eq!(rendered(None, Some(large), &about()).unwrap().1.len(), MAX_BODY_BYTES + 4);
        assert!(rendered(None, Some("{% include 'other' %}"), &about()).is_err(), "there is nothing else");
    }
}
