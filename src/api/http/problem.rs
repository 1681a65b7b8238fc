//! What the api says instead of succeeding: RFC 9457 problem documents, each with a stable code.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::api::documents::Problem;
use crate::broker::BrokerError;
use crate::store::StoreError;

/// Makes [`Code`] and its table from one list.
macro_rules! codes {
    ($($code:ident $name:literal $status:literal $title:literal,)*) => {
        /// Why a request was refused. The names are stable; programs decide on them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Code { $($code,)* }

        impl Code {
            pub const ALL: &'static [Code] = &[$(Code::$code,)*];

            pub const fn name(self) -> &'static str {
                match self { $(Code::$code => $name,)* }
            }

            pub const fn status(self) -> u16 {
                match self { $(Code::$code => $status,)* }
            }

            pub const fn title(self) -> &'static str {
                match self { $(Code::$code => $title,)* }
            }
        }
    };
}

codes! {
    BadJson "bad_json" 400 "The body is not JSON",
    UnknownField "unknown_field" 400 "The body has a field that is not known",
    BadField "bad_field" 400 "A field of the body cannot be used",
    BadId "bad_id" 400 "Not a task id",
    UnknownParameter "unknown_parameter" 400 "A query parameter that this call does not have",
    BadParameter "bad_parameter" 400 "A query parameter cannot be used",
    BadCursor "bad_cursor" 400 "Not a cursor of this list",
    TooManyItems "too_many_items" 400 "The batch has too many items",
    BadKill "bad_kill" 400 "Not the name of a kill switch",
    BadRequest "bad_request" 400 "The request cannot be read",
    Unauthorized "unauthorized" 401 "A token is needed",
    Forbidden "forbidden" 403 "The token does not allow this",
    ForbiddenHost "forbidden_host" 403 "The request is for another host",
    NotFound "not_found" 404 "No such task",
    UnknownParent "unknown_parent" 404 "The parent does not exist",
    UnknownType "unknown_type" 404 "No such task type",
    UnknownAttachment "unknown_attachment" 404 "No such attachment",
    UnknownKill "unknown_kill" 404 "No such kill switch",
    UnknownSchedule "unknown_schedule" 404 "No such schedule",
    UnknownRoute "unknown_route" 404 "No such call",
    NoParams "no_params" 404 "The task has no params",
    MethodNotAllowed "method_not_allowed" 405 "Not with this method",
    BodyTimeout "body_timeout" 408 "The body did not arrive in time",
    AlreadyDone "already_done" 409 "The task has moved on without the dead letter",
    AlreadyDropped "already_dropped" 409 "The dead letter has been dropped",
    AlreadyRedriven "already_redriven" 409 "The dead letter has been redriven",
    DuplicateId "duplicate_id" 409 "The id is taken by another task",
    DuplicateSchedule "duplicate_schedule" 409 "There is a schedule of this id",
    AlreadyFinished "already_finished" 409 "The task has ended already",
    TooManyAttachments "too_many_attachments" 409 "The task has too many attachments",
    TooManyKills "too_many_kills" 409 "There are too many kill switches",
    TooManySchedules "too_many_schedules" 409 "There are too many schedules",
    NotExternal "not_external" 409 "The task is not an external one",
    External "external" 409 "The task is an external one",
    NotChangeable "not_changeable" 409 "It cannot be changed, or not now",
    UnreadableLetter "unreadable_letter" 409 "Not a dead letter of kafleet",
    TooManyRuns "too_many_runs" 409 "The task has been started too many times",
    NothingFailed "nothing_failed" 409 "Nothing has failed",
    NotFinished "not_finished" 409 "The task has not ended",
    ParamsUnreadable "params_unreadable" 409 "The task's record cannot be read",
    ParamsGone "params_gone" 410 "The params are no longer kept",
    TooLarge "too_large" 413 "Too large",
    UnsupportedMedia "unsupported_media_type" 415 "The body must be JSON",
    Schema "schema" 422 "The params do not fit the type's schema",
    BadState "bad_state" 422 "A state that cannot be reported",
    SeveralTrees "several_trees" 422 "The tasks are not of one tree",
    TooManyTimes "too_many_times" 422 "Too many times at once",
    LimitTooSmall "limit_too_small" 422 "The limit is below the number of partitions",
    Internal "internal" 500 "An internal error",
    TooManyWaiting "too_many_waiting" 503 "Too many tasks wait for their time",
    InProgress "in_progress" 503 "Another request publishes the task",
    Behind "behind" 503 "The answer is not there yet",
    StoreUnavailable "store_unavailable" 503 "The store does not answer",
    KafkaUnavailable "kafka_unavailable" 503 "Kafka does not answer",
    OutcomeUnknown "outcome_unknown" 503 "It may be written, or not",
    NotAnnounced "not_announced" 503 "Published, but not announced",
    Overloaded "overloaded" 503 "Too much at once",
    NotReady "not_ready" 503 "Not ready",
}

