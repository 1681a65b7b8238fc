//! `submit`: submits one task from the command line, or many from a file or stdin.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use kafleet_documents::CreateTask;
use kafleet_model::json::{JsonKind, RawJson, short_reason};
use kafleet_model::task::action::{Action, Callback, Check, ends};
use kafleet_model::task::continuation::Continuation;
use kafleet_model::task::field::Scope;
use kafleet_model::task::{OnFailure, Policy, parse_time};
use kafleet_model::unique::AskVerdict;
use kafleet_model::units::duration::Millis;
use kafleet_model::units::time::Expires;
use kafleet_model::units::time::time_text;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::Instant;

use super::client::Client;
use super::exit::{Code, Failure, Outcome};
use super::field_args::FieldArgs;
use super::globals::Globals;
use super::output::{Output, eprint_line};

mod atomic;
mod dry_run;
mod many;
mod ndjson;
mod stdin;

use ndjson::{InputFormat, Source};

#[derive(Clone, Debug, Default, Args)]
pub(super) struct SubmitArgs {
    /// Type of the task; `-` alone reads tasks from stdin, one JSON document per line
    #[arg(value_name = "TYPE", required_unless_present = "file")]
    pub task_type: Option<String>,
    /// Params as JSON [default: {}]; `-` reads params from stdin, one JSON value per line
    #[arg(value_name = "PARAMS", allow_hyphen_values = true)]
    pub params: Option<String>,
    /// Read lines from a file: JSON documents of tasks or, if TYPE is given, params
    #[arg(long, value_name = "FILE", conflicts_with = "params")]
    pub file: Option<PathBuf>,
    /// For lines: number of concurrent requests; 1 keeps the order of the lines
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=32))]
    pub parallel: u8,
    /// For lines: submit all or none; at most 1,000 tasks of one tree
    #[arg(long)]
    pub atomic: bool,
    /// Check the task without creating it: says whether it is valid, or why it would be refused
    #[arg(long, conflicts_with_all = ["wait", "file", "atomic"])]
    pub dry_run: bool,
    /// Wait until the task ends, for at most DURATION (5m if omitted); the exit code reports the outcome
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "5m")]
    pub wait: Option<Millis>,
    #[command(flatten)]
    pub options: TaskOptions,
}

/// Task options besides type and params.
#[derive(Clone, Debug, Default, PartialEq, Args)]
#[command(next_help_heading = "Task options")]
pub(super) struct TaskOptions {
    /// Id of the task [default: a UUID]; resubmitting the same id, type and params has no effect
    #[arg(long)]
    pub id: Option<String>,
    /// Beginning of the id, to which a UUID is added
    #[arg(long, value_name = "PREFIX", conflicts_with = "id")]
    pub id_prefix: Option<String>,
    /// Id of the parent task
    #[arg(long, value_name = "ID")]
    pub parent: Option<String>,
    #[command(flatten)]
    pub task: TaskArgs<CREATE>,
    /// Delay before the task starts
    #[arg(long, value_name = "DURATION", conflicts_with = "at")]
    pub delay: Option<Millis>,
    /// Start at this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    pub at: Option<String>,
    /// Do not fail the parent when this task fails
    #[arg(long)]
    pub ignore_failure: bool,
    /// Continuation after the task's end: a JSON object or array; repeatable
    #[arg(long, value_name = "JSON")]
    pub then: Vec<String>,
    /// File with continuations, as for --then
    #[arg(long, value_name = "FILE")]
    pub then_file: Option<PathBuf>,
}

pub(super) const CREATE: u8 = Scope::Create as u8;
pub(super) const SCHEDULE: u8 = Scope::Schedule as u8;

/// Options of any task, including the tasks of a schedule.
#[derive(Clone, Debug, Default, PartialEq, Args)]
#[command(next_help_heading = "Task options")]
pub(super) struct TaskArgs<const SCOPE: u8> {
    /// Ordering key [default: the task's id]
    #[arg(long)]
    pub key: Option<String>,
    #[command(flatten)]
    pub fields: FieldArgs<SCOPE>,
    /// Maximum time from submission (or firing) to the start
    #[arg(long, value_name = "DURATION")]
    pub expires: Option<Millis>,
    /// URL to call (POST, JSON) when the task ends; repeatable
    #[arg(long, value_name = "URL")]
    pub callback: Vec<String>,
    /// Name of the secret in `[callbacks.secrets]` that signs the calls of --callback
    #[arg(long, value_name = "NAME", requires = "callback")]
    pub callback_secret: Option<String>,
    /// Notification when the task enters a state: a JSON object or array; repeatable
    #[arg(long, value_name = "JSON")]
    pub action: Vec<String>,
    /// State check to run at a given time: a JSON object or array; repeatable
    #[arg(long, value_name = "JSON")]
    pub check: Vec<String>,
}

