"""Context of an attempt: the API available to a handler."""

from __future__ import annotations

import base64
import codecs
import contextlib
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeVar, overload

from . import foreign
from .checks import call_of, calls_of, check_params
from .forks import in_children
from .outcomes import Cancelled, Fail, SoftTimeout, SpawnFailed, seconds_text
from .values import encode, encode_text, text_of

if TYPE_CHECKING:
    from concurrent.futures import Future

    from .call import Call
    from .canvas import Group
    from .task import Submittable

P = ParamSpec("P")
T = TypeVar("T")

LIMITS = {
    "line": 8 << 20, "output": 256 << 10, "params": 1 << 20, "progress": 16 << 10, "log_line": 16 << 10,
    "attachment": 64 << 10, "children": 100_000, "children_bytes": 64 << 20,
}  # fmt: skip
"""Limits of a worker that does not send them, in bytes; `children` is a number."""

_BATCH_BYTES = 256 << 10
"""Size at which pending log lines and children are sent, in bytes."""
Stream = Literal["stdout", "stderr"]
_STREAMS: dict[Stream | None, bytes] = {None: b"", "stdout": b',"stream":"stdout"', "stderr": b',"stream":"stderr"'}

BATCH_ITEMS = 1000
"""Number of tasks that are created together."""

_MAX_TEXT_CHARS = 4000
"""Length of a warning and of the reason to retire; the worker keeps no more."""

_PROMPT_SECONDS = 0.1
"""Time within which a cancelled attempt has stopped at once."""

_current: ContextVar[Context | None] = ContextVar("kafleet", default=None)


def _leave_attempt() -> None:
    """A forked child is outside of the attempt; a thread of the parent may have held the lock."""
    if cx := _current.get():
        cx._lock = threading.Lock()
    _current.set(None)


in_children(_leave_attempt)


def current() -> Context:
    """Returns the context of the running attempt. Raises `LookupError` outside of an attempt."""
    cx = _current.get()
    if cx is None:
        raise LookupError("no attempt is running here; threads of your own need `contextvars.copy_context()`")
    return cx


def in_event_loop() -> bool:
    """Returns whether this thread runs an event loop, without an import of asyncio."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


def batches(items: Iterable[T], size: Callable[[T], int], max_bytes: int) -> Iterable[list[T]]:
    """Splits items into lists that one message carries. One that is too large for a list is alone in it."""
    batch: list[T] = []
    total = 0
    for item in items:
        if batch and (len(batch) == BATCH_ITEMS or total + size(item) > max_bytes):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size(item)
    if batch:
        yield batch


class Channel(Protocol):
    """Receiver of an attempt's messages: the worker, or a test."""

    limits: dict[str, int]
    state: Any

    def send(self, lines: bytes, /) -> None:
        """Sends complete lines."""

    def call(self, cx: Context, tasks: list[bytes]) -> Future[list[str]]:
        """Publishes children at once; the future has their ids."""
        ...

    def buffered(self, cx: Context) -> None:
        """Sends the log lines of an attempt soon."""

    def flushed(self, cx: Context) -> None:
        """Sends the log lines of an attempt, and returns when the socket has taken them."""


