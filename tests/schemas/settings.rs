//! Files that follow from the table of settings in `crates/config/src/type_settings.rs`: a part of docs/configuration.md, the options of
//! the SDKs, and the keys for which the chart replaces no pods.

use std::fmt::Write;

use kafleet::config::{HandlerKind, SettingScope, TYPE_SETTINGS, TypeSetting};
use kafleet::model::task::Policy;
use serde_json::Value;

use super::acls::{UPDATE, assert_current, with_table};

/// Longest line of Python, in characters.
const MAX_LINE: usize = 130;

/// Rows of the table for the keys of a handler; `None`: for those of all types.
fn rows(handler: Option<HandlerKind>) -> String {
    let mut rows = String::from("| key | default | meaning |\n|---|---|---|\n");
    let settings = TYPE_SETTINGS.iter().filter(|setting| setting.handler() == handler);
    for TypeSetting { key, default, doc, details, is_live, .. } in settings {
        let details = if details.is_empty() { String::new() } else { format!(" {details}") };
        let reload = if *is_live { " *Reloaded.*" } else { "" };
        writeln!(rows, "| `{key}` | {default} | {doc}{details}{reload} |").unwrap();
    }
    rows
}

#[test]
fn documented_settings_are_current() {
    let mut page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md")).unwrap();
    for handler in [None, Some(HandlerKind::Exec), Some(HandlerKind::Http)] {
        let name = format!("settings of {}", handler.map_or("all types", HandlerKind::name));
        page = with_table(&page, &name, &rows(handler));
    }
    assert_current("docs/configuration.md", &page);
}

#[test]
fn keys_that_replace_no_pods_are_current() {
    let live: Vec<&str> = TYPE_SETTINGS.iter().filter(|setting| setting.is_live).map(|setting| setting.key).collect();
    assert_current("helm/kafleet/files/live-settings.json", &format!("{:#}\n", serde_json::json!(live)));
}

/// Language of an SDK: names and types of its options.
struct Language {
    name: fn(&str) -> String,
    duration: &'static str,
    integer: &'static str,
    boolean: &'static str,
    text: &'static str,
    texts: &'static str,
    kinds: &'static str,
    object: &'static str,
    one_of: fn(&[String]) -> String,
}

const PYTHON: Language = Language {
    name: str::to_owned,
    duration: "Duration",
    integer: "int",
    boolean: "bool",
    text: "str",
    texts: "Sequence[str]",
    kinds: "Sequence[str | type[BaseException]]",
    object: "Mapping[str, Any]",
    one_of: |values| format!("Literal[{}]", values.join(", ")),
};

const TYPESCRIPT: Language = Language {
    name: camel_case,
    duration: "Duration",
    integer: "number",
    boolean: "boolean",
    text: "string",
    texts: "readonly string[]",
    kinds: "readonly (string | ErrorClass)[]",
    object: "Readonly<Record<string, unknown>>",
    one_of: |values| values.join(" | "),
};

fn camel_case(key: &str) -> String {
    let mut words = key.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| name + &word[..1].to_uppercase() + &word[1..])
}

impl Language {
    /// Type of a setting, as its schema says.
    fn type_of(&self, schema: &Value, setting: &TypeSetting) -> String {
        if ["retry_on", "fail_on"].contains(&setting.key) {
            return self.kinds.to_owned();
        }
        let property = &schema["$defs"]["TypeConfig"]["properties"][setting.key];
        let reference = property["anyOf"][0]["$ref"].as_str().unwrap_or_default();
        let kind = property["type"].as_str().or(property["type"][0].as_str());
        match (reference.rsplit('/').next(), kind) {
            (Some("Duration"), _) => self.duration.to_owned(),
            (Some("Rate" | "Adaptive"), _) => self.object.to_owned(),
            (_, Some("integer")) => self.integer.to_owned(),
            (_, Some("boolean")) => self.boolean.to_owned(),
            (_, Some("string")) => self.text.to_owned(),
            (_, Some("array")) => self.texts.to_owned(),
            (Some(name), _) => {
                let values = schema["$defs"][name]["oneOf"].as_array().into_iter().flatten();
                let values: Vec<String> = values.map(|value| value["const"].to_string()).collect();
                assert!(!values.is_empty(), "the schema of `{}` has no type: {property}", setting.key);
                (self.one_of)(&values)
            }
            _ => unreachable!("`split` gives a part"),
        }
    }
}

