//! Producer with a thread that serves its events. Unlike rdkafka's, the thread sleeps until there is an event: rdkafka's
//! polls with a time limit, and spins for the last millisecond of each, which is 0.5 % of a core per idle producer.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, Producer as _, ProducerContext};

use super::error;
use super::native::{Waker, WakingQueue};
use crate::BrokerError;

/// Longest sleep of the thread. It is woken for each event; this only limits the effect of a lost wake-up.
const MAX_SLEEP: Duration = Duration::from_secs(1);

pub(super) struct PolledProducer<C: ProducerContext + 'static> {
    client: Arc<BaseProducer<C>>,
    waker: Arc<Waker>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl<C: ProducerContext + 'static> PolledProducer<C> {
    pub(super) fn new(config: &ClientConfig, context: C) -> Result<Self, BrokerError> {
        let client = config.create_with_context(context).map_err(|error| error::of(&error, "[kafka]"))?;
        let (client, waker) = (Arc::<BaseProducer<C>>::new(client), Arc::<Waker>::default());
        let queue = WakingQueue::main(client.client(), &waker)
            .ok_or_else(|| BrokerError::Unavailable("librdkafka has no queue for outcomes".to_owned()))?;
        let stop = Arc::<AtomicBool>::default();
        let served = (client.clone(), waker.clone(), stop.clone());
        let thread = std::thread::Builder::new()
            .name("producer".to_owned())
            .spawn(move || serve(&served.0, queue, &served.1, &served.2))
            .map_err(|error| BrokerError::Unavailable(format!("cannot start the thread of a producer: {error}")))?;
        Ok(Self { client, waker, stop, thread: Some(thread) })
    }
}

/// Serves the events of a producer until it is stopped.
fn serve<C: ProducerContext>(client: &BaseProducer<C>, queue: WakingQueue, waker: &Waker, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        waker.reset();
        while !queue.is_empty() {
            client.poll(Duration::ZERO);
        }
        if !stop.load(Ordering::Acquire) {
            waker.wait(Instant::now() + MAX_SLEEP);
        }
    }
    // Before the client, which the caller drops.
    drop(queue);
}

impl<C: ProducerContext + 'static> Deref for PolledProducer<C> {
    type Target = BaseProducer<C>;

    fn deref(&self) -> &BaseProducer<C> {
        &self.client
    }
}

impl<C: ProducerContext + 'static> Drop for PolledProducer<C> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panic in a callback has been reported; outcomes that are still open are lost either way.
            let _ = thread.join();
        }
    }
}
