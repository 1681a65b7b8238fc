//! `schedules`: manages recurring tasks.

use clap::{Args, Subcommand};
use kafleet_documents::{
    BackfillPreview, NewSchedule, PauseType, ResumeType, ScheduleDocument, ScheduleRequestOutcome, ScheduleTimes,
    Schedules, Status,
};
use kafleet_handlers::Registry;
use kafleet_model::schedule::Spec;
use kafleet_model::units::duration::Millis;
use kafleet_runtime::now_ms;
use tokio::time::Instant;

use super::client::{Client, Method, Query};
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::list::resolve_time;
use super::output::{Field, Output, Rows, eprint_line};
use super::submit::{SCHEDULE, TaskArgs};

mod apply;
pub(super) mod declared;
mod spec;
mod view;

use apply::ApplyArgs;
use spec::{SpecArgs, apply_task_args};

#[derive(Debug, Subcommand)]
pub(super) enum SchedulesVerb {
    /// List all schedules
    List,
    /// Show a schedule with its next times and last task
    Show(OneArgs),
    /// Create a schedule
    Create(Box<CreateArgs>),
    /// Change a schedule; omitted options keep their values
    Change(Box<ChangeArgs>),
    /// Delete a schedule; its tasks stay
    Delete(OneArgs),
    /// Pause a schedule: it fires no tasks until resumed
    Pause(PauseArgs),
    /// Resume a schedule; the times in between are not caught up
    Resume(OneArgs),
    /// Fire a schedule once, now
    Trigger(TriggerArgs),
    /// Create tasks for past times that have none
    Backfill(BackfillArgs),
    /// List the next times of a schedule
    Next(NextArgs),
    /// Make the fleet's schedules match `[schedules]` in the configuration, and those that apps declare
    Apply(ApplyArgs),
}

#[derive(Debug, Args)]
pub(super) struct OneArgs {
    /// The schedule's id
    pub id: String,
}

#[derive(Debug, Args)]
pub(super) struct CreateArgs {
    /// The schedule's id, which prefixes the ids of its tasks
    pub id: String,
    /// Type of its tasks
    #[arg(value_name = "TYPE")]
    pub task_type: String,
    /// Params of its tasks, as JSON [default: {}]
    #[arg(value_name = "PARAMS", allow_hyphen_values = true)]
    pub params: Option<String>,
    /// Create it paused
    #[arg(long)]
    pub paused: bool,
    #[command(flatten)]
    pub spec: SpecArgs,
    #[command(flatten)]
    pub task: TaskArgs<SCHEDULE>,
}

#[derive(Debug, Args)]
pub(super) struct ChangeArgs {
    /// The schedule's id
    pub id: String,
    /// Type of its tasks
    #[arg(long = "type", value_name = "TYPE")]
    pub task_type: Option<String>,
    /// Params of its tasks, as JSON
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    pub params: Option<String>,
    #[command(flatten)]
    pub spec: SpecArgs,
    #[command(flatten)]
    pub task: TaskArgs<SCHEDULE>,
}

#[derive(Debug, Args)]
pub(super) struct PauseArgs {
    /// The schedule's id
    pub id: String,
    /// Reason, shown with the schedule
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct TriggerArgs {
    /// The schedule's id
    pub id: String,
    /// Wait for the fired task to end, up to this time [default: 5m]; the exit code is its outcome
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "5m")]
    pub wait: Option<Millis>,
}

#[derive(Debug, Args)]
pub(super) struct BackfillArgs {
    /// The schedule's id
    pub id: String,
    /// First time of the range (RFC 3339)
    #[arg(long, value_name = "TIME")]
    pub from: String,
    /// End of the range, inclusive (RFC 3339) [default: now]
    #[arg(long, value_name = "TIME")]
    pub to: Option<String>,
    /// Only count the tasks that it would create
    #[arg(long)]
    pub preview: bool,
}

#[derive(Debug, Args)]
pub(super) struct NextArgs {
    /// The schedule's id
    pub id: String,
    /// Number of times
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub count: u16,
    /// Only times after this one (RFC 3339) [default: now]
    #[arg(long, value_name = "TIME")]
    pub after: Option<String>,
}

