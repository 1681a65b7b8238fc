//! What librdkafka itself does with the records of a fleet, and so the ceilings of its rates.
//!
//! The raw loop is the ceiling of the worker's rate. Consume a record, produce one of the size, key and topic of the worker's event with the same client settings, and
//! commit every 200 ms: no JSON, no handlers, no bookkeeping beyond the count.

use std::time::{Duration, Instant};

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, Message, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::{ClientContext, Offset, TopicPartitionList};

use super::{Kafka, error};
use crate::broker::{BrokerError, ConsumerSpec};

/// What the raw loop reads and writes.
pub struct RawLoop<'a> {
    pub group: &'a str,
    pub from: &'a str,
    pub to: &'a str,
    pub records: u64,
    /// Bytes of each record written.
    pub output_bytes: usize,
    pub prefetch_bytes: usize,
    pub commit_interval: Duration,
}

/// What raw produce writes.
pub struct RawProduce<'a> {
    /// Gets records with a key and these headers, and one that holds the key.
    pub tasks: &'a str,
    pub headers: &'a [(String, String)],
    pub id_header: &'a str,
    pub value: &'a [u8],
    /// Gets a record with a key for each of them; None: nothing more.
    pub events: Option<(&'a str, &'a [u8])>,
    pub records: u64,
}

/// Does nothing for a record: what is missing at the end, the benchmark sees.
struct Bare;

impl ClientContext for Bare {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        super::log(level, facility, message);
    }
}

impl ConsumerContext for Bare {}

impl ProducerContext for Bare {
    type DeliveryOpaque = ();
    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}

impl Kafka {
    /// Produces the records of tasks and, mixed with them, those of events, as fast as the client takes them.
    pub fn raw_produce(&self, raw: &RawProduce<'_>) -> Result<(), BrokerError> {
        let failed = |what: KafkaError| error::of(&what, "raw produce");
        let producer: ThreadedProducer<Bare> = self.settings.producer().create_with_context(Bare).map_err(failed)?;
        for n in 0..raw.records {
            let key = format!("bench-{n:012}");
            let mut headers = OwnedHeaders::new_with_capacity(raw.headers.len() + 1);
            headers = headers.insert(Header { key: raw.id_header, value: Some(&key) });
            for (name, value) in raw.headers {
                headers = headers.insert(Header { key: name, value: Some(value) });
            }
            let record = BaseRecord::to(raw.tasks).key(key.as_bytes()).payload(raw.value).headers(headers);
            persist(&producer, record).map_err(failed)?;
            if let Some((topic, value)) = raw.events {
                persist(&producer, BaseRecord::to(topic).key(key.as_bytes()).payload(value)).map_err(failed)?;
            }
        }
        producer.flush(Duration::from_secs(30)).map_err(failed)
    }

    /// Runs the loop until so many records are through and acknowledged.
    pub fn raw_loop(&self, raw: &RawLoop<'_>, deadline: Duration) -> Result<(), BrokerError> {
        let spec = ConsumerSpec {
            group: Some(raw.group.to_owned()),
            topics: vec![raw.from.to_owned()],
            prefetch_bytes: raw.prefetch_bytes,
            read_uncommitted: false,
        };
        let failed = |what: KafkaError| error::of(&what, "the raw loop");
        let mut settings = self.settings.consumer(&spec);
        settings.set("auto.offset.reset", "earliest");
        let consumer: BaseConsumer<Bare> = settings.create_with_context(Bare).map_err(failed)?;
        let producer: ThreadedProducer<Bare> = self.settings.producer().create_with_context(Bare).map_err(failed)?;
        consumer.subscribe(&[raw.from]).map_err(failed)?;
        let (until, value) = (Instant::now() + deadline, vec![b'x'; raw.output_bytes]);
        let (mut through, mut places, mut last) = (0, TopicPartitionList::new(), Instant::now());
        while through < raw.records {
            if Instant::now() > until {
                let told = format!("{through} of {} records through after {} s", raw.records, deadline.as_secs());
                return Err(BrokerError::Unavailable(told));
            }
            if last.elapsed() >= raw.commit_interval && places.count() > 0 {
                consumer.commit(&places, CommitMode::Async).map_err(failed)?;
                last = Instant::now();
            }
            let Some(message) = consumer.poll(Duration::from_millis(50)) else { continue };
            let message = message.map_err(failed)?;
            pass_on(&producer, raw.to, message.key().unwrap_or_default(), &value).map_err(failed)?;
            note(&mut places, &message).map_err(failed)?;
            through += 1;
        }
        producer.flush(Duration::from_secs(30)).map_err(failed)?;
        consumer.commit(&places, CommitMode::Sync).map_err(failed)
    }
}

fn pass_on(producer: &ThreadedProducer<Bare>, topic: &str, key: &[u8], value: &[u8]) -> Result<(), KafkaError> {
    persist(producer, BaseRecord::to(topic).key(key).payload(value))
}

/// Sends, and comes again as long as the queue is full.
fn persist(producer: &ThreadedProducer<Bare>, mut record: BaseRecord<'_, [u8], [u8]>) -> Result<(), KafkaError> {
    loop {
        record = match producer.send(record) {
            Ok(()) => return Ok(()),
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => back,
            Err((error, _)) => return Err(error),
        };
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn note(places: &mut TopicPartitionList, message: &impl Message) -> Result<(), KafkaError> {
    let next = Offset::Offset(message.offset() + 1);
    if places.find_partition(message.topic(), message.partition()).is_none() {
        places.add_partition(message.topic(), message.partition());
    }
    places.set_partition_offset(message.topic(), message.partition(), next)
}
