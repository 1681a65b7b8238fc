//! Watches many tasks. The API's change stream names changed tasks; each is read again at the position of its change,
//! and printed if it differs from the last printed line.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use kafleet_documents::{Status, TaskPage};
use kafleet_runtime::Backoff;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use super::refresh::{NamedTasks, PartitionScope, RefreshQueue};
use super::{Fingerprint, show};
use crate::cli::client::{Client, Query, ReconnectingStream, record_removed};
use crate::cli::exit::{Code, Failure, Outcome};
use crate::cli::output::{Output, eprint_line};
use crate::cli::wait::code_of;

/// Maximum number of concurrent reads.
const MAX_CONCURRENT_READS: usize = 8;
/// Time within which further changes are handled together with the first.
const GATHER_TIME: Duration = Duration::from_millis(50);
/// Interval of reads for changes without task ids; longer if such a read takes longer than this.
const REREAD_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of open tasks, most recent first, that are read again after a change without ids.
const MAX_REREAD: usize = 1_000;
/// Number of tasks whose last line is remembered; a line of an older task may be printed twice.
const MAX_REMEMBERED: usize = 20_000;
/// Maximum number of tasks of a tree that are read after a change without ids.
const MAX_TREE: usize = 10_000;
const PAGE: usize = 200;
/// Attempts of a read before it is postponed.
const MAX_TRIES: u32 = 3;
/// Interval of warnings about possibly missing lines.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Tasks to watch.
#[derive(Debug)]
pub(in crate::cli) enum WatchScope {
    /// A task and its descendants, until the task has ended.
    Tree(String),
    Type(String),
    All,
}

impl WatchScope {
    fn query(&self) -> Query {
        match self {
            Self::Tree(root) => vec![("root", root.clone())],
            Self::Type(name) => vec![("type", name.clone())],
            Self::All => Query::new(),
        }
    }

    /// Returns the root of a watched tree.
    fn root(&self) -> Option<&str> {
        match self {
            Self::Tree(root) => Some(root),
            _ => None,
        }
    }

    /// Whether a task belongs to the scope. The stream of a type also reports tasks whose type could not be looked up.
    fn has(&self, status: &Status) -> bool {
        match self {
            Self::Type(name) => status.task_type.as_deref() == Some(name),
            _ => true,
        }
    }
}

impl fmt::Display for WatchScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tree(root) => write!(f, "`{root}` and its descendants"),
            Self::Type(name) => write!(f, "tasks of type `{name}`"),
            Self::All => f.write_str("all tasks"),
        }
    }
}

/// Last printed state of each task.
#[derive(Default)]
struct PrintedTasks {
    last: FxHashMap<String, PrintedState>,
    /// Ids in `last` by their first line, oldest first.
    order: VecDeque<String>,
}

#[derive(Clone, Copy)]
struct PrintedState {
    fingerprint: Fingerprint,
    has_ended: bool,
    partition: Option<u32>,
}

impl PrintedTasks {
    /// Records a status; returns whether it differs from the last printed one.
    fn record(&mut self, status: &Status) -> Result<bool, Failure> {
        let partition = status.position.split_once(':').and_then(|(partition, _)| partition.parse().ok());
        let fingerprint = Fingerprint::of(status)?;
        let last = PrintedState { fingerprint, has_ended: status.state.is_terminal(), partition };
        Ok(match self.last.insert(status.id.clone(), last) {
            Some(before) => before.fingerprint != last.fingerprint,
            None => {
                self.order.push_back(status.id.clone());
                if self.order.len() > MAX_REMEMBERED {
                    self.order.pop_front().map(|oldest| self.last.remove(&oldest));
                }
                true
            }
        })
    }

    /// Returns the most recently added tasks that were open when last printed.
    fn open(&self, partitions: &PartitionScope) -> Vec<String> {
        let is_open = |last: &PrintedState| !last.has_ended && partitions.has(last.partition);
        let newest = self.order.iter().rev().filter(|id| self.last.get(*id).is_some_and(is_open));
        newest.take(MAX_REREAD).cloned().collect()
    }
}

