//! Many tasks at once. The api tells which have changed; each is read again, at the place of its change, and shown where it
//! is not what was shown before.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use super::refresh::{Named, RefreshQueue, Where};
use super::{Mark, show};
use crate::api::documents::{Status, TaskPage};
use crate::cli::client::{Client, Follow, Query, forgotten};
use crate::cli::exit::{Code, Failure, Outcome};
use crate::cli::output::{Output, tell};
use crate::cli::wait::code_of;
use crate::runtime::Backoff;

/// Tasks read at once.
const AT_ONCE: usize = 8;
/// Changes that come so soon after another are looked at with it.
const GATHER: Duration = Duration::from_millis(50);
/// What no notice names is looked at so often, or as often as takes half of the time.
const REREAD: Duration = Duration::from_secs(2);
/// Tasks that go on and are read again where anything may have changed: those that were shown last.
const MAX_AGAIN: usize = 1_000;
/// Tasks whose last line is remembered; one that is forgotten may be shown twice.
const REMEMBERED: usize = 20_000;
/// Tasks of a tree that are looked at where anything may have changed.
const MAX_TREE: usize = 10_000;
const PAGE: usize = 200;
/// How often a read is tried before it is left for later.
const TRIES: u32 = 3;
/// Between two words about lines that may be missing.
const QUIET: Duration = Duration::from_secs(60);

/// Whose changes are shown.
#[derive(Debug)]
pub enum Scope {
    /// This task and what is below it, until it has ended.
    Tree(String),
    Type(String),
    All,
}

impl Scope {
    fn query(&self) -> Query {
        match self {
            Self::Tree(root) => vec![("root", root.clone())],
            Self::Type(name) => vec![("type", name.clone())],
            Self::All => Query::new(),
        }
    }

    /// The api tells of more than is asked for where it cannot look up a type.
    fn has(&self, status: &Status) -> bool {
        match self {
            Self::Type(name) => status.task_type.as_deref() == Some(name),
            _ => true,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tree(root) => write!(f, "`{root}` and what is below it"),
            Self::Type(name) => write!(f, "tasks of type `{name}`"),
            Self::All => f.write_str("all tasks"),
        }
    }
}

/// What was shown last of each task.
#[derive(Default)]
struct Shown {
    last: FxHashMap<String, Last>,
    order: VecDeque<String>,
}

#[derive(Clone, Copy)]
struct Last {
    mark: Mark,
    has_ended: bool,
    partition: Option<u32>,
}

impl Shown {
    /// Remembers it, and says whether it is to be shown.
    fn is_news(&mut self, status: &Status) -> bool {
        let partition = status.position.split_once(':').and_then(|(partition, _)| partition.parse().ok());
        let last = Last { mark: Mark::of(status), has_ended: status.state.is_terminal(), partition };
        match self.last.insert(status.id.clone(), last) {
            Some(before) => before.mark != last.mark,
            None => {
                self.order.push_back(status.id.clone());
                if self.order.len() > REMEMBERED {
                    self.order.pop_front().map(|oldest| self.last.remove(&oldest));
                }
                true
            }
        }
    }

    /// The newest of those that went on when they were shown.
    fn open(&self, place: &Where) -> Vec<String> {
        let is_open = |last: &Last| !last.has_ended && place.has(last.partition);
        let newest = self.order.iter().rev().filter(|id| self.last.get(*id).is_some_and(is_open));
        newest.take(MAX_AGAIN).cloned().collect()
    }
}

pub async fn follow(client: &Client, screen: &Output, scope: Scope) -> Outcome {
    if let Scope::Type(name) = &scope {
        known(client, name).await?;
    }
    let mut changes = Follow::open_fleet(client, scope.query()).await?;
    let mut watching = Watching::new(client, scope);
    loop {
        watching.gather(&mut changes).await?;
        let seen = watching.look().await?;
        if !std::mem::replace(&mut watching.begun, true) {
            tell(format_args!("watching {}", watching.scope));
        }
        for status in &seen.found {
            if watching.scope.has(status) && watching.shown.is_news(status) {
                show(screen, status, Some(&name_of(status)))?;
            }
        }
        if let Scope::Tree(root) = &watching.scope
            && let Some(code) = ending(root, &seen)?
        {
            return Ok(code);
        }
    }
}

/// What a look has found.
#[derive(Default)]
struct Seen {
    found: Vec<Status>,
    /// Tasks that have no record any more.
    gone: Vec<String>,
}

