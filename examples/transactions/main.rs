//! Reads purchases, and writes for each of them a record of its own and a task of kafleet, in the transaction that also commits
//! the offsets of the purchases. Ends with the first error: its supervisor starts it again.
//!
//! ```sh
//! cargo run --example transactions -- SERVERS NAME TASK-TOPIC
//! ```

use std::error::Error;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedMessage, Header, Message, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

/// Deadline of each step of a transaction.
const DEADLINE: Duration = Duration::from_secs(10);
/// Maximum number of purchases of a transaction.
const MAX_PURCHASES: usize = 100;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [servers, name, task_topic] = args.as_slice() else {
        return Err("usage: transactions SERVERS NAME TASK-TOPIC".into());
    };
    let (consumer, producer) = clients(servers, name)?;
    producer.init_transactions(DEADLINE)?;
    consumer.subscribe(&[&format!("{name}.purchases")])?;
    loop {
        let Some(first) = consumer.poll(Duration::from_millis(200)) else { continue };
        let mut purchases = vec![first?];
        while purchases.len() < MAX_PURCHASES
            && let Some(purchase) = consumer.poll(Duration::ZERO)
        {
            purchases.push(purchase?);
        }
        producer.begin_transaction()?;
        let written = submit(&producer, &consumer, &purchases, (name, task_topic));
        let committed = written.and_then(|()| Ok(producer.commit_transaction(DEADLINE)?));
        if let Err(error) = committed {
            producer.abort_transaction(DEADLINE)?;
            return Err(error);
        }
    }
}

/// Writes records and tasks of purchases, and the offsets behind these. The same purchase has the same id.
fn submit(
    producer: &BaseProducer,
    consumer: &BaseConsumer,
    purchases: &[BorrowedMessage<'_>],
    (name, task_topic): (&str, &str),
) -> Result<(), Box<dyn Error>> {
    let accepted = format!("{name}.accepted");
    for purchase in purchases {
        let key = purchase.key().ok_or_else(|| format!("the purchase at offset {} has no key", purchase.offset()))?;
        let payload = purchase.payload().unwrap_or_default();
        let id = [b"purchase-", key].concat();
        let headers = OwnedHeaders::new().insert(Header { key: "ce_id", value: Some(&id) });
        producer.send(BaseRecord::to(&accepted).key(key).payload(payload)).map_err(|(error, _)| error)?;
        let task = BaseRecord::to(task_topic).key(key).payload(payload).headers(headers);
        producer.send(task).map_err(|(error, _)| error)?;
    }
    let metadata = consumer.group_metadata().ok_or("the consumer is in no group")?;
    Ok(producer.send_offsets_to_transaction(&consumer.position()?, &metadata, DEADLINE)?)
}

fn clients(servers: &str, name: &str) -> Result<(BaseConsumer, BaseProducer), Box<dyn Error>> {
    let consumer = ClientConfig::new()
        .set("bootstrap.servers", servers)
        .set("group.id", name)
        .set("enable.auto.commit", "false")
        .set("isolation.level", "read_committed")
        .set("auto.offset.reset", "earliest")
        .create()?;
    let producer = ClientConfig::new()
        .set("bootstrap.servers", servers)
        .set("transactional.id", format!("{name}-1"))
        .set("transaction.timeout.ms", "10000")
        .set("partitioner", "murmur2_random")
        .create()?;
    Ok((consumer, producer))
}
