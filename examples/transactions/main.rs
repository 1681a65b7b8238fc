//! Reads orders, and writes for each of them a record of its own and a task of kafleet, in the transaction that also commits
//! the offsets of the orders. Ends with the first error; whoever runs it starts it again.
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
/// Maximum number of orders of a transaction.
const MAX_ORDERS: usize = 100;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [servers, name, task_topic] = args.as_slice() else {
        return Err("usage: transactions SERVERS NAME TASK-TOPIC".into());
    };
    let (consumer, producer) = clients(servers, name)?;
    producer.init_transactions(DEADLINE)?;
    consumer.subscribe(&[&format!("{name}.orders")])?;
    loop {
        let Some(first) = consumer.poll(Duration::from_millis(200)) else { continue };
        let mut orders = vec![first?];
        while let Some(order) = consumer.poll(Duration::ZERO).filter(|_| orders.len() < MAX_ORDERS) {
            orders.push(order?);
        }
        producer.begin_transaction()?;
        let written = submit(&producer, &consumer, &orders, (name, task_topic));
        let committed = written.and_then(|()| Ok(producer.commit_transaction(DEADLINE)?));
        if let Err(error) = committed {
            producer.abort_transaction(DEADLINE)?;
            return Err(error);
        }
    }
}

/// Writes records and tasks of orders, and the offsets behind these. The same order has the same id.
fn submit(
    producer: &BaseProducer,
    consumer: &BaseConsumer,
    orders: &[BorrowedMessage<'_>],
    (name, task_topic): (&str, &str),
) -> Result<(), Box<dyn Error>> {
    let accepted = format!("{name}.accepted");
    for order in orders {
        let key = order.key().ok_or_else(|| format!("the order at offset {} has no key", order.offset()))?;
        let payload = order.payload().unwrap_or_default();
        let id = [b"order-", key].concat();
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
