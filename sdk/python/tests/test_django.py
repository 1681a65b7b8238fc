"""The integration with Django, with a SQLite database."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from kafleet import App, Fail
from kafleet.contrib.django import integrate, submit_on_commit
from kafleet.testing import recorded, trial

app = App(api="http://127.0.0.1:1")


@app.task
def count(rows: int) -> int:
    with database().connection.cursor() as cursor:
        cursor.execute("select count(*) from (values (1), (2))")
        found = int(cursor.fetchone()[0])
    if found != rows:
        raise Fail(f"{found} rows")
    return found


def database() -> Any:
    return import_module("django.db")


@pytest.fixture(scope="module", autouse=True)
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    file: Path = tmp_path_factory.mktemp("django") / "db.sqlite3"
    settings = import_module("django.conf").settings
    settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(file)}})
    integrate(app)
    yield
    database().connections.close_all()


@pytest.mark.parametrize("rows", [2, 3])
def test_connection_is_closed_after_the_attempt_whatever_its_end(rows: int) -> None:
    result = trial(count, rows=rows)
    assert (result.failure is None) == (rows == 2)
    assert database().connection.connection is None


def test_connection_that_became_unusable_is_replaced_before_the_attempt() -> None:
    connection = database().connection
    connection.ensure_connection()
    before, connection.close_at = connection.connection, 0
    assert trial(count, rows=2).output == 2
    assert connection.connection is not before


def test_task_is_submitted_when_the_transaction_is_committed() -> None:
    transaction = database().transaction
    with recorded() as tasks:
        with transaction.atomic():
            submit_on_commit(count.using(id="committed").call(1))
            assert not tasks
        with transaction.atomic():
            submit_on_commit(count.call(2))
            transaction.set_rollback(True)
        submit_on_commit(count.call(3))
    assert [task["params"] for task in tasks] == [{"rows": 1}, {"rows": 3}]
    assert tasks[0]["id"] == "committed"
