"""Asynchronous handlers: the event loop that runs them."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from typing import TYPE_CHECKING, Any

from .attempt import Attempt
from .connection import Connection, ConnectionProblem
from .session import MARGIN_SECONDS, TICK, Session, lifespan_failed
from .stacks import log_stack
from .threads import HandlerThreads

if TYPE_CHECKING:
    from .app import App


class AsyncSession(Session):
    """The event loop reads the socket and runs asynchronous handlers and lifespans; synchronous handlers run in threads.

    If these need one thread, it is the main thread, as signal handlers require, and the loop runs in another one.
    """

    def __init__(self, connection: Connection, app: App, welcome: dict[str, Any]) -> None:
        super().__init__(connection, app, welcome)
        count = self.threads or (self.slots if any(task.is_sync for task in self.tasks.values()) else 0)
        self._has_main = count == 1
        self._pool = HandlerThreads(self, 0 if self._has_main else count)
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: list[bytes] = []
        self._failure: BaseException | None = None
        self._is_aborted = False

    def serve(self) -> None:
        if self._has_main:
            # A daemon, so that a SIGINT ends the process as it does with a loop on the main thread.
            loop = threading.Thread(target=self._run_loop, name="kafleet-loop", daemon=True)
            loop.start()
            self._pool.run()
            loop.join()
        else:
            self._run_loop()
        if self._failure:
            raise self._failure

    def start(self, attempt: Attempt) -> None:
        if attempt.cx._deadline < self.watcher.alarm:
            self.watcher.expect(attempt.cx._deadline)
        if not attempt.task.is_async:
            self._pool.start(attempt)
            return
        loop = self._loop
        task = attempt.runs_in = loop.create_task(self._run(attempt))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Scheduled behind the start of the handler, because a task cancelled before its start runs nothing.
        attempt.cx.on_cancel(lambda: loop.call_soon_threadsafe(task.cancel))

    def next_deadline(self) -> float:
        """Logs the stacks of attempts whose cancel cannot be read, because the event loop is blocked."""
        running, now = list(self.running.values()), time.monotonic() - MARGIN_SECONDS
        passed = [attempt for attempt in running if attempt.cx._deadline <= now]
        if passed and self._is_blocked():
            for attempt in passed:
                log_stack(attempt, "timeout", self._thread if attempt.task.is_async else None)
        return min((attempt.cx._deadline for attempt in running if attempt not in passed), default=math.inf)

    def _is_blocked(self) -> bool:
        answered = threading.Event()
        self._loop.call_soon_threadsafe(answered.set)
        return not answered.wait(MARGIN_SECONDS)

    async def _run(self, attempt: Attempt) -> None:
        """Runs an attempt, and sends the answers of one iteration of the loop together."""
        with contextlib.suppress(BaseException):
            # A `GeneratorExit` of a task that the handler awaits closes this coroutine's inner one, which has answered by then.
            await attempt.arun()
        if self._is_aborted:  # Its failure is the end of the loop: the worker runs it again.
            return
        self.running.pop(attempt.cx.n, None)
        if not self._answers:
            self._loop.call_soon(self._send_answers)
        self._answers.append(attempt.lines)

    def _run_loop(self) -> None:
        try:
            self._run_until_ended(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._pool.end()

    def _run_until_ended(self, main: Coroutine[Any, Any, None]) -> None:
        """Runs a loop until `main` has ended. What user code does in a callback or in a task of its own ends no other task."""
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            task = loop.create_task(main)

            def stop(_: object) -> None:
                loop.stop()

            task.add_done_callback(stop)
            while not task.done():
                try:
                    loop.run_forever()  # Until `main` ends, or user code stops the loop.
                except (KeyboardInterrupt, SystemExit) as error:
                    if not _is_from_callback(error):
                        self._is_aborted = True
                        task.remove_done_callback(stop)
                        raise
            task.result()

    async def _serve(self) -> None:
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._ended = self._loop.create_future()
        async with contextlib.AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._entered())
            except Exception as error:
                raise lifespan_failed(error) from error
            self.begin()
            self._loop.add_reader(self.connection, self._readable)
            await self._ended
        self._send_answers()

    @contextlib.asynccontextmanager
    async def _entered(self) -> AsyncIterator[None]:
        """Enters the lifespan, and waits for the running attempts before it leaves it."""
        async with contextlib.AsyncExitStack() as stack:
            if self.lifespan is not None:
                self.state = await stack.enter_async_context(self.lifespan)
            yield
            while self._tasks:
                await asyncio.wait(self._tasks)
            while any(not attempt.task.is_async for attempt in list(self.running.values())):
                await asyncio.sleep(TICK)

    def _readable(self) -> None:
        try:
            self.receive()
        except ConnectionProblem as error:
            self._loop.remove_reader(self.connection)
            self._ended.set_exception(error)
        if self.connection.ended and not self._ended.done():
            self._loop.remove_reader(self.connection)
            self._ended.set_result(None)

    def _send_answers(self) -> None:
        lines, self._answers = b"".join(self._answers), []
        self.send(lines)


_own_traceback: Any = BaseException.__dict__["__traceback__"].__get__


def _is_from_callback(error: BaseException) -> bool:
    """Returns whether a callback or a task has raised an exception, not the loop itself, as at a SIGINT while it waits."""
    found = _own_traceback(error)  # Of the exception itself, whose class may hide it.
    while found and found.tb_frame.f_code is not asyncio.Handle._run.__code__:
        found = found.tb_next
    return found is not None
