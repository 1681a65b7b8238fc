"""Asynchronous handlers: the event loop that runs them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from .attempt import Attempt
from .connection import ConnectionProblem
from .session import Session, lifespan_failed


class AsyncRunner:
    """Event loop for asynchronous handlers and an asynchronous lifespan, in a thread unless the session has its own."""

    def __init__(self, session: Session, lifespan: Any) -> None:
        self._session, self._lifespan = session, lifespan
        self._running: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._aborted = False

    def __enter__(self) -> AsyncRunner:
        if isinstance(self._session, AsyncSession):
            return self
        self._thread = threading.Thread(target=lambda: self.run(self._main()), name="kafleet-loop")
        self._thread.start()
        self._ready.wait()
        if self._failure:
            raise lifespan_failed(self._failure) from self._failure
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop and self._stop and not isinstance(self._session, AsyncSession):
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def run(self, main: Coroutine[Any, Any, None]) -> None:
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
                        self._aborted = True
                        task.remove_done_callback(stop)
                        raise
            task.result()

    def start(self, attempt: Attempt) -> None:
        """Runs an attempt on the loop. Called from any thread."""
        if self._loop:
            self._loop.call_soon_threadsafe(self.start_here, attempt)

    def start_here(self, attempt: Attempt) -> None:
        """Runs an attempt on the loop. Called on the loop."""
        assert self._loop
        loop = self._loop
        task = loop.create_task(self._run(attempt))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        # Scheduled behind the start of the handler, because a task cancelled before its start runs nothing.
        attempt.cx.on_cancel(lambda: loop.call_soon_threadsafe(task.cancel))

    @contextlib.asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        """Enters the lifespan, and waits for the running attempts before it leaves it."""
        self._loop = asyncio.get_running_loop()
        async with contextlib.AsyncExitStack() as stack:
            if self._lifespan is not None:
                self._session.state = await stack.enter_async_context(self._lifespan)
            yield
            while self._running:
                await asyncio.wait(self._running)

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        try:
            async with self.entered():
                self._ready.set()
                await self._stop.wait()
        except BaseException as error:
            if self._ready.is_set():
                raise
            self._failure = error
            self._ready.set()

    async def _run(self, attempt: Attempt) -> None:
        lines = await attempt.arun()
        if not self._aborted:  # Otherwise its failure is the end of the loop: the worker runs it again.
            self._session.answer(attempt, lines)


def _is_from_callback(error: BaseException) -> bool:
    """Returns whether a callback or a task has raised an exception, not the loop itself, as at a SIGINT while it waits."""
    found = error.__traceback__
    while found and found.tb_frame.f_code is not asyncio.Handle._run.__code__:
        found = found.tb_next
    return found is not None


class AsyncSession(Session):
    """All handlers are asynchronous: the event loop runs on the main thread and reads the socket."""

    def serve(self) -> None:
        assert self.runner
        self.runner.run(self._serve())

    def start(self, attempt: Attempt) -> None:
        assert self.runner
        self.runner.start_here(attempt)

    def answer(self, attempt: Attempt, lines: bytes) -> None:
        """Sends the answers of one iteration of the loop together."""
        self.running.pop(attempt.cx.n, None)
        if not self._answers:
            asyncio.get_running_loop().call_soon(self._send_answers)
        self._answers.append(lines)

    async def _serve(self) -> None:
        assert self.runner
        self._answers: list[bytes] = []
        self._ended = asyncio.get_running_loop().create_future()
        async with contextlib.AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self.runner.entered())
            except Exception as error:
                raise lifespan_failed(error) from error
            self.begin()
            loop = asyncio.get_running_loop()
            loop.add_reader(self.connection, self._readable)
            await self._ended
        self._send_answers()

    def _readable(self) -> None:
        try:
            self.receive()
        except ConnectionProblem as error:
            asyncio.get_running_loop().remove_reader(self.connection)
            self._ended.set_exception(error)
        if self.connection.ended and not self._ended.done():
            asyncio.get_running_loop().remove_reader(self.connection)
            self._ended.set_result(None)

    def _send_answers(self) -> None:
        lines, self._answers = b"".join(self._answers), []
        self.send(lines)
