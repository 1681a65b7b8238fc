//! Thread that exports queued spans in batches. Nothing waits for it: if the collector is unavailable or slow, the queue
//! fills, and further spans are dropped and counted.

use std::sync::Arc;
use std::time::Duration;

use kafleet_model::trace::Sampler;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::environment::OtelSettings;
use super::export::{Collector, ExportError};
use super::span::Span;
use super::{BATCH_SPANS, QUEUE_SPANS, TraceMetrics, Tracer};

/// Longest wait for a batch to fill.
const BATCH_WAIT: Duration = Duration::from_secs(1);
/// Pauses before the retries of a request, unless the collector asks for another pause (at most 30 s). If the last retry
/// fails, the spans are dropped.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];
/// Deadline of the last exports when the process stops.
const FLUSH_DEADLINE: Duration = Duration::from_secs(5);
/// Additional time for the thread to end after that deadline.
const END_GRACE: Duration = Duration::from_secs(1);

/// Running exporter of a process.
pub struct Exporter {
    stop: CancellationToken,
    /// `None` once it is stopped.
    end: Mutex<Option<oneshot::Receiver<()>>>,
}

impl Exporter {
    /// Exports the queued spans, within a deadline, and ends the thread.
    pub async fn stop(&self) {
        self.stop.cancel();
        let end = self.end.lock().take();
        if let Some(end) = end {
            let _ = tokio::time::timeout(FLUSH_DEADLINE + END_GRACE, end).await;
        }
    }
}

/// Starts the exporter's thread. Returns the tracer that queues spans for it, and the handle that stops it.
///
/// # Errors
/// The client of the collector or the thread cannot be created.
pub fn start(settings: OtelSettings, metrics: &TraceMetrics) -> Result<(Tracer, Exporter), String> {
    let (tracer, spans) = Tracer::new(Sampler::new(settings.sample), QUEUE_SPANS, metrics);
    let stop = CancellationToken::new();
    let collector = Collector::new(settings)?;
    let state = ExportLoop {
        collector,
        spans,
        full: tracer.full.clone(),
        stop: stop.clone(),
        metrics: metrics.clone(),
        batch: Vec::new(),
        failing: false,
    };
    let end =
        kafleet_runtime::thread("otel", state.run()).map_err(|error| format!("no thread for the exporter: {error}"))?;
    Ok((tracer, Exporter { stop, end: Mutex::new(Some(end)) }))
}

/// State of the exporter's thread.
struct ExportLoop {
    collector: Collector,
    spans: mpsc::Receiver<Box<Span>>,
    full: Arc<Notify>,
    stop: CancellationToken,
    metrics: TraceMetrics,
    /// Spans of the current request.
    batch: Vec<Span>,
    /// The last export has failed.
    failing: bool,
}

impl ExportLoop {
    async fn run(mut self) {
        let stop = self.stop.clone();
        let overdue = async {
            stop.cancelled().await;
            tokio::time::sleep(FLUSH_DEADLINE).await;
        };
        tokio::select! {
            biased;
            () = self.export_all() => {}
            () = overdue => {}
        }
        self.spans.close();
        let queued = std::iter::from_fn(|| self.spans.try_recv().ok()).count();
        self.metrics.drop_spans("shutdown", (queued + self.batch.len()) as u64);
    }

    /// Exports batches until the process stops and the queue is empty.
    async fn export_all(&mut self) {
        while self.fill_batch().await {
            self.export_batch().await;
        }
    }

    /// Waits for the next batch. Returns false once the process stops and the queue is empty.
    async fn fill_batch(&mut self) -> bool {
        let first = tokio::select! {
            biased;
            span = self.spans.recv() => span,
            () = self.stop.cancelled() => self.spans.try_recv().ok(),
        };
        let Some(first) = first else { return false };
        self.batch.push(*first);
        // Waking the thread for each span would cost more than exporting it, so wait for a batch or `BATCH_WAIT`.
        tokio::select! {
            biased;
            () = self.stop.cancelled() => {}
            () = self.full.notified() => {}
            () = tokio::time::sleep(BATCH_WAIT) => {}
        }
        while self.batch.len() < BATCH_SPANS
            && let Ok(next) = self.spans.try_recv()
        {
            self.batch.push(*next);
        }
        true
    }

    /// Sends the batch and retries transient errors; drops it if all attempts fail.
    async fn export_batch(&mut self) {
        for pause in RETRY_DELAYS.into_iter().map(Some).chain([None]) {
            let error = match self.collector.send(&self.batch).await {
                Ok(rejected) => return self.exported(rejected),
                Err(error) => error,
            };
            self.report(&error);
            let (Some(pause), ExportError::Transient { pause: requested, .. }) = (pause, &error) else { break };
            // When the process stops, the remaining attempts follow without a pause.
            tokio::select! {
                biased;
                () = self.stop.cancelled() => {}
                () = tokio::time::sleep(requested.unwrap_or(pause)) => {}
            }
        }
        self.metrics.drop_spans("export_failed", self.batch.len() as u64);
        self.batch.clear();
    }

    fn exported(&mut self, rejected: u64) {
        self.metrics.exported.inc_by(self.batch.len() as u64 - rejected);
        self.metrics.drop_spans("rejected", rejected);
        self.batch.clear();
        if std::mem::take(&mut self.failing) {
            tracing::info!("traces are exported again");
        }
    }

    /// Logs the first of several failures; the metrics count all of them.
    fn report(&mut self, error: &ExportError) {
        if !std::mem::replace(&mut self.failing, true) {
            let url = self.collector.url();
            tracing::warn!(%error, %url, "traces are not exported; tasks are not affected");
        }
    }
}
