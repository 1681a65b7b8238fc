//! Diagrams of trees, in Mermaid.

use kafleet_model::record::state::Category;
use kafleet_model::task::continuation::number_of;

use super::TreeNode;

/// Maximum name length in a diagram, in characters.
const MAX_NAME_CHARS: usize = 60;

/// Response format of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Json,
    Mermaid,
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "json" => Ok(Self::Json),
            "mermaid" => Ok(Self::Mermaid),
            _ => Err("use `json` or `mermaid`".to_owned()),
        }
    }
}

/// Draws a top-down flowchart, iteratively, so that deep trees do not overflow the stack. Continuations have dotted edges;
/// omitted children are counted in a separate box.
pub fn mermaid(top: &TreeNode) -> String {
    let mut lines = vec!["flowchart TD".to_owned()];
    let (mut open, mut next) = (vec![(None, top)], 0);
    while let Some((parent, node)) = open.pop() {
        let number = next;
        next += 1;
        let label = label(node, parent.is_none()).iter().map(|part| escaped(part)).collect::<Vec<_>>().join("<br/>");
        lines.push(format!("  n{number}[\"{label}\"]:::{}", class_of(node.state.category())));
        if let Some(parent) = parent {
            lines.push(format!("  n{parent} {} n{number}", if is_continuation(node) { "-.->" } else { "-->" }));
        }
        if node.omitted > 0 {
            lines.push(format!("  n{next}([\"{} more\"]):::cut", node.omitted));
            lines.push(format!("  n{number} --- n{next}"));
            next += 1;
        }
        open.extend(node.below.iter().rev().map(|child| (Some(number), child)));
    }
    let classes = [Category::Successful, Category::Failed, Category::Pending];
    lines.extend(classes.map(|category| format!("  classDef {} fill:{}", class_of(category), color(category))));
    lines.push("  classDef cut stroke-dasharray:4".to_owned());
    lines.join("\n") + "\n"
}

fn label(node: &TreeNode, full_id: bool) -> Vec<String> {
    let segment = node.id.rsplit(':').next().unwrap_or(&node.id);
    let mut parts = vec![if full_id { node.id.clone() } else { segment.to_owned() }];
    parts.extend(node.name.as_ref().map(|name| name.chars().take(MAX_NAME_CHARS).collect()));
    parts.extend(node.task_type.clone());
    parts.push(node.state.to_string());
    parts
}

fn is_continuation(node: &TreeNode) -> bool {
    node.id.rsplit(':').next().is_some_and(|segment| number_of(segment).is_some())
}

/// Escapes everything that may have a meaning in Mermaid or HTML as an entity.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if c.is_alphanumeric() || matches!(c, ' ' | '.' | '_' | '~' | '-' | ':' | ',') => out.push(c),
            c if c.is_control() => out.push(' '),
            c => out.push_str(&format!("#{};", u32::from(c))),
        }
    }
    out
}

fn class_of(category: Category) -> &'static str {
    match category {
        Category::Successful => "good",
        Category::Failed => "bad",
        Category::Pending => "open",
    }
}

fn color(category: Category) -> &'static str {
    match category {
        Category::Successful => "#c8e6c9",
        Category::Failed => "#ffcdd2",
        Category::Pending => "#bbdefb",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> TreeNode {
        let node = |id: &str, state: &str| {
            serde_json::json!({
                "id": id, "type": "echo", "state": state, "name": null, "attempt": 1, "error": null, "progress": null,
                "started_at": null, "ended_at": null, "below": [], "omitted": 0,
                "children": {"total": 0, "pending": 0, "successful": 0, "failed": 0, "by_state": {}},
                "tree": {"total": 1, "pending": 0, "successful": 1, "failed": 0}
            })
        };
        let mut top = node("order:a", "waiting_for_children");
        let mut named = node("order:a:x", "failed");
        named["name"] = "a \"b\"\n<c>\\".into();
        named["omitted"] = 3.into();
        top["below"] = vec![named, node("order:a:then", "queued")].into();
        serde_json::from_value(top).unwrap()
    }

    #[test]
    fn tree_is_drawn_as_mermaid_flowchart() {
        let expected = "flowchart TD
  n0[\"order:a<br/>echo<br/>waiting_for_children\"]:::open
  n1[\"x<br/>a #34;b#34; #60;c#62;#92;<br/>echo<br/>failed\"]:::bad
  n0 --> n1
  n2([\"3 more\"]):::cut
  n1 --- n2
  n3[\"then<br/>echo<br/>queued\"]:::open
  n0 -.-> n3
  classDef good fill:#c8e6c9
  classDef bad fill:#ffcdd2
  classDef open fill:#bbdefb
  classDef cut stroke-dasharray:4
";
        assert_eq!(mermaid(&tree()), expected);
    }
}
