//! `list`: lists tasks, newest first, with filters.

use std::collections::BTreeSet;

use clap::Args;
use kafleet_documents::{
    ExportFormat, ExportLines, OtherLevels, Status, TaskColumn, TaskColumns, TaskPage, TaskSort, Types,
};
use kafleet_model::query::{TaskQuery, Test, TreeLevel};
use kafleet_model::record::state::State;
use kafleet_model::task::parse_time;
use kafleet_model::units::duration::Millis;
use kafleet_model::units::time::time_text as rfc3339;
use kafleet_runtime::now_ms;

use super::client::{Client, Query};
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::output::{Field, Rows, eprint_incomplete, eprint_line};
use super::task_view::state_time;
use super::{export, views};

/// Tasks per request.
const PAGE: usize = 100;
/// Default number of listed tasks.
const DEFAULT_TASKS: u32 = 20;
/// Maximum number of listed tasks.
const MAX_TASKS: u32 = 10_000;
/// Declared params that a hint names.
const LISTED_PARAMS: usize = 10;
/// Tasks that a search scans before it stops with a cursor.
const MAX_SCANNED: u64 = 200_000;

#[derive(Debug, Default, Args)]
pub(super) struct ListArgs {
    /// Search, such as 'type:resize state:failed -tag:test "build main"'
    #[arg(
        value_name = "QUERY",
        conflicts_with_all = [
            "task_type", "state", "level", "tag", "creator", "name", "name_like", "error", "root", "from", "to",
        ],
    )]
    pub query: Option<String>,
    /// Only tasks of this type
    #[arg(long = "type", value_name = "TYPE")]
    pub task_type: Option<String>,
    /// Only tasks in this state
    #[arg(long)]
    pub state: Option<State>,
    /// Only root tasks, or tasks of any level [default: any with --type, --error or --root, otherwise roots]
    #[arg(long, value_parser = ["roots", "any"], conflicts_with = "root")]
    pub level: Option<String>,
    /// Only tasks with this tag
    #[arg(long)]
    pub tag: Option<String>,
    /// Only tasks of this creator
    #[arg(long)]
    pub creator: Option<String>,
    /// Only tasks whose name has this prefix
    #[arg(long)]
    pub name: Option<String>,
    /// Only tasks whose name matches this regular expression
    #[arg(long, value_name = "PATTERN")]
    pub name_like: Option<String>,
    /// Only tasks with an error of this kind or like this text (numbers, ids and quoted values may differ)
    #[arg(long, value_name = "TEXT")]
    pub error: Option<String>,
    /// Only this task and its descendants
    #[arg(long, value_name = "ID")]
    pub root: Option<String>,
    /// Only tasks first seen at or after this time (RFC 3339, or an age such as 2h)
    #[arg(long, value_name = "TIME")]
    pub from: Option<String>,
    /// Only tasks first seen before this time (RFC 3339, or an age such as 2h)
    #[arg(long, value_name = "TIME")]
    pub to: Option<String>,
    /// Named view: its search, order and columns
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with_all = [
            "query", "task_type", "state", "level", "tag", "creator", "name", "name_like", "error", "root", "from", "to",
        ],
    )]
    pub view: Option<String>,
    #[command(flatten)]
    pub shown: ShownArgs,
}

/// Part of the tasks that match, and its form.
#[derive(Debug, Default, Args)]
pub(super) struct ShownArgs {
    /// Order: newest, oldest (first seen), or longest (open tasks, by their time in the state)
    #[arg(long, value_name = "ORDER")]
    pub sort: Option<TaskSort>,
    /// Columns, such as id,state,error [default: the usual ones]
    #[arg(long, value_name = "COLUMNS")]
    pub columns: Option<TaskColumns>,
    /// Write all tasks that match as lines, newest first: csv or jsonl
    #[arg(long, value_name = "FORMAT", conflicts_with = "sort")]
    pub export: Option<ExportFormat>,
    /// Maximum number of tasks [default: 20, with --export 10000]
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub limit: Option<u32>,
    /// Continue from the cursor of an earlier list
    #[arg(long)]
    pub cursor: Option<String>,
}