struct Watching<'a> {
    client: &'a Client,
    scope: Scope,
    shown: Shown,
    due: RefreshQueue,
    /// Tasks that could not be read, to be tried again.
    unread: BTreeSet<String>,
    /// When that, and what no notice names, is looked at next.
    reread: Instant,
    begun: bool,
    /// The tree could not be read the last time.
    troubled: bool,
    /// When it was said last that lines may be missing.
    warned: Option<Instant>,
}

impl<'a> Watching<'a> {
    fn new(client: &'a Client, scope: Scope) -> Self {
        let (shown, due, unread) = (Shown::default(), RefreshQueue::default(), BTreeSet::new());
        Self { client, scope, shown, due, unread, reread: Instant::now(), begun: false, troubled: false, warned: None }
    }

    /// Waits until there is something to look at, and for what comes right behind it.
    async fn gather(&mut self, changes: &mut Follow<'_>) -> Result<(), Failure> {
        while !self.due.has_named() && !self.may_reread() {
            let waits = self.due.has_anything() || !self.unread.is_empty();
            let change = match waits {
                true => {
                    // Nothing cuts this short: how often it was tried has to count.
                    changes.connected().await?;
                    changes.change_until(self.reread).await?
                }
                false => Some(changes.change().await?),
            };
            change.into_iter().for_each(|change| self.due.add(*change));
        }
        let until = Instant::now() + GATHER;
        while let Some(change) = changes.change_until(until).await? {
            self.due.add(*change);
        }
        Ok(())
    }

    fn may_reread(&self) -> bool {
        (self.due.has_anything() || !self.unread.is_empty()) && Instant::now() >= self.reread
    }

    async fn look(&mut self) -> Result<Seen, Failure> {
        let mut seen = Seen::default();
        if self.may_reread() {
            let begun = Instant::now();
            self.look_anywhere(&mut seen).await?;
            self.reread = Instant::now() + REREAD.max(begun.elapsed());
        }
        let read: BTreeSet<String> = seen.found.iter().map(|status| status.id.clone()).collect();
        for mut named in self.due.take_named() {
            named.ids.retain(|id| !read.contains(id));
            self.read(named, &mut seen).await?;
        }
        Ok(seen)
    }

    /// What could not be read the last time, and what may have changed without being named.
    async fn look_anywhere(&mut self, seen: &mut Seen) -> Result<(), Failure> {
        let mut ids = self.unread.clone();
        if let Some(place) = self.due.take_anywhere() {
            match &self.scope {
                Scope::Tree(root) => match whole(self.client, root).await {
                    Ok(found) => {
                        (self.troubled, seen.found) = (false, found);
                        seen.gone.extend(seen.found.iter().all(|status| status.id != *root).then(|| root.clone()));
                    }
                    Err(why) => self.is_survived(why, place)?,
                },
                _ => {
                    self.warn();
                    ids.extend(self.shown.open(&place));
                }
            }
        }
        self.read(Named { ids, position: None }, seen).await
    }

    /// The tree cannot be read for now: it is tried again.
    fn is_survived(&mut self, why: Failure, place: Where) -> Result<(), Failure> {
        if !self.begun || why.code != Code::Unavailable {
            return Err(why);
        }
        if !std::mem::replace(&mut self.troubled, true) {
            tell(format_args!("{} cannot be read, trying again: {}", self.scope, why.message));
        }
        self.due.add_anything(place);
        Ok(())
    }

    fn warn(&mut self) {
        if self.begun && self.warned.is_none_or(|warned| warned.elapsed() >= QUIET) {
            self.warned = Some(Instant::now());
            tell("more has changed than is told one by one: lines of tasks that were not shown before may be missing");
        }
    }

    /// Reads these tasks, each not older than that place. One that cannot be read holds up no other.
    async fn read(&mut self, named: Named, seen: &mut Seen) -> Result<(), Failure> {
        let Named { ids, position } = named;
        let after: Query = position.map(|position| ("after", position)).into_iter().collect();
        let client = self.client;
        let read = |id: String| {
            let after = after.clone();
            async move {
                let answer = patiently(async || client.get::<Status>(&["v1", "tasks", &id], &after).await).await;
                (id, answer)
            }
        };
        let mut reads = stream::iter(ids.into_iter().map(read)).buffered(AT_ONCE);
        while let Some((id, answer)) = reads.next().await {
            match answer {
                Ok(status) => {
                    self.unread.remove(&id);
                    seen.found.push(status);
                }
                Err(why) if why.code == Code::NotFound => {
                    self.unread.remove(&id);
                    seen.gone.push(id);
                }
                Err(why) if why.code == Code::Denied => return Err(why),
                Err(_) if self.unread.contains(&id) => {}
                // Too many to remember: anything may have changed.
                Err(_) if self.unread.len() >= MAX_AGAIN => self.due.add_anything(Where::Everywhere),
                Err(why) => {
                    tell(format_args!("task `{id}` cannot be read, trying again: {}", why.message));
                    self.unread.insert(id);
                }
            }
        }
        Ok(())
    }
}

