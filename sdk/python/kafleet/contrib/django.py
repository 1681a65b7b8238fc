"""For Django projects: database connections of attempts, and tasks that are submitted after a commit."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from ..app import App
from ..call import Call
from ..context import Context


def integrate(app: App) -> App:
    """Sets Django up, and closes unusable database connections before and after each attempt, as Django does for requests.

    `DJANGO_SETTINGS_MODULE` names the settings. Call it before the first import of a model.
    """
    import_module("django").setup()
    close_old_connections = import_module("django.db").close_old_connections

    @app.around
    def connections(cx: Context) -> Iterator[None]:
        close_old_connections()
        try:
            yield
        finally:
            close_old_connections()

    return app


def submit_on_commit(call: Call[Any], using: str | None = None) -> None:
    """Submits a task when the current transaction of the database `using` is committed; at once if there is none.

    A task that is submitted within a transaction may start before the rows that it needs are visible, or although they
    never will be. Raises `ApiError` from the commit.
    """
    client = call.target.app.client
    import_module("django.db").transaction.on_commit(lambda: client.run(client.create(call)), using=using)
