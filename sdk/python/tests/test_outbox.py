"""Submission of tasks in transactions: the statement, and drivers recognised by their classes."""

import asyncio
import contextlib
import json
import sqlite3
import sys
import types
from typing import Any

import pytest

import kafleet

app = kafleet.App()


@app.task()
def invoice(order: int) -> None:
    """Sends an invoice."""


def test_statement_has_sql_and_values() -> None:
    call = invoice.using(id="invoice-42", key="customer-7", tags=["a"]).call(order=42)
    statement = kafleet.outbox_statement(call)
    places = "%s, %s, %s, CAST(%s AS json), CAST(%s AS json)"
    assert statement.sql == f"INSERT INTO kafleet_outbox (id, type, key, params, fields) VALUES ({places})"
    id, task_type, key, params, fields = statement.values
    assert (id, task_type, key) == ("invoice-42", "invoice", "customer-7")
    assert json.loads(params or "") == {"order": 42}
    assert json.loads(fields or "") == {"tags": ["a"]}
    assert statement.id == "invoice-42"


def test_id_is_made_and_sorts_by_time() -> None:
    first, second = (kafleet.outbox_statement(invoice.call(order=n)) for n in range(2))
    assert first.id != second.id and first.id[14] == "7" and first.id[:8] == second.id[:8]
    assert first.values[2:] == (None, '{"order":0}', None)


def test_mysql_has_quotes_and_no_nulls() -> None:
    statement = kafleet.outbox_statement(invoice.using(id="a").call(order=1), "mysql")
    columns = "`id`, `type`, `key`, `params`, `fields`"
    assert statement.sql == f"INSERT INTO kafleet_outbox ({columns}) VALUES (%s, %s, %s, %s, %s)"
    assert statement.values == ("a", "invoice", "a", '{"order":1}', "{}")


def test_styles_of_placeholders() -> None:
    call = invoice.using(id="a").call(order=1)
    assert "($1, $2, $3, CAST($4 AS json), CAST($5 AS json))" in kafleet.outbox_statement(call, style="numeric_dollar").sql
    named = kafleet.outbox_statement(call, style="named")
    assert "(:id, :type, :key, CAST(:params AS json), CAST(:fields AS json))" in named.sql
    assert named.named["type"] == "invoice"


def driver(module: str, **methods: Any) -> Any:
    """Returns an object of a class of a driver that is not installed."""
    return type("Connection", (), {"__module__": module, **methods})()


def test_asyncpg_takes_values_one_by_one() -> None:
    seen: list[Any] = []

    async def execute(self: Any, sql: str, *values: Any) -> None:
        seen.append((sql, values))

    handle = asyncio.run(invoice.using(id="a").asubmit_in(driver("asyncpg.connection", execute=execute), order=1))
    assert handle.id == "a"
    [(sql, values)] = seen
    assert "$5" in sql and values == ("a", "invoice", None, '{"order":1}', None)


def test_sqlalchemy_takes_named_values(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    module = types.ModuleType("sqlalchemy")
    module.text = lambda sql: ("text", sql)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sqlalchemy", module)
    bind = types.SimpleNamespace(dialect=types.SimpleNamespace(name="postgresql"))
    session = driver("sqlalchemy.orm", execute=lambda self, *given: seen.append(given), get_bind=lambda self: bind)
    invoice.using(id="a").submit_in(session, order=1)
    [((kind, sql), values)] = seen
    assert kind == "text" and ":params" in sql and values["params"] == '{"order":1}'
    bind.dialect.name = "mysql"
    invoice.submit_in(session, order=1)
    assert "`params`" in seen[1][0][1]


def test_django_is_recognised_by_alias_and_vendor(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    class Cursor:
        def execute(self, *given: Any) -> None:
            seen.append(given)

        def close(self) -> None:
            seen.append("closed")

    connection = driver("django.db.backends.mysql.base", vendor="mysql", cursor=lambda self: Cursor())
    module = types.ModuleType("django.db")
    module.connections = {"shop": connection}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "django.db", module)
    invoice.using(id="a").submit_in("shop", order=1)
    assert "`params`" in seen[0][0] and seen[1] == "closed"


def test_alias_without_django_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "django.db", raising=False)
    with pytest.raises(TypeError, match="`default` is an alias of a Django database, and Django is not loaded"):
        invoice.submit_in("default", order=1)


def test_wrong_kind_of_driver_is_refused() -> None:
    async def execute(self: Any, *given: Any) -> None: ...

    with pytest.raises(TypeError, match=r"asyncpg.* is asynchronous; hint: `await task.asubmit_in"):
        invoice.submit_in(driver("asyncpg", execute=execute), order=1)
    with pytest.raises(TypeError, match="is synchronous"):
        asyncio.run(invoice.asubmit_in(driver("psycopg", execute=lambda self, *given: None), order=1))
    with pytest.raises(TypeError, match="is no transaction of a known driver"):
        invoice.submit_in(object(), order=1)


def test_wrong_params_and_options_are_refused_before_the_insert() -> None:
    with pytest.raises(TypeError):
        invoice.submit_in(object(), other=1)  # type: ignore[call-arg]


def test_row_is_rolled_back_with_its_transaction() -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE kafleet_outbox (id, type, key, params, fields)")
        connection.commit()
        invoice.submit_in(connection.cursor(), order=1)
        connection.rollback()
        assert connection.execute("SELECT count(*) FROM kafleet_outbox").fetchone() == (0,)
