//! Timeline of a tree.

use maud::html;

use super::task::{head, tabs};
use crate::api::handlers::{list, task};
use crate::api::http::problem::ApiError;
use crate::api::ui::parts::command::{commands, curl_get, quoted};
use crate::api::ui::parts::count;
use crate::api::ui::parts::table::pager;
use crate::api::ui::parts::timeline::timeline;
use crate::api::ui::visit::{Answer, Body, Visit, stored};

/// Tasks of a page.
const ROWS: usize = 100;

pub(in super::super) async fn show(visit: &Visit) -> Result<Answer, ApiError> {
    let (view, id) = (&visit.view, &visit.segment);
    let mut query = vec![("root".to_owned(), id.clone()), ("limit".to_owned(), ROWS.to_string())];
    query.extend(visit.query.select(&["cursor"]));
    let below = visit.request_of("", query);
    let request = visit.request();
    let (status, page) = tokio::join!(stored(task::status_document(&request)), stored(list::task_page(&below)));
    let (status, page) = (status?, page?);
    let next =
        page.next.as_deref().map(|cursor| view.url_with(&format!("/tasks/{id}/timeline"), &[("cursor", cursor)]));
    let first = visit.query.is_set("cursor").then(|| view.below_task(id, "timeline"));
    let note = format!("{} of {} tasks", count(page.tasks.len()), count(status.tree.total));
    let main = html! {
        (head(view, &status))
        (tabs(view, id, "timeline"))
        section.panel {
            (timeline(view, &page.tasks, status.tree.ended_by.as_deref()))
            (pager(first.as_deref(), next.as_deref(), &note))
        }
        (commands(&[format!("kafleet list --root {}", quoted(id)), curl_get(&format!("/v1/tasks?root={id}"))]))
    };
    Ok(Answer::Page(Body { title: format!("Timeline of {id}"), state: Some(status.state), main }))
}
