//! `types` and `backlog`: lists task types with their task counts and backlogs, and pauses, resumes or limits them.

use clap::{Args, Subcommand};
use kafleet_config::{AdaptiveOverride, Rate, RateBy};
use kafleet_documents::flow::rate;
use kafleet_documents::{
    CircuitState, FlowDocument, FlowVerdict, PauseType, ResumeType, SetCircuit, SetLimits, TypeDocument, TypeLimits,
    Types,
};
use kafleet_model::record::state::{Category, State};
use kafleet_model::units::duration::Millis;

use super::client::{Client, Method};
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::listed_types::{ListedTypes, tasks_in};
use super::output::{Field, Rows, eprint_incomplete, eprint_line};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct TypesArgs {
    #[command(subcommand)]
    pub verb: Option<TypesVerb>,
    #[command(flatten)]
    pub listed: ListedTypes,
}

#[derive(Debug, Subcommand)]
pub(super) enum TypesVerb {
    /// Stop starting tasks of a type; running attempts continue
    Pause(PauseArgs),
    /// Resume a type
    Resume(ResumeArgs),
    /// Limit a type on the running fleet; omitted limits keep their values
    Limit(LimitArgs),
    /// Open or close the circuit of a type in all workers, or leave it to each of them
    Circuit(CircuitArgs),
    /// Delete the declaration of a type that no longer exists: its schema and description
    Forget(ForgetArgs),
}

#[derive(Debug, Args)]
pub(super) struct ForgetArgs {
    #[arg(value_name = "TYPE")]
    pub name: String,
}