/// Submission that the arguments describe.
#[derive(Debug, PartialEq)]
enum Submission {
    One(Box<CreateTask>),
    Many { source: Source, format: InputFormat },
}

pub(super) async fn submit(args: SubmitArgs, globals: &Globals) -> Outcome {
    let wait = args.wait;
    let parallel = args.parallel;
    let (atomic, is_dry_run) = (args.atomic, args.dry_run);
    let has_params = args.params.is_some();
    let submission = interpret(args)?;
    if let Submission::One(task) = &submission
        && !has_params
    {
        stdin::refuse_unread(&task.task_type).await?;
    }
    let client = globals.client()?;
    let output = globals.output();
    match submission {
        Submission::Many { source, format } if atomic => atomic::submit(source, format, &client, &output).await,
        Submission::One(_) if atomic => {
            Err(Failure::usage("`--atomic` needs lines of tasks").hint("a single task is always submitted atomically"))
        }
        Submission::One(task) if is_dry_run => dry_run::dry_run(&task, &client, &output).await,
        Submission::Many { .. } if is_dry_run => {
            Err(Failure::usage("`--dry-run` is for one task, not for lines of tasks")
                .hint("give the type and the params of one of them"))
        }
        Submission::One(task) => submit_one(&task, wait, &client, &output).await,
        Submission::Many { source, format } => many::submit(source, format, parallel.into(), &client, &output).await,
    }
}

async fn submit_one(task: &CreateTask, wait: Option<Millis>, client: &Client, output: &Output) -> Outcome {
    let started = Instant::now();
    let created = client.create(task, wait.map_or(Duration::ZERO, Duration::from)).await;
    let status = created.map_err(|failure| with_id(failure, task))?;
    if let Some(verdict) = status.verdict {
        eprint_line(verdict_text(verdict, &status.id));
    }
    if let Some(wait) = wait {
        return super::wait::finish(client, output, status, wait, started).await;
    }
    output.json_or_line(&status, |status| status.id.clone())?;
    output.hint_to_follow(&status.id);
    Ok(Code::Ok)
}

/// Sentence about the verdict about a unique task.
fn verdict_text(verdict: AskVerdict, id: &str) -> String {
    match verdict {
        AskVerdict::Started => format!("`{id}` starts: no other task of its key is open"),
        AskVerdict::Kept => format!("`{id}` is kept and has these params: it starts when its key lets it"),
        AskVerdict::Joined => format!("joined `{id}`, which stands for the key: nothing new was created"),
    }
}

/// Names the id of a task that may have been created although no answer came: with it, a repetition creates none twice.
fn with_id(failure: Failure, task: &CreateTask) -> Failure {
    let Some(id) = task.id.as_ref().filter(|_| failure.code == Code::Unavailable) else { return failure };
    let hint = failure.hint.as_ref().map_or(String::new(), |hint| format!("{hint}; "));
    failure.hint(format!("{hint}the task may have been created: repeat the command with `--id {id}`"))
}

fn interpret(args: SubmitArgs) -> Result<Submission, Failure> {
    let task_type = args.task_type.clone().filter(|name| name != "-");
    match (source(&args), task_type) {
        (Some(source), task_type) => Ok(Submission::Many { source, format: input_format(&args, task_type)? }),
        (None, Some(task_type)) => {
            let task = document(args.options, task_type)?;
            // An external task has no params: the system that runs it keeps them.
            let none = if task.policy.rules.external { RawJson::null() } else { json!({}).into() };
            let params = args.params.as_deref().map_or(Ok(none), json)?;
            // Made here, so that the request can be repeated.
            let made = || kafleet_client::new_id_after(task.id_prefix.as_deref());
            let id = Some(task.id.clone().unwrap_or_else(made));
            Ok(Submission::One(Box::new(CreateTask { params, id, id_prefix: None, ..task })))
        }
        (None, None) => {
            Err(Failure::usage("the type of the task is missing").hint("write `kafleet submit TYPE PARAMS`"))
        }
    }
}

/// Returns the source of the lines; `None` for one task.
fn source(args: &SubmitArgs) -> Option<Source> {
    let stdin = |text: &Option<String>| text.as_deref() == Some("-");
    match &args.file {
        Some(path) if path.as_os_str() != "-" => Some(Source::File(path.clone())),
        Some(_) => Some(Source::Stdin),
        None if stdin(&args.task_type) && args.params.is_none() => Some(Source::Stdin),
        None if stdin(&args.params) => Some(Source::Stdin),
        None => None,
    }
}

