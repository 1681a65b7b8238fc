//! `set`: a task's name, tags, options, times and limits, changed after it was made.

use clap::Args;
use serde_json::{Map, Value};

use super::client::Method;
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::submit::json;
use super::task_view::card;
use crate::api::documents::Status;
use crate::model::task::parse_time;
use crate::model::units::duration::Millis;
use crate::publish::time_text;

#[derive(Debug, Default, Args)]
pub struct SetArgs {
    /// The task's id
    pub id: String,
    /// A name for people
    #[arg(long)]
    pub name: Option<String>,
    /// A tag, instead of those it has; may be given several times
    #[arg(long = "tag", value_name = "TAG")]
    pub tags: Vec<String>,
    /// A link for people
    #[arg(long, value_name = "URL")]
    pub link: Option<String>,
    /// The JSON object that stays with it, as a whole
    #[arg(long, value_name = "JSON")]
    pub options: Option<String>,
    /// Start so long after now, while it is scheduled
    #[arg(long, value_name = "DURATION", conflicts_with = "at")]
    pub delay: Option<Millis>,
    /// Start at this time (RFC 3339), while it is scheduled
    #[arg(long, value_name = "TIME")]
    pub at: Option<String>,
    /// Do not start later than so long after now
    #[arg(long, value_name = "DURATION")]
    pub expires: Option<Millis>,
    /// Attempts after the first
    #[arg(long, value_name = "N")]
    pub retries: Option<u32>,
    /// The wait before the second attempt; it doubles from there
    #[arg(long, value_name = "DURATION")]
    pub min_backoff: Option<Millis>,
    /// The longest wait between two attempts
    #[arg(long, value_name = "DURATION")]
    pub max_backoff: Option<Millis>,
    /// Time limit of one attempt
    #[arg(long, value_name = "DURATION")]
    pub timeout: Option<Millis>,
    /// Time limit of the whole task, all attempts and waits together
    #[arg(long, value_name = "DURATION")]
    pub total_timeout: Option<Millis>,
    /// Take this away, so that it is as if it had not been given; may be given several times
    #[arg(long, value_name = "FIELD", value_parser = CLEARABLE)]
    pub clear: Vec<String>,
}

const CLEARABLE: [&str; 10] =
    ["name", "tags", "link", "options", "expires", "retries", "min_backoff", "max_backoff", "timeout", "total_timeout"];

pub async fn set(args: SetArgs, globals: &Globals) -> Outcome {
    let id = args.id.clone();
    let asked = document(args)?;
    let (client, screen) = (globals.client()?, globals.screen());
    let status: Status = client.call(Method::PATCH, &["v1", "tasks", &id], Some(&asked)).await?;
    if screen.is_json() {
        screen.json(&status)?
    } else {
        screen.line(&card(&status, screen.paint))?
    }
    Ok(Code::Ok)
}

/// What the api takes: what is not named is left out.
fn document(args: SetArgs) -> Result<Value, Failure> {
    let span = |span: Option<Millis>| span.map(|span| Value::from(span.to_string()));
    let options = args.options.as_deref().map(json).transpose()?;
    let at = args.at.as_deref().map(parse_time).transpose().map_err(Failure::usage)?;
    let tags = (!args.tags.is_empty()).then(|| Value::from(args.tags));
    let given = [
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
        given.into_iter().filter_map(|(field, value)| Some((field.to_owned(), value?))).collect();
    for field in args.clear {
        let nothing = if field == "tags" { Value::Array(Vec::new()) } else { Value::Null };
        if document.insert(field.clone(), nothing).is_some() {
            return Err(Failure::usage(format_args!("`{field}` is to be set and to be cleared")));
        }
    }
    match document.is_empty() {
        true => Err(Failure::usage("nothing is to be changed").hint("name what is, such as --name or --tag")),
        false => Ok(Value::Object(document)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_not_named_is_left_out() {
        let args = SetArgs {
            tags: vec!["a".into()],
            min_backoff: Some(Millis::secs(5)),
            clear: vec!["name".into()],
            ..SetArgs::default()
        };
        assert_eq!(document(args), Ok(json!({"tags": ["a"], "min_backoff": "5s", "name": null})));
        assert_eq!(document(SetArgs { clear: vec!["tags".into()], ..SetArgs::default() }), Ok(json!({"tags": []})));
        assert!(document(SetArgs::default()).unwrap_err().message.contains("nothing is to be changed"));
        let both = SetArgs { name: Some("n".into()), clear: vec!["name".into()], ..SetArgs::default() };
        assert!(document(both).unwrap_err().message.contains("`name` is to be set and to be cleared"));
    }
}