/// Prints the changes of the tasks in a scope: of a tree until its root has ended, otherwise without an end.
pub(super) async fn show_changes(client: &Client, output: &Output, scope: WatchScope) -> Outcome {
    let begun = format!("watching {scope}");
    let show_new = async |status: &Status, is_new: bool| {
        if is_new { show(output, status, Some(&label(status))) } else { Ok(()) }
    };
    follow(client, scope, &begun, show_new).await
}

/// Reports every change of a task in a scope: of a tree until its root has ended, otherwise without an end. The second
/// argument of `report` is whether the status differs from the last reported one in what a line shows. `begun` is printed
/// once changes are no longer missed.
pub(in crate::cli) async fn follow(
    client: &Client,
    scope: WatchScope,
    begun: &str,
    mut report: impl AsyncFnMut(&Status, bool) -> Result<(), Failure>,
) -> Outcome {
    if let WatchScope::Type(name) = &scope {
        check_type(client, name).await?;
    }
    let mut changes = ReconnectingStream::open_fleet(client, scope.query()).await?;
    let mut fleet = FleetWatch::new(client, scope);
    loop {
        fleet.gather_changes(&mut changes).await?;
        let refresh = fleet.refresh_tasks().await?;
        if !std::mem::replace(&mut fleet.begun, true) {
            eprint_line(begun);
        }
        for status in refresh.statuses.iter().filter(|status| fleet.scope.has(status)) {
            report(status, fleet.shown.record(status)?).await?;
        }
        if let Some(root) = fleet.scope.root()
            && let Some(code) = exit_code(root, &refresh)?
        {
            return Ok(code);
        }
    }
}

/// Result of reading changed tasks.
#[derive(Default)]
struct Refresh {
    statuses: Vec<Status>,
    /// Tasks whose record has been removed.
    missing: Vec<String>,
}

struct FleetWatch<'a> {
    client: &'a Client,
    scope: WatchScope,
    shown: PrintedTasks,
    queue: RefreshQueue,
    /// Tasks to read again after a failure.
    unread: BTreeSet<String>,
    /// Earliest time of the next read of unread tasks and of changes without ids.
    reread: Instant,
    /// Whether the first read is complete. Before that a failed read of the tree is an error.
    begun: bool,
    /// Whether the last read of the tree failed.
    tree_unreadable: bool,
    /// Time of the last warning about missing lines.
    warned: Option<Instant>,
}

impl<'a> FleetWatch<'a> {
    fn new(client: &'a Client, scope: WatchScope) -> Self {
        let shown = PrintedTasks::default();
        let queue = RefreshQueue::default();
        let unread = BTreeSet::new();
        Self {
            client,
            scope,
            shown,
            queue,
            unread,
            reread: Instant::now(),
            begun: false,
            tree_unreadable: false,
            warned: None,
        }
    }

    /// Waits for a change, and gathers the changes that follow within `GATHER_TIME`.
    async fn gather_changes(&mut self, changes: &mut ReconnectingStream) -> Result<(), Failure> {
        while !self.queue.has_named() && !self.may_reread() {
            let waits = self.queue.has_unnamed() || !self.unread.is_empty();
            let change = if waits {
                // Connect without the deadline of the next read: an interrupted attempt would never be counted as
                // failed, and the watch would never give up.
                changes.connected().await?;
                changes.change_until(self.reread).await?
            } else {
                Some(changes.change().await?)
            };
            change.into_iter().for_each(|change| self.queue.add(*change));
        }
        let until = Instant::now() + GATHER_TIME;
        while let Some(change) = changes.change_until(until).await? {
            self.queue.add(*change);
        }
        Ok(())
    }

    fn may_reread(&self) -> bool {
        (self.queue.has_unnamed() || !self.unread.is_empty()) && Instant::now() >= self.reread
    }

    async fn refresh_tasks(&mut self) -> Result<Refresh, Failure> {
        let mut refresh = Refresh::default();
        if self.may_reread() {
            let begun = Instant::now();
            self.refresh_unnamed(&mut refresh).await?;
            self.reread = Instant::now() + REREAD_INTERVAL.max(begun.elapsed());
        }
        let read: BTreeSet<String> = refresh.statuses.iter().map(|status| status.id.clone()).collect();
        for mut named in self.queue.take_named() {
            named.ids.retain(|id| !read.contains(id));
            self.read(named, &mut refresh).await?;
        }
        Ok(refresh)
    }