/// Settings that apps declare: those that single tasks override too, and the others.
fn declared() -> (Vec<&'static TypeSetting>, Vec<&'static TypeSetting>) {
    // The field `index` of a task is its place among its siblings, not the setting.
    let of_tasks: Vec<&str> = Policy::fields().map(|field| field.name).filter(|name| *name != "index").collect();
    TYPE_SETTINGS
        .iter()
        .filter(|setting| setting.scope == SettingScope::Declarable)
        .partition(|setting| of_tasks.contains(&setting.key))
}

/// Text in lines of at most `MAX_LINE` characters that begin with `indent`.
fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = vec![indent.to_owned()];
    for word in text.split(' ') {
        let line = lines.last_mut().unwrap();
        if line.trim().is_empty() {
            line.push_str(word);
        } else if line.len() + 1 + word.len() <= MAX_LINE {
            *line += &format!(" {word}");
        } else {
            lines.push(format!("{indent}{word}"));
        }
    }
    lines.join("\n")
}

#[test]
fn options_of_python_are_current() {
    let schema = kafleet::config::schema();
    let class = |text: &mut String, head: &str, doc: &str, settings: &[&TypeSetting]| {
        write!(text, "\n\nclass {head}, total=False):\n    \"\"\"{doc}\"\"\"\n\n").unwrap();
        for setting in settings {
            let (name, kind) = ((PYTHON.name)(setting.key), PYTHON.type_of(&schema, setting));
            let doc = format!("\"\"\"{}\"\"\"", setting.doc.replace('\\', "\\\\"));
            writeln!(text, "    {name}: {kind}\n{}", wrapped(&doc, "    ")).unwrap();
        }
    };
    let mut text = format!(
        "\"\"\"Settings of task types, from crates/config/src/type_settings.rs by `{UPDATE}`.\"\"\"\n\n\
         from __future__ import annotations\n\n\
         from collections.abc import Mapping, Sequence\n\
         from typing import Any, Literal, TypedDict\n\n\
         from .outcomes import Duration\n"
    );
    let (limits, others) = declared();
    class(&mut text, "Limits(TypedDict", "Keys of a policy that single tasks override.", &limits);
    class(&mut text, "Policy(Limits", "Keys of `[types.NAME]`; kafleet.toml overrides them.", &others);
    assert_current("sdk/python/kafleet/settings.py", &text);
}

#[test]
fn options_of_typescript_are_current() {
    let schema = kafleet::config::schema();
    let interface = |text: &mut String, head: &str, doc: &str, settings: &[&TypeSetting]| {
        write!(text, "\n/** {doc} */\nexport interface {head} {{\n").unwrap();
        for setting in settings {
            let (name, kind) = ((TYPESCRIPT.name)(setting.key), TYPESCRIPT.type_of(&schema, setting));
            write!(text, "  /** {} */\n  {name}?: {kind};\n", setting.doc).unwrap();
        }
        text.push_str("}\n");
    };
    let mut text = format!(
        "/** Settings of task types, from crates/config/src/type_settings.rs by `{UPDATE}`. */\n\n\
         import type {{ Duration }} from \"./outcomes.ts\";\n\n\
         /** Class of errors. */\n\
         export type ErrorClass = abstract new (...args: never[]) => Error;\n"
    );
    let (limits, others) = declared();
    interface(&mut text, "Limits", "Keys of a policy that single tasks override.", &limits);
    interface(
        &mut text,
        "Policy extends Limits",
        "Policy of a task type: keys of `[types.NAME]`, which override it.",
        &others,
    );
    text.push_str(
        "\n/** Names of the keys of a policy. */\nexport const POLICY_KEYS: ReadonlySet<string> = new Set([\n",
    );
    for setting in limits.iter().chain(&others) {
        writeln!(text, "  \"{}\",", (TYPESCRIPT.name)(setting.key)).unwrap();
    }
    text.push_str("]);\n");
    assert_current("sdk/typescript/src/settings.ts", &text);
}
