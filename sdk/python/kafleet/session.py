"""A session with the worker: receives attempts, runs them in slots, and sends their answers."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import os
import platform
import re
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NoReturn

from . import loaded_files, streams
from .attempt import Attempt, bad_params, error_line
from .connection import Connection, ConnectionProblem, take_socket
from .context import LIMITS, Context
from .declare import Bundle, UnknownTask
from .forks import leave as leave_child
from .outcomes import SpawnFailed
from .scalars import Mismatch
from .stacks import log_stack
from .tracebacks import stack_of
from .values import class_name, encode, encode_text, parse, text_of
from .version import VERSION

if TYPE_CHECKING:
    from .app import App
    from .task import Task

PROTOCOL = 1

TICK = 0.02
"""Seconds after which a running attempt counts as long: from then on another thread reads the socket."""
MARGIN_SECONDS = 0.2
"""Time after its timeout at which an attempt is looked at, if the worker's cancel has not been read."""
_IDLE_TICKS = 50
_ENDED = {"kind": "shutdown", "message": "the worker is shutting down: it publishes no more children"}
_LINE_START = re.compile(rb'\{"attempt":\{"n":(\d+)')


class Unable(Exception):
    """The app cannot serve; the message is shown to people."""

    def line(self) -> bytes:
        """Returns the message to the worker."""
        return b'{"unable":{"message":%b}}\n' % encode_text(str(self))


class Session:
    """Connection of one app process with its worker; the subclasses differ in the threads that run handlers."""

    def __init__(self, connection: Connection, app: App, welcome: dict[str, Any]) -> None:
        self.connection, self.app = connection, app
        self.limits = {**LIMITS, **welcome.get("limits", {})}
        self._is_dev = bool(welcome.get("dev"))
        self.state: Any = None
        self.tasks, self.slots, self.threads = _served(app, welcome)
        self.running: dict[int, Attempt] = {}
        self.send = connection.send
        self._calls, self._replies = itertools.count(1), dict[int, Future[list[str]]]()
        self._waiting: deque[bytes] = deque()
        self._unsent: set[Context] = set()
        self.watcher = Watcher(self)
        self.lifespan: Any = None
        """Lifespan that is entered on the event loop."""

    def serve(self) -> None:
        """Runs attempts until the worker ends the stream."""
        raise NotImplementedError

    def start(self, attempt: Attempt) -> None:
        """Runs an attempt in a slot. Called by the thread that reads the socket."""
        raise NotImplementedError

    def tick(self) -> bool:
        """Does periodic work, in the thread of the watcher; returns whether there was any."""
        return False

    def alone(self) -> Context | None:
        """Returns the context of the only attempt that runs; a forked child is outside of it."""
        running = [] if self.connection.abandoned else list(self.running.values())
        return running[0].cx if len(running) == 1 else None

    def next_deadline(self) -> float:
        """Looks at attempts whose timeout has passed, and returns that of the next one."""
        return math.inf

    def begin(self) -> None:
        """Reports that the app can run attempts."""
        if self.connection.abandoned:  # A fork of the import or of the lifespan.
            leave_child(None)
        try:
            types = [self._declaration(task) for task in self.tasks.values()]
            schedules = self.app.schedule.resolve(self.tasks)
        except TypeError as error:
            raise Unable(str(error)) from error
        ready = {
            "protocol": PROTOCOL,
            "sdk": f"kafleet-sdk {VERSION}",
            "runtime": f"Python {platform.python_version()}",
            "slots": self.slots,
            **({"threads": self.threads} if self.threads else {}),
            "responsive": True,
            "types": types,
            **({"schedules": schedules} if schedules else {}),
        }
        self.prepare_process()
        self.send(encode({"ready": ready}) + b"\n")
        for line in self.connection.early:
            self._handle(line)

    def prepare_process(self) -> None:
        """Prepares a process that runs nothing but attempts."""
        streams.attribute(self.alone)
        gc.collect()
        gc.freeze()
        if self._is_dev:
            loaded_files.report(self.send)

    def receive(self) -> None:
        """Waits for messages and handles them."""
        for line in self.connection.read():
            self._handle(line)
        if not self.connection.ended:
            return
        if self.running and self.connection.is_dead():
            self.connection.lost()
        for call in list(self._replies):
            self._reply({"call": call, "error": _ENDED})

    def answer(self, attempt: Attempt, lines: bytes) -> None:
        """Sends the last messages of an attempt."""
        self.running.pop(attempt.cx.n, None)
        self.send(lines)

    def call(self, cx: Context, tasks: list[bytes]) -> Future[list[str]]:
        """Publishes children at once."""
        if self.connection.abandoned:
            raise RuntimeError("a forked child is outside of the attempt: it publishes nothing")
        call, future = next(self._calls), Future[list[str]]()
        message = b'{"spawn":{"n":%d,"call":%d,"tasks":[%b]}}\n' % (cx.n, call, b",".join(tasks))
        self._replies[call] = future
        if self.connection.ended:
            self._reply({"call": call, "error": _ENDED})
        elif len(self._replies) > self.limits.get("calls", 16):
            self._waiting.append(message)
        else:
            self.send(cx.flush() + message)
        self.watcher.poke()
        return future

    def buffered(self, cx: Context) -> None:
        """Sends the log lines of an attempt within a tick."""
        self._unsent.add(cx)
        self.watcher.wake()

    def flushed(self, cx: Context) -> None:
        """Sends the log lines of an attempt before this call returns. A process that dies in the next moment has sent them."""
        self.connection.send_now(cx.flush)

    def send_logs(self) -> bool:
        """Sends the pending log lines of all attempts."""
        sent = bool(self._unsent)
        while self._unsent:
            self.connection.send_from(self._unsent.pop().flush)
        return sent

    def _declaration(self, declared: Task[..., Any] | Bundle) -> dict[str, Any]:
        kind = {"sync": declared.is_sync} if self.threads else {}
        return {**declared.declaration(), "source": declared.place, **kind}

    def _handle(self, line: bytes) -> None:
        try:
            ((kind, fields),) = parse(line).items()
        except (ValueError, RecursionError, AttributeError) as error:
            self._unreadable(line, error)
            return
        if kind == "attempt":
            self._begin(fields)
        elif kind == "cancel":
            attempt, reason = self.running.get(fields["n"]), fields["reason"]
            if attempt:
                if reason in ("timeout", "stalled"):
                    log_stack(attempt, reason)
                attempt.cx.cancel(reason)
        elif kind == "reply":
            self._reply(fields)
        elif kind == "ping":
            self.send(b'{"pong":{"at":%b}}\n' % encode(fields["at"]))

    def _begin(self, message: dict[str, Any]) -> None:
        n, declared = message["n"], self.tasks.get(message["type"])
        if declared is None:
            self.send(error_line(n, "retry", "unknown_type", f"the app does not declare `{message['type']}`"))
            return
        try:
            attempt = Attempt(declared.select(message["params"]), message, self)
        except UnknownTask as error:
            self.send(error_line(n, "wait", "unknown_task", str(error)))
        except Mismatch as error:
            self.send(bad_params(n, error))
        except Exception as error:  # For example from a dataclass's `__post_init__`.
            self.send(bad_params(n, f"the params do not fit the type: {text_of(error) or class_name(error)}"))
        except BaseException as error:  # A SIGINT, or a `sys.exit` there: says nothing about the params.
            self.send(error_line(n, "retry", class_name(error), f"while the params were read: {text_of(error)}"))
        else:
            self.running[n] = attempt
            self.start(attempt)

    def _unreadable(self, line: bytes, error: Exception) -> None:
        found = _LINE_START.match(line)
        if found is None:
            raise ConnectionProblem(f"the worker sent an invalid message: {error}: {line[:200]!r}") from None
        self.send(bad_params(int(found[1]), f"the params cannot be read: {error}"))

    def _reply(self, fields: dict[str, Any]) -> None:
        future = self._replies.pop(fields["call"], None)
        if self._waiting and not self.connection.ended:
            self.send(self._waiting.popleft())
        if future is None or not future.set_running_or_notify_cancel():
            return
        error = fields.get("error")
        if error:
            future.set_exception(SpawnFailed(error["message"], kind=error["kind"]))
        else:
            future.set_result(fields["ids"])


