//! Bulk actions: cancels, retries and starts of all tasks that match a search, and redrives of dead letters. Each action is an external task of the
//! type [`BULK_TYPE`], whose `options` hold its specification. An API server [runs](runner) it; if that server stops,
//! another one takes over.

use kafleet_documents::{
    Audit, BulkAction, BulkPreview, BulkRequest, BulkSample, BulkSelection, CreateTask, DeadLetterFilter, Status,
    TaskPage, UnchangedTasks,
};
use kafleet_model::event::{Event, Payload};
use kafleet_model::json::RawJson;
use kafleet_model::projection::audit::MAX_AUDIT;
use kafleet_model::query::{MAX_VALUES, Qualifier, QueryTime, TaskQuery, Term, Test};
use kafleet_model::record::TaskRecord;
use kafleet_model::record::state::State;
use kafleet_model::task::Policy;
use kafleet_model::task::id::{BULK_TYPE, TaskId};
use kafleet_runtime::now_ms;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

use super::list::{self, MAX_SCAN_TIME};
use super::statistics::{self, AuditQuery};
use crate::backends::detached;
use crate::http::problem::{ApiError, Code};
use crate::http::request::bad_query;
use crate::read::consistency::TaskView;
use crate::read::status::status;
use crate::service::context::{MAX_PAGE, RequestContext, check_reason};
use crate::state::Api;
use crate::write::validate::bad_field;
use spec::{BulkSpec, Decision};

mod redrive;
mod runner;
mod runs;
mod spec;

pub(crate) use runner::start;
pub(crate) use runs::BulkRuns;

/// Default of `limit`: the maximum number of tasks that an action changes.
pub(crate) const DEFAULT_LIMIT: u64 = 100;
/// Maximum of `limit`.
const MAX_LIMIT: u64 = 10_000_000;
/// Maximum number of ids in a preview.
const MAX_SAMPLE: usize = 10;
/// Maximum number of tasks in a preview.
const MAX_TASKS: usize = 20;
/// Maximum number of characters of an error in a preview and in a specification.
const MAX_ERROR_CHARS: usize = 200;

/// Requests a bulk action, and returns its task.
pub async fn request(context: RequestContext, input: BulkRequest) -> Result<Status, ApiError> {
    check_reason(input.reason.as_deref())?;
    let limit = input.limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(bad_field("limit", format!("it must be from 1 to {MAX_LIMIT}")));
    }
    let api = context.api.clone();
    let (by, reason) = (context.by.clone(), input.reason.clone());
    let spec = BulkSpec { limit, by, reason, ..BulkSpec::new(input.action) };
    let spec = match input.action {
        BulkAction::Redrive => redrive::specify(&api, spec, input).await?,
        _ => specify(&api, spec, input).await?,
    };
    let id = uuid::Uuid::now_v7().to_string();
    let operation = context.operation(&format!("bulk_{}", spec.action.name()), &id, spec.reason.as_deref());
    let task = detached(async move {
        api.fleet.record_operation(&operation).await?;
        create(&api, &id, &spec).await
    });
    Ok(status(&task.await?))
}

/// Adds the tasks to a specification.
async fn specify(api: &Api, spec: BulkSpec, input: BulkRequest) -> Result<BulkSpec, ApiError> {
    check_without_letters(input.letters.as_ref(), input.patch.as_ref())?;
    let query = absolute(query_of(input.q.as_deref(), &input.ids)?, now_ms());
    // Rejects a search that cannot be executed: its action would be retried without end.
    let first = list::matches(&api.reads, query.clone(), None, 1, MAX_SCAN_TIME).await?.tasks;
    let error = first.first().filter(|_| names_error(&query)).and_then(error_text);
    api.reads.check_covered(None).await?;
    let partitions = api.reads.partitions();
    let checkpoints = api.reads.checkpoints(&partitions).await?;
    let checkpoints = checkpoints.into_iter().map(|checkpoint| checkpoint.map_or(0, |checkpoint| checkpoint.offset));
    let checkpoints = partitions.into_iter().zip(checkpoints).collect();
    Ok(BulkSpec { q: query.to_string(), error, checkpoints, ..spec })
}

/// Rejects fields of dead letters in a request for another action.
fn check_without_letters(letters: Option<&DeadLetterFilter>, patch: Option<&RawJson>) -> Result<(), ApiError> {
    match (letters, patch) {
        (Some(_), _) => Err(bad_field("letters", "only the action `redrive` takes dead letters".into())),
        (None, Some(_)) => Err(bad_field("patch", "only the action `redrive` changes params".into())),
        (None, None) => Ok(()),
    }
}

