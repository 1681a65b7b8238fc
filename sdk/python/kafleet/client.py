"""Client of the REST API: creates tasks and waits for their results.

Each operation is a generator of steps, which `kafleet.transport` carries out synchronously or on an event loop.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import quote

from .context import Context, _current, batches
from .errors import ApiError, TaskFailed, problem
from .transport import Line, Request, Response, Status, Steps, Transport
from .values import decode, encode, parse, settled

if TYPE_CHECKING:
    from .task import Call, Submittable

R = TypeVar("R")

DEFAULT_URL = "http://127.0.0.1:8080"
_log = logging.getLogger("kafleet")

_BATCH_BYTES = 4 << 20
_FIRST_PAUSE_SECONDS = 0.1
"""Pause before the second repetition; the first one follows at once, since the server may have closed an idle connection."""
_SILENCE_SECONDS = 45.0
"""Silence after which a stream counts as lost: the API sends a comment every 15 s."""


class Handle(Generic[R]):
    """A created task."""

    def __init__(self, task: Submittable[Any, R], id: str, position: str | None = None) -> None:
        self.id = id
        """Task id."""
        self.position = position
        """Position of its newest known event; reads through this handle include that event."""
        self._task, self._client = task, task.app.client

    def status(self) -> dict[str, Any]:
        """Returns the status document."""
        return self._client.run(self._status())

    async def astatus(self) -> dict[str, Any]:
        """Returns the status document."""
        return await self._client.arun(self._status())

    def cancel(self, reason: str | None = None) -> None:
        """Cancels the task and its descendants. A task that has ended stays as it is."""
        self._client.run(self._cancel(reason))

    async def acancel(self, reason: str | None = None) -> None:
        """Cancels the task and its descendants. A task that has ended stays as it is."""
        await self._client.arun(self._cancel(reason))

    def watch(self, timeout: float | None = None) -> Iterator[dict[str, Any]]:
        """Returns the status document now and at every change, until the task has ended."""
        return self._client.iterate(self._watch(timeout))

    def awatch(self, timeout: float | None = None) -> AsyncIterator[dict[str, Any]]:
        """Returns the status document now and at every change, until the task has ended."""
        return self._client.aiterate(self._watch(timeout))

    def result(self, timeout: float | None = None) -> R:
        """Waits for the result. Raises `TaskFailed`, or `TimeoutError` after `timeout` seconds."""
        return self._output(self._client.run(self._watch(timeout)))

    async def aresult(self, timeout: float | None = None) -> R:
        """Waits for the result. Raises `TaskFailed`, or `TimeoutError` after `timeout` seconds."""
        return self._output(await self._client.arun(self._watch(timeout)))

    def _path(self, rest: str = "", read: bool = True) -> str:
        if not {"", ".", ".."}.isdisjoint(self.id.split(":")):
            detail = f"`{self.id}` cannot be an id: URLs drop segments that are empty, `.` or `..`; choose another name"
            raise problem(400, {"code": "bad_id", "detail": detail})
        after = f"?after={self.position}" if read and self.position else ""
        return f"/v1/tasks/{quote(self.id, safe=':')}{rest}{after}"

    def _status(self) -> Steps[dict[str, Any]]:
        document: dict[str, Any] = yield from self._client.exchange(Request("GET", self._path()))
        self.position = document["position"] or self.position
        return document

    def _cancel(self, reason: str | None) -> Steps[None]:
        body = encode({"reason": reason} if reason else {})
        try:
            document = yield from self._client.exchange(Request("POST", self._path("/cancel", read=False), body))
        except ApiError as error:
            if error.code != "already_finished":
                raise
        else:
            self.position = document["position"] or self.position

    def _watch(self, timeout: float | None) -> Steps[dict[str, Any]]:
        """Yields each status and returns the last one, whose numbers have all their digits."""
        if _current.get():
            raise RuntimeError("an attempt must not wait for another task, which may need its slot; hint: use `cx.then(…)`")
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            yield from self._client.exchange(Request("GET", self._path("/watch"), stream=True), deadline)
            last = yield from self._events(deadline)
            if last:
                return last
            yield 0.2

    def _events(self, deadline: float | None) -> Steps[dict[str, Any] | None]:
        """Reads a stream of events; returns the status of an ended task, or nothing if the stream is lost."""
        kind, status = "", None
        while True:
            left = _SILENCE_SECONDS if deadline is None else deadline - time.monotonic()
            if left <= 0:
                state = f": it is {status['state']}" if status else ""
                raise TimeoutError(f"the task `{self.id}` has not ended in time{state}")
            line: bytes = yield Line(min(left, _SILENCE_SECONDS))
            name, _, value = line.rstrip(b"\r\n").partition(b":")
            if name == b"event":
                kind = value.strip().decode()
            elif name == b"data" and kind == "status":
                status = parse(value)
                self.position = status["position"] or self.position
                yield Status(settled(status))
            elif name == b"data" and kind == "end":
                return status if decode(value)["reason"] == "finished" else None
            elif not line and (deadline is None or time.monotonic() < deadline):
                return None

    def _output(self, status: dict[str, Any]) -> R:
        if status["state"] != "succeeded":
            raise TaskFailed(settled(status))
        codec = self._task.output
        output: R = codec.load(status["result"]) if codec else settled(status["result"])
        return output


class Client(Transport):
    """Connection with the API at a URL. Any thread and any event loop may use it.

    `patience`: seconds for which a request is repeated while the API or a service behind it is unavailable.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, patience: float = 30.0) -> None:
        url = (url or os.environ.get("KAFLEET_API") or DEFAULT_URL).rstrip("/")
        super().__init__(url, token or os.environ.get("KAFLEET_TOKEN"))
        self.patience = patience

    def create(self, call: Call[R]) -> Steps[Handle[R]]:
        """Creates one task."""
        text = encode(_submission(call))
        if _recorder is not None:
            return _record(call, text)
        created = yield from self.exchange(Request("POST", "/v1/tasks", text))
        return Handle(call.target, created["id"], created["position"])

    def create_many(self, calls: Iterable[Call[R]]) -> Steps[list[Handle[R] | ApiError]]:
        """Creates tasks in batches; each has its own outcome, in order. All are encoded before the first batch is sent."""
        outcomes: list[Handle[R] | ApiError] = []
        encoded = ((call, encode(_submission(call))) for call in calls)
        for batch in list(batches(encoded, lambda item: len(item[1]), _BATCH_BYTES)):
            last = outcomes[-1] if outcomes else None
            if _recorder is not None:
                outcomes += [_record(call, text) for call, text in batch]
            elif isinstance(last, ApiError) and last.status == 0:
                outcomes += [last] * len(batch)
            else:
                outcomes += yield from self._create_batch(batch)
        return outcomes

    def _create_batch(self, batch: list[tuple[Call[R], bytes]]) -> Steps[list[Handle[R] | ApiError]]:
        outcomes: dict[int, Handle[R] | ApiError] = {}
        deadline = time.monotonic() + self.patience
        remaining = list(range(len(batch)))
        while remaining:
            body = b"[%b]" % b",".join(batch[index][1] for index in remaining)
            try:
                answer = yield from self.exchange(Request("POST", "/v1/batches", body))
            except ApiError as error:
                # The tasks that were created before keep their handles.
                outcomes.update(dict.fromkeys(remaining, error))
                break
            for index, item in zip(remaining, answer["items"], strict=True):
                if item["outcome"] == "accepted":
                    outcomes[index] = Handle(batch[index][0].target, item["id"], item["position"])
                else:
                    outcomes[index] = problem(item["problem"]["status"], item["problem"])
            # Only those whose repetition can help; a task that exists is not created twice.
            remaining = [index for index in remaining if getattr(outcomes[index], "status", 0) == 503]
            if time.monotonic() > deadline:
                break
            yield 0.5 if remaining else 0.0
        return [outcomes[index] for index in range(len(batch))]

    def exchange(self, request: Request, deadline: float | None = None) -> Steps[Any]:
        """Sends a request, again while the API is unavailable, and returns the document of the response.

        Raises `TimeoutError` once the API does not answer until the deadline.
        """
        if _recorder is not None:
            raise RuntimeError("tasks are recorded here, not created; hint: test with the fixture `kafleet_fleet`")
        until, pause = time.monotonic() + self.patience, 0.0
        while True:
            left = request.seconds if deadline is None else deadline - time.monotonic()
            response: Response = yield request._replace(seconds=max(0.001, min(left, request.seconds)))
            if 200 <= response.status < 300:
                return None if request.stream else decode(response.body)
            error = self._error(response)
            now = time.monotonic()
            if response.status not in (0, 502, 503, 504):
                raise error
            if deadline is not None and now >= deadline:
                raise TimeoutError(f"no answer in time: {error}") from error
            if now + pause > until:
                raise error
            if pause == _FIRST_PAUSE_SECONDS:
                _log.warning("%s: %s; trying again for up to %.0f s", error.code, error.detail, self.patience)
            yield pause if deadline is None else min(pause, deadline - now)
            pause = min(2 * pause + _FIRST_PAUSE_SECONDS, 2.0)

    def _error(self, response: Response) -> ApiError:
        try:
            document = decode(response.body)
        except ValueError:
            document = {"detail": response.body.decode(errors="replace")[:500]}
        if response.status == 0:
            document = {
                "code": "unreachable",
                "detail": f"the API at `{self.url}` cannot be reached: {response.body.decode()}",
                "hint": "start `kafleet dev`, or set KAFLEET_API to the URL of an API",
            }
        return problem(response.status, document)


