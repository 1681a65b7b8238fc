//! Checks of submissions for a role without the API: the relay of an outbox refuses what the API refuses.

use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::Broker;
use kafleet_config::Topology;
use kafleet_documents::CreateTask;
use kafleet_fleet::control::{self, ControlState, ControlWatch, PolicyUpdates, follow::TopicFollower};
use kafleet_handlers::Registry;
use kafleet_model::task::{TaskSpec, Trace};
use kafleet_model::units::duration::Millis;

use crate::backends::KAFKA_DEADLINE;
use crate::http::problem::ApiError;
use crate::state::BROKER_CALLS;
use crate::write::declared::DeclaredTypes;
use crate::write::types::{Topics, TypeCatalog};
use crate::write::validate::{SubmissionChecks, check_no_group};

/// Lowest status of an answer that says nothing about the request.
const SERVER_ERROR: u16 = 500;
const TOO_MANY_REQUESTS: u16 = 429;

/// Checks of submissions with their view of the fleet's types, which ends when it is dropped.
pub struct Submissions {
    checks: SubmissionChecks,
    control: Arc<ControlWatch>,
    _following: TopicFollower,
}

/// Reason why a submission does not become a task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmissionError {
    /// The submission is invalid: repeating it fails again.
    #[error("{0}")]
    Invalid(String),
    /// The types of the fleet cannot be read now.
    #[error("the task cannot be checked now: {0}")]
    Unavailable(String),
}

impl Submissions {
    /// Follows the types of a fleet. `registry`: types of this process.
    pub fn open(broker: &Arc<dyn Broker>, registry: Registry, topology: Topology, max_tree_age: Millis) -> Self {
        let control = ControlWatch::new(ControlState::without_task_commands().with_types());
        let following = control::follow_control(control.clone(), broker.clone(), &topology.names, None);
        let types = Arc::new(TypeCatalog {
            registry,
            declared: DeclaredTypes::new(control.clone()),
            policies: PolicyUpdates::default(),
            broker: broker.client().with_deadline(KAFKA_DEADLINE).with_limit(BROKER_CALLS),
            topology: Arc::new(topology),
            max_tree_age,
            topics: Topics::default(),
        });
        Self { checks: SubmissionChecks { types }, control, _following: following }
    }

    /// Waits until the declarations of types are read, at most for this time.
    ///
    /// # Errors
    /// `Unavailable` at the end of the time.
    pub async fn wait_until_read(&self, longest: Duration) -> Result<(), SubmissionError> {
        let names = &self.checks.types.topology.names;
        let read = self.control.wait_until_read_within(longest, names).await;
        read.map_err(|error| SubmissionError::Unavailable(error.to_string()))
    }

    /// Checks a submission as `POST /v1/tasks` does. A parent is not looked up: the task belongs to its first run. Delays count
    /// from `now_ms`, in epoch milliseconds.
    ///
    /// # Errors
    /// `Invalid` names the field and a hint; `Unavailable` while Kafka cannot be read.
    pub async fn check(
        &self,
        input: CreateTask,
        trace: Option<&Trace>,
        now_ms: i64,
    ) -> Result<TaskSpec, SubmissionError> {
        if !self.checks.types.declared.is_read() {
            return Err(SubmissionError::Unavailable("the declarations of types are not read yet".to_owned()));
        }
        let task = self.checks.validate(input, now_ms, trace).map_err(of_api)?;
        check_no_group(&task).map_err(of_api)?;
        self.checks.check_types(&task).await.map_err(of_api)?;
        Ok(task)
    }
}

fn of_api(error: ApiError) -> SubmissionError {
    let problem = error.document();
    let field = problem.pointer.map(|pointer| format!("`{}`: ", pointer.trim_start_matches('/')));
    let hint = problem.hint.map(|hint| format!("; {hint}"));
    let text = format!("{}{}{}", field.unwrap_or_default(), problem.detail, hint.unwrap_or_default());
    if problem.status >= SERVER_ERROR || problem.status == TOO_MANY_REQUESTS {
        SubmissionError::Unavailable(text)
    } else {
        SubmissionError::Invalid(text)
    }
}
