"""Submission in transactions of a real Postgres, with each driver: the row is there if and when the transaction commits.

`tests/python` starts the server; KAFLEET_TEST_POSTGRES=none leaves these tests out.
"""

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import kafleet

POSTGRES = os.environ.get("KAFLEET_TEST_POSTGRES", "")

app = kafleet.App()


@app.task
def invoice(order: int) -> None:
    """Sends an invoice."""


KEPT = invoice.using(id="kept", key="customer-7", tags=["x"])
DROPPED = invoice.using(id="dropped")

EXPECTED = [("kept", "invoice", "customer-7", {"order": 2}, {"tags": ["x"]})]


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """URL of a database with the outbox, as `kafleet outbox schema` makes it."""
    if not POSTGRES and os.environ.get("KAFLEET_REQUIRE_SERVICES"):
        pytest.fail("KAFLEET_TEST_POSTGRES is not set")
    if POSTGRES in ("", "none"):
        pytest.skip("KAFLEET_TEST_POSTGRES is not set, or none")
    name = f"drivers_{uuid.uuid4().hex}"
    schema = subprocess.run([os.environ["KAFLEET_BINARY"], "outbox", "schema"], check=True, capture_output=True, text=True)
    with psycopg.connect(POSTGRES, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}".encode())
        url = f"{POSTGRES.rpartition('/')[0]}/{name}"
        with psycopg.connect(url) as connection:
            connection.execute(schema.stdout.encode())
        yield url
        server.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture
def url(database: str) -> str:
    """URL of the database, whose outbox is empty."""
    with psycopg.connect(database) as connection:
        connection.execute("TRUNCATE kafleet_outbox")
    return database


def rows(url: str) -> list[Any]:
    """Committed rows, as another connection sees them."""
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT id, type, key, params, fields FROM kafleet_outbox ORDER BY seq").fetchall()


def engine_of(url: str, driver: str) -> str:
    return url.replace("postgres://", f"postgresql+{driver}://", 1)


def test_psycopg(url: str) -> None:
    with psycopg.connect(url) as connection:
        with connection.transaction(force_rollback=True):
            DROPPED.submit_in(connection, order=1)
        with connection.transaction():
            handle = KEPT.submit_in(connection, order=2)
            assert rows(url) == []
    assert (handle.id, rows(url)) == ("kept", EXPECTED)


def test_cursor_and_savepoint_of_psycopg(url: str) -> None:
    with psycopg.connect(url) as connection, connection.transaction(), connection.cursor() as cursor:
        with connection.transaction(force_rollback=True):
            DROPPED.submit_in(cursor, order=1)
        KEPT.submit_in(cursor, order=2)
    assert rows(url) == EXPECTED


def test_id_is_made_where_none_is_given(url: str) -> None:
    with psycopg.connect(url) as connection:
        handle = invoice.submit_in(connection, order=1)
    assert rows(url) == [(handle.id, "invoice", None, {"order": 1}, None)]


def test_asynchronous_psycopg(url: str) -> None:
    async def submit() -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            async with connection.transaction(force_rollback=True):
                await DROPPED.asubmit_in(connection, order=1)
            async with connection.transaction(), connection.cursor() as cursor:
                await KEPT.asubmit_in(cursor, order=2)

    asyncio.run(submit())
    assert rows(url) == EXPECTED


def test_asyncpg(url: str) -> None:
    async def submit() -> None:
        connection = await asyncpg.connect(url)
        transaction = connection.transaction()
        await transaction.start()
        await DROPPED.asubmit_in(connection, order=1)
        await transaction.rollback()
        async with connection.transaction():
            await KEPT.asubmit_in(connection, order=2)
            assert rows(url) == []
        await connection.close()

    asyncio.run(submit())
    assert rows(url) == EXPECTED


def test_pool_of_asyncpg(url: str) -> None:
    async def submit() -> None:
        async with (
            asyncpg.create_pool(url, min_size=1) as pool,
            pool.acquire() as connection,
            connection.transaction(),
        ):
            await KEPT.asubmit_in(connection, order=2)

    asyncio.run(submit())
    assert rows(url) == EXPECTED


def connection_of(engine: sqlalchemy.Engine) -> Any:
    return engine.connect()


def session_of(engine: sqlalchemy.Engine) -> Any:
    return Session(engine)


def scoped_session_of(engine: sqlalchemy.Engine) -> Any:
    return scoped_session(sessionmaker(engine))()


@pytest.mark.parametrize("make", [connection_of, session_of, scoped_session_of], ids=["connection", "session", "scoped"])
def test_sqlalchemy(make: Callable[[sqlalchemy.Engine], Any], url: str) -> None:
    engine = sqlalchemy.create_engine(engine_of(url, "psycopg"))
    with make(engine) as tx:
        DROPPED.submit_in(tx, order=1)
        tx.rollback()
        KEPT.submit_in(tx, order=2)
        assert rows(url) == []
        tx.commit()
    engine.dispose()
    assert rows(url) == EXPECTED


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
@pytest.mark.parametrize("kind", ["connection", "session"])
def test_asynchronous_sqlalchemy(kind: str, driver: str, url: str) -> None:
    async def submit() -> None:
        engine = create_async_engine(engine_of(url, driver))
        made: Any = AsyncSession(engine) if kind == "session" else engine.connect()
        async with made as tx:
            await DROPPED.asubmit_in(tx, order=1)
            await tx.rollback()
            await KEPT.asubmit_in(tx, order=2)
            assert rows(url) == []
            await tx.commit()
        await engine.dispose()

    asyncio.run(submit())
    assert rows(url) == EXPECTED


DJANGO = """
import json, os

import django
from django.conf import settings

settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **json.loads(os.environ["DATABASE"])}})
django.setup()

from django.db import connection, transaction

from test_outbox_drivers import DROPPED, KEPT, invoice

try:
    with transaction.atomic():
        DROPPED.submit_in("default", order=1)
        raise ZeroDivisionError
except ZeroDivisionError:
    pass
with transaction.atomic():
    print(KEPT.submit_in("default", order=2).id)
with transaction.atomic():
    invoice.using(id="by-connection").submit_in(connection, order=3)
"""


def test_django(url: str) -> None:
    made = sqlalchemy.make_url(url)
    parts = {"NAME": made.database, "USER": made.username, "HOST": made.host, "PORT": made.port}
    environment = {**os.environ, "DATABASE": json.dumps(parts), "PYTHONPATH": os.path.dirname(__file__)}
    done = subprocess.run([sys.executable, "-c", DJANGO], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("kept\n", "")
    assert rows(url) == [*EXPECTED, ("by-connection", "invoice", None, {"order": 3}, None)]


def test_wrong_kind_of_driver_submits_nothing(url: str) -> None:
    async def submit() -> None:
        connection = await psycopg.AsyncConnection.connect(url)
        with pytest.raises(TypeError, match=r"is asynchronous; hint: `await task.asubmit_in"):
            invoice.submit_in(connection, order=1)
        await connection.commit()
        await connection.close()

    asyncio.run(submit())
    with psycopg.connect(url) as connection:
        # The statement has been executed: the transaction decides.
        submitted: Awaitable[Any] = invoice.asubmit_in(connection, order=1)
        with pytest.raises(TypeError, match="is synchronous"):
            asyncio.run(waited(submitted))
        connection.rollback()
    assert rows(url) == []


async def waited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
