//! Errors that stop a worker.

use std::io;
use std::sync::Arc;

use kafleet_broker::BrokerError;
use kafleet_fleet::control::MisplacedCommits;
use kafleet_fleet::control::settings::FleetSettingsError;
use tokio::sync::oneshot::error::RecvError;
use tokio::task::JoinError;

use super::completions::MAX_TYPES;

/// Reason why a worker does not start, or stops without a request.
#[derive(Debug, thiserror::Error)]
pub(super) enum WorkerError {
    #[error("there is no handler for the type `{name}`; registered types: {registered}")]
    UnknownType { name: String, registered: String },
    #[error("there are no task types to run: register one, or add a `[types.<name>]` section")]
    NoTypes,
    #[error("{0} task types in one worker: at most {MAX_TYPES}; start more workers with `--types`")]
    TooManyTypes(usize),
    /// The handler's own reason.
    #[error("type `{task_type}`: {reason}")]
    Handler { task_type: Arc<str>, reason: String },
    #[error(
        "type `{0}` has `isolation = \"process\"`, and this process cannot be started again as a child; \
         hint: run it through `kafleet::app().main()`"
    )]
    NoReentry(Arc<str>),
    #[error("no guard process for child processes could be started")]
    Guard(#[source] io::Error),
    #[error("the producer cannot be opened")]
    Producer(#[source] BrokerError),
    #[error("the consumer of the group `{group}` cannot be opened")]
    Consumer { group: Arc<str>, source: BrokerError },
    #[error(
        "the consumer group `{0}` is named like the type `{0}`, which has a group of that name; \
         hint: choose another name in `[types.<name>] group` or `[worker] group`"
    )]
    GroupNamedLikeType(String),
    #[error(transparent)]
    MisplacedCommits(#[from] MisplacedCommits),
    #[error("the commits of a type in its recorded consumer group cannot be read")]
    Commits(#[source] BrokerError),
    #[error("the settings of the fleet cannot be read")]
    Settings(#[source] FleetSettingsError),
    #[error("the consumer group of a type cannot be recorded on the control topic")]
    GroupRecord(#[source] BrokerError),
    #[error("the record of a type's consumer group was not read back from the control topic in time")]
    GroupNotRecorded,
    #[error("a thread for the poll loop cannot be started")]
    Thread(#[source] io::Error),
    #[error("a dispatcher has panicked")]
    Dispatcher(#[source] JoinError),
    #[error("a poll loop ended without leaving its group")]
    PollLoop(#[source] RecvError),
}
