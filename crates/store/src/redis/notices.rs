//! Change notices over a pub/sub connection that reconnects and reports possible losses.

use std::sync::Arc;
use std::time::Duration;

use ::redis::{Msg, RedisResult, Value};
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};
use tokio_stream::wrappers::ReceiverStream;
use tracing::{debug, warn};

use super::connection::{Connector, within};
use super::values::parse_notice;
use crate::{NOTICE_BUFFER, Notice, keys};

const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(100);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Interval of pings on a silent connection.
const PING_INTERVAL: Duration = Duration::from_secs(15);

pub(super) fn stream(connector: Arc<Connector>) -> BoxStream<'static, Notice> {
    let (sender, receiver) = mpsc::channel(NOTICE_BUFFER);
    tokio::spawn(async move {
        let closed = sender.clone();
        tokio::select! {
            () = closed.closed() => (),
            () = listen_with_retries(&connector, NoticeSink { sender, missed: false }) => (),
        }
    });
    ReceiverStream::new(receiver).boxed()
}

async fn listen_with_retries(connector: &Connector, mut sink: NoticeSink) {
    let mut pause = MIN_RETRY_INTERVAL;
    loop {
        let mut subscribed = false;
        let error = match listen(connector, &mut sink, &mut subscribed).await {
            Ok(()) => "the connection was closed".to_owned(),
            Err(error) => connector.explain(&error).to_string(),
        };
        if subscribed {
            pause = MIN_RETRY_INTERVAL;
            debug!(%error, "subscription to change notices interrupted");
        } else {
            warn!(%error, retry_after = ?pause, "cannot subscribe to change notices");
        }
        tokio::time::sleep(pause).await;
        pause = MAX_RETRY_INTERVAL.min(pause * 2);
    }
}

/// Listens on one connection until it fails.
async fn listen(connector: &Connector, sink: &mut NoticeSink, subscribed: &mut bool) -> RedisResult<()> {
    let limit = connector.options.connect_timeout;
    let (mut subscription, mut messages) = connector.pubsub().await?.split();
    within(limit, subscription.subscribe(keys::notices(&connector.options.prefix))).await?;
    *subscribed = true;
    sink.send(Notice::Gap);
    let mut pings = interval(PING_INTERVAL);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            message = messages.next() => match message {
                Some(message) => sink.forward(&message),
                None => return Ok(()),
            },
            _ = pings.tick() => {
                within(limit, subscription.ping::<Value>()).await?;
            }
        }
    }
}

/// Bounded output of the stream. Its last free slot is reserved for the gap that reports dropped notices, so that the
/// reader receives it even if nothing follows.
struct NoticeSink {
    sender: mpsc::Sender<Notice>,
    missed: bool,
}

impl NoticeSink {
    fn forward(&mut self, message: &Msg) {
        self.send(parse_notice(message.get_payload_bytes()));
    }

    fn send(&mut self, notice: Notice) {
        let is_full = self.sender.capacity() <= 1;
        if is_full && self.missed {
            return;
        }
        self.missed = is_full;
        // Fails only if the reader is gone, which ends the task.
        let _ = self.sender.try_send(if is_full { Notice::Gap } else { notice });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_reader_receives_a_gap() {
        let (sender, mut receiver) = mpsc::channel(4);
        let mut sink = NoticeSink { sender, missed: false };
        let notice = |offset| Notice::Changed { partition: 0, offset, ids: None, types: None };
        (0..10).for_each(|offset| sink.send(notice(offset)));
        let read: Vec<Notice> = std::iter::from_fn(|| receiver.try_recv().ok()).collect();
        assert_eq!(read, [notice(0), notice(1), notice(2), Notice::Gap]);
        sink.send(notice(10));
        assert_eq!(receiver.try_recv(), Ok(notice(10)));
    }
}
