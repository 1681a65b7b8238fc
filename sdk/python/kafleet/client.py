"""Client of the REST API: creates tasks and waits for their results.

Each operation is a generator of `kafleet.steps`, which `kafleet.transport` carries out synchronously or on an event loop.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlencode

from .address import url_of
from .answers import accepted
from .context import Context, _current, batches
from .errors import ApiError, problem
from .handle import Handle as Handle
from .steps import Item, Items, Line, Request, Response, Steps, awaited, blocking
from .transport import Transport
from .values import decode, encode

if TYPE_CHECKING:
    from .call import Call

R = TypeVar("R")

_log = logging.getLogger("kafleet")

_BATCH_BYTES = 4 << 20
_FIRST_PAUSE_SECONDS = 0.1
"""Pause before the second repetition; the first one follows at once, since the server may have closed an idle connection."""
_SILENCE_SECONDS = 45.0
"""Silence after which a stream counts as lost: the API sends a comment every 15 s."""
_PAGE_ITEMS = 200
_NOT_WRITTEN = ("kafka_unavailable", "overloaded")
"""Problems of a service behind the API, after which nothing was carried out."""


class Event(NamedTuple):
    """Event of a stream."""

    kind: str
    data: bytes
    id: str


class Client(Transport):
    """Connection with the API at a URL. Any thread and any event loop may use it.

    `patience`: seconds for which a request is repeated while the API or a service behind it is unavailable.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, patience: float = 30.0) -> None:
        super().__init__(url_of(url), token or os.environ.get("KAFLEET_TOKEN"))
        self.patience = patience

    @property
    def client(self) -> Client:
        """This client."""
        return self

    @blocking
    def request(
        self, method: str, path: str, body: Any = None, *, query: Mapping[str, Any] | None = None, media: str = ""
    ) -> Steps[Any]:
        """Sends any request to the API, and returns the JSON of the response; other responses as `bytes`. Raises `ApiError`.

        `path`: such as `/v1/tasks/hello`. `body`: JSON; with a media type, `bytes` that are sent as they are. A POST is not
        repeated unless the API has surely not carried it out; other requests are, while the API is unavailable.
        """
        return self.call(method, path, body, query=query, media=media, once=method == "POST")

    arequest = awaited(request)

    def call(
        self, method: str, path: str, body: Any = None, *,
        query: Mapping[str, Any] | None = None, media: str = "", once: bool = False, exact: bool = False,
    ) -> Steps[Any]:  # fmt: skip
        """Sends a request; members of the query that are `None` are left out. `exact`: numbers keep all their digits."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        text = body if media else b"" if body is None else encode(body)
        headers = (("content-type", media),) if media else ()
        request = Request(method, f"{path}{'?' if given else ''}{urlencode(given)}", text, headers=headers, once=once)
        return self.exchange(request, exact=exact)

    def pages(
        self, path: str, query: Mapping[str, Any], member: str, limit: int | None = None, *, exact: bool = False
    ) -> Items[Any]:
        """Passes on the items of a list that the API returns page by page."""
        cursor, left = None, limit
        while left is None or left > 0:
            size = _PAGE_ITEMS if left is None else min(left, _PAGE_ITEMS)
            page = yield from self.call("GET", path, query={**query, "limit": size, "cursor": cursor}, exact=exact)
            for item in page[member]:
                yield Item(item)
            cursor, left = page.get("next"), None if left is None else left - len(page[member])
            if cursor is None:
                return

    def collected(self, items: Items[Any]) -> Steps[list[Any]]:
        """Returns the items of an operation as a list."""
        found: list[Any] = []
        answer = None
        while True:
            try:
                step = items.send(answer)
            except StopIteration:
                return found
            if isinstance(step, Item):
                found.append(step.value)
            answer = None if isinstance(step, Item) else (yield step)

    def next_event(self, deadline: float | None) -> Steps[Event | None]:
        """Reads the next event of a stream; nothing at the end of the stream, and if it is lost. Raises `TimeoutError`."""
        fields: dict[bytes, bytes] = {}
        while True:
            left = _SILENCE_SECONDS if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            line: bytes = yield Line(min(left, _SILENCE_SECONDS))
            name, colon, value = line.rstrip(b"\r\n").partition(b":")
            if name:  # A line without a name is a comment.
                fields[name] = value.removeprefix(b" ")
            elif line and not colon and fields:
                return Event(fields.get(b"event", b"").decode(), fields.get(b"data", b""), fields.get(b"id", b"").decode())
            elif not line and (deadline is None or time.monotonic() < deadline):
                return None

    def create(self, call: Call[R]) -> Steps[Handle[R]]:
        """Creates one task."""
        text = encode(_submission(call))
        if _recorder is not None:
            return _record(call, text)
        created = yield from self.exchange(Request("POST", "/v1/tasks", text))
        return Handle(call.target, created["id"], created["position"], created.get("verdict"))

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
                    outcomes[index] = Handle(batch[index][0].target, item["id"], item["position"], item.get("verdict"))
                else:
                    outcomes[index] = problem(item["problem"]["status"], item["problem"])
            # Only those whose repetition can help; a task that exists is not created twice.
            remaining = [index for index in remaining if getattr(outcomes[index], "status", 0) == 503]
            if time.monotonic() > deadline:
                break
            yield 0.5 if remaining else 0.0
        return [outcomes[index] for index in range(len(batch))]

    def create_tree(self, documents: list[dict[str, Any]]) -> Steps[list[dict[str, Any]]]:
        """Creates tasks of one tree, all or none, and returns their ids and positions."""
        if _recorder is not None:
            _recorder.extend(decode(encode(documents)))
            return [{"id": document["id"], "position": None} for document in documents]
        answer = yield from self.call("POST", "/v1/batches", documents, query={"atomic": "true"})
        return answer["items"]  # type: ignore[no-any-return]

    def exchange(self, request: Request, deadline: float | None = None, *, exact: bool = False) -> Steps[Any]:
        """Sends a request, again while the API is unavailable, and returns the document of the response.

        Raises `TimeoutError` once the API does not answer until the deadline.
        """
        if _recorder is not None:
            raise RuntimeError("tasks are recorded here, not created; hint: test with the fixture `kafleet_fleet`")
        until, pause = time.monotonic() + self.patience, 0.0
        while True:
            left = request.seconds if deadline is None else deadline - time.monotonic()
            response: Response = yield request._replace(seconds=max(0.001, min(left, request.seconds)))
            try:
                return accepted(self.url, request, response, exact=exact)
            except ApiError as refused:
                error = refused
            now = time.monotonic()
            may_have_acted = request.once and response.is_sent and error.code not in _NOT_WRITTEN
            if response.status not in (0, 502, 503, 504) or may_have_acted:
                raise error
            if deadline is not None and now >= deadline:
                raise TimeoutError(f"no answer in time: {error}") from error
            if now + pause > until:
                raise error
            if pause == _FIRST_PAUSE_SECONDS:
                _log.warning("%s: %s; trying again for up to %.0f s", error.code, error.detail, self.patience)
            yield pause if deadline is None else min(pause, deadline - now)
            pause = min(2 * pause + _FIRST_PAUSE_SECONDS, 2.0)


def _submission(call: Call[Any]) -> dict[str, Any]:
    document = call.document("submit")
    if "id" not in document:
        document["id"] = new_id(document)
    return document


def new_id(document: dict[str, Any]) -> str:
    """Returns the id of a task to create that has none."""
    cx = _current.get()
    return _id_in_attempt(cx, document) if cx else _new_id()


def _new_id() -> str:
    """Returns a UUIDv7."""
    bits = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    text = f"{bits & ~(0xF << 76 | 3 << 62) | 7 << 76 | 2 << 62:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _id_in_attempt(cx: Context, document: dict[str, Any]) -> str:
    """Returns an id that is the same in every attempt, so that a repeated attempt creates the same task."""
    parts = [cx.idempotency_key, document["type"], document.get("params"), document.get("parent")]
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
