//! `update`: changes the name, tags, options, times and limits of a task.

use std::collections::BTreeMap;

use clap::Args;
use kafleet_documents::Status;
use kafleet_model::json::RawJson;
use kafleet_model::task::field::Scope;
use kafleet_model::task::{Policy, parse_time};
use kafleet_model::units::duration::Millis;
use kafleet_model::units::time::time_text;
use serde_json::Value;

use super::client::Method;
use super::exit::{Code, Failure, Outcome};
use super::field_args::FieldArgs;
use super::globals::Globals;
use super::task_view::render_task;

#[derive(Debug, Default, Args)]
pub(super) struct UpdateArgs {
    /// The task's id
    pub id: String,
    #[command(flatten)]
    pub fields: FieldArgs<CHANGE>,
    /// Delay before the task starts (scheduled tasks only)
    #[arg(long, value_name = "DURATION", conflicts_with = "at")]
    pub delay: Option<Millis>,
    /// Start time (RFC 3339; scheduled tasks only)
    #[arg(long, value_name = "TIME")]
    pub at: Option<String>,
    /// Maximum time from now to the start
    #[arg(long, value_name = "DURATION")]
    pub expires: Option<Millis>,
    /// Field to reset to its default; repeatable
    #[arg(long, value_name = "FIELD", value_parser = clearable())]
    pub clear: Vec<String>,
}

const CHANGE: u8 = Scope::Change as u8;

/// Fields that `--clear` accepts.
fn clearable() -> Vec<&'static str> {
    let changeable = Policy::fields().filter(|field| field.is_in(Scope::Change));
    changeable.map(|field| field.name).chain(["expires"]).collect()
}

pub(super) async fn update(args: UpdateArgs, globals: &Globals) -> Outcome {
    let id = args.id.clone();
    let request = document(args)?;
    let client = globals.client()?;
    let output = globals.output();
    let status: Status = client.call(Method::PATCH, &["v1", "tasks", &id], Some(&request)).await?;
    output.json_or_line(&status, |status| render_task(status, output.paint))?;
    Ok(Code::Ok)
}

/// Returns the patch document: only the given fields.
fn document(args: UpdateArgs) -> Result<BTreeMap<String, RawJson>, Failure> {
    let span = |span: Option<Millis>| span.map(|span| Value::from(span.to_string()));
    let at = args.at.as_deref().map(parse_time).transpose().map_err(Failure::usage)?;
    let times =
        [("delay", span(args.delay)), ("at", at.map(|at| time_text(at).into())), ("expires", span(args.expires))];
    let mut document = args.fields.document()?;
    document.extend(times.into_iter().filter_map(|(field, value)| Some((field.to_owned(), value?.into()))));
    for field in args.clear {
        if document.insert(field.clone(), RawJson::null()).is_some() {
            return Err(Failure::usage(format_args!("`{field}` is both set and cleared")));
        }
    }
    if document.is_empty() {
        Err(Failure::usage("no changes are given").hint("give some, such as --name or --tag"))
    } else {
        Ok(document)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};
    use serde_json::json;

    #[derive(Parser)]
    struct TestCommand {
        #[command(flatten)]
        args: UpdateArgs,
    }

    fn typed(line: &str) -> Result<Value, Failure> {
        let words = std::iter::once("update").chain(line.split_whitespace());
        let document =
            document(TestCommand::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}")).args)?;
        Ok(serde_json::to_value(document).unwrap())
    }

    #[test]
    fn patch_has_only_the_given_fields() {
        assert_eq!(
            typed("x --tag a --min-backoff 5s --clear name"),
            Ok(json!({"tags": ["a"], "min_backoff": "5s", "name": null}))
        );
        assert_eq!(typed(r#"x --clear tags --options {"n":1}"#), Ok(json!({"tags": null, "options": {"n": 1}})));
        assert!(typed("x").unwrap_err().message.contains("no changes are given"));
        assert!(typed("x --name n --clear name").unwrap_err().message.contains("`name` is both set and cleared"));
        assert!(typed("x --options {n}").unwrap_err().message.contains("`{n}` is not JSON"));
    }

    #[test]
    fn every_changeable_field_can_be_given_and_cleared() {
        let command = TestCommand::command();
        let names: Vec<&str> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
        for field in Policy::fields().filter(|field| field.is_in(Scope::Change)) {
            assert!(names.contains(&field.argument.unwrap().long), "{}", field.name);
            assert!(typed(&format!("x --clear {}", field.name)).is_ok(), "{}", field.name);
        }
    }
}
