//! Many tasks at once. The api tells which have changed; each is read again, at the place of its change, and shown where it
//! is not what was shown before.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use rustc_hash::FxHashMap;

use super::{Mark, show};
use crate::api::documents::{FleetChange, Status, TaskPage};
use crate::cli::client::{Client, Follow, Query, forgotten};
use crate::cli::outcome::{Code, Failure, Outcome};
use crate::cli::screen::{Screen, tell};
use crate::cli::wait::code_of;
use crate::runtime::Backoff;

/// Tasks read at once.
const AT_ONCE: usize = 8;
/// Tasks whose last line is remembered; one that is forgotten may be shown twice.
const REMEMBERED: usize = 20_000;
/// Tasks of a tree that are looked at where anything may have changed.
const MAX_TREE: usize = 10_000;
const PAGE: usize = 200;
/// Reads tried one after the other while the api is away: about half a minute.
const TRIES: u32 = 12;

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
}

impl Shown {
    /// Remembers it, and says whether it is to be shown.
    fn is_news(&mut self, status: &Status) -> bool {
        let last = Last { mark: Mark::of(status), has_ended: status.state.is_terminal() };
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

    /// Those that went on when they were shown.
    fn open(&self) -> Vec<String> {
        let is_open = |id: &&String| self.last.get(*id).is_some_and(|last| !last.has_ended);
        self.order.iter().filter(is_open).cloned().collect()
    }
}

pub async fn follow(client: &Client, screen: &Screen, scope: Scope) -> Outcome {
    if let Scope::Type(name) = &scope {
        known(client, name).await?;
    }
    let mut changes = Follow::open_fleet(client, scope.query()).await?;
    let (mut shown, mut begun) = (Shown::default(), false);
    loop {
        let change = changes.change().await?;
        let found = match (&change.ids, &scope) {
            (Some(ids), _) => those(client, ids, change.position.as_deref()).await?,
            (None, Scope::Tree(root)) => whole(client, root).await?,
            (None, _) => those(client, &shown.open(), None).await?,
        };
        match (change.ids.is_none(), begun, &scope) {
            (_, false, _) => tell(format_args!("watching {scope}")),
            (false, ..) | (.., Scope::Tree(_)) => {}
            _ => tell("more has changed than is told one by one: lines of tasks that were not shown before may be missing"),
        }
        begun = true;
        for status in found.iter().filter(|status| scope.has(status) && shown.is_news(status)) {
            show(screen, status, Some(&name_of(status)))?;
        }
        if let Scope::Tree(root) = &scope
            && let Some(code) = ending(root, &found, &change)?
        {
            return Ok(code);
        }
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
fn ending(root: &str, found: &[Status], change: &FleetChange) -> Result<Option<Code>, Failure> {
    let is_named = change.ids.as_ref().is_none_or(|ids| ids.iter().any(|id| id == root));
    match found.iter().find(|status| status.id == root) {
        Some(status) => Ok(status.state.is_terminal().then(|| code_of(status.state))),
        None if is_named => Err(forgotten(root)),
        None => Ok(None),
    }
}

/// These tasks, not older than that; those that are gone are left out.
async fn those(client: &Client, ids: &[String], position: Option<&str>) -> Result<Vec<Status>, Failure> {
    let after: Query = position.iter().map(|position| ("after", (*position).to_owned())).collect();
    let read = |id: &String| {
        let (id, after) = (id.clone(), after.clone());
        async move {
            match patiently(async || client.get::<Status>(&["v1", "tasks", &id], &after).await).await {
                Err(why) if why.code == Code::NotFound => Ok(None),
                answer => answer.map(Some),
            }
        }
    };
    let reads: Vec<_> = ids.iter().map(read).collect();
    let found: Vec<Result<Option<Status>, Failure>> = stream::iter(reads).buffered(AT_ONCE).collect().await;
    found.into_iter().filter_map(Result::transpose).collect()
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

/// While the api is away it is asked again.
async fn patiently<T>(mut ask: impl AsyncFnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(3));
    for _ in 0..TRIES {
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
    use crate::cli::card::samples;

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
        assert_eq!((shown.last.len(), shown.order.len(), shown.open().len()), (REMEMBERED, REMEMBERED, 0));
    }

    #[test]
    fn a_tree_ends_with_its_root() {
        let status = samples::status();
        let (id, found) = (status.id.clone(), [status]);
        let change = |ids: Option<Vec<String>>| FleetChange { ids, partition: Some(0), position: Some("0:1".into()) };
        assert_eq!(ending(&id, &found, &change(Some(vec![id.clone()]))), Ok(Some(Code::Ok)));
        assert_eq!(ending(&id, &[], &change(Some(vec![format!("{id}:c")]))), Ok(None));
        assert_eq!(ending(&id, &[], &change(Some(vec![id.clone()]))).unwrap_err().code, Code::NotFound);
        assert_eq!(ending(&id, &[], &change(None)).unwrap_err().code, Code::NotFound);
    }
}
