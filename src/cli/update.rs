//! `update`: changes the name, tags, options, times and limits of a task.

use clap::Args;
use serde_json::{Map, Value};

use super::client::Method;
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::submit::json;
use super::task_view::render_task;
use crate::api::documents::Status;
use crate::model::task::parse_time;
use crate::model::units::duration::Millis;
use crate::publish::time_text;

#[derive(Debug, Default, Args)]
pub(super) struct UpdateArgs {
    /// The task's id
    pub id: String,
    /// Display name
    #[arg(long)]
    pub name: Option<String>,
    /// Tag, replacing the present tags; repeatable
    #[arg(long = "tag", value_name = "TAG")]
    pub tags: Vec<String>,
    /// Link shown with the task
    #[arg(long, value_name = "URL")]
    pub link: Option<String>,
    /// JSON object stored with the task, replaced as a whole
    #[arg(long, value_name = "JSON")]
    pub options: Option<String>,
    /// Delay before the task starts (scheduled tasks only)
    #[arg(long, value_name = "DURATION", conflicts_with = "at")]
    pub delay: Option<Millis>,
    /// Start time (RFC 3339; scheduled tasks only)
    #[arg(long, value_name = "TIME")]
    pub at: Option<String>,
    /// Maximum time from now to the start
    #[arg(long, value_name = "DURATION")]
    pub expires: Option<Millis>,
    /// Number of retries
    #[arg(long, value_name = "N")]
    pub retries: Option<u32>,
    /// Wait before the second attempt; doubles with each further attempt
    #[arg(long, value_name = "DURATION")]
    pub min_backoff: Option<Millis>,
    /// Maximum wait between two attempts
    #[arg(long, value_name = "DURATION")]
    pub max_backoff: Option<Millis>,
    /// Time limit of one attempt
    #[arg(long, value_name = "DURATION")]
    pub timeout: Option<Millis>,
    /// Time limit of the whole task, including all attempts and waits
    #[arg(long, value_name = "DURATION")]
    pub total_timeout: Option<Millis>,
    /// Field to reset to its default; repeatable
    #[arg(long, value_name = "FIELD", value_parser = CLEARABLE)]
    pub clear: Vec<String>,
}

const CLEARABLE: [&str; 10] =
    ["name", "tags", "link", "options", "expires", "retries", "min_backoff", "max_backoff", "timeout", "total_timeout"];

pub(super) async fn update(args: UpdateArgs, globals: &Globals) -> Outcome {
    let id = args.id.clone();
    let request = document(args)?;
    let client = globals.client()?;
    let output = globals.output();
    let status: Status = client.call(Method::PATCH, &["v1", "tasks", &id], Some(&request)).await?;
    if output.is_json() {
        output.json(&status)?;
    } else {
        output.line(&render_task(&status, output.paint))?;
    }
    Ok(Code::Ok)
}

/// Returns the patch document: only the given fields.
fn document(args: UpdateArgs) -> Result<Value, Failure> {
    let span = |span: Option<Millis>| span.map(|span| Value::from(span.to_string()));
    let options = args.options.as_deref().map(json).transpose()?;
    let at = args.at.as_deref().map(parse_time).transpose().map_err(Failure::usage)?;
    let tags = (!args.tags.is_empty()).then(|| Value::from(args.tags));
    let fields = [
        ("name", args.name.map(Value::from)),
        ("tags", tags),
        ("link", args.link.map(Value::from)),
        ("options", options),
        ("delay", span(args.delay)),
        ("at", at.map(|at| time_text(at).into())),
        ("expires", span(args.expires)),
        ("retries", args.retries.map(Value::from)),
        ("min_backoff", span(args.min_backoff)),
        ("max_backoff", span(args.max_backoff)),
        ("timeout", span(args.timeout)),
        ("total_timeout", span(args.total_timeout)),
    ];
    let mut document: Map<String, Value> =
        fields.into_iter().filter_map(|(field, value)| Some((field.to_owned(), value?))).collect();
    for field in args.clear {
        let empty = if field == "tags" { Value::Array(Vec::new()) } else { Value::Null };
        if document.insert(field.clone(), empty).is_some() {
            return Err(Failure::usage(format_args!("`{field}` is both set and cleared")));
        }
    }
    match document.is_empty() {
        true => Err(Failure::usage("no changes are given").hint("give some, such as --name or --tag")),
        false => Ok(Value::Object(document)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn patch_has_only_the_given_fields() {
        let args = UpdateArgs {
            tags: vec!["a".into()],
            min_backoff: Some(Millis::secs(5)),
            clear: vec!["name".into()],
            ..UpdateArgs::default()
        };
        assert_eq!(document(args), Ok(json!({"tags": ["a"], "min_backoff": "5s", "name": null})));
        assert_eq!(
            document(UpdateArgs { clear: vec!["tags".into()], ..UpdateArgs::default() }),
            Ok(json!({"tags": []}))
        );
        assert!(document(UpdateArgs::default()).unwrap_err().message.contains("no changes are given"));
        let both = UpdateArgs { name: Some("n".into()), clear: vec!["name".into()], ..UpdateArgs::default() };
        assert!(document(both).unwrap_err().message.contains("`name` is both set and cleared"));
    }
}