    /// Reads the tasks that could not be read before, and those that changes without ids may concern.
    async fn refresh_unnamed(&mut self, refresh: &mut Refresh) -> Result<(), Failure> {
        let mut ids = self.unread.clone();
        if let Some(partitions) = self.queue.take_unnamed() {
            match self.scope.root().map(str::to_owned) {
                Some(root) => self.refresh_tree(&root, partitions, refresh).await?,
                None => {
                    self.warn();
                    ids.extend(self.shown.open(&partitions));
                }
            }
        }
        self.read(NamedTasks { ids, position: None }, refresh).await
    }

    async fn refresh_tree(
        &mut self,
        root: &str,
        partitions: PartitionScope,
        refresh: &mut Refresh,
    ) -> Result<(), Failure> {
        match read_tree(self.client, root).await {
            Ok(statuses) => {
                self.tree_unreadable = false;
                if statuses.iter().all(|status| status.id != root) {
                    refresh.missing.push(root.to_owned());
                }
                refresh.statuses = statuses;
                Ok(())
            }
            Err(error) => self.retry_tree_later(error, partitions),
        }
    }

    /// Schedules another read of the tree after a transient failure.
    fn retry_tree_later(&mut self, error: Failure, partitions: PartitionScope) -> Result<(), Failure> {
        if !self.begun || error.code != Code::Unavailable {
            return Err(error);
        }
        if !std::mem::replace(&mut self.tree_unreadable, true) {
            eprint_line(format_args!("cannot read {}, retrying: {}", self.scope, error.message));
        }
        self.queue.add_unnamed(partitions);
        Ok(())
    }

    /// Warns, at most once per [`WARNING_INTERVAL`], that changes of some tasks may not be printed.
    fn warn(&mut self) {
        if self.begun && self.warned.is_none_or(|warned| warned.elapsed() >= WARNING_INTERVAL) {
            self.warned = Some(Instant::now());
            eprint_line("too many changes to report one by one: lines of tasks not shown before may be missing");
        }
    }

    /// Reads tasks at the given position or later. A failed read does not delay the others.
    async fn read(&mut self, named: NamedTasks, refresh: &mut Refresh) -> Result<(), Failure> {
        let NamedTasks { ids, position } = named;
        let after: Query = position.map(|position| ("after", position)).into_iter().collect();
        let client = self.client;
        let read = |id: String| {
            let after = after.clone();
            async move {
                let answer = with_retries(async || client.get::<Status>(&["v1", "tasks", &id], &after).await).await;
                (id, answer)
            }
        };
        let mut reads = stream::iter(ids.into_iter().map(read)).buffered(MAX_CONCURRENT_READS);
        while let Some((id, answer)) = reads.next().await {
            self.apply_answer(id, answer, refresh)?;
        }
        Ok(())
    }

    /// Handles the answer to the read of a task.
    fn apply_answer(
        &mut self,
        id: String,
        answer: Result<Status, Failure>,
        refresh: &mut Refresh,
    ) -> Result<(), Failure> {
        match answer {
            Ok(status) => {
                self.unread.remove(&id);
                refresh.statuses.push(status);
            }
            Err(error) if error.code == Code::NotFound => {
                self.unread.remove(&id);
                refresh.missing.push(id);
            }
            Err(error) if error.code == Code::Denied => return Err(error),
            Err(_) if self.unread.contains(&id) => {}
            // Too many to remember: treat it as a change without ids.
            Err(_) if self.unread.len() >= MAX_REREAD => self.queue.add_unnamed(PartitionScope::Everywhere),
            Err(error) => {
                eprint_line(format_args!("cannot read task `{id}`, retrying: {}", error.message));
                self.unread.insert(id);
            }
        }
        Ok(())
    }
}

/// Refuses an unknown type, for which the watch would print nothing and never end.
pub(in crate::cli) async fn check_type(client: &Client, name: &str) -> Result<(), Failure> {
    let _: serde_json::Value = client.get(&["v1", "types", name, "backlog"], &Query::new()).await?;
    Ok(())
}

