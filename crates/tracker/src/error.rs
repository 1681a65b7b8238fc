//! Errors of the tracker's work.

use std::io;

use kafleet_broker::BrokerError;
use kafleet_fleet::control::ControlNotRead;
use kafleet_fleet::publish::PublishError;
use kafleet_model::encode_error::EncodeError;
use kafleet_model::task::id::{IdError, TaskId};
use kafleet_store::StoreError;
use tokio::sync::oneshot::error::RecvError;

/// Reason why a pass of the tracker failed. The caller logs it, or reports it as not ready, and repeats the pass.
#[derive(Debug, thiserror::Error)]
pub enum TrackerError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Broker(#[from] BrokerError),
    #[error(transparent)]
    Control(#[from] ControlNotRead),
    #[error(transparent)]
    Publish(#[from] PublishError),
    #[error(transparent)]
    Encode(#[from] EncodeError),
    #[error(transparent)]
    Id(#[from] IdError),
    #[error("the store has lost writes")]
    LostWrites,
    /// Cancelled trees can be visited only once their cancels are folded.
    #[error("the store is behind the end of the cancelled trees")]
    BehindCancels,
}

impl From<serde_json::Error> for TrackerError {
    fn from(error: serde_json::Error) -> Self {
        Self::Encode(error.into())
    }
}

/// Reason why a tracker does not start, or stops before its shutdown is requested.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TrackerStopped {
    #[error("the consumer of events cannot be opened")]
    Consumer(#[source] BrokerError),
    #[error("a thread for the poll loop cannot be started")]
    PollThread(#[source] io::Error),
    #[error("the announcer's producer cannot be opened")]
    AnnouncerProducer(#[source] BrokerError),
    #[error("a thread for the announcer cannot be started")]
    AnnouncerThread(#[source] io::Error),
    #[error("the tracker's poll loop ended without leaving its group")]
    PollLoop(#[source] RecvError),
    #[error("the consumer of events failed")]
    ConsumerFailed(#[source] BrokerError),
}

/// Reason why a task's record cannot be published, now or later. The task fails with this message.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unpublishable {
    #[error("the topic `{0}` does not exist (hint: add its type and run `kafleet topics apply`)")]
    MissingTopic(String),
    #[error(transparent)]
    Rejected(BrokerError),
    #[error(
        "the task's record is no longer in Kafka (hint: submit the task again; `topics.task_retention` is the retention of records)"
    )]
    RecordRemoved,
    #[error("the event with the task's record is no longer in Kafka (hint: submit the task again)")]
    EventRemoved,
    #[error("its record cannot be read: another version wrote it")]
    UnknownVersion,
    #[error("it has no parent task")]
    NoParent,
    #[error("`{0}` no longer defines this continuation")]
    Undefined(TaskId),
    #[error(
        "the results of the children of `{parent}` exceed {limit_mib} MiB in total: {fitting} of them fit (hint: return links from the children, or omit `with_results` and read `GET /v1/tasks/{parent}/children`)"
    )]
    ResultsTooLarge { parent: TaskId, limit_mib: usize, fitting: usize },
    #[error(transparent)]
    Params(#[from] EncodeError),
}
