//! `schedules`: recurring tasks.

use clap::{Args, Subcommand};
use tokio::time::Instant;

use super::client::{Client, Method, Query};
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::output::{Field, Output, Rows, tell};
use super::submit::TaskArgs;
use crate::api::documents::{
    NewSchedule, PauseType, ResumeType, ScheduleAsked, ScheduleDocument, ScheduleTimes, Schedules, Status,
};
use crate::model::schedule::Spec;
use crate::model::task::parse_time;
use crate::model::units::duration::Millis;
use crate::publish::time_text;

mod apply;
mod spec;
mod view;

use apply::ApplyArgs;
use spec::{SpecArgs, give_task};

#[derive(Debug, Subcommand)]
pub enum SchedulesVerb {
    /// Show all schedules
    List,
    /// Show a schedule, when it fires next and what it did last
    Show(OneArgs),
    /// Create a schedule
    Create(Box<CreateArgs>),
    /// Change a schedule; what is not named stays as it is
    Change(Box<ChangeArgs>),
    /// Delete a schedule; its tasks stay
    Delete(OneArgs),
    /// Fire nothing until it is resumed
    Pause(PauseArgs),
    /// Go on; what was between is not made up for
    Resume(OneArgs),
    /// Run it once, now
    Run(RunArgs),
    /// Make up for past times that have no task
    Backfill(BackfillArgs),
    /// Show when it fires
    Next(NextArgs),
    /// Make the fleet's schedules those of `[schedules]` in the configuration
    Apply(ApplyArgs),
}

#[derive(Debug, Args)]
pub struct OneArgs {
    /// The schedule
    pub id: String,
}

#[derive(Debug, Args)]
pub struct CreateArgs {
    /// Its name: the ids of its tasks begin with it
    pub id: String,
    /// The type of its tasks
    #[arg(value_name = "TYPE")]
    pub task_type: String,
    /// Their params, as JSON [default: {}]
    #[arg(value_name = "PARAMS", allow_hyphen_values = true)]
    pub params: Option<String>,
    /// Create it paused
    #[arg(long)]
    pub paused: bool,
    #[command(flatten)]
    pub spec: SpecArgs,
    #[command(flatten)]
    pub task: TaskArgs,
}

#[derive(Debug, Args)]
pub struct ChangeArgs {
    /// The schedule
    pub id: String,
    /// The type of its tasks
    #[arg(long = "type", value_name = "TYPE")]
    pub task_type: Option<String>,
    /// Their params, as JSON
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    pub params: Option<String>,
    #[command(flatten)]
    pub spec: SpecArgs,
    #[command(flatten)]
    pub task: TaskArgs,
}

#[derive(Debug, Args)]
pub struct PauseArgs {
    /// The schedule
    pub id: String,
    /// What people read beside it
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// The schedule
    pub id: String,
    /// Wait for its task's end, at most so long [default: 5m]; the exit code says how it ended
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "5m")]
    pub wait: Option<Millis>,
}

#[derive(Debug, Args)]
pub struct BackfillArgs {
    /// The schedule
    pub id: String,
    /// Times from this one on (RFC 3339)
    #[arg(long, value_name = "TIME")]
    pub from: String,
    /// Up to this one (RFC 3339) [default: now]
    #[arg(long, value_name = "TIME")]
    pub to: Option<String>,
}

#[derive(Debug, Args)]
pub struct NextArgs {
    /// The schedule
    pub id: String,
    /// So many times
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub count: u16,
    /// Times after this one (RFC 3339) [default: now]
    #[arg(long, value_name = "TIME")]
    pub after: Option<String>,
}

