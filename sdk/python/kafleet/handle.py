"""Handles of created tasks: reading, waiting for and changing them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import quote

from . import foreign
from .call import _plain
from .checks import check_keys
from .context import _current
from .errors import ApiError, NotFound, TaskFailed, problem
from .status import State, Status
from .steps import Item, Items, Request, Steps, aiterated, awaited, blocking, iterated
from .task import Submittable
from .values import decode, parse, settled

if TYPE_CHECKING:
    from .app import App
    from .client import Client
    from .scalars import Codec

R = TypeVar("R")

_MAX_CONTINUATIONS = 8
"""Continuations of one task."""


class Handle(foreign.Named, Generic[R]):
    """A created task. Each method that talks to the API has an asynchronous twin, such as `aresult`."""

    _foreign = ("a handle", foreign.HANDLE)

    def __init__(self, task: Submittable[Any, R], id: str, position: str | None = None, verdict: str | None = None) -> None:
        self.id = id
        """Task id. Of a unique task that joined another one, or replaced a kept one: the id of the task that stands for it."""
        self.verdict = verdict
        """Verdict about the submission of a unique task: `started`, `kept` or `joined`; None for any other task."""
        self.position = position
        """Position of its newest known event; reads through this handle include that event."""
        self._task = task
        self._before: Handle[Any] | None = None

    def __repr__(self) -> str:
        return f"<Handle {self.id} of {self._task.name}>" if self._task.name else f"<Handle {self.id}>"

    @property
    def client(self) -> Client:
        """Client of the API."""
        return self._task.app.client

    def then(self, n: int = 0) -> Handle[Any]:
        """Returns the handle of continuation `n`, from 0. Until it exists, its `result` waits for this task."""
        if not 0 <= n < _MAX_CONTINUATIONS:
            raise ValueError(f"a task has the continuations 0 to {_MAX_CONTINUATIONS - 1}: `{n}` is none of them")
        handle: Handle[Any] = Handle(Unknown(self._task.app), _continuation_id(self.id, n), self.position)
        handle._before = self
        return handle

    # Waiting

    @iterated
    def watch(self, timeout: float | None = None) -> Items[Status]:
        """Returns the status document now and at every change, until the task has ended."""
        return self._watch(_deadline(timeout))

    awatch = aiterated(watch)

    @blocking
    def result(self, timeout: float | None = None) -> Steps[R]:
        """Waits for the result. Raises `TaskFailed`, or `TimeoutError` after `timeout` seconds."""
        status = yield from self._watch(_deadline(timeout))
        return (yield from self._output(status))

    aresult = awaited(result)

    @blocking
    def final_result(self, timeout: float | None = None) -> Steps[Any]:
        """Waits for the end of the tree, and returns the result of the last task of its chain.

        That is the task itself if it has no continuation; of several ones, the first that has run counts. Raises
        `TaskFailed`, or `TimeoutError` after `timeout` seconds.
        """
        status, last = (yield from self._watch(_deadline(timeout))), self
        while status["state"] == "succeeded" and (following := (yield from last._following())):
            status, last = following, Handle(Unknown(self._task.app), following["id"], following["position"])
        return (yield from last._output(status))

    afinal_result = awaited(final_result)

    # Reading

    @blocking
    def status(self) -> Steps[Status]:
        """Returns the status document."""
        return self._updated(self._read())

    astatus = awaited(status)

    @blocking
    def tree(self, depth: int | None = None, limit: int | None = None) -> Steps[dict[str, Any]]:
        """Returns the task with its descendants: `below` are the children, `omitted` the number of those left out.

        `depth`: levels below the task, default 3, at most 64. `limit`: number of tasks, default 1,000, at most 10,000.
        """
        return self._read("/tree", depth=depth, limit=limit)

    atree = awaited(tree)

    @iterated
    def children(self) -> Items[Status]:
        """Returns the status documents of the direct children, oldest first, with the continuations."""
        return self._children()

    achildren = aiterated(children)

    @blocking
    def log(self) -> Steps[list[str]]:
        """Returns the lines of the task's log: the newest 1,000, up to 1 MiB."""
        return [line["text"] for line in (yield from self._read("/log", limit=10_000))["lines"]]

    alog = awaited(log)

    @blocking
    def why(self) -> Steps[list[dict[str, Any]]]:
        """Explains the task's state, most important finding first: `code`, `message` and the id of another `task`, or `None`."""
        return (yield from self._read("/why"))["findings"]  # type: ignore[no-any-return]

    awhy = awaited(why)

    @blocking
    def params(self) -> Steps[Any]:
        """Returns the task's params as JSON. Raises `NotFound` once Kafka no longer retains them."""
        return (yield from self._read("/params"))["params"]

    aparams = awaited(params)

    @blocking
    def history(self) -> Steps[list[dict[str, Any]]]:
        """Returns the task's events: the first and the newest 64."""
        return (yield from self._read("/history"))["events"]  # type: ignore[no-any-return]

    ahistory = awaited(history)

    # Changes

    @blocking
    def cancel(self, reason: str | None = None) -> Steps[None]:
        """Cancels the task and its descendants. A task that has ended stays as it is."""
        try:
            yield from self._updated(self._send("POST", "/cancel", {"reason": reason} if reason else {}))
        except ApiError as error:
            if error.code != "already_finished":
                raise

    acancel = awaited(cancel)

    @blocking
    def retry(self, *, only_failed: bool = False, reason: str | None = None) -> Steps[int]:
        """Runs an ended task again, and returns the number of the new run. `only_failed`: instead, those tasks of its tree
        that have failed, expired or been cancelled. Raises `Conflict` if it has not ended."""
        body = {"only_failed": only_failed, **({"reason": reason} if reason else {})}
        document = yield from self._send("POST", "/retry", body, once=True)
        self.position = document["status"]["position"]
        return document["run"]  # type: ignore[no-any-return]

    aretry = awaited(retry)

    @blocking
    def start_now(self, *, reason: str | None = None) -> Steps[list[str]]:
        """Starts the task now that waits for its start or its next attempt, and returns what still holds it, such as a pause or
        an open circuit. Raises `Conflict` if it waits for no time."""
        document = yield from self._send("POST", "/start", {"reason": reason} if reason else {}, once=True)
        self.position = document["status"]["position"]
        return [finding["message"] for finding in document["held_by"]]

    astart_now = awaited(start_now)

    @blocking
    def patch(self, /, **changes: Any) -> Steps[Status]:
        """Changes options of the task, such as `tags`; `None` clears one. Raises `Conflict` for those that cannot change now."""
        check_keys(changes, "task")
        return self._updated(self._send("PATCH", "", _plain(changes)))

    apatch = awaited(patch)

    @blocking
    def report(self, state: State, *, message: str | None = None, result: Any = None) -> Steps[bool]:
        """Reports the state of an external task. Returns whether that has changed it: after its end, nothing does.

        `state`: `queued`, `running`, `warning`, `waiting_for_children` (its own work is done), `succeeded` or `failed`.
        """
        given = {"state": state, "message": message, "result": result}
        body = {name: value for name, value in given.items() if value is not None}
        document = yield from self._send("PUT", "/state", body, once=True)
        self.position = document["status"]["position"]
        return not document["ignored"]

    areport = awaited(report)

    # Steps

    def _path(self, rest: str = "") -> str:
        if not {"", ".", ".."}.isdisjoint(self.id.split(":")):
            detail = f"`{self.id}` cannot be an id: URLs drop segments that are empty, `.` or `..`; choose another name"
            raise problem(400, {"code": "bad_id", "detail": detail})
        return f"/v1/tasks/{quote(self.id, safe=':')}{rest}"

    def _read(self, rest: str = "", **query: Any) -> Steps[Any]:
        return self.client.call("GET", self._path(rest), query={**query, "after": self.position})

    def _send(self, method: str, rest: str, body: Any, once: bool = False) -> Steps[Any]:
        return self.client.call(method, self._path(rest), body, once=once)

    def _updated(self, steps: Steps[Any]) -> Steps[Any]:
        document = yield from steps
        self.position = document["position"] or self.position
        return document

    def _children(self, exact: bool = False) -> Items[Any]:
        return self.client.pages(self._path("/children"), {"after": self.position}, "tasks", exact=exact)

    def _watch(self, deadline: float | None) -> Steps[Status]:
        """Yields each status and returns the last one, whose numbers have all their digits."""
        if _current.get():
            raise RuntimeError("an attempt must not wait for another task, which may need its slot; hint: use `cx.then(…)`")
        status = None
        while True:
            yield from self._stream(deadline)
            while True:
                try:
                    event = yield from self.client.next_event(deadline)
                except TimeoutError:
                    state = f": it is {status['state']}" if status else ""
                    raise TimeoutError(
                        f"the task `{self.id}` has not ended in time{state}; hint: `kafleet why {self.id}`"
                    ) from None
                if event and event.kind == "status":
                    status = parse(event.data)
                    self.position = status["position"] or self.position
                    yield Item(settled(status))
                elif event is None or event.kind == "end":
                    break
            if event and status and decode(event.data)["reason"] == "finished":
                return status  # type: ignore[no-any-return]
            yield 0.2

    def _stream(self, deadline: float | None) -> Steps[None]:
        """Opens a stream of statuses. Whether there is a continuation is known when the task before it has ended."""
        request = Request("GET", f"{self._path('/watch')}{f'?after={self.position}' if self.position else ''}", stream=True)
        try:
            yield from self.client.exchange(request, deadline)
        except NotFound:
            if self._before is None:
                raise
            before, self._before = self._before, None
            status = (yield from self.client.collected(before._watch(deadline)))[-1]
            try:
                yield from self.client.exchange(request, deadline)
            except NotFound:
                if status["state"] == "succeeded":
                    raise
                raise (yield from before._failure(status)) from None

    def _following(self) -> Steps[Status | None]:
        """Returns the status of the first continuation that exists, with all digits of its numbers."""
        ids = ",".join(f'"{_continuation_id(self.id, n)}"' for n in range(_MAX_CONTINUATIONS))
        page = yield from self.client.call("GET", "/v1/tasks", query={"q": f"id:{ids}", "after": self.position}, exact=True)
        found = [task for task in page["tasks"] if not task["superseded"]]
        return min(found, key=lambda task: (len(task["id"]), task["id"]), default=None)

    def _output(self, status: Status) -> Steps[R]:
        if status["state"] != "succeeded":
            raise (yield from self._failure(status))
        return self._loaded(status)

    def _loaded(self, status: Status) -> R:
        codec = self._task.output_of(status)
        output: R = codec.load(status["result"]) if codec else settled(status["result"])
        return output

    def _failure(self, status: Status) -> Steps[TaskFailed]:
        """Returns the exception for a task without success; it names the descendant that decided this, if there is one."""
        decisive = None
        if status["own_state"] != status["state"]:
            try:
                findings = (yield from self._read("/why"))["findings"]
                if found := next((finding["task"] for finding in findings if finding["code"] == "failed_child"), None):
                    decisive = yield from Handle(self._task, found, self.position)._read()
            except ApiError:  # The failure of the task itself is known.
                pass
        return TaskFailed(settled(status), decisive)


