//! `metrics`: prints the dashboard and the alerts of this build.

use clap::{Args, Subcommand};
use kafleet_telemetry::{alerts, dashboard};

use super::exit::{Code, Failure, Outcome};
use super::output::Output;

#[derive(Debug, Subcommand)]
pub(super) enum MetricsVerb {
    /// Print the dashboard for Grafana, as JSON to import
    Dashboard,
    /// Print the alerts for Prometheus, as a rule file
    Alerts(AlertsArgs),
}

#[derive(Debug, Args)]
pub(super) struct AlertsArgs {
    /// Address of the runbook, for the links of the alerts
    #[arg(long, value_name = "URL", default_value = "docs/runbook.md")]
    pub runbook: String,
}

pub(super) fn metrics(verb: &MetricsVerb, output: &Output) -> Outcome {
    let text = match verb {
        MetricsVerb::Dashboard => serde_json::to_string_pretty(&dashboard::dashboard()).map_err(Failure::failed)?,
        MetricsVerb::Alerts(AlertsArgs { runbook }) => alerts::rules(runbook),
    };
    output.line(text.trim_end())?;
    Ok(Code::Ok)
}
