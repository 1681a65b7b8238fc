//! Documents of lists of tasks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Status, TaskSort};

/// Page of tasks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskPage {
    pub tasks: Vec<Status>,
    /// Cursor of the next page; null on the last page.
    pub next: Option<String>,
    /// Number of tasks that match, on all pages together; null unless counters know it.
    #[serde(default)]
    pub total: Option<u64>,
    /// Index or tree from which the page was filled.
    #[serde(default)]
    pub source: Option<ListSource>,
    /// Order of the tasks.
    #[serde(default)]
    pub sort: TaskSort,
    /// With an order other than `newest`: the tasks that were compared.
    #[serde(default)]
    pub sorted: Option<SortedTasks>,
    /// Records scanned to fill this page, if a filter required a scan.
    #[serde(default)]
    pub scanned: Option<u64>,
    /// With `scanned`: time at which the last record scanned was first seen or, in a list of all trees, its root.
    #[serde(default)]
    pub scanned_to: Option<String>,
    /// The scan limit was reached before the page was full; continue with `next`.
    #[serde(default)]
    pub stopped_early: bool,
    /// With `stopped_early`: how to continue, and which filters shorten the search.
    #[serde(default)]
    pub hint: Option<String>,
    /// Ids of the query that do not exist.
    #[serde(default)]
    pub missing: Vec<String>,
    /// Only if no scanned task matches: the conditions that exclude some of them.
    #[serde(default)]
    pub excluded: Vec<ExcludedTerm>,
    /// Only if a search for roots finds none: the tasks of other levels that match its other conditions.
    #[serde(default)]
    pub other_levels: Option<OtherLevels>,
    /// Events partitions of which the store has lost data, or which no tracker projects: tasks are missing or outdated.
    #[serde(default)]
    pub incomplete: Vec<u32>,
}

impl TaskPage {
    /// Appends the next page of the same list.
    pub fn append(&mut self, next: Self) {
        let scanned = self.scanned.into_iter().chain(next.scanned).reduce(|all, more| all + more);
        let mut tasks = std::mem::take(&mut self.tasks);
        tasks.extend(next.tasks);
        let mut excluded = std::mem::take(&mut self.excluded);
        for more in next.excluded {
            match excluded.iter_mut().find(|known| known.term == more.term) {
                Some(known) => known.tasks += more.tasks,
                None => excluded.push(more),
            }
        }
        if !tasks.is_empty() {
            excluded.clear();
        }
        let other_levels = self.other_levels.or(next.other_levels);
        let sorted = self.sorted.or(next.sorted);
        *self = Self { tasks, scanned, excluded, other_levels, sorted, ..next };
    }
}

/// Tasks that a list in an order of its own has compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SortedTasks {
    /// Number of matching tasks that were compared.
    pub tasks: u64,
    /// False: these are only the newest ones that match.
    pub all: bool,
}

/// Condition of a search without matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Excluded")]
pub struct ExcludedTerm {
    /// Condition in the language of searches.
    pub term: String,
    /// Number of scanned tasks that it excludes.
    pub tasks: u64,
}

/// Tasks below others that a search for roots leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OtherLevels {
    /// Number of tasks found that match.
    pub tasks: u64,
    /// False: there may be more.
    pub exact: bool,
}

/// Source of a list of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ListSource {
    /// The ids of the query.
    Ids,
    /// A task and its descendants.
    Tree,
    /// Indexes by type and state, newest first.
    States,
    /// Indexes of failed tasks by type and error, the last ended first.
    Errors,
    /// Index of all roots, newest first.
    Roots,
    /// All trees, newest root first.
    Trees,
}
