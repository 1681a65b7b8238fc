"""Tests of the example: a fleet for unique tasks and the adaptive limit, and a real Postgres for the outbox."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from billing import tasks

from kafleet import Handle
from kafleet.testing import fleet, trial

HERE = Path(__file__).parent
POSTGRES = os.environ.get("KAFLEET_TEST_POSTGRES", "")

OUTBOX = "CREATE TEMPORARY TABLE kafleet_outbox (id text, type text, key text, params json, fields json)"
ORDERS = "CREATE TEMPORARY TABLE orders (id int GENERATED ALWAYS AS IDENTITY, customer int)"


@pytest.fixture(scope="module")
def running() -> Iterator[None]:
    with fleet("tasks.py", cwd=HERE):
        yield


@pytest.mark.usefixtures("running")
def test_refreshes_of_a_customer_are_unique() -> None:
    # The first one is open while its type is paused.
    tasks.app.client.request("POST", "/v1/types/refresh/pause", {"reason": "a test"})
    handles = [tasks.refresh.submit(customer=7, version=version) for version in range(1, 6)]
    first, kept = handles[0], handles[1]
    assert [handle.verdict for handle in handles] == ["started", *["kept"] * 4]
    assert {handle.id for handle in handles[1:]} == {kept.id}
    tasks.app.client.request("POST", "/v1/types/refresh/resume")
    assert (first.result(timeout=60), kept.result(timeout=60)) == (1, 5)
    other = tasks.refresh.submit(customer=8, version=1)
    assert (other.verdict, other.result(timeout=60)) == ("started", 1)


def limit_of_charges() -> dict[str, Any]:
    (adaptive,) = (found["adaptive"] for found in tasks.app.types() if found["type"] == "charge")
    return dict(adaptive or {})


@pytest.mark.usefixtures("running")
def test_all_charges_succeed_until_the_limit_is_cut() -> None:
    deadline = time.monotonic() + 60
    while not limit_of_charges().get("cut_at"):
        assert time.monotonic() < deadline, limit_of_charges()
        handles = tasks.app.submit_many(tasks.charge.call(order=order) for order in range(50))
        results = [handle.result(timeout=60) for handle in handles if isinstance(handle, Handle)]
        assert results == [f"charged {order}" for order in range(50)]


def test_busy_service_is_a_wait() -> None:
    tasks.payments.running = tasks.payments.limit
    try:
        failure = trial(tasks.charge, order=1).failure
    finally:
        tasks.payments.running = 0
    assert failure and (failure.outcome, failure.kind) == ("wait", "overloaded")


@pytest.mark.skipif(POSTGRES in ("", "none"), reason="KAFLEET_TEST_POSTGRES is not set, or none")
def test_invoice_is_committed_with_its_order() -> None:
    with psycopg.connect(POSTGRES) as connection:
        connection.execute(OUTBOX)
        connection.execute(ORDERS)
        with connection.transaction(force_rollback=True):
            tasks.place_order(connection, customer=7)
        with connection.transaction():
            handle = tasks.place_order(connection, customer=8)
        assert connection.execute("SELECT customer FROM orders").fetchall() == [(8,)]
        rows = connection.execute("SELECT id, type, key, params FROM kafleet_outbox").fetchall()
    assert rows == [(handle.id, "invoice", "customer-8", {"order": 2})]
    assert trial(tasks.invoice, **rows[0][3]).output == "invoice of the order 2"
