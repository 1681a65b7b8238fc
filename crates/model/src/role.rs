//! Roles of the callers of the API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Permissions of a token; each role includes the ones before it. `admin` also sees masked values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    #[default]
    Read,
    Submit,
    Operate,
    Admin,
}

impl Role {
    /// All roles, each with those before it.
    pub const ALL: [Self; 4] = [Self::Read, Self::Submit, Self::Operate, Self::Admin];

    /// Name in requests and in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Submit => "submit",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }

    /// Returns whether the role sees the values that types mask.
    pub fn sees_masked(self) -> bool {
        self >= Self::Admin
    }
}
