//! Columns and order of lists of tasks, which pages, exports and named views share.

use std::str::FromStr;

use kafleet_model::similar::similar;
use kafleet_model::task::id::clip;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Status;

/// Order of a list of tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskSort {
    /// The newest task first or, without an index by time, the newest tree.
    #[default]
    Newest,
    /// The task that was first seen the longest time ago first.
    Oldest,
    /// The open task that has been in its state for the longest time first.
    Longest,
}

impl TaskSort {
    pub const ALL: [Self; 3] = [Self::Newest, Self::Oldest, Self::Longest];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Newest => "newest",
            Self::Oldest => "oldest",
            Self::Longest => "longest",
        }
    }
}

impl FromStr for TaskSort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|sort| sort.name() == text);
        known.ok_or_else(|| format!("`{}` is no order: use `newest`, `oldest` or `longest`", clip(text)))
    }
}

/// Column of a list of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskColumn {
    Id,
    Name,
    Type,
    State,
    Created,
    Started,
    Ended,
    /// Time for which an open task has been in its state, or which an ended one took.
    Time,
    Tags,
    Children,
    Worker,
    Error,
    Progress,
    Creator,
}

impl TaskColumn {
    pub const ALL: [Self; 14] = [
        Self::Id,
        Self::Name,
        Self::Type,
        Self::State,
        Self::Created,
        Self::Started,
        Self::Ended,
        Self::Time,
        Self::Tags,
        Self::Children,
        Self::Worker,
        Self::Error,
        Self::Progress,
        Self::Creator,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::Name => "name",
            Self::Type => "type",
            Self::State => "state",
            Self::Created => "created",
            Self::Started => "started",
            Self::Ended => "ended",
            Self::Time => "time",
            Self::Tags => "tags",
            Self::Children => "children",
            Self::Worker => "worker",
            Self::Error => "error",
            Self::Progress => "progress",
            Self::Creator => "creator",
        }
    }

    /// Value of a task as text, for programs; empty if the task has none. `time` is that from the start to the end, in
    /// milliseconds.
    pub fn text(self, task: &Status) -> String {
        let given = |value: &Option<String>| value.clone().unwrap_or_default();
        match self {
            Self::Id => task.id.clone(),
            Self::Name => given(&task.fields.name),
            Self::Type => given(&task.task_type),
            Self::State => task.state.name().to_owned(),
            Self::Created => given(if task.created_at.is_some() { &task.created_at } else { &task.seen_at }),
            Self::Started => given(&task.started_at),
            Self::Ended => given(&task.ended_at),
            Self::Time => took_ms(task).map(|ms| ms.to_string()).unwrap_or_default(),
            Self::Tags => task.fields.tags.join(" "),
            Self::Children => format!("{}/{}", task.children.total - task.children.pending, task.children.total),
            Self::Worker => given(&task.worker),
            Self::Error => task.error.as_ref().map(|error| error.text().into_owned()).unwrap_or_default(),
            Self::Progress => task.progress.as_ref().map(|value| value.text().to_owned()).unwrap_or_default(),
            Self::Creator => given(&task.fields.creator),
        }
    }
}

fn took_ms(task: &Status) -> Option<i64> {
    let millis = |text: &Option<String>| kafleet_model::task::parse_time(text.as_deref()?).ok();
    Some(millis(&task.ended_at)?.saturating_sub(millis(&task.started_at)?).max(0))
}

impl FromStr for TaskColumn {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(column) = Self::ALL.into_iter().find(|column| column.name() == text) {
            return Ok(column);
        }
        let names = Self::ALL.map(Self::name);
        let hint = similar(text, names)
            .map_or_else(|| format!("use some of {}", names.join(", ")), |name| format!("did you mean `{name}`?"));
        Err(format!("`{}` is not a column: {hint}", clip(text)))
    }
}

/// Columns of a list of tasks, in their order and each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskColumns(pub Vec<TaskColumn>);

impl TaskColumns {
    /// Names, separated by commas.
    pub fn text(&self) -> String {
        self.0.iter().map(|column| column.name()).collect::<Vec<_>>().join(",")
    }
}

impl FromStr for TaskColumns {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut columns = Vec::new();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let column = name.parse()?;
            if !columns.contains(&column) {
                columns.push(column);
            }
        }
        if columns.is_empty() {
            return Err("no column is named: write, for example, `id,state,error`".to_owned());
        }
        Ok(Self(columns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_read_in_their_order_and_each_once() {
        let columns: TaskColumns = "state, id,state,error".parse().unwrap();
        assert_eq!(columns.text(), "state,id,error");
        let error = "id,eror".parse::<TaskColumns>().unwrap_err();
        assert_eq!(error, "`eror` is not a column: did you mean `error`?");
        assert!(",".parse::<TaskColumns>().is_err());
        let all = TaskColumn::ALL.map(TaskColumn::name).join(",");
        assert_eq!(all.parse::<TaskColumns>().unwrap().0, TaskColumn::ALL);
    }

    #[test]
    fn sort_is_read_by_its_name() {
        for sort in TaskSort::ALL {
            assert_eq!(sort.name().parse(), Ok(sort));
            assert_eq!(serde_json::to_value(sort).unwrap(), sort.name());
        }
        assert!("fastest".parse::<TaskSort>().unwrap_err().contains("`longest`"));
    }
}
