//! Steps of a scenario: requests of clients, and faults.

use kafleet::model::schedule::Overlap;
use kafleet::model::unique::UniqueMode;
use serde::{Deserialize, Serialize};

use crate::task_types::Script;

/// Process of a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ProcessId {
    Worker(usize),
    Tracker(usize),
    Api,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum SubmitVia {
    /// Over the API, with a delay.
    Api { delay_ms: u64 },
    /// With a plain Kafka producer, without an event.
    Kafka,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Step {
    Submit {
        root: usize,
        via: SubmitVia,
    },
    /// External task whose states a client reports.
    External {
        root: usize,
        fails: bool,
    },
    /// Task of the tree, by the path of child numbers.
    Cancel {
        root: usize,
        path: Vec<usize>,
    },
    Retry {
        root: usize,
        path: Vec<usize>,
        only_failed: bool,
    },
    /// Starts a root now whenever it waits for its next attempt, until its first run has ended.
    StartNow {
        root: usize,
    },
    Redrive {
        unordered: bool,
    },
    /// Crash after a number of steps, and restart later.
    Crash {
        process_id: ProcessId,
        steps: u32,
        back_ms: u64,
    },
    /// Graceful stop, and restart later.
    Restart {
        process_id: ProcessId,
        back_ms: u64,
    },
    Freeze {
        process_id: ProcessId,
        ms: u64,
    },
    /// Every call to the store fails.
    StoreOutage {
        ms: u64,
    },
    WipeStore,
    /// Restore of a snapshot taken some seconds ago.
    RollBackStore,
    /// Per mille of the calls and sends to the broker and the store fail.
    FailCalls {
        permille: u32,
        ms: u64,
    },
    /// Transactions of an events partition stay open.
    HoldTransactions {
        partition: u32,
        ms: u64,
    },
    /// Graceful stop, and restart with the newer or the original build.
    ChangeBuild {
        tracker: usize,
        newer: bool,
        back_ms: u64,
    },
    AddPartition {
        unordered: bool,
    },
    /// Pause of a type.
    Pause {
        unordered: bool,
        ms: u64,
    },
    /// Circuit of a type, opened by an operator.
    OpenCircuit {
        unordered: bool,
        ms: u64,
    },
    /// Slots of a type in each worker, set by an operator.
    Limit {
        unordered: bool,
        slots: u32,
        ms: u64,
    },
    /// Outage of the service that callers call.
    Outage {
        ms: u64,
    },
    /// Task that calls the service, with the duration of its call.
    Call {
        call: usize,
        ms: u64,
    },
    /// Submission of a unique task of a key, with the duration of its attempt.
    Ask {
        ask: usize,
        key: usize,
        mode: UniqueMode,
        via: SubmitVia,
        ms: u64,
    },
    /// Submission of tasks of the type with an adaptive limit, whose service takes so many calls at once from then on.
    MeteredCalls {
        group: usize,
        count: usize,
        capacity: usize,
    },
    /// Kill switch against a tree: its tasks are cancelled when a worker receives them.
    Kill {
        root: usize,
        ms: u64,
    },
    /// Kill switch against the tasks of a root's type whose params have two values of the root's.
    KillParams {
        root: usize,
        ms: u64,
    },
    /// Creation of a schedule that ends after a time.
    CreateSchedule {
        schedule: usize,
        spec: ScheduleSpec,
        for_ms: u64,
    },
    ChangeSchedule {
        schedule: usize,
        change: ScheduleChange,
    },
    /// Batch of a tree; with `repeat` sent again until all of its tasks are accepted.
    Batch {
        batch: usize,
        atomic: bool,
        repeat: bool,
    },
    /// Request about a task of a batch.
    TaskRequest {
        batch: usize,
        task: usize,
        request: TaskRequest,
    },
}

impl Step {
    /// Whether the step may cut off attempts of a worker.
    pub fn disturbs_worker(&self) -> bool {
        let (Self::Crash { process_id, .. } | Self::Restart { process_id, .. } | Self::Freeze { process_id, .. }) =
            self
        else {
            return false;
        };
        matches!(process_id, ProcessId::Worker(_))
    }

    /// Whether the step is a fault of processes, the broker or the store.
    pub fn is_fault(&self) -> bool {
        matches!(
            self,
            Self::Crash { .. }
                | Self::Restart { .. }
                | Self::Freeze { .. }
                | Self::ChangeBuild { .. }
                | Self::StoreOutage { .. }
                | Self::WipeStore
                | Self::RollBackStore
                | Self::FailCalls { .. }
                | Self::HoldTransactions { .. }
        )
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum TaskRequest {
    Cancel,
    Retry { only_failed: bool },
    Rename { name: u32 },
}

/// Definition of a schedule.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScheduleSpec {
    pub every_s: u32,
    /// Given as a cron expression.
    pub cron: bool,
    pub overlap: Overlap,
    pub unordered: bool,
    pub script: Script,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum ScheduleChange {
    Pause,
    Resume,
    Run,
    Backfill,
    Delete,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TimedStep {
    pub at_ms: u64,
    pub step: Step,
}
