"""Unique tasks, an outbox, and a limit that adapts itself to a service.

    pip install ../../../sdk/python psycopg
    kafleet dev tasks.py
    kafleet submit refresh '{"customer": 7, "version": 1}'   # several times: one runs, the newest other one is kept
    for n in $(seq 400); do echo "{\"order\": $n}"; done | kafleet submit charge -
    kafleet types                                            # the limit of `charge`, after some seconds

An order and the task that sends its invoice are committed together: see `place_order`. On a fleet with Kafka, rows of the
table that `kafleet outbox schema | psql "$KAFLEET_POSTGRES"` makes become tasks by
`kafleet outbox --postgres "$KAFLEET_POSTGRES"`.
"""

import asyncio
import time
from typing import TYPE_CHECKING

from kafleet import App, Handle, Wait

if TYPE_CHECKING:
    import psycopg

app = App()


@app.task
def refresh(customer: int, version: int) -> int:
    """Computes the balance of a customer. `unique` in kafleet.toml keeps two of one customer apart."""
    time.sleep(0.3)
    return version


@app.task
def invoice(order: int) -> str:
    """Sends the invoice of an order."""
    return f"invoice of the order {order}"


def place_order(connection: "psycopg.Connection", customer: int) -> Handle[str]:
    """Creates an order and the task that sends its invoice: both are there after the commit of the caller, or neither is."""
    row = connection.execute("INSERT INTO orders (customer) VALUES (%s) RETURNING id", [customer]).fetchone()
    assert row is not None
    return invoice.using(id=f"invoice-{row[0]}", key=f"customer-{customer}").submit_in(connection, order=row[0])


class Payments:
    """Service that takes few calls at once and refuses the others. Here it is a part of the process."""

    def __init__(self, limit: int) -> None:
        self.limit, self.running = limit, 0

    async def charge(self, order: int) -> str:
        if self.running >= self.limit:
            raise Wait("the payment service is busy", after="100ms", kind="overloaded")
        self.running += 1
        try:
            await asyncio.sleep(0.1)
        finally:
            self.running -= 1
        return f"charged {order}"


payments = Payments(limit=1)


@app.task(adaptive={"min": 1})
async def charge(order: int) -> str:
    """Charges an order. The fleet learns how many calls the service takes, from the attempts that end as `overloaded`."""
    return await payments.charge(order)
