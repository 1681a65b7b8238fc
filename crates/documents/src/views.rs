//! Documents of named views.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{TaskColumn, TaskSort};

/// Lowest role that sees a view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ViewRole {
    #[default]
    Read,
    Submit,
    Operate,
    Admin,
}

impl ViewRole {
    pub const ALL: [Self; 4] = [Self::Read, Self::Submit, Self::Operate, Self::Admin];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Submit => "submit",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

/// Body of `PUT /v1/views/{name}`: search, order and columns of a list of tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetView {
    /// Search for tasks; empty: all roots.
    #[serde(default)]
    pub q: String,
    #[serde(default)]
    pub sort: TaskSort,
    /// Columns, in their order. Empty: the default ones.
    #[serde(default)]
    #[schemars(length(max = 14))]
    pub columns: Vec<TaskColumn>,
    /// Description for people.
    #[serde(default)]
    #[schemars(length(max = 400))]
    pub description: Option<String>,
    #[serde(default)]
    pub role: ViewRole,
}

/// Named view of tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "View")]
pub struct ViewDocument {
    pub name: String,
    /// Search for tasks; empty: all roots.
    pub q: String,
    pub sort: TaskSort,
    /// Columns, in their order. Empty: the default ones.
    pub columns: Vec<TaskColumn>,
    pub description: Option<String>,
    pub role: ViewRole,
    /// Name of the API token that wrote the view.
    pub by: Option<String>,
    pub changed_at: String,
}

/// Response of `GET /v1/views`: the views that the caller may see, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Views {
    pub views: Vec<ViewDocument>,
}
