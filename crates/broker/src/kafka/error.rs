//! Conversion of librdkafka's errors to [`BrokerError`].

use rdkafka::error::KafkaError;
use rdkafka::types::{RDKafkaErrorCode, RDKafkaErrorCode as Code};

use crate::BrokerError;

/// Converts an error code. `operation` names the failed one.
pub(super) fn of_code(code: Code, operation: &str) -> BrokerError {
    classified(code, format!("{operation}: {}", describe(code)))
}

/// Converts an error code. `text` becomes the message.
pub(super) fn classified(code: Code, text: String) -> BrokerError {
    match code {
        Code::QueueFull => BrokerError::Full(text),
        Code::MessageSizeTooLarge
        | Code::MessageBatchTooLarge
        | Code::InvalidMessageSize
        | Code::OffsetMetadataTooLarge => BrokerError::TooLarge(text),
        Code::UnknownTopic | Code::UnknownPartition | Code::UnknownTopicOrPartition | Code::UnknownTopicId => {
            BrokerError::Unknown(text)
        }
        Code::Fenced
        | Code::ProducerFenced
        | Code::InvalidProducerEpoch
        | Code::TransactionCoordinatorFenced
        | Code::FencedInstanceId => BrokerError::Fenced(text),
        Code::IllegalGeneration
        | Code::UnknownMemberId
        | Code::RebalanceInProgress
        | Code::NonEmptyGroup
        | Code::AssignmentLost
        | Code::StaleMemberEpoch
        | Code::FencedMemberEpoch => BrokerError::Refused(text),
        Code::PurgeQueue => BrokerError::Purged,
        _ if is_denied(code) => BrokerError::Denied(text),
        _ if is_transient(code) => BrokerError::Unavailable(text),
        Code::Fatal
        | Code::GaplessGuarantee
        | Code::OutOfOrderSequenceNumber
        | Code::UnknownProducerId
        | Code::InvalidProducerIdMapping
        | Code::InvalidTransactionalState
        | Code::Inconsistent
        | Code::State => BrokerError::Fatal(text),
        _ => BrokerError::Invalid(text),
    }
}

/// Converts the error of an accepted record. If the outcome is unknown, the result is `InDoubt`.
pub(super) fn of_delivery(code: Code, topic: &str) -> BrokerError {
    let text = || format!("sending to `{topic}`: {}", describe(code));
    match code {
        Code::MessageTimedOut
        | Code::RequestTimedOut
        | Code::PurgeInflight
        | Code::NotEnoughReplicasAfterAppend
        | Code::Unknown => BrokerError::InDoubt(text()),
        _ => of_record(code, text()),
    }
}

/// Converts the error of a record that was not accepted or not delivered. `Invalid` is reserved for errors caused by
/// the record itself; others that are not classified become `Unexpected`.
pub(super) fn of_record(code: Code, text: String) -> BrokerError {
    match classified(code, text) {
        BrokerError::Invalid(text) if !is_record_error(code) => BrokerError::Unexpected(text),
        error => error,
    }
}

fn is_record_error(code: Code) -> bool {
    matches!(code, Code::InvalidRecord | Code::InvalidTimestamp | Code::InvalidTopic | Code::InvalidArgument)
}

/// Converts an error of rdkafka. `operation` names the failed one.
pub(super) fn of(error: &KafkaError, operation: &str) -> BrokerError {
    match (code_of(error), error) {
        (Some(code), _) => of_code(code, operation),
        (None, KafkaError::ClientCreation(reason) | KafkaError::AdminOpCreation(reason)) => {
            BrokerError::Invalid(format!("{operation}: {reason}"))
        }
        (None, KafkaError::Canceled) => BrokerError::Unavailable(format!("{operation}: the client was closed")),
        (None, other) => BrokerError::Invalid(format!("{operation}: {other}")),
    }
}

pub(super) fn code_of(error: &KafkaError) -> Option<RDKafkaErrorCode> {
    match error {
        KafkaError::AdminOp(code) => Some(*code),
        other => other.rdkafka_error_code(),
    }
}

fn is_denied(code: Code) -> bool {
    matches!(
        code,
        Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::TransactionalIdAuthorizationFailed
            | Code::DelegationTokenAuthorizationFailed
            | Code::Authentication
            | Code::SaslAuthenticationFailed
            | Code::UnsupportedSASLMechanism
            | Code::IllegalSASLState
            | Code::SecurityDisabled
    )
}

fn is_transient(code: Code) -> bool {
    is_client_transient(code) || is_cluster_transient(code)
}

