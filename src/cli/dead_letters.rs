//! `dead`: what is not tried again by itself: list, show, redrive, drop.

use clap::{Args, Subcommand};

use super::client::Query;
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::list::moment;
use super::output::{Field, Rows, one_line, tell};
use crate::api::documents::{DeadLetter, DeadOutcome, DeadPage, DeadRecord, DeadSelection, LetterOutcome};
use crate::runtime::now_ms;

/// Letters asked for, or taken care of, in one request.
const PAGE: usize = 100;

#[derive(Debug, Subcommand)]
pub enum DeadVerb {
    /// List dead letters, newest first
    List(ListArgs),
    /// Show a dead letter with its original record
    Show(ShowArgs),
    /// Try tasks again, each in a new run
    Redrive(SettleArgs),
    /// Drop dead letters that nobody needs any more
    Drop(SettleArgs),
}

#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    pub chosen: Chosen,
    /// How many
    #[arg(short = 'n', long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
    /// Go on where an earlier list ended
    #[arg(long)]
    pub cursor: Option<String>,
}

/// Which letters.
#[derive(Debug, Args)]
pub struct Chosen {
    /// Only this type's
    #[arg(long = "type", value_name = "TYPE")]
    pub task_type: Option<String>,
    /// Only those with this code, such as schema or exhausted
    #[arg(long)]
    pub code: Option<String>,
    /// Given up at or after: a time (RFC 3339), or so long ago, such as 2h
    #[arg(long, value_name = "TIME")]
    pub from: Option<String>,
    /// Given up before: a time (RFC 3339), or so long ago
    #[arg(long, value_name = "TIME")]
    pub to: Option<String>,
}

impl Chosen {
    fn time(text: Option<&str>) -> Result<Option<String>, Failure> {
        text.map(|text| moment(text, now_ms())).transpose()
    }
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// The letter, as `dead list` names it: <type>:<partition>:<offset>
    pub letter: String,
}

#[derive(Debug, Args)]
pub struct SettleArgs {
    /// Letters, as `dead list` names them; none: those that --type and the other options choose
    pub letters: Vec<String>,
    #[command(flatten)]
    pub chosen: Chosen,
    /// How many of those at most
    #[arg(short = 'n', long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub limit: u32,
}

pub async fn dead(verb: DeadVerb, globals: &Globals) -> Outcome {
    match verb {
        DeadVerb::List(args) => list(args, globals).await,
        DeadVerb::Show(args) => show(args, globals).await,
        DeadVerb::Redrive(args) => settle(args, "redrive", "redriven", globals).await,
        DeadVerb::Drop(args) => settle(args, "drop", "dropped", globals).await,
    }
}

async fn list(args: ListArgs, globals: &Globals) -> Outcome {
    let (client, screen, limit) = (globals.client()?, globals.screen(), args.limit as usize);
    let Chosen { task_type, code, from, to } = args.chosen;
    let given =
        [("type", task_type), ("code", code), ("from", Chosen::time(from.as_deref())?), ("to", Chosen::time(to.as_deref())?)];
    let filters: Query = given.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    let mut found = DeadPage { letters: Vec::new(), next: args.cursor, scanned: 0 };
    loop {
        let mut query = filters.clone();
        query.push(("limit", PAGE.min(limit - found.letters.len()).to_string()));
        query.extend(found.next.take().map(|cursor| ("cursor", cursor)));
        let page: DeadPage = client.get(&["v1", "dead"], &query).await?;
        found.letters.extend(page.letters);
        (found.next, found.scanned) = (page.next, found.scanned + page.scanned);
        if found.next.is_none() || found.letters.len() >= limit {
            break;
        }
    }
    if screen.is_json() {
        screen.json(&found)?;
        return Ok(Code::Ok);
    }
    let none = match filters.is_empty() {
        true => "no dead letters; what has failed is listed by `kafleet list --level any --state failed`",
        false => "no such dead letter; without options all are listed",
    };
    screen.list(rows(&found.letters), none)?;
    if let Some(cursor) = &found.next {
        tell(format_args!("there are more: --cursor {cursor}"));
    }
    Ok(Code::Ok)
}

