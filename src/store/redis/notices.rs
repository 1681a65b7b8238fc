//! Change notices: a pub/sub connection of its own that comes back by itself and says when it may have missed something.

use std::sync::Arc;
use std::time::Duration;

use ::redis::{Msg, RedisResult, Value};
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};
use tokio_stream::wrappers::ReceiverStream;
use tracing::{debug, warn};

use super::connection::{Link, within};
use super::values::parse_notice;
use crate::store::{NOTICE_BUFFER, Notice, keys};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How often a silent connection is asked whether it lives.
const PING_INTERVAL: Duration = Duration::from_secs(15);

pub(super) fn stream(link: Arc<Link>) -> BoxStream<'static, Notice> {
    let (sender, receiver) = mpsc::channel(NOTICE_BUFFER);
    tokio::spawn(async move {
        let closed = sender.clone();
        tokio::select! {
            () = closed.closed() => (),
            () = listen_forever(&link, Outlet { sender, missed: false }) => (),
        }
    });
    ReceiverStream::new(receiver).boxed()
}

async fn listen_forever(link: &Link, mut outlet: Outlet) {
    let mut pause = FIRST_PAUSE;
    loop {
        let mut subscribed = false;
        let error = match listen(link, &mut outlet, &mut subscribed).await {
            Ok(()) => "the connection was closed".to_owned(),
            Err(error) => link.explain(&error).to_string(),
        };
        if subscribed {
            pause = FIRST_PAUSE;
            debug!(%error, "change notices interrupted");
        } else {
            warn!(%error, retry_after = ?pause, "no change notices");
        }
        tokio::time::sleep(pause).await;
        pause = LONGEST_PAUSE.min(pause * 2);
    }
}

/// Listens on one connection until it ends.
async fn listen(link: &Link, outlet: &mut Outlet, subscribed: &mut bool) -> RedisResult<()> {
    let limit = link.options.connect_timeout;
    let (mut sink, mut messages) = link.pubsub().await?.split();
    within(limit, sink.subscribe(keys::notices(&link.options.prefix))).await?;
    *subscribed = true;
    outlet.send(Notice::Gap);
    let mut pings = interval(PING_INTERVAL);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            message = messages.next() => match message {
                Some(message) => outlet.pass_on(&message),
                None => return Ok(()),
            },
            _ = pings.tick() => {
                within(limit, sink.ping::<Value>()).await?;
            }
        }
    }
}

/// The bounded way out. Its last place is for the gap that says that something was left out, so the reader learns of it
/// even when nothing comes after.
struct Outlet {
    sender: mpsc::Sender<Notice>,
    missed: bool,
}

impl Outlet {
    fn pass_on(&mut self, message: &Msg) {
        self.send(parse_notice(message.get_payload_bytes()));
    }

    fn send(&mut self, notice: Notice) {
        let is_full = self.sender.capacity() <= 1;
        if is_full && self.missed {
            return;
        }
        self.missed = is_full;
        // Refused only when the reader is gone, which ends the task by itself.
        let _ = self.sender.try_send(if is_full { Notice::Gap } else { notice });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_reader_is_told_that_it_missed_something() {
        let (sender, mut receiver) = mpsc::channel(4);
        let mut outlet = Outlet { sender, missed: false };
        let notice = |offset| Notice::Changed { partition: 0, offset, ids: None };
        (0..10).for_each(|offset| outlet.send(notice(offset)));
        let read: Vec<Notice> = std::iter::from_fn(|| receiver.try_recv().ok()).collect();
        assert_eq!(read, [notice(0), notice(1), notice(2), Notice::Gap]);
        outlet.send(notice(10));
        assert_eq!(receiver.try_recv(), Ok(notice(10)));
    }
}
