//! Caller of a service, and the arguments that many services share.

use std::sync::Arc;

use kafleet_config::Role;
use kafleet_documents::Status;
use kafleet_model::event::Event;
use kafleet_model::record::MAX_MESSAGE_CHARS;
use kafleet_model::task::Position;
use kafleet_runtime::now_ms;
use tokio::sync::OwnedSemaphorePermit;

use crate::http::problem::{ApiError, Code};
use crate::read::consistency::TaskView;
use crate::read::status::{open_status, status};
use crate::state::Api;

/// Maximum page size of lists.
pub const MAX_PAGE: usize = 200;
/// Default page size of lists.
pub const PAGE: usize = 50;

/// State of the API, and who calls it.
#[derive(Clone)]
pub struct RequestContext {
    pub api: Arc<Api>,
    /// Name of the token that authorized the request; `None` if the API has no tokens.
    pub by: Option<Arc<str>>,
    /// Role of the caller; the highest one if the API has no tokens.
    pub role: Role,
}

impl RequestContext {
    /// Name of the caller's token, for records.
    pub(crate) fn caller(&self) -> Option<String> {
        self.by.as_deref().map(str::to_owned)
    }

    /// Status of a single task: with masked values if the role of the caller sees them.
    pub(crate) fn status(&self, task: &TaskView) -> Status {
        if self.role.sees_masked() { open_status(task) } else { status(task) }
    }

    /// Creates the audit event of this request, for a target that is not a task.
    pub(crate) fn operation(&self, action: &str, target: &str, reason: Option<&str>) -> Event {
        let (by, message) = (self.by.clone(), reason.map(str::to_owned));
        Event { by, message, ..Event::operation(action, target, now_ms()) }
    }
}

/// Name of a type, a schedule or an attachment, as it is in the path.
pub struct Name(pub String);

/// Position of the events that the answer must include; by default what the store has.
#[derive(Clone, Copy, Debug, Default)]
pub struct After(pub Option<Position>);

/// Part of a list.
#[derive(Clone, Debug)]
pub struct Paging {
    /// `next` of the previous page.
    pub cursor: Option<String>,
    pub limit: usize,
}

impl Default for Paging {
    fn default() -> Self {
        Self { cursor: None, limit: PAGE }
    }
}

/// Id of the last event that the client of a stream has received before it reconnects.
pub(crate) struct LastEventId(pub Option<String>);

/// Memory budget of the request's body, held while its content is in use. None if the body was counted elsewhere.
#[derive(Debug, Default)]
pub struct BodyMemory(#[expect(dead_code, reason = "held, not read")] pub(crate) Option<OwnedSemaphorePermit>);

/// Rejects a reason that is too long to be stored.
pub(crate) fn check_reason(reason: Option<&str>) -> Result<(), ApiError> {
    match reason {
        Some(reason) if reason.chars().count() > MAX_MESSAGE_CHARS => {
            Err(ApiError::new(Code::BadField, format!("the reason is longer than {MAX_MESSAGE_CHARS} characters"))
                .pointer("/reason"))
        }
        _ => Ok(()),
    }
}
