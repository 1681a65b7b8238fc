//! Follows a task's changes, its log, or the fleet's changes, reconnecting as needed.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use kafleet_documents::{FleetChange, LogDocument, Status};
use reqwest::header;
use tokio::time::Instant;

use super::events::{EventStream, StreamEvent};
use super::{Client, Error, Method};

/// Consecutive failed connections before giving up: about half a minute of an unavailable API.
pub(crate) const MAX_TRIES: u32 = 12;
const MIN_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(3);
/// Age at which a connection counts as stable and the failure count is reset.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// Query parameters.
pub type Query = Vec<(&'static str, String)>;

/// Stream to follow.
enum StreamSource {
    Task(String),
    /// The log of a task, from its next line.
    Log {
        id: String,
        from: u64,
    },
    /// All tasks, or those of a scope, and the id of the last event.
    Fleet {
        scope: Query,
        last_event_id: Option<String>,
    },
}

/// Called with the reason when a connection is lost.
type OnLost = Box<dyn FnMut(&str) + Send>;

/// Event stream that reconnects.
pub struct ReconnectingStream {
    client: Client,
    source: StreamSource,
    stream: Option<EventStream>,
    opened: Instant,
    tries: u32,
    waits: ExponentialBackoff,
    on_lost: Option<OnLost>,
}

impl ReconnectingStream {
    /// Creates a follower that connects on first use and retries its first connection too.
    pub fn new(client: &Client, id: &str) -> Self {
        Self::of(client, StreamSource::Task(id.to_owned()))
    }

    /// Creates a follower with an open connection, or fails at once if the API cannot be reached.
    pub async fn open(client: &Client, id: &str) -> Result<Self, Error> {
        Self::opened(client, StreamSource::Task(id.to_owned())).await
    }

    /// Opens a follower of the log of a task, from a line on.
    pub async fn open_log(client: &Client, id: &str, from: u64) -> Result<Self, Error> {
        Self::opened(client, StreamSource::Log { id: id.to_owned(), from }).await
    }

    /// Opens a follower of all tasks, or of a type or a tree.
    pub async fn open_fleet(client: &Client, scope: Query) -> Result<Self, Error> {
        Self::opened(client, StreamSource::Fleet { scope, last_event_id: None }).await
    }

    /// Sets a function that is called with the reason when a connection is lost.
    pub fn on_lost(self, notify: impl FnMut(&str) + Send + 'static) -> Self {
        Self { on_lost: Some(Box::new(notify)), ..self }
    }

    fn of(client: &Client, source: StreamSource) -> Self {
        let opened = Instant::now();
        Self { client: client.clone(), source, stream: None, opened, tries: 0, waits: waits(), on_lost: None }
    }

    async fn opened(client: &Client, source: StreamSource) -> Result<Self, Error> {
        let new = Self::of(client, source);
        let stream = Some(open(&new.client, &new.source).await?);
        Ok(Self { stream, ..new })
    }

    /// Returns the task's present status, then its changes. A new connection starts with the present status.
    pub async fn next(&mut self) -> Result<Box<Status>, Error> {
        loop {
            match self.event().await? {
                StreamEvent::Status(status) => return Ok(status),
                // The task's end was returned before: it was reopened, or another API lags behind.
                StreamEvent::Finished => self.count_lost_connection("the API ended the stream")?,
                _ => {}
            }
        }
    }

    /// Returns the next lines of the log; `None` once the task has ended and all lines were returned.
    pub async fn lines(&mut self) -> Result<Option<Box<LogDocument>>, Error> {
        loop {
            match self.event().await? {
                StreamEvent::Lines(page) => {
                    if let StreamSource::Log { from, .. } = &mut self.source {
                        *from = page.from + page.lines.len() as u64;
                    }
                    return Ok(Some(page));
                }
                StreamEvent::Finished => return Ok(None),
                _ => {}
            }
        }
    }

    /// Returns the next change. A new connection resumes after the last event; if the API cannot, it sends a change
    /// that names no tasks.
    pub async fn change(&mut self) -> Result<Box<FleetChange>, Error> {
        loop {
            if let StreamEvent::Changed(change, event_id) = self.event().await? {
                return Ok(self.record_position(change, event_id));
            }
        }
    }

    /// Connects if there is no connection.
    pub async fn connected(&mut self) -> Result<(), Error> {
        if self.stream.is_none() {
            self.stream = Some(self.connect().await?);
            self.opened = Instant::now();
        }
        Ok(())
    }

    /// Returns the next change over the present connection; `None` if there is none in time.
    pub async fn change_until(&mut self, until: Instant) -> Result<Option<Box<FleetChange>>, Error> {
        let Some(stream) = &mut self.stream else { return Ok(None) };
        match tokio::time::timeout_at(until, stream.next()).await {
            Ok(StreamEvent::Changed(change, event_id)) => Ok(Some(self.record_position(change, event_id))),
            Ok(StreamEvent::Lost { reason }) => self.count_lost_connection(&reason).map(|()| None),
            Ok(StreamEvent::Gone) => Err(gone_error(&self.source)),
            Ok(_) | Err(_) => Ok(None),
        }
    }

    fn record_position(&mut self, change: Box<FleetChange>, event_id: Option<String>) -> Box<FleetChange> {
        if let StreamSource::Fleet { last_event_id, .. } = &mut self.source {
            *last_event_id = event_id;
        }
        change
    }

    /// Returns the next event, reconnecting as needed.
    async fn event(&mut self) -> Result<StreamEvent, Error> {
        loop {
            let Some(stream) = &mut self.stream else {
                self.connected().await?;
                continue;
            };
            match stream.next().await {
                StreamEvent::Gone => return Err(gone_error(&self.source)),
                StreamEvent::Lost { reason } => self.count_lost_connection(&reason)?,
                event => return Ok(event),
            }
        }
    }

    async fn connect(&mut self) -> Result<EventStream, Error> {
        loop {
            if self.tries > 0 {
                tokio::time::sleep(self.waits.next().unwrap_or(MAX_BACKOFF)).await;
            }
            match open(&self.client, &self.source).await {
                // The API is there. However long its store is projected again, the task is not lost.
                Err(error) if error.is_not_visible_yet() => self.tries = self.tries.max(1),
                Err(error) if error.is_temporary() && self.tries < MAX_TRIES => self.tries += 1,
                answer => return answer,
            }
        }
    }

    fn count_lost_connection(&mut self, reason: &str) -> Result<(), Error> {
        self.stream = None;
        if self.opened.elapsed() >= STABLE_AFTER {
            self.tries = 0;
            self.waits = waits();
        }
        self.tries += 1;
        if self.tries > MAX_TRIES {
            return Err(Error::Lost { times: MAX_TRIES, reason: reason.to_owned() });
        }
        if let Some(notify) = &mut self.on_lost {
            notify(reason);
        }
        Ok(())
    }
}

fn waits() -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(MIN_BACKOFF)
        .with_max_delay(MAX_BACKOFF)
        .with_jitter()
        .without_max_times()
        .build()
}

