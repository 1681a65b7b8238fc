//! Text rendering of a task tree.

use kafleet_documents::TreeNode;
use kafleet_model::record::state::State;

use crate::cli::output::{Paint, one_line};
use crate::cli::task_view::{error_text, time_text};

/// Maximum length of a progress value or error on a line.
const MAX_NOTE_CHARS: usize = 80;

pub(super) fn lines(top: &TreeNode, paint: Paint, now_ms: i64) -> Vec<String> {
    let drawing = Drawing { paint, now_ms };
    let mut lines = vec![drawing.label(top, &top.id)];
    drawing.below(top, "", &mut lines);
    lines
}

struct Drawing {
    paint: Paint,
    now_ms: i64,
}

impl Drawing {
    fn below(&self, node: &TreeNode, indent: &str, lines: &mut Vec<String>) {
        let paint = self.paint;
        for (n, child) in node.below.iter().enumerate() {
            let last = n + 1 == node.below.len() && node.omitted == 0 && node.not_started.is_empty();
            let (branch, trunk) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            let segment = child.id.rsplit(':').next().unwrap_or(&child.id);
            lines.push(format!("{}{}", paint.dim(&format!("{indent}{branch}")), self.label(child, segment)));
            self.below(child, &format!("{indent}{trunk}"), lines);
        }
        if node.omitted > 0 {
            let branch = if node.not_started.is_empty() { "└─" } else { "├─" };
            lines.push(paint.dim(&format!("{indent}{branch} … {} more", node.omitted)));
        }
        for (n, continuation) in node.not_started.iter().enumerate() {
            let branch = if n + 1 == node.not_started.len() { "└─" } else { "├─" };
            let (segment, condition) = (one_line(continuation.segment()), continuation.condition());
            let text = format!("{indent}{branch} · {segment}  {}  not started: it {condition}", continuation.task_type);
            lines.push(paint.dim(&text));
        }
    }

    /// Renders one task: symbol, id, name, type, state, children done, attempt, time, and error or progress.
    fn label(&self, node: &TreeNode, id: &str) -> String {
        let paint = self.paint;
        let mut text = format!("{} {}", paint.paint_as(node.state, symbol(node.state)), paint.bold(&one_line(id)));
        let mut add = |part: String| text.push_str(&format!("  {part}"));
        if let Some(name) = &node.name {
            add(one_line(name));
        }
        if let Some(task_type) = &node.task_type {
            add(paint.dim(task_type));
        }
        add(paint.state(node.state));
        if let Some(counts) = counts(node) {
            add(counts);
        }
        if node.attempt > 1 {
            add(format!("attempt {}", node.attempt));
        }
        if let Some(time) = time_text(node.state, node.started_at.as_deref(), node.ended_at.as_deref(), self.now_ms) {
            add(paint.dim(&time));
        }
        if let Some(note) = note(node) {
            add(paint.dim(&note));
        }
        text
    }
}

fn symbol(state: State) -> &'static str {
    match state {
        State::Succeeded => "✔",
        State::Failed | State::Expired => "✘",
        State::Cancelled | State::Cancelling => "⊘",
        State::Running | State::Warning => "●",
        State::Retrying => "↻",
        State::WaitingForChildren => "◐",
        State::Expected | State::Scheduled | State::Queued => "○",
    }
}

fn counts(node: &TreeNode) -> Option<String> {
    let children = &node.children;
    if children.total == 0 {
        return None;
    }
    let failed = if children.failed > 0 { format!(", {} unsuccessful", children.failed) } else { String::new() };
    Some(format!("{}/{} done{failed}", children.total.saturating_sub(children.pending), children.total))
}