class Watcher:
    """Thread that sends pending log lines, and reads the socket while a handler occupies the main thread.

    It sleeps while nothing runs.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._poked = threading.Event()
        self._asleep, self.alarm = True, math.inf
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Ends the sleep: there is work in one of the next ticks."""
        if self._asleep:
            self._asleep = False
            self.poke()

    def expect(self, deadline: float) -> None:
        """Looks at the running attempts at a time that is before that of `alarm`."""
        self.alarm = deadline
        self.poke()

    def poke(self) -> None:
        """Starts the next tick at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kafleet", daemon=True)
            self._thread.start()
        self._poked.set()

    def _run(self) -> None:
        idle = 0
        while True:
            # Set before the last look for work, so that work which comes behind that look ends the sleep.
            self._asleep = idle >= _IDLE_TICKS
            busy = self._session.tick()
            busy |= self._session.send_logs()
            idle = 0 if busy else idle + 1
            if busy:
                self._asleep = False
            left = self.alarm + MARGIN_SECONDS - time.monotonic()
            if self._poked.wait(TICK if not self._asleep else None if left == math.inf else max(left, TICK)):
                self._poked.clear()
                idle = 0
            if left <= 0:
                self.alarm = self._session.next_deadline()


class InlineSession(Session):
    """One slot: synchronous handlers run on the main thread, which also reads the socket while it is idle."""

    def __init__(self, connection: Connection, app: App, welcome: dict[str, Any]) -> None:
        super().__init__(connection, app, welcome)
        self._pending: deque[Attempt] = deque()
        self._reading = threading.Lock()
        self._busy: Attempt | None = None
        self._seen: Attempt | None = None
        self._watching = False
        self._bell, self._ring = os.pipe()

    def serve(self) -> None:
        self.begin()
        while attempt := self._next():
            self._busy = attempt
            self.watcher.wake()
            lines = attempt.run()
            self._busy = None
            self.answer(attempt, lines)
            if self._watching:
                os.write(self._ring, b"\0")

    def start(self, attempt: Attempt) -> None:
        self._pending.append(attempt)

    def call(self, cx: Context, tasks: list[bytes]) -> Future[list[str]]:
        self._seen = self._busy  # The watcher reads the reply, without waiting for a tick.
        return super().call(cx, tasks)

    def tick(self) -> bool:
        busy = self._busy
        if busy is not None and busy is self._seen:
            self._watching = True
            self._read_during(busy)
            self._watching = False
        self._seen = busy
        return busy is not None

    def _next(self) -> Attempt | None:
        while True:
            with self._reading:
                if self._pending:
                    return self._pending.popleft()
                if self.connection.ended:
                    return None
                self.receive()

    def _read_during(self, busy: Attempt) -> None:
        """Reads the socket until the attempt has ended."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        poll.register(self._bell, select.POLLIN)
        while self._busy is busy and not self.connection.ended:
            with self._reading:
                ready = [fd for fd, _ in poll.poll(TICK * 1000)]
                if self._bell in ready:
                    os.read(self._bell, 64)
                if self.connection.fileno() in ready:
                    self.receive()
            self.send_logs()