pub(super) async fn schedules(verb: SchedulesVerb, globals: &Globals, registry: Registry) -> Outcome {
    let client = globals.client()?;
    let output = globals.output();
    match verb {
        SchedulesVerb::List => list(&client, &output).await,
        SchedulesVerb::Show(OneArgs { id }) => print(&output, get(&client, &id).await?),
        SchedulesVerb::Create(args) => print(&output, create(*args, &client).await?),
        SchedulesVerb::Change(args) => print(&output, change(*args, &client).await?),
        SchedulesVerb::Delete(OneArgs { id }) => delete(&id, &client, &output).await,
        SchedulesVerb::Pause(args) => print(&output, pause(args, &client).await?),
        SchedulesVerb::Resume(OneArgs { id }) => print(&output, resume(&id, &client).await?),
        SchedulesVerb::Trigger(args) => trigger(args, &client, &output).await,
        SchedulesVerb::Backfill(args) => backfill(args, &client, &output).await,
        SchedulesVerb::Next(args) => next(args, &client, &output).await,
        SchedulesVerb::Apply(args) => apply::apply(&args, globals, registry, &client, &output).await,
    }
}

async fn get(client: &Client, id: &str) -> Result<ScheduleDocument, Failure> {
    client.get(&["v1", "schedules", id], &Query::new()).await
}

async fn all(client: &Client) -> Result<Schedules, Failure> {
    client.get(&["v1", "schedules"], &Query::new()).await
}

async fn list(client: &Client, output: &Output) -> Outcome {
    let all = all(client).await?;
    let empty = "no schedules; `kafleet schedules create ID TYPE PARAMS --every 10m` creates one";
    output.json_or_list(&all, |all| rows(&all.schedules), empty)?;
    Ok(Code::Ok)
}

fn print(output: &Output, schedule: ScheduleDocument) -> Outcome {
    output.json_or_line(&schedule, |schedule| view::render_schedule(schedule, output.paint))?;
    Ok(Code::Ok)
}

async fn create(args: CreateArgs, client: &Client) -> Result<ScheduleDocument, Failure> {
    let CreateArgs { id, task_type, params, paused, spec, task } = args;
    let mut new_spec = Spec::default();
    new_spec.task.task_type = task_type;
    new_spec.task.params = serde_json::json!({}).into();
    spec::set_params(&mut new_spec, params.as_deref())?;
    spec.apply_to(&mut new_spec)?;
    apply_task_args(task, &mut new_spec.task)?;
    client.post(&["v1", "schedules"], Some(&NewSchedule { id, spec: new_spec, paused })).await
}

async fn change(args: ChangeArgs, client: &Client) -> Result<ScheduleDocument, Failure> {
    let ChangeArgs { id, task_type, params, spec, task } = args;
    let existing = get(client, &id).await?;
    let mut new_spec = existing.spec;
    new_spec.task.task_type = task_type.unwrap_or(new_spec.task.task_type);
    spec::set_params(&mut new_spec, params.as_deref())?;
    spec.apply_to(&mut new_spec)?;
    apply_task_args(task, &mut new_spec.task)?;
    put(client, &id, &new_spec, existing.owner.as_deref()).await
}

async fn put(client: &Client, id: &str, spec: &Spec, owner: Option<&str>) -> Result<ScheduleDocument, Failure> {
    let query: Query = owner.map(|owner| ("owner", owner.to_owned())).into_iter().collect();
    client.call_with(Method::PUT, &["v1", "schedules", id], &query, Some(spec)).await
}

async fn remove(client: &Client, id: &str) -> Result<ScheduleDocument, Failure> {
    client.call(Method::DELETE, &["v1", "schedules", id], None::<&()>).await
}

async fn delete(id: &str, client: &Client, output: &Output) -> Outcome {
    let deleted = remove(client, id).await?;
    output.json_or_line(&deleted, |deleted| format!("{} is deleted", deleted.id))?;
    Ok(Code::Ok)
}

async fn pause(args: PauseArgs, client: &Client) -> Result<ScheduleDocument, Failure> {
    let PauseArgs { id, reason } = args;
    client.call(Method::POST, &["v1", "schedules", &id, "pause"], Some(&PauseType { reason })).await
}

async fn resume(id: &str, client: &Client) -> Result<ScheduleDocument, Failure> {
    client.call(Method::POST, &["v1", "schedules", id, "resume"], Some(&ResumeType {})).await
}

async fn trigger(args: TriggerArgs, client: &Client, output: &Output) -> Outcome {
    let started = Instant::now();
    let outcome: ScheduleRequestOutcome =
        client.call(Method::POST, &["v1", "schedules", &args.id, "trigger"], None::<&()>).await?;
    let Some(task) = outcome.tasks.first().cloned() else { return Ok(Code::Ok) };
    if let Some(wait) = args.wait {
        let status = wait_until_created(client, &task, wait, started).await?;
        return super::wait::finish(client, output, status, wait, started).await;
    }
    output.json_or_line(&outcome, |_| task.clone())?;
    print_pending(&outcome);
    output.hint_to_follow(&task);
    Ok(Code::Ok)
}

