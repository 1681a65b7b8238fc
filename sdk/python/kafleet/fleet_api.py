"""What an app can ask of its fleet: tasks, bulk actions, dead letters and schedules.

Documents are those of the API, as docs/api.md describes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from .call import Call, _plain
from .handle import Handle
from .schedules import checked_spec, scheduled
from .status import Status
from .steps import Items, Steps, aiterated, awaited, blocking, iterated

if TYPE_CHECKING:
    from .app import App
    from .client import Client
    from .declare import Bundle
    from .task import Task

    Declared = dict[str, Task[..., Any] | Bundle]
else:
    Declared = dict


class _Part:
    """Operations on one kind of thing."""

    def __init__(self, app: App) -> None:
        self._app = app

    @property
    def client(self) -> Client:
        """Client of the API."""
        return self._app.client


class Tasks(_Part, Declared):
    """Declared types by name; `search` finds tasks of the fleet."""

    @iterated
    def search(self, query: str = "", *, sort: str | None = None, limit: int | None = None) -> Items[Status]:
        """Returns the status documents of the tasks that match a search, such as `state:failed type:mail`.

        It finds tasks of all levels if it names a type, an error, a worker, an id or a tree, otherwise those without a
        parent.

        Pages are read as the iterator proceeds. `sort`: `oldest` or `longest` instead of the newest first, where the query
        permits it. `limit`: maximum number of tasks. Raises `Invalid` for a mistake in the query.
        """
        return self.client.pages("/v1/tasks", {"q": query or None, "sort": sort}, "tasks", limit)

    asearch = aiterated(search)


class Bulk(_Part):
    """Actions on many tasks or dead letters. Each is a task itself: the handle's result counts what was changed."""

    @blocking
    def cancel(self, query: str, *, limit: int = 100, reason: str | None = None) -> Steps[Handle[dict[str, int]]]:
        """Cancels the open tasks that match. Of more than `limit`, up to 10,000,000, the rest stays, and the action fails."""
        return self._start("cancel", {"q": query}, limit, reason)

    acancel = awaited(cancel)

    @blocking
    def retry(
        self, query: str, *, only_failed: bool = False, limit: int = 100, reason: str | None = None
    ) -> Steps[Handle[dict[str, int]]]:
        """Runs the ended tasks that match again; `only_failed`: the failed tasks of their trees. `limit` as for `cancel`."""
        return self._start("retry_failed" if only_failed else "retry", {"q": query}, limit, reason)

    aretry = awaited(retry)

    @blocking
    def start_now(self, query: str, *, limit: int = 100, reason: str | None = None) -> Steps[Handle[dict[str, int]]]:
        """Starts the tasks that match now, if they wait for their start or their next attempt. `limit` as for `cancel`."""
        return self._start("start_now", {"q": query}, limit, reason)

    astart_now = awaited(start_now)

    @blocking
    def redrive(
        self,
        type: str,
        /,
        *,
        patch: Mapping[str, Any] | None = None,
        limit: int = 100,
        reason: str | None = None,
        **filters: str,
    ) -> Steps[Handle[dict[str, int]]]:
        """Runs the tasks of the dead letters of a type again. `limit` as for `cancel`.

        `filters`: only letters with this `kind` of error, `code`, `error` or time (`from`, `to`), as in docs/api.md. `patch`: a
        merge patch of the params of each task; `None` in it removes a value. Letters whose params would not match the schema of
        the type are `refused`.
        """
        selection: dict[str, Any] = {"letters": {"type": type, **filters}}
        if patch is not None:
            selection["patch"] = _plain(dict(patch))
        return self._start("redrive", selection, limit, reason)

    aredrive = awaited(redrive)

    def _start(self, action: str, selection: dict[str, Any], limit: int, reason: str | None) -> Steps[Handle[dict[str, int]]]:
        body = {"action": action, **selection, "limit": limit, **({"reason": reason} if reason else {})}
        document = yield from self.client.call("POST", "/v1/bulk", body, once=True)
        return Handle(self._app.remote(document["type"]), document["id"], document["position"])


