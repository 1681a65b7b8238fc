//! `GET /v1/tasks/{id}/tree`: a task with what is below it, level by level until the depth or the number is reached.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures::stream::{self, StreamExt};

use super::task::json_answer;
use crate::api::Api;
use crate::api::documents::TreeNode;
use crate::api::http::problem::ApiError;
use crate::api::http::request::ApiRequest;
use crate::api::read::consistency::TaskView;
use crate::api::read::diagram::{Shape, dot, mermaid};
use crate::api::read::status::tree_node;
use crate::model::task::id::{MAX_LEVELS, TaskId};
use crate::store::Index;

const DEPTH: usize = 3;
const LIMIT: usize = 1_000;
const MAX_LIMIT: usize = 10_000;
/// Lists of children asked for at once.
const AT_ONCE: usize = 16;

pub async fn tree(call: ApiRequest) -> Result<Response, ApiError> {
    let depth = call.query.number("depth", DEPTH, 0..=MAX_LEVELS)?;
    let limit = call.query.number("limit", LIMIT, 1..=MAX_LIMIT)?;
    let shape = call.query.parsed::<Shape>("format")?.unwrap_or_default();
    let top = call.api.find(&call.id()?, call.after()?).await?;
    let grown = Grown::grow(&call.api, top, depth, limit).await?;
    let document = grown.document();
    Ok(match shape {
        Shape::Json => json_answer(200, &document),
        Shape::Mermaid => text_answer("text/vnd.mermaid; charset=utf-8", mermaid(&document)),
        Shape::Dot => text_answer("text/vnd.graphviz; charset=utf-8", dot(&document)),
    })
}

fn text_answer(media: &'static str, text: String) -> Response {
    ([(header::CONTENT_TYPE, media)], text).into_response()
}

/// A tree as far as it was looked at.
struct Grown {
    /// Level by level; the first is the top.
    nodes: Vec<TreeNode>,
    /// The place of each node's parent.
    parents: Vec<usize>,
}

impl Grown {
    async fn grow(api: &Api, top: TaskView, depth: usize, limit: usize) -> Result<Self, ApiError> {
        let mut grown = Self { nodes: Vec::new(), parents: Vec::new() };
        let mut level = vec![(grown.add(&top, 0), top)];
        for _ in 0..depth {
            let below = grown.level_below(api, &level, limit).await?;
            if below.is_empty() {
                return Ok(grown);
            }
            level = below;
        }
        for (place, _) in level {
            grown.nodes[place].cut = grown.nodes[place].children.total;
        }
        Ok(grown)
    }

    fn add(&mut self, found: &TaskView, parent: usize) -> usize {
        self.nodes.push(tree_node(found));
        self.parents.push(parent);
        self.nodes.len() - 1
    }

    /// The children of a level, until the tree has `limit` nodes below its top.
    async fn level_below(
        &mut self,
        api: &Api,
        level: &[(usize, TaskView)],
        limit: usize,
    ) -> Result<Vec<(usize, TaskView)>, ApiError> {
        let room = limit + 1 - self.nodes.len();
        let mut asked = Vec::new();
        for (place, found) in level {
            if has_children(found) {
                asked.push(page(api, *place, found, room));
            }
        }
        let mut pages = stream::iter(asked).buffered(AT_ONCE);
        let mut below = Vec::new();
        while let Some(page) = pages.next().await {
            let (place, children, more) = page?;
            let room = limit + 1 - self.nodes.len();
            let left_out = more || children.len() > room;
            let shown = children.len().min(room) as u64;
            for child in children.into_iter().take(room) {
                below.push((self.add(&child, place), child));
            }
            let total = self.nodes[place].children.total;
            self.nodes[place].cut = if left_out { total.saturating_sub(shown).max(1) } else { 0 };
        }
        Ok(below)
    }

    /// Hangs every node under its parent.
    fn document(self) -> TreeNode {
        let mut nodes = self.nodes;
        // Children come after their parents, so from the end every node is whole when it is hung up.
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

/// Superseded children do not count, but are there: a task that was started anew may have some.
fn has_children(found: &TaskView) -> bool {
    !found.node.below.is_empty() || found.node.run > 1
}

/// The first children of a task, and whether there are more.
async fn page(api: &Api, place: usize, parent: &TaskView, room: usize) -> Result<(usize, Vec<TaskView>, bool), ApiError> {
    let mut entries = api.page(parent.partition, &Index::Children(parent.id.clone()), None, room + 1).await?;
    let more = entries.len() > room;
    entries.truncate(room);
    let ids: Vec<TaskId> = entries.into_iter().map(|entry| entry.id).collect();
    let children = api.look_many(parent.partition, &ids).await?;
    Ok((place, children.into_iter().flatten().collect(), more))
}