fn label(status: &Status) -> String {
    match &status.task_type {
        Some(task_type) => format!("{}  {task_type}", status.id),
        None => status.id.clone(),
    }
}

/// Returns the exit code if the root has ended.
///
/// # Errors
/// The root's record has been removed.
fn exit_code(root: &str, refresh: &Refresh) -> Result<Option<Code>, Failure> {
    match refresh.statuses.iter().find(|status| status.id == root) {
        Some(status) => Ok(status.state.is_terminal().then(|| code_of(status.state))),
        None if refresh.missing.iter().any(|id| id == root) => Err(record_removed(root)),
        None => Ok(None),
    }
}

/// Reads a tree, parents before children.
async fn read_tree(client: &Client, root: &str) -> Result<Vec<Status>, Failure> {
    let mut statuses: Vec<Status> = Vec::new();
    let mut next: Option<String> = None;
    loop {
        let mut query = vec![("root", root.to_owned()), ("limit", PAGE.to_string())];
        query.extend(next.take().map(|cursor| ("cursor", cursor)));
        let page: TaskPage = with_retries(async || client.get(&["v1", "tasks"], &query).await).await?;
        statuses.extend(page.tasks);
        next = page.next;
        if next.is_none() {
            return Ok(statuses);
        }
        if statuses.len() >= MAX_TREE {
            eprint_line(format_args!(
                "the tree has more than {MAX_TREE} tasks: further ones are shown when they change"
            ));
            return Ok(statuses);
        }
    }
}

/// Repeats a request a few times while the API is unavailable.
pub(in crate::cli) async fn with_retries<T>(
    mut request: impl AsyncFnMut() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(3));
    for _ in 1..MAX_TRIES {
        match request().await {
            Err(error) if error.code == Code::Unavailable => tokio::time::sleep(backoff.next_wait()).await,
            answer => return answer,
        }
    }
    request().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::task_view::samples;
    use kafleet_model::record::state::State;

    #[test]
    fn changed_tasks_are_printed_and_memory_is_bounded() {
        let mut shown = PrintedTasks::default();
        let mut status = samples::status();
        assert!(shown.record(&status).unwrap() && !shown.record(&status).unwrap());
        status.run += 1;
        assert!(shown.record(&status).unwrap() && !shown.record(&status).unwrap());
        for n in 0..MAX_REMEMBERED {
            status.id = format!("t{n}");
            assert!(shown.record(&status).unwrap());
        }
        assert_eq!((shown.last.len(), shown.order.len()), (MAX_REMEMBERED, MAX_REMEMBERED));
        assert!(shown.open(&PartitionScope::Everywhere).is_empty(), "all have ended");
    }

    #[test]
    fn open_tasks_are_selected_by_partition_newest_first() {
        let mut shown = PrintedTasks::default();
        let mut status = samples::status();
        status.state = State::Running;
        for n in 0..2 * MAX_REREAD {
            status.id = format!("t{n}");
            status.position = format!("{}:7", n % 4);
            shown.record(&status).unwrap();
        }
        let all = shown.open(&PartitionScope::Everywhere);
        assert_eq!((all.len(), all[0].clone()), (MAX_REREAD, format!("t{}", 2 * MAX_REREAD - 1)));
        let some = shown.open(&PartitionScope::In([1].into()));
        assert_eq!((some.len(), some.last().map(String::as_str)), (MAX_REREAD / 2, Some("t1")));
    }

    #[test]
    fn watch_of_a_tree_ends_with_its_root() {
        let status = samples::status();
        let id = status.id.clone();
        let refresh = |statuses: &[Status], missing: &[&str]| Refresh {
            statuses: statuses.to_vec(),
            missing: missing.iter().map(|id| (*id).to_owned()).collect(),
        };
        assert_eq!(exit_code(&id, &refresh(std::slice::from_ref(&status), &[])), Ok(Some(Code::Ok)));
        let child = format!("{id}:c");
        assert_eq!(exit_code(&id, &refresh(&[], &[&child])), Ok(None));
        assert_eq!(exit_code(&id, &refresh(&[], &[&id])).unwrap_err().code, Code::NotFound);
    }
}