fn input_format(args: &SubmitArgs, task_type: Option<String>) -> Result<InputFormat, Failure> {
    if args.wait.is_some() {
        return Err(Failure::usage("`--wait` is for one task, not for lines of tasks")
            .hint("give the lines a common parent and follow it with `kafleet tree --watch`"));
    }
    if args.options.id.is_some() {
        return Err(Failure::usage("`--id` is for one task, not for lines of tasks")
            .hint("write `\"id\"` into each document and omit TYPE"));
    }
    match task_type {
        Some(task_type) => Ok(InputFormat::Params(Box::new(document(args.options.clone(), task_type)?))),
        None if args.options == TaskOptions::default() => Ok(InputFormat::Documents),
        None => Err(Failure::usage("task options cannot be combined with lines that are whole tasks")
            .hint("write them into each document, or give a TYPE and lines of params")),
    }
}

pub(super) fn json(text: &str) -> Result<RawJson, Failure> {
    RawJson::parse(text.as_bytes()).map_err(|error| {
        Failure::usage(format_args!("`{}` is not JSON: {error}", kafleet_model::task::id::clip(text)))
            .hint(r#"quote it for the shell: '{"hello": "world"}'"#)
    })
}

/// Parses continuations from the command line and from a file.
fn continuations(options: &TaskOptions) -> Result<Vec<Continuation>, Failure> {
    let mut texts = options.then.clone();
    if let Some(path) = &options.then_file {
        let text = std::fs::read_to_string(path);
        texts.push(text.map_err(|error| Failure::usage(format_args!("`{}` cannot be read: {error}", path.display())))?);
    }
    parse_objects("--then", &texts, r#"'{"on": "succeeded", "type": "echo"}'"#)
}

impl<const SCOPE: u8> TaskArgs<SCOPE> {
    /// Parses notifications from `--action` and `--callback`.
    pub(super) fn actions(&self) -> Result<Vec<Action>, Failure> {
        let example = r#"'{"on": ["failed"], "callback": {"url": "https://…"}}'"#;
        let mut actions: Vec<Action> = parse_objects("--action", &self.action, example)?;
        let short = |url: &String| Callback { secret: self.callback_secret.clone(), ..Callback::to(url) };
        actions.extend(self.callback.iter().map(|url| Action { on: ends(), callback: Some(short(url)), email: None }));
        Ok(actions)
    }

    pub(super) fn checks(&self) -> Result<Vec<Check>, Failure> {
        let example = r#"'{"after": "1h", "expect": ["succeeded"], "failed": {"callback": {"url": "https://…"}}}'"#;
        parse_objects("--check", &self.check, example)
    }
}

/// Parses JSON objects and arrays of them.
fn parse_objects<T: DeserializeOwned>(flag: &str, texts: &[String], example: &str) -> Result<Vec<T>, Failure> {
    let mut objects = Vec::new();
    for text in texts {
        let given = json(text)?;
        let read = match given.slice().kind() {
            JsonKind::Array => serde_json::from_str::<Vec<T>>(given.text()),
            _ => serde_json::from_str(given.text()).map(|object| vec![object]),
        };
        let invalid = |error| {
            let reason = short_reason(&error);
            Failure::usage(format_args!("`{flag}`: {reason}")).hint(format!("write, for example, {flag} {example}"))
        };
        objects.extend(read.map_err(invalid)?);
    }
    Ok(objects)
}

fn document(options: TaskOptions, task_type: String) -> Result<CreateTask, Failure> {
    let then = continuations(&options)?;
    let actions = options.task.actions()?;
    let checks = options.task.checks()?;
    let at = options.at.as_deref().map(parse_time).transpose().map_err(Failure::usage)?;
    let mut policy = Policy::default();
    options.task.fields.changes()?.apply(&mut policy);
    policy.on_failure = if options.ignore_failure { OnFailure::Ignore } else { OnFailure::Fail };
    policy.rules.then = then;
    policy.rules.actions = actions;
    policy.rules.checks = checks;
    Ok(CreateTask {
        task_type,
        id: options.id,
        id_prefix: options.id_prefix,
        parent: options.parent,
        key: options.task.key,
        delay: options.delay,
        at: at.map(time_text),
        expires: options.task.expires.map(Expires::After),
        policy,
        ..CreateTask::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use kafleet_model::task::field::ArgumentKind;

    #[derive(Parser)]
    struct TestCommand {
        #[command(flatten)]
        args: SubmitArgs,
    }

    fn typed(line: &str) -> Result<Submission, Failure> {
        let words = std::iter::once("submit").chain(line.split_whitespace());
        interpret(TestCommand::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}")).args)
    }

    #[test]
    fn arguments_describe_one_task() {
        let line = r#"echo {"a":1} --id x --tag b --tag c --at 2026-01-31T13:00:00+01:00 --expires 1h --min-backoff 2s --max-backoff 1m"#;
        let Ok(Submission::One(task)) = typed(line) else { panic!("expected one task") };
        assert_eq!(
            (task.task_type.as_str(), task.id.as_deref(), task.params.text()),
            ("echo", Some("x"), r#"{"a":1}"#)
        );
        assert_eq!(
            (task.policy.tags.join(" ").as_str(), task.at.as_deref()),
            ("b c", Some("2026-01-31T12:00:00.000Z"))
        );
        assert_eq!(task.expires, Some(Expires::After(Millis::secs(3600))));
        assert_eq!((task.policy.min_backoff, task.policy.max_backoff), (Some(Millis::secs(2)), Some(Millis::secs(60))));
    }

    #[test]
    fn notifications_are_given_in_short_or_full_form() {
        let check = r#"{"after":"1h","expect":["succeeded"],"failed":{"callback":{"url":"https://c"}}}"#;
        let line = format!(
            r#"echo --callback https://a --callback-secret k --action {{"on":["failed"],"callback":{{"url":"https://b"}}}} --check {check}"#
        );
        let Ok(Submission::One(task)) = typed(&line) else { panic!("expected one task") };
        let urls: Vec<_> = task
            .policy
            .rules
            .actions
            .iter()
            .map(|action| (action.on.len(), action.callback.as_ref().unwrap().url.as_str()))
            .collect();
        assert_eq!(urls, [(1, "https://b"), (4, "https://a")]);
        assert_eq!(
            (task.policy.rules.actions[1].callback.as_ref().unwrap().secret.as_deref(), task.policy.rules.checks.len()),
            (Some("k"), 1)
        );
        let wrong = typed(r#"echo --action {"on":["failed"],"mail":{}}"#).unwrap_err();
        assert!(wrong.message.contains("unknown field `mail`") && wrong.hint.is_some(), "{wrong:?}");
    }

    #[test]
    fn params_are_optional_and_any_json() {
        for (line, params) in
            [("echo", json!({})), ("echo -5", json!(-5)), ("echo null", json!(null)), ("echo [1,2]", json!([1, 2]))]
        {
            let Ok(Submission::One(task)) = typed(line) else { panic!("{line}") };
            assert_eq!(task.params, params, "{line}");
            assert!(task.id.is_some(), "an id assigned by the client makes a repeated request safe");
        }
        let Ok(Submission::One(task)) = typed(r#"job --external --options {"ticket":7}"#) else { panic!("one task") };
        assert_eq!((&task.params, &task.policy.rules.options), (&RawJson::null(), &Some(json!({"ticket": 7}).into())));
    }

    #[test]
    fn every_argument_of_a_task_field_sets_it() {
        for field in Policy::fields().filter(|field| field.is_in(Scope::Create)) {
            let Some(argument) = field.argument else { continue };
            let value = match argument.kind {
                ArgumentKind::Flag => "",
                ArgumentKind::Number => "7",
                ArgumentKind::Duration => "7s",
                ArgumentKind::Json => r#"{"n":"7"}"#,
                ArgumentKind::Text | ArgumentKind::List => "text",
            };
            let Ok(Submission::One(task)) = typed(&format!("echo --{} {value}", argument.long)) else {
                panic!("{}", field.name)
            };
            assert!(task.policy.is_set(field), "{}", field.name);
            assert_eq!(Policy::fields().filter(|other| task.policy.is_set(other)).count(), 1, "{}", field.name);
        }
    }

    #[test]
    fn lines_are_tasks_or_params() {
        let file = || Source::File("t.ndjson".into());
        for (line, expected, params) in [
            ("-", Source::Stdin, false),
            ("--file -", Source::Stdin, false),
            ("--file t.ndjson", file(), false),
            ("echo -", Source::Stdin, true),
            ("echo --file t.ndjson --tag a", file(), true),
        ] {
            let Ok(Submission::Many { source, format }) = typed(line) else { panic!("{line}") };
            assert_eq!(source, expected, "{line}");
            assert_eq!(matches!(format, InputFormat::Params(_)), params, "{line}");
        }
    }

    #[test]
    fn invalid_combinations_are_refused_with_a_hint() {
        for (line, message) in [
            ("echo {a:1}", "`{a:1}` is not JSON"),
            ("- --tag a", "task options cannot be combined with lines"),
            ("echo - --id x", "`--id` is for one task"),
            ("- --wait", "`--wait` is for one task"),
        ] {
            let failure = typed(line).unwrap_err();
            assert_eq!(failure.code, Code::Usage, "{line}");
            assert!(failure.message.contains(message) && failure.hint.is_some(), "{line}: {failure:?}");
        }
        assert!(typed("echo --at tomorrow").unwrap_err().message.contains("`tomorrow` is not a time"));
    }
}