/// Lists roots, or the tasks that match the filters, reading as many pages as needed.
pub(super) async fn list(args: ListArgs, globals: &Globals) -> Outcome {
    let client = globals.client()?;
    let output = globals.output();
    let now_ms = now_ms();
    args.query.as_deref().map_or(Ok(()), check_query)?;
    let args = with_view(&client, args).await?;
    let mut filters = filters(&args, now_ms)?;
    let (levels, is_query) = (Levels::of(&args), args.query.is_some());
    let continued = args.shown.cursor.is_some();
    if let Some(format) = args.shown.export {
        let lines = ExportLines::new(format, args.shown.columns.map(|columns| columns.0));
        let limit = args.shown.limit.map_or(export::DEFAULT_TASKS, |limit| limit as usize);
        return export::export(&client, &filters, &lines, (limit, args.shown.cursor)).await;
    }
    let limit = args.shown.limit.unwrap_or(DEFAULT_TASKS);
    if limit > MAX_TASKS {
        return Err(Failure::usage(format_args!("a list has at most {MAX_TASKS} tasks")).hint("add --export jsonl"));
    }
    filters.extend(args.shown.sort.map(|sort| ("sort", sort.name().to_owned())));
    let page = pages(&client, &["v1", "tasks"], &filters, limit as usize, args.shown.cursor).await?;
    if output.is_json() {
        output.json(&page)?;
        return Ok(Code::Ok);
    }
    let filtered = continued || filters.iter().any(|(name, _)| !matches!(*name, "level" | "root" | "sort"));
    let empty = levels.empty_message((filtered, is_query), &page);
    let rows = match &args.shown.columns {
        Some(columns) => column_rows(&page.tasks, columns),
        None => rows(&page.tasks, levels.header(), now_ms),
    };
    output.list(rows, empty)?;
    if page.tasks.is_empty() && has_word(args.query.as_deref()) {
        eprint_line(format_args!("hint: {}", unsearched(&declared_params(&client).await)));
    }
    eprint_rest(&page);
    Ok(Code::Ok)
}

/// Returns whether a query has a word without a qualifier.
fn has_word(query: Option<&str>) -> bool {
    let terms = query.and_then(|query| TaskQuery::parse(query).ok()).unwrap_or_default().terms;
    terms.iter().any(|term| matches!(term.test, Test::Word(_)))
}

/// Qualifiers of the declared params of all types, such as `params.order.id`. Without an answer none: they are part of a hint.
async fn declared_params(client: &Client) -> BTreeSet<String> {
    let types: Result<Types, Failure> = client.get(&["v1", "types"], &Vec::new()).await;
    types.map(|types| types.types).unwrap_or_default().into_iter().flat_map(|listed| listed.declared.index).collect()
}

/// Texts that a word of a query is not compared with. `params`: qualifiers of the declared params.
fn unsearched(params: &BTreeSet<String>) -> String {
    let searched = "words are compared with the beginnings of ids and with names";
    if params.is_empty() {
        return format!(
            "{searched}, not with params, results and logs: give tasks tags for what they are looked up by"
        );
    }
    let terms: Vec<String> = params.iter().take(LISTED_PARAMS).map(|name| format!("`{name}:`")).collect();
    let more = if params.len() > LISTED_PARAMS { ", …" } else { "" };
    format!(
        "{searched}, not with results and logs; of params the declared ones are searched: {}{more}",
        terms.join(", ")
    )
}

/// Takes search, order and columns of a view, unless order or columns are given.
async fn with_view(client: &Client, mut args: ListArgs) -> Result<ListArgs, Failure> {
    let Some(name) = &args.view else { return Ok(args) };
    let view = views::read(client, name).await?;
    args.query = Some(view.q).filter(|q| !q.is_empty());
    args.shown.sort = args.shown.sort.or((view.sort != TaskSort::Newest).then_some(view.sort));
    args.shown.columns = args.shown.columns.or((!view.columns.is_empty()).then_some(TaskColumns(view.columns)));
    Ok(args)
}

