//! `POST /v1/preview`: the outcome that the creation of a task would have, without creating it.

use kafleet_documents::{CreateTask, Problem, TaskPreview};
use kafleet_model::json::RawJson;
use kafleet_model::task::TaskSpec;
use kafleet_model::units::time::time_text;

use super::context::RequestContext;
use super::create::task_of;
use crate::http::problem::{ApiError, Code};
use crate::state::Api;

/// Maximum number of problems that are listed.
const MAX_PROBLEMS: usize = 20;

/// Checks a task as its creation would.
pub async fn preview(RequestContext { api, .. }: RequestContext, input: CreateTask) -> Result<TaskPreview, ApiError> {
    let (task_type, params) = (input.task_type.clone(), input.params.clone());
    match task_of(&api, input, None).await {
        Ok(task) => accepted(&api, &task).await,
        Err(error) => refused(all_errors(&api, error, &task_type, &params)),
    }
}

async fn accepted(api: &Api, task: &TaskSpec) -> Result<TaskPreview, ApiError> {
    let existing = if task.has_generated_id { Ok(None) } else { api.writes.existing(task).await };
    match existing {
        Ok(existing) => Ok(TaskPreview {
            valid: true,
            problems: Vec::new(),
            id: (!task.has_generated_id).then(|| task.id.to_string()),
            exists: existing.is_some(),
            starts_at: task.policy.as_ref().and_then(|policy| policy.not_before_ms).map(time_text),
        }),
        Err(error) => refused(vec![error]),
    }
}

/// All errors of the params, if the first one is theirs.
fn all_errors(api: &Api, first: ApiError, task_type: &str, params: &RawJson) -> Vec<ApiError> {
    let is_of_params = first.is(Code::Schema)
        && first.clone().document().pointer.is_some_and(|pointer| pointer.starts_with("/params"));
    let errors = if is_of_params {
        api.writes.types.params_errors(task_type, params, "/params", MAX_PROBLEMS)
    } else {
        Vec::new()
    };
    // A hook of the application may have changed the params.
    if errors.is_empty() { vec![first] } else { errors }
}

fn refused(errors: Vec<ApiError>) -> Result<TaskPreview, ApiError> {
    let problems = client_problems(errors)?;
    Ok(TaskPreview { valid: false, problems, id: None, exists: false, starts_at: None })
}

/// Problems of what the caller has sent. Fails with another one, such as that Kafka does not answer.
pub(crate) fn client_problems(errors: Vec<ApiError>) -> Result<Vec<Problem>, ApiError> {
    let mut problems = Vec::with_capacity(errors.len());
    for error in errors {
        let problem = error.clone().document();
        if problem.status >= 500 {
            return Err(error);
        }
        problems.push(problem);
    }
    Ok(problems)
}
