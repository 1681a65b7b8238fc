//! A task's changes, its log, or what changes in the fleet, over as many connections as it takes.

use std::time::Duration;

use tokio::time::Instant;

use super::{Client, Query, Watch, WatchEvent};
use crate::api::documents::{FleetChange, LogDocument, Status};
use crate::cli::exit::{Code, Failure};
use crate::cli::output::tell;
use crate::runtime::Backoff;

/// Connections tried one after the other before giving up: about half a minute of an api that is away.
const TRIES: u32 = 12;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// A connection that lasted so long was a good one: the count of tries starts again.
const STEADY: Duration = Duration::from_secs(10);

/// What is followed.
pub enum Source<'a> {
    Task(&'a str),
    /// The log of a task, and its next line.
    Log {
        id: &'a str,
        from: u64,
    },
    /// All tasks, or those of this scope, and the place that was heard last.
    Fleet {
        scope: Query,
        heard: Option<String>,
    },
}

pub struct Follow<'a> {
    client: &'a Client,
    source: Source<'a>,
    stream: Option<Watch>,
    opened: Instant,
    tries: u32,
    backoff: Backoff,
}

impl<'a> Follow<'a> {
    /// Connects when first asked, and is patient from the start.
    pub fn new(client: &'a Client, id: &'a str) -> Self {
        Self::of(client, Source::Task(id))
    }

    /// Connects at once: an api that cannot be reached now is told now.
    pub async fn open(client: &'a Client, id: &'a str) -> Result<Self, Failure> {
        Self::opened(client, Source::Task(id)).await
    }

    /// The same for the log of a task, from a line on.
    pub async fn open_log(client: &'a Client, id: &'a str, from: u64) -> Result<Self, Failure> {
        Self::opened(client, Source::Log { id, from }).await
    }

    /// The same for all tasks, or those of a type or a tree.
    pub async fn open_fleet(client: &'a Client, scope: Query) -> Result<Self, Failure> {
        Self::opened(client, Source::Fleet { scope, heard: None }).await
    }

    fn of(client: &'a Client, source: Source<'a>) -> Self {
        let backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        Self { client, source, stream: None, opened: Instant::now(), tries: 0, backoff }
    }

    async fn opened(client: &'a Client, source: Source<'a>) -> Result<Self, Failure> {
        let stream = Some(client.watch(&source).await?);
        Ok(Self { stream, ..Self::of(client, source) })
    }

    /// The task as it is, then as it has changed. What was missed while there was no connection is in the next one.
    pub async fn next(&mut self) -> Result<Box<Status>, Failure> {
        loop {
            match self.event().await? {
                WatchEvent::Status(status) => return Ok(status),
                // It was told before: it is open again, or this is another api that is behind.
                WatchEvent::Finished => self.lost("the api ended the stream")?,
                _ => {}
            }
        }
    }

    /// The next lines of its log; None: the task has ended, and there are no more.
    pub async fn lines(&mut self) -> Result<Option<Box<LogDocument>>, Failure> {
        loop {
            match self.event().await? {
                WatchEvent::Lines(page) => {
                    if let Source::Log { from, .. } = &mut self.source {
                        *from = page.from + page.lines.len() as u64;
                    }
                    return Ok(Some(page));
                }
                WatchEvent::Finished => return Ok(None),
                _ => {}
            }
        }
    }

    /// What has changed next. A new connection goes on where the last one was; where the api cannot, it says that anything
    /// may have changed.
    pub async fn change(&mut self) -> Result<Box<FleetChange>, Failure> {
        loop {
            if let WatchEvent::Changed(change, place) = self.event().await? {
                return Ok(self.hears(change, place));
            }
        }
    }

    /// Makes sure of a connection.
    pub async fn connected(&mut self) -> Result<(), Failure> {
        if self.stream.is_none() {
            self.stream = Some(self.connect().await?);
            self.opened = Instant::now();
        }
        Ok(())
    }

    /// The same over the connection that is there; None: nothing came in time.
    pub async fn change_until(&mut self, until: Instant) -> Result<Option<Box<FleetChange>>, Failure> {
        let Some(stream) = &mut self.stream else { return Ok(None) };
        match tokio::time::timeout_at(until, stream.next()).await {
            Ok(WatchEvent::Changed(change, place)) => Ok(Some(self.hears(change, place))),
            Ok(WatchEvent::Over { reason }) => self.lost(&reason).map(|()| None),
            Ok(WatchEvent::Gone) => Err(gone(&self.source)),
            Ok(_) | Err(_) => Ok(None),
        }
    }

    fn hears(&mut self, change: Box<FleetChange>, place: Option<String>) -> Box<FleetChange> {
        if let Source::Fleet { heard, .. } = &mut self.source {
            *heard = place;
        }
        change
    }

    /// What comes next over any connection.
    async fn event(&mut self) -> Result<WatchEvent, Failure> {
        loop {
            let Some(stream) = &mut self.stream else {
                self.connected().await?;
                continue;
            };
            match stream.next().await {
                WatchEvent::Gone => return Err(gone(&self.source)),
                WatchEvent::Over { reason } => self.lost(&reason)?,
                event => return Ok(event),
            }
        }
    }

    async fn connect(&mut self) -> Result<Watch, Failure> {
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
        if self.opened.elapsed() >= STEADY {
            self.tries = 0;
            self.backoff.reset();
        }
        self.tries += 1;
        if self.tries > TRIES {
            return Err(Failure::unavailable(format_args!("the connection was lost {TRIES} times in a row: {reason}"))
                .hint("look at the api's /readyz and log"));
        }
        tell(format_args!("connection lost ({reason}), trying again"));
        Ok(())
    }
}

fn gone(source: &Source<'_>) -> Failure {
    match source {
        Source::Task(id) | Source::Log { id, .. } => forgotten(id),
        Source::Fleet { .. } => Failure::unavailable("the api ended the stream"),
    }
}

/// A task whose record was removed.
pub fn forgotten(id: &str) -> Failure {
    Failure::new(Code::NotFound, format_args!("the record of task `{id}` is no longer kept"))
        .hint("`topics.record_retention` says how long finished trees are kept")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_is_lost_again_and_again_is_given_up() {
        let client = Client::new("http://127.0.0.1:9", None).unwrap();
        let mut follow = Follow::new(&client, "a");
        for n in 0..TRIES {
            assert_eq!(follow.lost("the api stops"), Ok(()), "{n}");
        }
        let failure = follow.lost("the api stops").unwrap_err();
        assert_eq!(failure.code, Code::Unavailable);
        assert_eq!(failure.message, "the connection was lost 12 times in a row: the api stops");
    }

    #[test]
    fn a_connection_that_lasted_is_no_part_of_a_row() {
        let client = Client::new("http://127.0.0.1:9", None).unwrap();
        let mut follow = Follow::new(&client, "a");
        follow.tries = TRIES;
        let Some(long_ago) = Instant::now().checked_sub(STEADY) else { return };
        follow.opened = long_ago;
        assert_eq!(follow.lost("the api stops"), Ok(()));
        assert_eq!(follow.tries, 1);
    }
}
