//! Raw values: as plain text or downloads, never rendered as pages of this origin.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use kafleet_api::http::problem::{ApiError, Code};
use kafleet_api::http::routes::tasks::attachment_response;
use kafleet_api::service::context::After;
use kafleet_api::service::log::{self, Lines};
use kafleet_api::service::tree::{self, TreeSize};
use kafleet_api::service::{attachments, task};
use kafleet_documents::diagram::mermaid;

use crate::parts::visible;
use crate::visit::{PageAnswer, Visit, from_kafka, stored};

/// Tasks below the top of a diagram: Mermaid draws at most 500 edges, and a task whose children are left out has one more.
pub(super) const DIAGRAM_TASKS: usize = 100;
/// Lines of a raw log.
const MAX_RAW_LINES: usize = 10_000;

pub(in super::super) async fn params(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let params = from_kafka(task::params(visit.context(), visit.id()?, After::default())).await?;
    Ok(text(params.params.text().to_owned()))
}

pub(in super::super) async fn result(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let status = stored(task::status(visit.context(), visit.id()?, After::default())).await?;
    let missing = || ApiError::new(Code::NotFound, format!("`{}` has no result", status.id));
    let result = status.result.as_ref().ok_or_else(missing)?;
    Ok(text(result.text().to_owned()))
}

/// Newest lines of a log.
pub(in super::super) async fn log(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let lines = Lines::Newest(MAX_RAW_LINES);
    let page = stored(log::page(visit.context(), visit.id()?, lines, After::default())).await?;
    let lines: Vec<String> = page.lines.iter().map(|line| visible(&line.text)).collect();
    Ok(text(lines.join("\n") + "\n"))
}

pub(in super::super) async fn diagram(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let size = TreeSize { limit: DIAGRAM_TASKS, ..TreeSize::default() };
    Ok(text(mermaid(&stored(tree::tree(visit.context(), visit.id()?, size, After::default())).await?)))
}

pub(in super::super) async fn attachment(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let attachment = stored(attachments::get(visit.context(), visit.id()?, &visit.name, After::default())).await?;
    Ok(PageAnswer::Raw(attachment_response(attachment)))
}

fn text(text: String) -> PageAnswer {
    sandboxed(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response())
}

/// Document that is no page, in which nothing runs.
pub(super) fn sandboxed(mut response: Response) -> PageAnswer {
    let policy = HeaderValue::from_static("sandbox; default-src 'none'");
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    PageAnswer::Raw(response)
}