def serve(load: Callable[[], App]) -> NoReturn:
    """Serves the worker on file descriptor 0 with the app that `load` returns, and exits."""
    try:
        connection = take_socket()
    except ConnectionProblem as error:
        sys.exit(f"error: {error}")
    streams.install()
    try:
        _serve_parent(connection, load)
    except Unable as error:
        connection.send(error.line())
    except ConnectionProblem as error:
        sys.exit(f"error: {error}")
    connection.close()
    sys.exit()


def _serve_parent(connection: Connection, load: Callable[[], App]) -> None:
    """Serves in this process; forked children that return from the user's code end here at the latest."""
    try:
        _serve(connection, load)
    except BaseException as error:
        if connection.abandoned:
            leave_child(error)
        raise


def _serve(connection: Connection, load: Callable[[], App]) -> None:
    welcome = read_welcome(connection)
    app = load()
    streams.configure_logging()
    serve_app(app, lambda lifespan: _session_class(app, welcome, lifespan)(connection, app, welcome))


def serve_app(app: App, session_with: Callable[[Any], Session]) -> None:
    """Enters the lifespan of an app, and runs attempts until the worker ends the stream. Raises `Unable`."""
    if not app.tasks:
        raise Unable("the app declares no task types; hint: put `@app.task` above a function")
    with contextlib.ExitStack() as stack:
        try:
            lifespan = app.lifespan(app) if app.lifespan else None
            session = session_with(lifespan)
            if hasattr(lifespan, "__aenter__"):
                session.lifespan = lifespan
            elif lifespan is not None:
                session.state = stack.enter_context(lifespan)
        except Exception as error:
            raise lifespan_failed(error) from error
        session.serve()


def _served(app: App, welcome: dict[str, Any]) -> tuple[dict[str, Task[..., Any] | Bundle], int, int]:
    """Returns the types of this process, its slots, and its threads for synchronous handlers beside these."""
    names = welcome.get("types")
    tasks = {name: task for name, task in app.tasks.items() if names is None or name in names}
    has_mixed = any(declared.is_mixed for declared in app.tasks.values())
    slots, threads = app.places({task.is_sync for task in app.tasks.values()}, has_mixed=has_mixed)
    kinds = {task.is_sync for task in tasks.values()}
    if threads and len(kinds) == 1:  # A process of some types of the app runs as many of them as one of all types.
        slots, threads = (threads if kinds == {True} else slots), 0
    return tasks, welcome.get("slots") or slots, threads


def _session_class(app: App, welcome: dict[str, Any], lifespan: Any) -> type[Session]:
    """Returns the class that runs these handlers; the modules of the others are not imported."""
    tasks, slots, _ = _served(app, welcome)
    if hasattr(lifespan, "__aenter__") or any(task.is_async for declared in tasks.values() for task in declared.members):
        from .loop import AsyncSession

        return AsyncSession
    from .threads import ThreadedSession

    return InlineSession if slots == 1 else ThreadedSession


def read_welcome(connection: Connection) -> dict[str, Any]:
    """Returns the fields of the first message; further lines are left for the session."""
    lines: list[bytes] = []
    while not lines:
        lines = connection.read()
        if connection.ended:
            raise ConnectionProblem("the worker ended before it sent `welcome`")
    welcome: dict[str, Any] = parse(lines[0])["welcome"]
    connection.early = lines[1:]
    if welcome["protocol"] < PROTOCOL:
        raise Unable(f"the worker speaks version {welcome['protocol']} of the app protocol, this SDK {PROTOCOL}")
    return welcome


def lifespan_failed(error: BaseException) -> Unable:
    """Returns the message about a lifespan that cannot be entered."""
    return Unable(f"the lifespan of the app failed: {stack_of(error)}")