/// Names the tasks that were not found, and the cursor of those not listed.
fn eprint_rest(page: &TaskPage) {
    eprint_incomplete(&page.incomplete);
    if !page.missing.is_empty() {
        eprint_line(format_args!("not found: {}", page.missing.join(", ")));
    }
    if let Some(sorted) = page.sorted.filter(|sorted| !sorted.all) {
        eprint_line(format_args!("only the newest {} tasks that match were sorted", sorted.tasks));
    }
    if let Some(cursor) = &page.next {
        eprint_line(format_args!("{}: --cursor {cursor}", more_text(page)));
    }
}

/// Reads pages until `limit` tasks are found, the list ends, or `MAX_SCANNED` tasks were scanned.
pub(super) async fn pages(
    client: &Client,
    path: &[&str],
    filters: &Query,
    limit: usize,
    cursor: Option<String>,
) -> Result<TaskPage, Failure> {
    let mut merged = TaskPage { next: cursor, ..TaskPage::default() };
    loop {
        let mut query = filters.clone();
        query.push(("limit", PAGE.min(limit - merged.tasks.len()).to_string()));
        query.extend(merged.next.take().map(|cursor| ("cursor", cursor)));
        merged.append(client.get(path, &query).await?);
        let enough = merged.tasks.len() >= limit || merged.scanned.is_some_and(|scanned| scanned >= MAX_SCANNED);
        if merged.next.is_none() || enough {
            return Ok(merged);
        }
    }
}

/// Refuses a query with a mistake, marked by carets.
pub(super) fn check_query(text: &str) -> Result<(), Failure> {
    let Err(mistake) = TaskQuery::parse(text) else { return Ok(()) };
    let failure = Failure::usage(format_args!("{mistake}\n\n{}", indented(&mistake.underlined(text))));
    Err(mistake.hint.into_iter().fold(failure, Failure::hint))
}

fn indented(lines: &str) -> String {
    lines.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

/// Levels of task trees in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Levels {
    Roots,
    All,
}

impl Levels {
    /// Levels of the arguments, by the rule of the API: see [`TaskQuery::level`].
    fn of(args: &ListArgs) -> Self {
        let level = match (args.query.as_deref(), args.level.as_deref()) {
            (Some(query), _) => TaskQuery::parse(query).map_or(TreeLevel::Roots, |query| query.level()),
            (None, Some("any")) => TreeLevel::Any,
            (None, Some(_)) => TreeLevel::Roots,
            (None, None) if [&args.root, &args.task_type, &args.error].iter().any(|given| given.is_some()) => {
                TreeLevel::Any
            }
            (None, None) => TreeLevel::Roots,
        };
        if level == TreeLevel::Any { Self::All } else { Self::Roots }
    }

    fn header(self) -> &'static str {
        match self {
            Self::Roots => "ID (ROOTS)",
            Self::All => "ID (ALL LEVELS)",
        }
    }

    /// Message for a list without tasks. `filters`: whether the list has any, and whether they are a query.
    fn empty_message(self, (filtered, is_query): (bool, bool), page: &TaskPage) -> String {
        let option = if is_query { "`level:any` in the query" } else { "`--level any`" };
        match (self, filtered, page.other_levels) {
            (_, true, _) if page.next.is_some() => "no matching task so far".to_owned(),
            (Self::Roots, true, Some(OtherLevels { tasks, exact })) => {
                let at_least = if exact { "" } else { "at least " };
                format!("no matching root task, but {at_least}{tasks} on other levels: {option} lists them")
            }
            (Self::Roots, true, None) => format!("no matching root task; {option} also searches below roots"),
            (Self::All, true, _) => "no matching task; use fewer filters".to_owned(),
            (_, false, _) => {
                "no tasks yet; `kafleet submit TYPE PARAMS` creates one, `kafleet types` lists the types".to_owned()
            }
        }
    }
}

fn more_text(page: &TaskPage) -> String {
    match page.scanned.filter(|_| page.stopped_early) {
        Some(scanned) => {
            format!("stopped after scanning {scanned} tasks; narrow the search with --from and --to, or continue with")
        }
        None => "there are more".to_owned(),
    }
}

