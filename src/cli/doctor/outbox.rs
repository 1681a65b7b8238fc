//! Checks of the outbox.

use std::time::Duration;

use kafleet_outbox::table::{OutboxStats, OutboxTable};

use super::Diagnosis;
use crate::cli::outbox::open;
use crate::cli::setup::Setup;

const SUBJECT: &str = "outbox";
/// Age of a row from which on the relay does not work.
const STUCK: Duration = Duration::from_secs(60);

/// Checks the outbox, if one is configured.
pub(super) async fn findings(setup: &Setup) -> Vec<Diagnosis> {
    if setup.config.outbox.as_ref().is_none_or(|outbox| outbox.postgres.is_none()) {
        return Vec::new();
    }
    let table = match open(setup) {
        Ok(table) => table,
        Err(error) => return vec![Diagnosis::of(SUBJECT, error)],
    };
    // Opening a session also checks the schema.
    let stats = match table.open().await {
        Ok(_) => table.stats().await,
        Err(error) => Err(error),
    };
    match stats {
        Ok(stats) => of_stats(&stats),
        Err(error) => vec![Diagnosis::error(SUBJECT, error.to_string())],
    }
}

fn of_stats(stats: &OutboxStats) -> Vec<Diagnosis> {
    let OutboxStats { rows, oldest, dead, .. } = stats;
    let seconds = oldest.as_secs();
    let mut findings = vec![if *oldest > STUCK {
        Diagnosis::error(SUBJECT, format!("{rows} rows are not published, the oldest for {seconds} s"))
            .hint("start `kafleet outbox`, or look at the reason in its `/readyz` and log")
    } else {
        Diagnosis::ok(SUBJECT, format!("Postgres answers; {rows} rows are not published"))
    }];
    findings.extend((*dead > 0).then(|| {
        Diagnosis::warning(SUBJECT, format!("{dead} rows are no valid tasks"))
            .hint("`kafleet outbox list` shows the reasons; `retry` submits them again, `drop` deletes them")
    }));
    findings
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    fn verdicts(stats: &OutboxStats) -> Vec<Verdict> {
        of_stats(stats).into_iter().map(|finding| finding.verdict).collect()
    }

    #[test]
    fn old_and_dead_rows_are_reported() {
        let empty = OutboxStats::default();
        assert_eq!(verdicts(&empty), [Verdict::Ok]);
        assert_eq!(verdicts(&OutboxStats { rows: 1, oldest: Duration::from_secs(61), ..empty }), [Verdict::Error]);
        assert_eq!(verdicts(&OutboxStats { dead: 2, ..empty }), [Verdict::Ok, Verdict::Warning]);
    }
}