/// A type that nobody has would be watched for ever.
async fn known(client: &Client, name: &str) -> Result<(), Failure> {
    let _: serde_json::Value = client.get(&["v1", "types", name, "backlog"], &Query::new()).await?;
    Ok(())
}

fn name_of(status: &Status) -> String {
    match &status.task_type {
        Some(task_type) => format!("{}  {task_type}", status.id),
        None => status.id.clone(),
    }
}

/// How it has ended, if it has.
fn ending(root: &str, seen: &Seen) -> Result<Option<Code>, Failure> {
    match seen.found.iter().find(|status| status.id == root) {
        Some(status) => Ok(status.state.is_terminal().then(|| code_of(status.state))),
        None if seen.gone.iter().any(|id| id == root) => Err(forgotten(root)),
        None => Ok(None),
    }
}

/// A tree, parents before children.
async fn whole(client: &Client, root: &str) -> Result<Vec<Status>, Failure> {
    let (mut found, mut next): (Vec<Status>, Option<String>) = (Vec::new(), None);
    loop {
        let mut query = vec![("root", root.to_owned()), ("limit", PAGE.to_string())];
        query.extend(next.take().map(|cursor| ("cursor", cursor)));
        let page: TaskPage = patiently(async || client.get(&["v1", "tasks"], &query).await).await?;
        found.extend(page.tasks);
        next = page.next;
        if next.is_none() {
            return Ok(found);
        }
        if found.len() >= MAX_TREE {
            tell(format_args!("the tree has more than {MAX_TREE} tasks: the others are shown as they change"));
            return Ok(found);
        }
    }
}

/// While the api is away it is asked again, for a second or so.
async fn patiently<T>(mut ask: impl AsyncFnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(3));
    for _ in 1..TRIES {
        match ask().await {
            Err(why) if why.code == Code::Unavailable => tokio::time::sleep(backoff.next_wait()).await,
            answer => return answer,
        }
    }
    ask().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::task_view::samples;
    use crate::model::record::state::State;

    #[test]
    fn only_what_is_new_is_shown_and_little_is_remembered() {
        let mut shown = Shown::default();
        let mut status = samples::status();
        assert!(shown.is_news(&status) && !shown.is_news(&status));
        status.run += 1;
        assert!(shown.is_news(&status) && !shown.is_news(&status));
        for n in 0..REMEMBERED {
            status.id = format!("t{n}");
            assert!(shown.is_news(&status));
        }
        assert_eq!((shown.last.len(), shown.order.len()), (REMEMBERED, REMEMBERED));
        assert!(shown.open(&Where::Everywhere).is_empty(), "all have ended");
    }

    #[test]
    fn what_goes_on_is_looked_at_again_by_partition_and_the_newest_first() {
        let (mut shown, mut status) = (Shown::default(), samples::status());
        status.state = State::Running;
        for n in 0..2 * MAX_AGAIN {
            (status.id, status.position) = (format!("t{n}"), format!("{}:7", n % 4));
            shown.is_news(&status);
        }
        let all = shown.open(&Where::Everywhere);
        assert_eq!((all.len(), all[0].clone()), (MAX_AGAIN, format!("t{}", 2 * MAX_AGAIN - 1)));
        let some = shown.open(&Where::In([1].into()));
        assert_eq!((some.len(), some.last().map(String::as_str)), (MAX_AGAIN / 2, Some("t1")));
    }

    #[test]
    fn a_tree_ends_with_its_root() {
        let status = samples::status();
        let id = status.id.clone();
        let seen = |found: &[Status], gone: &[&str]| Seen {
            found: found.to_vec(),
            gone: gone.iter().map(|id| (*id).to_owned()).collect(),
        };
        assert_eq!(ending(&id, &seen(std::slice::from_ref(&status), &[])), Ok(Some(Code::Ok)));
        let child = format!("{id}:c");
        assert_eq!(ending(&id, &seen(&[], &[&child])), Ok(None));
        assert_eq!(ending(&id, &seen(&[], &[&id])).unwrap_err().code, Code::NotFound);
    }
}
