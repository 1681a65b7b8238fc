"""Tasks that are submitted in a transaction of a database: as rows of the outbox, which `kafleet outbox` publishes.

No driver is imported: the statement is a text with values, and the driver follows from the module of the class.
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .values import encode

if TYPE_CHECKING:
    from .call import Call

Dialect = Literal["postgres", "mysql"]
Style = Literal["format", "numeric_dollar", "named", "qmark"]
"""Placeholders: `%s`, `$1`, `:id` or `?`."""

_COLUMNS = ("id", "type", "key", "params", "fields")
_JSON = ("params", "fields")


class OutboxStatement(NamedTuple):
    """Statement that submits a task in the transaction in which it is executed."""

    id: str
    """Id of the task."""
    sql: str
    values: tuple[str | None, ...]

    @property
    def named(self) -> dict[str, str | None]:
        """Values by column, for placeholders such as `:id`."""
        return dict(zip(_COLUMNS, self.values, strict=True))


def outbox_statement(call: Call[Any], dialect: Dialect = "postgres", style: Style = "format") -> OutboxStatement:
    """Returns the statement for a call such as `invoice.call(order=42)`, for drivers that `submit_in` does not know."""
    from .client import new_id

    fields = call.document("submit")
    id = fields.pop("id", None) or new_id(fields)
    key = fields.pop("key", None)
    task_type, params = fields.pop("type"), _json(fields.pop("params"))
    if dialect == "mysql":
        # Debezium takes the key as it is, and headers are not null.
        values: tuple[str | None, ...] = (id, task_type, key or id, params, _json(fields))
    else:
        values = (id, task_type, key, params, _json(fields) if fields else None)
    quote = "`" if dialect == "mysql" else ""
    columns = ", ".join(f"{quote}{name}{quote}" for name in _COLUMNS)
    places = ", ".join(_place(n, name, dialect, style) for n, name in enumerate(_COLUMNS, 1))
    return OutboxStatement(id, f"INSERT INTO kafleet_outbox ({columns}) VALUES ({places})", values)


def _place(n: int, name: str, dialect: Dialect, style: Style) -> str:
    place = {"format": "%s", "numeric_dollar": f"${n}", "named": f":{name}", "qmark": "?"}[style]
    return f"CAST({place} AS json)" if name in _JSON and dialect == "postgres" else place


def _json(value: Any) -> str:
    return encode(value).decode()


def insert(tx: Any, call: Call[Any]) -> str:
    """Executes the statement in a transaction of a synchronous driver, and returns the id of the task."""
    execute = _execution(tx, call)
    if inspect.isawaitable(execute.result):
        _close(execute.result)
        raise TypeError(f"`{_name(tx)}` is asynchronous; hint: `await task.asubmit_in(tx, …)`")
    return execute.id


async def ainsert(tx: Any, call: Call[Any]) -> str:
    """Executes the statement in a transaction of an asynchronous driver, and returns the id of the task."""
    execute = _execution(tx, call)
    if not inspect.isawaitable(execute.result):
        raise TypeError(f"`{_name(tx)}` is synchronous; hint: `task.submit_in(tx, …)`, in a thread such as `sync_to_async` gives")
    await execute.result
    return execute.id


class _Execution(NamedTuple):
    id: str
    result: Any


def _execution(tx: Any, call: Call[Any]) -> _Execution:
    """Begins to execute the statement; the result of an asynchronous driver is awaitable."""
    if isinstance(tx, str):
        tx = _django(tx)
    dialect = _dialect(tx)
    package = _package(tx)
    if package == "asyncpg":
        statement = outbox_statement(call, dialect, "numeric_dollar")
        return _Execution(statement.id, tx.execute(statement.sql, *statement.values))
    if package == "sqlalchemy":
        statement = outbox_statement(call, dialect, "named")
        text = sys.modules["sqlalchemy"].text
        return _Execution(statement.id, tx.execute(text(statement.sql), statement.named))
    statement = outbox_statement(call, dialect, "qmark" if package == "sqlite3" else "format")
    if hasattr(tx, "cursor") and not _executes(tx):
        cursor = tx.cursor()
        try:
            cursor.execute(statement.sql, statement.values)
        finally:
            cursor.close()
        return _Execution(statement.id, None)
    if not hasattr(tx, "execute"):
        hint = "give a connection, a session or a cursor, or execute `outbox_statement(task.call(…))` yourself"
        raise TypeError(f"`{_name(tx)}` is no transaction of a known driver; hint: {hint}")
    result = tx.execute(statement.sql, statement.values)
    return _Execution(statement.id, result if inspect.isawaitable(result) else None)


def _executes(tx: Any) -> bool:
    """Returns whether a connection executes statements itself, as that of psycopg 3 does."""
    return _package(tx) == "psycopg"


def _dialect(tx: Any) -> Dialect:
    """Returns the dialect of a connection: Django and SQLAlchemy name it, and MySQL has drivers of its own."""
    name = getattr(tx, "vendor", "") or _sqlalchemy_name(tx) or _package(tx)
    is_mysql = any(part in str(name).lower() for part in ("mysql", "mariadb"))
    return "mysql" if is_mysql else "postgres"


def _sqlalchemy_name(tx: Any) -> str:
    if _package(tx) != "sqlalchemy":
        return ""
    bind = tx.get_bind() if hasattr(tx, "get_bind") else tx
    return str(bind.dialect.name)


def _django(alias: str) -> Any:
    django = sys.modules.get("django.db")
    if django is None:
        raise TypeError(f"`{alias}` is an alias of a Django database, and Django is not loaded; hint: give a connection")
    return django.connections[alias]


def _package(tx: Any) -> str:
    """Returns the package of the first class of a known driver, so that subclasses are known too."""
    known = ("asyncpg", "sqlalchemy", "psycopg", "sqlite3")
    packages = [kind.__module__.partition(".")[0] for kind in type(tx).__mro__]
    return next((package for package in packages if package in known), packages[0])


def _name(tx: Any) -> str:
    return f"{type(tx).__module__}.{type(tx).__qualname__}"


def _close(awaitable: Any) -> None:
    """Closes a coroutine that is not awaited, which would warn."""
    close = getattr(awaitable, "close", None)
    if close is not None:
        close()
