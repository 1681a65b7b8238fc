//! Downloads of the tasks of a search.

use kafleet_api::http::problem::ApiError;
use kafleet_api::http::request::{bad_parameter, bad_query};
use kafleet_api::service::export::{self, DEFAULT_TASKS, ExportQuery};
use kafleet_documents::ExportFormat;
use kafleet_model::query::TaskQuery;

use super::raw::sandboxed;
use super::tasks::listing_of;
use crate::parts::listing::Listing;
use crate::visit::{PageAnswer, Visit, stored};

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let Listing { q, columns, .. } = listing_of(visit)?;
    let query = TaskQuery::parse(&q).map_err(|mistake| bad_query(&q, mistake))?;
    let format = visit.query.get("format").map(str::parse::<ExportFormat>).transpose();
    let format = format.map_err(|error| bad_parameter("format", &error))?.unwrap_or_default();
    let wanted = ExportQuery { query, format, columns, limit: DEFAULT_TASKS, cursor: None };
    Ok(sandboxed(stored(export::export(visit.context(), wanted)).await?))
}
