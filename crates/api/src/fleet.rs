//! State of the fleet outside of the store: the control topic and the heartbeats of workers.

use std::sync::Arc;
use std::time::Duration;

use kafleet_fleet::control::heartbeat::WorkerRegistry;
use kafleet_fleet::control::schedules::ScheduleKey;
use kafleet_fleet::control::{self, ControlKey, ControlNotRead, ControlRecord, ControlWatch};
use kafleet_fleet::publish::Publisher;
use kafleet_model::event::Event;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::http::problem::{ApiError, Code};

/// Maximum wait until this API has read its own control record.
pub(super) const READ_BACK_DEADLINE: Duration = Duration::from_secs(5);
/// Maximum wait of a newly started API until it has read the control topic.
const LOAD_DEADLINE: Duration = Duration::from_secs(5);

/// Maximum wait of a change of a schedule for earlier ones.
const CHANGE_DEADLINE: Duration = Duration::from_secs(10);

/// Access to the control topic and to heartbeats.
pub struct Fleet {
    /// Pauses, limits, kill switches and schedules, read from the control topic.
    pub control: Arc<ControlWatch>,
    /// Latest heartbeat of each worker.
    pub workers: Arc<WorkerRegistry>,
    pub publisher: Publisher,
    /// Held by a change of a schedule, which writes what it has read.
    pub schedule_changes: Arc<Mutex<()>>,
}

impl Fleet {
    /// Records a request of an operator for the audit. Call before the request is carried out.
    pub(crate) async fn record_operation(&self, operation: &Event) -> Result<(), ApiError> {
        self.publisher.publish_event(operation).await.map(drop).map_err(ApiError::from_write)
    }

    /// Writes or deletes a control record, and waits until this API has read it.
    pub(crate) async fn write_control(&self, key: ControlKey, record: Option<ControlRecord>) -> Result<(), ApiError> {
        let (producer, names) = (self.publisher.producer(), &self.publisher.topology.names);
        let written = match record {
            Some(record) => control::put_record(producer, names, &key, &record).await,
            None => control::delete(producer, names, &key).await,
        };
        let position = written.map_err(ApiError::from_write)?;
        tracing::info!(%key, "control record written");
        // The write is done; only this API's own view may lag.
        let _ = tokio::time::timeout(READ_BACK_DEADLINE, self.control.wait_for_offset(position.offset)).await;
        Ok(())
    }

    /// Waits until this API changes no other schedule: each change starts from the result of the one before. Changes through
    /// two APIs within the time that a record takes to be read overwrite each other, and the later one remains.
    pub(crate) async fn begin_schedule_change(&self) -> Result<OwnedMutexGuard<()>, ApiError> {
        let late = |_| {
            let seconds = CHANGE_DEADLINE.as_secs();
            ApiError::new(Code::Overloaded, format!("earlier changes of schedules did not end within {seconds} s"))
                .hint("retry")
        };
        tokio::time::timeout(CHANGE_DEADLINE, self.schedule_changes.clone().lock_owned()).await.map_err(late)
    }

    /// Writes or deletes a schedule record, and waits until this API has read it.
    pub(crate) async fn write_schedule<T: serde::Serialize>(
        &self,
        key: &ScheduleKey,
        record: Option<&T>,
    ) -> Result<(), ApiError> {
        let written =
            control::put_schedule(self.publisher.producer(), &self.publisher.topology.names, key, record).await;
        let position = written.map_err(ApiError::from_write)?;
        tracing::info!(%key, "schedule record written");
        // The write is done; only this API's own view may lag.
        let _ = tokio::time::timeout(READ_BACK_DEADLINE, self.control.wait_for_offset(position.offset)).await;
        Ok(())
    }

    /// Learns the brokers' time, and waits until the control topic has been read for the first time, but not for long: without it the API serves,
    /// does not know the schemas of types that it does not have, and hides all params and results, because it does not know the masks.
    pub(crate) async fn load(&self) {
        let learning = control::learn_broker_time(self.publisher.producer(), &self.publisher.topology.names);
        if tokio::time::timeout(LOAD_DEADLINE, learning).await.is_err() {
            tracing::warn!("serving before the brokers' time is known; this machine's clock is used");
        }
        if let Err(error) = self.control_read().await {
            tracing::warn!(%error, "serving without the declarations of types; params and results are hidden until they are read");
        }
    }

    async fn control_read(&self) -> Result<(), ControlNotRead> {
        self.control.wait_until_read_within(LOAD_DEADLINE, &self.publisher.topology.names).await
    }

    /// Waits until the control topic has been read to its end.
    pub(crate) async fn wait_for_control_state(&self) -> Result<(), ApiError> {
        self.control_read()
            .await
            .map_err(|error| ApiError::new(Code::KafkaUnavailable, error.to_string()).hint("retry"))
    }
}