pub async fn schedules(verb: SchedulesVerb, globals: &Globals) -> Outcome {
    let (client, screen) = (globals.client()?, globals.screen());
    match verb {
        SchedulesVerb::List => list(&client, &screen).await,
        SchedulesVerb::Show(OneArgs { id }) => shown(&screen, get(&client, &id).await?),
        SchedulesVerb::Create(args) => shown(&screen, create(*args, &client).await?),
        SchedulesVerb::Change(args) => shown(&screen, change(*args, &client).await?),
        SchedulesVerb::Delete(OneArgs { id }) => delete(&id, &client, &screen).await,
        SchedulesVerb::Pause(PauseArgs { id, reason }) => {
            shown(&screen, client.call(Method::POST, &["v1", "schedules", &id, "pause"], Some(&PauseType { reason })).await?)
        }
        SchedulesVerb::Resume(OneArgs { id }) => {
            shown(&screen, client.call(Method::POST, &["v1", "schedules", &id, "resume"], Some(&ResumeType {})).await?)
        }
        SchedulesVerb::Run(args) => run(args, &client, &screen).await,
        SchedulesVerb::Backfill(args) => backfill(args, &client, &screen).await,
        SchedulesVerb::Next(args) => next(args, &client, &screen).await,
        SchedulesVerb::Apply(args) => apply::apply(&args, globals, &client, &screen).await,
    }
}

async fn get(client: &Client, id: &str) -> Result<ScheduleDocument, Failure> {
    client.get(&["v1", "schedules", id], &Query::new()).await
}

async fn all(client: &Client) -> Result<Schedules, Failure> {
    client.get(&["v1", "schedules"], &Query::new()).await
}

async fn list(client: &Client, screen: &Output) -> Outcome {
    let all = all(client).await?;
    if screen.is_json() {
        screen.json(&all)?;
        return Ok(Code::Ok);
    }
    screen.list(rows(all.schedules), "no schedules; `kafleet schedules create ID TYPE PARAMS --every 10m` makes one")?;
    Ok(Code::Ok)
}

fn shown(screen: &Output, schedule: ScheduleDocument) -> Outcome {
    if screen.is_json() {
        screen.json(&schedule)?
    } else {
        screen.line(&view::card(&schedule, screen.paint))?
    }
    Ok(Code::Ok)
}

async fn create(args: CreateArgs, client: &Client) -> Result<ScheduleDocument, Failure> {
    let CreateArgs { id, task_type, params, paused, spec, task } = args;
    let mut wanted = Spec::default();
    (wanted.task.task_type, wanted.task.params) = (task_type, serde_json::json!({}));
    spec::set_params(&mut wanted, params.as_deref())?;
    spec.give(&mut wanted)?;
    give_task(task, &mut wanted.task)?;
    client.post(&["v1", "schedules"], Some(&NewSchedule { id, spec: wanted, paused })).await
}

async fn change(args: ChangeArgs, client: &Client) -> Result<ScheduleDocument, Failure> {
    let ChangeArgs { id, task_type, params, spec, task } = args;
    let known = get(client, &id).await?;
    let mut wanted = known.spec;
    wanted.task.task_type = task_type.unwrap_or(wanted.task.task_type);
    spec::set_params(&mut wanted, params.as_deref())?;
    spec.give(&mut wanted)?;
    give_task(task, &mut wanted.task)?;
    put(client, &id, &wanted, known.applied).await
}

async fn put(client: &Client, id: &str, spec: &Spec, applied: bool) -> Result<ScheduleDocument, Failure> {
    let query = vec![("applied", applied.to_string())];
    client.call_with(Method::PUT, &["v1", "schedules", id], &query, Some(spec)).await
}

async fn remove(client: &Client, id: &str) -> Result<ScheduleDocument, Failure> {
    client.call(Method::DELETE, &["v1", "schedules", id], None::<&()>).await
}

async fn delete(id: &str, client: &Client, screen: &Output) -> Outcome {
    let gone = remove(client, id).await?;
    if screen.is_json() {
        screen.json(&gone)?
    } else {
        screen.line(&format!("{} is deleted", gone.id))?
    }
    Ok(Code::Ok)
}

