//! `dead-letters`: lists, shows, redrives and drops dead letters.

use clap::{Args, Subcommand};
use kafleet_documents::{
    BulkAction, BulkPreview, BulkProgress, BulkRefusal, BulkRequest, BulkSelection, DeadLetter, DeadLetterDetail,
    DeadLetterFilter, DeadLetterOutcome, DeadLetterPage, DeadLetterRejection, DeadLetterResults, DeadLetterSelection,
    DropDeadLetter, MAX_SELECTED, RedriveDeadLetter, Status,
};
use kafleet_model::json::RawJson;
use kafleet_model::record::state::State;
use kafleet_model::units::duration::Millis;
use kafleet_runtime::now_ms;
use serde::Serialize;
use tokio::time::Instant;

use super::bulk::show_preview;
use super::client::{Client, Query};
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::list::resolve_time;
use super::output::{Field, Rows, eprint_line, one_line};
use super::wait::deadline;

/// Dead letters per request.
const PAGE: usize = 100;
/// Maximum wait for the end of a redrive of many dead letters.
const REDRIVE_DEADLINE: Millis = Millis::secs(1_800);

#[derive(Debug, Subcommand)]
pub(super) enum DeadLettersVerb {
    /// List dead letters, newest first
    List(LetterListArgs),
    /// Show a dead letter with its original record
    Show(ShowArgs),
    /// Run tasks again, each in a new run
    Redrive(RedriveArgs),
    /// Drop dead letters that are no longer needed
    Drop(ResolveArgs),
}

#[derive(Debug, Args)]
pub(super) struct LetterListArgs {
    #[command(flatten)]
    pub selection: Selection,
    /// Maximum number of dead letters
    #[arg(short = 'n', long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
    /// Continue from the cursor of an earlier list
    #[arg(long)]
    pub cursor: Option<String>,
    /// Only dead letters that belong to no failed task: records that are not tasks, and tasks whose record has been removed
    #[arg(long)]
    pub without_failure: bool,
}

/// Filters for dead letters.
#[derive(Debug, Args)]
pub(super) struct Selection {
    /// Only dead letters of this type
    #[arg(long = "type", value_name = "TYPE")]
    pub task_type: Option<String>,
    /// Only dead letters with this code, such as schema or exhausted
    #[arg(long)]
    pub code: Option<String>,
    /// Only dead letters of tasks that ended with an error of this kind, such as KeyError
    #[arg(long)]
    pub kind: Option<String>,
    /// Only dead letters of tasks that ended with this error: its name in `failures -o json`
    #[arg(long, value_name = "ERROR")]
    pub error: Option<String>,
    /// Only dead letters written at or after this time (RFC 3339, or an age such as 2h)
    #[arg(long, value_name = "TIME")]
    pub from: Option<String>,
    /// Only dead letters written before this time (RFC 3339, or an age such as 2h)
    #[arg(long, value_name = "TIME")]
    pub to: Option<String>,
}

impl Selection {
    fn filters(self) -> Result<Query, Failure> {
        let values = [
            ("type", self.task_type),
            ("code", self.code),
            ("kind", self.kind),
            ("error", self.error),
            ("from", Self::time(self.from.as_deref())?),
            ("to", Self::time(self.to.as_deref())?),
        ];
        Ok(values.into_iter().filter_map(|(name, value)| Some((name, value?))).collect())
    }

    fn document(self) -> Result<DeadLetterFilter, Failure> {
        let Some(task_type) = self.task_type else {
            return Err(
                Failure::usage("neither ids nor --type are given").hint("`kafleet dead-letters list` shows the ids")
            );
        };
        let (from, to) = (Self::time(self.from.as_deref())?, Self::time(self.to.as_deref())?);
        Ok(DeadLetterFilter { task_type, code: self.code, kind: self.kind, error: self.error, from, to })
    }

    fn time(text: Option<&str>) -> Result<Option<String>, Failure> {
        text.map(|text| resolve_time(text, now_ms())).transpose()
    }
}

