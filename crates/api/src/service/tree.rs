//! `GET /v1/tasks/{id}/tree`: a task and its descendants, read level by level up to a depth and a number of tasks.

use futures::stream::{self, StreamExt};
use kafleet_documents::TreeNode;
use kafleet_model::task::id::TaskId;
use kafleet_store::Index;

use crate::http::problem::ApiError;
use crate::read::consistency::TaskView;
use crate::read::continuations::unstarted;
use crate::read::status::tree_node;
use crate::service::context::{After, RequestContext};
use crate::state::Api;

/// Default depth below the task.
pub(crate) const DEFAULT_DEPTH: usize = 3;
/// Default number of tasks below the task.
pub(crate) const DEFAULT_LIMIT: usize = 1_000;
/// Maximum number of tasks below the task.
pub(crate) const MAX_LIMIT: usize = 10_000;
/// Maximum concurrent reads of child lists.
const MAX_CONCURRENT_READS: usize = 16;

/// Part of a tree that is read.
pub struct TreeSize {
    /// Levels below the task.
    pub depth: usize,
    /// Number of tasks below the task.
    pub limit: usize,
}

impl Default for TreeSize {
    fn default() -> Self {
        Self { depth: DEFAULT_DEPTH, limit: DEFAULT_LIMIT }
    }
}

pub async fn tree(
    RequestContext { api, .. }: RequestContext,
    id: TaskId,
    size: TreeSize,
    After(after): After,
) -> Result<TreeNode, ApiError> {
    let top = api.reads.find(&id, after).await?;
    let partition = top.partition;
    let tree = TreeBuilder::read(&api, top, size.depth, size.limit).await?;
    api.reads.check_covered(Some(partition)).await?;
    Ok(tree.document())
}

/// Tree read so far.
struct TreeBuilder {
    /// Nodes level by level, starting with the top.
    nodes: Vec<TreeNode>,
    /// Index of each node's parent.
    parents: Vec<usize>,
}

impl TreeBuilder {
    async fn read(api: &Api, top: TaskView, depth: usize, limit: usize) -> Result<Self, ApiError> {
        let mut builder = Self { nodes: Vec::new(), parents: Vec::new() };
        let mut level = vec![(builder.add(&top, 0), top)];
        for _ in 0..depth {
            builder.add_unstarted(api, &level).await?;
            let below = builder.level_below(api, &level, limit).await?;
            if below.is_empty() {
                return Ok(builder);
            }
            level = below;
        }
        builder.add_unstarted(api, &level).await?;
        for (index, _) in level {
            builder.nodes[index].omitted = builder.nodes[index].children.total;
        }
        Ok(builder)
    }

    /// Adds the continuations that tasks of a level have not started.
    async fn add_unstarted(&mut self, api: &Api, level: &[(usize, TaskView)]) -> Result<(), ApiError> {
        let Some((_, first)) = level.first() else { return Ok(()) };
        let tasks: Vec<&TaskView> = level.iter().map(|(_, task)| task).collect();
        let unstarted = unstarted(&api.reads, first.partition, &tasks).await?;
        for ((index, _), continuations) in level.iter().zip(unstarted) {
            self.nodes[*index].not_started = continuations;
        }
        Ok(())
    }

    fn add(&mut self, task: &TaskView, parent: usize) -> usize {
        self.nodes.push(tree_node(task));
        self.parents.push(parent);
        self.nodes.len() - 1
    }

    /// Reads the children of a level, up to `limit` nodes below the top. The children of tasks that are left then are only
    /// counted, not read.
    async fn level_below(
        &mut self,
        api: &Api,
        level: &[(usize, TaskView)],
        limit: usize,
    ) -> Result<Vec<(usize, TaskView)>, ApiError> {
        let mut room = limit + 1 - self.nodes.len();
        let mut input = Vec::new();
        for (index, task) in level {
            self.nodes[*index].omitted = self.nodes[*index].children.total;
            if may_have_children(task) {
                input.push(page(api, *index, task, room));
            }
        }
        let mut pages = stream::iter(input).buffered(MAX_CONCURRENT_READS);
        let mut below = Vec::new();
        while room > 0
            && let Some(page) = pages.next().await
        {
            let (index, children, more) = page?;
            let left_out = more || children.len() > room;
            let shown = children.len().min(room) as u64;
            for child in children.into_iter().take(room) {
                below.push((self.add(&child, index), child));
            }
            let total = self.nodes[index].children.total;
            self.nodes[index].omitted = if left_out { total.saturating_sub(shown).max(1) } else { 0 };
            room = limit + 1 - self.nodes.len();
        }
        Ok(below)
    }

    /// Nests the nodes.
    fn document(self) -> TreeNode {
        let mut nodes = self.nodes;
        // Children follow their parents, so going backwards each node is complete before it is attached.
        for parent in self.parents.into_iter().skip(1).rev() {
            let Some(mut node) = nodes.pop() else { break };
            node.below.reverse();
            nodes[parent].below.push(node);
        }
        let mut top = nodes.swap_remove(0);
        top.below.reverse();
        top
    }
}

/// Returns false only if the task certainly has no children: those of earlier runs are not counted.
fn may_have_children(task: &TaskView) -> bool {
    !task.record.tree.below.is_empty() || task.record.run > 1
}

/// Reads the first children of a task, and whether there are more.
async fn page(
    api: &Api,
    index: usize,
    parent: &TaskView,
    room: usize,
) -> Result<(usize, Vec<TaskView>, bool), ApiError> {
    let mut entries = api.reads.page(parent.partition, &Index::Children(parent.id.clone()), None, room + 1).await?;
    let more = entries.len() > room;
    entries.truncate(room);
    let ids: Vec<TaskId> = entries.into_iter().map(|entry| entry.id).collect();
    let children = api.reads.read_many(parent.partition, &ids).await?;
    Ok((index, children.into_iter().flatten().collect(), more))
}
