//! `kill-switch`: switches that cancel tasks instead of starting them.

use clap::{Args, Subcommand};
use kafleet_documents::{KillSwitchDocument, KillSwitchPreview, KillSwitches, SetKillSwitch};
use kafleet_model::json::plain_text;
use kafleet_model::task::kill::{KillMatch, KillParams};
use serde::Serialize;

use super::client::{Client, Method, Query};
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::output::{Field, Output, Rows};

#[derive(Debug, Subcommand)]
pub(super) enum KillSwitchVerb {
    /// Cancel tasks with this tag or id prefix, or with given params, instead of starting them
    On(OnArgs),
    /// Remove a kill switch
    Off(OffArgs),
    /// List the active kill switches
    List,
}

#[derive(Debug, Args)]
pub(super) struct OnArgs {
    /// A tag, or a prefix of task ids; with --param only a name
    pub name: String,
    /// Only tasks with this tag, or only those whose id begins with it [default: both]
    #[arg(long, value_name = "KIND", value_parser = parse_match)]
    pub matches: Option<KillMatch>,
    /// Only tasks of this type
    #[arg(long = "type", value_name = "TYPE")]
    pub task_type: Option<String>,
    /// Only tasks of the type with this value at a JSON pointer into their params, such as /customer/id=42 or
    /// '/kind="import"'; up to 4 times, all must match
    #[arg(long = "param", value_name = "POINTER=VALUE", requires = "task_type", conflicts_with = "matches")]
    pub params: Vec<String>,
    /// Reason, shown with the switch
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Only count the open tasks that it would cancel
    #[arg(long, conflicts_with = "reason")]
    pub preview: bool,
}

/// Parses `tag` or `id-prefix`.
fn parse_match(text: &str) -> Result<KillMatch, String> {
    let is_named = |matches: &KillMatch| matches.name().replace('_', "-") == text;
    KillMatch::ALL.into_iter().find(is_named).ok_or_else(|| format!("`{text}` is neither `tag` nor `id-prefix`"))
}

#[derive(Debug, Args)]
pub(super) struct OffArgs {
    /// Name of the switch
    pub name: String,
}

pub(super) async fn kill_switch(verb: KillSwitchVerb, globals: &Globals) -> Outcome {
    let client = globals.client()?;
    let output = globals.output();
    match verb {
        KillSwitchVerb::On(args) if args.preview => {
            let preview = preview(&client, &args).await?;
            output.json_or_line(&preview, preview_text)
        }
        KillSwitchVerb::On(args) => {
            let set = set(&client, args).await?;
            show(&output, &set, std::slice::from_ref(&set))
        }
        KillSwitchVerb::Off(OffArgs { name }) => {
            let removed = remove(&client, &name).await?;
            output.json_or_line(&removed, |_| format!("the kill switch `{name}` is off"))
        }
        KillSwitchVerb::List => {
            let switches: KillSwitches = client.get(&["v1", "kill-switches"], &Vec::new()).await?;
            show(&output, &switches, &switches.kills)
        }
    }?;
    Ok(Code::Ok)
}

async fn set(client: &Client, args: OnArgs) -> Result<KillSwitchDocument, Failure> {
    let params = params_of(&args)?;
    let OnArgs { name, matches, task_type, reason, .. } = args;
    let body = SetKillSwitch { matches, task_type, params, reason };
    client.call(Method::PUT, &["v1", "kill-switches", &name], Some(&body)).await
}

fn params_of(args: &OnArgs) -> Result<KillParams, Failure> {
    KillParams::parse(args.params.iter().map(String::as_str))
        .map_err(|error| Failure::usage(format!("`--param`: {error}")))
}

async fn preview(client: &Client, args: &OnArgs) -> Result<KillSwitchPreview, Failure> {
    let params = Some(params_of(args)?).filter(|params| !params.is_empty());
    let params = params.map(|params| ("params", plain_text(&params)));
    let matches = args.matches.map(|matches| ("matches", matches.name().to_owned()));
    let task_type = args.task_type.clone().map(|name| ("type", name));
    let query: Query = matches.into_iter().chain(task_type).chain(params).collect();
    client.get(&["v1", "kill-switches", &args.name, "preview"], &query).await
}

fn preview_text(preview: &KillSwitchPreview) -> String {
    let at_least = if preview.exact { "" } else { "at least " };
    let KillSwitchPreview { tagged, prefixed, matched, running, .. } = preview;
    let tasks = tagged + prefixed + matched;
    let by = match matched {
        0 => format!(": {tagged} by their tag, {prefixed} by their id"),
        _ => " by their params".to_owned(),
    };
    let head = format!("{at_least}{tasks} open tasks match{by}; {running} of them run now and continue");
    let tasks = preview.tasks.iter().map(|task| format!("  {} ({})", task.id, task.state));
    std::iter::once(head).chain(tasks).collect::<Vec<_>>().join("\n")
}

async fn remove(client: &Client, name: &str) -> Result<KillSwitchDocument, Failure> {
    client.call(Method::DELETE, &["v1", "kill-switches", name], None::<&()>).await
}

/// Prints the API's document as JSON, or a table.
fn show(output: &Output, document: &impl Serialize, kills: &[KillSwitchDocument]) -> Result<(), Failure> {
    if output.is_json() {
        return output.json(document);
    }
    let mut rows = Rows::new(["NAME", "MATCHES", "TYPE", "SINCE", "BY", "REASON"]);
    for kill in kills.iter().cloned() {
        let matches = match kill.matches {
            _ if !kill.params.is_empty() => kill.params.texts().collect::<Vec<_>>().join(" "),
            Some(matches) => matches.name().replace('_', " "),
            None => "tag or id prefix".to_owned(),
        };
        rows.add([
            Field::Text(kill.name),
            Field::Text(matches),
            kill.task_type.into(),
            Field::Text(kill.since),
            kill.by.into(),
            kill.reason.into(),
        ]);
    }
    output.list(rows, "no kill switch is active; `kafleet kill-switch on TAG` sets one")
}