#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    /// The dead letter's id, from `dead-letters list`: <type>:<partition>:<offset>
    pub letter: String,
}

#[derive(Debug, Args)]
pub(super) struct ResolveArgs {
    /// Ids from `dead-letters list` [default: all that match --type and the other filters]
    #[arg(conflicts_with_all = ["task_type", "code", "kind", "error", "from", "to"])]
    pub letters: Vec<String>,
    #[command(flatten)]
    pub selection: Selection,
    /// Maximum number of dead letters selected by the filters
    #[arg(short = 'n', long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub limit: u32,
    /// Reason, recorded with each task and in the audit log
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct RedriveArgs {
    #[command(flatten)]
    pub which: ResolveArgs,
    /// Params as JSON instead of those of the record, for a single dead letter
    #[arg(long, value_name = "JSON", conflicts_with = "patch")]
    pub params: Option<String>,
    /// JSON merge patch (RFC 7386) of the params of each task, checked against the schema of its type
    #[arg(long, value_name = "JSON")]
    pub patch: Option<String>,
    /// Only count the dead letters that would be redriven
    #[arg(long, conflicts_with_all = ["params", "reason"])]
    pub preview: bool,
}

pub(super) async fn dead_letters(verb: DeadLettersVerb, globals: &Globals) -> Outcome {
    match verb {
        DeadLettersVerb::List(args) => list(args, globals).await,
        DeadLettersVerb::Show(args) => show(args, globals).await,
        DeadLettersVerb::Redrive(args) => redrive(args, globals).await,
        DeadLettersVerb::Drop(args) => drop_letters(args, globals).await,
    }
}

async fn list(args: LetterListArgs, globals: &Globals) -> Outcome {
    let client = globals.client()?;
    let output = globals.output();
    let mut filters = args.selection.filters()?;
    filters.extend(args.without_failure.then(|| ("without_failure", "true".to_owned())));
    let page = pages(&client, &filters, args.limit as usize, args.cursor).await?;
    if output.is_json() {
        output.json(&page)?;
        return Ok(Code::Ok);
    }
    let empty = if filters.is_empty() {
        "no dead letters; `kafleet list --level any --state failed` lists failed tasks"
    } else {
        "no matching dead letter; without filters all are listed"
    };
    output.list(rows(&page.letters), empty)?;
    if let Some(cursor) = &page.next {
        eprint_line(format_args!("there are more: --cursor {cursor}"));
    }
    Ok(Code::Ok)
}

/// Reads pages until `limit` dead letters are found, or the list ends.
async fn pages(
    client: &Client,
    filters: &Query,
    limit: usize,
    cursor: Option<String>,
) -> Result<DeadLetterPage, Failure> {
    let mut merged = DeadLetterPage { letters: Vec::new(), next: cursor, scanned: 0, incomplete: Vec::new() };
    loop {
        let mut query = filters.clone();
        query.push(("limit", PAGE.min(limit - merged.letters.len()).to_string()));
        query.extend(merged.next.take().map(|cursor| ("cursor", cursor)));
        let page: DeadLetterPage = client.get(&["v1", "dead-letters"], &query).await?;
        merged.letters.extend(page.letters);
        merged.next = page.next;
        merged.scanned += page.scanned;
        if merged.next.is_none() || merged.letters.len() >= limit {
            return Ok(merged);
        }
    }
}

fn rows(letters: &[DeadLetter]) -> Rows {
    let mut rows = Rows::new(["LETTER", "TASK", "CODE", "AT", "ERROR"]);
    for letter in letters {
        rows.add([
            Field::Text(letter.id.clone()),
            letter.task.clone().into(),
            Field::Text(letter.code.clone()),
            Field::Text(letter.at.clone()),
            Field::Text(one_line(&letter.error_text())),
        ]);
    }
    rows
}

async fn show(args: ShowArgs, globals: &Globals) -> Outcome {
    let output = globals.output();
    let record: DeadLetterDetail = globals.client()?.get(&["v1", "dead-letters", &args.letter], &Query::new()).await?;
    output.json_or_line(&record, detail_text)?;
    Ok(Code::Ok)
}

fn detail_text(record: &DeadLetterDetail) -> String {
    let letter = &record.letter;
    let done = match record.outcome {
        Some(DeadLetterOutcome::Dropped) => " (dropped)",
        Some(DeadLetterOutcome::Redriven) => " (redriven)",
        Some(DeadLetterOutcome::Superseded) => " (superseded: its task has continued otherwise)",
        None => "",
    };
    let mut lines =
        vec![format!("{}{done}", letter.id), format!("  {}: {}", letter.code, one_line(&letter.error_text()))];
    let fields = detail_fields(record).into_iter();
    lines.extend(fields.filter_map(|(name, value)| Some(format!("  {name:<14} {}", one_line(&value?)))));
    for (name, value) in &record.headers {
        lines.push(format!("  {:<14} {}", one_line(name), one_line(value.as_deref().unwrap_or("-"))));
    }
    lines.join("\n")
}

fn detail_fields(record: &DeadLetterDetail) -> [(&'static str, Option<String>); 9] {
    let letter = &record.letter;
    [
        ("task", letter.task.clone()),
        ("run", letter.run.map(|run| run.to_string())),
        ("at", Some(letter.at.clone())),
        ("in the params", letter.pointer.clone()),
        ("worker", letter.worker.clone()),
        ("from", letter.source.clone()),
        ("key", record.key.clone()),
        ("params", record.params.as_ref().map(ToString::to_string)),
        ("value, base64", record.value_base64.clone()),
    ]
}

fn parsed(option: &str, text: &str) -> Result<RawJson, Failure> {
    RawJson::parse(text.as_bytes()).map_err(|error| Failure::usage(format_args!("`{option}` is not JSON: {error}")))
}

/// Redrives named dead letters one by one. Selected ones, and those whose params a patch changes, are a bulk action.
async fn redrive(args: RedriveArgs, globals: &Globals) -> Outcome {
    let RedriveArgs { which, params, patch, preview } = args;
    if params.is_some() && which.letters.len() != 1 {
        return Err(Failure::usage("`--params` needs the id of one dead letter")
            .hint("`kafleet dead-letters list` shows the ids; `--patch` changes the params of many"));
    }
    let params = params.map(|params| parsed("--params", &params)).transpose()?;
    let patch = patch.map(|patch| parsed("--patch", &patch)).transpose()?;
    if which.letters.is_empty() || patch.is_some() || preview {
        return redrive_many(which, patch, preview, globals).await;
    }
    let body = RedriveDeadLetter { params, reason: which.reason };
    let results = resolve_named(&which.letters, "redrive", &body, globals).await?;
    print_results(&results, "redriven", globals)
}

/// Redrives dead letters by a bulk action, and waits for its end.
async fn redrive_many(which: ResolveArgs, patch: Option<RawJson>, preview: bool, globals: &Globals) -> Outcome {
    let ResolveArgs { letters: ids, selection, limit, reason } = which;
    let letters = if ids.is_empty() { Some(selection.document()?) } else { None };
    let (client, output, started) = (globals.client()?, globals.output(), Instant::now());
    let action = BulkAction::Redrive;
    if preview {
        let selection = BulkSelection { action, q: None, ids, letters, patch };
        let preview: BulkPreview = client.post(&["v1", "bulk", "preview"], Some(&selection)).await?;
        return show_preview(&preview, "dead letters", &output);
    }
    let request = BulkRequest { action, q: None, ids, letters, patch, limit: Some(limit.into()), reason };
    let task: Status = client.post(&["v1", "bulk"], Some(&request)).await?;
    let id = task.id.clone();
    let task = client.wait_until_ended(Box::new(task), deadline(started, REDRIVE_DEADLINE)).await?;
    if !task.state.is_terminal() {
        let reason = format!("the bulk action `{id}` still redrives dead letters after {REDRIVE_DEADLINE}");
        return Err(Failure::new(Code::TimedOut, reason).hint(format_args!("follow it with `kafleet watch {id}`")));
    }
    output.json_or_line(&*task, |task| {
        let BulkProgress { done, refused, .. } = BulkProgress::of(task);
        format!("{done} redriven, {refused} refused")
    })?;
    Ok(print_end(&task, output.is_json()))
}

/// Reports the refused dead letters of a redrive, and that more are selected.
fn print_end(task: &Status, is_json: bool) -> Code {
    let progress = BulkProgress::of(task);
    let is_over = task.error.as_ref().is_some_and(|error| error.kind == "limit");
    if !is_json {
        for BulkRefusal { id, cause } in &progress.refusals {
            eprint_line(format_args!("{id}: {cause}"));
        }
        if is_over {
            eprint_line(MORE);
        }
    }
    let has_failed = task.state != State::Succeeded && !is_over;
    if progress.refused > 0 || has_failed { Code::Failed } else { Code::Ok }
}

const MORE: &str = "more dead letters match: run this again, or raise --limit";

async fn drop_letters(args: ResolveArgs, globals: &Globals) -> Outcome {
    let results = if args.letters.is_empty() {
        drop_selected(args, globals).await?
    } else {
        resolve_named(&args.letters, "drop", &DropDeadLetter { reason: args.reason }, globals).await?
    };
    print_results(&results, "dropped", globals)
}

/// Prints the outcome. `done` is the word for it.
fn print_results(results: &DeadLetterResults, done: &str, globals: &Globals) -> Outcome {
    let output = globals.output();
    output
        .json_or_line(results, |results| format!("{} {done}, {} refused", results.done.len(), results.refused.len()))?;
    if !output.is_json() {
        for refusal in &results.refused {
            eprint_line(format_args!("{}: {}", refusal.letter, refusal.reason));
        }
        if results.more {
            eprint_line(MORE);
        }
    }
    Ok(if results.refused.is_empty() { Code::Ok } else { Code::Failed })
}

async fn resolve_named(
    letters: &[String],
    verb: &str,
    body: &impl Serialize,
    globals: &Globals,
) -> Result<DeadLetterResults, Failure> {
    let client = globals.client()?;
    let mut all = DeadLetterResults { done: Vec::new(), refused: Vec::new(), more: false };
    for letter in letters {
        match client.post::<DeadLetterResults>(&["v1", "dead-letters", letter, verb], Some(body)).await {
            Ok(outcome) => all.done.extend(outcome.done),
            Err(error) if letters.len() == 1 || matches!(error.code, Code::Denied | Code::Unavailable) => {
                return Err(error);
            }
            // The others can be resolved all the same.
            Err(error) => all.refused.push(DeadLetterRejection { letter: letter.clone(), reason: error.message }),
        }
    }
    Ok(all)
}

/// Drops the selected dead letters over as many requests as needed; a refused one is not tried again.
async fn drop_selected(args: ResolveArgs, globals: &Globals) -> Result<DeadLetterResults, Failure> {
    let DeadLetterFilter { task_type, code, kind, error, from, to } = args.selection.document()?;
    let mut selection =
        DeadLetterSelection { task_type, code, kind, error, from, to, limit: None, reason: args.reason };
    let client = globals.client()?;
    let limit = args.limit as usize;
    let mut all = DeadLetterResults { done: Vec::new(), refused: Vec::new(), more: false };
    loop {
        // Refused ones come first again, so that the request asks for as many more.
        selection.limit = Some((limit - all.done.len()).min(PAGE).saturating_add(all.refused.len()).min(MAX_SELECTED));
        let outcome: DeadLetterResults = client.post(&["v1", "dead-letters", "drop"], Some(&selection)).await?;
        let progress = !outcome.done.is_empty();
        all.done.extend(outcome.done);
        all.refused = outcome.refused;
        all.more = outcome.more;
        if !all.more || !progress || all.done.len() >= limit {
            return Ok(all);
        }
    }
}
