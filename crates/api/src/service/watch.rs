//! Server-sent events for one task.
//!
//! A stream starts with the current state, also after a reconnect, so that nothing is missed. Its last event is
//! `end`, with a reason. A bounded queue separates the client from the fleet; a client that leaves it full is
//! disconnected.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderName, header};
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use kafleet_documents::{EndReason, Status, StreamEnd};
use kafleet_model::task::id::TaskId;
use serde::Serialize;
use tokio::sync::mpsc::{self, OwnedPermit, Sender};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::context::{After, RequestContext};
use crate::http::answer::EventStream;
use crate::http::problem::ApiError;
use crate::read::consistency::TaskView;
use crate::read::notices::Subscription;
use crate::state::Api;

/// Interval of keep-alive comments.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Headers that make proxies pass each event on at once: `x-accel-buffering` is nginx's, and `no-transform` keeps
/// Cloudflare and compressing middleware from collecting a body in order to compress it.
const UNBUFFERED: [(HeaderName, &str); 2] =
    [(HeaderName::from_static("x-accel-buffering"), "no"), (header::CACHE_CONTROL, "no-store, no-transform")];
/// Maximum events queued for the client.
const MAX_QUEUED_EVENTS: usize = 16;
/// Time after which a client with a full queue is disconnected.
const SLOW_CLIENT_TIMEOUT: Duration = Duration::from_secs(30);

/// Follows the status of a task.
pub(crate) async fn task(context: RequestContext, id: TaskId, After(after): After) -> Result<EventStream, ApiError> {
    let api = context.api.clone();
    let subscription = api.reads.notices.subscribe(api.topology.partition_of(&id), &id)?;
    let task = api.reads.find(&id, after).await?;
    Ok(event_stream(|events| async move { follow_task(&context, task, &subscription, events).await }))
}

/// Starts a stream and spawns the task that writes to it.
pub fn event_stream<F>(write: impl FnOnce(Events) -> F) -> EventStream
where
    F: Future<Output = ()> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(MAX_QUEUED_EVENTS + 1);
    // A slot for the last event is reserved up front, so that a slow client still receives the reason.
    let last = sender.clone().try_reserve_owned().ok();
    kafleet_runtime::spawn(write(Events { sender, last, timeout: SLOW_CLIENT_TIMEOUT }));
    let events = ReceiverStream::new(receiver).map(Ok::<Event, Infallible>);
    let stream = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE_INTERVAL));
    EventStream((UNBUFFERED, stream).into_response())
}

/// Sending half of a stream.
pub struct Events {
    sender: Sender<Event>,
    last: Option<OwnedPermit<Event>>,
    timeout: Duration,
}

/// The stream has ended: the client disconnected, was too slow, or has received the last event.
pub struct StreamClosed;

impl Events {
    /// Sends an event. `id` is sent back by the client in `Last-Event-ID` when it reconnects.
    pub async fn send(&mut self, name: &str, id: Option<&str>, document: &impl Serialize) -> Result<(), StreamClosed> {
        let Some(mut event) = event(name, document) else { return Err(StreamClosed) };
        if let Some(id) = id {
            event = event.id(id);
        }
        match self.sender.send_timeout(event, self.timeout).await {
            Ok(()) => Ok(()),
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => {
                self.end(EndReason::Slow);
                Err(StreamClosed)
            }
            Err(mpsc::error::SendTimeoutError::Closed(_)) => Err(StreamClosed),
        }
    }

    /// Waits until the client has disconnected.
    pub async fn closed(&self) {
        self.sender.closed().await;
    }

    pub fn end(&mut self, reason: EndReason) {
        if let (Some(last), Some(event)) = (self.last.take(), event("end", &StreamEnd { reason })) {
            last.send(event);
        }
    }
}

/// Encodes an event. `None` if the document cannot be encoded, which is logged.
fn event(name: &str, document: &impl Serialize) -> Option<Event> {
    match serde_json::to_string(document) {
        Ok(data) => Some(Event::default().event(name).data(data)),
        Err(error) => {
            tracing::error!(event = name, %error, "an event of a stream cannot be encoded");
            None
        }
    }
}

async fn follow_task(context: &RequestContext, task: TaskView, subscription: &Subscription, mut events: Events) {
    let api = &context.api;
    let id = task.id.clone();
    let mut newest = Some(task);
    let mut last_sent: Option<Status> = None;
    loop {
        if let Some(task) = newest.take() {
            let status = context.status(&task);
            if has_changed(last_sent.as_ref(), &status) {
                if events.send("status", Some(&status.position), &status).await.is_err() {
                    return;
                }
                last_sent = Some(status);
            }
            if task.record.state.is_terminal() {
                return events.end(EndReason::Finished);
            }
        }
        newest = match wait_for_change(api, &id, subscription, &mut events).await {
            Ok(task) => task,
            Err(StreamClosed) => return,
        };
    }
}

/// Waits for a possible change of a task and reads it. `None` if the store is unavailable or is projected again; try
/// again later.
pub(crate) async fn wait_for_change(
    api: &Api,
    id: &TaskId,
    subscription: &Subscription,
    events: &mut Events,
) -> Result<Option<TaskView>, StreamClosed> {
    tokio::select! {
        biased;
        () = events.closed() => return Err(StreamClosed),
        () = api.reads.shutdown.drain.cancelled() => {
            events.end(EndReason::Shutdown);
            return Err(StreamClosed);
        }
        () = subscription.changed() => {}
    }
    match api.reads.read(id).await {
        Ok(Some(task)) => Ok(Some(task)),
        Ok(None) => {
            events.end(EndReason::Gone);
            Err(StreamClosed)
        }
        Err(_) => Ok(None),
    }
}

/// Whether a status differs from the last one sent. The position alone advances with every event of the partition.
fn has_changed(last_sent: Option<&Status>, now: &Status) -> bool {
    last_sent.is_none_or(|last_sent| {
        let last_sent = Status { position: now.position.clone(), ..last_sent.clone() };
        last_sent != *now
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silent_stream_sends_a_comment_every_15_seconds() {
        let started = tokio::time::Instant::now();
        let response = event_stream(|events| async move { events.closed().await });
        let mut body = response.0.into_body().into_data_stream();
        for comments in 1..=3 {
            let comment = body.next().await.unwrap().unwrap();
            assert!(comment.starts_with(b":"), "{comment:?}");
            assert_eq!(started.elapsed().as_secs(), 15 * comments);
        }
    }

    #[tokio::test]
    async fn slow_client_is_disconnected_with_a_reason() {
        let (sender, mut receiver) = mpsc::channel(3);
        let last = sender.clone().try_reserve_owned().ok();
        let mut events = Events { sender, last, timeout: Duration::from_millis(20) };
        assert!(events.send("status", None, &1).await.is_ok() && events.send("status", None, &2).await.is_ok());
        assert!(events.send("status", None, &3).await.is_err(), "the last slot is reserved for the end event");
        drop(events);
        let mut last_sent = Vec::new();
        while let Some(event) = receiver.recv().await {
            last_sent.push(format!("{event:?}"));
        }
        assert_eq!(last_sent.len(), 3);
        assert!(last_sent[2].contains("slow"), "{last_sent:?}");
    }
}
