//! Reasons for which a dependency of a role is not ready.

use std::fmt::Display;

use kafleet_broker::BrokerError;
use kafleet_fleet::control::settings::FleetSettingsError;
use kafleet_store::StoreError;

/// Transient or permanent reason for which a dependency is not ready.
pub(super) enum StartError {
    Transient(String),
    Permanent(String),
}

impl From<FleetSettingsError> for StartError {
    /// Treats missing topics as transient: they may be about to be created.
    fn from(error: FleetSettingsError) -> Self {
        match &error {
            FleetSettingsError::Missing(_) | FleetSettingsError::NotApplied(_) | FleetSettingsError::Late { .. } => {
                Self::Transient(error.to_string())
            }
            FleetSettingsError::Broker(inner) => Self::of_broker(inner, &error),
            FleetSettingsError::Newer { .. } | FleetSettingsError::Unreadable { .. } => {
                Self::Permanent(error.to_string())
            }
        }
    }
}

impl From<BrokerError> for StartError {
    fn from(error: BrokerError) -> Self {
        Self::of_broker(&error, &error)
    }
}

impl From<StoreError> for StartError {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Unavailable(_) => Self::Transient(error.to_string()),
            _ => Self::Permanent(error.to_string()),
        }
    }
}

impl StartError {
    fn of_broker(error: &BrokerError, text: &dyn Display) -> Self {
        match error {
            BrokerError::Denied(_) | BrokerError::Invalid(_) => Self::Permanent(text.to_string()),
            _ => Self::Transient(text.to_string()),
        }
    }
}
