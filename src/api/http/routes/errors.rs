//! What calls refuse with, where several share it.

use crate::api::http::problem::Code;

pub const FIND: &[Code] = &[Code::BadId, Code::NotFound, Code::Behind, Code::StoreUnavailable, Code::KafkaUnavailable];

pub const CREATE: &[Code] = &[
    Code::BadJson,
    Code::UnknownField,
    Code::BadField,
    Code::BadId,
    Code::UnknownParent,
    Code::UnknownType,
    Code::DuplicateId,
    Code::TooLarge,
    Code::UnsupportedMedia,
    Code::Schema,
    Code::BodyTimeout,
    Code::Behind,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
    Code::NotAnnounced,
    Code::TooManyWaiting,
    Code::InProgress,
    Code::Overloaded,
];

/// With `atomic` what is wrong with an item refuses all of them.
pub const BATCH: &[Code] = &[
    Code::BadJson,
    Code::TooManyItems,
    Code::TooLarge,
    Code::UnsupportedMedia,
    Code::Overloaded,
    Code::BodyTimeout,
    Code::SeveralTrees,
    Code::UnknownField,
    Code::BadField,
    Code::BadId,
    Code::UnknownParent,
    Code::UnknownType,
    Code::DuplicateId,
    Code::Schema,
    Code::Behind,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
    Code::TooManyWaiting,
    Code::InProgress,
];

pub const DROP_ONE: &[Code] = &[
    Code::BadId,
    Code::NotFound,
    Code::AlreadyDropped,
    Code::AlreadyRedriven,
    Code::Overloaded,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
];

pub const REDRIVE_ONE: &[Code] = &[
    Code::BadId,
    Code::NotFound,
    Code::NotFinished,
    Code::AlreadyDone,
    Code::AlreadyDropped,
    Code::AlreadyRedriven,
    Code::UnreadableLetter,
    Code::TooManyRuns,
    Code::External,
    Code::NoParams,
    Code::ParamsGone,
    Code::TooLarge,
    Code::Overloaded,
    Code::Behind,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
];

pub const SETTLE_MANY: &[Code] = &[
    Code::BadJson,
    Code::UnknownField,
    Code::BadField,
    Code::UnsupportedMedia,
    Code::TooLarge,
    Code::BodyTimeout,
    Code::Overloaded,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
];

pub const REPORT: &[Code] = &[
    Code::BadJson,
    Code::UnknownField,
    Code::BadField,
    Code::BadId,
    Code::NotFound,
    Code::NotExternal,
    Code::TooLarge,
    Code::UnsupportedMedia,
    Code::BadState,
    Code::BodyTimeout,
    Code::Behind,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
    Code::Overloaded,
];

/// Something is added to a task that there is.
pub const TELL: &[Code] = &[
    Code::BadJson,
    Code::UnknownField,
    Code::BadField,
    Code::BadId,
    Code::NotFound,
    Code::TooLarge,
    Code::UnsupportedMedia,
    Code::BodyTimeout,
    Code::Behind,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
    Code::Overloaded,
];

pub const ATTACH: &[Code] = &[
    Code::BadField,
    Code::BadId,
    Code::NotFound,
    Code::TooManyAttachments,
    Code::TooLarge,
    Code::UnsupportedMedia,
    Code::BodyTimeout,
    Code::Behind,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
    Code::Overloaded,
];

pub const ATTACHED: &[Code] =
    &[Code::BadId, Code::NotFound, Code::UnknownAttachment, Code::Behind, Code::StoreUnavailable, Code::KafkaUnavailable];

pub const DETACH: &[Code] = &[
    Code::BadId,
    Code::NotFound,
    Code::UnknownAttachment,
    Code::Behind,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
];

pub const PATCH: &[Code] = &[
    Code::BadJson,
    Code::UnknownField,
    Code::BadField,
    Code::BadId,
    Code::NotFound,
    Code::NotChangeable,
    Code::TooLarge,
    Code::UnsupportedMedia,
    Code::BodyTimeout,
    Code::Behind,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
    Code::Overloaded,
];

pub const CANCEL: &[Code] = &[
    Code::BadJson,
    Code::UnknownField,
    Code::BadField,
    Code::BadId,
    Code::NotFound,
    Code::AlreadyFinished,
    Code::UnsupportedMedia,
    Code::BodyTimeout,
    Code::TooLarge,
    Code::Behind,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
    Code::Overloaded,
];

pub const OPERATE: &[Code] = &[
    Code::BadJson,
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

pub const KILL: &[Code] = &[
    Code::BadJson,
    Code::UnknownField,
    Code::BadField,
    Code::BadKill,
    Code::UnknownKill,
    Code::TooManyKills,
    Code::UnsupportedMedia,
    Code::BodyTimeout,
    Code::TooLarge,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
    Code::Overloaded,
];

pub const SCHEDULE: &[Code] = &[
    Code::BadJson,
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

/// Of a schedule that there is, without a body.
pub const SCHEDULED: &[Code] = &[
    Code::BadParameter,
    Code::UnknownSchedule,
    Code::TooManyTimes,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
    Code::Overloaded,
];

pub const RETRY: &[Code] = &[
    Code::BadJson,
    Code::UnknownField,
    Code::BadField,
    Code::BadId,
    Code::NotFound,
    Code::NotFinished,
    Code::TooManyRuns,
    Code::NothingFailed,
    Code::External,
    Code::NoParams,
    Code::TooLarge,
    Code::UnsupportedMedia,
    Code::BodyTimeout,
    Code::Behind,
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
    Code::Overloaded,
];

pub const WATCH: &[Code] =
    &[Code::BadId, Code::NotFound, Code::Behind, Code::StoreUnavailable, Code::KafkaUnavailable, Code::Overloaded];