/// Returns whether the client reports a temporary failure, such as an unreachable broker or a timeout.
fn is_client_transient(code: Code) -> bool {
    matches!(
        code,
        Code::BrokerTransportFailure
            | Code::AllBrokersDown
            | Code::Resolve
            | Code::SSL
            | Code::MessageTimedOut
            | Code::OperationTimedOut
            | Code::TimedOutQueue
            | Code::WaitingForCoordinator
            | Code::WaitCache
            | Code::Retry
            | Code::InProgress
            | Code::PreviousInProgress
            | Code::Outdated
            | Code::PollExceeded
            | Code::BrokerDestroy
            | Code::DestroyBroker
            | Code::NodeUpdate
            | Code::CriticalSystemResource
            | Code::PurgeInflight
    )
}

/// Returns whether a broker reports a temporary failure, such as a change of leader.
fn is_cluster_transient(code: Code) -> bool {
    matches!(
        code,
        Code::LeaderNotAvailable
            | Code::NotLeaderForPartition
            | Code::RequestTimedOut
            | Code::BrokerNotAvailable
            | Code::ReplicaNotAvailable
            | Code::StaleControllerEpoch
            | Code::NetworkException
            | Code::CoordinatorLoadInProgress
            | Code::CoordinatorNotAvailable
            | Code::NotCoordinator
            | Code::NotEnoughReplicas
            | Code::NotEnoughReplicasAfterAppend
            | Code::NotController
            | Code::ConcurrentTransactions
            | Code::KafkaStorageError
            | Code::ReassignmentInProgress
            | Code::FetchSessionIdNotFound
            | Code::InvalidFetchSessionEpoch
            | Code::ListenerNotFound
            | Code::FencedLeaderEpoch
            | Code::UnknownLeaderEpoch
            | Code::StaleBrokerEpoch
            | Code::OffsetNotAvailable
            | Code::PreferredLeaderNotAvailable
            | Code::EligibleLeadersNotAvailable
            | Code::UnstableOffsetCommit
            | Code::ThrottlingQuotaExceeded
            | Code::RebootstrapRequired
            // Unspecific broker errors, and records damaged in transit.
            | Code::Unknown
            | Code::InvalidMessage
    )
}

/// Returns librdkafka's text for a code without its "Broker: " or "Local: " prefix; the first letter is in lower case.
pub(super) fn describe(code: Code) -> String {
    let shown = code.to_string();
    let inner = shown.split_once('(').map_or(shown.as_str(), |(_, rest)| rest.strip_suffix(')').unwrap_or(rest));
    let inner = inner.strip_prefix("Broker: ").or_else(|| inner.strip_prefix("Local: ")).unwrap_or(inner);
    let mut chars = inner.chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn describe_strips_prefix_and_lowercases() {
        assert_eq!(describe(Code::UnknownTopicOrPartition), "unknown topic or partition");
        assert_eq!(describe(Code::BrokerTransportFailure), "broker transport failure");
    }

    #[test]
    fn codes_map_to_transient_and_permanent_errors() {
        assert!(of_code(Code::NotEnoughReplicas, "x").is_transient());
        assert!(of_code(Code::QueueFull, "x").is_transient());
        assert!(matches!(of_code(Code::TopicAuthorizationFailed, "x"), BrokerError::Denied(_)));
        assert!(matches!(of_code(Code::UnknownMemberId, "x"), BrokerError::Refused(_)));
        assert!(matches!(of_code(Code::ProducerFenced, "x"), BrokerError::Fenced(_)));
    }

    #[test]
    fn unacknowledged_send_is_in_doubt() {
        assert!(matches!(of_delivery(Code::MessageTimedOut, "t"), BrokerError::InDoubt(_)));
        assert_eq!(of_delivery(Code::PurgeQueue, "t"), BrokerError::Purged);
        assert!(matches!(of_delivery(Code::Unknown, "t"), BrokerError::InDoubt(_)));
        assert!(matches!(of_delivery(Code::MessageSizeTooLarge, "t"), BrokerError::TooLarge(_)));
    }

    #[test]
    fn only_record_errors_are_invalid() {
        assert!(matches!(of_delivery(Code::InvalidRecord, "t"), BrokerError::Invalid(_)));
        assert!(matches!(of_delivery(Code::InvalidRequiredAcks, "t"), BrokerError::Unexpected(_)));
        assert!(matches!(of_delivery(Code::UnsupportedVersion, "t"), BrokerError::Unexpected(_)));
        assert!(of_delivery(Code::InvalidMessage, "t").is_transient(), "damaged in transit");
        assert!(matches!(of_code(Code::InvalidConfig, "t"), BrokerError::Invalid(_)), "not a record error");
    }
}
