"""Reads purchases, and writes for each of them a record of its own and a task of kafleet, in the transaction that also commits
the offsets of the purchases. Ends with the first error: its supervisor starts it again.

    python purchases.py SERVERS NAME TASK-TOPIC
"""

import sys

from confluent_kafka import Consumer, KafkaException, Message, Producer


def main(servers: str, name: str, task_topic: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": name,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "transactional.id": f"{name}-1",
            "transaction.timeout.ms": 10_000,
            "partitioner": "murmur2_random",
        }
    )
    producer.init_transactions()
    consumer.subscribe([f"{name}.purchases"])
    while True:
        purchases = consumer.consume(100, timeout=0.2)
        if not purchases:
            continue
        producer.begin_transaction()
        try:
            for purchase in purchases:
                submit(producer, purchase, name, task_topic)
            offsets = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
            producer.commit_transaction()
        except BaseException:
            producer.abort_transaction()
            raise


def submit(producer: Producer, purchase: Message, name: str, task_topic: str) -> None:
    """Writes a record and the task of a purchase: the same purchase has the same id."""
    if purchase.error():
        raise KafkaException(purchase.error())
    if purchase.key() is None:
        raise ValueError(f"the purchase at offset {purchase.offset()} has no key")
    producer.produce(f"{name}.accepted", purchase.value(), purchase.key())
    producer.produce(task_topic, purchase.value(), purchase.key(), headers={"ce_id": b"purchase-" + purchase.key()})


main(*sys.argv[1:])
