//! `list`: tasks, newest first, with filters.

use clap::Args;

use super::client::{Client, Query};
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::output::{Field, Rows, tell};
use super::task_view::time_text;
use crate::api::documents::{Status, TaskPage};
use crate::model::record::state::State;
use crate::model::task::parse_time;
use crate::model::units::duration::Millis;
use crate::publish::time_text as rfc3339;
use crate::runtime::now_ms;

/// Tasks asked for in one request.
const PAGE: usize = 100;
/// Tasks that a search looks at before it asks whether to go on.
const MAX_SCANNED: u64 = 200_000;

#[derive(Debug, Default, Args)]
pub struct ListArgs {
    /// Only tasks of this type
    #[arg(long = "type", value_name = "TYPE")]
    pub task_type: Option<String>,
    /// Only tasks in this state
    #[arg(long)]
    pub state: Option<State>,
    /// Only tasks without a parent (roots), or tasks of any level [default: roots]
    #[arg(long, value_parser = ["roots", "any"], conflicts_with = "root")]
    pub level: Option<String>,
    /// Only tasks with this tag
    #[arg(long)]
    pub tag: Option<String>,
    /// Only tasks of this creator
    #[arg(long)]
    pub creator: Option<String>,
    /// Only tasks whose name begins so
    #[arg(long)]
    pub name: Option<String>,
    /// Only tasks with a name that this regular expression matches
    #[arg(long, value_name = "PATTERN")]
    pub name_like: Option<String>,
    /// Only tasks with an error of this kind, or with one like this text: numbers, ids and quoted values may differ
    #[arg(long, value_name = "TEXT")]
    pub error: Option<String>,
    /// Only this task and what is below it
    #[arg(long, value_name = "ID")]
    pub root: Option<String>,
    /// First seen at or after: a time (RFC 3339), or so long ago, such as 2h
    #[arg(long, value_name = "TIME")]
    pub from: Option<String>,
    /// First seen before: a time (RFC 3339), or so long ago
    #[arg(long, value_name = "TIME")]
    pub to: Option<String>,
    /// How many tasks
    #[arg(short = 'n', long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
    /// Go on where an earlier list ended
    #[arg(long)]
    pub cursor: Option<String>,
}

/// Lists roots, or what the filters name, over as many pages as it takes.
pub async fn list(args: ListArgs, globals: &Globals) -> Outcome {
    let (client, screen) = (globals.client()?, globals.screen());
    let now_ms = now_ms();
    let (filters, limit) = (filters(&args, now_ms)?, args.limit as usize);
    let (levels, goes_on) = (Levels::of(&args), args.cursor.is_some());
    let found = pages(&client, &["v1", "tasks"], &filters, limit, args.cursor).await?;
    if screen.is_json() {
        screen.json(&found)?;
        return Ok(Code::Ok);
    }
    let filtered = goes_on || filters.iter().any(|(name, _)| !matches!(*name, "level" | "root"));
    let none = levels.none(filtered, found.next.is_some());
    screen.list(rows(&found.tasks, levels.header(), now_ms), none)?;
    if let Some(cursor) = &found.next {
        tell(format_args!("{}: --cursor {cursor}", why_more(&found)));
    }
    Ok(Code::Ok)
}

/// Reads pages until there are so many tasks, no more of them, or enough was looked at.
pub async fn pages(
    client: &Client,
    path: &[&str],
    filters: &Query,
    limit: usize,
    cursor: Option<String>,
) -> Result<TaskPage, Failure> {
    let mut found = TaskPage { next: cursor, ..TaskPage::default() };
    loop {
        let mut query = filters.clone();
        query.push(("limit", PAGE.min(limit - found.tasks.len()).to_string()));
        query.extend(found.next.take().map(|cursor| ("cursor", cursor)));
        add(&mut found, client.get(path, &query).await?);
        let enough = found.tasks.len() >= limit || found.scanned.is_some_and(|scanned| scanned >= MAX_SCANNED);
        if found.next.is_none() || enough {
            return Ok(found);
        }
    }
}

/// The levels of the trees that a list shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Levels {
    Roots,
    All,
}

impl Levels {
    fn of(args: &ListArgs) -> Self {
        match args.root.is_some() || args.level.as_deref() == Some("any") {
            true => Self::All,
            false => Self::Roots,
        }
    }

    fn header(self) -> &'static str {
        match self {
            Self::Roots => "ID (ROOTS)",
            Self::All => "ID (ALL LEVELS)",
        }
    }

    /// The message for a list without tasks; `more`: the search has not looked at everything.
    fn none(self, filtered: bool, more: bool) -> &'static str {
        match (self, filtered) {
            (_, true) if more => "no such task so far",
            (Self::Roots, true) => "no such root task; `--level any` lists tasks below roots too",
            (Self::All, true) => "no such task; fewer options list more",
            (_, false) => "no tasks yet; `kafleet submit TYPE PARAMS` makes one, `kafleet types` shows the types",
        }
    }
}

/// Adds the next page.
fn add(found: &mut TaskPage, page: TaskPage) {
    found.tasks.extend(page.tasks);
    found.scanned = found.scanned.into_iter().chain(page.scanned).reduce(|all, more| all + more);
    (found.next, found.stopped_early, found.hint) = (page.next, page.stopped_early, page.hint);
}

