//! Key of a unique task: its box on the page of the task, and the form that forgets it.

use kafleet_api::http::problem::{ApiError, Code};
use kafleet_api::service::context::{After, Name};
use kafleet_api::service::{task, unique};
use kafleet_documents::{Status, UniqueKeyDocument};
use kafleet_model::unique::AskVerdict;
use maud::{Markup, html};

use super::form_page;
use super::task_forms::{subject, task_form};
use crate::parts::command::{curl, quoted};
use crate::parts::form::Form;
use crate::parts::notice::missing;
use crate::parts::unique::unique_box;
use crate::parts::{encoded, task_path, visible};
use crate::visit::{PageAnswer, Redirect, Visit, stored};

/// Box with the key of a unique task; nothing for other tasks.
pub(super) async fn key_box(visit: &Visit, status: &Status) -> Markup {
    let (Some(rule), Some((task_type, key))) = (&status.fields.unique, key_of(status)) else { return html! {} };
    match known(unique::read(visit.context(), Name(task_type), Name(key))).await {
        Ok(key) => unique_box(&visit.view, status, rule, key.as_ref()),
        Err(error) => missing("The key of the task", &error.document()),
    }
}

/// Type and key of a unique task.
fn key_of(status: &Status) -> Option<(String, String)> {
    let key = status.fields.unique.as_ref()?.key()?;
    Some((status.task_type.clone()?, key.to_owned()))
}

/// Message after the submission of a unique task, whose page may be that of another one.
pub(super) const fn verdict_code(verdict: AskVerdict) -> &'static str {
    match verdict {
        AskVerdict::Started => "unique_started",
        AskVerdict::Kept => "unique_kept",
        AskVerdict::Joined => "unique_joined",
    }
}

pub(in super::super) async fn show_forget(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let status = stored(task::status(visit.context(), visit.id()?, After::default())).await?;
    let key = match key_of(&status) {
        Some((task_type, key)) => known(unique::read(visit.context(), Name(task_type), Name(key))).await?,
        None => None,
    };
    Ok(form_page(&Form {
        effect: effect(&status, key.as_ref()),
        danger: true,
        beside: Some(subject(&visit.view, &status)),
        commands: key.iter().flat_map(lines).collect(),
        ..task_form(visit, "Forget the key of", "forget-key", if key.is_some() { "Forget the key" } else { "" })
    }))
}

/// Key, or `None` if it is forgotten already.
async fn known(
    read: impl Future<Output = Result<UniqueKeyDocument, ApiError>>,
) -> Result<Option<UniqueKeyDocument>, ApiError> {
    match stored(read).await {
        Ok(key) => Ok(Some(key)),
        Err(error) if error.is(Code::UnknownUnique) => Ok(None),
        Err(error) => Err(error),
    }
}

fn lines(key: &UniqueKeyDocument) -> [String; 2] {
    let UniqueKeyDocument { task_type, key, .. } = key;
    [
        format!("kafleet unique {} {} clear", quoted(task_type), quoted(key)),
        curl("DELETE", &format!("/v1/unique/{}/{}", encoded(task_type), encoded(key)), None),
    ]
}

/// Effect of forgetting a key on the tasks that stand for it.
fn effect(status: &Status, key: Option<&UniqueKeyDocument>) -> Markup {
    let Some(key) = key else {
        return html! {
            p {
                @if key_of(status).is_some() { "No task stands for its key any more: the next submission starts at once." }
                @else { code { (status.id) } " is not unique: it has no key to forget." }
            }
        };
    };
    html! {
        p {
            "Forgets the key " code { (visible(&key.key)) } " of " code { (key.task_type) } ": the next submission starts at once"
            @if !key.open.is_empty() { ", also beside " code { (visible(&key.open.join(", "))) } ", which goes on" }
            "."
        }
        @if let Some(kept) = &key.kept {
            p { "The kept task " code { (visible(&kept.id)) } " starts now." }
        }
    }
}

pub(in super::super) async fn forget(visit: &Visit) -> Result<Redirect, ApiError> {
    let status = stored(task::status(visit.context(), visit.id()?, After::default())).await?;
    let unknown = || ApiError::new(Code::UnknownUnique, format!("the task `{}` is not unique", status.id));
    let (task_type, key) = key_of(&status).ok_or_else(unknown)?;
    // Returns once the projection has forgotten the key.
    let forgotten = unique::clear(visit.context(), Name(task_type), Name(key)).await?;
    let redirect = Redirect::new(task_path(&status.id), "key_forgotten");
    match forgotten.kept.filter(|kept| kept.id != status.id) {
        Some(kept) => Ok(redirect.leading_to(task_path(&kept.id))),
        None => Ok(redirect),
    }
}
