//! Baseline rates of librdkafka for the records of a fleet: the upper bounds of kafleet's own rates.
//!
//! The raw loop bounds the worker's rate: it consumes a record, produces one with the size, key and topic of the
//! worker's event, with the same client settings, and commits every 200 ms. No JSON, no handlers, no bookkeeping
//! beyond a counter.

use std::time::{Duration, Instant};

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, Message, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::{ClientContext, Offset, TopicPartitionList};

use super::{Kafka, error};
use crate::{BrokerError, ConsumerSpec};

/// Parameters of the raw consume-and-produce loop.
pub struct RawLoop<'a> {
    pub group: &'a str,
    pub from: &'a str,
    pub to: &'a str,
    pub records: u64,
    /// Size of each produced record, in bytes.
    pub output_bytes: usize,
    pub prefetch_bytes: usize,
    pub commit_interval: Duration,
}

/// Parameters of the raw producer.
pub struct RawProduce<'a> {
    /// Topic that receives records with a key, these headers, and one more header with the key.
    pub tasks: &'a str,
    pub headers: &'a [(String, String)],
    pub id_header: &'a str,
    pub value: &'a [u8],
    /// Topic and value of an additional record per task; `None`: no additional records.
    pub events: Option<(&'a str, &'a [u8])>,
    pub records: u64,
}

/// Context that ignores delivery outcomes; the benchmark counts missing records at the end.
struct IgnoreOutcomes;

impl ClientContext for IgnoreOutcomes {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        super::log(level, facility, message);
    }
}

impl ConsumerContext for IgnoreOutcomes {}

impl ProducerContext for IgnoreOutcomes {
    type DeliveryOpaque = ();
    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}

impl Kafka {
    /// Produces task records and, interleaved, event records as fast as the client accepts them.
    pub fn raw_produce(&self, raw: &RawProduce<'_>) -> Result<(), BrokerError> {
        let failed = |error: KafkaError| error::of(&error, "raw produce");
        let producer: ThreadedProducer<IgnoreOutcomes> =
            self.settings.producer().create_with_context(IgnoreOutcomes).map_err(failed)?;
        for n in 0..raw.records {
            let key = format!("bench-{n:012}");
            let mut headers = OwnedHeaders::new_with_capacity(raw.headers.len() + 1);
            headers = headers.insert(Header { key: raw.id_header, value: Some(&key) });
            for (name, value) in raw.headers {
                headers = headers.insert(Header { key: name, value: Some(value) });
            }
            let record = BaseRecord::to(raw.tasks).key(key.as_bytes()).payload(raw.value).headers(headers);
            send_until_accepted(&producer, record).map_err(failed)?;
            if let Some((topic, value)) = raw.events {
                send_until_accepted(&producer, BaseRecord::to(topic).key(key.as_bytes()).payload(value))
                    .map_err(failed)?;
            }
        }
        producer.flush(Duration::from_secs(30)).map_err(failed)
    }

    /// Runs the loop until this many records are consumed, produced and acknowledged.
    pub fn raw_loop(&self, raw: &RawLoop<'_>, deadline: Duration) -> Result<(), BrokerError> {
        let spec = ConsumerSpec {
            group: Some(raw.group.to_owned()),
            topics: vec![raw.from.to_owned()],
            prefetch_bytes: raw.prefetch_bytes,
            ..ConsumerSpec::default()
        };
        let failed = |error: KafkaError| error::of(&error, "the raw loop");
        let mut settings = self.settings.consumer(&spec);
        settings.set("auto.offset.reset", "earliest");
        let consumer: BaseConsumer<IgnoreOutcomes> = settings.create_with_context(IgnoreOutcomes).map_err(failed)?;
        let producer: ThreadedProducer<IgnoreOutcomes> =
            self.settings.producer().create_with_context(IgnoreOutcomes).map_err(failed)?;
        consumer.subscribe(&[raw.from]).map_err(failed)?;
        let (until, value) = (Instant::now() + deadline, vec![b'x'; raw.output_bytes]);
        let (mut processed, mut offsets, mut last) = (0, TopicPartitionList::new(), Instant::now());
        while processed < raw.records {
            if Instant::now() > until {
                let error = format!("{processed} of {} records processed within {} s", raw.records, deadline.as_secs());
                return Err(BrokerError::Unavailable(error));
            }
            if last.elapsed() >= raw.commit_interval && offsets.count() > 0 {
                consumer.commit(&offsets, CommitMode::Async).map_err(failed)?;
                last = Instant::now();
            }
            let Some(message) = consumer.poll(Duration::from_millis(50)) else { continue };
            let message = message.map_err(failed)?;
            produce(&producer, raw.to, message.key().unwrap_or_default(), &value).map_err(failed)?;
            record_offset(&mut offsets, &message).map_err(failed)?;
            processed += 1;
        }
        producer.flush(Duration::from_secs(30)).map_err(failed)?;
        consumer.commit(&offsets, CommitMode::Sync).map_err(failed)
    }
}

fn produce(
    producer: &ThreadedProducer<IgnoreOutcomes>,
    topic: &str,
    key: &[u8],
    value: &[u8],
) -> Result<(), KafkaError> {
    send_until_accepted(producer, BaseRecord::to(topic).key(key).payload(value))
}

/// Sends, retrying while the queue is full.
fn send_until_accepted(
    producer: &ThreadedProducer<IgnoreOutcomes>,
    mut record: BaseRecord<'_, [u8], [u8]>,
) -> Result<(), KafkaError> {
    loop {
        record = match producer.send(record) {
            Ok(()) => return Ok(()),
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => back,
            Err((error, _)) => return Err(error),
        };
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn record_offset(offsets: &mut TopicPartitionList, message: &impl Message) -> Result<(), KafkaError> {
    let next = Offset::Offset(message.offset() + 1);
    if offsets.find_partition(message.topic(), message.partition()).is_none() {
        offsets.add_partition(message.topic(), message.partition());
    }
    offsets.set_partition_offset(message.topic(), message.partition(), next)
}