fn filters(args: &ListArgs, now_ms: i64) -> Result<Query, Failure> {
    let given = [
        ("q", args.query.clone()),
        ("type", args.task_type.clone()),
        ("state", args.state.map(|state| state.name().to_owned())),
        ("tag", args.tag.clone()),
        ("creator", args.creator.clone()),
        ("level", args.level.clone()),
        ("name", args.name.clone()),
        ("name_like", args.name_like.clone()),
        ("error", args.error.clone()),
        ("root", args.root.clone()),
        ("from", args.from.as_deref().map(|text| resolve_time(text, now_ms)).transpose()?),
        ("to", args.to.as_deref().map(|text| resolve_time(text, now_ms)).transpose()?),
    ];
    Ok(given.into_iter().filter_map(|(name, value)| Some((name, value?))).collect())
}

/// Converts a time (RFC 3339), or an age such as 2h, to RFC 3339.
pub(super) fn resolve_time(text: &str, now_ms: i64) -> Result<String, Failure> {
    if let Some(ago) = Millis::parse_age(text) {
        return Ok(rfc3339(now_ms.saturating_sub(ago.as_i64())));
    }
    parse_time(text).map(rfc3339).map_err(|error| Failure::usage(error).hint("or give an age, such as 2h"))
}

/// Returns a row per task; `id` is the header of the first column.
pub(super) fn rows(tasks: &[Status], id: &'static str, now_ms: i64) -> Rows {
    let mut rows = Rows::new([id, "TYPE", "STATE", "CHILDREN", "SEEN", "TIME", "NAME"]);
    for task in tasks {
        rows.add([
            Field::Text(task.id.clone()),
            task.task_type.clone().into(),
            Field::State(task.state),
            children(task),
            task.seen_at.clone().into(),
            state_time(task, now_ms).into(),
            task.fields.name.clone().into(),
        ]);
    }
    rows
}

/// Returns a row per task with these columns.
fn column_rows(tasks: &[Status], columns: &TaskColumns) -> Rows {
    let mut rows = Rows::new(columns.0.iter().map(|column| heading(*column)).collect::<Vec<_>>());
    for task in tasks {
        let field = |column: &TaskColumn| match column {
            TaskColumn::State => Field::State(task.state),
            column => Some(column.text(task)).filter(|text| !text.is_empty()).into(),
        };
        rows.add(columns.0.iter().map(field).collect::<Vec<_>>());
    }
    rows
}

const fn heading(column: TaskColumn) -> &'static str {
    match column {
        TaskColumn::Id => "ID",
        TaskColumn::Name => "NAME",
        TaskColumn::Type => "TYPE",
        TaskColumn::State => "STATE",
        TaskColumn::Created => "CREATED",
        TaskColumn::Started => "STARTED",
        TaskColumn::Ended => "ENDED",
        TaskColumn::Time => "MS",
        TaskColumn::Tags => "TAGS",
        TaskColumn::Children => "CHILDREN",
        TaskColumn::Worker => "WORKER",
        TaskColumn::Error => "ERROR",
        TaskColumn::Progress => "PROGRESS",
        TaskColumn::Creator => "CREATOR",
    }
}

