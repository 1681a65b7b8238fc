//! Documents that explain the state of a task.

use kafleet_model::record::state::State;
use kafleet_model::task::id::TaskId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `GET /v1/tasks/{id}/why`: explains the state of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Why {
    pub id: String,
    pub state: State,
    /// Explanations, most important first; never empty.
    pub findings: Vec<Finding>,
}

/// Single explanation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    pub code: Reason,
    /// Human-readable explanation and remedy.
    pub message: String,
    /// Id of the task concerned, if it is another one.
    #[serde(default)]
    pub task: Option<String>,
    /// Number of tasks ahead of this one in its partition.
    #[serde(default)]
    pub ahead: Option<u64>,
    /// `ahead` and `lag` are upper bounds: some of the counted offsets may not hold tasks, for example transaction
    /// markers.
    #[serde(default)]
    pub at_most: bool,
    /// Throughput of the task's partition in tasks per second, measured during this request.
    #[serde(default)]
    pub rate: Option<f64>,
    /// Consumer lag of the task's type in tasks, over all partitions.
    #[serde(default)]
    pub lag: Option<u64>,
    /// Milliseconds since the last event of a running task, also of progress or log lines, or the last heartbeat that lists it.
    #[serde(default)]
    pub quiet_ms: Option<u64>,
    /// Estimated milliseconds until the task starts: at the measured rate, or where nothing has moved meanwhile at that of its type
    /// in the last minutes.
    #[serde(default)]
    pub expected_in_ms: Option<u64>,
}

impl Finding {
    /// Creates an explanation from its code and its text.
    pub fn new(code: Reason, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), ..Self::default() }
    }

    /// Sets the task concerned.
    pub fn about(self, task: &TaskId) -> Self {
        Self { task: Some(task.to_string()), ..self }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The projection lags behind the log, so this response may be out of date.
    #[default]
    ProjectionLag,
    /// A child or an event refers to the task, but it has not been published.
    NotPublished,
    /// Kafka no longer retains the task's record; no worker can take it.
    RecordGone,
    /// The task's type is paused.
    Paused,
    /// A kill switch matches the task; it will be cancelled instead of started.
    MatchesKillSwitch,
    /// No live worker takes the task's type.
    NoWorker,
    /// The worker stopped starting tasks of this type after too many failures.
    Stopped,
    /// The worker starts only single probes of this type, because the service behind it does not answer.
    CircuitOpen,
    /// The worker starts only single probes of the host that the task calls, because it does not answer.
    HostOpen,
    /// The worker cannot run tasks of this type, because no process of the type's app serves.
    AppDown,
    /// The worker has no start offset for the task's partition and needs one from an operator.
    NoStartOffset,
    /// The adaptive limit of the task's type is reached: the service behind it takes no more at once.
    AdaptiveLimit,
    /// The worker waits for more tasks to start them together.
    BatchForms,
    /// A concurrency or rate limit is reached, or all slots are in use.
    LimitReached,
    /// No worker has ever consumed the task's partition.
    NeverConsumed,
    /// Other tasks are ahead in the partition.
    QueuedBehind,
    /// The oldest unfinished task of the partition blocks the tasks behind it (head-of-line blocking).
    HeadOfLineBlocked,
    /// An open transaction of a producer holds back the task's partition.
    OpenTransaction,
    /// Keys of the task's type are in other partitions than they belong into: their attempts may overlap.
    MisplacedKeys,
    /// Another task was submitted with the same id; the first one counts.
    SameId,
    /// A worker is done with the task; its result is not visible yet.
    ResultPending,
    /// A retry was requested; the task's record has not been published again yet.
    RepublishPending,
    Running,
    /// Attempts ended without an outcome, such as by a stop of their worker; the task waits for a worker again.
    Interrupted,
    /// The task's worker sends no heartbeats.
    WorkerSilent,
    /// The last attempt failed; the task waits for the next one.
    Retrying,
    /// The last attempt ended with a wait, which does not count as an attempt.
    Waiting,
    Scheduled,
    /// A descendant is still open.
    OpenChild,
    /// The task is run by an external system and has the state last reported.
    External,
    Ended,
    /// The task never ran: its record was deleted, or never published.
    Lost,
    /// A descendant failed.
    FailedChild,
    /// The outcome of the task did not start some of its continuations.
    ContinuationNotStarted,
    /// The task is unique and kept until another one of its key has ended.
    UniqueWaits,
}
