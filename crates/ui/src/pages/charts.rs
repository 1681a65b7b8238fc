//! Charts of a page: the statistics of its range, those of an earlier time, and the changes in between.

use std::sync::Arc;

use kafleet_api::http::problem::ApiError;
use kafleet_api::service::statistics::{self, Series, StatsQuery};
use kafleet_documents::Stats;
use kafleet_runtime::now_ms;
use maud::Markup;

use crate::parts::notice::missing;
use crate::parts::range::{ChartRange, Compare};
use crate::parts::statistics::{FleetChange, Past, charts};
use crate::visit::{Visit, stored};

/// Charts, and the statistics of the earlier time.
pub(super) struct Charts {
    pub markup: Markup,
    compare: Compare,
    past: Option<Arc<Stats>>,
}

impl Charts {
    pub(super) fn past(&self) -> Option<Past<'_>> {
        Past::new(self.compare, self.past.as_deref()?)
    }
}

/// Charts of a type, or of all.
pub(super) async fn charts_of(visit: &Visit, path: &str, task_type: Option<&str>, changes: &[FleetChange]) -> Charts {
    let compare = Compare::named(visit.query.get("compare"));
    let range = match range_of(visit, compare) {
        Ok(range) => range,
        Err(error) => return Charts { markup: missing("The statistics", &error.document()), compare, past: None },
    };
    let query = |shift_ms: i64| StatsQuery {
        series: task_type.map_or(Series::All, |name| Series::OfType(name.to_owned())),
        from_ms: Some(range.from_ms - shift_ms),
        to_ms: Some(range.to_ms - shift_ms),
        // What is kept of an earlier time has longer points.
        step: range.step.filter(|_| shift_ms == 0),
    };
    let earlier = async {
        let shift_ms = compare.shift_ms()?;
        stored(cached_stats(visit, query(shift_ms))).await.ok()
    };
    let (stats, past) = tokio::join!(stored(cached_stats(visit, query(0))), earlier);
    let of_past = past.as_deref().and_then(|past| Past::new(compare, past));
    let markup = match stats {
        Ok(stats) => charts(&visit.view, path, &range, &stats, of_past.as_ref(), changes),
        Err(error) => missing("The statistics", &error.document()),
    };
    Charts { markup, compare, past }
}

fn range_of(visit: &Visit, compare: Compare) -> Result<ChartRange, ApiError> {
    let (query, now_ms) = (&visit.query, now_ms());
    if !query.is_set("from") && !query.is_set("to") {
        return Ok(ChartRange::named(query.get("range"), compare, now_ms));
    }
    let bounds = ["from", "to"].map(|name| query.get(name).map(str::to_owned));
    Ok(ChartRange::between(query.time_ms("from")?, query.time_ms("to")?, bounds, compare, now_ms))
}

/// Reads statistics, which the pages of a second share.
pub(super) async fn cached_stats(visit: &Visit, query: StatsQuery) -> Result<Arc<Stats>, ApiError> {
    // All requests within a second have the same key.
    let (from, to) = (query.from_ms.unwrap_or_default(), query.to_ms.unwrap_or_default());
    let key = format!("{:?} {:?} {} {}", query.series, query.step, to - from, to.div_euclid(1_000));
    visit.live.statistics.get(Some(key), statistics::stats(visit.context(), query)).await
}