fn children(task: &Status) -> Field {
    match task.children.total {
        0 => Field::Empty,
        total => {
            let failed = task.children.failed;
            let failed = if failed > 0 { format!(", {failed} unsuccessful") } else { String::new() };
            Field::Text(format!("{}/{total}{failed}", total - task.children.pending.min(total)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::Paint;
    use crate::cli::task_view::samples;

    const NOON: i64 = 1_769_860_800_000;

    #[test]
    fn filters_become_query_parameters() {
        let args = ListArgs {
            state: Some(State::WaitingForChildren),
            from: Some("2h".into()),
            to: Some("2026-01-31T11:30:00+01:00".into()),
            ..ListArgs::default()
        };
        let query = filters(&args, NOON).unwrap();
        let expected = [
            ("state", "waiting_for_children"),
            ("from", "2026-01-31T10:00:00.000Z"),
            ("to", "2026-01-31T10:30:00.000Z"),
        ];
        assert_eq!(query, expected.map(|(name, value)| (name, value.to_owned())));
        let wrong = filters(&ListArgs { from: Some("yesterday".into()), ..ListArgs::default() }, NOON).unwrap_err();
        assert_eq!(wrong.code, Code::Usage);
        assert!(wrong.message.contains("`yesterday` is not a time"), "{}", wrong.message);
    }

    #[test]
    fn mistake_in_a_query_is_marked() {
        let failure = check_query("type:echo state:faild").unwrap_err();
        assert_eq!(failure.code, Code::Usage);
        let (message, drawn) = failure.message.split_once("\n\n").unwrap();
        assert!(message.contains("`faild` is not a state"), "{message}");
        assert_eq!(drawn, "  type:echo state:faild\n                  ^^^^^");
        assert_eq!(failure.hint.as_deref(), Some("did you mean `failed`?"));
        assert_eq!(check_query("type:echo state:failed"), Ok(()));
    }

    #[test]
    fn hint_about_words_names_the_declared_params() {
        assert!(has_word(Some("ada type:echo")) && !has_word(Some("type:echo")) && !has_word(None));
        assert!(unsearched(&BTreeSet::new()).contains("give tasks tags"));
        let params = BTreeSet::from(["params.customer".to_owned(), "params.order.id".to_owned()]);
        assert!(
            unsearched(&params).ends_with("the declared ones are searched: `params.customer:`, `params.order.id:`")
        );
    }

    #[test]
    fn stopped_search_reports_scanned_tasks() {
        let mut merged = TaskPage::default();
        let page =
            |early| TaskPage { scanned: Some(10), next: Some("x".into()), stopped_early: early, ..TaskPage::default() };
        merged.append(page(false));
        assert_eq!(more_text(&merged), "there are more");
        merged.append(page(true));
        assert_eq!(
            more_text(&merged),
            "stopped after scanning 20 tasks; narrow the search with --from and --to, or continue with"
        );
    }

    #[test]
    fn table_has_a_line_per_task() {
        let mut parent = samples::status();
        parent.fields.0.name = Some("cover".into());
        parent.children.total = 3;
        parent.children.pending = 1;
        parent.state = State::Running;
        let mut failing = parent.clone();
        failing.children.failed = 1;
        let expected = "\
ID (ROOTS)  TYPE  STATE      CHILDREN             SEEN                      TIME        NAME
cover-42    echo  succeeded  -                    2026-01-31T12:00:00.500Z  1.2 s       -
cover-42    echo  running    2/3                  2026-01-31T12:00:00.500Z  for 59.0 s  cover
cover-42    echo  running    2/3, 1 unsuccessful  2026-01-31T12:00:00.500Z  for 59.0 s  cover";
        let rows = rows(&[samples::status(), parent, failing], Levels::Roots.header(), NOON + 60_000);
        assert_eq!(rows.draw(Paint(false), false), expected);
    }

    #[test]
    fn chosen_columns_are_listed_in_their_order() {
        let columns: TaskColumns = "state,id,time,worker".parse().unwrap();
        let rows = column_rows(&[samples::status()], &columns);
        let drawn = rows.draw(Paint(false), false);
        assert!(drawn.starts_with("STATE      ID        MS"), "{drawn}");
        assert!(drawn.lines().nth(1).is_some_and(|line| line.starts_with("succeeded  cover-42")), "{drawn}");
        assert_eq!(TaskColumn::ALL.map(heading).len(), TaskColumn::ALL.len());
    }

    #[test]
    fn header_names_the_levels() {
        let header = |level: Option<&str>, root: Option<&str>| {
            Levels::of(&ListArgs {
                level: level.map(str::to_owned),
                root: root.map(str::to_owned),
                ..ListArgs::default()
            })
            .header()
        };
        let of_type = ListArgs { task_type: Some("echo".into()), ..ListArgs::default() };
        assert_eq!(Levels::of(&of_type), Levels::All);
        assert_eq!(Levels::of(&ListArgs { level: Some("roots".into()), ..of_type }), Levels::Roots);
        let searched = |query: &str| Levels::of(&ListArgs { query: Some(query.into()), ..ListArgs::default() });
        assert_eq!(searched("worker:w-1"), Levels::All);
        assert_eq!(searched("tag:ci"), Levels::Roots);
        assert_eq!((header(None, None), header(Some("roots"), None)), ("ID (ROOTS)", "ID (ROOTS)"));
        assert_eq!((header(Some("any"), None), header(None, Some("a"))), ("ID (ALL LEVELS)", "ID (ALL LEVELS)"));
    }
}
