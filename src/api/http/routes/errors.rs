//! Problem codes of endpoints, where several share a list.

use crate::api::http::problem::Code;

pub(super) const FIND: &[Code] =
    &[Code::BadId, Code::NotFound, Code::NotVisibleYet, Code::StoreUnavailable, Code::KafkaUnavailable];

pub(super) const CREATE: &[Code] = &[
    Code::BadJson,
    Code::AmbiguousJson,
    Code::UnknownField,
    Code::BadField,
    Code::BadId,
    Code::UnknownParent,
    Code::UnknownType,
    Code::DuplicateId,
    Code::TooLarge,
    Code::UnsupportedMedia,
    Code::Schema,
    Code::Rejected,
    Code::BodyTimeout,
    Code::NotVisibleYet,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
    Code::NotAnnounced,
    Code::InProgress,
    Code::Overloaded,
];

/// Includes the item errors that reject the whole batch with `atomic`.
pub(super) const BATCH: &[Code] = &[
    Code::BadJson,
    Code::AmbiguousJson,
    Code::TooManyItems,
    Code::TooLarge,
    Code::UnsupportedMedia,
    Code::Overloaded,
    Code::BodyTimeout,
    Code::MultipleTrees,
    Code::UnknownField,
    Code::BadField,
    Code::BadId,
    Code::UnknownParent,
    Code::UnknownType,
    Code::DuplicateId,
    Code::Schema,
    Code::Rejected,
    Code::NotVisibleYet,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
    Code::InProgress,
];

pub(super) const DROP_ONE: &[Code] = &[
    Code::BadId,
    Code::NotFound,
    Code::AlreadyDropped,
    Code::AlreadyRedriven,
    Code::Overloaded,
    Code::NotVisibleYet,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
];

pub(super) const REDRIVE_ONE: &[Code] = &[
    Code::BadId,
    Code::Schema,
    Code::NotFound,
    Code::NotFinished,
    Code::DeadLetterSuperseded,
    Code::AlreadyDropped,
    Code::AlreadyRedriven,
    Code::UnreadableDeadLetter,
    Code::TooManyRuns,
    Code::ExternalTask,
    Code::NoParams,
    Code::ParamsGone,
    Code::TooLarge,
    Code::Overloaded,
    Code::NotVisibleYet,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
];

pub(super) const SETTLE_MANY: &[Code] = &[
    Code::BadJson,
    Code::AmbiguousJson,
    Code::UnknownField,
    Code::BadField,
    Code::UnknownType,
    Code::UnsupportedMedia,
    Code::TooLarge,
    Code::BodyTimeout,
    Code::Overloaded,
    Code::NotVisibleYet,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
];

pub(super) const REPORT: &[Code] = &[
    Code::BadJson,
    Code::AmbiguousJson,
    Code::UnknownField,
    Code::BadField,
    Code::BadId,
    Code::NotFound,
    Code::NotExternal,
    Code::TooLarge,
    Code::UnsupportedMedia,
    Code::BadState,
    Code::BodyTimeout,
    Code::NotVisibleYet,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
    Code::Overloaded,
];

/// Endpoints that append to an existing task.
pub(super) const TELL: &[Code] = &[
    Code::BadJson,
    Code::AmbiguousJson,
    Code::UnknownField,
    Code::BadField,
    Code::BadId,
    Code::NotFound,
    Code::TooLarge,
    Code::UnsupportedMedia,
    Code::BodyTimeout,
    Code::NotVisibleYet,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
    Code::Overloaded,
];

pub(super) const ATTACH: &[Code] = &[
    Code::BadField,
    Code::BadId,
    Code::NotFound,
    Code::TooManyAttachments,
    Code::TooLarge,
    Code::UnsupportedMedia,
    Code::BodyTimeout,
    Code::NotVisibleYet,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
    Code::Overloaded,
];

pub(super) const ATTACHED: &[Code] = &[
    Code::BadId,
    Code::NotFound,
    Code::UnknownAttachment,
    Code::NotVisibleYet,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
];

pub(super) const DETACH: &[Code] = &[
    Code::BadId,
    Code::NotFound,
    Code::UnknownAttachment,
    Code::NotVisibleYet,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
];

pub(super) const PATCH: &[Code] = &[
    Code::BadJson,
    Code::AmbiguousJson,
    Code::UnknownField,
    Code::BadField,
    Code::BadId,
    Code::NotFound,
    Code::NotChangeable,
    Code::TooLarge,
    Code::UnsupportedMedia,
    Code::BodyTimeout,
    Code::NotVisibleYet,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
    Code::Overloaded,
];

pub(super) const CANCEL: &[Code] = &[
    Code::BadJson,
    Code::AmbiguousJson,
    Code::UnknownField,
    Code::BadField,
    Code::BadId,
    Code::NotFound,
    Code::AlreadyFinished,
    Code::UnsupportedMedia,
    Code::BodyTimeout,
    Code::TooLarge,
    Code::NotVisibleYet,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
    Code::Overloaded,
];

pub(super) const OPERATE: &[Code] = &[
    Code::BadJson,
    Code::AmbiguousJson,
    Code::UnknownField,
    Code::BadField,
    Code::UnknownType,
    Code::LimitTooSmall,
    Code::UnsupportedMedia,
    Code::BodyTimeout,
    Code::TooLarge,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
    Code::Overloaded,
];

pub(super) const BULK: &[Code] = &[
    Code::BadJson,
    Code::AmbiguousJson,
    Code::UnknownField,
    Code::BadField,
    Code::BadId,
    Code::BadParameter,
    Code::UnsupportedMedia,
    Code::BodyTimeout,
    Code::TooLarge,
    Code::NotVisibleYet,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
    Code::Overloaded,
];

pub(super) const KILL: &[Code] = &[
    Code::BadJson,
    Code::AmbiguousJson,
    Code::UnknownField,
    Code::BadField,
    Code::BadKillSwitch,
    Code::UnknownKillSwitch,
    Code::TooManyKillSwitches,
    Code::UnsupportedMedia,
    Code::BodyTimeout,
    Code::TooLarge,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
    Code::Overloaded,
];

pub(super) const SCHEDULE: &[Code] = &[
    Code::BadJson,
    Code::AmbiguousJson,
    Code::UnknownField,
    Code::BadField,
    Code::UnknownSchedule,
    Code::DuplicateSchedule,
    Code::TooManySchedules,
    Code::UnknownType,
    Code::Schema,
    Code::UnsupportedMedia,
    Code::BodyTimeout,
    Code::TooLarge,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
    Code::Overloaded,
];

/// Endpoints of an existing schedule without a body.
pub(super) const SCHEDULED: &[Code] = &[
    Code::BadParameter,
    Code::UnknownSchedule,
    Code::TooManyTimes,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
    Code::Overloaded,
];

pub(super) const RETRY: &[Code] = &[
    Code::BadJson,
    Code::AmbiguousJson,
    Code::UnknownField,
    Code::BadField,
    Code::BadId,
    Code::NotFound,
    Code::NotFinished,
    Code::TooManyRuns,
    Code::NothingToRetry,
    Code::ExternalTask,
    Code::NoParams,
    Code::TooLarge,
    Code::UnsupportedMedia,
    Code::BodyTimeout,
    Code::NotVisibleYet,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
    Code::Overloaded,
];

pub(super) const WATCH: &[Code] = &[
    Code::BadId,
    Code::NotFound,
    Code::NotVisibleYet,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::Overloaded,
];