fn rows(letters: &[DeadLetter]) -> Rows {
    let mut rows = Rows::new(["LETTER", "TASK", "CODE", "AT", "ERROR"]);
    for letter in letters {
        rows.add([
            Field::Text(letter.id.clone()),
            letter.task.clone().into(),
            Field::Text(letter.code.clone()),
            Field::Text(letter.at.clone()),
            Field::Text(one_line(&letter.error)),
        ]);
    }
    rows
}

async fn show(args: ShowArgs, globals: &Globals) -> Outcome {
    let screen = globals.screen();
    let record: DeadRecord = globals.client()?.get(&["v1", "dead", &args.letter], &Query::new()).await?;
    if screen.is_json() {
        screen.json(&record)?;
        return Ok(Code::Ok);
    }
    let letter = &record.letter;
    let done = match record.outcome {
        Some(LetterOutcome::Dropped) => " (dropped)",
        Some(LetterOutcome::Redriven) => " (redriven)",
        Some(LetterOutcome::Superseded) => " (superseded: its task has moved on)",
        None => "",
    };
    let mut lines = vec![format!("{}{done}", letter.id), format!("  {}: {}", letter.code, one_line(&letter.error))];
    let facts = [
        ("task", letter.task.clone()),
        ("run", letter.run.map(|run| run.to_string())),
        ("at", Some(letter.at.clone())),
        ("in the params", letter.pointer.clone()),
        ("worker", letter.worker.clone()),
        ("from", letter.source.clone()),
        ("key", record.key.clone()),
        ("params", record.params.as_ref().map(ToString::to_string)),
        ("value, base64", record.value_base64.clone()),
    ];
    lines.extend(facts.into_iter().filter_map(|(name, value)| Some(format!("  {name:<14} {}", one_line(&value?)))));
    for (name, value) in &record.headers {
        lines.push(format!("  {:<14} {}", one_line(name), one_line(value.as_deref().unwrap_or("-"))));
    }
    screen.line(&lines.join("\n"))?;
    Ok(Code::Ok)
}

async fn settle(args: SettleArgs, verb: &str, done: &str, globals: &Globals) -> Outcome {
    let screen = globals.screen();
    let outcome = if args.letters.is_empty() {
        settle_chosen(args, verb, globals).await?
    } else {
        settle_named(&args.letters, verb, globals).await?
    };
    if screen.is_json() {
        screen.json(&outcome)?;
    } else {
        screen.line(&format!("{} {done}, {} refused", outcome.done.len(), outcome.refused.len()))?;
        for refusal in &outcome.refused {
            tell(format_args!("{}: {}", refusal.letter, refusal.why));
        }
        if outcome.more {
            tell("there are more such letters: run it again, or raise --limit");
        }
    }
    Ok(if outcome.refused.is_empty() { Code::Ok } else { Code::Failed })
}

async fn settle_named(letters: &[String], verb: &str, globals: &Globals) -> Result<DeadOutcome, Failure> {
    let client = globals.client()?;
    let mut all = DeadOutcome { done: Vec::new(), refused: Vec::new(), more: false };
    for letter in letters {
        let outcome: DeadOutcome = client.post(&["v1", "dead", letter, verb], None::<&()>).await?;
        all.done.extend(outcome.done);
    }
    Ok(all)
}

/// Over as many requests as it takes; a letter that is refused is not tried again.
async fn settle_chosen(args: SettleArgs, verb: &str, globals: &Globals) -> Result<DeadOutcome, Failure> {
    let Chosen { task_type, code, from, to } = args.chosen;
    let Some(task_type) = task_type else {
        return Err(Failure::usage("name letters, or choose them with --type").hint("`kafleet dead list` shows them"));
    };
    let (from, to) = (Chosen::time(from.as_deref())?, Chosen::time(to.as_deref())?);
    let (client, limit) = (globals.client()?, args.limit as usize);
    let mut all = DeadOutcome { done: Vec::new(), refused: Vec::new(), more: false };
    loop {
        let some = Some((limit - all.done.len()).min(PAGE));
        let (task_type, code, from, to) = (task_type.clone(), code.clone(), from.clone(), to.clone());
        let selection = DeadSelection { task_type, code, from, to, limit: some };
        let outcome: DeadOutcome = client.post(&["v1", "dead", verb], Some(&selection)).await?;
        let progress = !outcome.done.is_empty();
        all.done.extend(outcome.done);
        (all.refused, all.more) = (outcome.refused, outcome.more);
        if !all.more || !progress || all.done.len() >= limit {
            return Ok(all);
        }
    }
}