/// Creates the task of a bulk action in the state `running`, so that other API servers find it in the index of running
/// tasks, and runs the action here.
async fn create(api: &Api, id: &str, spec: &BulkSpec) -> Result<TaskView, ApiError> {
    let options = RawJson::of(spec).map_err(|_| ApiError::internal())?;
    let mut policy = Policy { name: Some(title(spec)), ..Policy::default() };
    policy.creator = spec.by.as_deref().map(Into::into);
    (policy.rules.external, policy.rules.options) = (true, Some(options));
    let input =
        CreateTask { task_type: BULK_TYPE.to_owned(), id: Some(id.to_owned()), policy, ..CreateTask::default() };
    let task = api.writes.checks.validate_any_type(input, now_ms(), None)?;
    let task = api.writes.submit(task).await?.task;
    let payload = Payload::Reported { state: Some(State::Running), output: None, error: None };
    let reported = api.writes.publish_event(Event::new(payload, task.id.clone(), task.record.run, now_ms())).await;
    // Also after an error: no other API server looks for an action that is not in the index of running tasks.
    api.bulk.wake(&task.id);
    if let Err(error) = reported {
        // The action runs nevertheless: an error would make the client request it twice.
        tracing::warn!(task = %task.id, ?error, "cannot report that a bulk action runs; its first progress will");
    }
    Ok(task)
}

/// Returns the name of a bulk action's task.
fn title(spec: &BulkSpec) -> String {
    let words = spec.action.name().replace('_', " ");
    let text: String = format!("{words} {}", spec.selection()).chars().take(200).collect();
    text.trim_end().to_owned()
}

/// Returns the newest bulk actions. Ended actions are in no index, so the ids come from the audit log.
pub async fn newest(api: &Api, limit: usize) -> Result<TaskPage, ApiError> {
    let Audit { requests, incomplete } = statistics::read_audit(&api.reads, &AuditQuery::newest(MAX_AUDIT)).await?;
    let requests = requests.into_iter().filter(|request| request.action.starts_with("bulk_"));
    let ids: Vec<TaskId> = requests.filter_map(|request| TaskId::parse(&request.target).ok()).take(limit).collect();
    if ids.is_empty() {
        return Ok(TaskPage { incomplete, ..TaskPage::default() });
    }
    let query = TaskQuery { terms: vec![Term { negated: false, test: Test::Id(ids) }] };
    let page: TaskPage = list::matches(&api.reads, query, None, limit, MAX_SCAN_TIME).await?.into();
    // The audit log may name actions whose records have already been removed.
    Ok(TaskPage { missing: Vec::new(), ..page })
}

/// Counts the tasks that an action would change, for at most `time`.
pub async fn preview(api: &Api, selection: BulkSelection, time: Duration) -> Result<BulkPreview, ApiError> {
    if selection.action == BulkAction::Redrive {
        return redrive::preview(api, &selection, time).await;
    }
    check_without_letters(selection.letters.as_ref(), selection.patch.as_ref())?;
    let query = query_of(selection.q.as_deref(), &selection.ids)?;
    let spec = BulkSpec::new(selection.action);
    let mut preview = BulkPreview { exact: true, ..BulkPreview::default() };
    let end = Instant::now() + time;
    let mut cursor = None;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let reading = list::matches(&api.reads, query.clone(), cursor.as_deref(), MAX_PAGE, left);
        let matches = match &cursor {
            None => reading.await?,
            // With a part of the tasks counted, the rest may take the time that is left.
            Some(_) => match timeout_at(end, reading).await {
                Ok(matches) => matches?,
                Err(_) => break,
            },
        };
        preview.scanned += matches.scanned.unwrap_or(matches.tasks.len() as u64);
        count_changing(&mut preview, &spec, &matches.tasks);
        cursor = matches.next;
        if cursor.is_none() || Instant::now() >= end {
            break;
        }
    }
    api.reads.check_covered(None).await?;
    preview.exact = cursor.is_none();
    Ok(preview)
}

fn count_changing(preview: &mut BulkPreview, spec: &BulkSpec, tasks: &[TaskView]) {
    preview.matching += tasks.len() as u64;
    for task in tasks {
        match spec.decide(task, None, now_ms()) {
            Decision::Publish(_) => add_changing(preview, task),
            Decision::Skip(state) => count_unchanged(preview, state, None),
            Decision::Refuse(error) => count_refused(preview, error),
        }
    }
}

fn add_changing(preview: &mut BulkPreview, task: &TaskView) {
    preview.changing += 1;
    if preview.sample.len() < MAX_SAMPLE {
        preview.sample.push(task.id.to_string());
    }
    if preview.tasks.len() < MAX_TASKS {
        preview.tasks.push(BulkSample { error: error_text(task), ..sample_of(Some(&task.id), Some(&task.record)) });
    }
}

