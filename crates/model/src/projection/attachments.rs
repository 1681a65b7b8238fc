//! Attachments of a task: the record lists them, their bytes are stored next to it.

use super::Verdict;
use super::step_outcome::Step;
use crate::event::{Event, Payload};
use crate::record::TaskRecord;
use crate::record::attachment::{Attachment, AttachmentEntry, MAX_COUNT};

/// Adds or removes an attachment. Requests by users are recorded in the history; those by attempts are not, because
/// there may be many.
pub(super) fn attach(task: &mut TaskRecord, event: &Event) -> Step {
    let of_attempt = event.worker.is_some();
    let late = of_attempt && event.run < task.run;
    let applied = match &event.payload {
        _ if late => false,
        Payload::Attached { attachment: Some(given) } => put_attachment(task, given, event.at_ms),
        Payload::Detached { attachment: Some(given) } => detach(task, &given.name),
        _ => false,
    };
    let verdict = if applied { Verdict::Applied } else { Verdict::Ignored };
    Step { in_history: !of_attempt, ..Step::of(verdict) }
}

fn put_attachment(task: &mut TaskRecord, given: &Attachment, at_ms: i64) -> bool {
    if given.check().is_err() {
        return false;
    }
    let name = given.name.clone();
    let media = given.media.clone();
    let bytes = given.data.len() as u32;
    let attached = AttachmentEntry { name, media, bytes, at_ms };
    match task.attachments.iter().position(|attachment| attachment.name == given.name) {
        Some(index) => task.attachments[index] = attached,
        None if task.attachments.len() < MAX_COUNT => task.attachments.push(attached),
        None => return false,
    }
    true
}

fn detach(task: &mut TaskRecord, name: &str) -> bool {
    let before = task.attachments.len();
    task.attachments.retain(|attachment| attachment.name != name);
    task.attachments.len() < before
}
