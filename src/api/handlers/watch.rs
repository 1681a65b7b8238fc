//! Changes as they happen, as server-sent events.
//!
//! A stream starts with the present state, also when it resumes: whatever was missed is in it. It ends with the event
//! `end`, which says why. Between client and fleet lies a short queue; a client that leaves it full is let go.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::sync::mpsc::{self, OwnedPermit, Sender};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use crate::api::Api;
use crate::api::documents::{EndReason, Status, StreamEnd};
use crate::api::http::problem::ApiError;
use crate::api::http::request::ApiRequest;
use crate::api::read::consistency::TaskView;
use crate::api::read::notices::Subscription;
use crate::api::read::status::status;
use crate::model::task::id::TaskId;
use crate::runtime;

/// Silence after which a comment is sent.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Events that wait for the client to read.
const QUEUE: usize = 16;
/// How long a client may leave its queue full.
const PATIENCE: Duration = Duration::from_secs(30);

/// `GET /v1/tasks/{id}/watch`.
pub async fn task(call: ApiRequest) -> Result<Response, ApiError> {
    let id = call.id()?;
    let interest = call.api.hub.interest(call.api.publisher.partition_of(&id), &id)?;
    let found = call.api.find(&id, call.after()?).await?;
    let api = call.api.clone();
    Ok(stream(|events| async move { follow(&api, found, &interest, events).await }))
}

/// Makes a stream of what a task writes into it.
pub fn stream<F>(write: impl FnOnce(Events) -> F) -> Response
where
    F: Future<Output = ()> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(QUEUE + 1);
    // Room for the last event is kept from the start, so that a client that was too slow hears it too.
    let last = sender.clone().try_reserve_owned().ok();
    runtime::spawn(write(Events { sender, last, patience: PATIENCE }));
    let events = ReceiverStream::new(receiver).map(Ok::<Event, Infallible>);
    Sse::new(events).keep_alive(KeepAlive::new().interval(HEARTBEAT)).into_response()
}

/// The writing end of a stream.
pub struct Events {
    sender: Sender<Event>,
    last: Option<OwnedPermit<Event>>,
    patience: Duration,
}

/// The stream is over: the client has gone or is too slow, or has been told why.
pub struct Over;

impl Events {
    /// `id` is what a client that comes again has heard last.
    pub async fn send(&mut self, name: &str, id: Option<&str>, document: &impl Serialize) -> Result<(), Over> {
        let mut event = event(name, document);
        if let Some(id) = id {
            event = event.id(id);
        }
        match self.sender.send_timeout(event, self.patience).await {
            Ok(()) => Ok(()),
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => {
                self.end(EndReason::Slow);
                Err(Over)
            }
            Err(mpsc::error::SendTimeoutError::Closed(_)) => Err(Over),
        }
    }

    /// Waits until the client has gone.
    pub async fn closed(&self) {
        self.sender.closed().await;
    }

    pub fn end(&mut self, reason: EndReason) {
        if let Some(last) = self.last.take() {
            last.send(event("end", &StreamEnd { reason }));
        }
    }
}

fn event(name: &str, document: &impl Serialize) -> Event {
    // Documents have no keys that are not text, which is all that could fail.
    let data = serde_json::to_string(document).unwrap_or_default();
    Event::default().event(name).data(data)
}

async fn follow(api: &Arc<Api>, found: TaskView, interest: &Subscription, mut events: Events) {
    let id = found.id.clone();
    let mut newest = Some(found);
    let mut told: Option<Status> = None;
    loop {
        if let Some(found) = newest.take() {
            let status = status(&found);
            if is_news(told.as_ref(), &status) {
                if events.send("status", Some(&status.position), &status).await.is_err() {
                    return;
                }
                told = Some(status);
            }
            if found.node.state.is_terminal() {
                return events.end(EndReason::Finished);
            }
        }
        newest = match news(api, &id, interest, &mut events).await {
            Ok(found) => found,
            Err(Over) => return,
        };
    }
}

/// Waits until there may be news of a task, and looks. None: the store is away, the next look tells more.
pub async fn news(api: &Api, id: &TaskId, interest: &Subscription, events: &mut Events) -> Result<Option<TaskView>, Over> {
    tokio::select! {
        biased;
        () = events.closed() => return Err(Over),
        () = api.shutdown.drain.cancelled() => {
            events.end(EndReason::Shutdown);
            return Err(Over);
        }
        () = interest.changed() => {}
    }
    match api.look(id).await {
        Ok(Some(found)) => Ok(Some(found)),
        Ok(None) => {
            events.end(EndReason::Gone);
            Err(Over)
        }
        Err(_) => Ok(None),
    }
}

/// The position moves with every event of the partition; that alone is no news of this task.
fn is_news(told: Option<&Status>, now: &Status) -> bool {
    told.is_none_or(|told| {
        let told = Status { position: now.position.clone(), ..told.clone() };
        told != *now
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_does_not_read_is_let_go_and_told_so() {
        let (sender, mut receiver) = mpsc::channel(3);
        let last = sender.clone().try_reserve_owned().ok();
        let mut events = Events { sender, last, patience: Duration::from_millis(20) };
        assert!(events.send("status", None, &1).await.is_ok() && events.send("status", None, &2).await.is_ok());
        assert!(events.send("status", None, &3).await.is_err(), "the third place is kept for the end");
        drop(events);
        let mut told = Vec::new();
        while let Some(event) = receiver.recv().await {
            told.push(format!("{event:?}"));
        }
        assert_eq!(told.len(), 3);
        assert!(told[2].contains("slow"), "{told:?}");
    }
}