def _submission(call: Call[Any]) -> dict[str, Any]:
    document = call.document("submit")
    if "id" not in document:
        document["id"] = _id_in_attempt(cx, document) if (cx := _current.get()) else _new_id()
    return document


def _new_id() -> str:
    """Returns a UUIDv7."""
    bits = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    text = f"{bits & ~(0xF << 76 | 3 << 62) | 7 << 76 | 2 << 62:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _id_in_attempt(cx: Context, document: dict[str, Any]) -> str:
    """Returns an id that is the same in every attempt, so that a repeated attempt creates the same task."""
    parts = [cx.idempotency_key, document["type"], document["params"], document.get("parent")]
    digest = hashlib.sha256(encode(parts)).digest()
    cx.submits[digest] += 1
    return hashlib.sha256(digest + cx.submits[digest].to_bytes(8, "big")).hexdigest()[:32]


_recorder: list[dict[str, Any]] | None = None
"""Receives the submitted tasks instead of the API, for `kafleet.testing.recorded`."""


def record_into(recorder: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Replaces the recorder and returns the one before."""
    global _recorder
    earlier, _recorder = _recorder, recorder
    return earlier


def _record(call: Call[R], text: bytes) -> Handle[R]:
    document = decode(text)
    if _recorder is not None:
        _recorder.append(document)
    return Handle(call.target, document["id"])