async fn run(args: RunArgs, client: &Client, screen: &Output) -> Outcome {
    let begun = Instant::now();
    let asked: ScheduleAsked = client.call(Method::POST, &["v1", "schedules", &args.id, "run"], None::<&()>).await?;
    let Some(task) = asked.tasks.first().cloned() else { return Ok(Code::Ok) };
    if let Some(wait) = args.wait {
        let status = until_there(client, &task, wait, begun).await?;
        return super::wait::finish(client, screen, status, wait, begun).await;
    }
    if screen.is_json() {
        screen.json(&asked)?
    } else {
        screen.line(&task)?
    }
    told(&asked);
    if screen.terminal {
        tell(format_args!("follow it with `kafleet watch {task}`"));
    }
    Ok(Code::Ok)
}

/// The task once the tracker has made it.
async fn until_there(client: &Client, task: &str, wait: Millis, begun: Instant) -> Result<Status, Failure> {
    const PAUSE: std::time::Duration = std::time::Duration::from_millis(200);
    let end = super::wait::deadline(begun, wait);
    loop {
        match client.status(task).await {
            Err(failure) if matches!(failure.code, Code::NotFound | Code::Unavailable) && Instant::now() < end => {
                tokio::time::sleep(PAUSE).await;
            }
            Err(failure) if failure.code == Code::NotFound => {
                return Err(Failure::new(Code::TimedOut, format_args!("the task `{task}` was not made within {wait}"))
                    .hint("see that a tracker is running"));
            }
            status => return status,
        }
    }
}

fn told(asked: &ScheduleAsked) {
    if !asked.done {
        tell("the tracker is told, and has not done it yet");
    }
}

async fn backfill(args: BackfillArgs, client: &Client, screen: &Output) -> Outcome {
    let mut query: Query = vec![("from", moment(&args.from)?)];
    if let Some(to) = &args.to {
        query.push(("to", moment(to)?));
    }
    let path = ["v1", "schedules", &args.id, "backfill"];
    let asked: ScheduleAsked = client.call_with(Method::POST, &path, &query, None::<&()>).await?;
    if screen.is_json() {
        screen.json(&asked)?;
    } else {
        for task in &asked.tasks {
            screen.line(task)?;
        }
        if asked.tasks.is_empty() {
            tell(format_args!("no times in this span; `kafleet schedules next {}` shows some", args.id));
        }
    }
    told(&asked);
    Ok(Code::Ok)
}

async fn next(args: NextArgs, client: &Client, screen: &Output) -> Outcome {
    let mut query: Query = vec![("count", args.count.to_string())];
    if let Some(after) = &args.after {
        query.push(("after", moment(after)?));
    }
    let times: ScheduleTimes = client.get(&["v1", "schedules", &args.id, "times"], &query).await?;
    if screen.is_json() {
        screen.json(&times)?;
    } else {
        for time in &times.times {
            screen.line(time)?;
        }
        if times.times.is_empty() {
            tell(format_args!("no more times; `kafleet schedules show {}` says when it ends", args.id));
        }
    }
    Ok(Code::Ok)
}

fn moment(text: &str) -> Result<String, Failure> {
    parse_time(text).map(time_text).map_err(Failure::usage)
}

fn rows(schedules: Vec<ScheduleDocument>) -> Rows {
    let mut rows = Rows::new(["ID", "TYPE", "WHEN", "NEXT", "LAST", "LAST STATE", "FIRED", "SKIPPED", "MISSED", "NOTE"]);
    for schedule in schedules {
        let when = schedule.spec.when();
        let next = schedule.next.first().cloned().filter(|_| schedule.paused.is_none());
        let trouble = schedule.error.is_some().then_some("cannot fire");
        let note = schedule.paused.as_ref().map(|_| "paused").or(trouble).map(str::to_owned);
        rows.add([
            Field::Text(schedule.id),
            Field::Text(schedule.spec.task.task_type),
            Field::Text(when),
            next.into(),
            schedule.last.as_ref().map(|last| last.time.clone()).into(),
            schedule.last.and_then(|last| last.state).map(|state| state.to_string()).into(),
            Field::Number(schedule.fired),
            Field::Number(schedule.skipped),
            Field::Number(schedule.missed),
            note.into(),
        ]);
    }
    rows
}
