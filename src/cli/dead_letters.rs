//! `dead-letters`: lists, shows, redrives and drops dead letters.

use clap::{Args, Subcommand};
use kafleet_documents::{
    DeadLetter, DeadLetterDetail, DeadLetterOutcome, DeadLetterPage, DeadLetterRejection, DeadLetterResults,
    DeadLetterSelection, MAX_SELECTED, RedriveDeadLetter,
};
use kafleet_model::json::RawJson;
use kafleet_runtime::now_ms;

use super::client::{Client, Query};
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::list::resolve_time;
use super::output::{Field, Rows, eprint_line, one_line};

/// Dead letters per request.
const PAGE: usize = 100;

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
            ("from", Self::time(self.from.as_deref())?),
            ("to", Self::time(self.to.as_deref())?),
        ];
        Ok(values.into_iter().filter_map(|(name, value)| Some((name, value?))).collect())
    }

    fn document(self) -> Result<DeadLetterSelection, Failure> {
        let Some(task_type) = self.task_type else {
            return Err(
                Failure::usage("neither ids nor --type are given").hint("`kafleet dead-letters list` shows the ids")
            );
        };
        let from = Self::time(self.from.as_deref())?;
        let to = Self::time(self.to.as_deref())?;
        Ok(DeadLetterSelection { task_type, code: self.code, from, to, limit: None })
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
    #[arg(conflicts_with_all = ["task_type", "code", "from", "to"])]
    pub letters: Vec<String>,
    #[command(flatten)]
    pub selection: Selection,
    /// Maximum number of dead letters selected by the filters
    #[arg(short = 'n', long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub limit: u32,
}

#[derive(Debug, Args)]
pub(super) struct RedriveArgs {
    #[command(flatten)]
    pub which: ResolveArgs,
    /// Params as JSON instead of those of the record, for a single dead letter
    #[arg(long, value_name = "JSON")]
    pub params: Option<String>,
}

pub(super) async fn dead_letters(verb: DeadLettersVerb, globals: &Globals) -> Outcome {
    match verb {
        DeadLettersVerb::List(args) => list(args, globals).await,
        DeadLettersVerb::Show(args) => show(args, globals).await,
        DeadLettersVerb::Redrive(RedriveArgs { which, params }) => {
            let params = params.map(|params| changed_params(&which, &params)).transpose()?;
            resolve(which, ("redrive", "redriven"), params, globals).await
        }
        DeadLettersVerb::Drop(args) => resolve(args, ("drop", "dropped"), None, globals).await,
    }
}

async fn list(args: LetterListArgs, globals: &Globals) -> Outcome {
    let client = globals.client()?;
    let output = globals.output();
    let filters = args.selection.filters()?;
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

fn changed_params(which: &ResolveArgs, text: &str) -> Result<RedriveDeadLetter, Failure> {
    if which.letters.len() != 1 {
        return Err(Failure::usage("`--params` needs the id of one dead letter")
            .hint("`kafleet dead-letters list` shows the ids"));
    }
    let params = RawJson::parse(text.as_bytes())
        .map_err(|error| Failure::usage(format_args!("`--params` is not JSON: {error}")))?;
    Ok(RedriveDeadLetter { params: Some(params) })
}

/// Resolves dead letters. `verb` is that of the request and the word for its outcome.
async fn resolve(
    args: ResolveArgs,
    (verb, done): (&str, &str),
    changes: Option<RedriveDeadLetter>,
    globals: &Globals,
) -> Outcome {
    let output = globals.output();
    let outcome = if args.letters.is_empty() {
        resolve_selected(args, verb, globals).await?
    } else {
        resolve_named(&args.letters, verb, changes.as_ref(), globals).await?
    };
    output.json_or_line(&outcome, |outcome| {
        format!("{} {done}, {} refused", outcome.done.len(), outcome.refused.len())
    })?;
    if !output.is_json() {
        eprint_rest(&outcome);
    }
    Ok(if outcome.refused.is_empty() { Code::Ok } else { Code::Failed })
}

/// Reports refused dead letters, and that more are selected.
fn eprint_rest(outcome: &DeadLetterResults) {
    for refusal in &outcome.refused {
        eprint_line(format_args!("{}: {}", refusal.letter, refusal.reason));
    }
    if outcome.more {
        eprint_line("more dead letters match: run this again, or raise --limit");
    }
}

async fn resolve_named(
    letters: &[String],
    verb: &str,
    changes: Option<&RedriveDeadLetter>,
    globals: &Globals,
) -> Result<DeadLetterResults, Failure> {
    let client = globals.client()?;
    let mut all = DeadLetterResults { done: Vec::new(), refused: Vec::new(), more: false };
    for letter in letters {
        match client.post::<DeadLetterResults>(&["v1", "dead-letters", letter, verb], changes).await {
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

/// Resolves the selected dead letters over as many requests as needed; a refused one is not retried.
async fn resolve_selected(args: ResolveArgs, verb: &str, globals: &Globals) -> Result<DeadLetterResults, Failure> {
    let mut selection = args.selection.document()?;
    let client = globals.client()?;
    let limit = args.limit as usize;
    let mut all = DeadLetterResults { done: Vec::new(), refused: Vec::new(), more: false };
    loop {
        // Refused ones come first again, so that the request asks for as many more.
        selection.limit = Some((limit - all.done.len()).min(PAGE).saturating_add(all.refused.len()).min(MAX_SELECTED));
        let outcome: DeadLetterResults = client.post(&["v1", "dead-letters", verb], Some(&selection)).await?;
        let progress = !outcome.done.is_empty();
        all.done.extend(outcome.done);
        all.refused = outcome.refused;
        all.more = outcome.more;
        if !all.more || !progress || all.done.len() >= limit {
            return Ok(all);
        }
    }
}
