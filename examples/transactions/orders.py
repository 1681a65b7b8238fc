"""Reads orders, and writes for each of them a record of its own and a task of kafleet, in the transaction that also commits
the offsets of the orders. Ends with the first error; whoever runs it starts it again.

    python orders.py SERVERS NAME TASK-TOPIC
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
    consumer.subscribe([f"{name}.orders"])
    while True:
        orders = consumer.consume(100, timeout=0.2)
        if not orders:
            continue
        producer.begin_transaction()
        try:
            for order in orders:
                submit(producer, order, name, task_topic)
            offsets = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
            producer.commit_transaction()
        except BaseException:
            producer.abort_transaction()
            raise


def submit(producer: Producer, order: Message, name: str, task_topic: str) -> None:
    """Writes a record and the task of an order: the same order has the same id."""
    if order.error():
        raise KafkaException(order.error())
    if order.key() is None:
        raise ValueError(f"the order at offset {order.offset()} has no key")
    producer.produce(f"{name}.accepted", order.value(), order.key())
    producer.produce(task_topic, order.value(), order.key(), headers={"ce_id": b"order-" + order.key()})


main(*sys.argv[1:])
