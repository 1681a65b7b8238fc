//! Writes shared by several services: validation, idempotency, leases, transactions.
//!
//! In: a task as a client describes it, or an event. [`validate`] checks the task, [`idempotency`] looks for an existing
//! task with its id, [`lease`] reserves the id, and the publisher writes record and event. Out: the new or the existing
//! task, or the position of the event. [`transaction`] does the same for several tasks of one tree: all or none.
//!
//! Invariant: an id chosen by a client is reserved before its task is published, and renewed until Kafka has answered.
//! Otherwise two requests with one id could both publish, and the task would run twice.
//!
//! Read next: `validate.rs`, `idempotency.rs`, then `lease.rs`.

use std::sync::Arc;

use kafleet_broker::TransactionalProducer;
use kafleet_fleet::publish::Publisher;
use kafleet_model::event::Event;
use kafleet_model::task::Position;
use tokio::sync::Mutex;

use super::backends::detached;
use super::http::problem::ApiError;
use super::read::reads::Reads;
use lease::Leases;
use types::TypeCatalog;
use validate::SubmissionChecks;

pub(crate) mod declared;
pub(crate) mod idempotency;
pub(crate) mod lease;
pub(crate) mod transaction;
pub(crate) mod types;
pub(crate) mod unique;
pub(crate) mod validate;

/// Transactional producer of this process; `None` while none is open.
pub type BatchProducer = Arc<Mutex<Option<Box<dyn TransactionalProducer>>>>;

/// Submission of tasks and publishing of events. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Writes {
    pub reads: Reads,
    pub types: Arc<TypeCatalog>,
    pub checks: SubmissionChecks,
    pub publisher: Publisher,
    pub leases: Leases,
    pub producer: BatchProducer,
    /// Transactional id of this process.
    pub transactional_id: String,
}

impl Writes {
    /// Publishes an event, even if the client disconnects meanwhile.
    pub(crate) async fn publish_event(&self, event: Event) -> Result<Position, ApiError> {
        let publisher = self.publisher.clone();
        detached(async move { publisher.publish_event(&event).await.map_err(ApiError::from_write) }).await
    }
}
