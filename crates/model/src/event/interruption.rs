//! Reasons for which an attempt ended without an outcome and starts again with its number.

/// Reason of an interruption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterruptionReason {
    /// The worker stopped, and the attempt outlasted its drain timeout.
    WorkerStopped,
    /// The partition moved to another worker, and the attempt outlasted the drain timeout.
    PartitionMoved,
    /// The worker lost the partition: its session or its consumer ended.
    PartitionLost,
    /// The process of the attempt died through no fault of the attempt.
    ProcessDied,
    /// The worker ended the process of the attempt, for a reason outside of the attempt.
    ProcessEnded,
    /// The worker reported no end of the attempt before another one started it.
    WorkerLost,
    /// The call of the attempt's batch failed as a whole, and runs again in parts.
    BatchSplit,
}

impl InterruptionReason {
    pub const ALL: [Self; 7] = [
        Self::WorkerStopped,
        Self::PartitionMoved,
        Self::PartitionLost,
        Self::ProcessDied,
        Self::ProcessEnded,
        Self::WorkerLost,
        Self::BatchSplit,
    ];

    /// Code in events and in the history.
    pub const fn code(self) -> &'static str {
        match self {
            Self::WorkerStopped => "worker_stopped",
            Self::PartitionMoved => "partition_moved",
            Self::PartitionLost => "partition_lost",
            Self::ProcessDied => "process_died",
            Self::ProcessEnded => "process_ended",
            Self::WorkerLost => "worker_lost",
            Self::BatchSplit => "batch_split",
        }
    }

    /// Returns `None` for the code of a newer build.
    pub fn of_code(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.code() == code)
    }

    /// Message for people.
    pub const fn message(self) -> &'static str {
        match self {
            Self::WorkerStopped => "the worker stopped before the attempt ended",
            Self::PartitionMoved => "the partition moved to another worker before the attempt ended",
            Self::PartitionLost => "the worker lost the partition before the attempt ended",
            Self::ProcessDied => "the process of the attempt died",
            Self::ProcessEnded => "the worker ended the process of the attempt",
            Self::WorkerLost => "the worker reported no end of the attempt before another one started it",
            Self::BatchSplit => "its batch failed as a whole, and runs again in parts",
        }
    }

    /// Describes the cause on a worker, after the word `by`.
    pub fn cause(self, worker: &str) -> String {
        match self {
            Self::WorkerStopped => format!("a stop of `{worker}`"),
            Self::PartitionMoved => format!("a move of its partition from `{worker}`"),
            Self::PartitionLost => format!("the loss of its partition by `{worker}`"),
            Self::ProcessDied => format!("the death of its process on `{worker}`"),
            Self::ProcessEnded => format!("the end of its process on `{worker}`"),
            Self::WorkerLost => format!("the loss of `{worker}`"),
            Self::BatchSplit => format!("the failure of its batch on `{worker}`"),
        }
    }
}