class DeadLetters(_Part):
    """Tasks and records that are not retried automatically."""

    @iterated
    def list(
        self, type: str | None = None, *, code: str | None = None, kind: str | None = None, limit: int | None = None
    ) -> Items[dict[str, Any]]:
        """Returns the dead letters, newest first: `id`, `type`, `task`, `code`, `kind`, `error` and more.

        `kind`: only those of tasks that ended with an error of this kind. `limit`: maximum number.
        """
        return self.client.pages("/v1/dead-letters", {"type": type, "code": code, "kind": kind}, "letters", limit)

    alist = aiterated(list)

    @blocking
    def redrive(self, letter: str, /, **changes: Any) -> Steps[dict[str, Any]]:
        """Runs the task of a dead letter again, with `params=…` instead of its own and a `reason=…`, if given.

        Raises `Conflict` if the task has moved on. `app.bulk.redrive` does the same with many dead letters.
        """
        return self._resolve(letter, "redrive", changes)

    aredrive = awaited(redrive)

    @blocking
    def drop(self, /, letter: str = "", **selection: Any) -> Steps[dict[str, Any]]:
        """Resolves a dead letter without running its task, with a `reason=…`, if given.

        Without a letter: the newest ones of a `type=…`, also with a `code=…` or a `kind=…`, up to `limit=…` (100, at most 1,000).
        Returns the letters that are `done`, those `refused` with reasons, and whether there are `more`.
        """
        return self._resolve(letter, "drop", selection)

    adrop = awaited(drop)

    def _resolve(self, letter: str, action: str, selection: dict[str, Any]) -> Steps[dict[str, Any]]:
        path = f"/v1/dead-letters/{quote(letter, safe=':')}/{action}" if letter else f"/v1/dead-letters/{action}"
        return self.client.call("POST", path, None if letter and not selection else selection)


class Schedules(_Part):
    """Recurring schedules. Documents have `id`, `spec`, `paused`, `next`, `last`, `error` and more."""

    @blocking
    def list(self) -> Steps[list[dict[str, Any]]]:
        """Returns all schedules, by id."""
        return (yield from self.client.call("GET", "/v1/schedules"))["schedules"]  # type: ignore[no-any-return]

    alist = awaited(list)

    @blocking
    def get(self, id: str) -> Steps[dict[str, Any]]:
        """Returns one schedule. Raises `NotFound`."""
        return self._send("GET", id)

    aget = awaited(get)

    @blocking
    def upsert(self, /, id: str, *, task: Call[Any] | Mapping[str, Any], **spec: Any) -> Steps[dict[str, Any]]:
        """Creates or replaces a schedule of a call.

        `spec`: the other keys of `[schedules.NAME]`: `cron` or `every`, `zone`, `overlap`, `catch_up`, `jitter`, `start_at`,
        `end_at`, with the checks of `@app.schedule`: a wrong one is a `TypeError`.
        """
        spec, (_, document) = checked_spec(spec), scheduled(task)
        return self._send("PUT", id, body={**_plain(spec), "task": document})

    aupsert = awaited(upsert)

    @blocking
    def delete(self, id: str) -> Steps[dict[str, Any]]:
        """Deletes a schedule; its tasks stay."""
        return self._send("DELETE", id)

    adelete = awaited(delete)

    @blocking
    def pause(self, id: str, reason: str | None = None) -> Steps[dict[str, Any]]:
        """Pauses a schedule."""
        return self._send("POST", id, "/pause", {"reason": reason} if reason else {})

    apause = awaited(pause)

    @blocking
    def resume(self, id: str) -> Steps[dict[str, Any]]:
        """Resumes a schedule. Missed times are not made up for."""
        return self._send("POST", id, "/resume", {})

    aresume = awaited(resume)

    @blocking
    def trigger(self, id: str) -> Steps[Handle[Any]]:
        """Creates a task of a schedule now, also while it is paused, and returns its handle."""
        document = yield from self._send("POST", id, "/trigger", once=True)
        return self._app.handle(document["tasks"][0])

    atrigger = awaited(trigger)

    def _send(self, method: str, id: str, rest: str = "", body: Any = None, once: bool = False) -> Steps[Any]:
        return self.client.call(method, f"/v1/schedules/{quote(id, safe='')}{rest}", body, once=once)