#[derive(Debug, Args)]
pub(super) struct CircuitArgs {
    #[arg(value_name = "TYPE")]
    pub name: String,
    /// open: nothing starts; close: it never opens; auto: each worker decides
    #[arg(value_name = "STATE", value_parser = parse_circuit)]
    pub state: CircuitState,
    /// Circuit of this host, such as hooks.example.com; only for kafleet-callback
    #[arg(long, value_name = "HOST")]
    pub host: Option<String>,
    /// Reason, shown with the type
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

fn parse_circuit(text: &str) -> Result<CircuitState, String> {
    match text {
        "open" => Ok(CircuitState::Open),
        "close" => Ok(CircuitState::Closed),
        "auto" => Ok(CircuitState::Auto),
        _ => Err(format!("`{text}` is not a state of a circuit: use open, close or auto")),
    }
}

#[derive(Debug, Args)]
pub(super) struct PauseArgs {
    #[arg(value_name = "TYPE")]
    pub name: String,
    /// Reason, shown with the type
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct ResumeArgs {
    #[arg(value_name = "TYPE")]
    pub name: String,
}

#[derive(Debug, Args)]
pub(super) struct LimitArgs {
    #[arg(value_name = "TYPE")]
    pub name: String,
    /// Concurrent attempts per worker
    #[arg(long, value_name = "N")]
    pub slots: Option<u32>,
    /// Concurrent attempts in all workers together
    #[arg(long, value_name = "N")]
    pub max_concurrency: Option<u32>,
    /// Starts per interval, such as 100/s or 10/5m
    #[arg(long, value_name = "COUNT/TIME", value_parser = parse_rate)]
    pub rate: Option<Rate>,
    /// Burst: starts allowed at once after an idle time
    #[arg(long, value_name = "N", requires = "rate")]
    pub burst: Option<u32>,
    /// Apply the rate per task key
    #[arg(long, requires = "rate")]
    pub per_key: bool,
    /// Adaptive limit: off, or a number of concurrent attempts in all workers together that is not learned
    #[arg(long, value_name = "off|N")]
    pub adaptive: Option<AdaptiveOverride>,
    /// Return to the limits of the configuration before applying the other options
    #[arg(long)]
    pub reset: bool,
    /// Reason, recorded in the audit log
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

/// Parses a rate such as `100/s`, `10/5m` or `1/500ms`.
fn parse_rate(text: &str) -> Result<Rate, String> {
    let invalid = || format!("`{text}` is not a rate: write 100/s, 10/5m or 1/500ms");
    let (count, per) = text.split_once('/').filter(|(_, per)| !per.is_empty()).ok_or_else(invalid)?;
    let per = if per.starts_with(|c: char| c.is_ascii_digit()) { per.to_owned() } else { format!("1{per}") };
    let count = count.parse().map_err(|_| invalid())?;
    let per = Millis::parse(&per).map_err(|_| invalid())?;
    let rate = Rate { count, per, burst: 1, by: RateBy::Type };
    rate.check().map(|()| rate)
}

pub(super) async fn types(args: TypesArgs, globals: &Globals) -> Outcome {
    let client = globals.client()?;
    let output = globals.output();
    match args.verb {
        None => {
            let types: Types = client.get(&["v1", "types"], &Vec::new()).await?;
            let types = Types { types: args.listed.select(types.types), ..types };
            let empty = match &args.listed.text {
                Some(_) => "no type has these words in its name, description or app",
                None => "no task types; add `[types.NAME]` to kafleet.toml and run `kafleet topics apply`",
            };
            output.json_or_list(&types, |types| rows(&types.types), empty)?;
            eprint_incomplete(&types.incomplete);
        }
        Some(verb) => {
            let forgets = matches!(verb, TypesVerb::Forget(_));
            let changed = change(&client, verb).await?;
            output.json_or_table(&changed, |changed| rows(std::slice::from_ref(changed)))?;
            eprint_incomplete(&changed.incomplete);
            if forgets && changed.topic {
                eprint_line(
                    "hint: the topics of the type remain, and so do its tasks; delete topics with the tools of Kafka",
                );
            }
        }
    }
    Ok(Code::Ok)
}

async fn change(client: &Client, verb: TypesVerb) -> Result<TypeDocument, Failure> {
    match verb {
        TypesVerb::Pause(PauseArgs { name, reason }) => {
            client.call(Method::POST, &["v1", "types", &name, "pause"], Some(&PauseType { reason })).await
        }
        TypesVerb::Resume(ResumeArgs { name }) => {
            client.call(Method::POST, &["v1", "types", &name, "resume"], Some(&ResumeType {})).await
        }
        TypesVerb::Circuit(CircuitArgs { name, state, host, reason }) => {
            let body = SetCircuit { state, host, reason };
            client.call(Method::PUT, &["v1", "types", &name, "circuit"], Some(&body)).await
        }
        TypesVerb::Forget(ForgetArgs { name }) => {
            client.call(Method::DELETE, &["v1", "types", &name], None::<&()>).await
        }
        TypesVerb::Limit(args) => {
            let types: Types = client.get(&["v1", "types"], &Vec::new()).await?;
            let current =
                types.types.into_iter().find(|current| current.name == args.name).map(|current| current.limits);
            let path = ["v1", "types", &args.name, "limits"];
            client.call(Method::PUT, &path, Some(&merge_limits(current.unwrap_or_default(), &args))).await
        }
    }
}

/// Merges the limits set on the running fleet with those of the arguments.
fn merge_limits(current: TypeLimits, args: &LimitArgs) -> SetLimits {
    let live = |name: &str| !args.reset && current.live.iter().any(|current| current == name);
    let rate = args.rate.map(|rate| Rate {
        burst: args.burst.unwrap_or(rate.burst),
        by: if args.per_key { RateBy::Key } else { RateBy::Type },
        ..rate
    });
    SetLimits {
        slots: args.slots.or(current.slots.filter(|_| live("slots"))),
        max_concurrency: args.max_concurrency.or(current.max_concurrency.filter(|_| live("max_concurrency"))),
        rate: rate.or(current.rate.filter(|_| live("rate"))),
        adaptive: args.adaptive.or(current.adaptive.filter(|_| live("adaptive"))),
        reason: args.reason.clone(),
    }
}

fn rows(types: &[TypeDocument]) -> Rows {
    let mut rows = Rows::new([
        "TYPE",
        "TOPIC",
        "BACKLOG",
        "QUEUED",
        "RUNNING",
        "OTHER PENDING",
        "SUCCEEDED",
        "UNSUCCESSFUL",
        "IN",
        "OUT",
        "TREND",
        "DRAINED IN",
        "WORK",
    ]);
    types.iter().for_each(|document| rows.add(row(document)));
    rows
}

fn row(document: &TypeDocument) -> [Field; 13] {
    let count = |is_counted: &dyn Fn(State) -> bool| Field::Number(tasks_in(document, is_counted));
    [
        Field::Text(document.name.clone()),
        Field::from(if document.topic { "yes" } else { "no" }),
        Field::Number(document.backlog),
        count(&|state| state == State::Queued),
        count(&|state| state == State::Running),
        count(&|state| state.category() == Category::Pending && !matches!(state, State::Queued | State::Running)),
        count(&|state| state.category() == Category::Successful),
        count(&|state| state.category() == Category::Failed),
        flow(document, |flow| Some(rate(flow.in_per_min))),
        flow(document, |flow| Some(rate(flow.out_per_min))),
        flow(document, trend),
        flow(document, FlowDocument::drained_in_text),
        status_notes(document),
    ]
}

fn flow(document: &TypeDocument, text: impl FnOnce(&FlowDocument) -> Option<String>) -> Field {
    Field::from(document.flow.as_ref().and_then(text))
}

/// Verdict on the backlog, with its growth.
fn trend(flow: &FlowDocument) -> Option<String> {
    (flow.backlog > 0).then(|| match flow.verdict {
        FlowVerdict::Growing => format!("growing, +{}", rate(flow.change_per_min())),
        verdict => verdict.name().to_owned(),
    })
}

#[derive(Debug, Args)]
pub(super) struct BacklogArgs {
    /// Only this type
    #[arg(value_name = "TYPE")]
    pub task_type: Option<String>,
}

/// `backlog`: types with queued or running tasks, worst first.
pub(super) async fn backlog(args: BacklogArgs, globals: &Globals) -> Outcome {
    let client = globals.client()?;
    let types: Types = match &args.task_type {
        None => client.get(&["v1", "types"], &Vec::new()).await?,
        Some(name) => {
            let document: TypeDocument = client.get(&["v1", "types", name], &Vec::new()).await?;
            Types { incomplete: document.incomplete.clone(), types: vec![document] }
        }
    };
    let backlogs = Types { types: worst_first(types.types), ..types };
    globals.output().json_or_list(&backlogs, |types| backlog_rows(&types.types), "no type has a backlog")?;
    eprint_incomplete(&backlogs.incomplete);
    Ok(Code::Ok)
}

/// Types with a backlog: those that do not drain first, then by the number of tasks.
fn worst_first(mut types: Vec<TypeDocument>) -> Vec<TypeDocument> {
    types.retain(|document| document.backlog > 0);
    let rank = |document: &TypeDocument| match document.flow.as_ref().map(|flow| flow.verdict) {
        Some(FlowVerdict::Stalled) => 0,
        Some(FlowVerdict::Growing) => 1,
        Some(FlowVerdict::Paused) => 2,
        Some(FlowVerdict::Unknown) | None => 3,
        Some(FlowVerdict::Steady) => 4,
        Some(FlowVerdict::Draining) => 5,
        Some(FlowVerdict::KeepingUp) => 6,
    };
    types.sort_by_key(|document| (rank(document), std::cmp::Reverse(document.backlog)));
    types
}

fn backlog_rows(types: &[TypeDocument]) -> Rows {
    let mut rows = Rows::new(["TYPE", "BACKLOG", "QUEUED", "IN", "OUT", "TREND", "DRAINED IN", "REASON"]);
    for document in types {
        rows.add([
            Field::Text(document.name.clone()),
            Field::Number(document.backlog),
            Field::Number(document.counts.get(&State::Queued).copied().unwrap_or_default()),
            flow(document, |flow| Some(rate(flow.in_per_min))),
            flow(document, |flow| Some(rate(flow.out_per_min))),
            flow(document, trend),
            flow(document, FlowDocument::drained_in_text),
            flow(document, |flow| flow.reason.clone()),
        ]);
    }
    rows
}

fn numbers(numbers: &[i32]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// Note with values; `None` without any.
fn list(name: &str, values: &[String]) -> Option<String> {
    (!values.is_empty()).then(|| format!("{name} {}", values.join(" ")))
}

/// Notes of a type: pause, limits and circuit (a star marks those set on the running fleet), kill switches, stopped
/// workers, declared and masked params.
fn status_notes(document: &TypeDocument) -> Field {
    let limits = &document.limits;
    let totals = document.worker_totals.as_ref();
    let star = |name: &str| if limits.live.iter().any(|live| live == name) { "*" } else { "" };
    let words = [
        document.paused.as_ref().map(|_| "paused".to_owned()),
        limits.slots.map(|slots| format!("slots {slots}{}", star("slots"))),
        limits.max_concurrency.map(|most| format!("at most {most}{}", star("max_concurrency"))),
        limits.rate.map(|rate| format!("rate {rate}{}", star("rate"))),
        match (&document.adaptive, limits.adaptive) {
            (_, Some(set)) => Some(format!("adaptive {set}*")),
            (Some(adaptive), None) => Some(format!("adaptive {:.1}", adaptive.limit)),
            (None, None) => None,
        },
        (!document.kills.is_empty()).then(|| format!("kill {}", document.kills.join(" "))),
        totals
            .filter(|totals| totals.stopped > 0)
            .map(|totals| format!("stopped in {} of {} workers", totals.stopped, totals.workers)),
        document.circuit.as_ref().map(|circuit| format!("circuit {}*", circuit.state)),
        totals
            .filter(|totals| totals.circuit_open > 0)
            .map(|totals| format!("circuit open in {} of {} workers", totals.circuit_open, totals.workers)),
        totals
            .filter(|totals| totals.open_hosts > 0)
            .map(|totals| format!("{} open host{}", totals.open_hosts, if totals.open_hosts == 1 { "" } else { "s" })),
        totals
            .filter(|totals| !totals.refused.is_empty())
            .map(|totals| format!("refused partitions {}", numbers(&totals.refused))),
        list("index", &document.declared.index),
        list("mask", &document.declared.mask),
    ];
    let words: Vec<String> = words.into_iter().flatten().collect();
    if words.is_empty() { Field::Empty } else { Field::Text(words.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::Paint;
    use kafleet_documents::{CircuitDocument, DeclaredParams, WorkerTotals};

    #[test]
    fn every_task_is_counted_once() {
        let counts = [
            (State::Queued, 4),
            (State::Running, 2),
            (State::Retrying, 1),
            (State::WaitingForChildren, 3),
            (State::Succeeded, 100),
            (State::Cancelled, 5),
            (State::Failed, 6),
        ];
        let echo = TypeDocument {
            queue: None,
            adaptive: None,
            hosts: Vec::new(),
            incomplete: Vec::new(),
            name: "echo".into(),
            topic: true,
            counts: counts.into(),
            backlog: 6,
            own_failed: None,
            flow: Some(FlowDocument {
                in_per_min: 3.0,
                out_per_min: 4.5,
                backlog: 6,
                verdict: FlowVerdict::Draining,
                drained_in_ms: Some(240_000),
                since: String::new(),
                until: String::new(),
                reason: None,
            }),
            paused: None,
            limits: TypeLimits {
                slots: Some(4),
                max_concurrency: Some(9),
                live: vec!["slots".into()],
                ..TypeLimits::default()
            },
            circuit: Some(CircuitDocument { state: "closed".into(), since: String::new(), reason: None, by: None }),
            kills: vec!["batch-7".into()],
            worker_totals: Some(WorkerTotals {
                workers: 2,
                stopped: 1,
                circuit_open: 1,
                refused: vec![0, 3],
                ..WorkerTotals::default()
            }),
            app: None,
            doc: None,
            schema: None,
            output: None,
            declared: DeclaredParams { index: vec!["params.order.id".into()], mask: vec!["/card".into()] },
        };
        let expected = "\
TYPE  TOPIC  BACKLOG  QUEUED  RUNNING  OTHER PENDING  SUCCEEDED  UNSUCCESSFUL  IN  OUT  TREND     DRAINED IN  WORK
echo  yes          6       4        2              4        100            11  3   4.5  draining  4 min       slots 4*, at most 9, kill batch-7, stopped in 1 of 2 workers, circuit closed*, circuit open in 1 of 2 workers, refused partitions 0 3, index params.order.id, mask /card";
        assert_eq!(rows(&[echo]).draw(Paint(false), false), expected);
    }

    #[test]
    fn rates_are_parsed_or_rejected() {
        let rate = parse_rate("10/5m").unwrap();
        assert_eq!((rate.count, rate.per, parse_rate("100/s").unwrap().per), (10, Millis::secs(300), Millis::secs(1)));
        for bad in ["10", "x/s", "0/s", "10/w", "/s", "10/"] {
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn omitted_limits_keep_their_values() {
        let rate = parse_rate("10/5m").unwrap();
        let live = vec!["slots".into()];
        let current = TypeLimits { slots: Some(4), max_concurrency: Some(9), live, ..TypeLimits::default() };
        let args = LimitArgs {
            name: "echo".into(),
            slots: None,
            max_concurrency: None,
            adaptive: None,
            rate: Some(rate),
            burst: Some(3),
            per_key: true,
            reset: false,
            reason: None,
        };
        let set = merge_limits(current.clone(), &args);
        assert_eq!((set.slots, set.max_concurrency), (Some(4), None), "only limits set on the running fleet are kept");
        assert_eq!(set.rate, Some(Rate { burst: 3, by: RateBy::Key, ..rate }));
        assert_eq!(
            merge_limits(current, &LimitArgs { reset: true, rate: None, burst: None, ..args }),
            SetLimits::default()
        );
    }
}
