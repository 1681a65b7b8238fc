//! Follows a task's changes, its log, or the fleet's changes, reconnecting as needed.

use std::time::Duration;

use tokio::time::Instant;

use super::{Client, EventStream, Query, StreamEvent};
use crate::api::documents::{FleetChange, LogDocument, Status};
use crate::cli::exit::{Code, Failure};
use crate::cli::output::eprint_line;
use crate::runtime::Backoff;

/// Consecutive failed connections before giving up: about half a minute of an unavailable api.
const TRIES: u32 = 12;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(3);
/// Age at which a connection counts as stable and the failure count is reset.
const STABLE: Duration = Duration::from_secs(10);

/// Stream to follow.
pub(super) enum Source<'a> {
    Task(&'a str),
    /// The log of a task, from its next line.
    Log {
        id: &'a str,
        from: u64,
    },
    /// All tasks, or those of a scope, and the id of the last event.
    Fleet {
        scope: Query,
        last_event_id: Option<String>,
    },
}

pub(crate) struct ReconnectingStream<'a> {
    client: &'a Client,
    source: Source<'a>,
    stream: Option<EventStream>,
    opened: Instant,
    tries: u32,
    backoff: Backoff,
}

impl<'a> ReconnectingStream<'a> {
    /// Creates a follower that connects on first use and retries its first connection too.
    pub(crate) fn new(client: &'a Client, id: &'a str) -> Self {
        Self::of(client, Source::Task(id))
    }

    /// Creates a follower with an open connection, or fails at once if the API cannot be reached.
    pub(crate) async fn open(client: &'a Client, id: &'a str) -> Result<Self, Failure> {
        Self::opened(client, Source::Task(id)).await
    }

    /// Opens a follower of the log of a task, from a line on.
    pub(crate) async fn open_log(client: &'a Client, id: &'a str, from: u64) -> Result<Self, Failure> {
        Self::opened(client, Source::Log { id, from }).await
    }

    /// Opens a follower of all tasks, or of a type or a tree.
    pub(crate) async fn open_fleet(client: &'a Client, scope: Query) -> Result<Self, Failure> {
        Self::opened(client, Source::Fleet { scope, last_event_id: None }).await
    }

    fn of(client: &'a Client, source: Source<'a>) -> Self {
        let backoff = Backoff::new(FIRST_PAUSE, MAX_PAUSE);
        Self { client, source, stream: None, opened: Instant::now(), tries: 0, backoff }
    }

    async fn opened(client: &'a Client, source: Source<'a>) -> Result<Self, Failure> {
        let stream = Some(client.watch(&source).await?);
        Ok(Self { stream, ..Self::of(client, source) })
    }

    /// Returns the task's present status, then its changes. A new connection starts with the present status.
    pub(crate) async fn next(&mut self) -> Result<Box<Status>, Failure> {
        loop {
            match self.event().await? {
                StreamEvent::Status(status) => return Ok(status),
                // The task's end was returned before: it was reopened, or another API lags behind.
                StreamEvent::Finished => self.lost("the API ended the stream")?,
                _ => {}
            }
        }
    }

    /// Returns the next lines of the log; `None` once the task has ended and all lines were returned.
    pub(crate) async fn lines(&mut self) -> Result<Option<Box<LogDocument>>, Failure> {
        loop {
            match self.event().await? {
                StreamEvent::Lines(page) => {
                    if let Source::Log { from, .. } = &mut self.source {
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
    pub(crate) async fn change(&mut self) -> Result<Box<FleetChange>, Failure> {
        loop {
            if let StreamEvent::Changed(change, event_id) = self.event().await? {
                return Ok(self.record_position(change, event_id));
            }
        }
    }

    /// Connects if there is no connection.
    pub(crate) async fn connected(&mut self) -> Result<(), Failure> {
        if self.stream.is_none() {
            self.stream = Some(self.connect().await?);
            self.opened = Instant::now();
        }
        Ok(())
    }

    /// Returns the next change over the present connection; `None` if there is none in time.
    pub(crate) async fn change_until(&mut self, until: Instant) -> Result<Option<Box<FleetChange>>, Failure> {
        let Some(stream) = &mut self.stream else { return Ok(None) };
        match tokio::time::timeout_at(until, stream.next()).await {
            Ok(StreamEvent::Changed(change, event_id)) => Ok(Some(self.record_position(change, event_id))),
            Ok(StreamEvent::Lost { reason }) => self.lost(&reason).map(|()| None),
            Ok(StreamEvent::Gone) => Err(gone(&self.source)),
            Ok(_) | Err(_) => Ok(None),
        }
    }

    fn record_position(&mut self, change: Box<FleetChange>, event_id: Option<String>) -> Box<FleetChange> {
        if let Source::Fleet { last_event_id, .. } = &mut self.source {
            *last_event_id = event_id;
        }
        change
    }

    /// Returns the next event, reconnecting as needed.
    async fn event(&mut self) -> Result<StreamEvent, Failure> {
        loop {
            let Some(stream) = &mut self.stream else {
                self.connected().await?;
                continue;
            };
            match stream.next().await {
                StreamEvent::Gone => return Err(gone(&self.source)),
                StreamEvent::Lost { reason } => self.lost(&reason)?,
                event => return Ok(event),
            }
        }
    }

    async fn connect(&mut self) -> Result<EventStream, Failure> {
        loop {
            if self.tries > 0 {
                tokio::time::sleep(self.backoff.next_wait()).await;
            }
            match self.client.watch(&self.source).await {
                Err(why) if why.code == Code::Unavailable && self.tries < TRIES => self.tries += 1,
                answer => return answer,
            }
        }
    }

    fn lost(&mut self, reason: &str) -> Result<(), Failure> {
        self.stream = None;
        if self.opened.elapsed() >= STABLE {
            self.tries = 0;
            self.backoff.reset();
        }
        self.tries += 1;
        if self.tries > TRIES {
            return Err(Failure::unavailable(format_args!("the connection was lost {TRIES} times in a row: {reason}"))
                .hint("check the API's /readyz and log"));
        }
        eprint_line(format_args!("connection lost ({reason}), reconnecting"));
        Ok(())
    }
}

fn gone(source: &Source<'_>) -> Failure {
    match source {
        Source::Task(id) | Source::Log { id, .. } => record_removed(id),
        Source::Fleet { .. } => Failure::unavailable("the API ended the stream"),
    }
}

/// Failure for a task whose record was removed.
pub(crate) fn record_removed(id: &str) -> Failure {
    Failure::new(Code::NotFound, format_args!("the record of task `{id}` has expired"))
        .hint("`topics.record_retention` sets how long finished trees are kept")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeatedly_lost_connection_is_given_up() {
        let client = Client::new("http://127.0.0.1:9", None).unwrap();
        let mut follow = ReconnectingStream::new(&client, "a");
        for n in 0..TRIES {
            assert_eq!(follow.lost("the API is shutting down"), Ok(()), "{n}");
        }
        let failure = follow.lost("the API is shutting down").unwrap_err();
        assert_eq!(failure.code, Code::Unavailable);
        assert_eq!(failure.message, "the connection was lost 12 times in a row: the API is shutting down");
    }

    #[test]
    fn stable_connection_resets_the_failure_count() {
        let client = Client::new("http://127.0.0.1:9", None).unwrap();
        let mut follow = ReconnectingStream::new(&client, "a");
        follow.tries = TRIES;
        let Some(long_ago) = Instant::now().checked_sub(STABLE) else { return };
        follow.opened = long_ago;
        assert_eq!(follow.lost("the API is shutting down"), Ok(()));
        assert_eq!(follow.tries, 1);
    }
}
