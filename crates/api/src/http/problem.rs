//! Error responses: RFC 9457 problem documents, each with a stable code.

use std::ops::Range;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use kafleet_broker::BrokerError;
use kafleet_documents::{Problem, TextSpan};
use kafleet_runtime::error_text::split_hint;
use kafleet_store::StoreError;

/// Generates [`Code`] and its accessors from one table.
macro_rules! codes {
    ($($code:ident $name:literal $status:literal $title:literal,)*) => {
        /// Problem code. The names are part of the API and stable.
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
    BadJson "bad_json" 400 "The body is not valid JSON",
    UnknownField "unknown_field" 400 "Unknown field in the body",
    BadField "bad_field" 400 "Invalid field in the body",
    BadId "bad_id" 400 "Invalid task id",
    UnknownParameter "unknown_parameter" 400 "Unknown query parameter",
    BadParameter "bad_parameter" 400 "Invalid query parameter",
    BadCursor "bad_cursor" 400 "Invalid cursor",
    TooManyItems "too_many_items" 400 "Too many items in the batch",
    BadKillSwitch "bad_kill_switch" 400 "Invalid kill switch name",
    BadView "bad_view" 400 "Invalid view name",
    BadRequest "bad_request" 400 "Malformed request",
    Unauthorized "unauthorized" 401 "Authentication required",
    Forbidden "forbidden" 403 "Insufficient role",
    ForbiddenHost "forbidden_host" 403 "Host not allowed",
    ForbiddenOrigin "forbidden_origin" 403 "Cross-site request",
    ReadOnly "read_only" 403 "The UI is read-only",
    NotFound "not_found" 404 "Not found",
    UnknownParent "unknown_parent" 404 "Unknown parent",
    UnknownType "unknown_type" 404 "Unknown task type",
    UnknownAttachment "unknown_attachment" 404 "Unknown attachment",
    UnknownKillSwitch "unknown_kill_switch" 404 "Unknown kill switch",
    UnknownSchedule "unknown_schedule" 404 "Unknown schedule",
    UnknownUnique "unknown_unique" 404 "Unknown unique key",
    UnknownView "unknown_view" 404 "Unknown view",
    UnknownRoute "unknown_route" 404 "Unknown endpoint",
    NoParams "no_params" 404 "The task has no params",
    MethodNotAllowed "method_not_allowed" 405 "Method not allowed",
    BodyTimeout "body_timeout" 408 "Request body timed out",
    DeadLetterSuperseded "dead_letter_superseded" 409 "The task has moved on since the dead letter",
    AlreadyDropped "already_dropped" 409 "Dead letter already dropped",
    AlreadyRedriven "already_redriven" 409 "Dead letter already redriven",
    DuplicateId "duplicate_id" 409 "Task id already in use",
    DuplicateSchedule "duplicate_schedule" 409 "Schedule id already in use",
    AlreadyFinished "already_finished" 409 "The task has already ended",
    TooManyAttachments "too_many_attachments" 409 "Too many attachments",
    TooManyKillSwitches "too_many_kill_switches" 409 "Too many kill switches",
    TooManySchedules "too_many_schedules" 409 "Too many schedules",
    TooManyViews "too_many_views" 409 "Too many views",
    NotExternal "not_external" 409 "Not an external task",
    ExternalTask "external_task" 409 "Not possible for an external task",
    NotChangeable "not_changeable" 409 "Cannot be changed, or not in this state",
    UnreadableDeadLetter "unreadable_dead_letter" 409 "Dead letter not written by kafleet",
    TooManyRuns "too_many_runs" 409 "Maximum number of runs reached",
    NothingToRetry "nothing_to_retry" 409 "No failed tasks to retry",
    NotFinished "not_finished" 409 "The task has not ended yet",
    ParamsUnreadable "params_unreadable" 409 "The task's record cannot be decoded",
    ParamsGone "params_gone" 410 "The params are no longer retained",
    TooLarge "too_large" 413 "Too large",
    UnsupportedMedia "unsupported_media_type" 415 "Unsupported media type",
    AmbiguousJson "ambiguous_json" 422 "The body has more than one meaning",
    Schema "schema" 422 "The params do not match the type's schema",
    Rejected "rejected" 422 "Rejected by the application",
    BadState "bad_state" 422 "The state cannot be reported",
    MultipleTrees "multiple_trees" 422 "Tasks of more than one tree",
    TooManyTimes "too_many_times" 422 "Too many firing times",
    UniqueRoot "unique_root" 422 "Only a root can be unique",
    LimitTooSmall "limit_too_small" 422 "Limit below the number of partitions",
    Internal "internal" 500 "Internal error",
    InProgress "in_progress" 503 "Submission in progress",
    NotVisibleYet "not_visible_yet" 503 "Not yet visible",
    StoreUnavailable "store_unavailable" 503 "Store unavailable",
    KafkaUnavailable "kafka_unavailable" 503 "Kafka unavailable",
    OutcomeUnknown "outcome_unknown" 503 "Outcome unknown",
    NotAnnounced "not_announced" 503 "Published but not announced",
    Overloaded "overloaded" 503 "Overloaded",
    NotDecided "not_decided" 503 "Not yet decided",
    NotReady "not_ready" 503 "Not ready",
}

/// Value of `Retry-After` in seconds.
const RETRY_AFTER_S: u16 = 1;

/// Error response, wrapping a problem document.
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
            span: None,
            existing: None,
        }))
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Sets the JSON pointer into the request body.
    pub fn pointer(mut self, pointer: impl Into<String>) -> Self {
        self.0.pointer = Some(pointer.into());
        self
    }

    /// Sets the wrong part of the query, in characters.
    pub fn span(mut self, chars: Range<usize>) -> Self {
        self.0.span = Some(TextSpan { start: chars.start, end: chars.end });
        self
    }

    /// Prefixes the JSON pointer.
    pub fn below(self, at: &str) -> Self {
        match self.0.pointer.clone() {
            Some(pointer) => self.pointer(format!("{at}{pointer}")),
            None => self.pointer(at),
        }
    }

    /// Sets the id of the conflicting or created task.
    pub fn existing(mut self, id: impl ToString) -> Self {
        self.0.existing = Some(id.to_string());
        self
    }

    /// Attributes the error to one item of a list in the body; `also` describes the effect on the other items.
    pub fn for_item(mut self, n: usize, also: &str) -> Self {
        self.0.detail = format!("item {n}: {}; {also}", self.0.detail);
        self.0.pointer = Some(format!("/{n}{}", self.0.pointer.unwrap_or_default()));
        self
    }

    /// Converts a write error. A write without acknowledgement may have been written.
    pub fn from_write(error: BrokerError) -> Self {
        match error {
            BrokerError::InDoubt(reason) | BrokerError::Fatal(reason) => Self::unacknowledged(&reason),
            error => error.into(),
        }
    }

    pub fn unacknowledged(reason: &str) -> Self {
        Self::new(Code::OutcomeUnknown, format!("the request may or may not have been written: {reason}"))
            .hint("it is safe to repeat the request: it has no further effect if it was written")
    }

    /// Replaces the hint if the outcome of a write is unknown.
    pub fn hint_if_unknown(self, hint: &str) -> Self {
        if self.is(Code::OutcomeUnknown) { self.hint(hint) } else { self }
    }

    /// Whether the requested change may have happened despite the error.
    pub fn may_have_happened(&self) -> bool {
        [Code::OutcomeUnknown, Code::NotAnnounced, Code::Internal].iter().any(|code| self.is(*code))
    }

    pub fn is(&self, code: Code) -> bool {
        self.0.code == code.name()
    }

    pub fn document(self) -> Problem {
        *self.0
    }

    pub fn internal() -> Self {
        Self::new(Code::Internal, "internal error; see the log of the API")
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = match serde_json::to_vec(&self.0) {
            Ok(body) => body,
            Err(error) => {
                tracing::error!(%error, problem = ?self.0, "a problem document cannot be encoded");
                return StatusCode::INTERNAL_SERVER_ERROR.into_response();
            }
        };
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
        tracing::warn!(%error, "store call failed");
        let text = error.to_string();
        let retry = "retry; no data is lost, because the store is a projection of the log";
        let (message, hint) = split_hint(&text);
        Self::new(Code::StoreUnavailable, message).hint(hint.unwrap_or(retry))
    }
}

impl From<BrokerError> for ApiError {
    fn from(error: BrokerError) -> Self {
        match error {
            BrokerError::TooLarge(reason) => Self::new(Code::TooLarge, reason),
            error => Self::new(Code::KafkaUnavailable, error.to_string()).hint("retry"),
        }
    }
}