fn why_more(found: &TaskPage) -> String {
    match found.scanned.filter(|_| found.stopped_early) {
        Some(scanned) => format!("stopped after {scanned} tasks looked at; --from and --to narrow the search, this goes on"),
        None => "there are more".to_owned(),
    }
}

fn filters(args: &ListArgs, now_ms: i64) -> Result<Query, Failure> {
    let given = [
        ("type", args.task_type.clone()),
        ("state", args.state.map(|state| state.name().to_owned())),
        ("tag", args.tag.clone()),
        ("creator", args.creator.clone()),
        ("level", args.level.clone()),
        ("name", args.name.clone()),
        ("name_like", args.name_like.clone()),
        ("error", args.error.clone()),
        ("root", args.root.clone()),
        ("from", args.from.as_deref().map(|text| moment(text, now_ms)).transpose()?),
        ("to", args.to.as_deref().map(|text| moment(text, now_ms)).transpose()?),
    ];
    Ok(given.into_iter().filter_map(|(name, value)| Some((name, value?))).collect())
}

/// A time as RFC 3339: given as one, or as a duration before now.
pub fn moment(text: &str, now_ms: i64) -> Result<String, Failure> {
    if text.ends_with(['s', 'm', 'h', 'd'])
        && let Ok(ago) = Millis::parse(text)
    {
        return Ok(rfc3339(now_ms.saturating_sub(ago.as_i64())));
    }
    parse_time(text).map(rfc3339).map_err(|why| Failure::usage(why).hint("or write how long ago it was, such as 2h"))
}

/// A row for each task; the first column has this header.
pub fn rows(tasks: &[Status], id: &'static str, now_ms: i64) -> Rows {
    let mut rows = Rows::new([id, "TYPE", "STATE", "CHILDREN", "SEEN", "TIME", "NAME"]);
    for task in tasks {
        rows.add([
            Field::Text(task.id.clone()),
            task.task_type.clone().into(),
            Field::State(task.state),
            children(task),
            task.seen_at.clone().into(),
            time_text(task.state, task.started_at.as_deref(), task.ended_at.as_deref(), now_ms).into(),
            task.name.clone().into(),
        ]);
    }
    rows
}

fn children(task: &Status) -> Field {
    match task.children.total {
        0 => Field::Nothing,
        total => Field::Text(format!("{}/{total}", total - task.children.pending.min(total))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::Paint;
    use crate::cli::task_view::samples;

    const NOON: i64 = 1_769_860_800_000;

    #[test]
    fn filters_say_what_was_typed() {
        let args = ListArgs {
            state: Some(State::WaitingForChildren),
            from: Some("2h".into()),
            to: Some("2026-01-31T11:30:00+01:00".into()),
            ..ListArgs::default()
        };
        let query = filters(&args, NOON).unwrap();
        let expected =
            [("state", "waiting_for_children"), ("from", "2026-01-31T10:00:00.000Z"), ("to", "2026-01-31T10:30:00.000Z")];
        assert_eq!(query, expected.map(|(name, value)| (name, value.to_owned())));
        let wrong = filters(&ListArgs { from: Some("yesterday".into()), ..ListArgs::default() }, NOON).unwrap_err();
        assert_eq!(wrong.code, Code::Usage);
        assert!(wrong.message.contains("`yesterday` is not a time"), "{}", wrong.message);
    }

    #[test]
    fn a_search_that_stopped_says_so() {
        let mut found = TaskPage::default();
        let page = |early| TaskPage { scanned: Some(10), next: Some("x".into()), stopped_early: early, ..TaskPage::default() };
        add(&mut found, page(false));
        assert_eq!(why_more(&found), "there are more");
        add(&mut found, page(true));
        assert_eq!(why_more(&found), "stopped after 20 tasks looked at; --from and --to narrow the search, this goes on");
    }

    #[test]
    fn a_line_per_task() {
        let mut parent = samples::status();
        (parent.name, parent.children.total, parent.children.pending) = (Some("cover".into()), 3, 1);
        parent.state = State::Running;
        let expected = "\
ID (ROOTS)  TYPE  STATE      CHILDREN  SEEN                      TIME        NAME
cover-42    echo  succeeded  -         2026-01-31T12:00:00.500Z  1.2 s       -
cover-42    echo  running    2/3       2026-01-31T12:00:00.500Z  for 59.0 s  cover";
        let rows = rows(&[samples::status(), parent], Levels::Roots.header(), NOON + 60_000);
        assert_eq!(rows.draw(Paint(false), false), expected);
    }

    #[test]
    fn header_names_the_levels() {
        let header = |level: Option<&str>, root: Option<&str>| {
            Levels::of(&ListArgs { level: level.map(str::to_owned), root: root.map(str::to_owned), ..ListArgs::default() })
                .header()
        };
        assert_eq!((header(None, None), header(Some("roots"), None)), ("ID (ROOTS)", "ID (ROOTS)"));
        assert_eq!((header(Some("any"), None), header(None, Some("a"))), ("ID (ALL LEVELS)", "ID (ALL LEVELS)"));
    }
}
