//! Documents of named views.

use kafleet_model::role::Role;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{TaskColumn, TaskSort};

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
    /// Lowest role that sees the view.
    #[serde(default)]
    pub role: Role,
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
    /// Lowest role that sees the view.
    pub role: Role,
    /// Name of the API token that wrote the view.
    pub by: Option<String>,
    pub changed_at: String,
}

/// Response of `GET /v1/views`: the views that the caller may see, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Views {
    pub views: Vec<ViewDocument>,
}