class GroupHandle(Handle[list[R]]):
    """Created group: a task whose children are the tasks of the group. Its result is the list of their results."""

    def __init__(self, task: Submittable[Any, Any], id: str, position: str | None, members: Sequence[Handle[R]]) -> None:
        super().__init__(task, id, position)
        self.members = list(members)
        """Handles of the tasks, in the order of the group."""

    def _output(self, status: Status) -> Steps[list[R]]:
        """Returns the results of the tasks that have succeeded, in the order of the group."""
        if status["state"] != "succeeded":
            raise (yield from self._failure(status))
        found = yield from self.client.collected(self._children(exact=True))
        by_id = {child["id"]: child for child in found if child["state"] == "succeeded"}
        return [member._loaded(by_id[member.id]) for member in self.members if member.id in by_id]


class Unknown(Submittable[..., Any]):
    """Task of a type that is known from its status only."""

    def __init__(self, app: App) -> None:
        super().__init__(app, "")

    def output_of(self, status: Status) -> Codec | None:
        declared = self.app.tasks.get(status["type"] or "")
        named = getattr(declared, "tasks", {})  # Of a bundle, whose tasks have their name as a tag.
        task = next((named[tag] for tag in status["tags"] if tag in named), declared)
        codec: Codec | None = getattr(task, "output", None)
        return codec


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


def _continuation_id(id: str, n: int) -> str:
    return f"{id}:then-{n + 1}" if n else f"{id}:then"