fn note(node: &TreeNode) -> Option<String> {
    let pending = !node.state.is_terminal();
    let progress = || node.progress.as_ref().filter(|_| pending).map(ToString::to_string);
    let note = node.error.as_ref().map(error_text).or_else(progress)?;
    let short: String = note.chars().take(MAX_NOTE_CHARS).collect();
    Some(one_line(&if short.len() < note.len() { format!("{short}…") } else { short }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafleet_documents::{Children, Tree};
    use kafleet_model::event::ErrorInfo;
    use kafleet_model::json::RawJson;

    const NOON: i64 = 1_769_860_800_000;

    fn node(id: &str, state: State, below: Vec<TreeNode>) -> TreeNode {
        TreeNode {
            id: id.into(),
            task_type: Some("digest".into()),
            state,
            name: None,
            attempt: 1,
            error: None,
            progress: None,
            started_at: None,
            ended_at: None,
            children: children(&below),
            tree: Tree::default(),
            below,
            omitted: 0,
            not_started: Vec::new(),
        }
    }

    fn children(below: &[TreeNode]) -> Children {
        let of = |is_counted: fn(&TreeNode) -> bool| below.iter().filter(|child| is_counted(child)).count() as u64;
        Children {
            total: below.len() as u64,
            pending: of(|child| !child.state.is_terminal()),
            failed: of(|child| child.state == State::Failed),
            successful: of(|child| child.state == State::Succeeded),
            by_state: Default::default(),
        }
    }

    fn sample() -> TreeNode {
        let mut failed = node("order:fetch:b", State::Failed, vec![]);
        failed.attempt = 6;
        failed.error = Some(ErrorInfo::new("timeout", "took longer than 1s", 6));
        let mut done = node("order:fetch:a", State::Succeeded, vec![]);
        done.started_at = Some("2026-01-31T12:00:00.000Z".into());
        done.ended_at = Some("2026-01-31T12:00:01.250Z".into());
        let mut running = node("order:pack", State::Running, vec![]);
        running.name = Some("pack \u{1b}[2Jit".into());
        running.started_at = Some("2026-01-31T11:59:56.800Z".into());
        running.progress = RawJson::of(&serde_json::json!({"step": 2})).ok();
        let mut fetch = node("order:fetch", State::Failed, vec![done, failed]);
        fetch.omitted = 3;
        fetch.children.total = 5;
        node("order", State::WaitingForChildren, vec![fetch, running])
    }

    #[test]
    fn tree_shows_every_kind_of_branch() {
        let expected = "\
◐ order  digest  waiting_for_children  1/2 done, 1 unsuccessful
├─ ✘ fetch  digest  failed  5/5 done, 1 unsuccessful
│  ├─ ✔ a  digest  succeeded  1.2 s
│  ├─ ✘ b  digest  failed  attempt 6  timeout: took longer than 1s (attempt 6)
│  └─ … 3 more
└─ ● pack  pack  [2Jit  digest  running  for 3.2 s  {\"step\":2}";
        assert_eq!(lines(&sample(), Paint(false), NOON).join("\n"), expected);
    }

    #[test]
    fn continuation_that_did_not_start_is_the_last_branch() {
        let mut top = node("order", State::Succeeded, vec![node("order:a", State::Succeeded, vec![])]);
        let on = kafleet_model::task::continuation::On::Failed;
        top.not_started =
            vec![kafleet_documents::UnstartedContinuation { id: "order:then-2".into(), task_type: "alarm".into(), on }];
        let drawn = lines(&top, Paint(false), NOON);
        assert!(drawn[1].starts_with("├─ ✔ a"), "{drawn:?}");
        assert_eq!(drawn[2], "└─ · then-2  alarm  not started: it starts only if the task or a child of it fails");
    }

    #[test]
    fn colours_do_not_change_the_text() {
        let colored = lines(&sample(), Paint(true), NOON).join("\n");
        assert!(colored.contains("\u{1b}[31m✘"), "{colored:?}");
        let mut plain = String::new();
        let mut rest = colored.as_str();
        while let Some((text, after)) = rest.split_once("\u{1b}[") {
            plain.push_str(text);
            rest = after.split_once('m').map_or("", |(_, rest)| rest);
        }
        plain.push_str(rest);
        assert_eq!(plain, lines(&sample(), Paint(false), NOON).join("\n").replace("\u{1b}", ""));
    }

    #[test]
    fn long_error_is_truncated() {
        let mut top = node("a", State::Failed, vec![]);
        top.error = Some(ErrorInfo::new("handler", "ä".repeat(500), 1));
        let line = &lines(&top, Paint(false), NOON)[0];
        assert!(line.ends_with("ä…") && line.chars().count() < 120, "{line}");
    }
}
