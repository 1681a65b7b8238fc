//! `GET /v1/kill-switches/{name}/preview`: the tasks that a kill switch would cancel.

use std::time::Duration;

use kafleet_documents::{KillSwitchPreview, KilledTask};
use kafleet_model::query::{Condition, Qualifier, TaskQuery, Term, Test, TreeLevel};
use kafleet_model::record::state::State;
use kafleet_model::task::kill::KillMatch;
use tokio::time::{Instant, timeout_at};

use super::context::{MAX_PAGE, RequestContext};
use super::list;
use super::operations::KillName;
use crate::http::problem::ApiError;
use crate::read::consistency::TaskView;
use crate::state::Api;

/// Maximum number of tasks that are listed.
const MAX_LISTED: usize = 10;

/// Restrictions of a kill switch.
#[derive(Default)]
pub struct KillScope {
    pub task_type: Option<String>,
    pub matches: Option<KillMatch>,
}

/// Counts the open tasks that a kill switch would cancel, for at most `time`.
pub async fn preview(
    RequestContext { api, .. }: RequestContext,
    name: KillName,
    scope: KillScope,
    time: Duration,
) -> Result<KillSwitchPreview, ApiError> {
    let mut counter = Counter {
        name: name.as_str(),
        end: Instant::now() + time,
        preview: KillSwitchPreview { tagged: 0, prefixed: 0, running: 0, exact: true, tasks: Vec::new() },
    };
    // A task with the tag whose id begins with it too counts as tagged.
    let tagged = Test::Text(Qualifier::Tag, vec![counter.name.to_owned()]);
    if scope.matches != Some(KillMatch::IdPrefix) {
        counter.count(&api, query(&scope, tagged), |counter, task| counter.is_tagged(task)).await?;
    }
    if scope.matches != Some(KillMatch::Tag) {
        let with_tags = scope.matches.is_some();
        let prefixed = query(&scope, Test::Word(counter.name.to_owned()));
        counter.count(&api, prefixed, |counter, task| counter.is_prefixed(task, with_tags)).await?;
    }
    api.reads.check_covered(None).await?;
    Ok(counter.preview)
}

/// Open tasks of all levels that fulfil a test.
fn query(scope: &KillScope, test: Test) -> TaskQuery {
    let of_type = scope.task_type.iter().map(|name| Test::Text(Qualifier::Type, vec![name.clone()]));
    let tests = [test, Test::Is(vec![Condition::Open]), Test::Level(TreeLevel::Any)].into_iter().chain(of_type);
    TaskQuery { terms: tests.map(|test| Term { negated: false, test }).collect() }
}

struct Counter<'a> {
    name: &'a str,
    /// End of the search.
    end: Instant,
    preview: KillSwitchPreview,
}

impl Counter<'_> {
    fn is_tagged(&self, task: &TaskView) -> bool {
        let policy = task.record.definition.policy.as_deref();
        policy.is_some_and(|policy| policy.tags.iter().any(|tag| tag == self.name))
    }

    fn is_prefixed(&self, task: &TaskView, with_tags: bool) -> bool {
        task.id.as_str().starts_with(self.name) && (with_tags || !self.is_tagged(task))
    }

    /// Counts the tasks of a query, until the time is over.
    async fn count(
        &mut self,
        api: &Api,
        query: TaskQuery,
        is_concerned: impl Fn(&Self, &TaskView) -> bool,
    ) -> Result<(), ApiError> {
        let mut cursor: Option<String> = None;
        loop {
            let left = self.end.saturating_duration_since(Instant::now());
            let reading = list::matches(&api.reads, query.clone(), cursor.as_deref(), MAX_PAGE, left);
            let Ok(matches) = timeout_at(self.end, reading).await else { break };
            let matches = matches?;
            for task in matches.tasks.iter().filter(|task| is_concerned(self, task)).collect::<Vec<_>>() {
                self.add(task);
            }
            cursor = matches.next;
            if cursor.is_none() {
                return Ok(());
            }
            if Instant::now() >= self.end {
                break;
            }
        }
        self.preview.exact = false;
        Ok(())
    }

    /// Adds a task, unless it only waits for others, or another system runs it.
    fn add(&mut self, task: &TaskView) {
        let record = &task.record;
        if record.own.is_terminal() || record.is_external() {
            return;
        }
        let is_tagged = self.is_tagged(task);
        let preview = &mut self.preview;
        if is_tagged {
            preview.tagged += 1;
        } else {
            preview.prefixed += 1;
        }
        preview.running += u64::from(matches!(record.own, State::Running | State::Warning));
        if preview.tasks.len() < MAX_LISTED {
            let task_type = record.task_type.as_deref().map(str::to_owned);
            preview.tasks.push(KilledTask { id: task.id.to_string(), task_type, state: record.own });
        }
    }
}
