//! Attachments of a task: the record lists them, their bytes are stored next to it.

use super::Verdict;
use super::step_outcome::Step;
use crate::model::event::{Event, Payload};
use crate::model::record::TaskRecord;
use crate::model::record::attachment::{Attachment, AttachmentEntry, MAX_COUNT};

/// Adds or removes an attachment. Requests by users are recorded in the history; those by attempts are not, because
/// there may be many.
pub(super) fn attach(node: &mut TaskRecord, event: &Event) -> Step {
    let of_attempt = event.worker.is_some();
    let late = of_attempt && event.run < node.run;
    let applied = match &event.payload {
        _ if late => false,
        Payload::Attached { attachment: Some(given) } => put(node, given, event.at_ms),
        Payload::Detached { attachment: Some(given) } => detach(node, &given.name),
        _ => false,
    };
    let verdict = if applied { Verdict::Applied } else { Verdict::Ignored };
    Step { in_history: !of_attempt, ..Step::of(verdict) }
}

fn put(node: &mut TaskRecord, given: &Attachment, at_ms: i64) -> bool {
    if given.check().is_err() {
        return false;
    }
    let name = given.name.clone();
    let media = given.media.clone();
    let bytes = given.data.len() as u32;
    let attached = AttachmentEntry { name, media, bytes, at_ms };
    match node.attachments.iter().position(|known| known.name == given.name) {
        Some(index) => node.attachments[index] = attached,
        None if node.attachments.len() < MAX_COUNT => node.attachments.push(attached),
        None => return false,
    }
    true
}

fn detach(node: &mut TaskRecord, name: &str) -> bool {
    let before = node.attachments.len();
    node.attachments.retain(|known| known.name != name);
    node.attachments.len() < before
}
