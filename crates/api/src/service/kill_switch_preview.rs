//! `GET /v1/kill-switches/{name}/preview`: the tasks that a kill switch would cancel.

use std::time::Duration;

use futures::{StreamExt, stream};
use kafleet_documents::{KillSwitchPreview, KilledTask};
use kafleet_model::query::{Condition, Qualifier, TaskQuery, Term, Test, TreeLevel};
use kafleet_model::record::state::State;
use kafleet_model::task::kill::{KillMatch, KillParams};
use tokio::time::{Instant, timeout_at};

use super::context::{MAX_PAGE, RequestContext};
use super::kill_switches::{KillName, KillScope};
use super::list;
use super::task::{has_no_params, open_params};
use crate::http::problem::ApiError;
use crate::http::request::bad_parameter;
use crate::read::consistency::TaskView;
use crate::state::Api;

/// Maximum number of tasks that are listed.
const MAX_LISTED: usize = 10;
/// Maximum number of records whose params are read from Kafka at the same time.
const MAX_READS: usize = 16;

/// Counts the open tasks that a kill switch would cancel, for at most `time`.
pub async fn preview(
    context: RequestContext,
    name: KillName,
    scope: KillScope,
    time: Duration,
) -> Result<KillSwitchPreview, ApiError> {
    if !scope.params.is_empty() {
        // Masks follow from the control topic.
        context.api.fleet.wait_for_control_state().await?;
    }
    scope.check(&context, bad_parameter)?;
    let api = &context.api;
    let mut counter = Counter {
        name: name.as_str(),
        end: Instant::now() + time,
        preview: KillSwitchPreview { tagged: 0, prefixed: 0, matched: 0, running: 0, exact: true, tasks: Vec::new() },
    };
    if scope.params.is_empty() {
        // A task with the tag whose id begins with it too counts as tagged.
        let tagged = Test::Text(Qualifier::Tag, vec![counter.name.to_owned()]);
        if scope.matches != Some(KillMatch::IdPrefix) {
            counter.count(api, query(&scope, Some(tagged)), &Selection::Tagged).await?;
        }
        if scope.matches != Some(KillMatch::Tag) {
            let with_tags = scope.matches.is_some();
            let prefixed = query(&scope, Some(Test::Word(counter.name.to_owned())));
            counter.count(api, prefixed, &Selection::Prefixed { with_tags }).await?;
        }
    } else {
        counter.count(api, query(&scope, None), &Selection::Params(&scope.params)).await?;
    }
    api.reads.check_covered(None).await?;
    Ok(counter.preview)
}

/// Open tasks of all levels that fulfil a test.
fn query(scope: &KillScope, test: Option<Test>) -> TaskQuery {
    let of_type = scope.task_type.iter().map(|name| Test::Text(Qualifier::Type, vec![name.clone()]));
    let tests = [Test::Is(vec![Condition::Open]), Test::Level(TreeLevel::Any)];
    let tests = test.into_iter().chain(tests).chain(of_type);
    TaskQuery { terms: tests.map(|test| Term { negated: false, test }).collect() }
}

/// Tasks of a search that a kill switch concerns.
enum Selection<'a> {
    Tagged,
    /// `with_tags`: also those with the tag.
    Prefixed {
        with_tags: bool,
    },
    Params(&'a KillParams),
}

fn is_tagged(name: &str, task: &TaskView) -> bool {
    let policy = task.record.definition.policy.as_deref();
    policy.is_some_and(|policy| policy.tags.iter().any(|tag| tag == name))
}

struct Counter<'a> {
    name: &'a str,
    /// End of the search.
    end: Instant,
    preview: KillSwitchPreview,
}

impl Counter<'_> {
    /// Counts the tasks of a query, until the time is over.
    async fn count(&mut self, api: &Api, query: TaskQuery, selection: &Selection<'_>) -> Result<(), ApiError> {
        let mut cursor: Option<String> = None;
        loop {
            let left = self.end.saturating_duration_since(Instant::now());
            let reading = list::matches(&api.reads, query.clone(), cursor.as_deref(), MAX_PAGE, left);
            let Ok(matches) = timeout_at(self.end, reading).await else { break };
            let matches = matches?;
            // A task that only waits for others, or that another system runs, does not start.
            let starts = |task: &TaskView| !task.record.own.is_terminal() && !task.record.is_external();
            let tasks = matches.tasks.into_iter().filter(starts).collect();
            if !self.add_selected(api, tasks, selection).await? {
                break;
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

    /// Adds the tasks of a page that are concerned. Returns false if the time is over.
    async fn add_selected(
        &mut self,
        api: &Api,
        tasks: Vec<TaskView>,
        selection: &Selection<'_>,
    ) -> Result<bool, ApiError> {
        let name = self.name;
        let params = match selection {
            Selection::Tagged => {
                tasks.iter().filter(|task| is_tagged(name, task)).for_each(|task| self.add_named(task));
                return Ok(true);
            }
            Selection::Prefixed { with_tags } => {
                let is_prefixed = |task: &&TaskView| task.id.as_str().starts_with(name);
                let is_new = |task: &&TaskView| *with_tags || !is_tagged(name, task);
                tasks.iter().filter(is_prefixed).filter(is_new).for_each(|task| self.add_named(task));
                return Ok(true);
            }
            Selection::Params(params) => params,
        };
        let read = async |task| {
            let found = has_params(api, &task, params).await;
            found.map(|has_params| (has_params, task))
        };
        let reads = tasks.into_iter().map(read);
        let mut reads = stream::iter(reads).buffered(MAX_READS);
        loop {
            let Ok(next) = timeout_at(self.end, reads.next()).await else { return Ok(false) };
            let Some((has_params, task)) = next.transpose()? else { return Ok(true) };
            if has_params {
                self.preview.matched += 1;
                self.add(&task);
            }
        }
    }

    /// Adds a task that the name of the kill switch concerns.
    fn add_named(&mut self, task: &TaskView) {
        let is_tagged = is_tagged(self.name, task);
        *(if is_tagged { &mut self.preview.tagged } else { &mut self.preview.prefixed }) += 1;
        self.add(task);
    }

    /// Adds a task that is counted.
    fn add(&mut self, task: &TaskView) {
        let record = &task.record;
        let preview = &mut self.preview;
        preview.running += u64::from(matches!(record.own, State::Running | State::Warning));
        if preview.tasks.len() < MAX_LISTED {
            let task_type = record.task_type.as_deref().map(str::to_owned);
            preview.tasks.push(KilledTask { id: task.id.to_string(), task_type, state: record.own });
        }
    }
}

/// Returns whether the record of a task has the params of a kill switch. A record that is gone or invalid does not start.
async fn has_params(api: &Api, task: &TaskView, params: &KillParams) -> Result<bool, ApiError> {
    match open_params(api, task).await {
        Ok(found) => Ok(params.are_in(&found.params)),
        Err(error) if has_no_params(&error) => Ok(false),
        Err(error) => Err(error),
    }
}
