//! Tracing of a process: its start from the configuration and the environment.

use std::sync::Arc;

use kafleet_telemetry::otel;

use super::exit::Failure;
use super::setup::Setup;

/// Starts to trace, if `[otel]` or the environment has an endpoint.
pub(super) fn start(setup: &mut Setup) -> Result<(), Failure> {
    let env = |name: &str| std::env::var(name).ok();
    let (settings, warnings) = otel::settings(&setup.config.otel, &env);
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    if let Some(settings) = settings {
        let error = |error| Failure::failed(format_args!("tracing cannot be started: {error}"));
        let (tracer, exporter) = otel::start(settings, &setup.metrics.traces).map_err(error)?;
        setup.tracing = Some((tracer, Arc::new(exporter)));
    }
    Ok(())
}