/// Seconds after which a refusal for the moment is worth another try.
const RETRY_AFTER_S: u16 = 1;

/// A refusal on its way to becoming a problem document.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError(Box<Problem>);

impl ApiError {
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self(Box::new(Problem {
            problem_type: "about:blank".into(),
            title: code.title().into(),
            status: code.status(),
            detail: detail.into(),
            code: code.name().into(),
            hint: None,
            pointer: None,
            existing: None,
        }))
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Where in the request body, as a JSON pointer.
    pub fn pointer(mut self, pointer: impl Into<String>) -> Self {
        self.0.pointer = Some(pointer.into());
        self
    }

    /// Its place is below this one.
    pub fn below(self, at: &str) -> Self {
        match self.0.pointer.clone() {
            Some(pointer) => self.pointer(format!("{at}{pointer}")),
            None => self.pointer(at),
        }
    }

    /// The task that is in the way, or that came of it.
    pub fn existing(mut self, id: impl ToString) -> Self {
        self.0.existing = Some(id.to_string());
        self
    }

    /// Of an item of a list in the body; `also` says what that means for the others.
    pub fn of_item(mut self, n: usize, also: &str) -> Self {
        self.0.detail = format!("item {n}: {}; {also}", self.0.detail);
        self.0.pointer = Some(format!("/{n}{}", self.0.pointer.unwrap_or_default()));
        self
    }

    /// Refuses a write by its error. Without an acknowledgement it may have been written.
    pub fn of_write(error: BrokerError) -> Self {
        match error {
            BrokerError::InDoubt(why) | BrokerError::Fatal(why) => Self::unacknowledged(&why),
            error => error.into(),
        }
    }

    pub fn unacknowledged(why: &str) -> Self {
        Self::new(Code::OutcomeUnknown, format!("the request may be written or not: {why}"))
            .hint("it is safe to repeat the request: it has no further effect if it was written")
    }

    /// Replaces the hint of a write with an unknown outcome.
    pub fn hint_if_unknown(self, hint: &str) -> Self {
        if self.is(Code::OutcomeUnknown) { self.hint(hint) } else { self }
    }

    /// What was asked for may have been done all the same.
    pub fn leaves_open(&self) -> bool {
        [Code::OutcomeUnknown, Code::NotAnnounced, Code::Internal].iter().any(|code| self.is(*code))
    }

    pub fn is(&self, code: Code) -> bool {
        self.0.code == code.name()
    }

    pub fn document(self) -> Problem {
        *self.0
    }

    pub fn internal() -> Self {
        Self::new(Code::Internal, "the api failed over this request; its log says more")
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self.0).unwrap_or_default();
        let mut response = (status, [(header::CONTENT_TYPE, "application/problem+json")], body).into_response();
        let headers = response.headers_mut();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        tracing::warn!(%error, "the store refused a read");
        Self::new(Code::StoreUnavailable, error.to_string())
            .hint("try again; nothing is lost, the store is only a view of the log")
    }
}

impl From<BrokerError> for ApiError {
    fn from(error: BrokerError) -> Self {
        match error {
            BrokerError::TooLarge(why) => Self::new(Code::TooLarge, why),
            error => Self::new(Code::KafkaUnavailable, error.to_string()).hint("try again"),
        }
    }
}