/// Waits until the tracker has created the task.
async fn wait_until_created(client: &Client, task: &str, wait: Millis, started: Instant) -> Result<Status, Failure> {
    const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(200);
    let end = super::wait::deadline(started, wait);
    loop {
        match client.status(task).await {
            Err(failure) if matches!(failure.code, Code::NotFound | Code::Unavailable) && Instant::now() < end => {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            Err(failure) if failure.code == Code::NotFound => {
                return Err(Failure::new(
                    Code::TimedOut,
                    format_args!("the task `{task}` was not created within {wait}"),
                )
                .hint("check that a tracker is running"));
            }
            status => return status,
        }
    }
}

fn print_pending(outcome: &ScheduleRequestOutcome) {
    if !outcome.done {
        eprint_line("the request was accepted; the tracker has not processed it yet");
    }
}

async fn backfill(args: BackfillArgs, client: &Client, output: &Output) -> Outcome {
    let mut query: Query = vec![("from", rfc3339(&args.from)?)];
    if let Some(to) = &args.to {
        query.push(("to", rfc3339(to)?));
    }
    let path = ["v1", "schedules", &args.id, "backfill"];
    if args.preview {
        let preview: BackfillPreview = client.get(&path, &query).await?;
        output.json_or_line(&preview, backfill_text)?;
        return Ok(Code::Ok);
    }
    let outcome: ScheduleRequestOutcome = client.call_with(Method::POST, &path, &query, None::<&()>).await?;
    if output.is_json() {
        output.json(&outcome)?;
    } else {
        let next = format!("`kafleet schedules next {}` lists the next ones", args.id);
        print_lines(output, &outcome.tasks, format_args!("the schedule has no times in this range; {next}"))?;
    }
    print_pending(&outcome);
    Ok(Code::Ok)
}

fn backfill_text(preview: &BackfillPreview) -> String {
    let BackfillPreview { times, existing, missing, tasks, .. } = preview;
    let head = format!("{missing} tasks would be created for {times} times; {existing} have one already");
    let more = (*missing > tasks.len() as u64).then(|| "  …".to_owned());
    let tasks = tasks.iter().map(|task| format!("  {task}"));
    std::iter::once(head).chain(tasks).chain(more).collect::<Vec<_>>().join("\n")
}

/// Prints lines; without any, the message `empty` goes to stderr.
fn print_lines(output: &Output, lines: &[String], empty: impl std::fmt::Display) -> Result<(), Failure> {
    if lines.is_empty() {
        eprint_line(empty);
    }
    lines.iter().try_for_each(|line| output.line(line))
}

async fn next(args: NextArgs, client: &Client, output: &Output) -> Outcome {
    let mut query: Query = vec![("count", args.count.to_string())];
    if let Some(after) = &args.after {
        query.push(("after", rfc3339(after)?));
    }
    let times: ScheduleTimes = client.get(&["v1", "schedules", &args.id, "times"], &query).await?;
    if output.is_json() {
        output.json(&times)?;
    } else {
        let empty = format!("no more times; `kafleet schedules show {}` shows when the schedule ends", args.id);
        print_lines(output, &times.times, empty)?;
    }
    Ok(Code::Ok)
}

fn rfc3339(text: &str) -> Result<String, Failure> {
    resolve_time(text, now_ms())
}

fn rows(schedules: &[ScheduleDocument]) -> Rows {
    let mut rows = Rows::new([
        "ID",
        "TYPE",
        "WHEN",
        "NEXT",
        "LAST",
        "LAST STATE",
        "FIRED",
        "SKIPPED",
        "MISSED",
        "NOTE",
        "IN WORDS",
    ]);
    schedules.iter().for_each(|schedule| rows.add(row(schedule)));
    rows
}

fn row(schedule: &ScheduleDocument) -> [Field; 11] {
    let next = schedule.next.first().cloned().filter(|_| schedule.paused.is_none());
    let last = schedule.last.as_ref();
    let trouble = schedule.error.is_some().then_some("cannot fire");
    let note = schedule.paused.as_ref().map(|_| "paused").or(trouble).map(str::to_owned);
    [
        Field::Text(schedule.id.clone()),
        Field::Text(schedule.spec.task.task_type.clone()),
        Field::Text(schedule.spec.when()),
        next.into(),
        last.map(|last| last.time.clone()).into(),
        last.and_then(|last| last.state).map(|state| state.to_string()).into(),
        Field::Number(schedule.fired),
        Field::Number(schedule.skipped),
        Field::Number(schedule.missed),
        note.into(),
        schedule.description.clone().into(),
    ]
}