/// Sample of a task without its error.
fn sample_of(id: Option<&TaskId>, record: Option<&TaskRecord>) -> BulkSample {
    let policy = record.and_then(|record| record.definition.policy.as_deref());
    BulkSample {
        id: id.map(ToString::to_string),
        state: record.map(|record| record.state),
        task_type: record.and_then(|record| record.task_type.as_deref()).map(str::to_owned),
        name: policy.and_then(|policy| policy.name.clone()),
        error: None,
        letter: None,
    }
}

/// Counts a task that would be refused, by the title of its problem.
fn count_refused(preview: &mut BulkPreview, error: ApiError) {
    let document = error.document();
    count_unchanged(preview, &document.title, Some(document.detail));
}

/// Counts a task that would stay as it is. `example`: the cause in detail.
fn count_unchanged(preview: &mut BulkPreview, cause: &str, example: Option<String>) {
    match preview.unchanged.iter_mut().find(|known| known.cause == cause) {
        Some(known) => known.tasks += 1,
        None => preview.unchanged.push(UnchangedTasks { cause: cause.to_owned(), tasks: 1, example }),
    }
}

/// Beginning of a task's error.
fn error_text(task: &TaskView) -> Option<String> {
    let error = task.record.outcome.error.as_deref()?;
    Some(error.text().chars().take(MAX_ERROR_CHARS).collect())
}

fn names_error(query: &TaskQuery) -> bool {
    query.terms.iter().any(|term| !term.negated && matches!(term.test, Test::Text(Qualifier::Error, _)))
}

/// Returns the query of the tasks to change, given as a search or as ids.
fn query_of(q: Option<&str>, ids: &[String]) -> Result<TaskQuery, ApiError> {
    match (q, ids) {
        (Some(_), [_, ..]) => Err(bad_field("ids", "`q` and `ids` are mutually exclusive".into())),
        (Some(text), []) => {
            let query = TaskQuery::parse(text).map_err(|mistake| bad_query(text, mistake).below("/q"))?;
            if query.terms.is_empty() { Err(empty_search()) } else { Ok(query) }
        }
        (None, []) => Err(bad_field("q", "it is missing: name the tasks by `q` or `ids`".into())),
        (None, ids) if ids.len() > MAX_VALUES => {
            Err(bad_field("ids", format!("there are {} ids; the maximum is {MAX_VALUES}", ids.len()))
                .hint("select more tasks by a search"))
        }
        (None, ids) => {
            let test = Test::Id(parsed_ids(ids)?);
            Ok(TaskQuery { terms: vec![Term { negated: false, test }] })
        }
    }
}

fn empty_search() -> ApiError {
    bad_field("q", "an empty search would select all tasks".into())
        .hint("name at least one condition, such as `type:resize`, or `level:any`")
}

fn parsed_ids(ids: &[String]) -> Result<Vec<TaskId>, ApiError> {
    let parse = |(n, id): (usize, &String)| {
        TaskId::parse(id).map_err(|error| ApiError::new(Code::BadId, error.to_string()).pointer(format!("/ids/{n}")))
    };
    ids.iter().enumerate().map(parse).collect()
}

/// Replaces the ages in a query by absolute times, so that it selects the same tasks whenever it is executed.
pub fn absolute(query: TaskQuery, now_ms: i64) -> TaskQuery {
    let at = |time: QueryTime| QueryTime::At(time.resolve(now_ms));
    let absolute = |term: Term| match term.test {
        Test::From(time) => Term { test: Test::From(at(time)), ..term },
        Test::To(time) => Term { test: Test::To(at(time)), ..term },
        test => Term { test, ..term },
    };
    TaskQuery { terms: query.terms.into_iter().map(absolute).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_become_times() {
        let query = absolute(TaskQuery::parse("type:a from:2h -tag:x").unwrap(), 10 * 3_600_000);
        assert_eq!(query.to_string(), "type:a from:1970-01-01T08:00:00.000Z -tag:x");
        assert_eq!(TaskQuery::parse(&query.to_string()).unwrap(), query);
    }

    #[test]
    fn tasks_are_named_by_a_search_or_by_ids() {
        let ids = ["a:b".to_owned(), "c".to_owned()];
        assert_eq!(query_of(None, &ids).unwrap().to_string(), "id:a:b,c");
        for (q, ids) in [(None, &[][..]), (Some("type:a"), &ids[..]), (Some(" "), &[]), (Some("typ:a"), &[])] {
            assert!(query_of(q, ids).is_err(), "{q:?} {ids:?}");
        }
        assert!(query_of(None, &vec!["a".to_owned(); 101]).is_err());
    }
}