/// Opens a stream from the present state, or after the last event received.
async fn open(client: &Client, source: &StreamSource) -> Result<EventStream, Error> {
    let request = match source {
        StreamSource::Task(id) => client.request(Method::GET, &["v1", "tasks", id, "watch"]),
        StreamSource::Log { id, from } => {
            client.request(Method::GET, &["v1", "tasks", id, "log", "watch"]).query(&[("from", from.to_string())])
        }
        StreamSource::Fleet { scope, last_event_id } => {
            let request = client.request(Method::GET, &["v1", "watch"]).query(scope);
            last_event_id
                .iter()
                .fold(request, |request, id| request.header(header::HeaderName::from_static("last-event-id"), id))
        }
    };
    Ok(EventStream::new(request.header(header::ACCEPT, "text/event-stream").open().await?))
}

fn gone_error(source: &StreamSource) -> Error {
    match source {
        StreamSource::Task(id) | StreamSource::Log { id, .. } => Error::Expired { id: id.clone() },
        StreamSource::Fleet { .. } => Error::Ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeatedly_lost_connection_is_given_up() {
        let client = Client::new("http://127.0.0.1:9").unwrap();
        let mut follow = ReconnectingStream::new(&client, "a");
        for n in 0..MAX_TRIES {
            assert!(follow.count_lost_connection("the API is shutting down").is_ok(), "{n}");
        }
        let error = follow.count_lost_connection("the API is shutting down").unwrap_err();
        assert!(error.is_temporary());
        assert_eq!(error.to_string(), "the connection was lost 12 times in a row: the API is shutting down");
    }

    #[test]
    fn stable_connection_resets_the_failure_count() {
        let client = Client::new("http://127.0.0.1:9").unwrap();
        let mut follow = ReconnectingStream::new(&client, "a");
        follow.tries = MAX_TRIES;
        let Some(long_ago) = Instant::now().checked_sub(STABLE_AFTER) else { return };
        follow.opened = long_ago;
        assert!(follow.count_lost_connection("the API is shutting down").is_ok());
        assert_eq!(follow.tries, 1);
    }
}