class Context(foreign.Named):
    """Identity of an attempt, and its connection to the task."""

    _foreign = ("the context", foreign.CONTEXT)
    __slots__ = (
        "n", "type", "task_name", "id", "run", "number", "name", "tags", "creator", "options", "headers", "trace", "state",
        "reason", "submits", "timeout", "_deadline", "_channel", "_limits", "_lock", "_decoders", "_lines", "_line_bytes",
        "_partials", "_silent", "_children", "_children_bytes", "_count", "_total", "_on_cancel", "_cancelled_at", "_soft",
    )  # fmt: skip

    def __init__(self, attempt: dict[str, Any], channel: Channel) -> None:
        self.n: int = attempt["n"]
        self.type: str = attempt["type"]
        """Name of the task's type."""
        self.task_name = self.type
        """Name of the task in its bundle, otherwise that of its type."""
        self.id: str = attempt["id"]
        """Task id."""
        self.run: int = attempt["run"]
        """Run of the task, from 1: a retry on request starts the next one."""
        self.number: int = attempt["number"]
        """Number of the attempt in its run, from 1."""
        self.name: str | None = attempt.get("name")
        """Display name of the task."""
        self.tags: list[str] = attempt.get("tags") or []
        """Tags of the task."""
        self.creator: str | None = attempt.get("creator")
        """Creator of the task."""
        self.options: dict[str, Any] = attempt.get("options") or {}
        """Options of the task: the JSON object that was stored with it."""
        self.headers: dict[str, str] = attempt.get("headers") or {}
        """Headers that were given with the task, and those of its record that the type keeps (`keep_headers`)."""
        self.trace: dict[str, str] = attempt.get("trace") or {}
        """W3C trace context of the attempt, or else of the producer: `parent`, and `state` if there is one."""
        self.state: Any = channel.state
        """Value of the app's `lifespan`."""
        self.reason: str | None = None
        """Cause of the cancellation: `cancelled`, `timeout`, `stalled` or `shutdown`; `None` while it is not cancelled."""
        self.submits: defaultdict[bytes, int] = defaultdict(int)
        self.timeout: float = attempt["left_ms"] / 1000
        """Seconds of the attempt until its timeout, when it started."""
        self._deadline: float = time.monotonic() + self.timeout
        self._channel, self._limits = channel, channel.limits
        self._lock = threading.Lock()
        self._decoders: dict[Stream | None, codecs.IncrementalDecoder] = {}
        self._lines: list[tuple[Stream | None, list[str]]] = []
        self._partials: dict[Stream | None, str] = {}
        self._line_bytes, self._silent = 0, False
        self._children: list[bytes] = []
        self._children_bytes = self._count = self._total = 0
        self._on_cancel: Callable[[], object] | None = None
        self._cancelled_at = 0.0
        self._soft: tuple[float, float] | None = None

    @property
    def left(self) -> float:
        """Seconds until the timeout of the attempt."""
        return self._deadline - time.monotonic()

    @property
    def idempotency_key(self) -> str:
        """Key for calls to other systems: the same in every attempt and redelivery of this run."""
        return f"{self.id}/{self.run}"

    @property
    def cancelled(self) -> bool:
        """Whether the attempt should stop."""
        return self.reason is not None

    def check(self) -> None:
        """Raises `Cancelled` if the attempt should stop, or `SoftTimeout`. For long loops of synchronous handlers."""
        if self.reason is not None:
            raise Cancelled(self.reason)
        if self._soft and time.monotonic() >= self._soft[0] and (error := self.soft_timeout()):
            raise error

    def progress(self, value: object, *, silent: bool = False) -> None:
        """Publishes the state of the work, any JSON; the newest value replaces earlier ones. Others are dropped and logged."""
        try:
            text = encode(value)
        except ValueError as error:
            self.log(f"a progress value was dropped: {error}")
            return
        if len(text) > self._limits["progress"]:
            self.log(f"a progress value of {len(text)} bytes was dropped: at most {self._limits['progress']} are kept")
        else:
            self._message(b"progress", b'"value":' + text, silent)

    def log(self, *lines: object, silent: bool = False) -> None:
        """Appends the text of any values to the task's log. `silent` ones do not count as activity for `stall_timeout`."""
        if silent != self._silent:
            self._channel.send(self.flush())
        self._silent = bool(silent)
        self._append([part for line in lines for part in text_of(line).split("\n")])

    def write_bytes(self, data: bytes, *, stream: Stream | None = None) -> None:
        """Appends UTF-8 to the task's log, as `sys.stdout.buffer.write` does; a character may be split."""
        with self._lock:
            if stream not in self._decoders:
                self._decoders[stream] = codecs.getincrementaldecoder("utf-8")("replace")
            text = self._decoders[stream].decode(data)
        self.write(text, stream=stream)

    def write(self, text: str, *, stream: Stream | None = None) -> None:
        """Appends text to the task's log, as `print` does; an incomplete line of a stream is kept until it is completed.

        A carriage return within a line starts it again, as on a terminal: of a progress bar, the last state is kept. `stream`
        is the output stream that the lines are shown with, if they come from one.
        """
        with self._lock:
            whole = self._partials.pop(stream, "") + text
            lines = [line[line.rfind("\r", 0, -1) + 1 :] for line in whole.split("\n")]
            if len(lines[-1]) <= self._limits["log_line"] and (partial := lines.pop()):
                self._partials[stream] = partial
        if lines:
            self._append(lines, stream)

    def flush_output(self) -> None:
        """Sends the pending log lines, as `print(…, flush=True)` does: they survive the end of this process."""
        if self._lines:
            self._channel.flushed(self)

    def warn(self, message: object, *, silent: bool = False) -> None:
        """Marks the task with a warning until it ends: the text of any value."""
        self._message(b"warn", b'"message":' + encode_text(text_of(message)[:_MAX_TEXT_CHARS]), silent)

    def attach(self, name: str, data: bytes | str, *, media: str = "application/octet-stream") -> None:
        """Stores a small value with the task, replacing an earlier one of the same name. Others are dropped and logged."""
        try:
            fields = encode(self._attachment(name, data, media))[1:-1]
        except BaseException as error:  # Code of the values may raise anything.
            self.log(f"the attachment `{text_of(name)[:100]}` was dropped: {text_of(error)}")
        else:
            self._message(b"attach", fields, False)

    def _attachment(self, name: str, data: bytes | str, media: str) -> dict[str, str]:
        if not isinstance(data, bytes | str):
            raise TypeError("attach takes bytes or str; hint: use json.dumps")
        if not (isinstance(name, str) and isinstance(media, str)):
            raise TypeError("its name and its media type are text")
        value, limit = data.encode() if isinstance(data, str) else data, self._limits["attachment"]
        if len(value) > limit:
            raise ValueError(f"it has {len(value)} bytes: at most {limit} are allowed")
        if len(name) + len(media) > _MAX_TEXT_CHARS:
            raise ValueError("its name or its media type is too long")
        return {"name": name, "media": media, "data": base64.b64encode(value).decode()}

    def heartbeat(self) -> None:
        """Reports activity, which restarts the type's `stall_timeout`."""
        self._channel.send(self.flush() + b'{"heartbeat":{"n":%d}}\n' % self.n)

    def retire(self, reason: str) -> None:
        """Ends this process once its running attempts have ended; the worker replaces it."""
        self._channel.send(self.flush() + b'{"retire":{"reason":%b}}\n' % encode_text(text_of(reason)[:_MAX_TEXT_CHARS]))

    @overload
    def spawn(self, task: Call[Any] | Group[Any], /) -> None: ...
    @overload
    def spawn(self, task: Submittable[P, Any], *args: P.args, **kwargs: P.kwargs) -> None: ...
    def spawn(self, task: Any, *args: Any, **kwargs: Any) -> None:
        """Spawns a child, also of a call, or each task of a group.

        It is published before this attempt's result; a failed attempt spawns nothing.
        """
        for call in call_of(task, args, kwargs)._calls():
            self._spawn(call)

    def _spawn(self, call: Call[Any]) -> None:
        child = self._child(call)
        self._total += len(child)
        self._children.append(child)
        self._children_bytes += len(child)
        if self._total > self._limits["children_bytes"]:
            raise Fail(f"the children have over {self._limits['children_bytes']} bytes; hint: use `spawn_now`", kind="bad_child")
        if self._children_bytes > _BATCH_BYTES:
            self._channel.send(self._take_children())

    def spawn_now(self, calls: Iterable[Call[Any]]) -> list[str]:
        """Publishes children at once and returns their ids. They remain if this attempt fails later."""
        if in_event_loop():
            raise RuntimeError("`spawn_now` would block the event loop; hint: use `await cx.aspawn_now(…)`")
        return [id for tasks in self._batches(calls) for id in self._channel.call(self, tasks).result()]

    async def aspawn_now(self, calls: Iterable[Call[Any]]) -> list[str]:
        """Publishes children at once and returns their ids. They remain if this attempt fails later."""
        import asyncio

        ids: list[str] = []
        for tasks in self._batches(calls):
            published: list[str] = await asyncio.wrap_future(self._channel.call(self, tasks))
            ids += published
        return ids

    @overload
    def then(self, task: Call[Any], /) -> None: ...
    @overload
    def then(self, task: Submittable[P, Any], *args: P.args, **kwargs: P.kwargs) -> None: ...
    def then(self, task: Any, *args: Any, **kwargs: Any) -> None:
        """Adds a continuation: a task, or a chain, that runs when this one and all its children have ended."""
        task_document = self._checked(call_of(task, args, kwargs)._as_call(), "then", "continuation")
        self._message(b"then", b'"task":' + task_document, False)

    def cancel(self, reason: str) -> None:
        """Requests the attempt to stop. Called by the app, and by tests."""
        self.reason, self._cancelled_at = reason, time.monotonic()
        if self._on_cancel:
            self._on_cancel()

    @property
    def end_reason(self) -> str:
        """Reason of the cancel for people, and the time that the handler has taken since then."""
        reason = f"timeout of {seconds_text(self.timeout)}" if self.reason == "timeout" else self.reason or ""
        late = time.monotonic() - self._cancelled_at
        return f"{reason}, stopped {seconds_text(late)} later" if reason and late > _PROMPT_SECONDS else reason

    @contextlib.contextmanager
    def soft_limit(self, seconds: float) -> Iterator[None]:
        """Limits the time of the handler, which runs within."""
        self._soft = time.monotonic() + seconds, seconds
        try:
            yield
        finally:
            self._soft = None

    @property
    def has_soft_limit(self) -> bool:
        """Whether a soft timeout has not been raised yet."""
        return self._soft is not None

    def soft_timeout(self) -> SoftTimeout | None:
        """Returns the exception of the soft timeout, once."""
        limit, self._soft = self._soft, None
        return SoftTimeout(f"soft timeout of {seconds_text(limit[1])}") if limit else None

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Calls this once the attempt should stop; at once if it should already."""
        self._on_cancel = callback
        if self.reason is not None:
            callback()

    def flush(self) -> bytes:
        """Returns the pending log lines as a message."""
        if not self._lines:
            return b""
        with self._lock:
            pending, self._lines, self._line_bytes = self._lines, [], 0
        end = b',"silent":true}}\n' if self._silent else b"}}\n"
        return b"".join(
            b'{"log":{"n":%d,"lines":%b%b%b' % (self.n, encode_text(lines), _STREAMS[stream], end) for stream, lines in pending
        )

    def finish(self, succeeded: bool) -> bytes:
        """Returns everything that is pending at the end of the attempt as messages."""
        for stream, decoder in list(self._decoders.items()):
            self.write(decoder.decode(b"", True), stream=stream)
        for stream in list(self._partials):
            self.write("\n", stream=stream)
        return self.flush() + (self._take_children() if succeeded else b"")

    def _append(self, lines: list[str], stream: Stream | None = None) -> None:
        limit = self._limits["log_line"]
        for line in lines:
            kept = line if len(line) * 4 <= limit else _truncated(line, limit)
            with self._lock:
                if not self._lines or self._lines[-1][0] != stream:
                    self._lines.append((stream, []))
                self._lines[-1][1].append(kept)
                self._line_bytes += len(kept) + 4
                full = self._line_bytes > _BATCH_BYTES
            if full:
                self._channel.send(self.flush())
        if self._lines:
            self._channel.buffered(self)

    def _message(self, kind: bytes, fields: bytes, silent: bool) -> None:
        end = b',"silent":true' if silent else b""
        self._channel.send(self.flush() + b'{"%b":{"n":%d,%b%b}}\n' % (kind, self.n, fields, end))

    def _child(self, call: Call[Any]) -> bytes:
        child = self._checked(call, "spawn", "child")
        self._count += 1
        if self._count > self._limits["children"]:
            raise Fail(f"more than {self._limits['children']} children", kind="bad_child")
        return child

    def _checked(self, call: Call[Any], use: Literal["spawn", "then"], name: str) -> bytes:
        """Returns the document of a task, which must fit into a message. Raises `TypeError` for params of other types."""
        check_params(call)
        try:
            document = call.encoded(use)
        except ValueError as error:
            labels = call.unwritable_labels()
            if not labels:
                raise
            self.log(f"`{'`, `'.join(labels)}` of a {name} of type `{call.target.name}` was dropped: {error}")
            document = call.without(labels).encoded(use)
        if len(document) > self._limits["params"] + (64 << 10):
            raise Fail(f"a {name} of type `{call.target.name}` has {len(document)} bytes", kind="bad_child")
        return document

    def _batches(self, calls: Iterable[Call[Any]]) -> Iterable[list[bytes]]:
        return batches(map(self._child, calls_of(calls)), len, _BATCH_BYTES)

    def _take_children(self) -> bytes:
        if not self._children:
            return b""
        tasks, self._children, self._children_bytes = b",".join(self._children), [], 0
        return b'{"spawn":{"n":%d,"tasks":[%b]}}\n' % (self.n, tasks)


def _truncated(line: str, limit: int) -> str:
    data = line.encode(errors="replace")
    return line if len(data) <= limit else data[:limit].decode(errors="ignore")


__all__ = ["LIMITS", "Channel", "Context", "SpawnFailed", "current"]
